"""Evidence of forgetting: every model of an audited run compared with the auditor's own retrained runs, and the audit's power.

    >>> limits = {"tolerance": 0.1, "alarm": 0.005}
    >>> power = measure_power(references, shadows, graph, audits, **limits, seed=0)              # doctest: +SKIP
    >>> evidence = weigh_evidence(audited, references, shadows, plants, graph, audits, power)    # doctest: +SKIP
    >>> evidence.models[0].share            # of the forget set, still remembered        # doctest: +SKIP

*References* are retrained without the forget set. *Shadows* are retrained with half of it, so that each triple has runs that
saw it. *Plants* are retrained with a known share of it: the audit's result on these tests the audit itself. The party that
unlearned knows none of these runs.

For each model of a requesting client, and of all other clients together with each triple counted once:

* the forgotten triples' *score* compared with the controls', *likelihood*, *reciprocal rank* and the *rank of their relation*
  between their ends, each paired with retrained runs;
* their *spread*: how far scores deviate from retrained ones in either direction, compared with the controls'. Scores that were
  pushed to the level of never-seen triples have the right mean and the wrong values;
* their *upper tail*: whether some scores exceed the mean difference by more than in retrained runs; and their *order*: whether
  it deviates more from the retrained order. If some triples are remembered and all others were lowered, the mean is right
  (`fkgsec.attacks.forgetting.hidden`, which also bounds such memory, and measures from which share on it is detected);
* *relearned*: the reciprocal rank after a few steps of training on them. Memory that was only hidden returns at once;
* *distance*: log of the Kolmogorov-Smirnov distance over that between retrained runs;
* the *share* of the forget set that is remembered, from the reading that is the most precise one on the auditor's own runs.

For other clients, all tests are one-sided. They made no request, so only knowledge of the forgotten triples beyond retraining
counts, not less knowledge or a different model.

Threat model: the auditor holds the audited run's tables, knows how it was trained and has the data. It does not trust the party
that unlearned, except that its data and options are those in the run's folder.

Legend: `n` audited triples of a client, `K` runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fkgsec.attacks.forgetting.evaluation import OTHERS
from fkgsec.attacks.forgetting.hidden import (
    Exceedance,
    Hiding,
    hiding_sensitivity,
    measure_exceedances,
    measure_hiding,
)
from fkgsec.attacks.forgetting.paired import (
    ERROR,
    Finding,
    Memory,
    Noise,
    Paired,
    Runs,
    Sensitivity,
    distance_to_runs,
    measurable_share,
    measure_noise,
    measure_sensitivity,
    memory_of,
    paired_difference,
    planted,
    remembered_share,
)
from fkgsec.attacks.forgetting.readings import READINGS, AuditRun, Reading
from fkgsec.attacks.membership.audits import Audited, distinct_triples, mean_by
from fkgsec.data.graph import FederatedGraph
from fkgsec.estimate import Estimate
from fkgsec.randomness import generator

# Planted shares, to measure the audit's sensitivity.
SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
# Mixtures of each share from each reference.
PLANTED_DRAWS = 10


class PairedTest(msgspec.Struct, frozen=True):
    """A test: the audited run minus retrained ones; above 0 it remembers.

    `p_value`: two-sided; one-sided for upper tail and order, and for all tests of `OTHERS`, which only ask whether something
    new was learned.
    """

    name: str
    difference: Estimate
    p_value: float


class PlantedShare(msgspec.Struct, frozen=True):
    """The audit's estimate of a run that was trained with `share` of the forget set, and the smallest p-value of its tests."""

    share: float
    estimate: Estimate | None
    p_value: float


class ModelEvidence(msgspec.Struct, frozen=True):
    """Evidence on a model of a requesting client, or of `OTHERS`.

    Attributes:
        share: share of the forget set that is remembered; None if it cannot be measured: the auditor's own runs show no memory
            for comparison, or the interval ends above 1.
        reading: reading from which the share is computed.
        at_random: sensitivity to a share that is remembered at random; None if nothing was measured.
        planted: runs that were trained with a known share.
        reason: why there is no evidence.
        hidden: bound on the share that is fully remembered if all other triples were lowered to compensate. None if the
            auditor's runs do not separate trained triples from others, or the interval ends above 1.
        hiding: sensitivity to a share that is remembered and hidden from all means and distributions.
    """

    client: str
    asked: bool
    model: str
    tests: list[PairedTest]
    share: Estimate | None = None
    reading: str = ""
    at_random: Sensitivity | None = None
    planted: list[PlantedShare] = []
    reason: str | None = None
    hidden: Estimate | None = None
    hiding: Sensitivity | None = None


class UtilityChange(msgspec.Struct, frozen=True):
    """Test MRR of a client's model, audited minus retrained; `retrained` is the references' mean."""

    client: str
    model: str
    difference: Estimate
    retrained: float
    p_value: float


class Evidence(msgspec.Struct, frozen=True):
    """All of it.

    Attributes:
        num_references, num_shadows: the auditor's runs that it rests on.
        level: error of the intervals of shares, in (0, 1); .05 in earlier records, whatever it was.
    """

    models: list[ModelEvidence]
    test: list[UtilityChange]
    num_references: int
    num_shadows: int
    level: float = ERROR

    @property
    def num_tests(self) -> int:
        """Number of tests for which a verdict corrects; those of test MRR are a separate alarm."""
        return sum(len(model.tests) for model in self.models)


class Power(NamedTuple):
    """The audit's sensitivity for a model of a requesting client, see `ModelEvidence`."""

    at_random: Sensitivity | None = None
    hiding: Sensitivity | None = None


class _Case(NamedTuple):
    """A model to judge: which triples are forgotten, the auditor's runs, and the audited runs."""

    client: str
    asked: bool
    model: str
    forgotten: np.ndarray
    runs: dict[str, Runs]
    audited: list[Reading]
    references: list[Reading]

    def against(self, reading: str, values: np.ndarray, runs: Runs, *, against_controls: bool | None = None) -> Paired:
        """Compare a run's values of a reading `[n]` with those of runs that never saw the triples."""
        controls = READINGS[reading] if against_controls is None else against_controls
        return paired_difference(values, runs, self.forgotten, against_controls=controls)


class Ruler(NamedTuple):
    """Measure of a share: a reading, whether controls are subtracted, and the gain of a memory in it."""

    reading: str
    against_controls: bool
    memory: Memory

    @property
    def name(self) -> str:
        """Name of the reading in a certificate."""
        return f"{self.reading}, against controls" if self.against_controls else self.reading

    def share(self, case: _Case, values: Mapping[str, np.ndarray], runs: Runs, level: float) -> Estimate:
        """Estimate the share that a run remembers.

        Args:
            case: model to judge.
            values: the run's readings, float `[n]` each.
            runs: runs that never saw the triples.
            level: error of the interval, in (0, 1).
        """
        paired = case.against(self.reading, values[self.reading], runs, against_controls=self.against_controls)
        return remembered_share(paired, self.memory, level)


def measure_power(
    references: Sequence[AuditRun],
    shadows: Sequence[AuditRun],
    graph: FederatedGraph,
    audits: Sequence[Audited],
    *,
    tolerance: float,
    alarm: float,
    seed: int,
    level: float = ERROR,
) -> dict[tuple[str, str], Power]:
    """Measure the audit's sensitivity, by requesting client and model, for any audited run.

    Args:
        references, shadows, graph, audits: as in `weigh_evidence`.
        tolerance: largest share that a verdict tolerates, in (0, 1).
        alarm: p-value below which a verdict certifies nothing.
        seed: seed of the planted mixtures.
        level: error of the intervals of shares.
    """
    power = {}
    for case in _cases(references[0], references, shadows, (), graph, audits):
        if isinstance(case, _Case) and case.asked:
            ruler = _sharpest(case, len(references))
            if ruler is not None:
                rng = generator(seed, "hidden", case.client, case.model)
                power[case.client, case.model] = Power(
                    _sensitivity(case, ruler, len(references), tolerance, seed, level),
                    hiding_sensitivity(
                        case.runs["score"], case.forgotten, tolerance=tolerance, alarm=alarm, rng=rng, level=level
                    ),
                )
    return power


class Spread(NamedTuple):
    """Variances and memory of a model of a requesting client, on the auditor's own runs.

    They decide whether an audit can be passed.

    Attributes:
        client, model: names.
        noise, memory: of the most precise reading; None if no memory is visible.
        exceedances: see `measure_exceedances`.
        num_forgotten, num_controls: number of measured triples.
        num_members, num_effective_controls: number of forgotten triples with a match, and effective number of their controls.
        reason: why nothing was measured.
    """

    client: str
    model: str
    noise: Noise | None
    memory: Memory | None
    exceedances: list[Exceedance]
    num_forgotten: int
    num_controls: int
    num_members: int
    num_effective_controls: float
    reason: str | None = None


def measure_spread(
    references: Sequence[AuditRun], shadows: Sequence[AuditRun], graph: FederatedGraph, audits: Sequence[Audited]
) -> list[Spread]:
    """Measure variances and memory of each model of a requesting client.

    Args:
        references, shadows, graph, audits: as in `weigh_evidence`.
    """
    spreads = []
    for case in _cases(references[0], references, shadows, (), graph, audits):
        if not case.asked:
            continue
        if not isinstance(case, _Case):
            spreads.append(Spread(case.client, case.model, None, None, [], 0, 0, 0, 0.0, case.reason))
            continue
        ruler, noise = _sharpest(case, len(references)), None
        if ruler is not None:
            noise = measure_noise(case.runs[ruler.reading], case.forgotten, against_controls=ruler.against_controls)
        audit = next(audit for audit in audits if audit.name == case.client)
        counts = (
            int(case.forgotten.sum()),
            int((~case.forgotten).sum()),
            len(audit.members),
            audit.num_effective_controls,
        )
        # Only scores are used to bound hidden memory.
        exceedances = measure_exceedances(case.runs["score"], case.forgotten)
        spreads.append(Spread(case.client, case.model, noise, ruler and ruler.memory, exceedances, *counts))
    return spreads


def weigh_evidence(
    audited: AuditRun,
    references: Sequence[AuditRun],
    shadows: Sequence[AuditRun],
    plants: Sequence[tuple[float, AuditRun]],
    graph: FederatedGraph,
    audits: Sequence[Audited],
    power: Mapping[tuple[str, str], Power],
    level: float = ERROR,
) -> Evidence:
    """Hold a run against re-trainings.

    Args:
        references: at least three. shadows: at least two, of complementary halves, or none (then no share is measured).
        power: of `measure_power` with the same references and shadows. level: of the intervals of shares.
    """
    models = []
    for case in _cases(audited, references, shadows, plants, graph, audits):
        if not isinstance(case, _Case):
            models.append(case)
            continue
        hiding = [
            measure_hiding(run.audited["score"], case.runs["score"], case.forgotten, level) for run in case.audited
        ]
        tests, *of_plants = (_tests(case, run, hiding_of) for run, hiding_of in zip(case.audited, hiding, strict=True))
        ruler = _sharpest(case, len(references))
        if ruler is None:
            models.append(ModelEvidence(case.client, case.asked, case.model, tests))
            continue
        share, *shares = (ruler.share(case, run.audited, case.runs[ruler.reading], level) for run in case.audited)
        own_power = power.get((case.client, case.model), Power())
        models.append(
            ModelEvidence(
                case.client,
                case.asked,
                case.model,
                tests,
                measurable_share(share),
                ruler.name,
                own_power.at_random,
                [
                    PlantedShare(planted, measurable_share(estimate), min(test.p_value for test in hiding_of))
                    for (planted, _), estimate, hiding_of in zip(plants, shares, of_plants, strict=True)
                ],
                hidden=measurable_share(hiding[0].share),
                hiding=own_power.hiding,
            )
        )
    names, changes = {audit.place: audit.name for audit in audits}, []
    for (place, model), reading in audited.readings.items():
        if len(reading.test) >= 2:
            values = np.stack([run.readings[place, model].test for run in references])
            change = _unseen_difference(reading.test, values)
            changes.append(UtilityChange(names[place], model, change.estimate(), float(values.mean()), change.p_value))
    return Evidence(models, changes, len(references), len(shadows), level)


def _unseen_difference(audited: np.ndarray, values: np.ndarray) -> Paired:
    """Return the mean difference of values `[n]` to those of runs `[K, n]` that never saw any of the triples."""
    runs, whole = Runs(values, np.zeros(values.shape, dtype=bool)), np.ones(len(audited), dtype=bool)
    return paired_difference(audited, runs, whole, against_controls=False)


def _cases(
    audited: AuditRun,
    references: Sequence[AuditRun],
    shadows: Sequence[AuditRun],
    plants: Sequence[tuple[float, AuditRun]],
    graph: FederatedGraph,
    audits: Sequence[Audited],
) -> Iterator[_Case | ModelEvidence]:
    auditor_runs, candidates = [*references, *shadows], [audited, *(run for _, run in plants)]
    names = {audit.place: [name for place, name in audited.readings if place == audit.place] for audit in audits}
    aside = [audit for audit in audits if not audit.asked and audit.reason is None]
    for audit in audits:
        for name in names[audit.place] if audit.asked else ():
            if audit.reason:
                yield ModelEvidence(audit.name, True, name, [], reason=audit.reason)
                continue
            key = audit.place, name
            # References saw no audited triple, shadows half of them.
            trained_on = np.stack([run.trained_on[audit.place] for run in auditor_runs])
            runs = {
                what: Runs(np.stack([run.readings[key].audited[what] for run in auditor_runs]), trained_on)
                for what in READINGS
            }
            yield _Case(
                audit.name,
                True,
                name,
                audit.all_forgotten,
                runs,
                [run.readings[key] for run in candidates],
                [run.readings[key] for run in references],
            )
    unheard = [audit for audit in audits if not audit.asked]
    # As in every federation that is divided by relations.
    if unheard and not aside:
        reason = "; ".join(f"{audit.name}: {audit.reason}" for audit in unheard)
        for name in names[unheard[0].place]:
            yield ModelEvidence(OTHERS, False, name, [], reason=reason)
    for name in names[aside[0].place] if aside else ():
        case = _together(name, aside, auditor_runs, candidates, graph)
        counts = int(case.forgotten.sum()), int((~case.forgotten).sum())
        if min(counts) < 2:
            reason = f"{counts[0]} distinct forgotten triples with {counts[1]} controls; it takes 2 of each"
            yield ModelEvidence(OTHERS, False, name, [], reason=reason)
        else:
            yield case


def _together(
    name: str,
    aside: Sequence[Audited],
    auditor_runs: Sequence[AuditRun],
    candidates: Sequence[AuditRun],
    graph: FederatedGraph,
) -> _Case:
    """Pool the clients without a request.

    Each triple has the mean over the clients that can express it, in units of the standard deviation of a client's retrained
    runs.
    """
    first, which = distinct_triples(
        np.concatenate([graph.clients[audit.place].to_global(audit.triples) for audit in aside])
    )
    trained_on = np.concatenate(
        [np.stack([run.trained_on[audit.place] for run in auditor_runs]) for audit in aside], axis=1
    )
    runs: dict[str, Runs] = {}
    audited: list[dict[str, np.ndarray]] = [{} for _ in candidates]
    for what in READINGS:
        values, theirs = [], []
        for audit in aside:
            readings = np.stack([run.readings[audit.place, name].audited[what] for run in auditor_runs])
            unseen = np.where(np.stack([run.trained_on[audit.place] for run in auditor_runs]), np.nan, readings)
            # Standard deviation of retrained values, so that clients with different models can be averaged.
            scale = math.sqrt(float(np.nanmean(np.nanvar(unseen, axis=0, ddof=1)))) or 1.0
            values.append(readings / scale)
            theirs.append(np.stack([run.readings[audit.place, name].audited[what] for run in candidates]) / scale)
        runs[what] = Runs(
            np.stack([mean_by(which, row) for row in np.concatenate(values, axis=1)]), trained_on[:, first]
        )
        for place, row in enumerate(np.concatenate(theirs, axis=1)):
            audited[place][what] = mean_by(which, row)
    forgotten = np.concatenate([audit.all_forgotten for audit in aside])[first]
    return _Case(OTHERS, False, name, forgotten, runs, [Reading(values, None, np.empty(0)) for values in audited], [])


def _tests(case: _Case, audited: Reading, hiding: Hiding) -> list[PairedTest]:
    named_tests = [
        (f"{name}, against controls" if controls else name, case.against(name, audited.audited[name], case.runs[name]))
        for name, controls in READINGS.items()
    ]
    named_tests.append(("spread, against controls", hiding.spread))
    tests = [
        PairedTest(name, paired.estimate(), paired.p_value if case.asked else paired.upper_p_value)
        for name, paired in named_tests
    ]
    tests += [
        PairedTest(name, paired.estimate(), paired.upper_p_value)
        for name, paired in (("upper tail", hiding.tail), ("order", hiding.order))
    ]
    # Memory that was only suppressed returns within a few training steps.
    if audited.relearned is not None:
        values = np.stack([reference.relearned for reference in case.references if reference.relearned is not None])
        paired = _unseen_difference(audited.relearned, values)
        tests.append(PairedTest("relearned", paired.estimate(), paired.p_value))
    if case.references:
        members = case.forgotten
        scores = np.stack([reference.audited["score"][members] for reference in case.references])
        apart = distance_to_runs(audited.audited["score"][members], scores)
        tests.append(PairedTest("distance", apart.estimate(), apart.p_value if apart.value > 0 else 1.0))
    return tests


def _sharpest(case: _Case, num_references: int) -> Ruler | None:
    """Choose the measure of a share with the smallest error on the auditor's references; None without a memory."""
    # Relative error of the share: error of the difference over the gain of a memory.
    best: tuple[float, Ruler | None] = (math.inf, None)
    for name in READINGS:
        runs, memory = case.runs[name], memory_of(case.runs[name], case.forgotten)
        if memory is None:
            continue
        for controls in (False, True):
            # Leave each reference out in turn, and measure it against the others.
            errors = [
                case.against(name, runs.values[k], runs.without(k), against_controls=controls).error
                for k in range(num_references)
            ]
            best = min(
                best,
                (float(np.mean(errors)) / memory.value, Ruler(name, controls, memory)),
                key=lambda candidate: candidate[0],
            )
    return best[1]


def _sensitivity(
    case: _Case, ruler: Ruler, num_references: int, tolerance: float, seed: int, level: float
) -> Sensitivity:
    """Measure the sensitivity to a share that is remembered at random, on mixtures of the auditor's own runs."""
    runs = case.runs[ruler.reading]

    def finding(k: int, values: np.ndarray) -> Finding:
        """Audit one of the auditor's own runs."""
        share = ruler.share(case, {ruler.reading: values}, runs.without(k), level)
        return Finding(share.low > 0, share.high)

    def plants(share: float) -> list[Finding]:
        """Audit runs with a planted share."""
        # A random stream per share: the result does not depend on which shares were planted before.
        rng = generator(seed, "planted", case.client, case.model, f"{share}")
        return [
            finding(k, planted(runs, k, case.forgotten, share, rng))
            for k in range(num_references)
            for _ in range(PLANTED_DRAWS)
        ]

    honest = [finding(k, runs.values[k]) for k in range(num_references)]
    return measure_sensitivity(honest, plants, SHARES, tolerance)
