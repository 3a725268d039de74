"""The verdict on an unlearning, from every membership attack and every paired test that was made on it.

Two families of figures. A *measure* is a membership attack on one model of a client (`fkgsec.attacks.forgetting.evaluation`):
forgotten triples against never-seen ones. A *test* holds one model beside re-trainings that the auditor made itself
(`fkgsec.attacks.forgetting.evidence`).

* *within*: the 95 % interval of a measure's distinguishability, max(AUC, 1 - AUC), ends below the threshold. Ranking forgotten
  triples below never-seen ones gives them away as well as remembering them, so both directions count.
* *told apart*: a measure's AUC differs from 0.5, and in the same direction from the re-trained model's on the same triples, and
  it is not within; or a test differs from re-training. Both are corrected for the number of measures and tests.
* *inconclusive*: neither; the interval is too wide, or too near the threshold.

*Not forgotten*: anything is told apart. *Forgotten*, where nothing is, takes all of:

* every measure of a client that asked is within. Others can express few of the triples and asked for nothing, so none of them
  must be within. They are judged by whether they learned something new: a measure or test of theirs is told apart only where it
  lies above re-training's;
* no single test of a client that asked is below a tenth of the error: scores that were made to look re-trained miss by little;
* the controls of clients that asked are fair: no corrected interval of the re-trained model excludes 0.5. A model that never saw
  the triples must pass its own audit, else the test split or the choice of the triples tells them apart, not a memory;
* the share of the forget set that each model of a client that asked may still remember (the upper end of its interval, at the
  part of the error that the look spends) is within what is tolerated;
* so it is even if all other triples were lowered to pay for it, which no mean shows: no more of them lie where trained-on triples
  do and others rarely;
* this audit rejects runs with the tolerated share planted: mixtures that keep this share at random, those that hide it from all
  means, and trained runs with a share left in. An audit that may pass them certifies nothing, whatever it found. An audit that
  passes no run rejects them, too, so the certificate says from which share on it tells plants apart, and at which tolerance it
  passes honest re-training;
* all other clients together do not remember more than is tolerated of them, where it can be measured: the whole interval of their
  share does not lie above 0 while it ends above the tolerance. Often it cannot be measured, since they can express few of the
  triples: then the verdict says that nothing bounds what they remember. Nothing else of them is held against a run;
* the forget set in the run's folder is the requested one, as the requesting client states it, not the party that unlearned;
* test MRR is that of a re-trained model. Above it, the run was trained on what it is tested on, or kept what it was to forget;
  far below it, the models are damaged, and a damaged model hides its memory from every test.

A run whose re-training the audit repeated bit by bit needs none of this (`judge_replay`).

*Inconclusive* otherwise. Then the audit adds re-trainings and looks again, up to its budget
(`fkgsec.experiments.unlearning.options.looks`). Each look spends a part of the error, so that the parts add up to the stated one:
a run that remembers the tolerated share passes one of the looks with a chance of at most half the error, an honest one is told
apart in one of them with at most all of it. The limit that a single test must not fall below is the same at each look.

Many figures are taken, so two errors need care. To claim "forgotten" each single one must pass at the full 95 %: an
intersection-union test, where asking more makes the claim harder, never easier, and needs no correction (Berger 1982).
"Not forgotten" is claimed if any one is conspicuous, so there Bonferroni's correction bounds the chance of an unfounded claim by
5 % over all of them. A measure's intervals are the 95 % ones, widened by the ratio of the normal points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from scipy.special import ndtri

from fkgsec.attacks.forgetting.evaluation import Membership
from fkgsec.attacks.forgetting.evidence import Evidence, ModelEvidence, PairedTest
from fkgsec.attacks.forgetting.paired import Sensitivity
from fkgsec.attacks.forgetting.readings import RELATION_RANK
from fkgsec.estimate import Estimate
from fkgsec.experiments.unlearning.options import Thresholds

Outcome = Literal["forgotten", "not forgotten", "inconclusive"]
Reading = Literal["within", "told apart", "inconclusive", "not measured"]
MUCH_BELOW = 0.1  # of the re-trained models' test MRR: a loss that damages what is audited
UNITS = {
    "score": "of the scoring function", "likelihood": "nats", "reciprocal rank": "MRR", RELATION_RANK: "MRR",
    "spread": "of the scoring function", "upper tail": "standard deviations", "order": "squared share of ranks",
    "relearned": "MRR", "distance": "log ratio",
}  # fmt: skip
"""Unit of the difference of each test, by its name without ", against controls"."""
EXIT_STATUS: dict[Outcome, int] = {"forgotten": 0, "not forgotten": 1, "inconclusive": 3}


class Judgement(msgspec.Struct, frozen=True):
    """Reading of a measure.

    Attributes:
        corrected, corrected_excess: the intervals that "told apart" was read from.
        fair: whether the re-trained model passes. noticed: whether the raw one's memory was told apart.
    """

    client: str
    model: str
    attack: str
    reading: Reading
    corrected: Estimate | None = None
    corrected_excess: Estimate | None = None
    fair: bool = True
    noticed: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """The outcome, why, and every measure's reading in the order of `Forgetting.membership`.

    `num_measures` of membership and `num_tests` beside re-training share one chance of an unfounded "not forgotten".
    """

    outcome: Outcome
    reasons: list[str]
    num_measures: int
    judgements: list[Judgement]
    num_tests: int = 0

    @property
    def exit_status(self) -> int:
        """Exit status of `fkgsec verify`: 0 forgotten, 1 not forgotten, 3 inconclusive."""
        return EXIT_STATUS[self.outcome]


def widened(interval: Estimate, comparisons: int, error: float = 0.05, *, bounds: tuple[float, float]) -> Estimate:
    """A 95 % interval as one of so many that hold together at 1 - error, cut at `bounds`.

    Each end moves away from the figure by the ratio of the two normal points. Source: Bonferroni; Differs: the ratio is exact for
    normal figures only, near enough for AUCs away from 0 and 1.

    >>> str(widened(Estimate(0.6, 0.5, 0.7, 100, "delong"), 1, bounds=(0, 1)))
    '0.6000 [0.5000, 0.7000]'
    """
    # Bonferroni for m comparisons: factor = z(1 - error / 2m) / z(0.975).
    factor = float(ndtri(1 - error / 2 / comparisons) / ndtri(0.975))
    low = max(bounds[0], interval.value - factor * (interval.value - interval.low))
    high = min(bounds[1], interval.value + factor * (interval.high - interval.value))
    return Estimate(interval.value, low, high, interval.n, f"{interval.method}, one of {comparisons}")


def judge(
    measures: Sequence[Membership],
    thresholds: Thresholds,
    evidence: Evidence | None,
    unchecked: Sequence[str] = (),
    spending: float = 1.0,
) -> Verdict:
    """Judge all measures and tests by the rule at the top of the module.

    A client that did not ask and can express too few of the triples is no measure; one that asked and cannot be measured leaves
    the verdict inconclusive. So does evidence of None: no re-training of the auditor's own; and whatever is `unchecked`.
    `spending` is the part of the error that this look spends (`Look`).
    """
    count = sum(not row.reason for row in measures)
    num_tests = 0 if evidence is None else evidence.num_tests
    error = thresholds.error * spending
    # Bonferroni: all measures and tests share the error of this look.
    level = error / max(1, count + num_tests)
    judgements = [_judge_one(row, thresholds, count + num_tests, error) for row in measures]
    # A single measure or test that is told apart makes the outcome "not forgotten".
    told = []
    if names := [_named(judgement) for judgement in judgements if judgement.reading == "told apart"]:
        told.append(f"{len(names)} of {count} measures tell the forgotten triples apart: {', '.join(names)}")
    for model in evidence.models if evidence is not None else ():
        if tests := [test for test in model.tests if test.p_value < level]:
            who = f"{model.client} {model.model}"
            told.append(f"{who} differs from a re-trained model on the forgotten triples: {_tests(tests)}")
    # "Forgotten" needs every condition (intersection-union test), so each failure is a doubt.
    doubts = [*unchecked, *_doubts_of_measures(measures, judgements, thresholds, count)]
    if evidence is None:
        doubts.append(
            "no re-training of the audit's own: the party that unlearned may have supplied the reference (--references, from 3)"
        )
    else:
        doubts += _doubts(evidence, thresholds, level)
    if not count:
        doubts.append("nothing was measured")
    if told or doubts:
        # Told apart outweighs doubts. Doubts alone leave the verdict inconclusive.
        outcome: Outcome = "not forgotten" if told else "inconclusive"
        return Verdict(outcome, told + doubts, count, judgements, num_tests)
    reasons = [
        f"of {count} measures, all of requesting clients are within {thresholds.distinguishability:.3g}, and none is told "
        f"apart; none of {num_tests} tests differs from re-training",
        *_bounds(evidence, thresholds),
        *dict.fromkeys(f"not audited: {row.client}: {row.reason}" for row in measures if row.reason and not row.asked),
    ]
    return Verdict("forgotten", reasons, count, judgements, num_tests)


def judge_replay(measures: Sequence[Membership], thresholds: Thresholds, unchecked: Sequence[str] = ()) -> Verdict:
    """Judge a run whose re-training the audit repeated bit by bit: forgotten, unless something is `unchecked`."""
    count = sum(not row.reason for row in measures)
    judgements = [_judge_one(row, thresholds, max(1, count), thresholds.error) for row in measures]
    # The verdict rests on the replay alone. The measures are judged for the report.
    reasons = [
        *unchecked,
        "the audit repeated the re-training without the forget set: every embedding and message is the same, bit by bit",
    ]
    return Verdict("inconclusive" if unchecked else "forgotten", reasons, count, judgements)


def _named(judgement: Judgement) -> str:
    return f"{judgement.client} {judgement.model} ({judgement.attack})"


def _tests(tests: Sequence[PairedTest]) -> str:
    return ", ".join(
        f"{test.name} {test.difference.value:+.3g} {UNITS.get(test.name.partition(',')[0], '')}".rstrip()
        + f" (p {test.p_value:.1g})"
        for test in tests
    )


def _doubts_of_measures(
    measures: Sequence[Membership], judgements: Sequence[Judgement], thresholds: Thresholds, count: int
) -> Iterator[str]:
    rows = list(zip(measures, judgements, strict=True))
    # Clients that did not ask need not be within: they asked for nothing.
    if inconclusive := [_named(one) for row, one in rows if one.reading == "inconclusive" and row.asked]:
        yield (
            f"{len(inconclusive)} of {count} measures are inconclusive, neither within {thresholds.distinguishability:.3g} nor "
            f"told apart from re-training: {', '.join(inconclusive)}"
        )
    yield from (f"not measured: {row.client} {row.model}: {row.reason}" for row in measures if row.reason and row.asked)
    # A model that never saw the triples must not tell them from the controls.
    if unfair := [_named(judgement) for judgement in judgements if not judgement.fair]:
        yield (
            "the controls are not fair, since the re-trained model tells them from the forgotten triples, too: "
            + ", ".join(unfair)
        )


def _doubts(evidence: Evidence, thresholds: Thresholds, level: float) -> Iterator[str]:
    """State why the evidence does not carry "forgotten" although it may tell nothing apart."""
    for model in evidence.models:
        if model.asked and not model.reason:
            yield from _doubts_of(model, thresholds, level)
        elif (
            not model.asked
            and model.share is not None
            and 0 < model.share.low
            and model.share.high > thresholds.others_share
        ):
            yield (
                f"{model.client} {model.model} may remember up to {model.share.high:.0%} of what they can express of the forget "
                f"set; {thresholds.others_share:.0%} is tolerated of them"
            )
    for change in evidence.test:
        where = f"test MRR of {change.client} {change.model}"
        # Bonferroni over the models whose test MRR is compared.
        told = change.p_value < thresholds.error / len(evidence.test)
        if told and change.difference.value > 0:
            yield (
                f"{where} is {change.difference.value:.3f} above re-training's {change.retrained:.3f}: trained on what it is "
                "tested on, or on what it was to forget"
            )
        elif told and -change.difference.value > MUCH_BELOW * change.retrained:
            yield (
                f"{where} is {-change.difference.value:.3f} below re-training's {change.retrained:.3f}: a damaged model hides "
                "what it remembers"
            )


def _doubts_of(model: ModelEvidence, thresholds: Thresholds, level: float) -> Iterator[str]:
    who = f"{model.client} {model.model}"
    # These tests pass the corrected level but stay below the alarm: too close to certify anything.
    near = [test for test in model.tests if level <= test.p_value < thresholds.alarm]
    if near:
        yield f"{who} may differ from a re-trained model on the forgotten triples: {_tests(near)}"
    if model.share is None:
        yield f"{_unmeasured(model)}; {thresholds.share:.0%} is tolerated"
        return
    if model.share.high > thresholds.share:
        yield f"{who} may remember up to {model.share.high:.1%} of the forget set; {thresholds.share:.0%} is tolerated"
    if model.hidden is not None and model.hidden.high > thresholds.share:
        yield (
            f"{who} may remember up to {model.hidden.high:.1%} of the forget set if all other triples were lowered to hide it: "
            "more of them score like training triples than in re-trained models"
        )
    if model.hidden is None:
        yield f"what {who} remembers if all other triples were lowered to hide it cannot be measured"
    # The audit must reject the tolerated share, both kept at random and hidden from all means.
    for sensitivity, how in (
        (model.at_random, "left in at random"),
        (model.hiding, "hidden from means and distributions"),
    ):
        rejected_from = None if sensitivity is None else sensitivity.rejected_from
        if rejected_from is None or rejected_from > thresholds.share:
            missed = "any share" if rejected_from is None else f"shares of less than {rejected_from:.0%}"
            yield (
                f"the audit is too weak for {who}: it may miss {missed} {how}, and {thresholds.share:.0%} is tolerated. Use more "
                "forgotten triples, a larger --budget or --shadows"
            )
        elif sensitivity is not None and sensitivity.told_apart_from is None:
            yield f"the audit is too weak for {who}: it tells no share {how} apart from honest re-training"
    for plant in model.planted:
        # A trained plant above the tolerated share that passes shows that the audit misses such memory.
        within = plant.estimate is not None and plant.estimate.high <= thresholds.share
        if plant.share > thresholds.share and within and plant.p_value >= level:
            yield f"the audit is blind for {who}: it accepted a run with {plant.share:.0%} left in as forgotten"


def _bounds(evidence: Evidence | None, thresholds: Thresholds) -> Iterator[str]:
    if evidence is None:
        return
    at = f"{1 - evidence.level:.1%} interval"
    for model in evidence.models:
        if model.asked and model.share is not None:
            assert model.hidden is not None  # else there is a doubt
            who = f"{model.client} {model.model}"
            yield (
                f"{who} remembers at most {max(0.0, model.share.high):.0%} of the forget set ({at}). Kept at random: "
                f"{describe_sensitivity(model.at_random)}"
            )
            yield (
                f"if all others were lowered to compensate, {who} remembers at most {model.hidden.high:.0%} in full ({at}). "
                f"Weaker memory that is hidden from means and distributions: {describe_sensitivity(model.hiding)}; smaller "
                "shares may pass"
            )
        elif not model.asked and (model.share is None or model.share.high > thresholds.others_share):
            yield f"nothing bounds what other clients remember: {_unmeasured(model)}"
        elif not model.asked and model.share is not None:
            yield (
                f"{model.client} {model.model} remember at most {max(0.0, model.share.high):.0%} of what they can express of the "
                f"forget set ({at})"
            )


def describe_sensitivity(sensitivity: Sensitivity | None) -> str:
    """State what the audit can tell."""
    told_apart_from, passes_from = (
        (None, None) if sensitivity is None else (sensitivity.told_apart_from, sensitivity.honest_passes_from)
    )
    told = "no share is told" if told_apart_from is None else f"{told_apart_from:.0%} or more is told"
    passes = "at no tolerance" if passes_from is None else f"from a tolerance of {max(0.0, passes_from):.1%} on"
    return f"{told} apart from honest re-training, which passes {passes}"


def _unmeasured(model: ModelEvidence) -> str:
    """Say that a share cannot be measured, and why."""
    return f"the share that {model.client} {model.model} may remember cannot be measured: " + (
        model.reason
        or (
            "models that were trained on the triples cannot be told from those that were not"
            if not model.reading
            else "its interval has no upper end below 100%"
            if model.share is None
            else f"its interval, {model.share.low:.0%} to {model.share.high:.0%}, holds 0 and ends above what is tolerated"
        )
    )


def blind_models(measures: Sequence[Membership], judgements: Sequence[Judgement]) -> list[tuple[str, str]]:
    """Return the models of clients that asked on which no attack noticed the raw run's memory: what passes there says nothing."""
    asked = {(row.client, row.model) for row in measures if row.asked and not row.reason}
    return sorted(asked - {(judgement.client, judgement.model) for judgement in judgements if judgement.noticed})


def _judge_one(row: Membership, thresholds: Thresholds, count: int, error: float) -> Judgement:
    if row.reason or row.excess is None:
        return Judgement(row.client, row.model, row.attack, "not measured")
    audited, reference = row.figures["unlearned"], row.figures["retrained"]
    # The intervals hold together for all `count` comparisons.
    corrected = widened(audited.auc, count, error, bounds=(0, 1))
    by_reference = widened(reference.auc, count, thresholds.error, bounds=(0, 1))  # an early look is no laxer here
    excess = widened(row.excess, count, error, bounds=(-1, 1))
    # Told apart takes both: an AUC off 0.5, and off the re-trained model's in the same direction.
    # Clients that did not ask count only above: there they learned something new.
    above = corrected.low > 0.5 and excess.low > 0
    below = row.asked and corrected.high < 0.5 and excess.high < 0
    reading: Reading = "inconclusive"
    # "Within" takes no correction for the number of measures, since every measure must pass.
    alone = widened(audited.auc, 1, error, bounds=(0, 1))
    if max(alone.high, 1 - alone.low) <= thresholds.distinguishability:
        reading = "within"
    elif above or below:
        reading = "told apart"
    # The controls are fair if the re-trained model cannot tell them from the forgotten triples.
    fair = not row.asked or by_reference.low <= 0.5 <= by_reference.high
    # An attack that does not notice the memory of the raw run says little when it passes.
    noticed = False
    if (raw := row.figures.get("raw")) is not None:
        remembered = widened(raw.auc, count, error, bounds=(0, 1)).low > 0.5
        noticed = remembered and raw.distinguishability.high > thresholds.distinguishability
    return Judgement(row.client, row.model, row.attack, reading, corrected, excess, fair, noticed)
