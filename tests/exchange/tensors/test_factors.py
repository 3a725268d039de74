"""Matrices of low rank as two factors: by hand, their bytes, and messages that do not fit."""

import pytest
import torch

from fkgsec.errors import RunError
from fkgsec.exchange import CODECS
from fkgsec.exchange.parts import Delivered, Holding, SharedTable, tensor_places
from fkgsec.exchange.tensors.factors import factorise, joined, pack, unpack
from fkgsec.federation.messages import SERVER, Alignment, QuantisedRows, decode, encode
from fkgsec.gnn.options import GnnOptions

NAMES = [*(f"a/{row}" for row in range(8)), "b/0", *(f"c/{row}" for row in range(8))]
TENSORS = tensor_places(NAMES)


def rows_of_rank(rank: int) -> torch.Tensor:
    """A matrix of that rank, a bias, a matrix of rank 8."""
    rng = torch.Generator().manual_seed(0)
    low = torch.rand(8, rank, generator=rng) @ torch.rand(rank, 4, generator=rng)
    return torch.cat([low, torch.rand(1, 4, generator=rng), torch.rand(8, 4, generator=rng)])


@pytest.mark.parametrize(("rank", "rows"), [(0, 0), (1, 3), (2, 6), (3, None)])
def test_factors_cross_where_they_are_smaller(rank: int, rows: int | None) -> None:
    """Of 8 x 4: rank k takes k rows and 2 k; three of these are 9."""
    matrix = rows_of_rank(rank)[:8]
    factors = factorise(matrix)
    assert (factors is None) == (rows is None)
    if factors:
        assert sum(map(len, factors)) == rows
        assert torch.allclose(joined(*factors, 8), matrix, atol=1e-5)


def test_a_table_goes_and_comes_back() -> None:
    table = rows_of_rank(2)
    rows, parts, ranks = pack(table, TENSORS)
    assert ranks == [2, -1, -1]
    assert len(rows) == 6 + 1 + 8
    assert torch.allclose(unpack(rows, ranks, TENSORS), table, atol=1e-5)
    assert torch.equal(torch.cat(list(parts.values())), torch.arange(15))
    for ranks in ([2, -1], [1, -1, -1], [-2, -1, -1], [10**9, -1, -1]):
        with pytest.raises(RunError, match="do not hold 3 tensors of ranks"):
            unpack(rows, ranks, TENSORS)


def exchanged(factors: str, rank: int, defense: str = "") -> tuple[QuantisedRows, torch.Tensor, torch.Tensor]:
    """The broadcast of such a table, what the server has afterwards, and what the client reads."""
    options = GnnOptions(algorithm="cefgl", settings={"bits": 8, "factors": factors}, defense=defense)
    shared, codec = SharedTable("parameters", ["client/a"]), CODECS["quantised"]
    shared.align(Alignment(0, "client/a", SERVER, "parameters", NAMES, len(NAMES)))
    shared.initialise(torch.zeros(len(NAMES), 4))
    server, client = codec.server(shared, options, "rows"), codec.client(Holding(NAMES, len(NAMES)), options, "rows")
    server.publish(rows_of_rank(rank), Delivered((len(NAMES), 4)))
    again = codec.server(shared, options, "rows")
    again.load(server.tensors())
    message = server.pack(3, "client/a", shared.rows)
    assert message == again.pack(3, "client/a", shared.rows)  # also after a kill
    received = decode(encode(message))
    assert isinstance(received, QuantisedRows)
    return received, shared.rows, client.read(received).values


@pytest.mark.parametrize("rank", [0, 1])
def test_the_client_reads_what_the_server_has(rank: int) -> None:
    message, table, read = exchanged("smaller", rank)
    whole, _, _ = exchanged("never", rank)
    assert torch.equal(read, table)
    assert float((table - rows_of_rank(rank)).abs().max()) < 0.03  # 8 bits of each factor
    assert message.ranks == [rank, -1, -1]
    assert whole.ranks == []
    assert len(message.data) == 4 * (3 * rank + 9)
    assert len(encode(message)) < len(encode(whole))


def test_whole_rows_cross_where_they_are_smaller_or_a_defense_binds_them() -> None:
    assert exchanged("smaller", 3)[0].ranks == []
    assert exchanged("smaller", 2)[0].ranks == []  # two rows of 4 bytes less, but a step, a count and the ranks more
    assert exchanged("smaller", 1, defense="secagg")[0].ranks == []
