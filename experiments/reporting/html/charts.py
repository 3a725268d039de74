"""Charts as inline SVG: figures with their intervals, and curves. Colours are classes that the page's style sheet fills in.

The trees are built with `xml.etree`, which escapes every text, so that a name from the data stays a name. Each chart has
a title and a description for readers who do not see it; the page puts the figures themselves beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from markupsafe import Markup

WIDTH = 400  # user units; one is about a pixel on a phone, and at most 1.2 on a wide screen
MARGIN = 8
NUM_MARKS = 4  # shapes, each with its colour
NUM_LINES = 8  # colours and dashes; later lines begin again
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 2", "12 3", "4 4 1 4")
CHARACTER = 6.4  # width of one in the chart's small type, on the safe side
BOLD_CHARACTER = 7.8  # of a group's label
_LABEL, _LANE, _GAP = 16, 15, 7  # heights in a dot plot


@dataclass(frozen=True)
class Dot:
    """One measured figure in a dot plot.

    Attributes:
        label, text: at the left and at the right above the lane; the text is the figure in full. Without a label the text
            stands beside the group's.
        value, low, high: the figure and its interval; without one, low = high = value.
        base: what is reached without embeddings; None where there is no such figure.
        mark: which of the `NUM_MARKS` shapes.
    """

    label: str
    text: str
    value: float
    low: float
    high: float
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
    ends = [end for dot in dots for end in (dot.value, dot.high, dot.base or 0.0)]
    ticks = linear_ticks(max(ends, default=0.0))

    def x(value: float) -> float:
        return MARGIN + 2 + (WIDTH - 2 * MARGIN - 4) * value / ticks[-1]

    labels = sum(1 + bool(group.note) + sum(bool(dot.label) for dot in group.dots) for group in groups)
    height = _LABEL * labels + _LANE * len(dots) + _GAP * len(groups)
    svg = _svg(identity, title, description, height + 20)
    for tick in ticks:
        _line(svg, x(tick), 0, x(tick), height, "grid")
        anchor = "start" if tick == ticks[0] else "end" if tick == ticks[-1] else "middle"
        _text(svg, x(tick), height + 14, axis(tick), "axis", anchor)
    y = 0.0
    for group in groups:
        y += _LABEL
        beside = group.dots[0].text if group.dots and not group.dots[0].label else ""
        _text(svg, MARGIN, y - 4, group.label, "group", room=_room(beside))
        if group.note:
            y += _LABEL
            _text(svg, MARGIN, y - 4, group.note, "muted")
        for dot in group.dots:
            if dot.label:
                y += _LABEL
                _text(svg, MARGIN, y - 4, dot.label, "muted", room=_room(dot.text))
            _text(svg, WIDTH - MARGIN, y - 4, dot.text, "figure", "end")
            middle = y + _LANE / 2
            style = f"mark-{dot.mark % NUM_MARKS}"
            if stem:
                _line(svg, x(0), middle, x(dot.value), middle, f"stem {style}")
            if dot.base is not None:
                _line(svg, x(dot.base), middle - 7, x(dot.base), middle + 7, "base")
            if dot.high > dot.low:
                _line(svg, x(dot.low), middle, x(dot.high), middle, "interval")
                for end in (dot.low, dot.high):
                    _line(svg, x(end), middle - 4, x(end), middle + 4, "interval")
            _mark(svg, x(dot.value), middle, dot.mark, style)
            y += _LANE
        y += _GAP
    return _markup(svg)


def _room(text: str) -> float:
    """What is left of a line for a label when this text stands at its end."""
    return WIDTH - 3 * MARGIN - CHARACTER * len(text)


def line_plot(
    lines: Sequence[Line],
    *,
    identity: str,
    title: str,
    description: str,
    x_label: str,
    y_label: str,
    x_axis: Callable[[float], str],
    logarithmic: bool = False,
) -> Markup:
    """Curves over one x axis, the kept point of each larger; the legend stands below, a row for each.

    Args:
        logarithmic: the x axis; then every x is above zero.
    """
    xs = [point[0] for line in lines for point in line.points]
    ys = [point[1] for line in lines for point in line.points]
    y_ticks = linear_ticks(max(ys, default=0.0))
    x_ticks = log_ticks(min(xs), max(xs)) if logarithmic and xs else linear_ticks(max(xs, default=1.0), whole=True)
    left, right, top, bottom = 46, WIDTH - 14, 22, 222

    def x(value: float) -> float:
        if logarithmic:
            first, last, value = math.log(x_ticks[0]), math.log(x_ticks[-1]), math.log(value)
        else:
            first, last = x_ticks[0], x_ticks[-1]
        return left + (right - left) * (value - first) / (last - first)

    def y(value: float) -> float:
        return bottom - (bottom - top) * value / y_ticks[-1]

    svg = _svg(identity, title, description, bottom + 40 + 18 * len(lines))
    _text(svg, MARGIN, 12, y_label, "muted")
    for tick in y_ticks:
        _line(svg, left, y(tick), right, y(tick), "grid")
        _text(svg, left - 5, y(tick) + 4, f"{tick:g}", "axis", "end")
    for tick in x_ticks:
        _line(svg, x(tick), bottom, x(tick), bottom + 4, "grid")
        _text(svg, x(tick), bottom + 16, x_axis(tick), "axis", "end" if tick == x_ticks[-1] else "middle")
    _text(svg, (left + right) / 2, bottom + 31, x_label, "muted", "middle")
    for number, line in enumerate(lines):
        style = f"line-{number % NUM_LINES}"
        dash = DASHES[number % NUM_LINES]
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line.points)
        _element(svg, "polyline", {"points": path, "class": f"curve {style}"} | _dash(dash))
        if line.kept is not None:
            a, b = line.points[line.kept]
            _mark(svg, x(a), y(b), number, style)
        row = bottom + 50 + 18 * number
        _element(
            svg,
            "polyline",
            {"points": f"{left},{row - 4} {left + 34},{row - 4}", "class": f"curve {style}"} | _dash(dash),
        )
        _mark(svg, left + 17, row - 4, number, style)
        _text(svg, left + 42, row, line.label, "label", room=right - left - 42)
    return _markup(svg)


def linear_ticks(top: float, *, whole: bool = False) -> list[float]:
    """Ticks from zero to at least `top` in steps of 1, 2 or 5 times a power of ten, five at most after zero.

    >>> linear_ticks(0.36)
    [0.0, 0.1, 0.2, 0.3, 0.4]
    >>> linear_ticks(3, whole=True)
    [0.0, 1.0, 2.0, 3.0]
    """
    top = top if top > 0 else 1.0
    power = math.floor(math.log10(top)) - 1
    steps = [factor * 10.0**exponent for exponent in (power, power + 1) for factor in (1, 2, 5)]
    step = next((step for step in steps if step * 5 >= top * (1 - 1e-9) and (not whole or step >= 1)), 1.0)
    return [round(step * place, 12) for place in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks that enclose both, above zero: ends of 1, 2 or 5 times a power of ten, between them such, or powers where many.

    >>> log_ticks(6, 45)
    [5.0, 10.0, 20.0, 50.0]
    >>> log_ticks(0.07, 19)
    [0.05, 0.1, 1.0, 10.0, 20.0]
    """
    exponents = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    ticks = [float(f"{factor}e{exponent}") for exponent in exponents for factor in (1, 2, 5)]
    first = max(place for place, tick in enumerate(ticks) if tick <= low)
    last = next(place for place, tick in enumerate(ticks) if tick >= high and place > first)
    if last - first <= 5:
        return ticks[first : last + 1]
    least = (ticks[last] / ticks[first]) ** 0.1  # a tenth of the axis is room for a label
    inner = [ticks[place] for place in range(first + 1, last) if place % 3 == 0]
    return [ticks[first], *(tick for tick in inner if ticks[first] * least <= tick <= ticks[last] / least), ticks[last]]


def _svg(identity: str, title: str, description: str, height: float) -> ElementTree.Element:
    names = {"title": title, "desc": description}
    svg = ElementTree.Element(
        "svg",
        {
            "viewBox": f"0 0 {WIDTH} {height:g}",
            "role": "img",
            "aria-labelledby": " ".join(f"{identity}-{name}" for name in names),
        },
    )
    for name, content in names.items():
        _element(svg, name, {"id": f"{identity}-{name}"}).text = content
    return svg


def _markup(svg: ElementTree.Element) -> Markup:
    return Markup(ElementTree.tostring(svg, encoding="unicode", short_empty_elements=False))


def _element(parent: ElementTree.Element, tag: str, attributes: dict[str, str]) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, attributes)


def _dash(dash: str) -> dict[str, str]:
    return {"stroke-dasharray": dash} if dash else {}


def _line(parent: ElementTree.Element, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    _element(parent, "line", {name: f"{end:.1f}" for name, end in ends.items()} | {"class": style})


def _text(
    parent: ElementTree.Element,
    x: float,
    y: float,
    content: str,
    style: str,
    anchor: str = "start",
    room: float = WIDTH - 2 * MARGIN,
) -> None:
    """A line of text, cut where it would leave its room; the table beside the chart has it whole."""
    most = max(1, int(room / (BOLD_CHARACTER if style == "group" else CHARACTER)))
    shown = content if len(content) <= most else content[: most - 1] + "…"
    attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "class": style}
    _element(parent, "text", attributes | ({} if anchor == "start" else {"text-anchor": anchor})).text = shown


def _mark(parent: ElementTree.Element, x: float, y: float, number: int, style: str) -> None:
    """Circle, diamond, square or triangle: told apart without colour."""
    corners = (
        (),
        ((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)),
        ((-4, -4), (4, -4), (4, 4), (-4, 4)),
        ((0, -5), (5, 4), (-5, 4)),
    )[number % NUM_MARKS]
    if not corners:
        _element(parent, "circle", {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "4.5", "class": f"mark {style}"})
        return
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    _element(parent, "polygon", {"points": path, "class": f"mark {style}"})
