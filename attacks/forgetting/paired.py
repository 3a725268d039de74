"""An audited model compared with the auditor's own retrained runs, triple by triple.

    >>> rng = np.random.default_rng(0)
    >>> difficulty, forgotten = rng.normal(size=400), np.arange(400) < 300
    >>> runs = Runs(difficulty + rng.normal(size=(6, 400)), np.zeros((6, 400), dtype=bool))
    >>> audited = difficulty + rng.normal(size=400) + np.where(np.arange(400) < 60, 4.0, 0.0)   # 60 of 300 are remembered
    >>> bool(paired_difference(audited, runs, forgotten, against_controls=True).p_value < 0.01)
    True

A comparison of two groups of triples can miss that a fifth is remembered, since triples differ far more in difficulty than a
memory adds. Here each triple is compared with itself: its value in the audited model minus its mean over the retrained runs
that never saw it. The rest is the noise of training, and a memory.

Errors. Triples vary independently, but a training run also shifts all of them together. So each of the auditor's runs is
compared with the others by the same formula. The variance beyond the noise of triples is added to the error. The error is never
less than that noise: a handful of runs that happen to agree do not prove that the next one will.

Legend: `n` audited triples (forgotten ones and controls), `K` runs of the auditor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.special import stdtr, stdtrit  # Student's distribution and its inverse

from fkgsec.attacks.arrays import finite, mask
from fkgsec.estimate import Estimate

# Error of a two-sided interval.
ERROR = 0.05
# Share of planted runs that must be detected.
NOTICED = 0.95
# Largest number of degrees of freedom of a distance.
MOST_DEGREES = 4


class Runs(NamedTuple):
    """Value of each triple in each run, float64 `[K, n]`, and which run was trained on which triple, bool `[K, n]`."""

    values: np.ndarray
    trained_on: np.ndarray

    def outside(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum over the runs that never saw a triple, and their number; `[n]` each."""
        out = ~self.trained_on
        return np.where(out, self.values, 0).sum(axis=0), out.sum(axis=0)

    def residuals(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield each run's values minus the mean of the other runs that never saw the triple, and what it was trained on."""
        total, count = self.outside()
        for values, inside in zip(self.values, self.trained_on, strict=True):
            rest = np.maximum(count - ~inside, 1)
            yield values - (total - np.where(inside, 0, values)) / rest, inside

    def without(self, run: int) -> Runs:
        """Return all runs but one."""
        return Runs(np.delete(self.values, run, axis=0), np.delete(self.trained_on, run, axis=0))


class Paired(NamedTuple):
    """A mean paired difference.

    Attributes:
        value: audited model minus retrained runs, in the units of the values.
        error: standard error.
        degrees: degrees of freedom: one less than the number of runs that calibrated the error.
        n: number of triples.
    """

    value: float
    error: float
    degrees: int
    n: int

    @property
    def p_value(self) -> float:
        """Two-sided p-value of no difference."""
        if self.error == 0:
            return 1.0 if self.value == 0 else 0.0
        return float(2 * stdtr(self.degrees, -abs(self.value) / self.error))

    @property
    def upper_p_value(self) -> float:
        """One-sided p-value of no difference above 0."""
        return self.p_value / 2 if self.value > 0 else 1.0

    def estimate(self, scale: float = 1.0) -> Estimate:
        """Return the difference times `scale` with its 95 % interval."""
        half = float(stdtrit(self.degrees, 1 - ERROR / 2)) * self.error * scale
        value = self.value * scale
        return Estimate(value, value - half, value + half, self.n, f"paired t, {self.degrees} runs")


def paired_difference(audited: np.ndarray, runs: Runs, forgotten: np.ndarray, *, against_controls: bool) -> Paired:
    """Return the mean over forgotten triples of the audited value minus that of runs that never saw the triple.

    Args:
        audited: float `[n]`.
        runs: at least three that never saw a triple.
        forgotten: bool `[n]`.
        against_controls: True to subtract the same mean over the controls, which removes a shift of all triples.

    Raises:
        ValueError: too few triples or runs.
    """
    audited, forgotten = finite("audited", audited, 1), mask("forgotten", forgotten, np.shape(audited))
    total, count = runs.outside()
    if len(runs.values) < 3 or count.min(initial=len(runs.values)) < 2:
        raise ValueError(f"each triple needs two runs that never saw it, of three or more; got {len(runs.values)} runs")
    whole = np.ones(len(audited), dtype=bool)
    # Step 1: each triple against its own mean over runs without it.
    value, error = _contrast(audited - total / count, whole, forgotten, against_controls)
    # Step 2: the same for each of the auditor's runs, to see how much a training run shifts all triples.
    shifts, errors = [], []
    for residual, inside in runs.residuals():
        if min((~inside & forgotten).sum(), (~inside & ~forgotten).sum() if against_controls else 2) < 2:
            # A shadow that saw nearly all of few triples has too few left.
            continue
        shift, own_error = _contrast(residual, ~inside, forgotten, against_controls)
        shifts.append(shift**2)
        errors.append(own_error**2)
    # Variance between runs beyond the noise of triples; a negative estimate is 0.
    beyond = max(0.0, float(np.mean(shifts) - np.mean(errors)))
    return Paired(value, math.sqrt(error**2 + beyond), len(shifts) - 1, len(audited))


def _contrast(
    residual: np.ndarray, usable: np.ndarray, forgotten: np.ndarray, against_controls: bool
) -> tuple[float, float]:
    """Return the mean over forgotten triples, minus that over controls, and its standard error for independent triples."""
    groups = [residual[usable & forgotten]]
    if against_controls:
        groups.append(residual[usable & ~forgotten])
    if min(map(len, groups)) < 2:
        raise ValueError(f"it takes two forgotten triples (and two controls); got {[len(group) for group in groups]}")
    value = float(groups[0].mean()) - (float(groups[1].mean()) if against_controls else 0.0)
    return value, math.sqrt(sum(float(group.var(ddof=1)) / len(group) for group in groups))


class Noise(NamedTuple):
    """Variance of a run's values around their mean over runs, in squared units of the values.

    Attributes:
        forgotten, controls: variance of a single triple's value; 0 for controls without a comparison with them.
        trainings: variance of the shift that a training run gives the whole difference, at least 0.
    """

    forgotten: float
    controls: float
    trainings: float

    def error(self, num_forgotten: float, num_controls: float, num_runs: float) -> float:
        """Predict the standard error of `paired_difference`.

        Args:
            num_forgotten: number of forgotten triples.
            num_controls: effective number of controls.
            num_runs: number of runs that never saw each triple.
        """
        triples = self.forgotten / num_forgotten + (self.controls / num_controls if self.controls else 0.0)
        return math.sqrt((triples + self.trainings) * (1 + 1 / num_runs))


def measure_noise(runs: Runs, forgotten: np.ndarray, *, against_controls: bool) -> Noise:
    """Measure the components of an error, on runs compared with each other.

    Args:
        runs, forgotten, against_controls: as in `paired_difference`.
    """
    _, count = runs.outside()
    variances, shifts, expected = [], [], []
    for residual, inside in runs.residuals():
        rest = np.maximum(count - ~inside, 1)
        # Scale to the variance around the expectation instead of a mean of `rest` runs.
        scaled = residual * np.sqrt(rest / (rest + 1))
        groups = [scaled[~inside & forgotten], scaled[~inside & ~forgotten]][: 1 + against_controls]
        if min(map(len, groups)) < 2:
            continue
        of_groups = [float(group.var(ddof=1)) for group in groups]
        variances.append([*of_groups, 0.0][:2])
        means = [float(group.mean()) for group in groups]
        shifts.append((means[0] - sum(means[1:])) ** 2)
        expected.append(sum(variance / len(group) for variance, group in zip(of_groups, groups, strict=True)))
    of_forgotten, of_controls = np.mean(variances, axis=0)
    return Noise(float(of_forgotten), float(of_controls), max(0.0, float(np.mean(shifts) - np.mean(expected))))


class Memory(NamedTuple):
    """Gain in a triple's value by training on it, mean over forgotten triples, and its standard error."""

    value: float
    error: float


def memory_of(runs: Runs, forgotten: np.ndarray) -> Memory | None:
    """Measure how far trained forgotten triples lie above unseen ones within each run, as a mean over runs.

    Both are measured from the mean of the other runs that never saw the triple, so neither difficulty nor a shift of all
    triples counts.

    Args:
        forgotten: bool `[n]`.

    Returns:
        None if no run saw any, or if the gain does not differ from 0 by three standard errors.
    """
    gains, variances = [], []
    for residual, inside in runs.residuals():
        groups = [residual[forgotten & inside], residual[forgotten & ~inside]]
        if min(map(len, groups)) >= 2:
            gains.append(float(groups[0].mean() - groups[1].mean()))
            variances.append(sum(float(group.var(ddof=1)) / len(group) for group in groups))
    if not gains:
        return None
    value = float(np.mean(gains))
    scatter = float(np.var(gains, ddof=1)) if len(gains) > 1 else 0.0
    # The larger of two estimates: from triples within runs, and from differences between runs.
    error = math.sqrt(max(float(np.mean(variances)), scatter) / len(gains))
    return Memory(value, error) if value > 3 * error else None


def remembered_share(difference: Paired, memory: Memory, level: float = ERROR) -> Estimate:
    """Estimate the share of the forget set that is remembered as if trained: the paired difference over a full memory's.

    It is 1 if nothing was forgotten, 0 on average after retraining, and below 0 where triples were pushed down. Two halves of a
    memory count as one whole. The interval covers the noise of triples and of training runs.

    Args:
        difference: paired difference of the audited run.
        memory: gain by training, of the same reading.
        level: error of the interval, in (0, 1).
    """
    share = difference.value / memory.value
    # Error of a ratio, by the delta method.
    error = math.hypot(difference.error, share * memory.error) / memory.value
    half = float(stdtrit(difference.degrees, 1 - level / 2)) * error
    return Estimate(share, share - half, share + half, difference.n, f"paired t, {difference.degrees} runs")


def measurable_share(share: Estimate | None) -> Estimate | None:
    """Return the share as a report prints it: None if it cannot be measured.

    A share cannot exceed 1. An interval that ends above 1 gives no upper bound, so it says nothing.

    >>> measurable_share(Estimate(0.4, -1.2, 2.03, 60, "paired t")) is None
    True
    """
    return None if share is None or not share.high <= 1 else share


class Finding(NamedTuple):
    """An audit's result on one of its own runs.

    Attributes:
        told_apart: True if the run differs from honest retraining.
        bound: smallest tolerance at which the run passes; inf if it passes at none.
    """

    told_apart: bool
    bound: float


class Sensitivity(msgspec.Struct, frozen=True):
    """Sensitivity of an audit, measured on its own runs. More noise never improves the first two figures.

    Attributes:
        told_apart_from: smallest planted share from which on plants are told apart from honest retraining; None if there is
            none.
        honest_passes_from: smallest tolerance at which honest retrained runs pass; None if they pass at none below 100 %.
        rejected_from: smallest planted share from which on plants fail at the verdict's tolerance; None if there is none. An
            audit that passes no run rejects every share, so this figure is no sensitivity.
    """

    told_apart_from: float | None
    honest_passes_from: float | None
    rejected_from: float | None


def measure_sensitivity(
    honest: Sequence[Finding], plants: Callable[[float], Sequence[Finding]], shares: Sequence[float], tolerance: float
) -> Sensitivity:
    """Measure the sensitivity of an audit.

    Args:
        honest: results on honest retrained runs.
        plants: returns results on runs with a planted share.
        shares: shares to plant besides `tolerance`, in (0, 1].
        tolerance: largest share that a verdict tolerates, in (0, 1).

    Returns:
        Each figure is the smallest share from which on at least `NOTICED` of the plants, for it and every larger share, are
        detected.
    """
    passes_from = max((finding.bound for finding in honest), default=math.inf)
    told_apart_from = rejected_from = None
    noticed = rejected = bool(honest)
    for share in sorted({*shares, tolerance}, reverse=True):
        planted = plants(share) if noticed or rejected else []
        # Detection must hold for every larger share, too.
        noticed = noticed and bool(np.mean([finding.told_apart for finding in planted]) >= NOTICED)
        rejected = rejected and bool(np.mean([finding.bound > tolerance for finding in planted]) >= NOTICED)
        told_apart_from = share if noticed else told_apart_from
        rejected_from = share if rejected else rejected_from
    return Sensitivity(told_apart_from, passes_from if passes_from <= 1 else None, rejected_from)


def planted(runs: Runs, run: int, forgotten: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Build values of a run that remembers a share of the forget set, by mixing two kinds of run.

    The values are those of `run`, which saw no triple. A random share of the forgotten triples has values of runs that were
    trained on them.

    Args:
        run: index of a run that saw no forgotten triple.
        forgotten: bool `[n]`.
        share: share to remember, in [0, 1].
        rng: draws triples and runs.

    Returns:
        float64 `[n]`.
    """
    values = runs.values[run].copy()
    candidates = np.nonzero(forgotten & runs.trained_on.any(axis=0))[0]
    chosen = rng.permutation(candidates)[: round(share * int(forgotten.sum()))]
    # A random run among those that saw the triple.
    drawn = (runs.trained_on[:, chosen] * rng.random((len(runs.values), len(chosen)))).argmax(axis=0)
    values[chosen] = runs.values[drawn, chosen]
    return values


def distance_to_runs(audited: np.ndarray, references: np.ndarray) -> Paired:
    """Return the log of the Kolmogorov-Smirnov distance to the references over their distance to each other.

    It compares the mean distance to each reference with the same of each reference to the others. Read it one-sided.

    A distance is skewed: where training runs differ, one far from all others is likelier than under a normal distribution. So
    logs are compared. The distances between references share pairs. A reference that leaves the others therefore deviates less
    from their mean than a new run would, by (R - 2) / (R - 1). The degrees of freedom are at most `MOST_DEGREES`, since the
    tail of the logs is heavier than Student's with R - 1. Of exchangeable runs, the share below a one-sided p is then about p
    (`test_paired.py`).

    Args:
        audited: scores of the audited run, float `[n]`.
        references: scores of at least three references, float `[R, n]`.
    """

    def mean_distance(scores: np.ndarray, others: np.ndarray) -> float:
        """Return the mean distance of a run to others."""
        return float(np.mean([_kolmogorov_smirnov(scores, other) for other in others]))

    null = np.array(
        [mean_distance(reference, np.delete(references, k, axis=0)) for k, reference in enumerate(references)]
    )
    # Distances are multiples of a step.
    step, count = 1 / len(audited), len(null)
    logs = np.log(null + step)
    deviation = max(float(logs.std(ddof=1)), step / float(null.mean() + step))
    error = deviation * math.sqrt(1 + 1 / count) * (count - 1) / max(count - 2, 0.5)
    value = math.log(mean_distance(audited, references) + step) - float(logs.mean())
    return Paired(value, error, min(count - 1, MOST_DEGREES), len(audited))


def _kolmogorov_smirnov(scores: np.ndarray, others: np.ndarray) -> float:
    """Return the largest difference of the two distribution functions."""
    values = np.concatenate([scores, others])
    below = [np.searchsorted(np.sort(group), values, side="right") / len(group) for group in (scores, others)]
    return float(np.abs(below[0] - below[1]).max())
