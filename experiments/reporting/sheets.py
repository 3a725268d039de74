"""A table of figures, and how it is written: for a terminal, as Markdown, on a page.

    sheet = Sheet.of("Utility", run_frame(runs), {"run": "record", "mrr": "test MRR", "bytes": "MiB"})
    console.print(terminal_table(sheet))
    print("\\n".join(markdown_lines(sheet)))

A column says what its values are; the style of the output says how such are written. A text in a cell stands as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pandas as pd
from rich import box
from rich.table import Table

from attacks.view import ALL
from experiments.reporting.frames import rows_of
from experiments.reporting.html.notation import NONE
from fkgsec.estimate import Estimate
from fkgsec.text import printable

# text; a count with thousands apart; a number as short as it is; a share or a mean, with its interval (rate, score) or alone
# (share, mean, exact); a share that spans orders of magnitude (tiny); bytes; seconds; a multiple
Kind = Literal["text", "count", "number", "rate", "score", "share", "mean", "exact", "tiny", "MiB", "s", "ratio"]
KINDS: dict[str, Kind] = {
    "leak": "number", "temperature": "number", "err": "rate", "trr": "rate", "estimate": "score", "baseline": "share",
    "attainable": "share", "majority": "share", "prior": "share", "precision": "rate", "recall": "rate",
    "average_precision": "mean", "average_precision_base": "tiny", "mrr": "score", "accuracy": "score", "hits@10": "mean",
    "valid": "exact",
    "bytes": "MiB", "bytes_up": "MiB", "bytes_down": "MiB", "bytes_kept": "MiB", "seconds": "s", "p98": "ratio", "p99": "ratio",
}  # fmt: skip
"""What the columns of the frames are; others are text, bases and largest values shares."""
Style = Mapping[Kind, Callable[[Any], str]]
NOT_ATTACKED = "n/a"


class Column(NamedTuple):
    """A heading, and what stands below it."""

    head: str
    kind: Kind = "text"


def columns(heads: Mapping[str, str | Column]) -> dict[str, Column]:
    """The columns of a frame under these headings, each of its kind."""
    return {
        name: head
        if isinstance(head, Column)
        else Column(head, KINDS.get(name, "share" if name.endswith(("_base", "_max")) else "text"))
        for name, head in heads.items()
    }


@dataclass(frozen=True)
class Sheet:
    """A table of values. `foot` stays below when a reader sorts; `notes` stand under it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    foot: tuple[tuple[Any, ...], ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        title: str,
        frame: pd.DataFrame,
        heads: Mapping[str, str | Column],
        *,
        foot: pd.DataFrame | None = None,
        notes: Iterable[str] = (),
    ) -> Sheet:
        """These columns of a frame. In a row with a `reason` the figures that are missing were not attacked."""
        shown = columns(heads)
        rows, below = (
            tuple(tuple(_cell(row, name, column) for name, column in shown.items()) for row in rows_of(part))
            for part in (frame, frame.iloc[:0] if foot is None else foot)
        )
        return cls(title, tuple(shown.values()), rows, below, tuple(notes))


def _cell(row: Mapping[str, Any], name: str, column: Column) -> Any:
    value = row.get(name)
    missing = value is None and column.kind not in ("text", "number") and row.get("reason")
    return NOT_ATTACKED if missing else value


def rates(**heads: str) -> dict[str, str]:
    """Headings in `side_by_side` for each of these metrics: the figure, its base, and the most that it can be."""
    parts = (("", ""), ("_base", "base"), ("_max", "max"))
    return {f"{name}{part}": word or head for name, head in heads.items() for part, word in parts}


def number(value: Any) -> float:
    """The value itself, of an estimate or a number."""
    return value.value if isinstance(value, Estimate) else float(value)


def short(value: Any) -> str:
    """Three digits, without the zero before them."""
    return f"{number(value):.3f}".removeprefix("0")


def interval(figure: Estimate) -> str:
    """`.363 [.345, .380]`, the notation of every output; how many digits is a matter of the room that there is."""
    return f"{short(figure)} [{short(figure.low)}, {short(figure.high)}]"


TERMINAL: Style = {
    "count": "{:,}".format,
    "number": "{:g}".format,
    "exact": "{:.4f}".format,
    "rate": interval,
    "score": interval,
    "share": short,
    "mean": short,
    "tiny": lambda value: f"{number(value):.0e}",
    "MiB": lambda size: f"{size / 2**20:,.2f}",
    "s": lambda seconds: f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}",
    "ratio": "{:.4g}x".format,
}
MARKDOWN: Style = {
    **TERMINAL,
    "rate": str,
    "score": str,
    "share": lambda value: f"{number(value):.4f}",
    "mean": lambda value: f"{number(value):.4f}",
    "MiB": lambda size: f"{size / 2**20:.1f}",
    "s": "{:.0f}".format,
    "ratio": "{:.3f}x".format,
}


def written(value: Any, kind: Kind, style: Style, none: str = NONE) -> str:
    """A cell in this style."""
    if value is None or (isinstance(value, Estimate) and not value.n):
        return none
    return str(value) if isinstance(value, str) or kind == "text" else style[kind](value)


def written_rows(
    rows: Iterable[Sequence[Any]], columns: Sequence[Column], style: Style, none: str = NONE
) -> list[list[str]]:
    """The cells of these rows."""
    return [
        [written(value, column.kind, style, none) for value, column in zip(row, columns, strict=True)] for row in rows
    ]


def terminal_table(sheet: Sheet, style: Style = TERMINAL, *, once: int = 0) -> Table:
    """The table for a terminal; all victims together stand out.

    Args:
        once: how many of the first columns are left empty where they, and those before them, say the same as the row above.
            The first is then broken at commas.
    """
    table = make_table(sheet.title, *(column.head for column in sheet.columns))
    before: list[str] = []
    for row in written_rows([*sheet.rows, *sheet.foot], sheet.columns, style):
        same = next((place for place in range(once) if row[: place + 1] != before[: place + 1]), once)
        first = row[0].replace(",", ",\n") if once else row[0]
        table.add_row(*[""] * same, *[first, *row[1:]][same:], style="bold" if row[0] == ALL else None)
        before = row
    return table


def make_table(title: str, first: str, *others: str) -> Table:
    """An empty table: the first column left, the others right."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", overflow="fold")
    return table


def markdown_lines(sheet: Sheet) -> list[str]:
    """Head and rows in Markdown, without the title; an upright bar in a cell is escaped."""
    heads = [column.head for column in sheet.columns]
    rows = written_rows([*sheet.rows, *sheet.foot], sheet.columns, MARKDOWN, none="")
    return [markdown_row(heads), f"|{'---|' * len(heads)}", *map(markdown_row, rows)]


def markdown_row(cells: Iterable[str]) -> str:
    """One row; white space is folded, control characters are written out."""
    return "| " + " | ".join(printable(" ".join(cell.split())).replace("|", "\\|") for cell in cells) + " |"


def as_csv(frame: pd.DataFrame) -> str:
    """The table as CSV. Text that a spreadsheet would compute (`=HYPERLINK(...)`) gets an apostrophe before it, and a carriage
    return, which ends a row for many readers though nothing quotes it, is written out."""
    text = frame.select_dtypes("string")
    guarded = text.replace(r"^([=+\-@\t\r])", r"'\1", regex=True).replace("\r", "\\\\r", regex=True)
    return frame.assign(**{str(name): guarded[name] for name in guarded}).to_csv(index=False, lineterminator="\n")
