"""Philox against the vectors published with Random123, in torch and numba alike; orders and bounds against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fkgsec import philox
from fkgsec.errors import SpecError
from fkgsec.federation.options import replace
from fkgsec.kge import cpu_draws
from fkgsec.kge.options import KgeOptions

# `tests/kat_vectors` of Random123, philox4x32 with 10 rounds: counter, key, result.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def numbers(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def signed(low: int, high: int) -> int:
    return int(np.uint64(low + (high << 32)).astype(np.int64))


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors(counter: str, key: str, expected: str) -> None:
    four = tuple(torch.tensor(word) for word in numbers(counter))
    assert len(four) == 4
    keys = torch.tensor(signed(*numbers(key)))
    assert [int(word) for word in philox.philox(four, keys)] == numbers(expected)
    out, (low, high) = np.empty(4, np.uint64), numbers(key)
    cpu_draws.philox(np.array(numbers(counter), np.uint64), np.uint64(low + (high << 32)), out)
    assert out.tolist() == numbers(expected)


def test_places_are_words_of_successive_counters() -> None:
    drawn = philox.words(7, torch.tensor([[5, 0], [3, 4]]), step=11, epoch=2, round=9)
    by_counter = [
        philox.philox(tuple(map(torch.tensor, (first, 11, 2, 9))), torch.tensor(7))  # pyright: ignore[reportArgumentType]
        for first in (0, 1)
    ]
    assert drawn.tolist() == [
        [int(by_counter[1][1]), int(by_counter[0][0])],
        [int(by_counter[0][3]), int(by_counter[1][0])],
    ]


def test_every_argument_changes_what_is_drawn() -> None:
    places, where = torch.arange(6), {"step": 1, "epoch": 2, "round": 3}
    base = philox.words(philox.key(0, "negatives", 4), places, **where)
    others = [philox.key(1, "negatives", 4), philox.key(0, "shuffle", 4), philox.key(0, "negatives", 5)]
    drawn = [philox.words(other, places, **where) for other in others]
    drawn += [philox.words(philox.key(0, "negatives", 4), places, **where | {name: 7}) for name in where]
    assert not any((other == base).any() for other in drawn)


def test_bounded_numbers_are_uniform_and_reach_both_ends() -> None:
    drawn = philox.bounded(philox.words(3, torch.arange(30_000), step=0, epoch=0, round=0), 17)
    counts = torch.bincount(drawn, minlength=17)
    assert len(counts) == 17
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert philox.bounded(torch.tensor([0, 2**32 - 1]), 2**31 - 1).tolist() == [0, 2**31 - 2]


def test_an_order_sorts_the_words_of_step_0() -> None:
    key = philox.key(0, "shuffle", 2)
    drawn = philox.words(key, torch.arange(40), step=0, epoch=2, round=5).tolist()
    assert philox.order(key, 40, epoch=2, round=5).tolist() == sorted(range(40), key=lambda row: drawn[row])


def test_every_place_of_an_order_is_as_likely() -> None:
    first = [int(philox.order(8, 6, epoch=epoch, round=0)[0]) for epoch in range(1_200)]
    assert stats.chisquare(np.bincount(first, minlength=6)).pvalue > 1e-3


def test_the_option_tells_runs_apart_and_leaves_earlier_ones_as_they_were() -> None:
    plain = KgeOptions()
    assert "draws" not in plain.identity()
    assert replace(plain, draws="philox").identity() == plain.identity() | {"draws": "philox"}
    with pytest.raises(SpecError, match=r"^draws must .*got 'phlox'"):
        KgeOptions(draws="phlox")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SpecError, match=r"^draws must .*got 'philox'"):
        KgeOptions(model="noge", draws="philox")


def test_numbers_are_pinned() -> None:
    """Every record drawn by Philox depends on these."""
    drawn = philox.words(philox.key(0, "shuffle", 1), torch.arange(2), step=0, epoch=0, round=0)
    assert drawn.tolist() == PINNED


PINNED = [1241649173, 3189203414]
