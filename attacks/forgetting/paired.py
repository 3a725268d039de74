"""An audited model beside re-trainings that the auditor made itself, triple by triple.

    >>> rng = np.random.default_rng(0)
    >>> difficulty, forgotten = rng.normal(size=400), np.arange(400) < 300
    >>> runs = Runs(difficulty + rng.normal(size=(6, 400)), np.zeros((6, 400), dtype=bool))
    >>> audited = difficulty + rng.normal(size=400) + np.where(np.arange(400) < 60, 4.0, 0.0)   # 60 of 300 are remembered
    >>> bool(paired_difference(audited, runs, forgotten, against_controls=True).p_value < 0.01)
    True

Two groups of triples held against each other hide a fifth that is remembered behind four fifths that are not, since triples
differ far more in difficulty than a memory adds. Here each triple is held against itself: its value in the audited model minus
its mean over the re-trainings that never saw it. What is left is the noise of training, and a memory.

Errors. Triples scatter independently, but a training also shifts all of them together. So each of the auditor's runs is held
against the others by the same formula, and what these scatter by beyond the noise of triples is added to the error. The error is
never less than that noise: a handful of runs that happen to agree do not prove that the next one will.

Legend: `n` audited triples (forgotten ones and controls), `K` runs of the auditor's.
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

ERROR = 0.05  # of a two-sided interval
NOTICED = 0.95  # of planted runs, for a share to count as told apart or rejected
MOST_DEGREES = 4  # of freedom of a distance


class Runs(NamedTuple):
    """Value of each triple in each run, float64 `[K, n]`, and which run was trained on which triple, bool `[K, n]`."""

    values: np.ndarray
    trained_on: np.ndarray

    def outside(self) -> tuple[np.ndarray, np.ndarray]:
        """Sum over the runs that never saw a triple, and how many these are; `[n]` each."""
        out = ~self.trained_on
        return np.where(out, self.values, 0).sum(axis=0), out.sum(axis=0)

    def residuals(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Values of each run less the mean of the other runs that never saw the triple, and what it was trained on."""
        total, count = self.outside()
        for values, inside in zip(self.values, self.trained_on, strict=True):
            rest = np.maximum(count - ~inside, 1)
            yield values - (total - np.where(inside, 0, values)) / rest, inside

    def without(self, run: int) -> Runs:
        """All but one of them."""
        return Runs(np.delete(self.values, run, axis=0), np.delete(self.trained_on, run, axis=0))


class Paired(NamedTuple):
    """A mean paired difference.

    Attributes:
        value: the audited model's minus that of re-trainings, in the units of the values. error: its standard error.
        degrees: of freedom: one less than the runs that the error was calibrated on. n: triples that it rests on.
    """

    value: float
    error: float
    degrees: int
    n: int

    @property
    def p_value(self) -> float:
        """Two-sided, of no difference."""
        if self.error == 0:
            return 1.0 if self.value == 0 else 0.0
        return float(2 * stdtr(self.degrees, -abs(self.value) / self.error))

    @property
    def upper_p_value(self) -> float:
        """P-value of no difference above 0, one-sided."""
        return self.p_value / 2 if self.value > 0 else 1.0

    def estimate(self, scale: float = 1.0) -> Estimate:
        """The difference times `scale` with its 95 % interval."""
        half = float(stdtrit(self.degrees, 1 - ERROR / 2)) * self.error * scale
        value = self.value * scale
        return Estimate(value, value - half, value + half, self.n, f"paired t, {self.degrees} runs")


def paired_difference(audited: np.ndarray, runs: Runs, forgotten: np.ndarray, *, against_controls: bool) -> Paired:
    """Mean over forgotten triples of the audited value minus that of runs that never saw the triple.

    Args:
        audited: `[n]`. runs: at least three that never saw a triple. forgotten: bool `[n]`.
        against_controls: whether the same mean over the controls is taken off, which takes off what shifts all triples alike.

    Raises:
        ValueError: too few triples or runs.
    """
    audited, forgotten = finite("audited", audited, 1), mask("forgotten", forgotten, np.shape(audited))
    total, count = runs.outside()
    if len(runs.values) < 3 or count.min(initial=len(runs.values)) < 2:
        raise ValueError(f"each triple needs two runs that never saw it, of three or more; got {len(runs.values)} runs")
    whole = np.ones(len(audited), dtype=bool)
    value, error = _contrast(audited - total / count, whole, forgotten, against_controls)
    shifts, errors = [], []
    for residual, inside in runs.residuals():
        if min((~inside & forgotten).sum(), (~inside & ~forgotten).sum() if against_controls else 2) < 2:
            continue  # a shadow that saw nearly all of so few
        shift, own_error = _contrast(residual, ~inside, forgotten, against_controls)
        shifts.append(shift**2)
        errors.append(own_error**2)
    beyond = max(0.0, float(np.mean(shifts) - np.mean(errors)))
    return Paired(value, math.sqrt(error**2 + beyond), len(shifts) - 1, len(audited))


def _contrast(
    residual: np.ndarray, usable: np.ndarray, forgotten: np.ndarray, against_controls: bool
) -> tuple[float, float]:
    """Mean over forgotten triples, less that over controls, and its standard error if triples scatter independently."""
    groups = [residual[usable & forgotten]]
    if against_controls:
        groups.append(residual[usable & ~forgotten])
    if min(map(len, groups)) < 2:
        raise ValueError(f"it takes two forgotten triples (and two controls); got {[len(group) for group in groups]}")
    value = float(groups[0].mean()) - (float(groups[1].mean()) if against_controls else 0.0)
    return value, math.sqrt(sum(float(group.var(ddof=1)) / len(group) for group in groups))


class Noise(NamedTuple):
    """Variance of a run's values around what runs have on average, in the units of the values squared.

    Attributes:
        forgotten, controls: of a single triple's value; controls: 0 where nothing is held against them.
        trainings: of the shift that a training gives the whole difference; not below 0.
    """

    forgotten: float
    controls: float
    trainings: float

    def error(self, num_forgotten: float, num_controls: float, num_runs: float) -> float:
        """Predict the standard error of `paired_difference` for so many triples, beside so many runs that never saw each."""
        triples = self.forgotten / num_forgotten + (self.controls / num_controls if self.controls else 0.0)
        return math.sqrt((triples + self.trainings) * (1 + 1 / num_runs))


def measure_noise(runs: Runs, forgotten: np.ndarray, *, against_controls: bool) -> Noise:
    """Measure the variances that an error consists of, on runs held against each other.

    Args: as for `paired_difference`.
    """
    _, count = runs.outside()
    variances, shifts, expected = [], [], []
    for residual, inside in runs.residuals():
        rest = np.maximum(count - ~inside, 1)
        scaled = residual * np.sqrt(rest / (rest + 1))  # as if held against the expectation
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
    """Within each run that saw some of the forgotten triples, how far these lie above those that it did not see; mean over runs.

    Both are taken from the mean of the other runs that never saw the triple, so neither difficulty nor a shift of all counts.
    None where no run saw any, or where it adds nothing that can be told from 0.
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
    error = math.sqrt(max(float(np.mean(variances)), scatter) / len(gains))
    return Memory(value, error) if value > 3 * error else None


def remembered_share(difference: Paired, memory: Memory, level: float = ERROR) -> Estimate:
    """The share of the forget set that is remembered as if it had been trained on: the paired difference over a full memory's.

    1 if nothing was forgotten, 0 on average after re-training, below 0 where triples were pushed down. Two halves of a memory
    count as one whole. The interval covers the noise of triples and of trainings at 1 - `level`.
    """
    share = difference.value / memory.value
    error = math.hypot(difference.error, share * memory.error) / memory.value
    half = float(stdtrit(difference.degrees, 1 - level / 2)) * error
    return Estimate(share, share - half, share + half, difference.n, f"paired t, {difference.degrees} runs")


def measurable_share(share: Estimate | None) -> Estimate | None:
    """The share as a report prints it: None where it cannot be measured.

    A share cannot exceed 1. An interval that ends above 1 gives no upper bound, so it says nothing.

    >>> measurable_share(Estimate(0.4, -1.2, 2.03, 60, "paired t")) is None
    True
    """
    return None if share is None or not share.high <= 1 else share


class Finding(NamedTuple):
    """An audit's finding on one of its own runs.

    Attributes:
        told_apart: whether the run differs from honest re-training.
        bound: the smallest tolerance at which the run passes; inf if it passes at none.
    """

    told_apart: bool
    bound: float


class Sensitivity(msgspec.Struct, frozen=True):
    """Sensitivity of an audit, measured on its own runs. More noise never improves the first two figures.

    Attributes:
        told_apart_from: the smallest planted share from which on plants are told apart from honest re-training; None if there is
            none.
        honest_passes_from: the smallest tolerance at which honest re-trainings pass; None if they pass at none below 100 %.
        rejected_from: the smallest planted share from which on plants do not pass at the verdict's tolerance; None if there is
            none. An audit that passes no run rejects every share, so this figure is no sensitivity.
    """

    told_apart_from: float | None
    honest_passes_from: float | None
    rejected_from: float | None


def measure_sensitivity(
    honest: Sequence[Finding], plants: Callable[[float], Sequence[Finding]], shares: Sequence[float], tolerance: float
) -> Sensitivity:
    """Measure what an audit can tell.

    Args:
        honest: findings on honest re-trainings. plants: findings on runs with a planted share. shares: in (0, 1], to be planted
            besides the `tolerance` in (0, 1) itself.

    Returns:
        A figure counts from the share on from which at least `NOTICED` of the plants, and of those of every larger share, do.
    """
    passes_from = max((finding.bound for finding in honest), default=math.inf)
    told_apart_from = rejected_from = None
    noticed = rejected = bool(honest)
    for share in sorted({*shares, tolerance}, reverse=True):
        planted = plants(share) if noticed or rejected else []
        noticed = noticed and bool(np.mean([finding.told_apart for finding in planted]) >= NOTICED)
        rejected = rejected and bool(np.mean([finding.bound > tolerance for finding in planted]) >= NOTICED)
        told_apart_from = share if noticed else told_apart_from
        rejected_from = share if rejected else rejected_from
    return Sensitivity(told_apart_from, passes_from if passes_from <= 1 else None, rejected_from)


def planted(runs: Runs, run: int, forgotten: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Values `[n]` of a run that remembers a share of the forget set, made of two kinds of run.

    Those of `run`, which saw no triple, with a random share of the forgotten triples as runs have them that were trained on them.
    """
    values = runs.values[run].copy()
    candidates = np.nonzero(forgotten & runs.trained_on.any(axis=0))[0]
    chosen = rng.permutation(candidates)[: round(share * int(forgotten.sum()))]
    drawn = (runs.trained_on[:, chosen] * rng.random((len(runs.values), len(chosen)))).argmax(axis=0)  # any that saw it
    values[chosen] = runs.values[drawn, chosen]
    return values


def distance_to_runs(audited: np.ndarray, references: np.ndarray) -> Paired:
    """Log of the Kolmogorov-Smirnov distance of the audited scores `[n]` to the references' `[R, n]` over theirs to each other.

    The mean distance to each reference, against the same of each reference to the others; read it one-sided. At least three
    references.

    A distance is skewed: where trainings differ, one far from all others is likelier than a normal distribution says. So logs are
    compared. The distances of references share pairs, so that one that leaves the others deviates less from their mean than a new
    run would, by (R - 2) / (R - 1). The degrees of freedom are at most `MOST_DEGREES`, since the tail of the logs is heavier than
    Student's with R - 1. Of exchangeable runs, the share below a one-sided p is then about p (`test_paired.py`).
    """

    def mean_distance(scores: np.ndarray, others: np.ndarray) -> float:
        return float(np.mean([_kolmogorov_smirnov(scores, other) for other in others]))

    null = np.array(
        [mean_distance(reference, np.delete(references, k, axis=0)) for k, reference in enumerate(references)]
    )
    step, count = 1 / len(audited), len(null)  # no distance is known better than to a step
    logs = np.log(null + step)
    deviation = max(float(logs.std(ddof=1)), step / float(null.mean() + step))
    error = deviation * math.sqrt(1 + 1 / count) * (count - 1) / max(count - 2, 0.5)
    value = math.log(mean_distance(audited, references) + step) - float(logs.mean())
    return Paired(value, error, min(count - 1, MOST_DEGREES), len(audited))


def _kolmogorov_smirnov(scores: np.ndarray, others: np.ndarray) -> float:
    """Largest difference of the two distribution functions."""
    values = np.concatenate([scores, others])
    below = [np.searchsorted(np.sort(group), values, side="right") / len(group) for group in (scores, others)]
    return float(np.abs(below[0] - below[1]).max())
