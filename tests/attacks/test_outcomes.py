"""Outcomes by item: the variance of a paired difference is that of resampled items, and records keep each item set once."""

import tracemalloc
import zlib
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from scipy.stats import rankdata

from fkgsec.attacks.figure import STRONGEST, Figure, keep_outcomes
from fkgsec.attacks.membership.figures import compare_auc, placements
from fkgsec.attacks.outcomes import (
    MOST_ITEMS,
    Outcomes,
    of_auc,
    of_mean,
    of_spearman,
    paired_variance,
    same_items,
    unpack,
)
from fkgsec.errors import RunError
from fkgsec.estimate import exact, proportion

NUM_ITEMS = 400
ALONE = np.arange(NUM_ITEMS)[:, None]


def deviation(ours: Outcomes | None, theirs: Outcomes | None) -> float:
    assert ours is not None
    assert theirs is not None
    return paired_variance(ours, theirs, ours.ends).items ** 0.5


def hits(rng: np.random.Generator) -> tuple[float, float]:
    shared = rng.random(NUM_ITEMS)
    now, then = ((0.7 * shared + 0.3 * rng.random(NUM_ITEMS)) < 0.4 for _ in range(2))
    return now.mean() - then.mean(), deviation(of_mean(now, ALONE), of_mean(then, ALONE))


def aucs(rng: np.random.Generator) -> tuple[float, float]:
    half = NUM_ITEMS // 2
    shared = rng.normal(size=NUM_ITEMS) + (np.arange(NUM_ITEMS) < half)
    parts = [np.split(shared + rng.normal(0, 0.5, NUM_ITEMS), 2) for _ in range(2)]
    now, then = (placements(part[0], part[1]).members.mean() for part in parts)
    return now - then, deviation(*(of_auc(part[0], part[1], ALONE) for part in parts))


def correlations(rng: np.random.Generator) -> tuple[float, float]:
    degrees = rng.integers(0, 10, NUM_ITEMS)
    shared = 0.2 * degrees + rng.normal(size=NUM_ITEMS)
    now, then = (shared + rng.normal(0, 0.5, NUM_ITEMS) for _ in range(2))
    both = [float(np.corrcoef(rankdata(scores), rankdata(degrees))[0, 1]) for scores in (now, then)]
    return both[0] - both[1], deviation(of_spearman(now, degrees, ALONE), of_spearman(then, degrees, ALONE))


def hits_of_hubs(rng: np.random.Generator) -> tuple[float, float]:
    """Triples of 40 heads: two runs differ by the head."""
    heads = rng.integers(0, 40, NUM_ITEMS)
    ends = np.stack([heads, 40 + np.arange(NUM_ITEMS)], axis=1)
    now, then = (rng.random(40)[heads] < 0.4 for _ in range(2))
    return now.mean() - then.mean(), deviation(of_mean(now, ends), of_mean(then, ends))


@pytest.mark.parametrize("draw", [hits, aucs, correlations, hits_of_hubs])
def test_the_paired_deviation_is_that_of_repeated_samples(
    draw: Callable[[np.random.Generator], tuple[float, float]],
) -> None:
    rng = np.random.default_rng(7)
    differences, deviations = zip(*(draw(rng) for _ in range(500)), strict=True)
    assert np.mean(deviations) == pytest.approx(np.std(differences), rel=0.12)


def test_the_deviation_of_two_aucs_is_delongs() -> None:
    rng = np.random.default_rng(0)
    now, then = (rng.normal(size=NUM_ITEMS) for _ in range(2))
    member = np.arange(NUM_ITEMS) < 150
    delong = compare_auc(now, then, member)
    ours = deviation(*(of_auc(scores[member], scores[~member], ALONE) for scores in (now, then)))
    assert 1.96 * ours == pytest.approx((delong.high - delong.low) / 2, rel=0.03)


def test_outcomes_of_the_same_items_are_recognized_in_any_order() -> None:
    rng = np.random.default_rng(1)
    ends, right = rng.integers(0, 300, (100, 2)), rng.random(100) < 0.5
    order = rng.permutation(100)
    first, shuffled = of_mean(right, ends), of_mean(right[order], ends[order])
    other = of_mean(right, ends + 1)
    assert same_items(first, shuffled)
    assert not same_items(first, other)
    assert not same_items(first, None)
    assert first is not None
    assert not same_items(first, msgspec.structs.replace(first, draws=(0.5, 0.4)))
    assert deviation(first, first) == 0
    assert unpack(first).sum() == pytest.approx(0, abs=1e-12)
    assert len(first.codes) < 60


def test_large_item_sets_are_not_kept_and_damaged_ones_rejected() -> None:
    assert of_mean(np.zeros(MOST_ITEMS + 1), np.arange(MOST_ITEMS + 1)[:, None]) is None
    outcomes = of_mean(np.arange(9) < 4, np.arange(9)[:, None])
    assert outcomes is not None
    for damaged in (b"", b"nothing"):
        with pytest.raises(RunError):
            paired_variance(outcomes, outcomes, damaged)
        with pytest.raises(RunError):
            unpack(msgspec.structs.replace(outcomes, codes=damaged))
    with pytest.raises(RunError):
        paired_variance(outcomes, outcomes, of_mean(np.arange(8) < 4, np.arange(8)[:, None]).ends)  # type: ignore[union-attr]


def test_outcomes_of_a_hostile_record_take_no_more_memory_than_honest_ones() -> None:
    outcomes = of_mean(np.arange(9) < 4, np.arange(9)[:, None])
    assert outcomes is not None
    bomb = zlib.compress(bytes(30_000_000), 9)
    assert len(bomb) < 30_000
    tracemalloc.start()
    for hostile, ends in (
        (msgspec.structs.replace(outcomes, codes=bomb), outcomes.ends),
        (outcomes, bomb),
        (outcomes, zlib.compress(np.arange(9, dtype="<i4").tobytes() + b"\0")),
        (outcomes, zlib.compress(np.full(9, -1, dtype="<i4").tobytes())),
        (outcomes, outcomes.ends[:-4]),
    ):
        with pytest.raises(RunError):
            paired_variance(hostile, outcomes, ends)
    far = zlib.compress(np.full(9, 2**31 - 1, dtype="<i4").tobytes())  # entities up to 19 billion
    assert paired_variance(outcomes, outcomes, far).items == 0
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_outcomes_are_kept_of_leading_figures_over_all_victims() -> None:
    def figure(metric: str, victim: str, variant: str = STRONGEST, threat_model: str = "server") -> Figure:
        outcomes = of_mean(np.arange(50) < 20, np.arange(50)[:, None])
        share = proportion(20, 50)
        return Figure("x", metric, threat_model, victim, share, exact(0.1, 50), variant=variant, outcomes=outcomes)

    figures = [
        figure("leading", "a"), figure("leading", "all"), figure("leading", "all", "cosine"), figure("other", "all"),
        figure("leading", "a", threat_model="colluder"),
    ]  # fmt: skip
    kept = keep_outcomes(figures, {"x": ["leading"]})
    assert [one.outcomes is not None for one in kept] == [False, True, False, False, True]
    assert [bool(one.outcomes.ends) for one in kept if one.outcomes] == [True, False]
