"""Results for pandas and for notebooks: columns of figures with their intervals, and tables in HTML whose texts are escaped.

    frame = tidy([{"metric": "mrr", **interval(figure)}], ["metric", *INTERVAL])
    html = block("FedE", ["3 clients"], heads=("metric", "figure"), rows=[("mrr", figure)])

A frame has a row for each figure; what was not measured is missing (NaN), never 0. Names of clients, entities and runs come from
outside: in HTML they are escaped, and so are control characters and what turns the direction of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from fkgsec.estimate import Estimate
from fkgsec.text import printable

if TYPE_CHECKING:
    import pandas as pd

INTERVAL = ("value", "low", "high", "n", "method")
"""Columns of a figure: the value, its 95 % interval, how many items it rests on, and how the interval was made."""

_NUMBERS = {"value", "low", "high", "baseline", "baseline_low", "baseline_high", "attainable", "advantage", "leak"}
_COUNTS = {"n", "round", "num_attacked"}
_NO_MATH = "tex2jax_ignore mathjax_ignore"  # a name such as $\href{javascript:...}$ is no formula to notebooks then
_MOST_ROWS = 40
_MOST_IN_CELL, _MOST_IN_LINE = 120, 1000  # characters


def interval(figure: Estimate | None) -> dict[str, Any]:
    """The columns of `INTERVAL`; all None without a figure, or where it rests on nothing.

    >>> from fkgsec.estimate import proportion
    >>> interval(proportion(1, 4))["n"], interval(proportion(0, 0))["value"]
    (4, None)
    """
    if figure is None or not figure.n:
        return dict.fromkeys(INTERVAL)
    return {name: getattr(figure, name) for name in INTERVAL}


def tidy(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """A frame with these columns, also where it has no row: figures are float64, counts Int64, flags bool, the others objects."""
    import pandas as pd  # which a machine that only trains need not have

    frame = pd.DataFrame(list(rows), columns=list(columns), dtype=object)
    for name in columns:
        if name in _NUMBERS:
            frame[name] = frame[name].astype("float64")
        elif name in _COUNTS:
            frame[name] = frame[name].astype("Int64")
        elif rows and all(isinstance(cell, bool) for cell in frame[name]):
            frame[name] = frame[name].astype(bool)
    return frame


def block(
    title: str, lines: Iterable[str] = (), *, heads: Sequence[str] = (), rows: Sequence[Sequence[Any]] = ()
) -> str:
    """A title, lines and a table as HTML; without styles of its own, so that it reads in light and dark.

    >>> block("<b>")
    '<div class="tex2jax_ignore mathjax_ignore"><strong>&lt;b&gt;</strong></div>'
    """
    parts = [f"<strong>{_cell(title)}</strong>", *(f"<div>{_cell(line, _MOST_IN_LINE)}</div>" for line in lines)]
    if rows:
        head = "".join(f"<th>{_cell(cell)}</th>" for cell in heads)
        body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows[:_MOST_ROWS])
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    if len(rows) > _MOST_ROWS:
        parts.append(f"<div>and {len(rows) - _MOST_ROWS:,} more rows; to_frame() has all</div>")
    return f'<div class="{_NO_MATH}">{"".join(parts)}</div>'


def _cell(value: Any, most: int = _MOST_IN_CELL) -> str:
    if value is None:
        return ""
    if isinstance(value, Estimate) and not value.n:
        return "nothing to count"
    text = f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
    return escape(printable(text, most))
