"""Results for pandas and notebooks: columns of estimates with their intervals, and escaped HTML tables.

    frame = tidy([{"metric": "mrr", **interval(figure)}], ["metric", *INTERVAL])
    html = block("FedE", ["3 clients"], heads=("metric", "figure"), rows=[("mrr", figure)])

A frame has one row per figure; figures that were not measured are missing (NaN), never 0. Names of clients, entities and runs are
untrusted: HTML escapes them, including control characters and those that reverse the direction of text.
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
"""Columns of a figure: value, 95 % interval, sample size, and method of the interval."""

_NUMBERS = {"value", "low", "high", "baseline", "baseline_low", "baseline_high", "attainable", "advantage", "leak"}
_COUNTS = {"n", "round", "num_attacked"}
_NO_MATH = "tex2jax_ignore mathjax_ignore"  # keeps notebooks from rendering $\href{javascript:...}$ as a formula
_MOST_ROWS = 40
_MOST_IN_CELL, _MOST_IN_LINE = 120, 1000  # characters


def interval(figure: Estimate | None) -> dict[str, Any]:
    """Return the columns of `INTERVAL`; all None without a figure, or for an empty sample.

    Args:
        figure: an estimate, or None.

    >>> from fkgsec.estimate import proportion
    >>> interval(proportion(1, 4))["n"], interval(proportion(0, 0))["value"]
    (4, None)
    """
    # An empty sample has no figure: its placeholder 0 must not enter a mean.
    if figure is None or not figure.n:
        return dict.fromkeys(INTERVAL)
    return {name: getattr(figure, name) for name in INTERVAL}


def tidy(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Build a frame with fixed columns, also without rows: figures are float64, counts Int64, flags bool, all others
    objects.

    Args:
        rows: values by column.
        columns: names, in order.
    """
    import pandas as pd  # optional on machines that only train

    # Objects first, then a type per column: pandas would guess float for an empty column of counts.
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
    """Render a title, lines and a table as HTML, without styles, so that it is readable in light and dark themes.

    Args:
        title: shown in bold.
        lines: below the title.
        heads: of the table's columns.
        rows: of the table; at most 40 are shown.

    >>> block("<b>")
    '<div class="tex2jax_ignore mathjax_ignore"><strong>&lt;b&gt;</strong></div>'
    """
    parts = [f"<strong>{_cell(title)}</strong>", *(f"<div>{_cell(line, _MOST_IN_LINE)}</div>" for line in lines)]
    if rows:
        head = "".join(f"<th>{_cell(cell)}</th>" for cell in heads)
        body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows[:_MOST_ROWS])
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    # Say that rows are missing, and where all are.
    if len(rows) > _MOST_ROWS:
        parts.append(f"<div>and {len(rows) - _MOST_ROWS:,} more rows; to_frame() has all</div>")
    return f'<div class="{_NO_MATH}">{"".join(parts)}</div>'


def _cell(value: Any, most: int = _MOST_IN_CELL) -> str:
    if value is None:
        return ""
    # An empty sample has no value to show.
    if isinstance(value, Estimate) and not value.n:
        return "nothing to count"
    text = f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
    return escape(printable(text, most))
