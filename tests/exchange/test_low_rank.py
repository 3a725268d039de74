"""FedE-SVD and SVD+ by hand from feds.txt VI-B: its equations, and rounds of three clients over five entities."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.exchange import Holding, Transport
from fkgsec.exchange.low_rank import factorise, orthogonality
from fkgsec.federation.messages import SERVER, Channel, LowRankRows
from fkgsec.kge.options import KgeOptions

PARTIES = ("client/a", "client/b", "client/c")
A, B, C = PARTIES
# The five entities' first rows.
START = torch.arange(30.0).reshape(5, 6)


def close(actual: Tensor, expected: object, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual.detach(), torch.tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


class TestFactorise:
    # Each row is a 2 x 2 matrix, first its first line.
    UPDATES = torch.tensor([[3.0, 0.0, 0.0, 4.0], [1.0, 2.0, 2.0, 4.0], [3.0, 0.0, 4.0, 5.0], [0.0, 0.0, 0.0, 0.0]])

    def test_the_largest_singular_value_by_hand(self) -> None:
        factors = factorise(self.UPDATES, columns=2, rank=1)
        # diag(3, 4): 4. (1, 2)^T (1, 2): |(1, 2)|^2 = 5.
        # [[3, 0], [4, 5]]: M^T M = [[25, 20], [20, 25]], eigenvalues 45 and 5, so sqrt 45 along (1, 1) / sqrt 2.
        close(factors.values, [[4.0], [5.0], [math.sqrt(45)], [0.0]])
        # M v v^T with v = (1, 1) / sqrt 2 and M v = (3, 9) / sqrt 2: [[1.5, 1.5], [4.5, 4.5]]
        close(factors.rows(), [[0.0, 0.0, 0.0, 4.0], [1.0, 2.0, 2.0, 4.0], [1.5, 1.5, 4.5, 4.5], [0.0] * 4])

    def test_rows_are_read_line_by_line(self) -> None:
        # As 3 x 2, line by line, it is (1, 2, 3)^T (1, 2), of rank 1. As 2 x 3, or column by column, it is not.
        updates = torch.tensor([[1.0, 2.0, 2.0, 4.0, 3.0, 6.0]])
        factors = factorise(updates, columns=2, rank=1)
        assert (factors.left.shape, factors.values.shape, factors.right.shape) == ((1, 3, 1), (1, 1), (1, 2, 1))
        close(factors.values, [[math.sqrt(14 * 5)]])
        close(factors.rows(), updates.tolist())
        assert not torch.allclose(factorise(updates, columns=3, rank=1).rows(), updates, atol=0.1)

    @pytest.mark.parametrize(("width", "numbers"), [(256, 205), (512, 365)])
    def test_the_papers_counts(self, width: int, numbers: int) -> None:
        """32 x 5 + 5 + 8 x 5 of a real row of 256, 64 x 5 + 5 + 8 x 5 of a complex one."""
        updates = torch.from_numpy(np.random.default_rng(0).normal(size=(3, width)).astype(np.float32))
        factors = factorise(updates, columns=8, rank=5)
        assert factors.left.shape == (3, width // 8, 5)
        assert factors.values.shape == (3, 5)
        assert factors.right.shape == (3, 8, 5)
        assert sum(part.numel() for part in (factors.left, factors.values, factors.right)) == 3 * numbers


class TestOrthogonality:
    def test_eq_7_by_hand(self) -> None:
        left = torch.tensor([[[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [0.6, 0.0], [0.8, 0.0]]])
        right = torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
        # First: U^T U - I = [[0, 1], [1, 2]], squares 6; V^T V - I = [[3, 0], [0, 0]], squares 9; (6 + 9) / 2^2.
        # Second: U is orthonormal, V^T V - I = -I; 2 / 2^2
        close(orthogonality(left, right), [3.75, 0.5])


def federation() -> Transport:
    """a holds v, w, x, y; b holds z, y; c holds x, v, z. Updates are 3 x 2 matrices, of which one singular value crosses."""
    options = KgeOptions(algorithm="fede-svd", dim=6, settings={"rank": 1, "columns": 2}, device="cpu")
    exchange = Transport(Channel(), options, PARTIES, ("entities",), "a run")
    names = dict(zip(PARTIES, ("vwxy", "zy", "xvz"), strict=True))
    exchange.align("entities", {party: Holding(list(own), len(own)) for party, own in names.items()})
    exchange.initialise("entities", START)
    return exchange


def diagonal(*pairs: tuple[float, float]) -> Tensor:
    """3 x 2 matrices with these on the diagonal: their singular values are the two, and the larger one is what crosses."""
    return torch.tensor([[first, 0.0, 0.0, second, 0.0, 0.0] for first, second in pairs])


# Rows v, w, x, y of a, z, y of b, x, v, z of c in the table of v, w, x, y, z; and what training changes them by.
PLACES = {A: [0, 1, 2, 3], B: [4, 3], C: [2, 0, 4]}
UPDATES = {
    A: diagonal((3, 1), (0, -2), (1, 2), (4, 0)),
    B: diagonal((1, 5), (-2, 6)),
    C: diagonal((4, 1), (1, 0), (-8, 2)),
}
SENT = {
    A: diagonal((3, 0), (0, -2), (0, 2), (4, 0)),
    B: diagonal((0, 5), (0, 6)),
    C: diagonal((4, 0), (1, 0), (-8, 0)),
}
# Means over holders of what was sent: v (3 + 1) / 2 = (2, 0); w (0, -2); x ((0, 2) + (4, 0)) / 2 = (2, 1);
# y ((4, 0) + (0, 6)) / 2 = (2, 3); z ((0, 5) + (-8, 0)) / 2 = (-4, 2.5). Of these the server sends the larger value.
CHANGE = diagonal((2, 0), (0, -2), (2, 0), (0, 3), (-4, 0))


def run_rounds(exchange: Transport, count: int) -> None:
    """Round 1 with all; in round 2 c alone, which moves v by (1, 7) and leaves x and z where they are."""
    exchange.broadcast(0, "entities", PARTIES)
    exchange.upload(1, "entities", {party: START[PLACES[party]] + update for party, update in UPDATES.items()})
    if count > 1:
        exchange.broadcast(1, "entities", PARTIES)
        exchange.upload(2, "entities", {C: (START + CHANGE)[PLACES[C]] + diagonal((0, 0), (1, 7), (0, 0))})


class TestExchange:
    def test_the_first_broadcast_is_whole(self) -> None:
        received = federation().broadcast(0, "entities", PARTIES)
        for party, places in PLACES.items():
            assert torch.equal(received[party].merged(torch.zeros(len(places), 6)), START[places])

    def test_what_crosses_is_the_largest_singular_value(self) -> None:
        exchange = federation()
        run_rounds(exchange, 1)
        sent = {}
        for message in exchange.channel.transcript.messages(1):
            assert isinstance(message, LowRankRows)
            assert message.receiver == SERVER
            left, values, right = message.unpack()
            assert (left.shape[1:], values.shape[1:], right.shape[1:]) == ((3, 1), (1,), (2, 1))
            sent[message.sender] = torch.einsum("nir,nr,njr->nij", left, values, right).flatten(1)
        for party, update in SENT.items():
            close(sent[party], update.tolist())

    def test_round_2_goes_on_from_what_clients_received(self) -> None:
        exchange = federation()
        run_rounds(exchange, 2)
        received = exchange.broadcast(2, "entities", PARTIES)
        # c sends (0, 7) of v; nobody else changes anything.
        after = START + CHANGE + diagonal((0, 7), (0, 0), (0, 0), (0, 0), (0, 0))
        for party, places in PLACES.items():
            close(received[party].merged(torch.zeros(len(places), 6)), after[places].tolist())
        close(exchange.server["entities"].rows, after.tolist())

    def test_the_server_sees_rows_up_to_what_was_left_out(self) -> None:
        exchange = federation()
        run_rounds(exchange, 1)
        for party, observed in exchange.observed("entities").items():
            close(observed.rows, (START[PLACES[party]] + SENT[party]).tolist())
            assert bool(observed.seen.all())
