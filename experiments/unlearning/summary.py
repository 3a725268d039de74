"""Tables of several verifications: the shape of fedlu.txt Tables 2 and 3, and what the papers did not measure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from fkgsec.attacks.forgetting.evaluation import ROLES
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.sheets import Column, Sheet
from fkgsec.experiments.runs.record import read_if_of
from fkgsec.experiments.unlearning.verification import SCHEMA, Verification

_ROLES = tuple(Column(role, "figure") for role in ROLES)


def read_verification(path: Path) -> Verification | None:
    """Read a verification; None when the file is something else. Raises `RunError` when it cannot be read."""
    return read_if_of(path, SCHEMA, Verification)


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
                aucs = (row.figures[role].auc if role in row.figures else None for role in ROLES)
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
    below, above = (
        math.sqrt(math.fsum((figure.value - end) ** 2 for figure, end in zip(figures, ends, strict=True)))
        / len(figures)
        for ends in ([figure.low for figure in figures], [figure.high for figure in figures])
    )
    n = sum(figure.n for figure in figures)
    return Estimate(value, value - below, value + above, n, f"mean of {len(figures)} clients")
