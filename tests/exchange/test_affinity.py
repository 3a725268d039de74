"""PFedEG by hand from pfedeg.txt section 3: its equations, and rounds of three clients over five entities."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fkgsec.algorithms.settings import Affinity
from fkgsec.exchange import Holding, Transport
from fkgsec.exchange.affinity import (
    embedding_affinity,
    scaled,
    shared_affinity,
    supplementary,
)
from fkgsec.federation.messages import Channel
from fkgsec.kge.options import KgeOptions

# Rows of the five entities that three clients hold, in each client's own order.
HOLDINGS = [torch.tensor([0, 1, 2, 3]), torch.tensor([4, 3]), torch.tensor([2, 0, 4])]
ROWS = [
    torch.tensor([[1.0, 0.0], [5.0, 5.0], [0.0, 2.0], [3.0, 4.0]]),
    torch.tensor([[1.0, 1.0], [4.0, 3.0]]),
    torch.tensor([[0.0, 1.0], [0.0, 3.0], [-2.0, -2.0]]),
]
# Eq. 4: 1 shared of 5, 2 of 5, 1 of 4; on the diagonal the smallest of the row.
SHARED = [[0.2, 0.2, 0.4], [0.2, 0.2, 0.25], [0.4, 0.25, 0.25]]
# Eq. 5: 3 of a and b (cosine 24 / 25): e^0.96 = 2.61169647; 2 and 0 of a and c (cosines 1 and 0): e + 1 = 3.71828183;
# 4 of b and c (cosine -1): e^-1 = 0.36787944, as on the diagonal.
BY_COSINE = [
    [0.36787944, 2.61169647, 3.71828183],
    [2.61169647, 0.36787944, 0.36787944],
    [3.71828183, 0.36787944, 0.36787944],
]


def close(actual: Tensor, expected: object, atol: float = 1e-6) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


class TestSharedAffinity:
    def test_eq_4_by_hand(self) -> None:
        weights = shared_affinity(HOLDINGS)
        assert weights.dtype == torch.float64
        close(weights, SHARED, atol=1e-12)

    def test_a_client_that_shares_nothing_weighs_nothing(self) -> None:
        # c holds 9 alone, so it is everybody's smallest; a and b share one of three.
        weights = shared_affinity([torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([9])])
        close(weights, [[0.0, 1 / 3, 0.0], [1 / 3, 0.0, 0.0], [0.0, 0.0, 0.0]], atol=1e-12)


class TestEmbeddingAffinity:
    def test_eq_5_by_hand(self) -> None:
        close(embedding_affinity(HOLDINGS, ROWS), BY_COSINE)

    def test_nothing_shared_is_an_empty_sum(self) -> None:
        weights = embedding_affinity([torch.tensor([0]), torch.tensor([1])], [torch.ones(1, 2), torch.ones(1, 2)])
        close(weights, [[0.36787944, 0.0], [0.0, 0.36787944]])


class TestScaled:
    def test_eq_6_by_hand(self) -> None:
        # Sums of the rows: 0.8, 0.65, 0.9
        by_hand = [[1 / 4, 1 / 4, 1 / 2], [4 / 13, 4 / 13, 5 / 13], [4 / 9, 5 / 18, 5 / 18]]
        close(scaled(torch.tensor(SHARED, dtype=torch.float64)), by_hand, atol=1e-12)


class TestSupplementary:
    def test_what_no_weighed_client_holds_stays(self) -> None:
        # Eq. 4 of a {0, 1}, b {1, 2}, c {9}: a weighs b alone, b weighs a alone, c nobody.
        holdings = [torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([3])]
        rows = [torch.tensor([[1.0], [2.0]]), torch.tensor([[10.0], [20.0]]), torch.tensor([[7.0]])]
        received = supplementary(scaled(shared_affinity(holdings)), holdings, rows, mixing=0.5, num_rows=4)
        # a: 0 stays, 1 becomes (10 + 2) / 2; b: 1 becomes (2 + 10) / 2, 2 stays; c: stays
        close(received[0], [[1.0], [6.0]])
        close(received[1], [[6.0], [20.0]])
        close(received[2], [[7.0]])


PARTIES = ("client/a", "client/b", "client/c")


def federation(affinity: Affinity, mixing: float = 0.75) -> Transport:
    """a holds v, w, x, y; b holds z, y; c holds x, v, z: the holdings above by name. All begin as (9, 9)."""
    options = KgeOptions(algorithm="pfedeg", dim=2, settings={"affinity": affinity, "mixing": mixing}, device="cpu")
    exchange = Transport(Channel(), options, PARTIES, ("entities",), "a run")
    names = ("vwxy", "zy", "xvz")
    exchange.align("entities", {party: Holding(list(own), len(own)) for party, own in zip(PARTIES, names, strict=True)})
    exchange.initialise("entities", torch.full((5, 2), 9.0))
    return exchange


def received(exchange: Transport, round: int, own: Sequence[Tensor]) -> list[Tensor]:
    """Each client's rows after the broadcast."""
    messages = exchange.broadcast(round, "entities", PARTIES)
    return [messages[party].merged(rows) for party, rows in zip(PARTIES, own, strict=True)]


class TestExchange:
    def test_pfedeg_by_number_of_shared_entities(self) -> None:
        exchange = federation("shared")
        exchange.upload(1, "entities", dict(zip(PARTIES, ROWS, strict=True)))
        after = received(exchange, 1, ROWS)
        # As above: 3/4 of the weighted means, 1/4 of the client's own
        close(after[0], [[0.5, 1.5], [5.0, 5.0], [0.0, 1.5], [3.375, 3.625]])
        close(after[1], [[-0.25, -0.25], [3.625, 3.375]])
        close(after[2], [[0.0, 63 / 52 + 0.25], [24 / 52, 45 / 52 + 0.75], [-0.875, -0.875]])

    def test_pfedeg_by_embeddings(self) -> None:
        exchange = federation("embedding", mixing=1.0)
        exchange.upload(1, "entities", dict(zip(PARTIES, ROWS, strict=True)))
        after = received(exchange, 1, ROWS)
        # a weighs itself by e^-1 and c by e + 1: 0.09003057 and 0.90996943 of both; b by e^0.96: 0.12346705 and 0.87653295
        # Its v is 0.09003057 (1, 0) + 0.90996943 (0, 3), its x 0.09003057 (0, 2) + 0.90996943 (0, 1), its y
        # 0.12346705 (3, 4) + 0.87653295 (4, 3).
        close(after[0], [[0.09003057, 2.72990829], [5.0, 5.0], [0.0, 1.09003057], [3.87653295, 3.12346705]])
        # b weighs c like itself: z ((1, 1) + (-2, -2)) / 2; y: 0.87653295 (3, 4) + 0.12346705 (4, 3)
        close(after[1], [[-0.5, -0.5], [3.12346705, 3.87653295]])
        # x: 0.90996943 (0, 2) + 0.09003057 (0, 1); v: 0.90996943 (1, 0) + 0.09003057 (0, 3); z as for b
        close(after[2], [[0.0, 1.90996943], [0.90996943, 0.27009171], [-0.5, -0.5]])

    def test_the_server_keeps_what_a_client_uploaded_last(self) -> None:
        exchange = federation("shared")
        exchange.upload(1, "entities", dict(zip(PARTIES, ROWS, strict=True)))
        exchange.upload(2, "entities", {"client/b": torch.tensor([[4.0, 1.0], [0.0, 0.0]])})
        after = received(exchange, 2, ROWS)
        # a's y: 3/4 ((3, 4) + (0, 0)) / 2 + 1/4 (3, 4); c's z: 3/4 ((4, 1) + (-2, -2)) / 2 + 1/4 (-2, -2); v and x as before
        close(after[0], [[0.5, 1.5], [5.0, 5.0], [0.0, 1.5], [1.875, 2.5]])
        close(after[2], [[0.0, 63 / 52 + 0.25], [24 / 52, 45 / 52 + 0.75], [0.25, -0.875]])
        # b's z: 3/4 (4 (4, 1) + 5 (-2, -2)) / 9 + 1/4 (4, 1); y: 3/4 (3, 4) / 2 + 0
        close(after[1], [[1.5, -0.25], [1.125, 1.5]])

    def test_the_weights_follow_the_embeddings(self) -> None:
        exchange = federation("embedding", mixing=1.0)
        exchange.upload(1, "entities", dict(zip(PARTIES, ROWS, strict=True)))
        exchange.upload(2, "entities", {"client/b": torch.tensor([[4.0, 1.0], [-3.0, -4.0]])})
        # a and b are now opposite in y, cosine -1: both weigh e^-1, and ((3, 4) + (-3, -4)) / 2 = 0
        close(received(exchange, 2, ROWS)[0][3], [0.0, 0.0])
