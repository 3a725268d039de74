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
SHORTENED_FROM = LEAST_FIRST.index(
    "algorithm"
)  # once this is left out, long texts are shortened before more columns go
WIDE = 10_000  # more than any listing takes
_CONDITION = re.compile(r"\s*([\w@]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def select(frame: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """Select the rows that meet every condition, such as `algorithm=fede`, `mrr>0.3` or `defense!=`. A missing value meets none.

    Raises:
        SpecError: something else, an unknown column, or a value that is not of the column's kind.
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
    """Sort by a column: numbers from the largest, words from A; the other way when `reverse`. Missing values come last.

    Raises:
        SpecError: an unknown column.
    """
    words = frame[_column("sort", name, frame)].dtype == "string"
    return frame.sort_values(name, ascending=words != reverse, kind="stable", na_position="last")


def _column(option: str, name: str, frame: pd.DataFrame) -> str:
    if name not in frame:
        raise SpecError(f"{option}: no column {name!r}; there are {', '.join(frame.columns)}")
    return name


def listing_table(frame: pd.DataFrame, width: int) -> tuple[Table, list[str]]:
    """Return the listing for a terminal of this width: settings that all runs share stand in the title.

    Returns: the table, and the names of the columns that were left out because they do not fit (`LEAST_FIRST`).
    """
    shown = frame.assign(commit=frame["commit"].str[:8], defense=frame["defense"].replace("", NONE))
    rows = rows_of(shown.drop_duplicates("run"))
    known = [name for name in SETTINGS if name in frame]
    varied = [name for name in known if len({row[name] for row in rows}) > 1]
    settings = Sheet.of("", shown.head(1), dict.fromkeys(known, ""))
    values = zip(known, *written_rows(settings), strict=True) if rows else ()
    shared = [f"{name} {value}" for name, value in values if name not in varied and value != NONE]
    title = f"{len(rows)} run{'s' * (len(rows) != 1)}{'; all: ' * bool(shared)}{', '.join(shared)}"
    utility = [name for name in ("mrr", "hits@10", "accuracy") if name in frame]
    attacked = FIGURE if len(frame["attack"].dropna()) else ()
    names = ["run", *varied, *utility, *attacked, "bytes_up", "bytes_down", "seconds"]
    once = names.index("attack") if attacked else 0
    left_out: list[str] = []
    made = Sheet(title, (), ())
    for name in ["", *(name for name in LEAST_FIRST if name in names)]:
        if name:
            once -= names.index(name) < once
            names.remove(name)
            left_out.append(name)
        made = Sheet.of(title, shown, {head: HEADS.get(head, head) for head in names})
        can_shorten = not any(other in names for other in LEAST_FIRST[: SHORTENED_FROM + 1])
        if total_width(narrowed(made, width) if can_shorten else made) <= width:
            break
    return terminal_table(narrowed(made, width), once=once), left_out
