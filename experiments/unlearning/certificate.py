"""The certificate of an unlearning, one page: what was asked, what was measured, what follows.

Terminal, Markdown and HTML write the same sheets.
"""

from __future__ import annotations

from collections.abc import Sequence

from fkgsec.attacks.forgetting.evaluation import ROLES, Forgetting
from fkgsec.attacks.forgetting.paired import Sensitivity
from fkgsec.attacks.forgetting.relearning import RELEARN_LEVEL
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.pages import render_page
from fkgsec.experiments.reporting.sheets import Column, Sheet, interval, markdown_lines, markdown_text
from fkgsec.experiments.unlearning.unlearn import UNLEARNED_FILE
from fkgsec.experiments.unlearning.verification import Verification

UNMEASURED = "cannot be measured"
DID_NOT_ASK = "*: did not ask; (others): all of these together."


def _sheet(title: str, heads: Sequence[str], rows: Sequence[tuple[str, ...]], note: str) -> Sheet:
    return Sheet(title, tuple(map(Column, heads)), tuple(rows), notes=(note,))


def sheets(verification: Verification, *, wide: bool = True) -> list[Sheet]:
    """Return a table for each kind of figure that was measured; `wide`: also the one that does not fit a terminal."""
    forgetting = verification.forgetting
    made = [
        _share_sheet(verification),
        _tests_sheet(verification),
        _test_mrr_sheet(verification),
        _membership_sheet(verification),
        *([_low_fpr_sheet(forgetting)] if wide else []),
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
        f"Run {unlearning.identity[:12]}, without the triples {unlearning.forget_hash[:12]}"
        + (f"; {UNLEARNED_FILE} has sha256 {digest}." if (digest := verification.unlearned_sha256) else "."),
        *(["The forget set is the request as whoever asked gave it."] if verification.request_given else []),
        f"Unlearning took {unlearning.seconds:.1f} s"
        + ("." if reference is None else f", re-training {reference.seconds:.1f} s."),
        f"Audited: {counts}. Shadow federations: {verification.num_shadows}.",
        *_audit_lines(verification),
    ]


def _audit_lines(verification: Verification) -> list[str]:
    """How the audit was made, for records that say so."""
    options, evidence = verification.options, verification.evidence
    if options is None:
        return []
    controls = "the clients' test triples" if verification.escrow is None else f"escrow {verification.escrow[:12]}"
    return [
        f"Never-seen triples from {controls}; audit seed {verification.seed}"
        + (", given." if options.audit_seed is not None else ", drawn when the audit began."),
        f"Trained by the audit: {0 if evidence is None else evidence.num_references} references without the forget set, "
        f"{verification.num_shadows} shadows with half of it, {options.plants} with a known share left in.",
    ]


def to_markdown(verification: Verification) -> str:
    """Return the certificate in Markdown."""
    verdict = verification.verdict
    lines = [f"# Unlearning: {verdict.outcome}", "", *(f"* {markdown_text(line)}" for line in verdict.reasons), ""]
    lines += [*(f"* {markdown_text(line)}" for line in (*asked_lines(verification), *_all_remarks(verification))), ""]
    for sheet in sheets(verification):
        lines += [f"## {sheet.title}", "", *markdown_lines(sheet), "", *sheet.notes, ""]
    return "\n".join(lines)


def to_html(verification: Verification, *, back: str = "") -> str:
    """The certificate as one page without scripts; every text is escaped. `back`: an address that it links to first."""
    return render_page(
        "certificate.html.j2",
        verdict=verification.verdict,
        back=back,
        asked=asked_lines(verification),
        remarks=_all_remarks(verification),
        sheets=sheets(verification),
        schema=verification.schema,
        version=verification.environment.versions.get("fkgsec", ""),
    )


def _all_remarks(verification: Verification) -> list[str]:
    return [
        *verification.assumptions,
        *verification.remarks,
        *(f"{note[0].upper()}{note[1:]}." for note in verification.forgetting.notes),
    ]


def _range(figure: Estimate | None) -> str:
    return "" if figure is None else interval(figure)


def _who(client: str, asked: bool, model: str) -> str:
    return f"{client} {model}" if asked else f"{client} {model}*"


def _share_sheet(verification: Verification) -> Sheet:
    evidence = verification.evidence
    rows = []
    for row in () if evidence is None else evidence.models:
        who = _who(row.client, row.asked, row.model)
        if not row.reading:
            rows.append((who, UNMEASURED, *[""] * 2, row.reason or "no memory to measure it by", *[""] * 4))
            continue
        planted = "; ".join(f"{one.share:.0%} left in: {_range(one.estimate) or UNMEASURED}" for one in row.planted)
        rows.append(
            (
                who,
                _range(row.share) or UNMEASURED,
                *_sensitivity_cells(row.at_random if row.asked else None),
                row.reading,
                planted,
                _range(row.hidden) or UNMEASURED,
                *_sensitivity_cells(row.hiding if row.asked else None),
            )
        )
    return _sheet(
        "How much of the forget set is still remembered?",
        (
            "model",
            "share",
            "told apart from",
            "re-training passes from",
            "read from",
            "planted, and its measured share",
            "if others were lowered",
            "hidden, told apart from",
            "hidden, re-training passes from",
        ),
        rows,
        "Share of the forget set with 95 % interval: 0 is what re-training remembers, 1 what training on all of it does; below "
        f"0, triples were pushed down. Tolerated: {verification.thresholds.share:.0%}. {UNMEASURED}: the interval has no upper "
        "end below 100 %, or nothing shows a memory to measure by. told apart from: the smallest planted share from which on 19 "
        "of 20 mixtures of re-trained and trained models are told apart from honest re-training. re-training passes from: the "
        "smallest tolerance at which the audit's own re-trainings pass. planted: models that were trained with a share left in. "
        "if others were lowered: what can be remembered in full at most if all other triples were lowered to pay for it, "
        "re-training's own scatter included. hidden: the same for weaker memory that leaves means and distributions as they "
        f"were. {DID_NOT_ASK}",
    )


def _sensitivity_cells(sensitivity: Sensitivity | None) -> tuple[str, str]:
    """Cells of `told_apart_from` and `honest_passes_from`; empty where nothing was measured."""
    if sensitivity is None:
        return "", ""
    told_apart_from, passes_from = sensitivity.told_apart_from, sensitivity.honest_passes_from
    return (
        "no share" if told_apart_from is None else f"{told_apart_from:.0%}",
        "no tolerance" if passes_from is None else f"{max(0.0, passes_from):.1%}",
    )


def _tests_sheet(verification: Verification) -> Sheet:
    evidence = verification.evidence
    count = verification.verdict.num_measures + verification.verdict.num_tests
    level = verification.thresholds.error / max(1, count)
    return _sheet(
        "Forgotten triples beside re-training, each paired with itself",
        ("model", "test", "unlearned minus re-trained", "p", "reading"),
        [
            (
                _who(row.client, row.asked, row.model),
                test.name,
                _range(test.difference),
                f"{test.p_value:.2g}",
                "as re-trained" if test.p_value >= level else "higher" if test.difference.value > 0 else "lower",
            )
            for row in (() if evidence is None else evidence.models)
            for test in row.tests
        ],
        f"Higher or lower: told apart from the audit's own re-trainings at p below {level:.2g}, which is corrected for "
        f"{verification.verdict.num_measures} measures and {verification.verdict.num_tests} tests. score: how plausible the "
        "triple is held; likelihood: minus its training loss; reciprocal rank: its mean is the forget-set MRR; relation's rank: "
        "the same among the relations between its ends; spread: how far scores lie from re-training's either way; upper tail: "
        "whether some lie further above the mean difference; order: how far ranks among the forgotten triples lie from "
        "re-training's; relearned: MRR after a few steps of training on them; distance: "
        f"Kolmogorov-Smirnov's, beside that of re-trainings to each other. {DID_NOT_ASK}",
    )


def _test_mrr_sheet(verification: Verification) -> Sheet:
    evidence = verification.evidence
    return _sheet(
        "Test MRR beside re-training",
        ("client", "model", "re-trained", "unlearned minus re-trained", "p"),
        [
            (row.client, row.model, f"{row.retrained:.3f}", _range(row.difference), f"{row.p_value:.2g}")
            for row in (() if evidence is None else evidence.test)
        ],
        "Above re-training: trained on what it is tested on, or on what it was to forget. Far below: damaged, and a damaged "
        "model hides what it remembers. Either is an alarm that keeps a run from being called forgotten.",
    )


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
    return _sheet(
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
    return _sheet(
        "The most conspicuous ones: forgotten triples found at a low false positive rate",
        ("model", "attack", "FPR", "as", *ROLES),
        rows,
        "TPR with 95 % intervals; chance gives the FPR. 1 % takes 100 controls, 0.1 % takes 1,000; with fewer it is left out. "
        f"{DID_NOT_ASK}",
    )


def _quality_sheet(forgetting: Forgetting) -> Sheet:
    return _sheet(
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
    return _sheet(
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
    return _sheet(
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
    return _sheet(
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
    return _sheet(
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
