"""Membership on the report page: ROC curves of each run, and the triples at greatest risk.

charts = roc_charts("f1", runs)
sheets = risk_sheets(runs)                               # with the victims' own data: left out with --no-examples
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attacks.view import ALL
from experiments.reporting.html.charts import Line, line_plot
from experiments.reporting.html.model import Chart, Run
from experiments.reporting.html.notation import count
from experiments.reporting.membership import RISK_FILE, Curve, curves, risk_table
from experiments.reporting.sheets import Column, Sheet

MOST_POINTS, MOST_TRIPLES = 160, 20
_RATES = (0.01, 0.001)


def roc_charts(identity: str, runs: Sequence[Run]) -> tuple[Chart, ...]:
    """A chart for each run of which candidates are there: the curve over all victims, by threat model."""
    return tuple(
        _chart(f"{identity}-roc-{number}", run, [one for one in curves(run.candidates) if one.victim == ALL])
        for number, run in enumerate(runs)
        if run.candidates is not None and len(run.candidates)
    )


def _chart(identity: str, run: Run, made: Sequence[Curve]) -> Chart:
    title = f"{run.name}: training triples found, by the share of false alarms (ROC)"
    about = f"{count(len(made), 'curve')} over all victims, and that of chance. A table with the figures follows."
    least = min(0.5 / one.num_controls for one in made)
    spread = np.geomspace(least, 1, 24).tolist()
    lines = [Line(f"{one.place}, {one.by}", _points(one, least)) for one in made]
    svg = line_plot(
        [*lines, Line("chance", tuple(zip(spread, spread, strict=True)))],
        identity=identity,
        title=title,
        description=f"{title}: {about}",
        x_label="false alarms, logarithmic",
        y_label="found",
        logarithmic=True,
    )
    heads = (
        *(Column("threat model"), Column("way"), Column("AUC", "exact")),
        *(Column(f"found at {100 * rate:g} %", "share") for rate in _RATES),
        Column("never-seen triples", "count"),
    )
    rows = tuple(
        (one.place, one.by, one.auc, *(_found(one, rate) for rate in _RATES), one.num_controls) for one in made
    )
    notes = (
        "Of the way that is strongest by AUC; intervals, baselines and every other way stand with the other attacks.",
    )
    return Chart(title, svg, Sheet(f"Figures of the chart: {title}", heads, rows, notes=notes))


def _points(curve: Curve, least: float) -> tuple[tuple[float, float], ...]:
    """Points of a curve, few enough to draw, from the smallest share that the axis has."""
    alarms = np.maximum(curve.false_alarms, least)
    chosen = np.unique(np.searchsorted(alarms, np.geomspace(least, 1, MOST_POINTS), side="right") - 1)
    return tuple(zip(alarms[chosen].tolist(), curve.found[chosen].tolist(), strict=True))


def _found(curve: Curve, rate: float) -> float | None:
    """The share found at no more than this share of false alarms; None where there are too few controls."""
    if rate * curve.num_controls < 1 - 1e-9:
        return None
    return float(curve.found[curve.false_alarms <= rate + 1e-12].max())


def risk_sheets(runs: Sequence[Run]) -> tuple[Sheet, ...]:
    """For each run the training triples that are found at the fewest false alarms."""
    heads = {
        "victim": "victim", "head": "head", "relation": "relation", "tail": "tail", "threat_model": "threat model", "by": "way",
        "false_alarms": Column("false alarms", "share"),
    }  # fmt: skip
    sheets = []
    for run in runs:
        if run.candidates is None or not len(run.candidates):
            continue
        table = risk_table(run.candidates)
        found = table.loc[table["trained"]].sort_values("false_alarms", kind="stable")
        first = found.drop_duplicates(["victim", "head", "relation", "tail"]).head(MOST_TRIPLES)
        title = f"{run.name}: training triples at greatest risk, by the fewest false alarms at which one is found"
        notes = (f"The first {len(first)} of {len(found):,}; {RISK_FILE} in the run's folder has all.",)
        sheets.append(Sheet.of(title, first, heads, notes=notes))
    return tuple(sheets)
