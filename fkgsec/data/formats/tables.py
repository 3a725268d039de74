"""Triples in tables: CSV, TSV and Parquet.

    read_triple_table("visits.csv")                                        # columns subject, predicate, object, site
    read_triple_table("plain.tsv")                                         # three columns without a line of names
    read_triple_table("odd.csv", ("a", "b", "c"), client_column="ward")

Columns are found by the names that tools give them (`ROLES`); the graph's warnings say which were taken.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fkgsec.data.assembly import NamedTriples, build_federation, build_graph, natural_order
from fkgsec.data.formats.folders import read_text
from fkgsec.data.graph import SPLITS, FederatedGraph, KnowledgeGraph
from fkgsec.errors import DataError
from fkgsec.text import printable, shown

if TYPE_CHECKING:
    import pyarrow as pa

# Names that tools use for splits, in lower case.
SPLIT_NAMES = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
ROLES = {
    "head": ("head", "subject", "source", "h", "s", "src", "from"),
    "relation": ("relation", "predicate", "r", "p", "rel", "property", "edge"),
    "tail": ("tail", "object", "target", "t", "o", "dst", "to"),
    "client": ("client", "site", "silo", "party"),
    "split": ("split",),
}
"""Column names by role, in lower case; if a table has several of a role, the first in this list counts."""
TRIPLE = ("head", "relation", "tail")
MOST_RELATIONS = 0.1  # distinct heads over distinct relations; below, heads look like relations
_PARQUET_SUFFIXES = (".parquet", ".pq")
_MOST_SHOWN = 20  # columns in an error message
MOST_ROWS = 100_000_000  # a few bytes of Parquet can claim more rows than fit in memory


class _Table(NamedTuple):
    """Cells by role (a key of `ROLES`), a function that locates a row, and notes about the choice of columns."""

    columns: dict[str, list[str]]
    place: Callable[[int], str]
    notes: tuple[str, ...] = ()


def _select(path: Path, header: Sequence[str], named: Mapping[str, str]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the position of each column to read by role, and a note on columns that are not named like their roles.

    `named` has the columns that the caller names, by role; `ROLES` has the defaults of the others. Raises `DataError` if a
    column is missing or ambiguous.
    """
    lower = [name.strip().lower() for name in header]
    chosen: dict[str, int] = {}
    for role, names in ROLES.items():
        wanted = named.get(role) or next((name for name in names if name in lower), None)
        columns = header if role in named else lower
        places = [place for place, name in enumerate(columns) if name == wanted]
        if len(places) > 1:
            raise DataError(f"{path}: more than one column {wanted}")
        if places:
            chosen[role] = places[0]
    missing = [named.get(role, role) for role in (*TRIPLE, *named) if role not in chosen]
    if missing:
        there = ", ".join(printable(column, 40) for column in header[:_MOST_SHOWN])
        more = f" and {len(header) - _MOST_SHOWN} more" if len(header) > _MOST_SHOWN else ""
        advice = (
            ""
            if named.keys() & set(TRIPLE)
            else ". Name the columns with --triple-columns (in Python columns=), or, if this line is a triple, add a first "
            "line such as head, relation, tail, client"
        )
        raise DataError(
            f"{path}: no column {', '.join(dict.fromkeys(missing))} (the first line has: {there}{more}){advice}"
        )
    renamed = [
        f"{printable(header[place], 40)} as {role}"
        for role, place in chosen.items()
        if role not in named and header[place] != role
    ]
    return chosen, (f"{path}: read {', '.join(renamed)}",) if renamed else ()


def _is_headless(header: Sequence[str], named: Mapping[str, str]) -> bool:
    """Return True if a table has three columns, its first line at most one known name, and the caller names none."""
    known_names = {name for names in ROLES.values() for name in names}
    num_known = sum(name.strip().lower() in known_names for name in header)
    return len(header) == 3 and not named and num_known <= 1


def read_triple_table(
    path: Path | str,
    columns: tuple[str, str, str] | None = None,
    *,
    split_column: str | None = None,
    client_column: str | None = None,
    delimiter: str | None = None,
    name: str | None = None,
) -> KnowledgeGraph | FederatedGraph:
    """Read triples from a table; other columns are ignored.

    The first line names the columns. A table of three columns whose first line has no known name has no header: its columns
    are head, relation and tail.

    `.parquet` and `.pq` are Parquet (text or integer columns). `.csv` uses the usual quoting. A tab as delimiter (the default
    of any other suffix) means no quoting, as in the TSV media type. Text is UTF-8, and never converted to numbers or missing
    values ("NA" is a name).

    Args:
        path: the file.
        columns: names of the head, relation and tail columns; None: those of `ROLES`, in any case.
        split_column: column with the values train, valid (validation, val, dev) or test, in any case. None uses a column named
            "split" if it exists; otherwise all triples are in train, and a warning says so.
        client_column: column with the name of a triple's client. None uses one of `ROLES` if it exists.
        delimiter: of text tables. None depends on the suffix, and for `.csv` on the first line: a semicolon if it separates
            the column names, as spreadsheets write in locales with decimal commas.
        name: of the graph; the file's stem when None.

    Returns:
        A `FederatedGraph` (clients in natural order) if there is a client column, else a `KnowledgeGraph`.

    Raises:
        DataError: a missing column, a malformed row or empty cell (`file:line`; for Parquet the row), an unknown split, or an
            empty train split.
    """
    path = Path(path)
    named_columns = {**dict(zip(TRIPLE, columns or (), strict=False)), "split": split_column, "client": client_column}
    named = {role: name for role, name in named_columns.items() if name is not None}
    if len(set(named.values())) != len(named):
        raise DataError(f"{path}: one column is requested twice ({', '.join(named.values())})")
    parquet = path.suffix.lower() in _PARQUET_SUFFIXES
    table = _read_parquet(path, named) if parquet else _read_text_table(path, named, delimiter)
    splits, clients = table.columns.get("split"), table.columns.get("client")
    num_rows = len(table.columns["head"])
    rows_of = group_rows(num_rows, splits, clients, table.place)

    def triples_of(rows: list[int]) -> NamedTriples:
        heads, relations, tails = ([table.columns[role][row] for row in rows] for role in TRIPLE)
        return NamedTriples(heads, relations, tails, lambda row: table.place(rows[row]))

    def by_split(client: str) -> dict[str, NamedTriples]:
        return {split: triples_of(rows_of.get((client, split), [])) for split in (SPLITS if splits else ("train",))}

    title = name or path.stem
    notes = [*table.notes, *([] if columns else _order_notes(path, table))]
    unsplit = f"{path}: no split column; all {num_rows:,} triples are read as train"
    if clients is None:
        notes += [] if splits else [f"{unsplit}; dividing them among clients draws validation and test triples"]
        return build_graph(title, by_split(""), empty=f"{path} ({{split}})", notes=notes)
    notes += [] if splits else [unsplit]
    parts = {client: by_split(client) for client in sorted(set(clients), key=natural_order)}
    return build_federation(title, parts, empty=f"{path} (client {{client}}, {{split}})", notes=notes)


def group_rows(
    num_rows: int, splits: list[str] | None, clients: list[str] | None, place: Callable[[int], str]
) -> dict[tuple[str, str], list[int]]:
    """Group row numbers by (client or "", split), in order.

    Args:
        num_rows: of the table.
        splits, clients: cells of these columns, or None.
        place: locates a row.

    Raises:
        DataError: a split is not in `SPLIT_NAMES`.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for row in range(num_rows):
        split = SPLIT_NAMES.get(splits[row].lower()) if splits else "train"
        if split is None:
            raise DataError(f"{place(row)}: split {shown(splits and splits[row])} is none of {', '.join(SPLIT_NAMES)}")
        groups.setdefault((clients[row] if clients else "", split), []).append(row)
    return groups


def _order_notes(path: Path, table: _Table) -> list[str]:
    """Warn if the heads look like relations: few names, while the relations have many."""
    heads, relations = (len(set(table.columns[role])) for role in ("head", "relation"))
    if heads > MOST_RELATIONS * relations:
        return []
    return [
        f"{path}: {heads:,} different heads and {relations:,} different relations; if relations come first, name the columns of "
        "head, relation and tail by --triple-columns"
    ]


def _check_filled(table: _Table) -> _Table:
    for column, cells in table.columns.items():
        blank = [cells.index(cell) for cell in set(cells) if cell is None or not cell.strip()]
        if blank:
            raise DataError(f"{table.place(min(blank))}: the {column} cell is empty")
    return table


def _delimiter(path: Path, text: str, named: Mapping[str, str]) -> str:
    """Return a tab; for `.csv` a comma, or a semicolon if it divides the first line into the wanted columns."""
    if path.suffix.lower() != ".csv":
        return "\t"
    try:
        first = next(csv.reader([text.partition("\n")[0]], delimiter=";"), [])
    except csv.Error:  # the reader will report it, with the line
        return ","
    try:
        _select(path, first, named)
    except DataError:
        return ";" if _is_headless(first, named) else ","
    return ";"


def _read_text_table(path: Path, named: Mapping[str, str], delimiter: str | None) -> _Table:
    text = read_text(path)
    delimiter = _delimiter(path, text, named) if delimiter is None else delimiter
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise DataError(f"{path}: delimiter {delimiter!r} must be one character, not a quote or line end")
    # Quotes are ordinary characters in the TSV media type.
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text.rstrip("\n")), delimiter=delimiter, quoting=quoting, strict=True)
    lines: list[int] = []
    rows: list[list[str]] = []
    line = 1
    try:
        header = next(reader, [])
        notes: tuple[str, ...]
        if _is_headless(header, named):
            chosen = {role: place for place, role in enumerate(TRIPLE)}
            notes = (f"{path}: no header line; the three columns are read as head, relation, tail",)
            rows.append(header)
            lines.append(1)
        else:
            chosen, notes = _select(path, header, named)
        line = reader.line_num + 1
        for row in reader:
            # A ragged row usually means an unquoted delimiter in a name.
            if len(row) != len(header):
                width = len(row) if row else "a blank line"
                raise DataError(f"{path}:{line}: expected {len(header)} fields, found {width}")
            rows.append(row)
            lines.append(line)
            line = reader.line_num + 1  # a quoted field may hold line ends
    except csv.Error as error:
        raise DataError(f"{path}:{line}: {error}") from error
    columns = {role: [row[place] for row in rows] for role, place in chosen.items()}
    return _check_filled(_Table(columns, lambda row: f"{path}:{lines[row]}", notes))


def _read_parquet(path: Path, named: Mapping[str, str]) -> _Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            header = file.schema_arrow.names
            chosen, notes = _select(path, header, named)
            if file.metadata.num_rows > MOST_ROWS:
                raise DataError(f"{path}: {file.metadata.num_rows:,} rows; at most {MOST_ROWS:,} are read")
            names = {role: header[place] for role, place in chosen.items()}
            table = file.read(columns=list(names.values()))
            columns = {role: _as_text(path, name, table.column(name)) for role, name in names.items()}
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: holds text that is not UTF-8") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: cannot be read as Parquet ({printable(reason, 200)})") from error
    return _check_filled(_Table(columns, lambda row: f"{path} row {row + 1}", notes))


def _as_text(path: Path, column: str, values: pa.ChunkedArray) -> list[str]:
    import pyarrow as pa

    # Dictionary columns store text once; look at the type of their values.
    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not (text or pa.types.is_integer(kind)):
        raise DataError(f"{path}: column {column} must hold text or integers, not {values.type}")
    return values.cast(kind).cast(pa.string()).to_pylist()
