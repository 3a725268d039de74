"""Intervals against published values, scipy and simulated coverage."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fkgsec import estimate
from fkgsec.estimate import Estimate, at_level
from fkgsec.experiments.runs.intervals import over_seeds


class TestProportion:
    @pytest.mark.parametrize(
        ("successes", "n", "low", "high"),
        [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
    )
    def test_published_values(self, successes: int, n: int, low: float, high: float) -> None:
        """Newcombe 1998, Table I, method 3 (score method without continuity correction)."""
        figure = estimate.proportion(successes, n)
        assert (figure.low, figure.high) == pytest.approx((low, high), abs=5e-5)

    @given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
    def test_equals_scipy(self, counts: tuple[int, int]) -> None:
        successes, n = counts
        figure = estimate.proportion(successes, n)
        interval = stats.binomtest(successes, n).proportion_ci(method="wilson")
        assert figure.value == successes / n
        assert (figure.low, figure.high) == pytest.approx((interval.low, interval.high), rel=1e-9, abs=1e-12)
        assert 0 <= figure.low <= figure.value <= figure.high <= 1
        assert (figure.n, figure.method) == (n, "wilson")

    @pytest.mark.parametrize("n", [1, 3, 7, 10, 49, 1000])
    def test_all_or_none_still_has_a_width(self, n: int) -> None:
        none, every = estimate.proportion(0, n), estimate.proportion(n, n)
        assert none.low == 0.0
        assert every.high == 1.0
        assert none.high == pytest.approx(1 - every.low) != 0.0

    @pytest.mark.parametrize("successes", [0, 7, 99, 100])
    def test_it_stays_within_what_is_attainable(self, successes: int) -> None:
        """Half of the items cannot be successes: once .500 had the interval [.433, .567]."""
        half, all_of_them = estimate.proportion(successes, 200, attainable=0.5), estimate.proportion(successes, 100)
        assert (half.value, half.low, half.high) == pytest.approx(
            (all_of_them.value / 2, all_of_them.low / 2, all_of_them.high / 2)
        )
        assert 0 <= half.low <= half.value <= half.high <= 0.5
        assert estimate.over_draws(half, [0.6, 0.4], "leaks", 0.5).high <= 0.5

    def test_empty_sample_says_nothing(self) -> None:
        assert estimate.proportion(0, 0) == Estimate(0.0, 0.0, 1.0, 0, "wilson")

    @pytest.mark.parametrize(("successes", "n"), [(-1, 10), (11, 10), (1, 0), (0, -1), (math.nan, 10)])
    def test_impossible_counts(self, successes: float, n: int) -> None:
        with pytest.raises(ValueError, match=rf"^successes must .*got {successes}"):
            estimate.proportion(successes, n)


class TestMean:
    @pytest.mark.parametrize("draw", ["normal", "exponential"])
    def test_interval_covers_the_true_mean(self, draw: str) -> None:
        rng = np.random.default_rng(0)
        covered = 0
        for _ in range(300):
            items = rng.normal(1.0, size=60) if draw == "normal" else rng.exponential(size=60)
            figure = estimate.mean(items, rng, resamples=400)
            covered += figure.low <= 1.0 <= figure.high
        assert 0.88 <= covered / 300 <= 0.985  # nominally 0.95; a percentile bootstrap of 60 items falls a little short

    def test_resamples_in_blocks_are_the_resamples_asked_for(self) -> None:
        items = np.random.default_rng(1).exponential(size=40_000)  # blocks of 100 resamples
        figure = estimate.mean(items, np.random.default_rng(2), resamples=130)
        rng = np.random.default_rng(2)
        means = [items[rng.integers(0, 40_000, size=40_000)].mean() for _ in range(130)]
        assert (figure.low, figure.high) == pytest.approx(np.quantile(means, [0.025, 0.975]), rel=1e-12)

    def test_width_is_that_of_the_normal_interval(self) -> None:
        items = np.random.default_rng(1).normal(5.0, 2.0, size=1000)
        figure = estimate.mean(items, np.random.default_rng(2))
        assert figure.value == pytest.approx(items.mean())
        assert figure.low < figure.value < figure.high
        assert figure.high - figure.low == pytest.approx(2 * 1.96 * 2.0 / math.sqrt(1000), rel=0.15)
        assert (figure.n, figure.method) == (1000, "bootstrap")

    def test_depends_on_the_generator_only(self) -> None:
        items = [0.1, 0.5, 0.9, 0.3]
        first, again = (estimate.mean(items, np.random.default_rng(3)) for _ in range(2))
        assert first == again
        assert first == estimate.mean(np.array(items), np.random.default_rng(3))

    @pytest.mark.parametrize("items", [[0.25], [0.25] * 9])
    def test_equal_items_have_no_width(self, items: list[float]) -> None:
        figure = estimate.mean(items, np.random.default_rng(0))
        assert figure == Estimate(0.25, 0.25, 0.25, len(items), "bootstrap")

    def test_empty_sample_says_nothing(self) -> None:
        assert estimate.mean([], np.random.default_rng(0)) == Estimate(0.0, 0.0, 1.0, 0, "bootstrap")


class TestOverDraws:
    def test_by_hand(self) -> None:
        sample = estimate.proportion(30, 100)
        both = estimate.over_draws(sample, [0.2, 0.4, 0.35], "leaks")
        half = 1.959963985 * np.std([0.3, 0.2, 0.4, 0.35], ddof=1)
        assert (both.value, both.n, both.method) == (0.3, 100, "wilson, 4 leaks")
        assert both.low == pytest.approx(max(0, 0.3 - math.hypot(0.3 - sample.low, half)))
        assert both.high == pytest.approx(0.3 + math.hypot(sample.high - 0.3, half))

    def test_without_draws_it_stays(self) -> None:
        assert estimate.over_draws(estimate.proportion(3, 10), [], "leaks") == estimate.proportion(3, 10)

    def test_a_share_stays_a_share_and_a_ratio_may_pass_one(self) -> None:
        low, high = (estimate.over_draws(estimate.proportion(right, 10), [0.0, 1.0], "leaks") for right in (1, 9))
        assert (low.low, high.high) == (0.0, 1.0)
        assert estimate.over_draws(estimate.exact(1.2, 10), [1.0, 1.4], "leaks").high > 1.4

    def test_covers_the_mean_over_draws(self) -> None:
        """Draws that scatter more than the sample's own error allows for."""
        rng = np.random.default_rng(0)
        covered = alone = 0
        for _ in range(2000):
            shares = rng.normal(0.3, 0.03, size=6)
            figure = estimate.proportion(round(shares[0] * 2000), 2000)
            both = estimate.over_draws(figure, list(shares[1:]), "leaks")
            covered += both.low <= 0.3 <= both.high
            alone += figure.low <= 0.3 <= figure.high
        assert 0.935 <= covered / 2000 <= 0.975
        assert alone / 2000 < 0.55


def test_exact_has_no_width() -> None:
    assert estimate.exact(0.25, 7) == Estimate(0.25, 0.25, 0.25, 7, "exact")


@pytest.mark.parametrize(
    "make",
    [lambda: estimate.exact(math.nan, 3), lambda: estimate.mean([1.0, math.nan], np.random.default_rng(0))],
    ids=["exact", "mean"],
)
def test_nan_is_never_stored(make: Callable[[], Estimate]) -> None:
    with pytest.raises(ValueError, match="nan"):
        make()


def test_prints_with_its_interval() -> None:
    assert str(Estimate(0.123449, 0.1, 0.98765, 5, "exact")) == "0.1234 [0.1000, 0.9877]"


@pytest.mark.parametrize("count", [1, 2, 5, 19])
def test_few_reciprocal_ranks_have_an_interval_that_covers_their_mean(count: int) -> None:
    """Of one item a bootstrap's has no width, of two that are alike neither."""
    rng, law = np.random.default_rng(count), 1 / np.arange(1.0, 8.0)
    drawn = [estimate.mean_of_shares(rng.choice(law, count), rng) for _ in range(400)]
    assert np.mean([one.low <= law.mean() <= one.high for one in drawn]) > 0.93
    assert all(0 <= one.low <= one.value <= one.high <= 1 for one in drawn)
    best = estimate.mean_of_shares([1.0] * count, rng, compared=5)
    assert best.low <= estimate.proportion(count, count, compared=5).low < best.high == 1


def test_many_reciprocal_ranks_have_the_bootstraps() -> None:
    values = 1 / np.random.default_rng(0).integers(1, 9, estimate.FEW)
    one, other = (make(values, np.random.default_rng(1)) for make in (estimate.mean_of_shares, estimate.mean))
    assert one == other
    wide = estimate.mean_of_shares(values / 50, np.random.default_rng(1), compared=50)
    assert wide.low >= 0.0


def test_the_level_of_several_figures_widens_the_spread_of_few_seeds_by_students_points() -> None:
    values = [0.5, 0.6, 0.7]
    figures = [Estimate(value, value - 0.05, value + 0.05, 100, "bootstrap") for value in values]
    spread = np.std(values, ddof=1) / np.sqrt(3)
    for compared in (1, 10):
        level = 1 - 0.025 / compared
        half = np.hypot(0.05 * stats.norm.ppf(level) / stats.norm.ppf(0.975), stats.t.ppf(level, 2) * spread)
        wide = at_level(over_seeds(figures), compared, least=-10, most=10)
        assert (wide.value - wide.low, wide.high - wide.value) == pytest.approx((half, half))
    each = [at_level(figure, 10) for figure in figures]
    assert over_seeds(each, 10).low == pytest.approx(max(0.0, wide.low))
