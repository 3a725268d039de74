"""The certificate of an unlearning, one page: the verdict, the request, what would have been noticed, and what is not covered.

to_markdown(verification), to_markdown(verification, annex=True)       # the page, and the annex with every table
for sheet in sheets(verification):                  # terminal, Markdown and HTML write the same ones
    print("\\n".join(markdown_lines(sheet)))
quality_sheet(verifications), audit_sheet(verifications)       # several audits side by side
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fkgsec.attacks.forgetting.evaluation import ROLES
from fkgsec.attacks.forgetting.paired import Sensitivity
from fkgsec.attacks.forgetting.relearning import RELEARN_LEVEL
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.pages import render_page
from fkgsec.experiments.reporting.sheets import Column, Sheet, interval, markdown_lines, markdown_text
from fkgsec.experiments.unlearning.unlearn import UNLEARNED_FILE
from fkgsec.experiments.unlearning.verification import UNCHANGED, Verification

UNMEASURED = "cannot be measured"
NOT_MEASURED = "not measured"
MOST_REASONS = 8  # on the first page, and in the terminal
TERMS = [
    "Measure: a membership attack on one model. It compares forgotten triples with triples that nobody trained on.",
    "Test: a comparison of forgotten triples with the audit's own re-trainings. Its figure is the audited model minus "
    "re-training, in the unit printed after it. p is the chance of at least such a difference under honest re-training.",
    "Told apart: distinguished. The difference is larger than honest re-training explains at the stated error.",
    "Likelihood: minus the training loss of a triple, in nats. MRR: mean reciprocal rank, from 0 to 1.",
]
DID_NOT_ASK = "*: clients that requested nothing; (others): all of these together."
_ROLES = tuple(Column(role, "figure") for role in ROLES)


def _sheet(title: str, heads: Sequence[str | Column], rows: Iterable[Sequence[Any]], note: str) -> Sheet:
    columns = (head if isinstance(head, Column) else Column(head) for head in heads)
    return Sheet(title, tuple(columns), tuple(map(tuple, rows)), notes=(note,))


def _by_role(figures: Mapping[str, Any], read: Callable[[Any], Any] = lambda figure: figure) -> list[Any]:
    """Return a cell for each role; None where it was not measured."""
    return [read(figures[role]) if role in figures else None for role in ROLES]


def asked_lines(verification: Verification) -> list[str]:
    """State the request, how it was done and audited, and what it cost, a line each."""
    unlearning, reference, options = verification.unlearning, verification.reference, verification.options
    asked = ", ".join(f"{name}: {count:,} triples" for name, count in unlearning.asked.items())
    counts = "; ".join(
        f"{name}: {matched:,} of {forgotten:,} forgotten triples matched with never-seen triples ({controls:,} of them)"
        for name, (forgotten, matched, controls) in verification.forgetting.counts.items()
    )
    digest, cost = verification.unlearned_sha256, f"Unlearning took {unlearning.seconds:.1f} s"
    auditor = (options and options.auditor) or "an auditor who is not named (--auditor)"
    lines = [
        f"Request: forget {asked}. Method: {unlearning.options.method}.",
        f"Run {unlearning.identity[:12]}; digest of the forgotten triples {unlearning.forget_hash[:12]}"
        + (f"; {UNLEARNED_FILE} has sha256 {digest}." if digest else "."),
        *(
            f"Request of {name}: sha256 {digest} of its sorted lines."
            for name, digest in verification.request_sha256.items()
        ),
        *(["The forget set of the run equals the file that --forget named."] if verification.request_given else []),
        *([f"Audited on {verification.audited_on} by {auditor}."] if verification.audited_on else []),
        f"{cost}." if reference is None else f"{cost}, re-training {reference.seconds:.1f} s.",
        f"Audited: {counts}. Shadow federations: {verification.num_shadows}.",
    ]
    if options is None:
        return lines
    controls = "the clients' test triples" if verification.escrow is None else f"escrow {verification.escrow[:12]}"
    drawn = "given" if options.audit_seed is not None else "drawn when the audit began"
    if options.audit_seed is None and verification.escrow is not None:
        drawn = "which follows from the escrow, the request and the audited file"
    num_references = 0 if verification.evidence is None else verification.evidence.num_references
    return [
        *lines,
        f"Never-seen triples from {controls}; audit seed {verification.seed}, {drawn}.",
        "Trained by the audit: the same re-training once more."
        if verification.replayed
        else f"Trained by the audit: {num_references} references without the forget set, "
        f"{verification.num_shadows} shadows with half of it, {options.plants} with a known share left in.",
    ]


def noticed_lines(verification: Verification) -> list[str]:
    """State what the audit would have noticed, a line for each model of a client that asked."""
    lines = []
    for row in verification.evidence.models if verification.evidence else ():
        # The certificate is about the clients that asked.
        if not row.asked:
            continue
        at_random, passes = _told_and_passed(row.at_random)
        hidden, who = _told_and_passed(row.hiding)[0], f"{row.client} {row.model}"
        lines += [
            f"{who}: the smallest share that this audit notices is {at_random or UNMEASURED} if it was kept at random, and "
            f"{hidden or UNMEASURED} if all other triples were lowered to hide it.",
            f"{who}: honest re-training passes where the tolerated share is at least {passes or UNMEASURED}; here it is "
            f"{verification.thresholds.share:.1%}.",
        ]
    if verification.replayed:
        return ["Any difference of any embedding from a re-training without the forget set, with the run's own seed."]
    return lines or ["Nothing: the audit trained no references of its own."]


def sections(verification: Verification, *, annex: bool = False) -> list[tuple[str, list[str]]]:
    """Return title and lines of each section of the certificate, or of its annex."""
    verdict = verification.verdict
    if annex:
        notes = [f"{note[0].upper()}{note[1:]}." for note in verification.forgetting.notes]
        return [("All reasons", verdict.reasons), ("Remarks", [*verification.remarks, *notes])]
    # The certificate fits a page, so the reasons beyond these are in the annex.
    shown = verdict.reasons[:MOST_REASONS]
    more = len(verdict.reasons) - len(shown)
    # That nothing changed is the first thing to read, so it heads the reasons.
    unchanged = [line for line in verification.remarks if line == UNCHANGED]
    return [
        ("Why", unchanged + shown + [f"And {more} more in the annex."] * bool(more)),
        ("Terms", [] if verification.replayed else TERMS),
        ("What was asked", asked_lines(verification)),
        ("What would have been noticed", noticed_lines(verification)),
        ("What is not covered", verification.assumptions),
    ]


def to_markdown(verification: Verification, *, annex: bool = False) -> str:
    """Return the certificate in Markdown, one page; or its `annex`, with every table."""
    outcome = verification.verdict.outcome
    lines = [f"# Unlearning: {outcome}{', annex' if annex else ''}", ""]
    for title, texts in sections(verification, annex=annex):
        lines += [f"## {title}", "", *(f"* {markdown_text(line)}" for line in texts), ""] if texts else []
    for sheet in sheets(verification) if annex else ():
        lines += [f"## {sheet.title}", "", *markdown_lines(sheet), "", *sheet.notes, ""]
    return "\n".join(lines)


def to_html(verification: Verification, *, annex: bool = False) -> str:
    """Return the certificate as one page without scripts, or its `annex`; every text is escaped."""
    return render_page(
        "certificate.html.j2",
        title=f"Unlearning: {verification.verdict.outcome}{', annex' if annex else ''}",
        sections=sections(verification, annex=annex),
        sheets=sheets(verification) if annex else [],
        schema=verification.schema,
        version=verification.environment.versions.get("fkgsec", ""),
    )


def sheets(verification: Verification, *, wide: bool = True) -> list[Sheet]:
    """Return a table for each kind of figure that was measured; `wide`: also the one that does not fit a terminal."""
    tables = [
        _share_sheet(verification),
        *_evidence_sheets(verification),
        _membership_sheet(verification),
        *([_low_fpr_sheet(verification)] if wide else []),
        *_other_sheets(verification),
    ]
    return [sheet for sheet in tables if sheet.rows]


def _who(row: Any) -> str:
    return f"{row.client} {row.model}" if row.asked else f"{row.client} {row.model}*"


def _share_sheet(verification: Verification) -> Sheet:
    rows = []
    level = 0.05 if verification.evidence is None else verification.evidence.level
    for row in verification.evidence.models if verification.evidence else ():
        if not row.reading:
            rows.append((_who(row), UNMEASURED, *[None] * 2, row.reason or "no memory to measure it by", *[None] * 4))
            continue
        planted = "; ".join(
            f"{plant.share:.0%} left in: {interval(plant.estimate) if plant.estimate else UNMEASURED}"
            for plant in row.planted
        )
        random, hiding = (_told_and_passed(one if row.asked else None) for one in (row.at_random, row.hiding))
        share, hidden = row.share or UNMEASURED, row.hidden or UNMEASURED
        rows.append((_who(row), share, *random, row.reading, planted, hidden, *hiding))
    return _sheet(
        "How much of the forget set is still remembered?",
        (
            "model", Column("share", "figure"), "told apart from", "re-training passes from", "read from",
            "planted, and its measured share", Column("if others were lowered", "figure"), "hidden, told apart from",
            "hidden, re-training passes from",
        ),
        rows,
        f"Share of the forget set with its {1 - level:.1%} interval: 0 is what re-training remembers, 1 what training on all of "
        f"it does; below 0, triples were pushed down. Tolerated: {verification.thresholds.share:.0%}. "
        f"{UNMEASURED}: the interval has no upper end below 100 %, or nothing shows a memory to measure by. "
        "told apart from: the smallest planted share from which on 19 "
        "of 20 mixtures of re-trained and trained models are told apart from honest re-training. re-training passes from: the "
        "smallest tolerance at which the audit's own re-trainings pass. planted: models that were trained with a share left in. "
        "if others were lowered: what can be remembered in full at most if all other triples were lowered to pay for it, "
        "re-training's own scatter included. hidden: the same for weaker memory that leaves means and distributions as they "
        f"were. {DID_NOT_ASK}",
    )  # fmt: skip


def _told_and_passed(sensitivity: Sensitivity | None) -> tuple[str | None, str | None]:
    """Return the cells of `told_apart_from` and `honest_passes_from`; None where nothing was measured."""
    if sensitivity is None:
        return None, None
    told_apart_from, passes_from = sensitivity.told_apart_from, sensitivity.honest_passes_from
    return (
        "none" if told_apart_from is None else f"{told_apart_from:.0%}",
        "none" if passes_from is None else f"{max(0.0, passes_from):.1%}",
    )


def _evidence_sheets(verification: Verification) -> list[Sheet]:
    """Return the paired tests on forgotten triples, and test MRR, beside the audit's re-trainings."""
    evidence, verdict = verification.evidence, verification.verdict
    if evidence is None:
        return []
    # Bonferroni over all measures and tests.
    level = verification.thresholds.error / max(1, verdict.num_measures + verdict.num_tests)
    difference = Column("unlearned minus re-trained", "figure")
    tests = []
    for row in evidence.models:
        for test in row.tests:
            reading = "as re-trained" if test.p_value >= level else "higher" if test.difference.value > 0 else "lower"
            tests.append((_who(row), test.name, test.difference, f"{test.p_value:.2g}", reading))
    return [
        _sheet(
            "Forgotten triples beside re-training, each paired with itself",
            ("model", "test", difference, "p", "reading"),
            tests,
            f"Higher or lower: told apart from the audit's own re-trainings at p below {level:.2g}, which is corrected for "
            f"{verdict.num_measures} measures and {verdict.num_tests} tests. score: how plausible the triple is held; "
            "likelihood: minus its training loss; reciprocal rank: its mean is the forget-set MRR; relation's rank: the same "
            "among the relations between its ends; spread: how far scores lie from re-training's either way; upper tail: "
            "whether some lie further above the mean difference; order: how far ranks among the forgotten triples lie from "
            "re-training's; relearned: MRR after a few steps of training on them; distance: Kolmogorov-Smirnov's, beside that of "
            f"re-trainings to each other. {DID_NOT_ASK}",
        ),
        _sheet(
            "Test MRR beside re-training",
            ("client", "model", "re-trained", difference, "p"),
            [
                (row.client, row.model, f"{row.retrained:.3f}", row.difference, f"{row.p_value:.2g}")
                for row in evidence.test
            ],
            "Above re-training: trained on what it is tested on, or on what it was to forget. Far below: damaged, and a damaged "
            "model hides what it remembers. Either is an alarm that keeps a run from being called forgotten.",
        ),
    ]


def _membership_sheet(verification: Verification) -> Sheet:
    rows, thresholds = [], verification.thresholds
    for row, judged in zip(verification.forgetting.membership, verification.verdict.judgements, strict=True):
        if row.reason:
            rows.append((_who(row), "all", *[None] * 4, f"not measured: {row.reason}"))
            continue
        direction, unfair = row.figures["unlearned"].direction, "" if judged.fair else "controls not fair"
        reading = ", ".join(filter(None, (judged.reading, direction, unfair)))
        rows.append((_who(row), row.attack, *_by_role(row.figures, lambda result: result.auc), row.excess, reading))
    return _sheet(
        "Membership: can forgotten triples be told apart from never-seen triples?",
        ("model", "attack", *_ROLES, Column("excess", "figure"), "reading"),
        rows,
        "AUC with 95% intervals; 0.5 is chance. Below 0.5, forgotten triples reveal themselves by ranking low (over-forgotten). "
        f"within: max(AUC, 1 - AUC) ends below {thresholds.distinguishability:.3g}. told apart: differs from 0.5 and from the "
        f"re-trained model, corrected for {verification.verdict.num_measures} measures at {thresholds.error:g} over all. excess: "
        f"unlearned minus re-trained. {DID_NOT_ASK}",
    )


def _low_fpr_sheet(verification: Verification) -> Sheet:
    rows = [
        (_who(row), row.attack, f"{one.max_fpr:.1%}", one.direction,
         *_by_role(row.figures, lambda result, place=place: result.low_fpr[place].tpr))
        for row in verification.forgetting.membership
        if row.decisive and not row.reason
        for place, one in enumerate(row.figures["unlearned"].low_fpr)
        if one.tpr is not None
    ]  # fmt: skip
    return _sheet(
        "Forgotten triples found at a low false positive rate",
        ("model", "attack", "FPR", "as", *_ROLES),
        rows,
        "TPR with 95% intervals; by chance, TPR equals FPR. An FPR of 1% needs 100 controls, 0.1% needs 1,000. "
        f"{DID_NOT_ASK}",
    )


def _other_sheets(verification: Verification) -> list[Sheet]:
    """Return what no verdict rests on: link prediction, distances, relearning, the request's traces, reconstruction."""
    forgetting = verification.forgetting
    quality = [
        (_who(row), row.triples, name, *_by_role(row.figures, lambda figures, name=name: figures[name]))
        for row in forgetting.quality
        if next(iter(row.figures.values()))["mrr"].n
        for name in ("hits@1", "mrr")
    ]
    distances = []
    for row in forgetting.distances:
        raw, unlearned = row.figures.get("raw"), row.figures["unlearned"]
        distances.append((_who(row), raw and raw.distance, unlearned.distance, f"{unlearned.p_value:.3f}"))
    relearning = []
    for row in forgetting.relearning:
        steps = row.time and (row.time.reason or f"{row.time.unlearned}, re-trained {row.time.retrained}")
        curves = _by_role(row.curves, lambda curve: f"{curve[0]:.3f} to {curve[-1]:.3f}")
        relearning.append((f"{row.client} {row.model}", *curves, steps))
    after = ("retrained", "unlearned")
    updates = [
        (row.client, *(row.figures[role].auc if role in row.figures else row.reasons[role] for role in after))
        for row in forgetting.updates
    ]
    rebuilt = [
        (row.client, row.threat_model, *(NOT_MEASURED if cell is None else cell for cell in _by_role(row.figures)))
        for row in forgetting.rebuilt
    ]
    return [
        _sheet(
            "Link prediction on forgotten and test triples",
            ("model", "triples", "figure", *_ROLES),
            quality,
            "Filtered, the same candidates for all. On forgotten triples, a forgetting model matches the re-trained one. "
            f"A lower figure is a trace, not a success. On test triples higher is better. {DID_NOT_ASK}",
        ),
        _sheet(
            "Distance of the forgotten triples' scores to the re-trained model's",
            ("model", Column("raw", "figure"), Column("unlearned", "figure"), "p"),
            distances,
            "Kolmogorov-Smirnov, 0 to 1. Two re-trained models also differ by their seed, so a small p does not prove memory. "
            f"{DID_NOT_ASK}",
        ),
        _sheet(
            "Relearning: MRR on the forgotten triples, before and after steps of training on them",
            ("model", *ROLES, "steps to the raw level"),
            relearning,
            f"One run of steps each, from the same batches. The level is {RELEARN_LEVEL:.0%} of the raw model's. Far fewer steps "
            "than the re-trained model takes: something was still there.",
        ),
        _sheet(
            "What the request itself tells the server: do the forgotten triples' entities move most?",
            ("client", *(Column(role, "figure") for role in after)),
            updates,
            "AUC over entities of the client against others of like degree, by how far their uploaded rows moved. It is not part "
            "of the verdict: a model may have forgotten well while the way there told the server what it was asked to forget.",
        ),
        _sheet(
            "Reconstruction of the forgotten triples from the training messages",
            ("victim", "threat model", *_ROLES),
            rebuilt,
            "Share rebuilt when the linked pairs are given. The rest of the graph tells what is rebuilt after re-training. "
            f"{NOT_MEASURED}: says nothing about safety; the remarks give the reason.",
        ),
    ]


# Several audits side by side.


def quality_sheet(verifications: Mapping[str, Verification]) -> Sheet:
    """Return Hits@1 and MRR on forget and test sets, averaged over the requesting clients, as fedlu.txt Tables 2 and 3."""
    cells = []
    for name, verification in verifications.items():
        rows = [row for row in verification.forgetting.quality if row.asked]
        for model, triples in dict.fromkeys((row.model, row.triples) for row in rows):
            figures = [row.figures for row in rows if (row.model, row.triples) == (model, triples)]
            for metric in ("hits@1", "mrr"):
                means = (
                    mean_of([by_role[role][metric] for by_role in figures]) if role in figures[0] else None
                    for role in ROLES
                )
                cells.append((name, model, triples, metric, *means))
    heads = map(Column, ("run", "model", "triples", "figure"))
    return Sheet("Link prediction after unlearning", (*heads, *_ROLES), tuple(cells))


def audit_sheet(verifications: Mapping[str, Verification]) -> Sheet:
    """Return each membership attack on each model of the requesting clients, with outcome and seconds."""
    cells = []
    for name, verification in verifications.items():
        cost = verification.unlearning.seconds, verification.reference and verification.reference.seconds
        rows = zip(verification.forgetting.membership, verification.verdict.judgements, strict=True)
        for row, judged in rows:
            if row.asked and not row.reason:
                aucs = _by_role(row.figures, lambda result: result.auc)
                of_model = (row.client, row.model, row.attack)
                cells.append((name, verification.verdict.outcome, *cost, *of_model, *aucs, judged.reading))
    seconds = (Column("seconds", "s"), Column("re-training", "s"))
    heads = map(Column, ("client", "model", "attack"))
    columns = (Column("run"), Column("outcome"), *seconds, *heads, *_ROLES, Column("reading"))
    return Sheet("Membership after unlearning", columns, tuple(cells))


def mean_of(figures: list[Estimate]) -> Estimate:
    """Average independent figures; each half of the interval is the root of the sum of squares of theirs, over their number.

    >>> str(mean_of([Estimate(0.2, 0.1, 0.3, 10, "a"), Estimate(0.4, 0.3, 0.5, 10, "a")]))
    '0.3000 [0.2293, 0.3707]'
    """
    value = math.fsum(figure.value for figure in figures) / len(figures)
    # Half width of a mean of k independent figures: sqrt(sum of squared half widths) / k.
    below, above = (
        math.sqrt(math.fsum((figure.value - end) ** 2 for figure, end in zip(figures, ends, strict=True)))
        / len(figures)
        for ends in ([figure.low for figure in figures], [figure.high for figure in figures])
    )
    n = sum(figure.n for figure in figures)
    return Estimate(value, value - below, value + above, n, f"mean of {len(figures)} clients")
