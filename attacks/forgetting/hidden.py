"""Memory of some forgotten triples that the others were lowered for.

    >>> rng = np.random.default_rng(0)
    >>> forgotten = np.arange(800) < 600
    >>> runs = Runs(rng.normal(size=(6, 800)), np.zeros((6, 800), dtype=bool))
    >>> runs.trained_on[4, :300] = runs.trained_on[5, 300:600] = True         # two runs saw a half of them each
    >>> runs.values[4, :300] += 6; runs.values[5, 300:600] += 6               # which adds 6 deviations
    >>> audited = rng.normal(size=800) - np.where(forgotten, 1.5, 0)          # lowered, but for a fifth
    >>> audited[:120] += 7.5                                                  # so that the mean is re-training's
    >>> bool(0.15 < hidden_share(audited, runs, forgotten).value < 0.25)
    True

Whoever keeps a part of the forget set and lowers the rest until all means are a re-trained model's (MRR, AUC, even the
distribution of scores) is not seen by any test of means. What is left to see: some triples far above what re-training gives
them, others far below, and an order among them that is not re-training's. Here are the tests of that, from which share on they
notice it, and a bound on the share that is remembered *whatever* was done to the other triples: no more can be remembered in
full than lie where trained-on triples do and others rarely.

Legend: `n` audited triples (forgotten ones and controls), `K` runs of the auditor's, as in `fkgsec.attacks.forgetting.paired`.
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

LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2)  # of never-seen triples that lie above a threshold
HIDDEN_SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)  # planted and hidden, to measure what the audit can tell
HIDDEN_DRAWS = 5  # of each share in each re-training


def residuals(audited: np.ndarray, runs: Runs) -> tuple[np.ndarray, Runs]:
    """Subtract from each value the mean of the (other) runs that never saw the triple.

    Scaled to one variance: a mean of few runs scatters more than one of many.
    """
    total, count = runs.outside()
    rest = np.maximum(count - ~runs.trained_on, 1)
    others = (total - np.where(runs.trained_on, 0, runs.values)) / rest
    return (audited - total / count) * np.sqrt(count / (count + 1)), Runs(
        (runs.values - others) * np.sqrt(rest / (rest + 1)), runs.trained_on
    )


def deviations(audited: np.ndarray, runs: Runs) -> tuple[np.ndarray, Runs]:
    """Distance of each value to the mean of the (other) runs that never saw the triple.

    A model whose forgotten triples were pushed to the level of others has the right mean and the wrong values: re-training still
    predicts some of them well and others badly.
    """
    residual, others = residuals(audited, runs)
    return np.abs(residual), Runs(np.abs(others.values), runs.trained_on)


def upper_tail(audited: np.ndarray, runs: Runs, forgotten: np.ndarray) -> Paired:
    """Excess of the highest differences to re-training over their own mean, beyond that of re-trainings.

    Each triple's difference to the mean of the (other) runs that never saw it, less the mean of these over the forgotten
    triples, in units of the runs' scatter; of it, what exceeds 1; the mean over the forgotten triples, held against the same of
    each run. Read it one-sided.

    Args: as for `paired_difference`.
    """
    audited_residual, others = residuals(audited, runs)
    scatter = math.sqrt(float(np.mean(others.values**2, where=~runs.trained_on)))
    if scatter == 0:  # runs that agree in all: any difference is one
        scatter = 1.0

    def beyond(residual: np.ndarray, seen: np.ndarray) -> np.ndarray:
        usable = forgotten & ~seen
        middle = float(residual[usable].mean()) if usable.any() else 0.0
        return np.maximum((residual - middle) / scatter - 1, 0)

    tails = np.stack([beyond(residual, seen) for residual, seen in zip(others.values, runs.trained_on, strict=True)])
    audited_tail = beyond(audited_residual, np.zeros(len(audited), dtype=bool))
    return paired_difference(audited_tail, Runs(tails, runs.trained_on), forgotten, against_controls=False)


def disorder(audited: np.ndarray, runs: Runs, forgotten: np.ndarray) -> Paired:
    """Distance of the order of the forgotten triples to re-training's, beyond that of re-trainings to each other.

    Each triple's rank among the forgotten ones, in (0, 1], less the mean of its ranks in the (other) runs that never saw it;
    squared; the mean over the forgotten triples, held against the same of each run. Ranks leave out what shifts or stretches all
    scores of a training, so that this scatters less than `deviations`. Read it one-sided.

    Args: as for `paired_difference`.
    """

    def ranks(values: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Ranks of the forgotten triples that were not seen, among these; 0 elsewhere."""
        ranked, usable = np.zeros(len(values)), forgotten & ~seen
        ranked[usable] = rankdata(values[usable]) / max(1, usable.sum())
        return ranked

    ranked = np.stack([ranks(values, seen) for values, seen in zip(runs.values, runs.trained_on, strict=True)])
    residual, others = residuals(ranks(audited, np.zeros(len(audited), dtype=bool)), Runs(ranked, runs.trained_on))
    return paired_difference(residual**2, Runs(others.values**2, runs.trained_on), forgotten, against_controls=False)


def hidden_share(audited: np.ndarray, runs: Runs, forgotten: np.ndarray, level: float = ERROR) -> Estimate | None:
    """The largest share of the forget set that can be remembered as if it had been trained on, whatever became of the rest.

    The share of forgotten triples above a threshold over that of trained-on ones, as if nothing but memory came to lie there; so
    a re-trained model has not 0 but what its own scatter looks like. The threshold is the one of `LEVELS` at which the bound for
    the auditor's own re-trainings is least, on average.

    Returns:
        Its interval, at 1 - `level`, covers which remembered triples happen to lie above the threshold and how trainings differ
        in it. None where fewer than two runs saw some of the forgotten triples, or these lie no higher than others.
    """
    best: tuple[float, Estimate | None] = (math.inf, None)
    residual, others = residuals(audited, runs)
    for threshold, never_seen, rates in _separating(others, forgotten):
        expected = np.mean([_bound(above, rates, level).high for above in never_seen])
        bound = _bound(residual[forgotten] > threshold, rates, level)
        best = min(best, (float(expected), bound), key=lambda candidate: candidate[0])
    return best[1]


def _separating(others: Runs, forgotten: np.ndarray) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """Yield the thresholds of `LEVELS` that separate trained-on triples, on `residuals` of runs.

    With each comes which forgotten triples lie above it in the runs that saw none, bool `[I, m]`, and the share of the triples
    that lie above it in each run that saw some `[K]`. Empty where fewer than two runs saw some, or every run did.
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
    """The share whose memory would put so many of the triples `[n]` above a threshold, if trainings put `rates` `[K]` there."""
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
        share: of the forget set. number: forgotten triples. rate, deviation: share of trained-on triples above the threshold, and
            its deviation over `num_runs` runs, each of which saw half of them. level: error of the interval.

    Source: Clopper and Pearson 1934, for the number of trials.
    """
    counted = float(bdtrin(share * rate * number, level / 2, min(rate, 1 - 1 / number))) / number
    beyond_draw = max(0.0, deviation**2 - rate * (1 - rate) / (number / 2))
    between = counted * math.sqrt(beyond_draw + deviation**2 / num_runs) / rate
    return math.hypot(counted - share, float(stdtrit(num_runs - 1, 1 - level / 2)) * between)


class Exceedance(NamedTuple):
    """Shares of triples above a threshold: of never-seen ones, of trained-on ones, and the deviation of these over runs."""

    never_seen: float
    trained_on: float
    deviation: float


def measure_exceedances(runs: Runs, forgotten: np.ndarray) -> list[Exceedance]:
    """Measure what `hidden_share` of a re-training consists of, at each of `LEVELS` that separates trained-on triples.

    Args: as for `hidden_share`. Returns: empty where it cannot be measured.
    """
    _, others = residuals(runs.values[0], runs)
    return [
        Exceedance(float(never_seen.mean()), float(rates.mean()), float(rates.std(ddof=1)))
        for _, never_seen, rates in _separating(others, forgotten)
    ]


def rearranged(runs: Runs, run: int, forgotten: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Values `[n]` of a run that remembers a random share of the forget set and hides it from every mean.

    Those of `run`, which saw no triple, dealt out anew among the forgotten ones: the highest to those that are kept, in the order
    of runs that were trained on them, the others in their own order to the rest. Their distribution stays.
    """
    values = runs.values[run].copy()
    rows = np.nonzero(forgotten)[0]
    candidates = np.nonzero(forgotten & runs.trained_on.any(axis=0))[0]
    unmoved = rng.permutation(candidates)[: round(share * len(rows))]
    rest = np.setdiff1d(rows, unmoved)
    drawn = (runs.trained_on[:, unmoved] * rng.random((len(runs.values), len(unmoved)))).argmax(
        axis=0
    )  # any that saw it
    ordered = np.sort(values[rows])
    moved_values = values[rest]
    values[unmoved[np.argsort(runs.values[drawn, unmoved])]] = ordered[len(rest) :]
    values[rest[np.argsort(moved_values)]] = ordered[: len(rest)]
    return values


class Hiding(NamedTuple):
    """Signs that some triples are remembered and others lowered: `upper_tail`, `disorder` and, against the controls,
    the mean of `deviations`; and `hidden_share`."""

    spread: Paired
    tail: Paired
    order: Paired
    share: Estimate | None

    def finding(self, alarm: float, honest_share: float = math.inf) -> Finding:
        """The audit's finding. A run is told apart by a p-value below `alarm`, or by an interval above `honest_share`."""
        told_apart = min(self.spread.p_value, self.tail.upper_p_value, self.order.upper_p_value) < alarm
        bound = math.inf if told_apart or self.share is None else self.share.high
        return Finding(told_apart or (self.share is not None and self.share.low > honest_share), bound)


def measure_hiding(audited: np.ndarray, runs: Runs, forgotten: np.ndarray, level: float = ERROR) -> Hiding:
    """Measure all of it. Args: as for `paired_difference`; `level`: of the interval of `hidden_share`."""
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
    """Measure the sensitivity to memory that is hidden from means, on `rearranged` re-trainings.

    Args:
        tolerance: largest share that a verdict tolerates, in (0, 1). alarm: p-value below which a verdict certifies nothing.
        rng: draws which triples are kept. level: of the interval of `hidden_share`.
    """
    unseeing = [run for run, seen in enumerate(runs.trained_on) if not (seen & forgotten).any()]
    honest = [measure_hiding(runs.values[run], runs.without(run), forgotten, level) for run in unseeing]
    honest_share = max((hiding.share.value for hiding in honest if hiding.share is not None), default=math.inf)

    def plants(share: float) -> list[Finding]:
        return [
            measure_hiding(rearranged(runs, run, forgotten, share, rng), runs.without(run), forgotten, level).finding(
                alarm, honest_share
            )
            for run in unseeing
            for _ in range(HIDDEN_DRAWS)
        ]

    return measure_sensitivity([hiding.finding(alarm) for hiding in honest], plants, HIDDEN_SHARES, tolerance)
