"""Markdown tables of verifications: the shape of fedlu.txt Tables 2 and 3, and what the papers did not measure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from attacks.forgetting.evaluation import ROLES
from experiments.runs.record import read_if_of
from experiments.unlearning.verification import SCHEMA, Verification
from fkgsec.estimate import Estimate


def read_verification(path: Path) -> Verification | None:
    """The verification in a file; None when the file is something else. Raises `RunError` when it cannot be read."""
    return read_if_of(path, SCHEMA, Verification)


def quality_lines(verifications: Mapping[str, Verification]) -> list[str]:
    """Hits@1 and MRR on forget and test sets, the mean over the clients that asked, as fedlu.txt Tables 2 and 3 have it."""
    lines = [
        "| run | model | triples | figure | " + " | ".join(ROLES) + " |",
        "|---|---|---|---|" + "---|" * len(ROLES),
    ]
    for name, made in verifications.items():
        rows = [row for row in made.forgetting.quality if row.asked]
        for model, triples in dict.fromkeys((row.model, row.triples) for row in rows):
            own = [row.figures for row in rows if (row.model, row.triples) == (model, triples)]
            for figure in ("hits@1", "mrr"):
                cells = [
                    _interval(mean_of([figures[role][figure] for figures in own])) if role in own[0] else ""
                    for role in ROLES
                ]
                lines.append(f"| {name} | {model} | {triples} | {figure} | " + " | ".join(cells) + " |")
    return lines


def audit_lines(verifications: Mapping[str, Verification]) -> list[str]:
    """A row for each membership attack on each model of the clients that asked; the outcome; seconds beside re-training's."""
    lines = [
        "| run | outcome | seconds | re-training | client | model | attack | " + " | ".join(ROLES) + " | reading |",
        "|---|---|---|---|---|---|---|" + "---|" * len(ROLES) + "---|",
    ]
    for name, made in verifications.items():
        for row, judged in zip(made.forgetting.membership, made.verdict.judgements, strict=True):
            if not row.asked or row.reason:
                continue
            cells = [
                name,
                made.verdict.outcome,
                f"{made.unlearning.seconds:.0f}",
                "" if made.reference is None else f"{made.reference.seconds:.0f}",
                row.client,
                row.model,
                row.attack,
                *(_interval(row.figures[role].auc) if role in row.figures else "" for role in ROLES),
                judged.reading,
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def mean_of(figures: list[Estimate]) -> Estimate:
    """The mean of independent figures; each half of its interval is the root of the sum of squares of theirs, over their number.

    >>> str(mean_of([Estimate(0.2, 0.1, 0.3, 10, "a"), Estimate(0.4, 0.3, 0.5, 10, "a")]))
    '0.3000 [0.2293, 0.3707]'
    """
    value = math.fsum(one.value for one in figures) / len(figures)
    below, above = (
        math.sqrt(math.fsum((one.value - end) ** 2 for one, end in zip(figures, ends, strict=True))) / len(figures)
        for ends in ([one.low for one in figures], [one.high for one in figures])
    )
    return Estimate(
        value, value - below, value + above, sum(one.n for one in figures), f"mean of {len(figures)} clients"
    )


def _interval(figure: Estimate) -> str:
    return f"{figure.value:.4f} [{figure.low:.4f}, {figure.high:.4f}]"
