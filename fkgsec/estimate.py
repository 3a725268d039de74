"""Estimates with their uncertainty: no metric leaves fkgsec as a bare number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np

_Z95 = 1.959963984540054  # two-sided 95 % point of the normal distribution
FEW = 20  # sample size below which `mean_of_shares` widens bootstrap intervals


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value with a 95 % interval.

    Attributes:
        value, low, high: the value and its interval; never NaN (`ValueError`).
        n: sample size.
        method: method of the interval: "wilson", "bootstrap", "normal" (for parties on separate machines, which report sums of
            squares), "exact" (no sampling: low = value = high); followed by, for example, "6 leaks" if the interval also covers
            the draw of leaked entities (`over_draws`).
        num_seeds: trainings that it is the mean of.
        seeds_half: half width of Student's interval of that mean, which is part of the interval; 0 for a single training.
    """

    value: float
    low: float
    high: float
    n: int
    method: str
    num_seeds: int = 1
    seeds_half: float = 0.0

    def __post_init__(self) -> None:
        if math.isnan(self.value) or math.isnan(self.low) or math.isnan(self.high):
            raise ValueError(f"an estimate cannot be NaN; got {self.value} [{self.low}, {self.high}]")

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def critical_value(compared: int = 1) -> float:
    """Return the two-sided point of the normal distribution at which `compared` 95 % intervals hold simultaneously
    (Bonferroni).

    Args:
        compared: number of intervals, at least 1.

    >>> f"{critical_value():.4f} {critical_value(5):.4f}"
    '1.9600 2.5758'
    """
    if compared < 1:
        raise ValueError(f"compared must be at least 1; got {compared}")
    return _Z95 if compared == 1 else NormalDist().inv_cdf(1 - 0.025 / compared)


def student_value(num_seeds: int, compared: int = 1) -> float:
    """The two-sided point of Student's distribution at which `compared` 95 % intervals of means over seeds hold all at once.

    >>> f"{student_value(5):.3f} {student_value(5, 10):.3f}"
    '2.776 5.598'
    """
    from scipy import stats  # loaded by what combines seeds alone

    return float(stats.t.ppf(1 - 0.025 / compared, num_seeds - 1))


def at_level(estimate: Estimate, compared: int = 1, least: float = -1.0, most: float = 1.0) -> Estimate:
    """Widen the interval of an estimate that was selected among `compared` ones (Bonferroni).

    A Wilson interval is recomputed at the level. A bootstrap interval is widened like a normal one. An exact value
    stays. The part that stems from few trainings is widened by Student's points.

    Args:
        estimate: to widen.
        compared: number of estimates.
        least, most: bounds of the interval.

    >>> at_level(proportion(50, 100), 5) == proportion(50, 100, compared=5)
    True
    """
    # A single estimate needs no correction, an exact one has no interval.
    if compared == 1 or (estimate.low == estimate.high and not estimate.seeds_half):
        return estimate
    if estimate.method == "wilson":
        return proportion(min(estimate.value * estimate.n, estimate.n), estimate.n, compared=compared)
    # Scale both halves of the interval by the ratio of normal quantiles.
    wider = critical_value(compared) / critical_value()
    halves = [estimate.value - estimate.low, estimate.high - estimate.value]
    seeds_half = estimate.seeds_half
    if seeds_half:
        of_items = [math.sqrt(max(0.0, half**2 - seeds_half**2)) for half in halves]
        seeds_half *= student_value(estimate.num_seeds, compared) / student_value(estimate.num_seeds)
        halves = [math.hypot(wider * half, seeds_half) for half in of_items]
    else:
        halves = [wider * half for half in halves]
    return Estimate(
        estimate.value,
        max(least, estimate.value - halves[0]),
        min(most, estimate.value + halves[1]),
        estimate.n,
        f"{estimate.method}, best of {compared}",
        estimate.num_seeds,
        seeds_half,
    )


def proportion(successes: float, n: int, *, compared: int = 1, attainable: float = 1.0) -> Estimate:
    """Compute the Wilson score interval of a share. An empty sample has value 0 and interval [0, 1].

    Args:
        successes: number of successes, 0 to `n`.
        n: sample size.
        compared: number of estimates among which this one was selected; the level is then 1 - 0.05 / compared.
        attainable: share of the items that can be successes at all. The others are known to fail, so the interval is
            Wilson's of the attainable items, scaled; it never exceeds `attainable`.

    Source: Wilson 1927.

    >>> str(proportion(50, 100))
    '0.5000 [0.4038, 0.5962]'
    >>> proportion(50, 100, compared=5).method
    'wilson, best of 5'
    >>> str(proportion(50, 100, attainable=0.5))
    '0.5000 [0.4643, 0.5000]'
    """
    z, method = critical_value(compared), "wilson" if compared == 1 else f"wilson, best of {compared}"
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie in 0..{n}; got {successes}")
    if n == 0:
        return Estimate(0.0, 0.0, 1.0, 0, method)
    # Only attainable items can vary; the others are known failures.
    able = max(attainable * n, successes)
    if not able:
        return Estimate(0.0, 0.0, 0.0, n, method)
    share, rate = successes / n, successes / able
    # Wilson 1927: center (p + z^2 / 2n) / (1 + z^2 / n), half width z / (1 + z^2 / n) sqrt(p (1 - p) / n + z^2 /
    # 4n^2).
    centre = (rate + z**2 / (2 * able)) / (1 + z**2 / able)
    half = z / (1 + z**2 / able) * math.sqrt(rate * (1 - rate) / able + z**2 / (4 * able**2))
    low, high = max(0.0, centre - half) * able / n, min(1.0, centre + half) * able / n
    return Estimate(share, min(share, low), max(share, high), n, method)


def mean(values: Sequence[float] | np.ndarray, rng: np.random.Generator, resamples: int = 1000) -> Estimate:
    """Compute the mean with a percentile bootstrap interval; an empty sample has value 0 and interval [0, 1].

    Args:
        values: float `[n]`.
        rng: source of randomness.
        resamples: number of bootstrap samples.
    """
    import numpy as np

    items = np.asarray(values, dtype=np.float64)
    n = len(items)
    if n == 0:
        return Estimate(0.0, 0.0, 1.0, 0, "bootstrap")
    # Blocks of resamples bound the memory of drawn indices to 32 MB.
    per_block = max(1, 4_000_000 // n)
    means = [
        items[rng.integers(0, n, size=(min(per_block, resamples - done), n))].mean(axis=1)
        for done in range(0, resamples, per_block)
    ]
    # Percentile bootstrap: the middle 95 % of resampled means.
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Estimate(float(items.mean()), float(low), float(high), n, "bootstrap")


def mean_of_shares(values: Sequence[float] | np.ndarray, rng: np.random.Generator, compared: int = 1) -> Estimate:
    """Compute the mean of values in 0..1, such as reciprocal ranks, with its bootstrap interval.

    For fewer than `FEW` items, a bootstrap sees too few values. The interval is then at least as wide as Wilson's of a share
    with this mean, since no variable in 0..1 varies more.

    Args:
        values: float `[n]`, in 0..1.
        rng: source of randomness.
        compared: number of estimates, see `at_level`.

    >>> import numpy as np
    >>> str(mean_of_shares([1.0], np.random.default_rng(0)))
    '1.0000 [0.2065, 1.0000]'
    """
    estimate = at_level(mean(values, rng), compared, least=0.0)
    if not 0 < estimate.n < FEW:
        return estimate
    share = proportion(min(estimate.value * estimate.n, estimate.n), estimate.n, compared=compared)
    return Estimate(
        estimate.value,
        min(estimate.low, share.low),
        max(estimate.high, share.high),
        estimate.n,
        f"bootstrap and {share.method}",
    )


def over_draws(figure: Estimate, others: Sequence[float], drawn: str, attainable: float = 1.0) -> Estimate:
    """Widen the interval of an estimate that depends on a random draw besides its sample: both errors are added as
    independent.

    The draw's part is 1.96 standard deviations over all draws, and the interval is for their mean. The reported draw is
    among them and widens the interval if it is far from the others, so a few draws suffice: for normal draws, coverage is
    93 % with four, 94 % with five, 95 % with six or more. A share stays a share.

    Args:
        figure: estimate with the interval of its sample.
        others: values for further draws; without any, the estimate is returned unchanged.
        drawn: name of the draws in the plural, for the method.
        attainable: upper bound of a share.

    >>> str(over_draws(proportion(50, 100), [0.48, 0.52], "leaks"))
    '0.5000 [0.3961, 0.6039]'
    """
    import numpy as np

    if not others:
        return figure
    # Independent errors add in squares: the sample's distance to its bound, and the draw's half width.
    half = _Z95 * float(np.std([figure.value, *others], ddof=1))
    low = figure.value - math.hypot(figure.value - figure.low, half)
    high = figure.value + math.hypot(figure.high - figure.value, half)
    method = f"{figure.method}, {len(others) + 1} {drawn}"
    high = max(figure.value, min(high, attainable)) if figure.high <= 1 else high
    return Estimate(figure.value, max(low, 0.0), high, figure.n, method)


def exact(value: float, n: int) -> Estimate:
    """Return an estimate without sampling error, such as an expectation in closed form.

    Args:
        n: sample size.
    """
    return Estimate(float(value), float(value), float(value), n, "exact")
