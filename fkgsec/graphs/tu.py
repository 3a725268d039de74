"""Graphs in the format of the TU collection (Morris et al. 2020): a folder of text files.

    graphs = read_tu_folder(Path("TUDataset/MUTAG"))

    MUTAG_A.txt                 one directed edge per line, "from, to": nodes of all graphs, numbered from 1
    MUTAG_graph_indicator.txt   one node per line: its graph, numbered from 1, in ascending order
    MUTAG_graph_labels.txt      one graph per line: its class, any integer
    MUTAG_node_labels.txt       one node per line: one or more integers; optional
    MUTAG_node_attributes.txt   one node per line: one or more numbers; optional

The files are in the folder itself or in its subfolder `raw`, where torch_geometric puts them. Edge labels and graph attributes
are not read: the federations of the papers do not use them. As in torch_geometric, self-loops and repeated edges are dropped (a
warning counts them), and labels and classes are numbered from 0. Unlike there, errors of a damaged folder give file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pandas as pd

from fkgsec.data.catalogue import tu_files
from fkgsec.errors import DataError
from fkgsec.graphs.sets import GraphSet

_INTEGER = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def read_tu_folder(folder: Path) -> GraphSet:
    """Read the graphs in a folder; the set is named after it.

    Args:
        folder: with the files above.

    Raises:
        DataError: a file is missing, empty or damaged; the message gives file and line.
    """
    files = tu_files(folder)
    if files is None:
        raise DataError(f"{folder}: no TU folder, it needs one file *_A.txt (here or in raw/)")
    place, prefix = files

    def path(kind: str) -> Path:
        """Return the path of one of the set's files."""
        return place / f"{prefix}_{kind}.txt"

    graph_of = _integers(path("graph_indicator"), columns=1)[:, 0]
    raw_classes = _integers(path("graph_labels"), columns=1)[:, 0]
    sizes = _sizes(graph_of, len(raw_classes), path)
    edges, warnings = _edges(path("A"), graph_of)
    labels = attributes = None
    if path("node_labels").exists():
        labels = _one_a_node(_integers(path("node_labels")), len(graph_of), path("node_labels"))
        # Labels start at 0 or 1 or elsewhere, depending on the set.
        labels = labels - labels.min(axis=0)
    if path("node_attributes").exists():
        attributes = _one_a_node(_numbers(path("node_attributes")), len(graph_of), path("node_attributes"))
    classes = np.unique(raw_classes, return_inverse=True)[1]
    name = folder.resolve().name
    return GraphSet.from_edges(name, sizes, edges, classes, labels, attributes, warnings=warnings)


def _sizes(graph_of: np.ndarray, num_graphs: int, path: Callable[[str], Path]) -> np.ndarray:
    """Count the nodes of each graph, int64 `[G]`."""
    file = path("graph_indicator")
    if graph_of[0] != 1:
        raise DataError(f"{file}:1: graph {graph_of[0]}; the first graph is number 1")
    # Nodes of a graph must be consecutive.
    steps = np.diff(graph_of)
    wrong = np.flatnonzero((steps < 0) | (steps > 1))
    if len(wrong):
        line, before, graph = wrong[0] + 2, graph_of[wrong[0]], graph_of[wrong[0] + 1]
        raise DataError(f"{file}:{line}: graph {graph} after graph {before}; expected {before} or {before + 1}")
    if graph_of[-1] != num_graphs:
        raise DataError(
            f"{file}:{len(graph_of)}: nodes of {graph_of[-1]} graphs; {path('graph_labels').name} has the classes of {num_graphs}"
        )
    return np.bincount(graph_of - 1)


def _edges(file: Path, graph_of: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Read directed edges `[m, 2]`, numbered from 0, without self-loops; and warnings about dropped or one-way
    edges."""
    num_nodes = len(graph_of)
    edges = _integers(file, columns=2) - 1
    outside = np.flatnonzero(((edges < 0) | (edges >= num_nodes)).any(axis=1))
    if len(outside):
        left, right = edges[outside[0]] + 1
        raise DataError(f"{file}:{outside[0] + 1}: edge {left}, {right}; allowed: nodes 1..{num_nodes}")
    between = np.flatnonzero(graph_of[edges[:, 0]] != graph_of[edges[:, 1]])
    if len(between):
        left, right = graph_of[edges[between[0]]]
        raise DataError(f"{file}:{between[0] + 1}: an edge between graphs {left} and {right}")
    plain = edges[edges[:, 0] != edges[:, 1]]
    keys = np.sort(
        plain[:, 0] * num_nodes + plain[:, 1]
    )  # faster than np.unique, which hashes numbers that are sorted mostly
    keys = keys[np.diff(keys, prepend=-1) > 0]
    # An edge without its reverse: legal, but unusual in these sets.
    one_way = int((~np.isin(keys % num_nodes * num_nodes + keys // num_nodes, keys, assume_unique=True)).sum())
    counts = (
        (len(edges) - len(plain), "edges of a node to itself were dropped"),
        (len(plain) - len(keys), "repeated edges were dropped"),
        (one_way, "edges stand in one direction only"),
    )
    return plain, [f"{file.name}: {count} {what}" for count, what in counts if count]


def _one_a_node(rows: np.ndarray, num_nodes: int, file: Path) -> np.ndarray:
    if len(rows) != num_nodes:
        raise DataError(f"{file}: {len(rows)} lines; {num_nodes} nodes, a line each")
    return rows


def _integers(file: Path, columns: int | None = None) -> np.ndarray:
    return _table(file, np.int64, _INTEGER, "a whole number", columns)


def _numbers(file: Path) -> np.ndarray:
    values = _table(file, np.float64, _NUMBER, "a number", None)
    # The negation also catches NaN.
    beyond = np.flatnonzero(~(np.abs(values) <= np.finfo(np.float32).max).all(axis=1))
    if len(beyond):
        _refuse(file, int(beyond[0]) + 1, "a number beyond what 32 bits hold")
    return values.astype(np.float32)


def _table(file: Path, kind: type, pattern: re.Pattern[str], what: str, columns: int | None) -> np.ndarray:
    """Read the comma-separated values of a file, `[lines, columns]`; `columns` None: as many as in its first line."""
    try:
        table = pd.read_csv(
            file, header=None, dtype=kind, skip_blank_lines=False, skipinitialspace=True, na_filter=False
        )
        values = table.to_numpy()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
    except (ValueError, OverflowError):  # pandas's parser errors are ValueErrors and name no line of ours
        return _line_by_line(file, kind, pattern, what, columns)
    if columns not in (None, values.shape[1]) or np.isnan(values).any():
        return _line_by_line(file, kind, pattern, what, columns)
    return values


def _line_by_line(file: Path, kind: type, pattern: re.Pattern[str], what: str, columns: int | None) -> np.ndarray:
    """Read like `_table`, but slowly, to report the first wrong line."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{file}:{line}: not text") from error
    if not lines:
        raise DataError(f"{file}: empty")
    rows = []
    for number, line in enumerate(lines, start=1):
        fields = [field.strip() for field in line.split(",")]
        columns = columns or len(fields)
        if len(fields) != columns:
            _refuse(file, number, f"{len(fields)} values; {columns} expected")
        for field in fields:
            if not pattern.fullmatch(field):
                _refuse(file, number, f"{field[:40]!r} is not {what}")
        rows.append(fields)
    return np.array(rows).astype(kind)


def _refuse(file: Path, line: int, fault: str) -> NoReturn:
    raise DataError(f"{file}:{line}: {fault}")
