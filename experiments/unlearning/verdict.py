"""The verdict on an unlearning, from every membership attack that was made on it.

The rule, for every membership attack on every model of every client (`attacks.forgetting`), called a measure here:

* *within*: the 95 % interval of its distinguishability, max(AUC, 1 - AUC), ends below the threshold. Ranking forgotten triples
  below never-seen ones gives them away as well as remembering them, so both directions count.
* *told apart*: its AUC differs from 0.5, and in the same direction from the re-trained model's on the same triples, both at
  intervals that are corrected for the number of measures; and it is not within.
* *undecided*: neither; the interval is too wide, or too near the threshold.

*Forgotten*: every decisive measure is within, the controls are fair, and the audit is not blind. Decisive are those of
clients that asked, and those of all other clients together: a client that did not ask can express few of the triples, so no
single one is asked to be within, but any single one can be told apart. *Not forgotten*: some measure is told apart.
*Inconclusive* otherwise. The controls are fair when no corrected interval of the re-trained model excludes 0.5: a model that
never saw the triples must pass its own audit, else the test split or the choice of the triples tells them apart, not a
memory. The audit is blind for a client's model when no attack told the raw run's memory apart there (or no raw run was
given): what passes then may never have been changed.

Many measures are taken, so two errors need care. To claim "forgotten" each single measure must pass at the full 95 %: an
intersection-union test, where asking more makes the claim harder, never easier, and needs no correction (Berger 1982).
"Not forgotten" is claimed if any one is conspicuous, so there Bonferroni's correction bounds the chance of an unfounded claim by
5 % over all of them. Its intervals are the 95 % ones, widened by the ratio of the normal points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from scipy.special import ndtri

from attacks.forgetting import Membership
from fkgsec.errors import SpecError
from fkgsec.estimate import Estimate

Outcome = Literal["forgotten", "not forgotten", "inconclusive"]
Reading = Literal["within", "told apart", "undecided", "not measured"]
EXIT_STATUS: dict[Outcome, int] = {"forgotten": 0, "not forgotten": 1, "inconclusive": 3}


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user tolerates.

    Attributes:
        distinguishability: the largest max(AUC, 1 - AUC) that still passes, in (0.5, 1]. At the default an attacker who is
            shown a forgotten triple and one that was never seen may pick the right one in two cases of three.
        error: chance in (0, 0.5) of calling "not forgotten" what re-training would not be told from, over all measures.
    """

    distinguishability: float = 2 / 3
    error: float = 0.05

    def __post_init__(self) -> None:
        if not 0.5 < self.distinguishability <= 1:
            raise SpecError(f"distinguishability must lie in (0.5, 1]; got {self.distinguishability}")
        if not 0 < self.error < 0.5:
            raise SpecError(f"error must lie in (0, 0.5); got {self.error}")


class Judgement(msgspec.Struct, frozen=True):
    """How one measure reads.

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
    """The outcome, why, and every measure's reading in the order of `Forgetting.membership`."""

    outcome: Outcome
    reasons: list[str]
    num_measures: int
    judgements: list[Judgement]

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.outcome]


def widened(interval: Estimate, comparisons: int, error: float = 0.05, *, bounds: tuple[float, float]) -> Estimate:
    """A 95 % interval as one of so many that hold together at 1 - error, cut at `bounds`.

    Each end moves away from the figure by the ratio of the two normal points. Source: Bonferroni; Differs: the ratio is exact for
    normal figures only, near enough for AUCs away from 0 and 1.

    >>> str(widened(Estimate(0.6, 0.5, 0.7, 100, "delong"), 1, bounds=(0, 1)))
    '0.6000 [0.5000, 0.7000]'
    """
    factor = float(ndtri(1 - error / 2 / comparisons) / ndtri(0.975))
    low = max(bounds[0], interval.value - factor * (interval.value - interval.low))
    high = min(bounds[1], interval.value + factor * (interval.high - interval.value))
    return Estimate(interval.value, low, high, interval.n, f"{interval.method}, one of {comparisons}")


def judge(measures: Sequence[Membership], thresholds: Thresholds) -> Verdict:
    """The verdict on all measures, by the rule at the top of the module.

    A client that did not ask and can express too few of the triples is no measure; one that asked and cannot be measured leaves
    the verdict inconclusive.
    """
    count = sum(not row.reason for row in measures)
    judgements = [_judge_one(row, thresholds, count) for row in measures]

    def such(reading: Reading, *, decisive: bool = False) -> list[str]:
        return [
            f"{one.client} {one.model} ({one.attack})"
            for row, one in zip(measures, judgements, strict=True)
            if one.reading == reading and (row.decisive or not decisive)
        ]

    reasons = []
    told, undecided = such("told apart"), such("undecided", decisive=True)
    unmeasured = [f"{row.client} {row.model}: {row.reason}" for row in measures if row.reason and row.asked]
    unfair = [f"{one.client} {one.model} ({one.attack})" for one in judgements if not one.fair]
    if told:
        reasons.append(f"{len(told)} of {count} measures tell the forgotten triples apart: {', '.join(told)}")
    if undecided:
        reasons.append(
            f"{len(undecided)} of {count} measures are undecided, neither within {thresholds.distinguishability:.3g} nor told "
            f"apart from re-training: {', '.join(undecided)}"
        )
    reasons += [f"not measured: {line}" for line in unmeasured]
    if unfair:
        reasons.append(
            "the controls are not fair, since the re-trained model tells them from the forgotten triples, too: "
            + ", ".join(unfair)
        )
    if told:
        return Verdict("not forgotten", reasons, count, judgements)
    blind = blind_models(measures, judgements)
    if blind and any("raw" in row.figures for row in measures):
        reasons.append(
            "the audit is blind, since it does not tell the raw run's memory apart either (more shadows or triples may): "
            + ", ".join(f"{client} {model}" for client, model in blind)
        )
    elif blind:
        reasons.append("the audit may be blind: no raw run was given to show that it notices a memory")
    if reasons or not count:
        return Verdict("inconclusive", reasons or ["nothing was measured"], count, judgements)
    reasons = [
        f"every decisive one of {count} measures is within {thresholds.distinguishability:.3g}, and none is told apart"
    ]
    return Verdict("forgotten", reasons, count, judgements)


def blind_models(measures: Sequence[Membership], judgements: Sequence[Judgement]) -> list[tuple[str, str]]:
    """The models of clients that asked on which no attack noticed the raw run's memory: what passes there says nothing."""
    asked = {(row.client, row.model) for row in measures if row.asked and not row.reason}
    return sorted(asked - {(one.client, one.model) for one in judgements if one.noticed})


def _judge_one(row: Membership, thresholds: Thresholds, count: int) -> Judgement:
    if row.reason or row.excess is None:
        return Judgement(row.client, row.model, row.attack, "not measured")
    audited, reference = row.figures["unlearned"], row.figures["retrained"]
    corrected, by_reference = (widened(one.auc, count, thresholds.error, bounds=(0, 1)) for one in (audited, reference))
    excess = widened(row.excess, count, thresholds.error, bounds=(-1, 1))
    above = corrected.low > 0.5 and excess.low > 0
    below = corrected.high < 0.5 and excess.high < 0
    reading: Reading = "undecided"
    if audited.distinguishability.high <= thresholds.distinguishability:
        reading = "within"
    elif above or below:
        reading = "told apart"
    fair = by_reference.low <= 0.5 <= by_reference.high
    noticed = False
    if (raw := row.figures.get("raw")) is not None:
        remembered = widened(raw.auc, count, thresholds.error, bounds=(0, 1)).low > 0.5
        noticed = remembered and raw.distinguishability.high > thresholds.distinguishability
    return Judgement(row.client, row.model, row.attack, reading, corrected, excess, fair, noticed)
