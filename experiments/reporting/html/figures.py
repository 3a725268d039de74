"""Charts of the report page, each with the table of its figures.

charts = (*figure_charts("f1", runs), *cost_charts("f1", runs))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from fkgsec import estimate
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.frames import figure_frame, over_all
from fkgsec.experiments.reporting.html.charts import Dot, Group, Line, dot_plot, line_plot
from fkgsec.experiments.reporting.items import Run
from fkgsec.experiments.reporting.membership import Curve, curves
from fkgsec.experiments.reporting.sheets import Column, Kind, Sheet, count, interval, mebibytes, rows_of
from fkgsec.experiments.tasks.task import task_of

MOST_CHARTS, MOST_POINTS = 4, 160
_RATES = (0.01, 0.001)


@dataclass(frozen=True)
class Chart:
    """A chart and the table of its figures."""

    title: str
    svg: Markup
    table: Sheet


def figure_charts(identity: str, runs: Sequence[Run]) -> Iterator[Chart]:
    """Draw the first figures of attacks that are never below zero, by run and threat model."""
    frame = figure_frame({run.name: run.record.figures for run in runs}, over_all)
    frame = frame.loc[frame["reason"].isna()]
    keys = [key for key, rows in frame.groupby(["attack", "metric"], sort=False) if (rows["low"] >= 0).all()]
    for number, (attack, metric) in enumerate(keys[:MOST_CHARTS]):
        rows = frame.loc[(frame["attack"] == attack) & (frame["metric"] == metric)]
        groups = [
            Group(
                run.name,
                tuple(map(_dot, shown)),
                "" if shown else "not measured" if run.record.attacked else "not attacked",
            )
            for run in runs
            for shown in [rows_of(rows.loc[rows["run"] == run.name])]
        ]
        yield dot_chart(f"{identity}-attack{number}", f"{attack}.{metric}", "upright bar: baseline", groups, "value")


def _dot(row: dict[str, Any]) -> Dot:
    figure = Estimate(row["value"], row["low"], row["high"], 1, "")
    label = ", ".join(filter(None, (row["place"], row["variant"])))
    return Dot(label, interval(figure), figure, row["baseline"], list(THREAT_MODELS).index(row["threat_model"]))


def cost_charts(identity: str, runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Draw utility and bytes of each run."""
    utility, size, task = [], [], task_of(runs[0].record.spec)
    label = task.label(task.metric)
    for run in runs:
        reached, num_bytes = run.record.utility[task.metric], run.record.bytes.up + run.record.bytes.down
        dots = (Dot("", interval(reached), reached),) if reached.n else ()
        utility.append(Group(run.name, dots, "" if reached.n else f"no test {task.items}"))
        size.append(Group(run.name, (Dot("", f"{mebibytes(num_bytes)} MiB", estimate.exact(num_bytes / 2**20, 1)),)))
    return (
        dot_chart(f"{identity}-{task.metric}", f"Utility (test {label})", "higher is better", utility, label),
        dot_chart(f"{identity}-bytes", "MiB exchanged", "both ways, an exact count", size, "MiB"),
    )


def dot_chart(identity: str, title: str, hint: str, groups: list[Group], unit: str) -> Chart:
    """Draw a dot plot with the table of its figures; `unit` is `MiB` or the name of the score."""
    svg = dot_plot(
        groups,
        identity=identity,
        title=title,
        description=f"{title}, {hint}: {count(len(groups), 'run')}. Lines are 95 % intervals. A table with the figures follows.",
        axis="{:g}".format,
        stem=unit == "MiB",
    )
    kind: Kind = "MiB" if unit == "MiB" else "figure"
    rows = tuple(
        (group.label, dot.label, dot.figure.value * 2**20 if unit == "MiB" else dot.figure, dot.base)
        for group in groups
        for dot in group.dots
    )
    columns = (Column("run"), Column("attack"), Column(unit, kind), Column("base", "value"))
    chosen = range(4) if any(row[1] for row in rows) else (0, 2)
    notes = tuple(f"{group.label}: {group.note}." for group in groups if group.note)
    cells = tuple(tuple(row[place] for place in chosen) for row in rows)
    table = Sheet(f"Figures of the chart: {title}", tuple(columns[place] for place in chosen), cells, notes=notes)
    return Chart(f"{title}; {hint}", svg, table)


def convergence_charts(identity: str, runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Draw validation by round and by bytes; nothing when nothing was validated."""
    task = task_of(runs[0].record.spec)
    label = f"validation {task.label(task.metric)}"
    by_round, by_bytes, rows, notes = [], [], [], []
    for run in runs:
        points, kept, size = [], None, 0
        for entry in run.record.rounds:
            size += entry.bytes_up + entry.bytes_down
            if entry.valid is None:
                continue
            kept = len(points) if entry.round == run.record.best_round else kept
            points.append((entry.round, size / 2**20, entry.valid))
            rows.append((run.name, entry.round, size, entry.valid))
        if not points:
            notes.append(f"{run.name}: nothing was validated.")
            continue
        by_round.append(Line(run.name, tuple((number, mrr) for number, _, mrr in points), kept))
        if points[0][1]:
            by_bytes.append(Line(run.name, tuple((amount, mrr) for _, amount, mrr in points), kept))
        else:
            notes.append(f"{run.name}: exchanges nothing, so that it has no curve by bytes.")
    columns = (
        Column("run"),
        Column("round", "number"),
        Column("MiB until then", "MiB"),
        Column(label, "value"),
    )
    charts = []
    for kind, lines, below in (
        ("round", by_round, "round"),
        ("bytes", by_bytes, "MiB exchanged until then, logarithmic"),
    ):
        if not lines:
            continue
        title = f"{label[0].upper()}{label[1:]} by {kind}"
        svg = line_plot(
            lines,
            identity=f"{identity}-by-{kind}",
            title=title,
            description=f"{title}: {count(len(lines), 'curve')}. A mark is the kept round. A table with the figures follows.",
            x_label=below,
            y_label=label,
            logarithmic=kind == "bytes",
        )
        table = Sheet(f"Figures of the chart: {title}", columns, tuple(rows), notes=tuple(notes))
        charts.append(Chart(title, svg, table))
    return tuple(charts)


def roc_charts(identity: str, runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Draw for each run with candidates the curve over all victims, by threat model."""
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
        *(Column("threat model"), Column("way"), Column("AUC", "value")),
        *(Column(f"found at {100 * rate:g} %", "value") for rate in _RATES),
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
