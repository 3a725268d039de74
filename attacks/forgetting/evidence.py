"""Evidence of forgetting: every model of an audited run beside the auditor's own re-trainings, and what the audit can tell.

    >>> limits = {"tolerance": 0.1, "alarm": 0.005}
    >>> power = measure_power(references, shadows, graph, audits, **limits, seed=0)              # doctest: +SKIP
    >>> evidence = weigh_evidence(audited, references, shadows, plants, graph, audits, power)    # doctest: +SKIP
    >>> evidence.models[0].share            # of the forget set, still remembered        # doctest: +SKIP

*References* are re-trained without the forget set, *shadows* with half of it (so that each triple has runs that saw it), *plants*
with a known share of it left in: what the audit says of these is its own test. A party that unlearned knows none of them.

For each model of a client that asked, and of all other clients together with each triple counted once:

* the forgotten triples' *score* against the controls', *likelihood*, *reciprocal rank* and their *relation's rank* between their
  ends, each paired with re-training;
* their *spread*: how far scores lie from re-training's either way, against the controls'. Scores that were pushed to the level of
  never-seen triples have the right mean and the wrong values;
* their *upper tail*, whether some scores lie further above the mean difference than re-trainings' do, and their *order*, whether
  it lies further from re-training's. Memory of some that is paid for by pushing all others down has the right mean
  (`fkgsec.attacks.forgetting.hidden`, which bounds it, too, and says from where it is seen);
* *relearned*: the reciprocal rank after a few steps of training on them. What was only hidden is back at once;
* *distance*: log of Kolmogorov and Smirnov's over that of re-trainings to each other;
* of the other clients, all tests are one-sided: they did not ask, so that only what they learned of the forgotten triples beyond
  re-training counts, not that they know less or differ in another way;
* the *share* of the forget set that is remembered, from whichever reading the auditor's own runs show to be the sharpest.

Threat model: the auditor holds the audited run's tables, knows how it was trained and has the data. It does not trust the party
that unlearned, but that its data and options are those that the run's folder names.

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

SHARES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)  # planted, to measure what the audit can tell
PLANTED_DRAWS = 10  # mixtures of each share from each reference


class PairedTest(msgspec.Struct, frozen=True):
    """A test: the audited run minus re-training; above 0 it remembers.

    `p_value`: two-sided; one-sided of upper tail and order, and of all tests of `OTHERS`, who are asked only whether they learned
    something new.
    """

    name: str
    difference: Estimate
    p_value: float


class PlantedShare(msgspec.Struct, frozen=True):
    """The audit's estimate of a run that was trained with `share` of the forget set left in; the least p-value of its tests."""

    share: float
    estimate: Estimate | None
    p_value: float


class ModelEvidence(msgspec.Struct, frozen=True):
    """Evidence of a model of a client that asked, or of `OTHERS`.

    Attributes:
        share: of the forget set that is remembered; None where it cannot be measured: the auditor's own runs show no memory to
            measure it by, or the interval ends above 1.
        reading: what the share is read from.
        at_random: what the audit can tell of a share that is kept at random; None if nothing was measured.
        planted: runs that were trained with a share left in.
        reason: why there is nothing.
        hidden: bound on the share that is remembered in full if all other triples were lowered to pay for it; None where the
            auditor's runs do not separate trained-on triples from others, and where the interval ends above 1.
        hiding: what the audit can tell of a share that is kept and hidden from all means and distributions.
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
    """Test MRR of a client's model, audited minus re-trained, in the units of MRR; `retrained` is the references' mean."""

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
        """Tests that a verdict has to correct for; those of test MRR are an alarm apart."""
        return sum(len(model.tests) for model in self.models)


class Power(NamedTuple):
    """The audit's sensitivity for a model of a client that asked: see `ModelEvidence`."""

    at_random: Sensitivity | None = None
    hiding: Sensitivity | None = None


class _Case(NamedTuple):
    """A model to be judged: which triples are forgotten ones, the auditor's runs, and the runs under audit."""

    client: str
    asked: bool
    model: str
    forgotten: np.ndarray
    runs: dict[str, Runs]
    audited: list[Reading]
    references: list[Reading]

    def against(self, reading: str, values: np.ndarray, runs: Runs, *, against_controls: bool | None = None) -> Paired:
        """A run's values of a reading `[n]` against those of runs that never saw the triples."""
        controls = READINGS[reading] if against_controls is None else against_controls
        return paired_difference(values, runs, self.forgotten, against_controls=controls)


class Ruler(NamedTuple):
    """Measure of a share: a reading, whether controls are subtracted from it, and the gain of a memory in it."""

    reading: str
    against_controls: bool
    memory: Memory

    @property
    def name(self) -> str:
        """The reading, as a certificate names it."""
        return f"{self.reading}, against controls" if self.against_controls else self.reading

    def share(self, case: _Case, values: Mapping[str, np.ndarray], runs: Runs, level: float) -> Estimate:
        """Measure the share that a run remembers by its readings, beside runs that never saw the triples."""
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
    """Measure the audit's sensitivity, by client that asked and model, whatever run is audited.

    Args:
        references, shadows: as for `weigh_evidence`. tolerance, alarm: the share that a verdict tolerates and the p-value below
            which it certifies nothing. seed: of the planted mixtures. level: of the intervals of shares.
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
    """Variances and memory of a model of a client that asked, on the auditor's own runs. They decide if an audit can be passed.

    Attributes:
        noise, memory: of the sharpest reading; None where no memory shows. exceedances: see `measure_exceedances`.
        num_forgotten, num_controls: triples that it was measured on. num_members, num_effective_controls: of these, forgotten
            ones with a match, and the effective number of their controls.
        reason: why there is nothing.
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
    """Measure variances and memory of each model of a client that asked. Args: as for `measure_power`."""
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
    """Mean difference of values `[n]` to those of runs `[K, n]` that never saw any of the triples."""
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
    if unheard and not aside:  # as in every federation divided by relations
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
    """The clients that did not ask as one: each triple by the mean over the clients that can express it, in units of how much
    a client's re-trainings scatter."""
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
    """The ruler that measures a share with the least error, judged by the auditor's references alone; None without a memory."""
    best: tuple[float, Ruler | None] = (math.inf, None)
    for name in READINGS:
        runs, memory = case.runs[name], memory_of(case.runs[name], case.forgotten)
        if memory is None:
            continue
        for controls in (False, True):
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
    """Measure the sensitivity to a share that is kept at random, on mixtures of the audit's own runs."""
    runs = case.runs[ruler.reading]

    def finding(k: int, values: np.ndarray) -> Finding:
        share = ruler.share(case, {ruler.reading: values}, runs.without(k), level)
        return Finding(share.low > 0, share.high)

    def plants(share: float) -> list[Finding]:
        rng = generator(seed, "planted", case.client, case.model, f"{share}")
        return [
            finding(k, planted(runs, k, case.forgotten, share, rng))
            for k in range(num_references)
            for _ in range(PLANTED_DRAWS)
        ]

    honest = [finding(k, runs.values[k]) for k in range(num_references)]
    return measure_sensitivity(honest, plants, SHARES, tolerance)
