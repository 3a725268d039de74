"""Folders of tab-separated triples: one graph (`train.txt`, `valid.txt`, `test.txt`) or one such folder per client."""

from __future__ import annotations

import tempfile
import unicodedata
from functools import partial
from pathlib import Path

import numpy as np

from fkgsec.data.assembly import NamedTriples, NameList, build_federation, build_graph, natural_order
from fkgsec.data.graph import SPLITS, FederatedGraph, KnowledgeGraph
from fkgsec.errors import DataError
from fkgsec.text import printable, shown

_TRIPLE_FIELDS = ("head", "relation", "tail")
_DICT_FIELDS = ("id", "name")
_MOST_DIGITS = 19  # of an ID; int() of thousands of digits is an error
_MOST_NAMES = 8  # maximum in an error message
_LONGEST_NAME = 200  # bytes; file systems allow 255, and suffixes are appended


def read_tsv_folder(folder: Path | str, name: str | None = None) -> KnowledgeGraph:
    """Read a folder with `train.txt`, `valid.txt` and `test.txt`: UTF-8, one `head<TAB>relation<TAB>tail` per line.

    If `entities.dict` and `relations.dict` (one `id<TAB>name` per line) exist, they determine the IDs and must list every
    name. Otherwise IDs follow the first appearance in train, valid, test. A byte-order mark, CRLF and blank lines at the end
    are accepted. Duplicates are kept. `warnings` counts duplicates, empty valid or test, and names that train lacks.

    Args:
        name: of the graph; the folder's name when None.

    Raises:
        DataError: a missing file, a malformed or non-UTF-8 line, an empty train split, an unlisted name (`file:line`).
    """
    folder = Path(folder)
    return build_graph(
        name or folder.resolve().name,
        _read_splits(folder),
        entities=_read_dict(folder / "entities.dict"),
        relations=_read_dict(folder / "relations.dict"),
        empty=f"{folder}/{{split}}.txt",
    )


def read_client_folders(folder: Path | str, name: str | None = None) -> FederatedGraph:
    """Read the layout published with FedLU: one subfolder per client with `train.txt`, `valid.txt` and `test.txt`.

    Clients are in natural order (9 before 10) and share one vocabulary: that of `entities.dict` and `relations.dict` in
    `folder` itself if they exist, else by first appearance. A client's own dict files (local IDs) and `unlearn.txt` are not
    read. Hidden subfolders are skipped; any other subfolder is a client and must have the three files.

    Args:
        name: of the federation; the folder's name when None.

    Raises:
        DataError: there is no subfolder; or as in `read_tsv_folder`.
    """
    folder = Path(folder)
    subfolders = sorted(client_folders(folder), key=lambda path: natural_order(path.name))
    if not subfolders:
        raise DataError(
            f"{folder}: no client subfolders (expected one per client, with train.txt, valid.txt, test.txt)"
        )
    return build_federation(
        name or folder.resolve().name,
        {path.name: _read_splits(path) for path in subfolders},
        entities=_read_dict(folder / "entities.dict"),
        relations=_read_dict(folder / "relations.dict"),
        empty=f"{folder}/{{client}}/{{split}}.txt",
    )


def write_client_folders(federated: FederatedGraph, folder: Path | str) -> None:
    """Write the layout that `read_client_folders` reads, with root dict files so that global IDs are preserved.

    The folder appears complete or not at all: it is written under another name and renamed. Reading it back gives every
    client the same splits in the same row order, under the same IDs; clients are then in natural order. `sensitive` and
    `warnings` are not part of the layout.

    Args:
        federated: the federation.
        folder: a new or empty folder.

    Raises:
        DataError: the folder exists and is not empty, cannot be written, or the layout cannot represent a name.
    """
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DataError(f"{folder}: is there already; name a new folder")
    for what, names in (("entity", federated.entities), ("relation", federated.relations)):
        for written in names:
            if not written.strip() or any(letter in written for letter in "\t\n\r\0"):
                raise DataError(f"{folder}: {what} {shown(written)} cannot stand in a tab-separated file")
    for client in federated.clients:
        if not can_name_a_file(client.name):
            raise DataError(f"{folder}: client name {shown(client.name)} cannot be a folder's name")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
            whole = Path(scratch) / "out"
            _write_all(federated, whole)
            # A rename is atomic: an interrupted run leaves no partial dataset.
            whole.replace(folder)
    except (OSError, UnicodeEncodeError) as error:
        raise DataError(f"{folder}: cannot be written ({error})") from error


def can_name_a_file(name: str) -> bool:
    """Return whether a client's name can be part of a path.

    It must neither leave its folder nor be hidden in it, leave room for a suffix, and have no control characters, which a
    listing would send to the terminal.

    Args:
        name: of the client.

    >>> can_name_a_file("hospital-1"), can_name_a_file("../x"), can_name_a_file("a/b"), can_name_a_file(".x")
    (True, False, False, False)
    """
    # Backslashes, too: they separate folders on Windows.
    refused = any(letter in "/\\" or unicodedata.category(letter) in ("Cc", "Cs") for letter in name)
    plain = bool(name.strip()) and not name.startswith(".") and not refused
    return plain and len(name.encode(errors="replace")) <= _LONGEST_NAME


def read_triple_file(path: Path | str) -> NamedTriples:
    """Read a file of tab-separated triples, by name.

    Args:
        path: of the file.

    Raises:
        DataError: the file is malformed; the message gives file and line.
    """
    heads, relations, tails = _read_columns(Path(path), _TRIPLE_FIELDS)
    return NamedTriples(heads, relations, tails, partial(_line, path))


def client_folders(folder: Path) -> list[Path]:
    """List the subfolders that are not hidden, in no order.

    Raises:
        DataError: the folder does not exist.
    """
    _check_folder(folder)
    return [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]


def what_lies_in(folder: Path) -> str:
    """List the first names in a folder, for an error message about a missing file."""
    names = sorted((f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir()), key=natural_order)
    if not names:
        return "it is empty"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"it has: {', '.join(printable(name, 40) for name in names[:_MOST_NAMES])}{more}"


def read_id(text: str, count: int) -> int | None:
    """Parse an ID.

    Args:
        text: decimal digits.
        count: number of IDs.

    Returns:
        The number, from 0 to `count` - 1; None for any other text.

    >>> read_id("12", 20), read_id("12", 12), read_id("-1", 20), read_id("9" * 5000, 20), read_id("\u0661", 20)
    (12, None, None, None, None)
    """
    digits = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return number if digits and (number := int(text)) < count else None


def read_text(path: Path) -> str:
    """Read a whole UTF-8 file without its byte-order mark; lines end with `\\n`.

    Args:
        path: of the file.

    Raises:
        DataError: the file is unreadable, or has bytes that are not UTF-8, or a NUL; with the line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8 (byte 0x{content[error.start]:02x})") from error
    if "\0" in text:
        raise DataError(f"{path}:{text.count(chr(10), 0, text.index(chr(0))) + 1}: a NUL byte (is the file UTF-16?)")
    return text.replace("\r\n", "\n")


def _line(path: Path | str, row: int) -> str:
    return f"{path}:{row + 1}"


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")


def _read_splits(folder: Path) -> dict[str, NamedTriples]:
    _check_folder(folder)
    missing = [f"{split}.txt" for split in SPLITS if not (folder / f"{split}.txt").is_file()]
    if missing:
        raise DataError(
            f"{folder}: missing {', '.join(missing)} (an empty file is allowed for valid.txt and test.txt); "
            f"{what_lies_in(folder)}"
        )
    return {split: read_triple_file(folder / f"{split}.txt") for split in SPLITS}


def _read_dict(path: Path) -> NameList | None:
    if not path.is_file():
        return None
    ids, names = _read_columns(path, _DICT_FIELDS)
    by_id: dict[int, str] = {}
    lines: dict[str, int] = {}
    for line, (id_, name) in enumerate(zip(ids, names, strict=True), start=1):
        number = read_id(id_, len(ids))
        if number is None:
            raise DataError(f"{path}:{line}: id {shown(id_)} must be a number from 0 to {len(ids) - 1}")
        if number in by_id:
            raise DataError(f"{path}:{line}: id {number} is listed twice")
        if name in lines:
            raise DataError(f"{path}:{line}: name {shown(name)} is listed twice (first in line {lines[name]})")
        by_id[number] = name
        lines[name] = line
    return NameList(str(path), tuple(by_id[id_] for id_ in range(len(by_id))))


def _read_columns(path: Path, fields: tuple[str, ...]) -> list[list[str]]:
    """Read the columns of a tab-separated file. Raises `DataError` with `file:line` for the first malformed line."""
    lines = read_text(path).split("\n")
    # Editors add blank lines at the end; elsewhere they are errors.
    while lines and not lines[-1].strip(" \r"):
        lines.pop()
    if not lines:
        return [[] for _ in fields]
    # Count separators before splitting, to report the first malformed line.
    wrong = [row for row, line in enumerate(lines) if line.count("\t") != len(fields) - 1]
    if wrong:
        width = len(lines[wrong[0]].split("\t")) if lines[wrong[0]].strip() else "a blank line"
        raise DataError(f"{_line(path, wrong[0])}: expected {len(fields)} tab-separated fields, found {width}")
    # One split over the whole text is several times faster than one per line.
    cells = "\t".join(lines).split("\t")
    columns = [cells[start :: len(fields)] for start in range(len(fields))]
    blank = [
        (column.index(cell), field)
        for column, field in zip(columns, fields, strict=True)
        for cell in set(column)
        if not cell.strip()
    ]
    if blank:
        row, field = min(blank)
        raise DataError(f"{_line(path, row)}: the {field} field is empty")
    return columns


def _write_all(federated: FederatedGraph, folder: Path) -> None:
    folder.mkdir()
    entities = np.array(federated.entities, dtype=object)
    relations = np.array(federated.relations, dtype=object)
    for file_name, names in (("entities.dict", federated.entities), ("relations.dict", federated.relations)):
        _write_text(folder / file_name, "".join(f"{id_}\t{name}\n" for id_, name in enumerate(names)))
    for client in federated.clients:
        (folder / client.name).mkdir()
        for split in SPLITS:
            triples = client.to_global(getattr(client, split))
            rows = zip(entities[triples[:, 0]], relations[triples[:, 1]], entities[triples[:, 2]], strict=True)
            _write_text(folder / client.name / f"{split}.txt", "".join(f"{h}\t{r}\t{t}\n" for h, r, t in rows))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
