"""Picture and table of defenses for the README, from the committed matrix of all attacks.

    python -m scripts.readme results/defenses.png     # prints the table in Markdown and draws it

Figures are means over the seeds of `results/attacks/matrix/hospitals-seed*.json`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fkgsec.experiments.reporting.matrix import matrix
from fkgsec.experiments.reporting.pictures import ORANGE, saved
from fkgsec.experiments.reporting.sheets import Column, Sheet, markdown_lines, short
from fkgsec.experiments.runs.compare import read_comparison

RECORDS = sorted((Path(__file__).parents[1] / "results/attacks/matrix").glob("hospitals-seed*.json"))
DEFENSES = {
    "none": "none",
    "robust:rule=clip": "robust:\nrule=clip",
    "psu,secagg": "psu,\nsecagg",
    "psu,secagg,suppress:t=2": "… with\nsuppress:t=2",
    "psu,secagg,dp:unit=row,clip=0.1,epsilon=10": "… with dp,\nepsilon 10",
}
"""Cases of the records, and their headings."""
QUESTIONS = {
    "update-recovery.cosine\nserver": ("A client's update, read by the server", "cosine"),
    "edges-rounds.auc\nserver": ("Which entities a client links, by the server", "AUC"),
    "membership.auc\nserver+triples": ("Was a triple trained on? By the server", "AUC"),
    "membership.auc\nmodels": ("Was a triple trained on? From its model", "AUC"),
    "client-guess.found\nclient": ("Entity names that a client guesses", "share"),
    "client-poison.hits@10\nclient": ("False triples planted by one client", "Hits@10"),
}
"""Rows of the matrix, with their descriptions in the README."""


def figures() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values and baselines `[questions, defenses]` and the test MRR `[defenses]`, as means over seeds."""
    values, baselines, utilities = [], [], []
    for path in RECORDS:
        comparison = read_comparison(path)
        # Records are committed; None would mean a damaged checkout.
        assert comparison is not None
        seed = matrix({case.name: case.record for case in comparison.cases if case.name in DEFENSES})
        cells = [[cell for cell in seed.rows[label] if not isinstance(cell, str)] for label in QUESTIONS]
        values.append([[figure.estimate.value for figure in row] for row in cells])
        baselines.append([[figure.baseline.value for figure in row if figure.baseline] for row in cells])
        utilities.append([utility.value for utility in seed.utility])
    return np.mean(values, axis=0), np.mean(baselines, axis=0), np.mean(utilities, axis=0)


def table() -> list[str]:
    """Return the README's table, one question per row: value and, in brackets, its baseline."""
    values, baselines, utilities = figures()
    heads = ("question (metric)", *(f"`{defense}`" for defense in DEFENSES))
    rows = [
        (f"{question} ({metric})", *map("{} ({})".format, map(short, row), map(short, bases)))
        for (question, metric), row, bases in zip(QUESTIONS.values(), values, baselines, strict=True)
    ]
    rows.append(("Utility of the shared model (test MRR)", *map(short, utilities)))
    return markdown_lines(Sheet("", tuple(map(Column, heads)), tuple(rows)))


def draw() -> bytes:
    """Draw the table as a heat map (PNG): white at the baseline, orange at 1."""
    values, baselines, utilities = figures()
    colors = LinearSegmentedColormap.from_list("level", ["#ffffff", ORANGE])
    figure = Figure(figsize=(7.6, 3.7))
    axes = figure.add_axes((0.36, 0.1, 0.63, 0.74))
    for column, heading in enumerate(DEFENSES.values()):
        axes.text(column + 0.5, -0.12, heading, ha="center", va="bottom", fontsize=8.5, fontweight="bold")
        axes.text(column + 0.5, 6.5, short(utilities[column]), ha="center", va="center", fontsize=9)
    for row, ((question, metric), level, bases) in enumerate(zip(QUESTIONS.values(), values, baselines, strict=True)):
        axes.text(-0.08, row + 0.5, f"{question}\n({metric})", ha="right", va="center", fontsize=8)
        for column, (value, base) in enumerate(zip(level, bases, strict=True)):
            # Distance from the baseline, relative to the largest possible one.
            share = max(0.0, (value - base) / (1 - base))
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colors(share), edgecolor="white", lw=2))
            axes.text(column + 0.5, row + 0.5, f"{short(value)} ({short(base)})", ha="center", va="center", fontsize=9)
    axes.text(-0.08, 6.5, "Utility (test MRR)", ha="right", va="center", fontsize=8)
    axes.set(xlim=(0, len(DEFENSES)), ylim=(7, 0))
    axes.set_axis_off()
    figure.text(
        0.01, 0.02, "Measured (baseline). White: no better than the baseline. Orange: the most possible.", fontsize=8
    )
    return saved(figure)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(draw())
    print("\n".join(table()))
