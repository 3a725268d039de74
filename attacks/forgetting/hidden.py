"""Detect memory of some forgotten triples that is hidden by lowering the others.

    >>> rng = np.random.default_rng(0)
    >>> forgotten = np.arange(800) < 600
    >>> runs = Runs(rng.normal(size=(6, 800)), np.zeros((6, 800), dtype=bool))
    >>> runs.trained_on[4, :300] = runs.trained_on[5, 300:600] = True         # two runs saw a half of them each
    >>> runs.values[4, :300] += 6; runs.values[5, 300:600] += 6               # which adds 6 deviations
    >>> audited = rng.normal(size=800) - np.where(forgotten, 1.5, 0)          # lowered, but for a fifth
    >>> audited[:120] += 7.5                                                  # so that the mean is re-training's
    >>> bool(0.15 < hidden_share(audited, runs, forgotten).value < 0.25)
    True

A party may keep part of the forget set and lower the rest until all means (MRR, AUC, even the distribution of scores) equal
those of a retrained model. No test of means detects this. Three signs remain: some triples lie far above their retrained
values, others far below, and their order differs from the retrained one. This module tests for these signs and measures from
which share on they are detected. It also bounds the share that is remembered *whatever* was done to the other triples: no more
triples can be fully remembered than lie where trained triples do and others rarely do.

Legend: `n` audited triples (forgotten ones and controls), `K` runs of the auditor, as in `fkgsec.attacks.forgetting.paired`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import bdtrin, stdtrit  # the binomial distribution by its trials, and Student's, inverted
from scipy.stats import rankdata

from fkgsec.attacks.forgetting.paired import (
    ERROR,
    Finding,
    Paired,
    Runs,
    Sensitivity,
    measure_sensitivity,
    paired_difference,
)
from fkgsec.estimate import Estimate

# Shares of never-seen triples above a threshold.
LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2)
# Degrees of freedom of the variance of all triples, in that of each.
PRIOR_DEGREES = 4
# Planted and hidden shares, to measure the audit's sensitivity.
HIDDEN_SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
# Draws of each share in each retrained run.
HIDDEN_DRAWS = 5


def residuals(audited: np.ndarray, runs: Runs) -> tuple[np.ndarray, Runs]:
    """Subtract from each value the mean of the (other) runs that never saw the triple.

    Residuals are scaled to one variance, since a mean of few runs varies more than one of many.

    Args:
        audited: float `[n]`.

    Returns:
        Residuals of the audited values, and of each run.
    """
    total, count = runs.outside()
    rest = np.maximum(count - ~runs.trained_on, 1)
    # Leave-one-out mean over the runs that never saw the triple.
    others = (total - np.where(runs.trained_on, 0, runs.values)) / rest
    return (audited - total / count) * np.sqrt(count / (count + 1)), Runs(
        (runs.values - others) * np.sqrt(rest / (rest + 1)), runs.trained_on
    )


def standardized(audited: np.ndarray, runs: Runs) -> tuple[np.ndarray, Runs]:
    """Divide `residuals` by the standard deviation of each triple's value over the (other) runs that never saw it.

    Training runs agree on some triples more than on others, so a memory stands out more where they agree. A handful of runs
    measure a variance badly: each is averaged with that of all triples, as if that rested on `PRIOR_DEGREES` more runs.

    Args:
        audited: float `[n]`.

    Source: Smyth 2004, moderated t-statistics. Differs: the degrees of freedom of the prior are a constant.
    """
    residual, others = residuals(audited, runs)
    total, count = runs.outside()
    squares = np.where(runs.trained_on, 0, (runs.values - total / count) ** 2).sum(axis=0)
    pooled = float(squares.sum() / max(1, (count - 1).sum())) or 1.0
    # Without a run, the sum of squares is smaller by that run's squared residual.
    left = np.maximum(squares - np.where(runs.trained_on, 0, others.values**2), 0)
    degrees = np.maximum(count - 1 - ~runs.trained_on, 0)

    def scale(squares: np.ndarray, degrees: np.ndarray) -> np.ndarray:
        """Return the standard deviations."""
        return np.sqrt((PRIOR_DEGREES * pooled + squares) / (PRIOR_DEGREES + degrees))

    return residual / scale(squares, count - 1), Runs(others.values / scale(left, degrees), runs.trained_on)


def deviations(audited: np.ndarray, runs: Runs) -> tuple[np.ndarray, Runs]:
    """Return the distance of each value to the mean of the (other) runs that never saw the triple.

    A model whose forgotten triples were pushed to the level of others has the right mean and the wrong values: retraining still
    predicts some of them well and others badly.

    Args:
        audited: float `[n]`.
    """
    residual, others = residuals(audited, runs)
    return np.abs(residual), Runs(np.abs(others.values), runs.trained_on)


def upper_tail(audited: np.ndarray, runs: Runs, forgotten: np.ndarray) -> Paired:
    """Return the excess of the highest differences to retrained runs over their own mean, beyond that of retrained runs.

    Take each triple's difference to the mean of the (other) runs that never saw it. Subtract the mean of these over the
    forgotten triples, and divide by the runs' standard deviation. Of it, take what exceeds 1, and average over the forgotten
    triples. Compare with the same of each run. Read the result one-sided.

    Args:
        audited, runs, forgotten: as in `paired_difference`.
    """
    audited_residual, others = residuals(audited, runs)
    scatter = math.sqrt(float(np.mean(others.values**2, where=~runs.trained_on)))
    # Runs agree in all values, so any difference counts.
    if scatter == 0:
        scatter = 1.0

    def beyond(residual: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Return the excess over one standard deviation."""
        usable = forgotten & ~seen
        middle = float(residual[usable].mean()) if usable.any() else 0.0
        return np.maximum((residual - middle) / scatter - 1, 0)

    tails = np.stack([beyond(residual, seen) for residual, seen in zip(others.values, runs.trained_on, strict=True)])
    audited_tail = beyond(audited_residual, np.zeros(len(audited), dtype=bool))
    return paired_difference(audited_tail, Runs(tails, runs.trained_on), forgotten, against_controls=False)


def disorder(audited: np.ndarray, runs: Runs, forgotten: np.ndarray) -> Paired:
    """Return the distance of the order of the forgotten triples to the retrained order, beyond that between retrained runs.

    Take each triple's rank among the forgotten ones, in (0, 1], minus the mean of its ranks in the (other) runs that never saw
    it. Square it, and average over the forgotten triples. Compare with the same of each run. Ranks ignore what shifts or scales
    all scores of a training run, so this varies less than `deviations`. Read the result one-sided.

    Args:
        audited, runs, forgotten: as in `paired_difference`.
    """

    def ranks(values: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Rank the unseen forgotten triples among each other; 0 elsewhere."""
        ranked, usable = np.zeros(len(values)), forgotten & ~seen
        ranked[usable] = rankdata(values[usable]) / max(1, usable.sum())
        return ranked

    ranked = np.stack([ranks(values, seen) for values, seen in zip(runs.values, runs.trained_on, strict=True)])
    residual, others = residuals(ranks(audited, np.zeros(len(audited), dtype=bool)), Runs(ranked, runs.trained_on))
    return paired_difference(residual**2, Runs(others.values**2, runs.trained_on), forgotten, against_controls=False)


def hidden_share(audited: np.ndarray, runs: Runs, forgotten: np.ndarray, level: float = ERROR) -> Estimate | None:
    """Bound the share of the forget set that can be fully remembered, whatever was done to the rest.

    The bound is the share of forgotten triples above a threshold over that of trained triples, as if only memory could lie
    there. A retrained model therefore does not have 0, but the value of its own scatter. Of `residuals` and `standardized` values
    and of the thresholds of `LEVELS`, it takes those with the smallest mean bound on the auditor's own retrained runs.

    Args:
        audited: float `[n]`.
        forgotten: bool `[n]`.
        level: error of the interval, in (0, 1).

    Returns:
        The interval covers which remembered triples happen to lie above the threshold, and differences between training runs.
        None if fewer than two runs saw some of the forgotten triples, or if these lie no higher than others.
    """
    best: tuple[float, Estimate | None] = (math.inf, None)
    for scaled in (residuals, standardized):
        residual, others = scaled(audited, runs)
        for threshold, never_seen, rates in _separating(others, forgotten):
            # Choose the threshold on the auditor's own runs, so that the audited run cannot influence it.
            expected = np.mean([_bound(above, rates, level).high for above in never_seen])
            bound = _bound(residual[forgotten] > threshold, rates, level)
            best = min(best, (float(expected), bound), key=lambda candidate: candidate[0])
    return best[1]


def _separating(others: Runs, forgotten: np.ndarray) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """Yield the thresholds of `LEVELS` that separate trained triples, on `residuals` or `standardized` values of runs.

    With each threshold come two things: which forgotten triples lie above it in the runs that saw none, bool `[I, m]`, and the
    share of trained triples above it in each run that saw some, `[K]`. Empty if fewer than two runs saw some, or every run did.
    """
    seen = others.trained_on & forgotten
    informed, ignorant = seen.any(axis=1), ~seen.any(axis=1)
    if informed.sum() < 2 or not ignorant.any():
        return
    never_seen = others.values[~others.trained_on & forgotten]
    for level, threshold in zip(LEVELS, np.quantile(never_seen, 1 - np.array(LEVELS)), strict=True):
        above = others.values > threshold
        rates = np.array([row[saw].mean() for row, saw in zip(above, seen, strict=True) if saw.any()])
        if rates.mean() > level:
            yield float(threshold), above[ignorant][:, forgotten], rates


def _bound(above: np.ndarray, rates: np.ndarray, level: float) -> Estimate:
    """Return the share whose memory explains the triples above a threshold, if training puts the shares `rates` `[K]` there."""
    rate, number = float(rates.mean()), len(above)
    share = float(above.mean()) / rate
    half = half_width(share, number, rate, float(rates.std(ddof=1)), len(rates), level)
    return Estimate(share, share - half, share + half, number, f"exceedances, {len(rates)} runs")


def half_width(share: float, number: float, rate: float, deviation: float, num_runs: int, level: float) -> float:
    """Compute half the interval of `hidden_share`, from its upper end.

    The upper end is exact for the count above the threshold: the largest number of remembered triples of which so few lie above
    it with a chance of level / 2. A normal interval is too short where few do: of 20 remembered triples that each lie above it
    with a chance of .22, none or one does in 5 % of cases. The rate is uncertain, too: its mean over runs has an error, and runs
    differ by more than the draw of their triples explains.

    Args:
        share: share of the forget set.
        number: number of forgotten triples.
        rate: mean share of trained triples above the threshold.
        deviation: its standard deviation over runs, each of which saw half of the forgotten triples.
        level: error of the interval, in (0, 1).

    Source: Clopper and Pearson 1934, for the number of trials.
    """
    counted = float(bdtrin(share * rate * number, level / 2, min(rate, 1 - 1 / number))) / number
    beyond_draw = max(0.0, deviation**2 - rate * (1 - rate) / (number / 2))
    between = counted * math.sqrt(beyond_draw + deviation**2 / num_runs) / rate
    return math.hypot(counted - share, float(stdtrit(num_runs - 1, 1 - level / 2)) * between)


class Exceedance(NamedTuple):
    """Shares of never-seen and of trained triples above a threshold, and the standard deviation of the latter over runs."""

    never_seen: float
    trained_on: float
    deviation: float


def measure_exceedances(runs: Runs, forgotten: np.ndarray) -> list[Exceedance]:
    """Measure the components of `hidden_share` for a retrained run, at each of `LEVELS` that separates trained triples.

    Args:
        forgotten: bool `[n]`.

    Returns:
        Empty if it cannot be measured.
    """
    return [
        Exceedance(float(never_seen.mean()), float(rates.mean()), float(rates.std(ddof=1)))
        for scaled in (residuals, standardized)
        for _, never_seen, rates in _separating(scaled(runs.values[0], runs)[1], forgotten)
    ]


def rearranged(runs: Runs, run: int, forgotten: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Build values of a run that remembers a random share of the forget set and hides it from every mean.

    The values of `run`, which saw no triple, are redistributed among the forgotten triples. The highest go to the remembered
    ones, in the order of runs that were trained on them. The others keep their order among the rest. The distribution stays the
    same.

    Args:
        run: index of a run that saw no forgotten triple.
        forgotten: bool `[n]`.
        share: share to remember, in [0, 1].
        rng: draws the remembered triples.

    Returns:
        float64 `[n]`.
    """
    values = runs.values[run].copy()
    rows = np.nonzero(forgotten)[0]
    candidates = np.nonzero(forgotten & runs.trained_on.any(axis=0))[0]
    unmoved = rng.permutation(candidates)[: round(share * len(rows))]
    rest = np.setdiff1d(rows, unmoved)
    # A random run among those that saw the triple.
    drawn = (runs.trained_on[:, unmoved] * rng.random((len(runs.values), len(unmoved)))).argmax(axis=0)
    # Redistribute the same values: no mean or distribution changes.
    ordered = np.sort(values[rows])
    moved_values = values[rest]
    values[unmoved[np.argsort(runs.values[drawn, unmoved])]] = ordered[len(rest) :]
    values[rest[np.argsort(moved_values)]] = ordered[: len(rest)]
    return values


class Hiding(NamedTuple):
    """Signs that some triples are remembered and others lowered.

    Attributes:
        spread: mean of `deviations`, minus that of the controls.
        tail: see `upper_tail`.
        order: see `disorder`.
        share: see `hidden_share`.
    """

    spread: Paired
    tail: Paired
    order: Paired
    share: Estimate | None

    def finding(self, alarm: float, honest_share: float = math.inf) -> Finding:
        """Summarize the audit of one run.

        Args:
            alarm: p-value below which the run is told apart.
            honest_share: the run is told apart if its interval of the share lies above this.
        """
        # Any of the three signs suffices; the verdict corrects `alarm` for the number of tests.
        told_apart = min(self.spread.p_value, self.tail.upper_p_value, self.order.upper_p_value) < alarm
        bound = math.inf if told_apart or self.share is None else self.share.high
        return Finding(told_apart or (self.share is not None and self.share.low > honest_share), bound)


def measure_hiding(audited: np.ndarray, runs: Runs, forgotten: np.ndarray, level: float = ERROR) -> Hiding:
    """Measure all signs of hidden memory.

    Args:
        audited, runs, forgotten: as in `paired_difference`.
        level: error of the interval of `hidden_share`.
    """
    deviation, others = deviations(audited, runs)
    return Hiding(
        paired_difference(deviation, others, forgotten, against_controls=True),
        upper_tail(audited, runs, forgotten),
        disorder(audited, runs, forgotten),
        hidden_share(audited, runs, forgotten, level),
    )


def hiding_sensitivity(
    runs: Runs,
    forgotten: np.ndarray,
    *,
    tolerance: float,
    alarm: float,
    rng: np.random.Generator,
    level: float = ERROR,
) -> Sensitivity:
    """Measure the sensitivity to memory that is hidden from means, on `rearranged` retrained runs.

    Args:
        forgotten: bool `[n]`.
        tolerance: largest share that a verdict tolerates, in (0, 1).
        alarm: p-value below which a verdict certifies nothing.
        rng: draws the remembered triples.
        level: error of the interval of `hidden_share`.
    """
    unseeing = [run for run, seen in enumerate(runs.trained_on) if not (seen & forgotten).any()]
    honest = [measure_hiding(runs.values[run], runs.without(run), forgotten, level) for run in unseeing]
    honest_share = max((hiding.share.value for hiding in honest if hiding.share is not None), default=math.inf)

    def plants(share: float) -> list[Finding]:
        """Audit runs with a hidden share."""
        return [
            measure_hiding(rearranged(runs, run, forgotten, share, rng), runs.without(run), forgotten, level).finding(
                alarm, honest_share
            )
            for run in unseeing
            for _ in range(HIDDEN_DRAWS)
        ]

    return measure_sensitivity([hiding.finding(alarm) for hiding in honest], plants, HIDDEN_SHARES, tolerance)
