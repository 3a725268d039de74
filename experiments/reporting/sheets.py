"""One table of figures, and its writers: terminal, Markdown, JSON, CSV and the cells of an HTML page.

    sheet = Sheet.of("Utility", run_frame(records), {"run": "run", "mrr": Column("test MRR", "figure"), "bytes": "MiB"})
    console.print(terminal_table(sheet))
    print("\\n".join(markdown_lines(sheet)))

A column has a kind, and every writer uses the same notation for a kind. A figure is `.363 [.345, .380]`: value and 95 % interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate
from fkgsec.text import printable

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["text", "count", "number", "figure", "value", "MiB", "s", "ratio"]
KINDS: dict[str, Kind] = {
    "leak": "number", "temperature": "number", "value": "figure", "mrr": "figure", "accuracy": "figure", "baseline": "value",
    "attainable": "value", "hits@10": "value", "valid": "value", "bytes": "MiB", "bytes_up": "MiB", "bytes_down": "MiB",
    "bytes_kept": "MiB", "seconds": "s", "p98": "ratio", "p99": "ratio",
}  # fmt: skip
"""Kinds of the columns of frames; all others are text."""
NONE, NOT_ATTACKED = "–", "n/a"


class Column(NamedTuple):
    """Heading and kind of a column. Only text is left-aligned."""

    head: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Sheet:
    """A table of values. `foot` stays at the bottom when a reader sorts; `notes` are printed below."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    foot: tuple[tuple[Any, ...], ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, title: str, frame: pd.DataFrame, heads: Mapping[str, str | Column], *, notes: Iterable[str] = ()
    ) -> Sheet:
        """Select columns of a frame. In a row with a `reason`, a missing figure is `n/a`."""
        columns = {
            name: head if isinstance(head, Column) else Column(head, KINDS.get(name, "text"))
            for name, head in heads.items()
        }
        rows = tuple(tuple(_cell(row, *item) for item in columns.items()) for row in rows_of(frame))
        return cls(title, tuple(columns.values()), rows, notes=tuple(notes))


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dictionaries; missing values are None."""
    columns = [column.to_numpy(dtype=object, na_value=None).tolist() for _, column in frame.items()]
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def _cell(row: Mapping[str, Any], name: str, column: Column) -> Any:
    value = row.get(name)
    if value is None:
        return NOT_ATTACKED if row.get("reason") and column.kind in ("figure", "value") else None
    prefix = "" if name == "value" else f"{name}_"
    low, high = (row.get(f"{prefix}{end}") for end in ("low", "high"))
    return value if column.kind != "figure" or low is None or high is None else Estimate(value, low, high, 1, "")


def short(value: Estimate | float) -> str:
    """Write a number with three decimals and no leading zero.

    >>> short(0.0421), short(-0.017), short(2e-6), short(-2e-6), short(1.0)
    ('.042', '-.017', '<.001', '>-.001', '1.000')
    """
    number = value.value if isinstance(value, Estimate) else float(value)
    if 0 < abs(number) < 0.0005:
        return "<.001" if number > 0 else ">-.001"
    sign, digits = "-" * (number < 0), f"{abs(number):.3f}"
    return f"{sign}{digits.removeprefix('0')}"


def interval(value: Estimate | float) -> str:
    """Write a figure as `.363 [.345, .380]`."""
    return f"{short(value)} [{short(value.low)}, {short(value.high)}]" if isinstance(value, Estimate) else short(value)


def mebibytes(num_bytes: float) -> str:
    """Write bytes in MiB.

    >>> mebibytes(271_000_000), mebibytes(140_000), mebibytes(0)
    ('258.4', '0.13', '0')
    """
    size = num_bytes / 2**20
    return "0" if not size else f"{size:,.1f}" if size >= 10 else f"{size:.2f}" if size >= 0.1 else f"{size:.2g}"


def count(amount: int, noun: str) -> str:
    """Write `1 run`, `5 runs`."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


WRITERS: Mapping[Kind, Callable[[Any], str]] = {
    "count": "{:,}".format,
    "number": "{:g}".format,
    "figure": interval,
    "value": short,
    "MiB": mebibytes,
    "s": lambda seconds: f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}",
    "ratio": "{:.4g}x".format,
}


def cell_text(value: Any, column: Column, none: str = NONE) -> str:
    """Write a cell; text stays as it is."""
    if value is None or (isinstance(value, Estimate) and not value.n):
        return none
    return str(value) if isinstance(value, str) or column.kind == "text" else WRITERS[column.kind](value)


def cell_order(value: Any, column: Column) -> float | None:
    """Return the number by which a page sorts a cell, or None for text. A missing figure comes last."""
    if column.kind == "text":
        return None
    if value is None or isinstance(value, str) or (isinstance(value, Estimate) and not value.n):
        return -1.0
    return value.value if isinstance(value, Estimate) else float(value)


def written_rows(sheet: Sheet, none: str = NONE) -> list[list[str]]:
    """Write all cells, row by row."""
    rows = (*sheet.rows, *sheet.foot)
    return [[cell_text(value, column, none) for value, column in zip(row, sheet.columns, strict=True)] for row in rows]


def terminal_table(sheet: Sheet, *, once: int = 0) -> Table:
    """Return the table for a terminal, with the rows of all victims together in bold.

    Args:
        once: number of leading columns that are left empty where they repeat the row above.
    """
    table = Table(
        title=sheet.title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )  # fmt: skip
    for number, column in enumerate(sheet.columns):
        justify = "right" if number else "left"
        table.add_column(column.head, justify=justify, overflow="fold", no_wrap=column.kind != "text")
    before: list[str] = []
    for row in written_rows(sheet):
        same = next((place for place in range(once) if row[: place + 1] != before[: place + 1]), once)
        first = row[0].replace(",", ",\n") if once else row[0]
        table.add_row(*[""] * same, *[first, *row[1:]][same:], style="bold" if ALL in row[:2] else None)
        before = row
    return table


def print_sheets(console: Console, sheets: Iterable[Sheet], *, once: int = 0) -> None:
    """Print tables, each with its notes and an empty line below; see `terminal_table`."""
    for shown in sheets:
        console.print(terminal_table(shown, once=once))
        for note in shown.notes:
            console.print(note, soft_wrap=True, highlight=False, markup=False)
        console.print()


def markdown_text(text: str) -> str:
    """Write text on one line: white space is folded; control characters, bars and what HTML would read are escaped."""
    return printable(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def markdown_lines(sheet: Sheet, write: Callable[[str], str] = markdown_text) -> list[str]:
    """Write head and rows in Markdown, without title and notes; `write` writes each cell."""
    heads = [column.head for column in sheet.columns]
    rows = ([markdown_text(head) for head in heads], *(map(write, row) for row in written_rows(sheet, none="")))
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, f"|{'---|' * len(heads)}", *body]


def json_rows(sheet: Sheet) -> list[dict[str, Any]]:
    """Return the rows by heading as plain values; a figure is an object with value, low and high."""
    heads = [column.head for column in sheet.columns]
    return [dict(zip(heads, msgspec.to_builtins(row), strict=True)) for row in (*sheet.rows, *sheet.foot)]


def as_csv(frame: pd.DataFrame) -> str:
    """Write a frame as CSV. An apostrophe guards text that a spreadsheet would compute, such as `=HYPERLINK(...)`.

    A carriage return is escaped: many readers take it for the end of a row.
    """
    text = frame.select_dtypes("string")
    guarded = text.replace(r"^([=+\-@\t\r])", r"'\1", regex=True).replace("\r", "\\\\r", regex=True)
    return frame.assign(**{str(name): guarded[name] for name in guarded}).to_csv(index=False, lineterminator="\n")
