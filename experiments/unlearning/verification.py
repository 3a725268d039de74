"""The verdict on an unlearning, its record, and the certificate: what was asked, what was measured, what follows.

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

What the verdict does not cover is reported beside it: low false positive rates, distances, relearning, reconstruction, and what
the request itself told the server. No finding of these turns a verdict, since none has a null that a threshold could sit on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import torch
from scipy.special import ndtri

from attacks.audits import audited_triples
from attacks.forgetting import RELEARN_LEVEL, ROLES, Forgetting, Membership, Results, measure_forgetting
from experiments.pages import render_page
from experiments.progress import Observe, unobserved
from experiments.record import Environment, describe_environment
from experiments.run import load_run
from experiments.unlearning.unlearn import NO_TRACE, Unlearned, Unlearning, kept_shadow, read_unlearned
from fkgsec.errors import RunError, SpecError
from fkgsec.estimate import Estimate
from fkgsec.federation.loop import run_identity

SCHEMA = "fkgsec/verification/1"
DID_NOT_ASK = "*: did not ask; (others): all of these together."
MIN_SHADOWS = 4  # each triple twice in, twice out: with fewer there is no spread to take a likelihood from

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


class Verification(msgspec.Struct, frozen=True):
    """The record of a verification, `verification.json`.

    Attributes:
        unlearning, reference: what made the audited and the re-trained run.
        num_shadows, seed: of the shadow federations; the seed also draws controls.
        remarks: what a reader must know beside the figures.
    """

    schema: str
    unlearning: Unlearning
    reference: Unlearning
    thresholds: Thresholds
    num_shadows: int
    seed: int
    verdict: Verdict
    forgetting: Forgetting
    remarks: list[str]
    environment: Environment


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


def verify(
    run: Path,
    against: Path,
    raw: Path | None,
    thresholds: Thresholds,
    *,
    num_shadows: int = MIN_SHADOWS,
    relearn_steps: int = 20,
    seed: int = 0,
    observe: Observe = unobserved,
) -> Verification:
    """Measure and judge an unlearned run. Shadow federations are kept in the reference's folder, for all that is held against it.

    Args:
        run, against: folders of `fkgsec unlearn`; `against` by the method retrain, of the same run and forget file.
        raw: the run that was unlearned; None leaves out what compares with it.
        num_shadows: 0 leaves out the attacks that need shadows; else even, at least `MIN_SHADOWS`.
        observe: gives each shadow federation its observer.

    Raises:
        RunError: folders that do not belong together. SpecError: an option out of range.
    """
    if num_shadows and (num_shadows < MIN_SHADOWS or num_shadows % 2):
        raise SpecError(f"shadows must be 0 or an even number of at least {MIN_SHADOWS}; got {num_shadows}")
    if relearn_steps < 0:
        raise SpecError(f"relearn_steps must be at least 0; got {relearn_steps}")
    candidate, reference = read_unlearned(run), read_unlearned(against)
    _check_together(run, candidate, against, reference)
    results: Results = {"retrained": reference.result, "unlearned": candidate.result}
    if raw is not None:
        raw_result = load_run(raw)[1]
        if run_identity(raw_result.graph, raw_result.options) != candidate.unlearning.identity:
            raise RunError(f"{raw}: is not the run that {run} was made from")
        results = {"raw": raw_result, **results}
    audits = audited_triples(candidate.graph, candidate.result.graph, candidate.forget, seed)
    if not any(len(audit.members) for audit in audits):
        num_shadows = 0
    shadows = []
    for number in range(num_shadows):
        with observe(candidate.result.options, f"{number + 1} of {num_shadows}") as observer:
            shadows.append(kept_shadow(against, candidate, audits, number, seed, observer))
    forgetting = measure_forgetting(
        results,
        candidate.graph,
        candidate.forget,
        audits,
        shadows=shadows,
        seed=seed,
        relearn_steps=relearn_steps,
    )
    return Verification(
        schema=SCHEMA,
        unlearning=candidate.unlearning,
        reference=reference.unlearning,
        thresholds=thresholds,
        num_shadows=num_shadows,
        seed=seed,
        verdict=judge(forgetting.membership, thresholds),
        forgetting=forgetting,
        remarks=_remarks(results, candidate, num_shadows),
        environment=describe_environment(candidate.result),
    )


def _check_together(run: Path, candidate: Unlearned, against: Path, reference: Unlearned) -> None:
    if reference.unlearning.options.method != "retrain":
        raise RunError(
            f"{against}: was made by method {reference.unlearning.options.method}; the reference must be made by retrain"
        )
    if reference.unlearning.identity != candidate.unlearning.identity:
        raise RunError(f"{against}: comes from another run than {run}")
    if reference.unlearning.forget_hash != candidate.unlearning.forget_hash:
        raise RunError(f"{against}: was made with another forget file than {run}")


def _remarks(results: Results, candidate: Unlearned, num_shadows: int) -> list[str]:
    remarks = []

    def same(role: Literal["raw", "retrained"]) -> bool:
        return all(
            torch.equal(one.entities, other.entities) and torch.equal(one.relations, other.relations)
            for kind in ("tables", "private")
            for one, other in zip(getattr(results["unlearned"], kind), getattr(results[role], kind), strict=True)
        )

    if "raw" in results and same("raw"):
        remarks.append("Not one embedding of the audited run differs from the raw run's.")
    if same("retrained"):
        remarks.append("The audited run is the reference itself, so it exceeds it by 0 everywhere.")
    method = candidate.unlearning.options.method
    if not num_shadows:
        remarks.append("Without shadow federations the attack knows the loss alone: the weakest of those there are.")
    elif method in NO_TRACE:
        remarks.append(
            f"Shadows were not unlearnt: by its own account {method} leaves no trace that depends on the triples."
        )
    return remarks


def encode(verification: Verification) -> bytes:
    """The record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(verification), indent=2) + b"\n"


# The certificate: one page, as terminal tables, Markdown and HTML, all from the same sheets.


class Sheet(NamedTuple):
    """A table of texts, and what its figures mean; `wide` ones do not fit a terminal."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str
    wide: bool = False


def sheets(verification: Verification) -> list[Sheet]:
    """Everything measured, a table for each kind of figure; those without a row are left out."""
    forgetting = verification.forgetting
    made = [
        _membership_sheet(verification),
        _low_fpr_sheet(forgetting),
        _quality_sheet(forgetting),
        _distance_sheet(forgetting),
        _relearning_sheet(forgetting),
        _update_sheet(forgetting),
        _rebuilt_sheet(forgetting),
    ]
    return [sheet for sheet in made if sheet.rows]


def asked_lines(verification: Verification) -> list[str]:
    """What was asked, how it was done and what it cost, a line each."""
    unlearning, reference = verification.unlearning, verification.reference
    asked = ", ".join(f"{name}: {count:,} triples" for name, count in unlearning.asked.items())
    counts = "; ".join(
        f"{name}: {of_them:,} of {all_of_them:,} matched with {controls:,} never-seen ones"
        for name, (all_of_them, of_them, controls) in verification.forgetting.counts.items()
    )
    return [
        f"Asked to be forgotten: {asked}. Method: {unlearning.options.method}.",
        f"Run {unlearning.identity[:12]}, without the triples {unlearning.forget_hash[:12]}.",
        f"Unlearning took {unlearning.seconds:.1f} s, re-training {reference.seconds:.1f} s.",
        f"Audited: {counts}. Shadow federations: {verification.num_shadows}.",
    ]


def to_markdown(verification: Verification) -> str:
    """The certificate in Markdown."""

    def cell(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")

    verdict = verification.verdict
    lines = [f"# Unlearning: {verdict.outcome}", "", *(f"* {cell(line)}" for line in verdict.reasons), ""]
    lines += [*(f"* {cell(line)}" for line in (*asked_lines(verification), *_all_remarks(verification))), ""]
    for sheet in sheets(verification):
        lines += [f"## {sheet.title}", "", "| " + " | ".join(sheet.columns) + " |", "|---" * len(sheet.columns) + "|"]
        lines += ["| " + " | ".join(map(cell, row)) + " |" for row in sheet.rows]
        lines += ["", sheet.note, ""]
    return "\n".join(lines)


def to_html(verification: Verification) -> str:
    """The certificate as one page without scripts; every text is escaped."""
    return render_page(
        "certificate.html.j2",
        verdict=verification.verdict,
        asked=asked_lines(verification),
        remarks=_all_remarks(verification),
        sheets=sheets(verification),
        schema=verification.schema,
        version=verification.environment.versions.get("fkgsec", ""),
    )


def _all_remarks(verification: Verification) -> list[str]:
    return [*verification.remarks, *(f"{note[0].upper()}{note[1:]}." for note in verification.forgetting.notes)]


def _range(figure: Estimate | None) -> str:
    """Value and interval, without the zeros before the point: .710 .669-.754."""
    if figure is None:
        return ""
    value, low, high = (f"{one:.3f}".replace("0.", ".", 1) for one in (figure.value, figure.low, figure.high))
    return f"{value} {low}\u2013{high}"


def _who(client: str, asked: bool, model: str) -> str:
    return f"{client} {model}" if asked else f"{client} {model}*"


def _membership_sheet(verification: Verification) -> Sheet:
    rows = []
    for row, one in zip(verification.forgetting.membership, verification.verdict.judgements, strict=True):
        if row.reason:
            rows.append((_who(row.client, row.asked, row.model), "all", *[""] * 4, f"not measured: {row.reason}"))
            continue
        direction = row.figures["unlearned"].direction
        rows.append(
            (
                _who(row.client, row.asked, row.model),
                row.attack,
                *(_range(row.figures[role].auc) if role in row.figures else "" for role in ROLES),
                _range(row.excess),
                f"{one.reading}{f', {direction}' if direction else ''}{'' if one.fair else ', controls not fair'}",
            )
        )
    thresholds = verification.thresholds
    return Sheet(
        "Membership: are forgotten triples told from never-seen ones?",
        ("model", "attack", *ROLES, "excess", "reading"),
        rows,
        "AUC with 95 % intervals; 0.5 is a coin. Below 0.5 the triples give themselves away by ranking too low (over-forgotten). "
        f"within: max(AUC, 1 - AUC) ends below {thresholds.distinguishability:.3g}. told apart: differs from 0.5 and from the "
        f"re-trained model, corrected for {verification.verdict.num_measures} measures at {thresholds.error:g} over all. excess: "
        f"unlearned minus re-trained. {DID_NOT_ASK}",
    )


def _low_fpr_sheet(forgetting: Forgetting) -> Sheet:
    rows = []
    for row in forgetting.membership:
        if row.reason or not row.decisive:
            continue
        for place, one in enumerate(row.figures["unlearned"].low_fpr):
            if one.tpr is not None:
                by_role = (
                    _range(row.figures[role].low_fpr[place].tpr) if role in row.figures else "" for role in ROLES
                )
                rows.append(
                    (_who(row.client, row.asked, row.model), row.attack, f"{one.max_fpr:.1%}", one.direction, *by_role)
                )
    return Sheet(
        "The most conspicuous ones: forgotten triples found at a low false positive rate",
        ("model", "attack", "FPR", "as", *ROLES),
        rows,
        "TPR with 95 % intervals; chance gives the FPR. 1 % takes 100 controls, 0.1 % takes 1,000; with fewer it is left out. "
        f"{DID_NOT_ASK}",
        wide=True,
    )


def _quality_sheet(forgetting: Forgetting) -> Sheet:
    return Sheet(
        "Link prediction on forgotten and test triples",
        ("model", "triples", "figure", *ROLES),
        [
            (
                _who(row.client, row.asked, row.model),
                row.triples,
                name,
                *(_range(row.figures[role][name]) if role in row.figures else "" for role in ROLES),
            )
            for row in forgetting.quality
            if next(iter(row.figures.values()))["mrr"].n
            for name in ("hits@1", "mrr")
        ],
        "Filtered, the same candidates for all. On forgotten triples the re-trained model's figure is what forgetting looks "
        f"like: below it is no success but a trace. On test triples higher is better. {DID_NOT_ASK}",
    )


def _distance_sheet(forgetting: Forgetting) -> Sheet:
    return Sheet(
        "Distance of the forgotten triples' scores to the re-trained model's",
        ("model", "raw", "unlearned", "p"),
        [
            (
                _who(row.client, row.asked, row.model),
                _range(row.figures["raw"].distance) if "raw" in row.figures else "",
                _range(row.figures["unlearned"].distance),
                f"{row.figures['unlearned'].p_value:.3f}",
            )
            for row in forgetting.distances
        ],
        "Kolmogorov-Smirnov, 0 to 1. Two re-trained models differ by their seed alone, too, so a small p proves no memory. "
        f"{DID_NOT_ASK}",
    )


def _relearning_sheet(forgetting: Forgetting) -> Sheet:
    return Sheet(
        "Relearning: MRR on the forgotten triples, before and after steps of training on them",
        ("model", *ROLES, "steps to the raw level"),
        [
            (
                f"{row.client} {row.model}",
                *(
                    f"{row.curves[role][0]:.3f} to {row.curves[role][-1]:.3f}" if role in row.curves else ""
                    for role in ROLES
                ),
                "" if row.time is None else row.time.reason or f"{row.time.unlearned}, re-trained {row.time.retrained}",
            )
            for row in forgetting.relearning
        ],
        f"One run of steps each, from the same batches. The level is {RELEARN_LEVEL:.0%} of the raw model's. Far fewer steps "
        "than the re-trained model takes: something was still there.",
    )


def _update_sheet(forgetting: Forgetting) -> Sheet:
    roles = ("retrained", "unlearned")
    return Sheet(
        "What the request itself tells the server: do the forgotten triples' entities move most?",
        ("client", *roles),
        [
            (
                row.client,
                *(_range(row.figures[role].auc) if role in row.figures else row.reasons[role] for role in roles),
            )
            for row in forgetting.updates
        ],
        "AUC over entities of the client against others of like degree, by how far their uploaded rows moved. It is not part of "
        "the verdict: a model may have forgotten well while the way there told the server what it was asked to forget.",
    )


def _rebuilt_sheet(forgetting: Forgetting) -> Sheet:
    return Sheet(
        "Reconstruction of the forgotten triples from what crossed",
        ("victim", "threat model", *ROLES),
        [
            (
                row.client,
                row.threat_model,
                *(_range(row.figures[role]) if role in row.figures else "" for role in ROLES),
            )
            for row in forgetting.rebuilt
        ],
        "Share rebuilt when the linked pairs are given; what is rebuilt after re-training follows from the rest of the graph.",
    )
