"""Generators depend on their arguments, on all of them, and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkgsec.randomness import generator

# Few values, so that two draws often differ in one place only, or in how a text is split over arguments.
labels = st.one_of(st.integers(-2, 12), st.sampled_from(["", "a", "b", "a, b", "a', 'b", "1", "12", "-1"]))
arguments = st.tuples(
    st.integers(-2, 12), st.sampled_from(["", "a", "a, 1", "1"]), st.lists(labels, max_size=3).map(tuple)
)


def first_numbers(seed: int, purpose: str, where: tuple[int | str, ...]) -> list[int]:
    return generator(seed, purpose, *where).integers(0, 2**62, size=2).tolist()


@given(arguments)
def test_same_arguments_same_numbers(given_arguments: tuple[int, str, tuple[int | str, ...]]) -> None:
    assert first_numbers(*given_arguments) == first_numbers(*given_arguments)


@given(arguments, arguments)
def test_other_arguments_other_numbers(
    one: tuple[int, str, tuple[int | str, ...]], other: tuple[int, str, tuple[int | str, ...]]
) -> None:
    assert (one == other) == (first_numbers(*one) == first_numbers(*other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, "a", ()), (1, "a", (0,))),
        ((1, "a", (1,)), (1, "a", ("1",))),
        ((1, "a", (1, 2)), (1, "a", (2, 1))),
        ((1, "a", (12,)), (1, "a", (1, 2))),
        ((1, "a", ("b", "c")), (1, "a", ("b', 'c",))),
        ((1, "a", ("b",)), (1, "b", ("a",))),
        ((2**64, "a", ()), (0, "a", ())),
    ],
)
def test_neighbouring_arguments_are_told_apart(
    one: tuple[int, str, tuple[int | str, ...]], other: tuple[int, str, tuple[int | str, ...]]
) -> None:
    assert first_numbers(*one) != first_numbers(*other)


def test_numbers_are_pinned() -> None:
    """Every record depends on these: a change here makes every earlier run irreproducible."""
    assert first_numbers(0, "shuffle", (1, "client 2")) == [1758348613913008762, 4261094673969874017]


def test_streams_of_neighbouring_rounds_are_uncorrelated() -> None:
    streams = np.stack([generator(0, "noise", round).normal(size=2000) for round in range(40)])
    correlation = np.asarray(np.corrcoef(streams))[np.triu_indices(40, k=1)]
    # 780 correlations with a standard deviation of 1 / sqrt(2000).
    assert np.abs(correlation).max() < 5 / np.sqrt(2000)
    assert correlation.std() == pytest.approx(1 / np.sqrt(2000), rel=0.1)


def test_generators_share_no_state() -> None:
    one, other = generator(0, "a"), generator(0, "b")
    interleaved = [one.random(), other.random(), one.random(), other.random()]
    assert interleaved[0::2] == generator(0, "a").random(2).tolist()
    assert interleaved[1::2] == generator(0, "b").random(2).tolist()


def test_numpy_integers_are_integers() -> None:
    seed, client = np.array([3, 1])  # as a loop over an array gives them
    assert first_numbers(seed, "a", (client,)) == first_numbers(3, "a", (1,))
