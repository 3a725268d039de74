"""Triples in tables with named columns: CSV, TSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fkgsec.data.assembly import NamedTriples, build_federation, build_graph, natural_order
from fkgsec.data.formats.folders import read_text
from fkgsec.data.graph import SPLITS, FederatedGraph, KnowledgeGraph
from fkgsec.errors import DataError
from fkgsec.text import printable, shown

if TYPE_CHECKING:
    import pyarrow as pa

# What tools call the splits, in lower case.
SPLIT_NAMES = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
_COLUMNS = ("head", "relation", "tail")
_PARQUET_SUFFIXES = (".parquet", ".pq")
_MOST_SHOWN = 20  # columns that an error names
MOST_ROWS = 100_000_000  # a few bytes of Parquet can claim more rows than any memory holds


class _Table(NamedTuple):
    columns: dict[str, list[str]]
    place: Callable[[int], str]


def read_triple_table(
    path: Path | str,
    columns: tuple[str, str, str] = _COLUMNS,
    *,
    split_column: str | None = None,
    client_column: str | None = None,
    delimiter: str | None = None,
    name: str | None = None,
) -> KnowledgeGraph | FederatedGraph:
    """Read triples from a table whose first line names its columns; further columns are not read.

    `.parquet` and `.pq` are Parquet (text or integer columns); `.csv` is quoted in the usual way; a delimiter of a tab
    (the default of any other suffix) means no quoting, as in the TSV media type. Text is UTF-8, never turned into
    numbers or missing values ("NA" is a name).

    Args:
        path: the file.
        columns: the names of the head, relation and tail columns.
        split_column: the column that says train, valid (validation, val, dev) or test, in any case. None takes a column
            named "split" if there is one; without any, all triples are in train, and a warning says so.
        client_column: the column that names a triple's client. None takes a column named "client" if there is one.
        delimiter: of text tables; None goes by the suffix, and of `.csv` by the first line: a semicolon if it names the columns
            so, as spreadsheets write where a comma stands before decimals.
        name: what the graph is called; the file's stem when None.

    Returns:
        A `FederatedGraph` (clients in natural order) if there is a client column, else a `KnowledgeGraph`.

    Raises:
        DataError: a missing column, a malformed row or empty cell (`file:line`; for Parquet the row), an unknown split,
            an empty train split.
    """
    path = Path(path)
    wanted = (*columns, *(column for column in (split_column, client_column) if column is not None))
    optional = ("split",) * (split_column is None) + ("client",) * (client_column is None)
    if len(set(wanted)) != len(wanted):
        raise DataError(f"{path}: one column is asked for twice ({', '.join(wanted)})")
    optional = tuple(column for column in optional if column not in wanted)
    if path.suffix.lower() in _PARQUET_SUFFIXES:
        table = _read_parquet(path, wanted, optional)
    else:
        table = _read_text_table(path, wanted, optional, delimiter)

    def marks(column: str | None, default: str) -> list[str] | None:
        return table.columns.get(column or default) if column or default in optional else None

    splits, clients = marks(split_column, "split"), marks(client_column, "client")
    num_rows = len(table.columns[columns[0]])
    rows_of = group_rows(num_rows, splits, clients, table.place)

    def named(rows: list[int]) -> NamedTriples:
        heads, relations, tails = ([table.columns[column][row] for row in rows] for column in columns)
        return NamedTriples(heads, relations, tails, lambda row: table.place(rows[row]))

    def by_split(client: str) -> dict[str, NamedTriples]:
        return {split: named(rows_of.get((client, split), [])) for split in (SPLITS if splits else ("train",))}

    title = name or path.stem
    notes = () if splits else (f"{path}: no split column, all {num_rows:,} triples are in train",)
    if clients is None:
        notes = tuple(f"{note}; dividing them among clients draws valid and test" for note in notes)
        return build_graph(title, by_split(""), empty=f"{path} ({{split}})", notes=notes)
    parts = {client: by_split(client) for client in sorted(set(clients), key=natural_order)}
    return build_federation(title, parts, empty=f"{path} (client {{client}}, {{split}})", notes=notes)


def group_rows(
    num_rows: int, splits: list[str] | None, clients: list[str] | None, place: Callable[[int], str]
) -> dict[tuple[str, str], list[int]]:
    """(client or "", split) -> row numbers in order. Raises `DataError` for a split that `SPLIT_NAMES` lacks."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row in range(num_rows):
        split = SPLIT_NAMES.get(splits[row].lower()) if splits else "train"
        if split is None:
            raise DataError(f"{place(row)}: split {shown(splits and splits[row])} is none of {', '.join(SPLIT_NAMES)}")
        groups.setdefault((clients[row] if clients else "", split), []).append(row)
    return groups


def _select(path: Path, header: Sequence[str], wanted: Iterable[str], optional: Iterable[str]) -> list[tuple[str, int]]:
    """(column, position) of what is to be read. Raises `DataError` for a column that is missing or there twice."""
    chosen = [*wanted, *(column for column in optional if column in header)]
    missing = [column for column in chosen if column not in header]
    if missing:
        there = ", ".join(printable(column, 40) for column in header[:_MOST_SHOWN])
        more = f" and {len(header) - _MOST_SHOWN} more" if len(header) > _MOST_SHOWN else ""
        by = "; --triple-columns (in Python columns=) names others" if set(missing) <= set(_COLUMNS) else ""
        raise DataError(f"{path}: no column {', '.join(missing)} (the table has: {there}{more}){by}")
    twice = [column for column in chosen if header.count(column) > 1]
    if twice:
        raise DataError(f"{path}: more than one column {', '.join(twice)}")
    return [(column, header.index(column)) for column in chosen]


def _check_filled(table: _Table) -> _Table:
    for column, cells in table.columns.items():
        blank = [cells.index(cell) for cell in set(cells) if cell is None or not cell.strip()]
        if blank:
            raise DataError(f"{table.place(min(blank))}: the {column} cell is empty")
    return table


def _delimiter(path: Path, text: str, wanted: Iterable[str]) -> str:
    """A tab; of `.csv` a comma, or a semicolon where the first line has all columns that are asked for between those."""
    if path.suffix.lower() != ".csv":
        return "\t"
    try:
        first = next(csv.reader([text.partition("\n")[0]], delimiter=";"), [])
    except csv.Error:  # as who reads the table says, with the line
        return ","
    return ";" if set(wanted) <= set(first) else ","


def _read_text_table(path: Path, wanted: Iterable[str], optional: Iterable[str], delimiter: str | None) -> _Table:
    text = read_text(path)
    delimiter = _delimiter(path, text, wanted) if delimiter is None else delimiter
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise DataError(f"{path}: delimiter {delimiter!r} must be one character, not a quote or line end")
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text.rstrip("\n")), delimiter=delimiter, quoting=quoting, strict=True)
    lines: list[int] = []
    rows: list[list[str]] = []
    line = 1
    try:
        header = next(reader, [])
        chosen = _select(path, header, wanted, optional)
        line = reader.line_num + 1
        for row in reader:
            if len(row) != len(header):
                width = len(row) if row else "a blank line"
                raise DataError(f"{path}:{line}: expected {len(header)} fields, found {width}")
            rows.append(row)
            lines.append(line)
            line = reader.line_num + 1  # a quoted field may hold line ends
    except csv.Error as error:
        raise DataError(f"{path}:{line}: {error}") from error
    columns = {column: [row[position] for row in rows] for column, position in chosen}
    return _check_filled(_Table(columns, lambda row: f"{path}:{lines[row]}"))


def _read_parquet(path: Path, wanted: Iterable[str], optional: Iterable[str]) -> _Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            chosen = [column for column, _ in _select(path, file.schema_arrow.names, wanted, optional)]
            if file.metadata.num_rows > MOST_ROWS:
                raise DataError(f"{path}: {file.metadata.num_rows:,} rows; at most {MOST_ROWS:,} are read")
            table = file.read(columns=chosen)
            columns = {column: _as_text(path, column, table.column(column)) for column in chosen}
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: holds text that is not UTF-8") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: cannot be read as Parquet ({printable(reason, 200)})") from error
    return _check_filled(_Table(columns, lambda row: f"{path} row {row + 1}"))


def _as_text(path: Path, column: str, values: pa.ChunkedArray) -> list[str]:
    import pyarrow as pa

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not (text or pa.types.is_integer(kind)):
        raise DataError(f"{path}: column {column} must hold text or integers, not {values.type}")
    return values.cast(kind).cast(pa.string()).to_pylist()
