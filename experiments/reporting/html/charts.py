"""Charts as inline SVG, drawn by matplotlib: figures with their intervals, and curves.

    groups = [Group("none", (Dot("collusion", "36 % (34–38)", trr, base=0.1),))]
    svg = dot_plot(groups, identity="f1-trr", title="Triples rebuilt", description="...", axis="{:g}".format, stem=False)

Texts stay texts, which screen readers and searches find; colours are those of the page's style sheet, light or dark; marks and
dashes tell apart what colours do. Each chart has a title and a description; the page puts the figures themselves beside it.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fkgsec.estimate import Estimate

WIDTH = 400  # user units; one is about a pixel on a phone, and at most 1.2 on a wide screen
MARGIN = 8
MARKS = "oDs^"  # told apart without their colours
DASHES = (
    "",
    (3, 1.5),
    (1, 1.5),
    (4, 1.5, 1, 1.5),
    (2, 1),
    (0.5, 1),
    (6, 1.5),
    (2, 2, 0.5, 2),
)  # later lines begin again
CHARACTER, BOLD_CHARACTER = 6.4, 7.8  # width of one in the small type, on the safe side
COLOURS = ("#c2410c", "#0072b2", "#00805c", "#8f3f84", "#6b5400", "#15191d", "#4a5fc1", "#a3244c")
INK, SOFT, GRID = "#151a1d", "#4b545d", "#cfd5db"
VARIABLES = {colour: f"c{number}" for number, colour in enumerate(COLOURS)} | {INK: "ink", SOFT: "soft", GRID: "line"}
VARIABLES["#000000"] = "ink"
_LABEL, _LANE, _GAP, _AXIS = 16, 15, 7, 20  # heights


@dataclass(frozen=True)
class Dot:
    """One measured figure in a dot plot.

    Attributes:
        label, text: at the left and at the right above the lane; the text is the figure in full. Without a label the text
            stands beside the group's.
        figure: with its interval, where low and high differ from it.
        base: what is reached without embeddings; None where there is no such figure.
        mark: which of the `MARKS`, and its colour.
    """

    label: str
    text: str
    figure: Estimate
    base: float | None = None
    mark: int = 0


@dataclass(frozen=True)
class Group:
    """The figures of one run; `note` stands where there is none."""

    label: str
    dots: tuple[Dot, ...]
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A curve: its points by x, and the place of the one that was kept (None: none was)."""

    label: str
    points: tuple[tuple[float, float], ...]
    kept: int | None = None


def dot_plot(
    groups: Sequence[Group], *, identity: str, title: str, description: str, axis: Callable[[float], str], stem: bool
) -> Markup:
    """A lane for each figure: a mark, a line for its interval, an upright bar for the base.

    Args:
        identity: unique in the page. axis: a number as the axis writes it. stem: draw a line from zero, for amounts.
    """
    dots = [dot for group in groups for dot in group.dots]
    top = max((end for dot in dots for end in (dot.figure.value, dot.figure.high, dot.base or 0.0)), default=0.0)
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, top or 1.0)
    labels = sum(1 + bool(group.note) + sum(bool(dot.label) for dot in group.dots) for group in groups)
    height = _LABEL * labels + _LANE * len(dots) + _GAP * len(groups)
    figure = Figure(figsize=(WIDTH / 72, (height + _AXIS) / 72), dpi=72)
    axes = _bare(figure, (MARGIN, _AXIS, WIDTH - 2 * MARGIN, height))
    axes.set(xlim=(0, ticks[-1]), ylim=(height, 0), yticks=[])
    _ticks(axes, ticks, axis)
    axes.vlines(ticks, 0, height, GRID, lw=1, gid=".grid")
    y = 0.0
    for group in groups:
        y += _LABEL
        beside = group.dots[0].text if group.dots and not group.dots[0].label else ""
        _text(axes, y, _cut(group.label, beside, BOLD_CHARACTER), INK, bold=True)
        if group.note:
            y += _LABEL
            _text(axes, y, group.note, SOFT)
        for dot in group.dots:
            if dot.label:
                y += _LABEL
                _text(axes, y, _cut(dot.label, dot.text, CHARACTER), SOFT)
            _text(axes, y, dot.text, INK, right=True)
            _draw_dot(axes, dot, y + _LANE / 2, stem=stem)
            y += _LANE
        y += _GAP
    return _svg(figure, identity, title, description)


def _draw_dot(axes: Axes, dot: Dot, y: float, *, stem: bool) -> None:
    figure, colour, marker = dot.figure, COLOURS[dot.mark % len(MARKS)], MARKS[dot.mark % len(MARKS)]
    if stem:
        axes.hlines(y, 0, figure.value, colour, lw=5, alpha=0.45, gid=".stem")
    if dot.base is not None:
        axes.vlines(dot.base, y - 7, y + 7, INK, lw=3, gid=".base")
    if figure.high > figure.low:
        axes.hlines(y, figure.low, figure.high, INK, lw=1.5, gid=".interval")
        axes.vlines([figure.low, figure.high], y - 4, y + 4, INK, lw=1.5)
    axes.plot([figure.value], [y], marker, ms=8, color=colour, mew=0, gid=".mark")


def line_plot(
    lines: Sequence[Line],
    *,
    identity: str,
    title: str,
    description: str,
    x_label: str,
    y_label: str,
    logarithmic: bool = False,
) -> Markup:
    """Curves over one x axis, the kept point of each marked; the legend stands below, a row for each.

    Args:
        logarithmic: the x axis; then every x is above zero.
    """
    xs, ys = ([point[part] for line in lines for point in line.points] for part in (0, 1))
    legend = 18 * len(lines) + 4
    figure = Figure(figsize=(WIDTH / 72, (262 + legend) / 72), dpi=72)
    axes = _bare(figure, (46, legend + 40, WIDTH - 60, 200))
    y_ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(0, max(ys, default=0.0) or 1.0)
    axes.set_ylim(0, y_ticks[-1])
    axes.set_yticks(y_ticks, [f"{tick:g}" for tick in y_ticks], color=SOFT, fontsize=11)
    axes.grid(axis="y", color=GRID, lw=1)
    if logarithmic:
        axes.set_xscale("log")
        axes.minorticks_off()
        x_ticks = _log_ticks(min(xs), max(xs))
    else:
        x_ticks = MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]).tick_values(0, max([*xs, 1]))
    axes.set_xlim(x_ticks[0], x_ticks[-1])
    axes.set_xticks(x_ticks, [f"{tick:g}" for tick in x_ticks], color=SOFT, fontsize=11)
    axes.tick_params(axis="x", pad=7)  # clear of the lowest label at the left
    below = _bare(figure, (MARGIN, 0, WIDTH - 2 * MARGIN, legend))
    below.set(xlim=(0, WIDTH - 2 * MARGIN), ylim=(legend, 0), xticks=[], yticks=[])
    for number, line in enumerate(lines):
        dashes = DASHES[number % len(DASHES)]
        style = {"color": COLOURS[number % len(COLOURS)], "ls": (0, dashes) if dashes else "-", "lw": 2.25}
        mark = {"marker": MARKS[number % len(MARKS)], "ms": 8, "mew": 0}
        axes.plot(*zip(*line.points, strict=True), **style, gid=".curve")
        if line.kept is not None:
            axes.plot(*line.points[line.kept], **style, **mark, gid=".mark")
        row = 18 * number + 9
        below.plot([0, 17, 34], [row] * 3, **style, **mark, markevery=[1])
        _text(below, row + 8, _cut(line.label, " " * 7, CHARACTER), INK, x=42 / (WIDTH - 2 * MARGIN))
    figure.text(MARGIN / WIDTH, 1 - 14 / (262 + legend), y_label, color=SOFT, fontsize=12)
    figure.text(0.5, (legend + 6) / (262 + legend), x_label, color=SOFT, fontsize=12, ha="center")
    return _svg(figure, identity, title, description)


def _log_ticks(low: float, high: float) -> list[float]:
    """Ticks that enclose both: 1, 2 and 5 times powers of ten, or powers alone where there are many.

    >>> _log_ticks(6, 45), _log_ticks(0.07, 19)
    ([5.0, 10.0, 20.0, 50.0], [0.01, 0.1, 1.0, 10.0, 100.0])
    """
    factors = (1, 2, 5) if high < 30 * low else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 2)
    ticks = [float(f"{factor}e{power}") for power in powers for factor in factors]
    first = max(place for place, tick in enumerate(ticks) if tick <= low)
    last = next(place for place, tick in enumerate(ticks) if tick >= high and place > first)
    return ticks[first : last + 1]


def _bare(figure: Figure, box: tuple[float, float, float, float]) -> Axes:
    """Axes at these pixels (left, bottom, width, height) without frame or marks of ticks."""
    width, height = (72 * inches for inches in figure.get_size_inches())
    axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
    axes.set_frame_on(False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    return axes


def _ticks(axes: Axes, ticks: Sequence[float], axis: Callable[[float], str]) -> None:
    """Labels of the x axis, none of which stands out at the sides."""
    axes.set_xticks(ticks, [axis(round(tick, 12)) for tick in ticks], color=SOFT, fontsize=11)
    first, *_, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")


def _text(
    axes: Axes, y: float, content: str, colour: str, *, x: float = 0.0, right: bool = False, bold: bool = False
) -> None:
    """A line of text above `y`; nothing in it is taken for mathematics."""
    shown = re.sub(
        r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\N{REPLACEMENT CHARACTER}", content
    )  # no XML holds these
    axes.text(
        1.0 if right else x, y - 4, shown, color=colour, fontsize=12, ha="right" if right else "left",
        fontweight="bold" if bold else "normal", transform=axes.get_yaxis_transform(), parse_math=False,
    )  # fmt: skip


def _cut(label: str, beside: str, character: float) -> str:
    """A label, cut where it would run into the text at the end of its line; the table beside the chart has it whole."""
    most = max(1, int((WIDTH - 3 * MARGIN - CHARACTER * len(beside)) / character))
    return label if len(label) <= most else label[: most - 1] + "…"


def _svg(figure: Figure, identity: str, title: str, description: str) -> Markup:
    """The figure as an element of a page: its `gid`s are classes, its colours the page's variables, its fonts the page's."""
    figure.patch.set_visible(False)
    content = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": identity}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's own fonts write it
        figure.savefig(content, format="svg", metadata={"Date": None})
    drawn = ElementTree.fromstring(content.getvalue())
    names = {"title": title, "desc": description}
    labelled = " ".join(f"{identity}-{name}" for name in names)
    svg = ElementTree.Element("svg", {"viewBox": drawn.attrib["viewBox"], "role": "img", "aria-labelledby": labelled})
    for name, text in names.items():
        ElementTree.SubElement(svg, name, {"id": f"{identity}-{name}"}).text = text
    svg.extend(part for part in drawn if part.tag.endswith("}g"))
    for element in svg.iter():
        element.tag = element.tag.rpartition("}")[2]
        found = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        found.pop("clip-path", None)  # marks at the edge stand whole
        if found.get("transform", "").startswith("rotate(-0"):
            del found["transform"]
        if "style" in found:
            plain = re.sub(r"font-family: [^;]*(; )?", "", found["style"])
            found["style"] = re.sub(r"#[0-9a-f]{6}", lambda colour: f"var(--{VARIABLES[colour[0]]})", plain)
        if element.tag == "g" and (name := found.pop("id", "")).startswith("."):
            found["class"] = name[1:]
        element.attrib.clear()
        element.attrib.update(found)
        element.tail = None
    return Markup(ElementTree.tostring(svg, encoding="unicode", short_empty_elements=False))
