"""Differences of linked items against a naive reference, their coverage by simulation, and intervals over seeds."""

import numpy as np
import pytest

from fkgsec.estimate import Estimate, exact, proportion
from fkgsec.experiments.runs.intervals import design_effect, over_seeds, paired_difference


def naive_design_effect(values: np.ndarray, ends: np.ndarray) -> float:
    """Every pair of items, one by one."""
    centred = values - values.mean()
    linked = sum(
        one * other
        for one, own in zip(centred, ends, strict=True)
        for other, others in zip(centred, ends, strict=True)
        if set(own) & set(others)
    )
    return max(1.0, linked / (centred**2).sum())


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_the_design_effect_is_the_sum_over_all_linked_pairs(width: int, seed: int) -> None:
    """Self-loops, repeated pairs and reversed ones are among the few entities."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, 6, size=(60, width))
    values = (rng.random(60) < 0.2 + 0.6 * (ends[:, 0] < 3)).astype(float)
    assert design_effect(values, ends) == pytest.approx(naive_design_effect(values, ends))


def test_items_that_share_nothing_are_independent() -> None:
    right = np.arange(100) < 30
    assert design_effect(right, np.arange(100)[:, None]) == 1
    assert design_effect(np.ones(100), np.zeros((100, 1), dtype=int)) == 1


def test_paired_intervals_cover_and_tell_small_changes_apart() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    own = np.arange(400)[:, None]
    for _ in range(300):
        then = rng.random(400) < 0.3
        now = np.where(rng.random(400) < 0.05, rng.random(400) < 0.7, then)  # true difference: 0.05 * (0.7 - 0.3)
        found = paired_difference(now, then, own)
        covered += found.low <= 0.02 <= found.high
    assert covered / 300 >= 0.92
    then, now, own = np.arange(5000) < 1500, np.arange(5000) < 1510, np.arange(5000)[:, None]
    found = paired_difference(now, then, own)
    assert found.value == pytest.approx(0.002)
    assert found.high < 0.004 < proportion(1510, 5000).high - 0.302
    linked = paired_difference(now, then, np.arange(5000)[:, None] // 100)  # ten gained items of one entity
    assert linked.high - linked.low > 2 * (found.high - found.low)


def test_over_seeds_by_hand() -> None:
    one, other = Estimate(0.2, 0.1, 0.4, 50, "wilson"), Estimate(0.4, 0.2, 0.6, 50, "wilson")
    both = over_seeds([one, other])
    student = 12.706204736 * np.std([0.2, 0.4], ddof=1) / np.sqrt(2)
    assert both.value == pytest.approx(0.3)
    assert both.low == max(0.0, 0.3 - np.hypot(0.15, student))
    assert both.high == pytest.approx(min(1.0, 0.3 + np.hypot(0.2, student)))
    assert over_seeds([exact(3, 1), exact(5, 1)]) == exact(5, 1)
    assert over_seeds([one]) == one


def test_equal_seeds_do_not_narrow_what_one_seed_has() -> None:
    one = proportion(0, 100)
    assert over_seeds([one, one, one]).high == pytest.approx(one.high)


def test_an_interval_over_seeds_covers_the_mean_of_all_seeds() -> None:
    """A share that differs from seed to seed: each interval of a single seed misses the mean often, that of five rarely."""
    rng = np.random.default_rng(0)
    alone = together = 0
    for _ in range(400):
        shares = np.clip(rng.normal(0.3, 0.05, size=5), 0, 1)
        figures = [proportion(int(rng.binomial(1000, share)), 1000) for share in shares]
        both = over_seeds(figures)
        together += both.low <= 0.3 <= both.high
        alone += figures[0].low <= 0.3 <= figures[0].high
    assert together / 400 >= 0.95
    assert alone / 400 < 0.8


def test_a_mean_difference_over_seeds_can_lie_on_either_side_of_0() -> None:
    """Each seed gains, but they differ so much that their mean may not; a share would be cut at 0."""
    gains = [Estimate(value, value - 0.01, value + 0.01, 100, "normal, paired") for value in (0.02, 0.2)]
    assert over_seeds(gains).low < 0
    shares = [Estimate(gain.value, gain.low, gain.high, 100, "wilson") for gain in gains]
    assert over_seeds(shares).low == 0
