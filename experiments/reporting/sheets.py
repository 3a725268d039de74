r"""Tables of figures, and their writers: terminal, Markdown, JSON, CSV and the cells of an HTML page.

    sheet = Sheet.of("Utility", run_frame(records), {"run": "run", "mrr": Column("test MRR", "figure"), "bytes": "MiB"})
    console.print(terminal_table(sheet))
    print("\n".join(markdown_lines(sheet)))

A column has a kind, and every writer uses the same notation for a kind. A figure is written as `.363 [.345, .380]`: value
and 95 % interval.
"""

from __future__ import annotations

import dataclasses
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
# Kinds of the columns of frames; all others are text.
KINDS: dict[str, Kind] = {
    "leak": "number", "temperature": "number", "value": "figure", "mrr": "figure", "accuracy": "figure", "baseline": "value",
    "attainable": "value", "hits@10": "value", "valid": "value", "bytes": "MiB", "bytes_up": "MiB", "bytes_down": "MiB",
    "bytes_kept": "MiB", "seconds": "s", "p98": "ratio", "p99": "ratio",
}  # fmt: skip
NONE, NOT_ATTACKED = "–", "n/a"
# Spaces between two columns of a terminal, and the least length of a shortened text.
GAP, LEAST_LETTERS = 2, 10


class Column(NamedTuple):
    """Heading and kind of a column. Only text is left-aligned.

    Attributes:
        drop: priority for leaving the column out of a table that is too wide; largest first, 0 never.
    """

    head: str
    kind: Kind = "text"
    drop: int = 0


@dataclass(frozen=True)
class Sheet:
    """Table of values.

    Attributes:
        foot: rows that stay at the bottom when a reader sorts.
        notes: lines printed below.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    foot: tuple[tuple[Any, ...], ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, title: str, frame: pd.DataFrame, heads: Mapping[str, str | Column], *, notes: Iterable[str] = ()
    ) -> Sheet:
        """Select columns of a frame. In a row with a `reason`, a missing figure is `n/a`.

        Args:
            frame: rows; an interval is read from the columns `NAME_low` and `NAME_high`.
            heads: heading by the frame's column; its kind follows from the column's name.
            notes: lines printed below.
        """
        columns = {
            name: head if isinstance(head, Column) else Column(head, KINDS.get(name, "text"))
            for name, head in heads.items()
        }
        rows = tuple(tuple(_cell(row, *item) for item in columns.items()) for row in rows_of(frame))
        return cls(title, tuple(columns.values()), rows, notes=tuple(notes))


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a frame's rows as dictionaries; missing values are None."""
    columns = [column.to_numpy(dtype=object, na_value=None).tolist() for _, column in frame.items()]
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def _cell(row: Mapping[str, Any], name: str, column: Column) -> Any:
    value = row.get(name)
    if value is None:
        return NOT_ATTACKED if row.get("reason") and column.kind in ("figure", "value") else None
    # A figure's interval is `low` and `high`; that of utility is `mrr_low` and `mrr_high`.
    prefix = "" if name == "value" else f"{name}_"
    low, high = (row.get(f"{prefix}{end}") for end in ("low", "high"))
    return value if column.kind != "figure" or low is None or high is None else Estimate(value, low, high, 1, "")


def short(value: Estimate | float) -> str:
    """Write a number with three decimals and no leading zero.

    Args:
        value: a share or a metric. A value that would round to zero is written as a bound.

    >>> short(0.0421), short(-0.017), short(2e-6), short(-2e-6), short(1.0)
    ('.042', '-.017', '<.001', '>-.001', '1.000')
    """
    number = value.value if isinstance(value, Estimate) else float(value)
    # Rounding to .000 would hide that there is an effect.
    if 0 < abs(number) < 0.0005:
        return "<.001" if number > 0 else ">-.001"
    sign, digits = "-" * (number < 0), f"{abs(number):.3f}"
    return f"{sign}{digits.removeprefix('0')}"


def interval(value: Estimate | float) -> str:
    """Write a figure as `.363 [.345, .380]`."""
    return f"{short(value)} [{short(value.low)}, {short(value.high)}]" if isinstance(value, Estimate) else short(value)


def mebibytes(num_bytes: float) -> str:
    """Write bytes in MiB, with more digits for small sizes.

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
    """Write a cell; text stays unchanged.

    Args:
        none: text of a missing value or of an estimate over no items.
    """
    if value is None or (isinstance(value, Estimate) and not value.n):
        return none
    return str(value) if isinstance(value, str) or column.kind == "text" else WRITERS[column.kind](value)


def cell_order(value: Any, column: Column) -> float | None:
    """Return the number by which a page sorts a cell, or None for text.

    Args:
        value: a cell; missing figures sort below all others.
    """
    if column.kind == "text":
        return None
    if value is None or isinstance(value, str) or (isinstance(value, Estimate) and not value.n):
        return -1.0
    return value.value if isinstance(value, Estimate) else float(value)


def written_rows(sheet: Sheet, none: str = NONE) -> list[list[str]]:
    """Write all cells, row by row.

    Args:
        none: text of a missing value.
    """
    rows = (*sheet.rows, *sheet.foot)
    return [[cell_text(value, column, none) for value, column in zip(row, sheet.columns, strict=True)] for row in rows]


def terminal_table(sheet: Sheet, *, once: int = 0) -> Table:
    """Return the table for a terminal, with the rows of all victims together in bold.

    Args:
        once: number of leading columns to leave empty where they repeat the row above.
    """
    table = Table(
        title=sheet.title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )  # fmt: skip
    for number, column in enumerate(sheet.columns):
        # Figures align at their last decimal; the first column names the row.
        justify = "right" if number else "left"
        table.add_column(column.head, justify=justify, overflow="fold", no_wrap=column.kind != "text")
    before: list[str] = []
    for row in written_rows(sheet):
        # A cell repeats only if all cells before it repeat, too.
        same = next((place for place in range(once) if row[: place + 1] != before[: place + 1]), once)
        first = row[0].replace(",", ",\n") if once else row[0]
        table.add_row(*[""] * same, *[first, *row[1:]][same:], style="bold" if ALL in row[:2] else None)
        before = row
    return table


def text_widths(sheet: Sheet) -> list[int]:
    """Return the number of characters of each column, in a terminal."""
    rows = [[column.head for column in sheet.columns], *written_rows(sheet)]
    return [
        max(len(line) for row in rows for line in (row[place].splitlines() or [""])) for place in range(len(rows[0]))
    ]


def total_width(sheet: Sheet) -> int:
    """Return the number of characters of a row in a terminal, gaps included."""
    return sum(text_widths(sheet)) + GAP * (len(sheet.columns) - 1)


def fitted(sheet: Sheet, width: int) -> tuple[Sheet, list[str]]:
    """Leave out columns by `Column.drop` until the table fits, then shorten texts.

    Args:
        sheet: a table; without a column that may be left out, it stays unchanged.
        width: characters of a line.

    Returns:
        The table, and the headings that were left out.
    """
    left_out: list[str] = []
    if not any(column.drop for column in sheet.columns):
        return sheet, left_out
    while total_width(sheet) > width:
        place = max(range(len(sheet.columns)), key=lambda number: sheet.columns[number].drop)
        if not sheet.columns[place].drop:
            break
        left_out.append(sheet.columns[place].head)
        columns = (*sheet.columns[:place], *sheet.columns[place + 1 :])
        rows, foot = (tuple((*row[:place], *row[place + 1 :]) for row in part) for part in (sheet.rows, sheet.foot))
        sheet = Sheet(sheet.title, columns, rows, foot, sheet.notes)
    return narrowed(sheet, width), left_out


def narrowed(sheet: Sheet, width: int) -> Sheet:
    """Shorten the longest texts of a table until it fits, to no fewer than `LEAST_LETTERS`.

    Args:
        width: characters of a line. A table of numbers may stay wider.
    """
    widths, heads = text_widths(sheet), [len(column.head) for column in sheet.columns]
    texts = [place for place, column in enumerate(sheet.columns) if column.kind == "text"]
    # Take one character at a time from the column that is widest at that moment.
    for _ in range(total_width(sheet) - width):
        longer = [place for place in texts if widths[place] > max(LEAST_LETTERS, heads[place])]
        if longer:
            widths[max(longer, key=lambda place: widths[place])] -= 1

    def _cut(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            "\n".join(shortened(line, widths[place]) for line in cell.split("\n")) if isinstance(cell, str) else cell
            for place, cell in enumerate(row)
        )

    return dataclasses.replace(sheet, rows=tuple(map(_cut, sheet.rows)), foot=tuple(map(_cut, sheet.foot)))


def shortened(text: str, width: int) -> str:
    """Cut the middle out of a text that is longer than `width`.

    >>> shortened("psu-secagg-dp-clip-0.1-epsilon-10", 15)
    'psu-sec…ilon-10'
    """
    if len(text) <= width:
        return text
    return f"{text[: (width - 1) // 2]}…{text[len(text) - width // 2 :]}"


def print_sheets(console: Console, sheets: Iterable[Sheet], *, once: int = 0) -> None:
    """Print tables, each with its notes and an empty line below.

    Args:
        sheets: tables; see `fitted` for those that are too wide.
        once: see `terminal_table`.
    """
    for whole in sheets:
        shown, left_out = fitted(whole, console.width)
        console.print(shown.title, style="table.title", highlight=False, markup=False)
        console.print(terminal_table(dataclasses.replace(shown, title=""), once=once))
        if left_out:
            console.print(f"Too wide to show: {', '.join(left_out)}.", soft_wrap=True, highlight=False, markup=False)
        for note in shown.notes:
            # A pipe keeps a note on one line, for tools that search it.
            console.print(note, soft_wrap=not console.is_terminal, highlight=False, markup=False)
        console.print()


def markdown_text(text: str) -> str:
    """Write text as one line of Markdown: fold white space; escape control characters, bars and HTML."""
    return printable(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def markdown_lines(sheet: Sheet, write: Callable[[str], str] = markdown_text) -> list[str]:
    """Write head and rows in Markdown, without title and notes.

    Args:
        write: writes each cell.
    """
    heads = [column.head for column in sheet.columns]
    rows = ([markdown_text(head) for head in heads], *(map(write, row) for row in written_rows(sheet, none="")))
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return [head, f"|{'---|' * len(heads)}", *body]


def json_rows(sheet: Sheet) -> list[dict[str, Any]]:
    """Return the rows by heading as plain values; a figure becomes an object with value, low and high."""
    heads = [column.head for column in sheet.columns]
    return [dict(zip(heads, msgspec.to_builtins(row), strict=True)) for row in (*sheet.rows, *sheet.foot)]


def as_csv(frame: pd.DataFrame) -> str:
    """Write a frame as CSV that is safe to open in a spreadsheet.

    Args:
        frame: text that a spreadsheet would compute, such as `=HYPERLINK(...)`, gets an apostrophe. Carriage returns are
            escaped, because many readers take them for the end of a row.
    """
    text = frame.select_dtypes("string")
    # Spreadsheets execute cells that start with these characters (CSV injection, CWE-1236).
    guarded = text.replace(r"^([=+\-@\t\r])", r"'\1", regex=True).replace("\r", "\\\\r", regex=True)
    return frame.assign(**{str(name): guarded[name] for name in guarded}).to_csv(index=False, lineterminator="\n")
