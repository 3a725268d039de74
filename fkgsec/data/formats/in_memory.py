"""Graphs from objects in memory: pandas, lists of tuples, numpy, PyKEEN and NetworkX.

    graph = graph_from(frame)                                        # columns head, relation, tail (and split, client)
    graph = graph_from(dataset.training, valid=dataset.validation, test=dataset.testing)     # of PyKEEN
    graph = graph_from({"clinic": one, "ward": other}, ratio=(8, 1, 1))                      # a federation of two clients
    graph = partition(graph_from(triples), "relations", clients=3, seed=0)                   # or divided by a method

Names stay as they are; whole numbers become text. As for files, a missing or empty name, or a name that is neither text nor a
whole number, is an error. Irregularities (duplicates, names in test that train lacks) are counted in `graph.warnings`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fkgsec.arguments import checked
from fkgsec.data.assembly import NamedTriples, NameList, build_federation, build_graph, natural_order
from fkgsec.data.formats.tables import group_rows
from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph, KnowledgeGraph
from fkgsec.data.partition import split_triples
from fkgsec.errors import DataError
from fkgsec.randomness import generator
from fkgsec.text import shown

COLUMNS = ("head", "relation", "tail")
Graph = KnowledgeGraph | FederatedGraph
Parts = dict[str, dict[str, NamedTriples]]
"""Client (or "" of a graph that is not divided) -> split -> triples by name."""


def graph_from(
    triples: Any,
    *,
    valid: Any = None,
    test: Any = None,
    columns: Sequence[Any] = COLUMNS,
    client_column: str | None = None,
    split_column: str | None = None,
    relation: str | None = None,
    ratio: tuple[int, int, int] | None = None,
    seed: int = 0,
    sensitive: Iterable[str] = (),
    name: str = "graph",
) -> KnowledgeGraph | FederatedGraph:
    """Build a graph, or a federation of several clients' graphs, from triples in memory.

    >>> rows = [("ann", "takes", "aspirin"), ("bob", "takes", "ibuprofen"), ("ann", "knows", "bob")]
    >>> graph_from(rows, test=[("bob", "takes", "aspirin")])
    KnowledgeGraph(graph: 4 entities, 2 relations, 3 train, 0 valid, 1 test triples)
    >>> graph_from({"north": rows, "south": [("cas", "takes", "aspirin")]})
    FederatedGraph(graph: 2 clients, 5 entities, 2 relations, 4 train, 0 valid, 0 test triples; 1 warning)
    >>> graph_from([("ann", "takes", None)])
    Traceback (most recent call last):
    fkgsec.errors.DataError: graph: triple 0: the tail is missing

    Args:
        triples: one of
            - a pandas DataFrame; its columns "split" and "client" are read if it has them, like those of a table in a file;
            - rows of three names: a list of tuples, or an array of shape `[n, 3]`;
            - a PyKEEN `TriplesFactory`, whose IDs are kept (a `CoreTriplesFactory` has no names; its IDs become names);
            - a NetworkX `MultiDiGraph` or `DiGraph`, whose nodes keep their order, including those without edges;
            - a mapping from clients' names to any of these: a federation, in the order of the mapping.
        valid, test: further splits, of any of these kinds; mappings of the same clients if `triples` is one. None: they come
            from the split column, or from `ratio`, or are empty.
        columns: of a DataFrame, those of heads, relations and tails.
        client_column, split_column: of a DataFrame, instead of "client" and "split"; splits are named train, valid
            (validation, val, dev) and test.
        relation: of a NetworkX graph, the edge attribute that names the relation; None: the key of an edge does.
        ratio: parts of train, valid and test, for triples without splits: each client's triples are divided, see
            `split_triples`. `partition` splits by itself. None: all are in train.
        seed: of that division.
        sensitive: names of relations whose triples must not leak; reports show them first.
        name: of the graph in reports.

    Returns:
        A `FederatedGraph` if clients are given, by a mapping or a column (then in natural order), else a `KnowledgeGraph`,
        which `fkgsec.partition` divides.

    Raises:
        DataError: an unsupported object, a row without three names, a missing or empty name, a name that is neither text nor
            a whole number, an unknown column or split, or no triples.
    """
    checked("name", str, name)
    source = _Source(name, columns, client_column, split_column, relation)
    parts, divided = source.parts({"train": triples, "valid": valid, "test": test})
    # A ratio would silently replace the user's own splits.
    if ratio is not None and any(_filled(splits) - {"train"} for splits in parts.values()):
        raise DataError(f"{name}: ratio applies to triples without splits, and these have some; leave it out")
    for client, splits in parts.items():
        if "train" not in _filled(splits):
            raise DataError(f"{name}: {f'client {shown(client)} has ' if divided else ''}no triples to train on")
    if divided and ratio is None and all(splits.keys() == {"train"} for splits in parts.values()):
        source.notes.append(f"{name}: no splits, all triples are in train; ratio=(8, 1, 1) divides each client's")
    entities, relations = source.vocabularies()
    options: dict[str, Any] = {"entities": entities, "relations": relations, "notes": source.notes}
    graph = (
        build_federation(name, parts, empty=f"{name}, client {{client}}, {{split}}", **options)
        if divided
        else build_graph(name, parts[""], empty=f"{name}, {{split}}", **options)
    )
    graph = graph if ratio is None else with_splits(graph, ratio, seed)
    unknown = set(sensitive) - set(graph.relations)
    if unknown:
        raise DataError(
            f"{name}: sensitive relations that the graph does not have: {', '.join(map(shown, sorted(unknown)))}"
        )
    return replace(graph, sensitive=frozenset(sensitive))


def with_splits(graph: Graph, ratio: tuple[int, int, int], seed: int) -> Graph:
    """Divide training triples into three splits, separately for each client.

    Duplicates are dropped first, since they could end up on both sides.

    Args:
        graph: with all triples in train.
        ratio, seed: see `graph_from`.
    """
    clients, warnings = [], list(graph.warnings)
    parts = graph.clients if isinstance(graph, FederatedGraph) else (graph,)
    for place, part in enumerate(parts):
        global_triples = part.to_global(part.train) if isinstance(part, ClientGraph) else part.train
        # Duplicates first: of two copies one could be in train and one in test.
        triples = np.unique(global_triples, axis=0)
        splits = split_triples(triples, ratio, rng=generator(seed, "split", place))
        dropped = f"{len(global_triples) - len(triples)} of {len(global_triples)} triples were exact duplicates and were dropped"
        notes = (*([dropped] if len(triples) < len(global_triples) else []), *splits.warnings)
        warnings += [f"{part.name}: {note}" for note in notes]
        clients.append((part.name, splits.train, splits.valid, splits.test))
    if isinstance(graph, FederatedGraph):
        made_clients = tuple(ClientGraph.from_global(*client) for client in clients)
        return replace(graph, clients=made_clients, warnings=tuple(warnings))
    _, train, valid, test = clients[0]
    return replace(graph, train=train, valid=valid, test=test, warnings=tuple(warnings))


class _Rows(NamedTuple):
    """Three lists of original cells, a function that locates a row, and split and client of each row if columns give them."""

    cells: tuple[list[Any], list[Any], list[Any]]
    place: Callable[[int], str]
    splits: list[str] | None = None
    clients: list[str] | None = None


class _Source:
    """Reader of all objects that `graph_from` accepts; it collects vocabularies and notes."""

    def __init__(
        self,
        name: str,
        columns: Sequence[Any],
        client_column: str | None,
        split_column: str | None,
        relation: str | None,
    ) -> None:
        self.name, self.columns, self.relation = name, tuple(columns), relation
        self.client_column, self.split_column = client_column, split_column
        self.notes: list[str] = []
        self._named: dict[str, Any] = {}  # original names of entities and relations, by their text
        self._listed: dict[str, list[list[str]]] = {"entities": [], "relations": []}

    def parts(self, sources: Mapping[str, Any]) -> tuple[Parts, bool]:
        """Return all triples by client and split, and whether there are clients.

        Args:
            sources: objects by split; None: no such split.
        """
        if not isinstance(sources["train"], Mapping) or _is_networkx(sources["train"]):
            return self._of_one(sources)
        parts: Parts = {}
        for split, by_client in sources.items():
            if by_client is None:
                continue
            if not isinstance(by_client, Mapping):
                got = type(by_client).__name__
                raise DataError(f"{self.name}: {split}: a mapping of clients is expected, as for the others; got {got}")
            if strange := [name for name in by_client if name not in sources["train"]]:
                raise DataError(f"{self.name}: {split}: client {shown(strange[0])} has no triples to train on")
            for client, source in by_client.items():
                if not isinstance(client, str) or not client.strip():
                    raise DataError(f"{self.name}: a client's name must be text; got {shown(client)}")
                client_parts, divided = self._of_one({split: source}, f"client {shown(client)}, {split}")
                if divided:
                    raise DataError(
                        f"{self.name}: client {shown(client)} has a client column itself; leave one of them out"
                    )
                if twice := client_parts[""].keys() & parts.get(client, {}).keys():
                    raise DataError(f"{self.name}: client {shown(client)}: the split {min(twice)} is given twice")
                parts.setdefault(client, {}).update(client_parts[""])
        if not parts:
            raise DataError(f"{self.name}: a mapping without clients")
        return parts, True

    def _of_one(self, sources: Mapping[str, Any], where: str = "") -> tuple[Parts, bool]:
        parts: Parts = {}
        divided = False
        for split, source in sources.items():
            if source is None and split != "train":
                continue
            label = where or (
                split if len(sources) > 1 and any(sources[name] is not None for name in SPLITS[1:]) else ""
            )
            rows = self._rows(source, f"{self.name}: {label}: " if label else f"{self.name}: ")
            for (client, of_row), chosen in group_rows(
                len(rows.cells[0]), rows.splits if split == "train" else None, rows.clients, rows.place
            ).items():
                divided |= rows.clients is not None
                target = split if split != "train" else of_row
                if target in _filled(parts.setdefault(client, {})):
                    raise DataError(f"{self.name}: the split {target} is given twice, in a column and as {target}=")
                parts[client][target] = self._by_name(rows, chosen)
            # With a split column, a split without rows is empty, as in a file.
            if rows.splits and split == "train":
                for splits in parts.values():
                    splits.update({name: self._by_name(rows, []) for name in SPLITS if name not in splits})
        if divided:
            if "" in parts:
                raise DataError(f"{self.name}: some splits have a client column and some have none")
            parts = {client: parts[client] for client in sorted(parts, key=natural_order)}
        return parts or {"": {}}, divided

    def _by_name(self, rows: _Rows, chosen: list[int]) -> NamedTriples:
        heads, relations, tails = (
            [self._text(cells[row], part, rows.place, row) for row in chosen]
            for cells, part in zip(rows.cells, COLUMNS, strict=True)
        )
        return NamedTriples(heads, relations, tails, lambda row: rows.place(chosen[row]))

    def _text(self, cell: Any, part: str, place: Callable[[int], str], row: int) -> str:
        """Return a name as text. Raises `DataError` for other cells, and for a number whose text is another name."""
        if type(cell) is not str:
            cell = _plain(cell)
        if cell is None:
            raise DataError(f"{place(row)}: the {part} is missing")
        if isinstance(cell, bool) or not isinstance(cell, str | int):
            raise DataError(f"{place(row)}: the {part} must be text or a whole number; got {shown(cell)}")
        text = str(cell)
        if not text.strip():
            raise DataError(f"{place(row)}: the {part} is empty")
        # An entity and a relation may share a name: the first character separates them.
        key = f"{part == 'relation':d}{text}"
        # 1 and "1" would silently become one entity.
        if type(self._named.setdefault(key, cell)) is not type(cell):
            raise DataError(
                f"{place(row)}: the {part} {text} stands as a number here and as text elsewhere; give one of them"
            )
        return text

    def _rows(self, source: Any, where: str) -> _Rows:
        if isinstance(source, KnowledgeGraph | FederatedGraph):
            raise DataError(f"{where}a {type(source).__name__} is a graph already; fkgsec.partition divides one")
        if isinstance(source, pd.DataFrame):
            return self._of_frame(source, where)
        if hasattr(source, "mapped_triples"):
            return self._of_factory(source, where)
        if _is_networkx(source):
            return self._of_networkx(source, where)
        if isinstance(source, str | bytes) or hasattr(source, "__fspath__"):
            raise DataError(f"{where}{shown(str(source))} is text; fkgsec.read_path reads files")
        if isinstance(source, np.ndarray):
            if source.ndim != 2 or source.shape[1] != 3:
                raise DataError(f"{where}an array of triples has shape [n, 3]; got {list(source.shape)}")
            heads, relations, tails = (source[:, part].tolist() for part in range(3))
            return _Rows((heads, relations, tails), lambda row: f"{where}triple {row}")
        if not isinstance(source, Iterable) or isinstance(source, Mapping):
            allowed = "a DataFrame, rows of three names, an array, a TriplesFactory, a NetworkX graph"
            raise DataError(f"{where}{type(source).__name__} holds no triples that can be read; allowed: {allowed}")
        rows = list(source)
        for place, row in enumerate(rows):
            if isinstance(row, str | bytes) or not isinstance(row, Sequence | np.ndarray) or len(row) != 3:
                raise DataError(f"{where}triple {place} must be three names (head, relation, tail); got {shown(row)}")
        heads, relations, tails = ([row[part] for row in rows] for part in range(3))
        return _Rows((heads, relations, tails), lambda row: f"{where}triple {row}")

    def _of_frame(self, frame: pd.DataFrame, where: str) -> _Rows:
        wanted = [
            *self.columns,
            *(wanted_column for wanted_column in (self.split_column, self.client_column) if wanted_column is not None),
        ]
        split = self.split_column or ("split" if "split" in frame.columns and "split" not in wanted else None)
        client = self.client_column or ("client" if "client" in frame.columns and "client" not in wanted else None)
        wanted = list(
            dict.fromkeys([*wanted, *(wanted_column for wanted_column in (split, client) if wanted_column is not None)])
        )
        if missing := [wanted_column for wanted_column in wanted if wanted_column not in frame.columns]:
            there = ", ".join(shown(wanted_column, 40) for wanted_column in frame.columns[:20])
            raise DataError(f"{where}no column {', '.join(map(shown, missing))}; the frame has {there or 'none'}")
        if twice := [wanted_column for wanted_column in wanted if list(frame.columns).count(wanted_column) > 1]:
            raise DataError(f"{where}more than one column {shown(twice[0])}")
        if len({*self.columns}) < 3 or {split, client} & {*self.columns}:
            raise DataError(
                f"{where}one column is requested twice ({', '.join(map(str, (*self.columns, *filter(None, (split, client)))))})"
            )
        # Messages name rows by the frame's index, which users see.
        labels = frame.index

        def place(row: int) -> str:
            return f"{where}row {shown(labels[row], 40)}"

        def texts(column: str | None) -> list[str] | None:
            if column is None:
                return None
            cells = [_plain(cell) for cell in frame[column].tolist()]
            for row, cell in enumerate(cells):
                if isinstance(cell, bool) or not isinstance(cell, str | int) or not str(cell).strip():
                    what = "is missing" if cell is None else f"must be text; got {shown(cell)}"
                    raise DataError(f"{place(row)}: the {column} {what}")
            return [str(cell) for cell in cells]

        heads, relations, tails = (frame[column].tolist() for column in self.columns)
        return _Rows((heads, relations, tails), place, texts(split), texts(client))

    def _of_factory(self, factory: Any, where: str) -> _Rows:
        """Read PyKEEN's factory, without the inverse relations that it adds for training."""
        mapped = np.asarray(factory.mapped_triples)
        labels = []
        for what, ids in (("entities", "entity_to_id"), ("relations", "relation_to_id")):
            numbers = getattr(factory, ids, None)
            if numbers is None:
                count = factory.num_entities if what == "entities" else factory.real_num_relations
                self.notes.append(f"{where}a factory without names; {what} are named by their ids")
                names: list[Any] = list(range(count))
            else:
                # In the order of PyKEEN's IDs, so that its embeddings fit.
                names = sorted(numbers, key=numbers.__getitem__)
            self._listed[what].append([str(_plain(label)) for label in names])
            labels.append(names)
        entities, relations = labels
        cells = (
            [entities[number] for number in mapped[:, 0]],
            [relations[number] for number in mapped[:, 1]],
            [entities[number] for number in mapped[:, 2]],
        )
        return _Rows(cells, lambda row: f"{where}triple {row}")

    def _of_networkx(self, graph: Any, where: str) -> _Rows:
        if not graph.is_directed():
            raise DataError(
                f"{where}an undirected graph does not say which end of an edge is the head; give a MultiDiGraph"
            )
        if self.relation is None and not graph.is_multigraph():
            raise DataError(
                f"{where}a DiGraph has no keys that name relations; give relation=, the edge attribute that does"
            )
        edges = list(graph.edges(keys=True, data=True)) if graph.is_multigraph() else [
            (head, tail, None, data) for head, tail, data in graph.edges(data=True)
        ]  # fmt: skip
        named = []
        for head, tail, key, data in edges:
            if self.relation is not None and self.relation not in data:
                raise DataError(
                    f"{where}the edge {shown(head)} to {shown(tail)} has no attribute {shown(self.relation)}"
                )
            if self.relation is None and not isinstance(key, str):
                raise DataError(
                    f"{where}the edge {shown(head)} to {shown(tail)} has the key {shown(key)}, a number of NetworkX's; give "
                    "relation=, the edge attribute that names the relation"
                )
            named.append(key if self.relation is None else data[self.relation])
        ends = ([edge[0] for edge in edges], named, [edge[1] for edge in edges])
        # Nodes without edges are entities, too.
        self._listed["entities"].append([str(_plain(node)) for node in graph.nodes])
        return _Rows(ends, lambda row: f"{where}edge {shown(edges[row][0])} to {shown(edges[row][1])}")

    def vocabularies(self) -> tuple[NameList | None, NameList | None]:
        """Return the names that sources list, in order, followed by all others; None if no source lists names."""
        lists = []
        for what in ("entities", "relations"):
            listed = dict.fromkeys(chain.from_iterable(self._listed[what]))
            wanted = "1" if what == "relations" else "0"
            used = (key[1:] for key in self._named if key[0] == wanted)
            lists.append(NameList(self.name, tuple(dict.fromkeys(chain(listed, used)))) if listed else None)
        return lists[0], lists[1]


def _filled(splits: Mapping[str, NamedTriples]) -> set[str]:
    return {split for split, triples in splits.items() if triples.heads}


def _is_networkx(source: Any) -> bool:
    return callable(getattr(source, "is_multigraph", None)) and callable(getattr(source, "edges", None))


def _plain(cell: Any) -> Any:
    """Return the text or whole number in a cell; None if it is missing (None, NaN, NaT, pandas' NA); else the cell."""
    if isinstance(cell, str):
        return str(cell)
    if isinstance(cell, bool | np.bool_):
        return bool(cell)
    if hasattr(cell, "__index__"):
        return operator.index(cell)
    # pandas' isna fails on lists and arrays.
    return None if pd.api.types.is_scalar(cell) and pd.isna(cell) else cell
