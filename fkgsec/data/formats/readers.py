"""Readers of all formats, and the choice of one by the content of a path."""

from __future__ import annotations

from pathlib import Path

from fkgsec.data.assembly import build_graph
from fkgsec.data.formats.folders import (
    client_folders,
    read_client_folders,
    read_triple_file,
    read_tsv_folder,
    what_lies_in,
    write_client_folders,
)
from fkgsec.data.formats.pickles import read_fede_pickle
from fkgsec.data.formats.rdf import read_rdf
from fkgsec.data.formats.tables import read_triple_table
from fkgsec.data.graph import SPLITS, FederatedGraph, KnowledgeGraph
from fkgsec.errors import DataError
from fkgsec.text import printable

__all__ = [
    "read_client_folders",
    "read_fede_pickle",
    "read_path",
    "read_rdf",
    "read_triple_table",
    "read_tsv_folder",
    "write_client_folders",
]

TABLES = (".csv", ".tsv", ".parquet", ".pq")
LAYOUTS = (
    "a folder with train.txt, valid.txt and test.txt",
    "a folder with one such subfolder per client",
    "a .csv, .tsv or .parquet table with the columns head, relation, tail, or subject, predicate, object (and split, client)",
    "an .nt or .ttl file",
    "a .pkl file of FedE or FedR",
    "a .txt file of head<TAB>relation<TAB>tail lines",
)


def read_path(path: Path | str, columns: tuple[str, str, str] | None = None) -> KnowledgeGraph | FederatedGraph:
    """Read the graph or federation at `path` with the reader for its layout (see `LAYOUTS`).

    A bare `.txt` file and an RDF file have no splits: all triples are in train, and a warning says so.

    Args:
        path: of a file or folder.
        columns: of a table, the names of the head, relation and tail columns; None: see
            `fkgsec.data.formats.tables.ROLES`.

    Raises:
        DataError: the path does not exist, `columns` are given without a table, no layout matches, or the reader fails.
    """
    path = Path(path)
    try:
        there = path.exists()
    except OSError as error:  # a name longer than file systems take, a folder that may not be entered
        raise DataError(f"{printable(str(path), 80)}: cannot be read ({error.strerror or error})") from error
    if not there:
        raise DataError(f"{printable(str(path), 400)}: no such file or folder")
    suffix = path.suffix.lower()
    # Ignoring the option would read other columns than the user named.
    if columns is not None and (path.is_dir() or suffix not in TABLES):
        raise DataError(f"{path}: is no {', '.join(TABLES)} table, which alone has columns to name; leave them out")
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise DataError(f"{path}: neither a folder nor a plain file (a pipe or a device)")
    if suffix in TABLES:
        return read_triple_table(path, columns)
    if suffix in (".nt", ".ttl"):
        return read_rdf(path)
    if suffix in (".pkl", ".pickle"):
        return read_fede_pickle(path)
    if suffix == ".txt":
        train = read_triple_file(path)
        note = f"{path}: no splits, all {len(train.heads):,} triples are in train"
        return build_graph(path.stem, {"train": train}, empty=str(path), notes=[note])
    raise _unknown_layout(path)


def _read_folder(path: Path) -> KnowledgeGraph | FederatedGraph:
    def has_split(folder: Path) -> bool:
        return any((folder / f"{split}.txt").is_file() for split in SPLITS)

    # One split file is enough to know the layout: the reader then says which of the others is missing.
    if has_split(path):
        return read_tsv_folder(path)
    if any(has_split(folder) for folder in client_folders(path)):
        return read_client_folders(path)
    raise _unknown_layout(path)


def _unknown_layout(path: Path) -> DataError:
    there = f"; {what_lies_in(path)}" if path.is_dir() else ""
    return DataError(f"{path}: not a layout that can be read{there}; accepted: {'; '.join(LAYOUTS)}")
