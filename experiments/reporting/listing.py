"""Finished runs side by side: filtered, sorted, and written for a terminal of any width.

    frame = sort(select(figures(find_records([Path("runs")]).records), ["algorithm=fede", "metric=trr"]), "value")
    table, left_out = listing_table(frame, width=80)

The rows are those of `frames.figures`: one for each figure over all victims, and one for a run that was not attacked.
`--where headline=true` keeps the figures that verdicts use.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from fkgsec.errors import SpecError
from fkgsec.experiments.reporting.sheets import (
    NONE,
    Sheet,
    narrowed,
    rows_of,
    terminal_table,
    total_width,
    written_rows,
)

SETTINGS = (
    "algorithm", "defense", "model", "data", "clients", "dim", "layers", "width", "temperature", "rounds", "seed", "commit",
    "dirty",
)  # fmt: skip
HEADS = {
    "mrr": "MRR", "hits@10": "Hits@10", "bytes_up": "MiB up", "bytes_down": "MiB down", "seconds": "s", "place": "threat",
    "label": "metric", "value": "figure", "baseline": "base", "attainable": "max",
}  # fmt: skip
FIGURE = ("attack", "place", "label", "value", "baseline", "attainable", "status")
LEAST_FIRST = (
    "dirty", "commit", "seed", "seconds", "hits@10", "bytes_down", "bytes_up", "rounds", "temperature", "dim", "width", "layers",
    "clients", "model", "defense", "algorithm", "attainable", "status", "mrr", "accuracy", "baseline",
)  # fmt: skip
# Once this column is left out, shorten long texts before dropping more columns.
SHORTENED_FROM = LEAST_FIRST.index("algorithm")
# More than any listing takes.
WIDE = 10_000
_CONDITION = re.compile(r"\s*([\w@]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def select(frame: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """Select the rows that meet every condition. A missing value meets none.

    Args:
        frame: rows of `frames.figures`.
        conditions: such as `algorithm=fede`, `mrr>0.3` or `defense!=`.

    Raises:
        SpecError: a malformed condition, an unknown column, or a value of the wrong type.
    """
    for condition in conditions:
        parts = _CONDITION.fullmatch(condition)
        if parts is None:
            raise SpecError(f"where: expected COLUMN, one of {' '.join(_COMPARE)}, and a value; got {condition!r}")
        name, sign, value = parts.groups()
        cells = pd.Series(frame[_column("where", name, frame)])
        met = _COMPARE[sign](cells, _value_like(cells, name, value)).fillna(False).astype(bool)
        frame = frame.loc[met]
    return frame


def _value_like(column: pd.Series, name: str, value: str) -> str | float | bool:
    # The column decides the type: `seed=1` is a number, `defense=1` is text.
    if column.dtype == "string":
        return value
    if column.dtype == "boolean":
        if value.lower() not in ("true", "false"):
            raise SpecError(f"where: {name} is true or false; got {value!r}")
        return value.lower() == "true"
    try:
        return float(value)
    except ValueError as error:
        raise SpecError(f"where: {name} is a number; got {value!r}") from error


def sort(frame: pd.DataFrame, name: str, *, reverse: bool = False) -> pd.DataFrame:
    """Sort by a column: numbers from the largest, words from A. Missing values come last.

    Args:
        name: a column.
        reverse: invert the order.

    Raises:
        SpecError: an unknown column.
    """
    words = frame[_column("sort", name, frame)].dtype == "string"
    return frame.sort_values(name, ascending=words != reverse, kind="stable", na_position="last")


def _column(option: str, name: str, frame: pd.DataFrame) -> str:
    if name not in frame:
        raise SpecError(f"{option}: no column {name!r}; columns: {', '.join(frame.columns)}")
    return name


def listing_table(frame: pd.DataFrame, width: int) -> tuple[Table, list[str]]:
    """Return the listing for a terminal. The title states settings that all runs share.

    Args:
        frame: rows of `frames.figures`.
        width: characters of a line.

    Returns:
        The table, and the names of columns that do not fit and were left out (`LEAST_FIRST`).
    """
    # Eight digits identify a commit; an undefended run is shown by a dash.
    shown = frame.assign(commit=frame["commit"].str[:8], defense=frame["defense"].replace("", NONE))
    rows = rows_of(shown.drop_duplicates("run"))
    settings_shown = [name for name in SETTINGS if name in frame]
    varied = [name for name in settings_shown if len({row[name] for row in rows}) > 1]
    settings = Sheet.of("", shown.head(1), dict.fromkeys(settings_shown, ""))
    values = zip(settings_shown, *written_rows(settings), strict=True) if rows else ()
    shared = [f"{name} {value}" for name, value in values if name not in varied and value != NONE]
    title = f"{len(rows)} run{'s' * (len(rows) != 1)}{'; all: ' * bool(shared)}{', '.join(shared)}"
    utility = [name for name in ("mrr", "hits@10", "accuracy") if name in frame]
    attacked = FIGURE if len(frame["attack"].dropna()) else ()
    # A column with the same value everywhere is moved to the title, which saves width.
    names = ["run", *varied, *utility, *attacked, "bytes_up", "bytes_down", "seconds"]
    # Several figures share a run: print the run's columns once.
    once = names.index("attack") if attacked else 0
    left_out: list[str] = []
    table = Sheet(title, (), ())
    for name in ["", *(name for name in LEAST_FIRST if name in names)]:
        if name:
            # One column fewer before the figures.
            once -= names.index(name) < once
            names.remove(name)
            left_out.append(name)
        table = Sheet.of(title, shown, {head: HEADS.get(head, head) for head in names})
        can_shorten = not any(other in names for other in LEAST_FIRST[: SHORTENED_FROM + 1])
        if total_width(narrowed(table, width) if can_shorten else table) <= width:
            break
    return terminal_table(narrowed(table, width), once=once), left_out
