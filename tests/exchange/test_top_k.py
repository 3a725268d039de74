"""FedS by hand from feds.txt section III: its equations, and rounds of three clients over five entities."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.algorithms.settings import equal_cost_dim, transmitted_ratio
from fkgsec.exchange import Delivered, Holding, Transport, Upload
from fkgsec.exchange.top_k import (
    changes,
    is_synchronised,
    largest,
    most_uploaded,
    num_selected,
)
from fkgsec.federation.messages import SERVER, Channel, Rows, SparseRows
from fkgsec.kge.options import KgeOptions

PARTIES = ("client/a", "client/b", "client/c")
A, B, C = PARTIES


def close(actual: Tensor, expected: object) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("num_shared", "sparsity", "count"),
    [
        (5, 0.4, 2),  # 2
        (3, 0.7, 2),  # 2.1
        (9, 0.4, 3),  # 3.6
        (2, 0.4, 1),  # 0.8, but something crosses
        (1000, 0.0001, 1),  # 0.1
        (7, 1.0, 7),
        (100, 0.29, 29),  # 28.999999999999996 in floating point
        (90, 0.7, 63),
        (0, 0.4, 0),
        (0, 1.0, 0),
    ],
)
def test_eq_2_the_number_of_rows(num_shared: int, sparsity: float, count: int) -> None:
    assert num_selected(num_shared, sparsity) == count


class TestChanges:
    def test_eq_1_by_hand(self) -> None:
        rows = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 4.0], [1.0, 1.0]])
        history = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 5.0], [-2.0, 0.0], [4.0, 3.0], [1.0, 7.0]])
        # Cosines 1, 1 (of any length), 0, -1, 24 / 25, 8 / (sqrt 2 sqrt 50) = 0.8
        close(changes(rows, history), [0.0, 0.0, 1.0, 2.0, 0.04, 0.2])

    def test_rows_of_zeros_give_numbers(self) -> None:
        values = changes(torch.zeros(2, 3), torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
        assert bool(torch.isfinite(values).all())


class TestLargest:
    @pytest.mark.parametrize(
        ("count", "places"), [(0, []), (1, [0]), (2, [0, 2]), (3, [0, 2, 4]), (4, [0, 2, 3, 4]), (5, [0, 1, 2, 3, 4])]
    )
    def test_by_hand_the_lowest_place_first_among_equals(self, count: int, places: list[int]) -> None:
        mask = largest(torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0]), count)
        assert mask.dtype == torch.bool
        assert mask.nonzero().flatten().tolist() == places


class TestSumsOfOthers:
    # Five entities; a sends 0 and 1, b sends 3 and 1 (in its own order), c sends 1 and 4; nobody sends 2.
    UPLOADS: ClassVar[dict[str, Upload]] = {
        "a": Upload(torch.tensor([0, 1]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])),
        "b": Upload(torch.tensor([3, 1]), torch.tensor([[10.0, 20.0], [30.0, 40.0]])),
        "c": Upload(torch.tensor([1, 4]), torch.tensor([[500.0, 600.0], [700.0, 800.0]])),
    }

    @pytest.mark.parametrize(
        ("party", "sums", "counts"),
        [
            ("a", [[0, 0], [30 + 500, 40 + 600], [0, 0], [10, 20], [700, 800]], [0, 2, 0, 1, 1]),
            ("b", [[1, 2], [3 + 500, 4 + 600], [0, 0], [0, 0], [700, 800]], [1, 2, 0, 0, 1]),
            ("c", [[1, 2], [3 + 30, 4 + 40], [0, 0], [10, 20], [0, 0]], [1, 2, 0, 1, 0]),
            # One that did not take part receives from all.
            ("d", [[1, 2], [533, 644], [0, 0], [10, 20], [700, 800]], [1, 3, 0, 1, 1]),
        ],
    )
    def test_eq_3_by_hand(self, party: str, sums: list[list[float]], counts: list[int]) -> None:
        totals, holders = Delivered((5, 2), self.UPLOADS).sum(without=party)
        close(totals, sums)
        assert holders.dtype == torch.int64
        assert holders.tolist() == counts


class TestMostUploaded:
    COUNTS = torch.tensor([2, 0, 1, 3, 1])

    @pytest.mark.parametrize(
        ("count", "places"), [(0, []), (1, [3]), (2, [0, 3]), (4, [0, 2, 3, 4]), (5, [0, 2, 3, 4]), (99, [0, 2, 3, 4])]
    )
    def test_by_priority_and_only_what_somebody_sent(self, count: int, places: list[int]) -> None:
        for seed in range(20):
            mask = most_uploaded(self.COUNTS, count, np.random.default_rng(seed))
            assert mask.dtype == torch.bool
            assert mask.nonzero().flatten().tolist() == places


class TestCost:
    @pytest.mark.parametrize(
        ("sparsity", "sparse_rounds", "dim", "ratio"),
        [
            (0.7, 4, 256, 0.76421875),  # (2.8 + 1 + 2.7 x 4 / 512) / 5 = (3.8 + 0.02109375) / 5; VI-C: 0.7642
            (0.4, 4, 256, 0.52375),  # (1.6 + 1 + 2.4 x 4 / 512) / 5 = (2.6 + 0.01875) / 5
            (0.5, 1, 10, 0.8125),  # (0.5 + 1 + 2.5 / 20) / 2
            (1.0, 3, 4, 1.28125),  # (3 + 1 + 9 / 8) / 4: more than without
        ],
    )
    def test_eq_5_by_hand(self, sparsity: float, sparse_rounds: int, dim: int, ratio: float) -> None:
        assert transmitted_ratio(sparsity, sparse_rounds, dim) == pytest.approx(ratio, abs=1e-12)

    @pytest.mark.parametrize(
        ("sparsity", "sparse_rounds", "dim", "equal"),
        [
            (0.4, 4, 256, 135),  # 256 x 0.52375 = 134.08
            (0.7, 4, 256, 196),  # 256 x 0.76421875 = 195.64
            (0.5, 1, 10, 9),  # 8.125
            (0.4, 4, 2, 2),  # (2.6 x 2 + 4.8) / 5 = 2, nothing to round
            (0.4, 4, 52, 28),  # (2.6 x 52 + 4.8) / 5 = 28; 28.000000000000004 in floating point
        ],
    )
    def test_appendix_vi_c(self, sparsity: float, sparse_rounds: int, dim: int, equal: int) -> None:
        assert equal_cost_dim(sparsity, sparse_rounds, dim) == equal


@pytest.mark.parametrize(
    ("sparse_rounds", "rounds"), [(4, [0, 5, 10]), (2, [0, 3, 6, 9]), (1, [0, 2, 4, 6, 8, 10]), (0, [0]), (20, [0])]
)
def test_so_many_rounds_lie_between_two_synchronisations(sparse_rounds: int, rounds: list[int]) -> None:
    assert [round for round in range(11) if is_synchronised(round, sparse_rounds)] == rounds


def federation(seed: int = 0) -> Transport:
    """a holds v, w, x, y; b holds z, y, x, w; c holds x, y, z; all begin as (1, 0). v is a's alone.

    With p = 0.7 each sends two: of 3 shared rows, 2.1; of 4, 2.8. Two sparse rounds lie between two synchronisations.
    """
    options = KgeOptions(
        algorithm="feds", dim=2, settings={"sparsity": 0.7, "sparse_rounds": 2}, seed=seed, device="cpu"
    )
    exchange = Transport(Channel(), options, PARTIES, ("entities",), "a run")
    names = dict(zip(PARTIES, ("vwxy", "zyxw", "xyz"), strict=True))
    exchange.align("entities", {party: Holding(list(own), len(own)) for party, own in names.items()})
    exchange.initialise("entities", torch.tensor([[1.0, 0.0]]).repeat(5, 1))
    exchange.broadcast(0, "entities", PARTIES)
    return exchange


# What training makes of the rows in round 1, and 1 - cosine to (1, 0).
FIRST = {
    A: torch.tensor([[-1.0, 0.0], [0.0, 1.0], [3.0, 4.0], [4.0, 3.0]]),  # v 2, but it is not shared; w 1, x 0.4, y 0.2
    B: torch.tensor([[2.0, 0.0], [-1.0, 0.0], [0.0, -2.0], [0.8, 0.6]]),  # z 0, y 2, x 1, w 0.2
    C: torch.tensor([[1.0, 0.0], [0.0, 3.0], [4.0, 3.0]]),  # x 0, y 1, z 0.2
}
# In round 2, b takes no part. a sent w (0, 1) and x (3, 4) last and never y, which counts as (1, 0); c sent y (0, 3) and
# z (4, 3), never x.
SECOND = {
    A: torch.tensor([[5.0, 5.0], [0.0, 2.0], [4.0, 3.0], [4.0, 3.0]]),  # w 0, x 1 - 24 / 25, y 0.2
    C: torch.tensor([[2.0, 0.0], [0.0, -1.0], [-3.0, 4.0]]),  # x 0, y 2, z 1
}
THIRD = {
    A: torch.tensor([[7.0, 7.0], [0.0, 2.0], [2.0, 2.0], [3.0, 0.0]]),
    B: torch.tensor([[2.0, 2.0], [0.0, 3.0], [4.0, 0.0], [2.0, 0.0]]),
    C: torch.tensor([[0.0, 4.0], [3.0, 3.0], [0.0, 1.0]]),
}
# From what a sent in round 3: w 0, x 1 - 3 / sqrt 10 = 0.05, y 1. From what it received then, w would be 0.29.
FOURTH = {A: torch.tensor([[9.0, 0.0], [0.0, 5.0], [2.0, 1.0], [0.0, 1.0]])}


def run_rounds(exchange: Transport, count: int) -> None:
    for round, rows in list(enumerate((FIRST, SECOND, THIRD, FOURTH), 1))[:count]:
        exchange.upload(round, "entities", rows)


def uploads(exchange: Transport, round: int) -> dict[str, tuple[list[int], list[list[float]]]]:
    """Places and rows of each sparse upload of a round."""
    sent = {}
    for message in exchange.channel.transcript.messages(round):
        if message.receiver == SERVER:
            assert isinstance(message, SparseRows)
            places, rows, _ = message.unpack()
            sent[message.sender] = places.tolist(), rows.tolist()
    return sent


class TestExchange:
    def test_the_rows_that_changed_most_go_up(self) -> None:
        exchange = federation()
        run_rounds(exchange, 2)
        first, second = uploads(exchange, 1), uploads(exchange, 2)
        assert {party: places for party, (places, _) in first.items()} == {A: [1, 2], B: [1, 2], C: [1, 2]}
        close(
            torch.tensor([rows for _, rows in first.values()]), [[[0, 1], [3, 4]], [[-1, 0], [0, -2]], [[0, 3], [4, 3]]]
        )
        assert {party: places for party, (places, _) in second.items()} == {A: [2, 3], C: [1, 2]}
        close(torch.tensor([rows for _, rows in second.values()]), [[[4, 3], [4, 3]], [[0, -1], [-3, 4]]])

    def test_round_1_by_hand(self) -> None:
        exchange = federation()
        run_rounds(exchange, 1)
        received = exchange.broadcast(1, "entities", PARTIES)
        # Uploaded: a's w and x, b's y and x, c's y and z.
        # a, of which nobody else sent w: x ((0, -2) + (3, 4)) / 2, y ((-1, 0) + (0, 3) + (4, 3)) / 3
        close(received[A].merged(FIRST[A]), [[-1, 0], [0, 1], [1.5, 1], [1, 2]])
        # c: x ((3, 4) + (0, -2) + (1, 0)) / 3, y ((-1, 0) + (0, 3)) / 2; z was its own alone
        close(received[C].merged(FIRST[C]), [[4 / 3, 2 / 3], [-0.5, 1.5], [4, 3]])

    def test_equals_are_drawn_and_what_is_not_drawn_stays(self) -> None:
        # Each of b's four rows was sent by one other client, and two of them come down. They become: z half of
        # (4, 3) + (2, 0), y half of (0, 3) + (-1, 0), x half of (3, 4) + (0, -2), w half of (0, 1) + (0.8, 0.6).
        combination = [[3.0, 1.5], [-0.5, 1.5], [1.5, 1.0], [0.4, 0.8]]
        drawn = set()
        for seed in range(40):
            exchange = federation(seed)
            run_rounds(exchange, 1)
            merged = exchange.broadcast(1, "entities", PARTIES)[B].merged(FIRST[B])
            changed = (merged != FIRST[B]).any(dim=1).nonzero().flatten().tolist()
            assert len(changed) == 2
            close(merged[changed], [combination[place] for place in changed])
            drawn.add(tuple(changed))
        assert drawn == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}

    def test_round_2_by_hand_in_which_b_takes_no_part(self) -> None:
        exchange = federation()
        run_rounds(exchange, 2)
        received = exchange.broadcast(2, "entities", PARTIES)
        # Uploaded: a's x and y, c's y and z.
        # a: of its rows c sent y alone, ((0, -1) + (4, 3)) / 2
        close(received[A].merged(SECOND[A]), [[5, 5], [0, 2], [4, 3], [2, 1]])
        # c: x ((4, 3) + (2, 0)) / 2, y ((4, 3) + (0, -1)) / 2
        close(received[C].merged(SECOND[C]), [[3, 1.5], [2, 1], [-3, 4]])
        # b: y was sent twice, ((4, 3) + (0, -1) + (3, 3)) / 3, and one of z and x once: (-3, 4) or (4, 3), + (3, 3), / 2
        merged = received[B].merged(torch.full((4, 2), 3.0))
        close(merged[[1, 3]], [[7 / 3, 5 / 3], [3, 3]])
        assert merged[[0, 2]].tolist() in ([[0.0, 3.5], [3.0, 3.0]], [[3.0, 3.0], [3.5, 3.0]])

    def test_synchronisation_by_hand(self) -> None:
        exchange = federation()
        run_rounds(exchange, 3)
        # The means of w (0, 2), (2, 0), of x (2, 2), (4, 0), (0, 4), of y (3, 0), (0, 3), (3, 3), of z (2, 2), (0, 1)
        w, x, y, z = [1.0, 1.0], [2.0, 2.0], [2.0, 2.0], [1.0, 1.5]
        received = exchange.broadcast(3, "entities", PARTIES)
        close(received[A].merged(THIRD[A]), [[7, 7], w, x, y])
        close(received[B].merged(THIRD[B]), [z, y, x, w])
        close(received[C].merged(THIRD[C]), [x, y, z])

    def test_what_one_client_holds_alone_never_crosses(self) -> None:
        exchange = federation()
        for round, rows in enumerate((FIRST, SECOND, THIRD, FOURTH), 1):
            exchange.upload(round, "entities", {A: rows[A]})
            exchange.broadcast(round, "entities", PARTIES)
        sent = []
        for round in range(5):
            for message in exchange.channel.transcript.messages(round):
                if isinstance(message, SparseRows):
                    sent += message.unpack()[1].tolist()
                elif isinstance(message, Rows):
                    sent += message.unpack().tolist()
        assert [7.0, 7.0] not in sent
        assert not any(rows[A][0].tolist() in sent for rows in (FIRST, SECOND, THIRD, FOURTH))
        assert THIRD[A][1].tolist() in sent  # w of round 3 did


def test_what_crosses_in_a_cycle_is_eq_5() -> None:
    """Three clients that hold the same ten entities, p = 0.4, s = 2, D = 8; a sign is a bit and a priority two bytes."""
    options = KgeOptions(algorithm="feds", dim=8, settings={"sparsity": 0.4, "sparse_rounds": 2}, device="cpu")
    exchange = Transport(Channel(), options, PARTIES, ("entities",), "a run")
    exchange.align("entities", {party: Holding(list("abcdefghij"), 10) for party in PARTIES})
    rng = np.random.default_rng(6)
    exchange.initialise("entities", torch.from_numpy(rng.normal(size=(10, 8)).astype(np.float32)))
    exchange.broadcast(0, "entities", PARTIES)
    numbers = 0
    for round in (1, 2, 3):
        rows = {party: torch.from_numpy(rng.normal(size=(10, 8)).astype(np.float32)) for party in PARTIES}
        exchange.upload(round, "entities", rows)
        exchange.broadcast(round, "entities", PARTIES)
        for message in exchange.channel.transcript.messages(round):
            assert isinstance(message, Rows | SparseRows)
            numbers += len(message.data) // 4
            if isinstance(message, SparseRows):
                assert len(message.signs) == 2
                numbers += message.num_rows + len(message.priorities) // 2
    fede = 3 * len(PARTIES) * 2 * 10 * 8
    assert numbers / fede == pytest.approx(transmitted_ratio(0.4, 2, 8), abs=1e-12)
