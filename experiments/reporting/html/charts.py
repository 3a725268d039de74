"""Charts of the report page: the pictures of `fkgsec plot` as inline SVG, each with a table of its figures.

charts = (*comparison_charts("f1", runs), *convergence_charts("f1", runs))

Texts stay text, so that screen readers and searches find them. Colors follow the page's style sheet, light or dark. Each
chart has a title and a description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure as Picture

from fkgsec.attacks.view import ALL
from fkgsec.experiments.reporting import pictures
from fkgsec.experiments.reporting.frames import figure_frame, over_all
from fkgsec.experiments.reporting.items import Run
from fkgsec.experiments.reporting.matrix import Matrix, sheet
from fkgsec.experiments.reporting.membership import curves
from fkgsec.experiments.reporting.sheets import Column, Sheet, count
from fkgsec.experiments.reporting.tables import runs_sheet
from fkgsec.experiments.tasks.task import task_of

MOST_CHARTS = 4
_RATES = (0.01, 0.001)
# Color of matplotlib to CSS variable of the page, so that one SVG serves both color schemes.
_VARIABLES = dict(zip(map(str.lower, pictures.COLOURS), ("c1", "c0", "c2", "c4", "c6", "c3", "soft"), strict=True)) | {
    "#ffffff": "ground", "#cccccc": "line", "#b0b0b0": "line",
}  # fmt: skip
# Characters that XML 1.0 forbids, even escaped.
_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class Chart(NamedTuple):
    """A chart and the table of its figures."""

    title: str
    svg: Markup
    table: Sheet


def _chart(identity: str, title: str, figure: Picture, table: Sheet) -> Chart:
    about = f"{title}: {count(len(table.rows), 'row')}. A table with the figures follows."
    return Chart(title, svg(figure, identity, title, about), replace(table, title=f"Figures of the chart: {title}"))


def comparison_charts(identity: str, runs: Sequence[Run]) -> Iterator[Chart]:
    """Draw the first figures of attacks, utility, bytes and seconds by run.

    Args:
        identity: prefix of element IDs, unique in the page.
        runs: runs of one task.
    """
    records = {run.name: run.record for run in runs}
    frame = figure_frame({name: record.figures for name, record in records.items()}, over_all)
    names = pictures.named(records)
    utility = runs_sheet(records)
    for number, (title, draw) in enumerate(pictures.panels(names, MOST_CHARTS).items()):
        figure = Picture(figsize=(5.6, 1.4 + 0.6 * len(names)), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_yticks(list(range(len(names)))[::-1], list(names), fontsize=8)
        pictures.legend(figure)
        attack, _, metric = title.partition(".")
        rows = frame.loc[(frame["attack"] == attack) & (frame["metric"] == metric)]
        heads = {"run": "run", "place": "threat model", "label": "metric", "value": "figure", "baseline": "base"}
        table = Sheet.of("", rows, heads) if metric else utility
        yield _chart(f"{identity}-panel{number}", title, figure, table)


def convergence_charts(identity: str, runs: Sequence[Run]) -> Iterator[Chart]:
    """Draw validation by round and by bytes; nothing if no run was validated.

    Args:
        identity: prefix of element IDs, unique in the page.
        runs: runs of one task.
    """
    figure, task = pictures.convergence(runs, narrow=True), task_of(runs[0].record.spec)
    if figure is None:
        return
    label = f"validation {task.label(task.metric)}"
    title = f"{label[0].upper()}{label[1:]} by round and by bytes"
    frame = pictures.validations({run.name: run.record for run in runs})
    heads = {
        "run": "run", "round": Column("round", "number"), "bytes": Column("MiB until then", "MiB"),
        "valid": Column(label, "value"),
    }  # fmt: skip
    notes = [f"{run.name}: nothing was validated." for run in runs if run.name not in set(frame["run"])]
    yield _chart(f"{identity}-rounds", title, figure, Sheet.of("", frame, heads, notes=notes))


def roc_charts(identity: str, runs: Sequence[Run]) -> Iterator[Chart]:
    """Draw the ROC curves of each run with candidates, by threat model.

    Args:
        identity: prefix of element IDs, unique in the page.
        runs: any runs; the tables show the curves over all victims.
    """
    for number, run in enumerate(runs):
        figure = pictures.roc([run], narrow=True)
        if figure is None or run.candidates is None:
            continue
        title = f"{run.name}: training triples found, by the share of false alarms (ROC)"
        columns = (
            *(Column("threat model"), Column("way"), Column("AUC", "value")),
            *(Column(f"found at {100 * rate:g} %", "value") for rate in _RATES),
            Column("never-seen triples", "count"),
        )
        rows = tuple(
            (curve.place, curve.by, curve.auc, *(curve.detected_at(rate) for rate in _RATES), curve.num_controls)
            for curve in curves(run.candidates)
            if curve.victim == ALL
        )
        note = "Statistic with the highest AUC. Intervals, baselines and other statistics are listed with the other attacks."
        yield _chart(f"{identity}-roc-{number}", title, figure, Sheet("", columns, rows, notes=(note,)))


def matrix_chart(identity: str, table: Matrix) -> Chart:
    """Draw the heat map of adversaries by run.

    Args:
        identity: prefix of element IDs, unique in the page.
        table: adversaries by run.
    """
    shown = sheet(table)
    return _chart(f"{identity}-matrix", shown.title, pictures.matrix_figure(table), shown)


def svg(figure: Picture, identity: str, title: str, description: str) -> Markup:
    """Return a figure as an element of a page, with the page's colors and fonts.

    Args:
        identity: prefix of element IDs, unique in the page.
        title: accessible name.
        description: accessible description.
    """
    # The page's ground shows through.
    for part in (figure.patch, *(axes.patch for axes in figure.axes)):
        part.set_visible(False)
    # Keep text as text instead of outlines.
    with rc_context({"svg.fonttype": "none"}):
        content = _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", pictures.saved(figure, "svg", salt=identity).decode())
    drawn = ElementTree.fromstring(content)
    names = {"title": title, "desc": description}
    labelled = " ".join(f"{identity}-{name}" for name in names)
    element_svg = ElementTree.Element(
        "svg", {"viewBox": drawn.attrib["viewBox"], "role": "img", "aria-labelledby": labelled}
    )
    for name, text in names.items():
        ElementTree.SubElement(element_svg, name, {"id": f"{identity}-{name}"}).text = _NOT_XML.sub(
            "\N{REPLACEMENT CHARACTER}", text
        )
    # Keep matplotlib's groups; drop its metadata and style sheet.
    element_svg.extend(part for part in drawn if part.tag.endswith("}g"))
    for element in element_svg.iter():
        # Inline SVG in HTML has no namespace prefixes.
        element.tag = element.tag.rpartition("}")[2]
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        # Do not cut marks at the edge.
        attributes.pop("clip-path", None)
        # IDs of groups repeat in every picture.
        if element.tag == "g":
            attributes.pop("id", None)
        if "style" in attributes:
            plain = re.sub(r"font-family: [^;]*(; )?", "", attributes["style"])
            attributes["style"] = re.sub(
                r"#[0-9a-f]{6}", lambda colour: f"var(--{_VARIABLES.get(colour[0], 'ink')})", plain
            )
        element.attrib.clear()
        element.attrib.update(attributes)
        element.tail = None
    return Markup(ElementTree.tostring(element_svg, encoding="unicode", short_empty_elements=False))
