"""Figures with their uncertainty: no metric leaves fkgsec as a bare number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np

_Z95 = 1.959963984540054  # two-sided 95 % point of the normal distribution
FEW = 20  # items, see `mean_of_shares`


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value with a 95 % interval.

    Attributes:
        value, low, high: the figure and its interval; never NaN (`ValueError`).
        n: how many items it rests on.
        method: how the interval was made: "wilson", "bootstrap", "normal" (of parties apart, who tell sums of squares), "exact"
            (no sampling: low = value = high), followed by "6 leaks" where it also covers which entities leaked (`over_draws`).
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
    """The two-sided point of the normal distribution at which `compared` 95 % intervals hold all at once (Bonferroni).

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
    """The same figure with the interval that holds where it was chosen among `compared` ones (Bonferroni).

    A share's is Wilson's at that level. A bootstrap's is as much wider as the normal distribution's would be, from `least` to
    `most`; one without sampling error stays. The part that stems from few trainings is wider by Student's points.

    >>> at_level(proportion(50, 100), 5) == proportion(50, 100, compared=5)
    True
    """
    if compared == 1 or (estimate.low == estimate.high and not estimate.seeds_half):
        return estimate
    if estimate.method == "wilson":
        return proportion(min(estimate.value * estimate.n, estimate.n), estimate.n, compared=compared)
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
    """Wilson score interval of a share. An empty sample gives value 0 with interval [0, 1].

    Args:
        compared: among how many figures this one was chosen; the level is then 1 - 0.05 / compared.
        attainable: the share of the items that can be successes at all. The others are known to fail, so the interval is Wilson's
            of the attainable items, scaled: it never exceeds `attainable`.

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
    able = max(attainable * n, successes)
    if not able:
        return Estimate(0.0, 0.0, 0.0, n, method)
    share, rate = successes / n, successes / able
    centre = (rate + z**2 / (2 * able)) / (1 + z**2 / able)
    half = z / (1 + z**2 / able) * math.sqrt(rate * (1 - rate) / able + z**2 / (4 * able**2))
    low, high = max(0.0, centre - half) * able / n, min(1.0, centre + half) * able / n
    return Estimate(share, min(share, low), max(share, high), n, method)


def mean(values: Sequence[float] | np.ndarray, rng: np.random.Generator, resamples: int = 1000) -> Estimate:
    """Mean with a percentile bootstrap interval over the items; an empty sample gives 0 with interval [0, 1]."""
    import numpy as np

    items = np.asarray(values, dtype=np.float64)
    n = len(items)
    if n == 0:
        return Estimate(0.0, 0.0, 1.0, 0, "bootstrap")
    per_block = max(1, 4_000_000 // n)
    means = [
        items[rng.integers(0, n, size=(min(per_block, resamples - done), n))].mean(axis=1)
        for done in range(0, resamples, per_block)
    ]
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Estimate(float(items.mean()), float(low), float(high), n, "bootstrap")


def mean_of_shares(values: Sequence[float] | np.ndarray, rng: np.random.Generator, compared: int = 1) -> Estimate:
    """Mean of values in 0..1, such as reciprocal ranks, with its bootstrap interval, see `mean` and `at_level`.

    Of fewer than `FEW` items, of which a bootstrap knows too few values, it is no narrower than Wilson's of a share with this
    mean, since nothing in 0..1 varies more.

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
    """The interval of a figure that rests on a random draw beside its sample: both errors, added as independent ones.

    Args:
        figure: with the interval of its sample. others: the same figure for further draws; without any it stays as it is.
        drawn: what was drawn, in the plural, for the name of the method. attainable: the upper bound of a share.

    The draw's part is 1.96 standard deviations over all draws, and the interval is for their mean. The draw that is shown is
    among them and widens the interval where it lies apart, so that few suffice: of normal draws 93 % are covered with four,
    94 % with five, 95 % with six or more. A share stays a share.

    >>> str(over_draws(proportion(50, 100), [0.48, 0.52], "leaks"))
    '0.5000 [0.3961, 0.6039]'
    """
    import numpy as np

    if not others:
        return figure
    half = _Z95 * float(np.std([figure.value, *others], ddof=1))
    low = figure.value - math.hypot(figure.value - figure.low, half)
    high = figure.value + math.hypot(figure.high - figure.value, half)
    method = f"{figure.method}, {len(others) + 1} {drawn}"
    high = max(figure.value, min(high, attainable)) if figure.high <= 1 else high
    return Estimate(figure.value, max(low, 0.0), high, figure.n, method)


def exact(value: float, n: int) -> Estimate:
    """A figure without sampling error, such as an expectation computed in closed form."""
    return Estimate(float(value), float(value), float(value), n, "exact")
