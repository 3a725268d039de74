"""Knowledge graphs and their division among clients.

A triple is a row `(head, relation, tail)` of int64 IDs. Global IDs index the vocabularies of a graph. Local IDs index a client's
own entities and relations; `ClientGraph.entity_ids` and `relation_ids` map them to global IDs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fkgsec.errors import DataError
from fkgsec.frames import block
from fkgsec.text import printable

if TYPE_CHECKING:
    import pandas as pd

SPLITS = ("train", "valid", "test")


def as_triples(
    rows: np.ndarray | Sequence[Sequence[int]], num_entities: int, num_relations: int, what: str
) -> np.ndarray:
    """Copy rows to read-only int64 `[n, 3]`.

    Args:
        rows: integers `[n, 3]`.
        num_entities, num_relations: bounds of the IDs.
        what: description of the rows, for messages.

    Raises:
        DataError: the shape is wrong, or an ID is out of range.
    """
    triples = np.array(rows, dtype=np.int64)
    if triples.size == 0:
        triples = triples.reshape(0, 3)
    if triples.ndim != 2 or triples.shape[1] != 3:
        raise DataError(f"{what}: triples must have shape [n, 3], got {list(triples.shape)}")
    if len(triples):
        low, high = triples.min(axis=0), triples.max(axis=0)
        if low.min() < 0 or max(high[0], high[2]) >= num_entities or high[1] >= num_relations:
            raise DataError(
                f"{what}: an id is out of range (entities 0..{num_entities - 1}, relations 0..{num_relations - 1}; "
                f"found entities up to {max(high[0], high[2])}, relations up to {high[1]}, smallest {low.min()})"
            )
    # Graphs are shared between runs; a write would change all of them.
    triples.setflags(write=False)
    return triples


def _as_ids(ids: Iterable[int] | np.ndarray, what: str) -> np.ndarray:
    array = np.array(ids, dtype=np.int64).reshape(-1)
    if len(np.unique(array)) != len(array):
        raise DataError(f"{what}: ids must be unique")
    array.setflags(write=False)
    return array


def content_hash(entities: Sequence[str], relations: Sequence[str], arrays: Iterable[np.ndarray]) -> str:
    """Compute the sha256 over names and IDs: equal data have equal hashes, whatever their file layout.

    Args:
        entities, relations: names.
        arrays: of integers.
    """
    digest = hashlib.sha256()
    for names in (entities, relations):
        # The count separates entities from relations.
        digest.update(str(len(names)).encode())
        for name in names:
            digest.update(name.encode() + b"\0")
    for array in arrays:
        digest.update(str(array.shape).encode())
        # Little-endian on every machine.
        digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, eq=False, repr=False)
class KnowledgeGraph:
    """Knowledge graph with its splits, before it is divided among clients.

    Attributes:
        name: of the graph in reports.
        entities, relations: vocabularies; position = global ID.
        train, valid, test: int64 `[n, 3]` global IDs, read-only.
        sensitive: names of relations whose triples must not leak (reports show them first).
        warnings: of the reader, one line each.
    """

    name: str
    entities: tuple[str, ...]
    relations: tuple[str, ...]
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    sensitive: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for split in SPLITS:
            triples = as_triples(getattr(self, split), len(self.entities), len(self.relations), f"{self.name} {split}")
            object.__setattr__(self, split, triples)
        unknown = self.sensitive - set(self.relations)
        if unknown:
            raise DataError(
                f"{self.name}: sensitive relations that the graph does not have: {', '.join(sorted(unknown))}"
            )

    def _repr_html_(self) -> str:
        return block(repr(self), self.warnings)

    def __repr__(self) -> str:
        return f"KnowledgeGraph({printable(self.name, 80)}: {_sizes(self, [self])})"

    def to_frame(self) -> pd.DataFrame:
        """Return all triples by name: columns `head`, `relation`, `tail`, `split`, as `fkgsec.graph_from` reads
        them."""
        return _named_triples(self, {split: getattr(self, split) for split in SPLITS})

    @property
    def triples(self) -> np.ndarray:
        """All splits together, int64 `[n, 3]`, in the order train, valid, test."""
        return np.concatenate([self.train, self.valid, self.test])

    @cached_property
    def hash(self) -> str:
        """sha256 over names and splits, see `content_hash`."""
        return content_hash(self.entities, self.relations, (self.train, self.valid, self.test))


@dataclass(frozen=True, eq=False)
class ClientGraph:
    """Part of a federation that one client holds, in local IDs.

    Local IDs number the entities of the train split first (`num_trained_entities` of them), then those that occur only in
    valid or test; relations likewise. The rows that a client trains are therefore always a prefix.
    """

    name: str
    entity_ids: np.ndarray
    relation_ids: np.ndarray
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "entity_ids", _as_ids(self.entity_ids, f"client {self.name} entities"))
        object.__setattr__(self, "relation_ids", _as_ids(self.relation_ids, f"client {self.name} relations"))
        for split in SPLITS:
            triples = as_triples(
                getattr(self, split), self.num_entities, self.num_relations, f"client {self.name} {split}"
            )
            object.__setattr__(self, split, triples)
        if not len(self.train):
            raise DataError(f"client {self.name}: the train split is empty")

    @classmethod
    def from_global(cls, name: str, train: np.ndarray, valid: np.ndarray, test: np.ndarray) -> ClientGraph:
        """Number a client's entities and relations.

        Args:
            name: of the client.
            train, valid, test: int64 `[n, 3]` in global IDs.
        """
        splits = [np.asarray(split, dtype=np.int64).reshape(-1, 3) for split in (train, valid, test)]

        def numbering(columns: list[int]) -> np.ndarray:
            # IDs of the train split first, both parts ascending.
            trained = np.unique(splits[0][:, columns])
            others = np.unique(np.concatenate([split[:, columns].ravel() for split in splits[1:]]))
            return np.concatenate([trained, np.setdiff1d(others, trained)])

        entity_ids, relation_ids = numbering([0, 2]), numbering([1])

        def to_local(ids: np.ndarray, values: np.ndarray) -> np.ndarray:
            # Global IDs of a client ascend in two runs; search through their sorted order.
            order = np.argsort(ids)
            return order[np.searchsorted(ids, values, sorter=order)] if len(values) else values

        local = [
            np.stack(
                [to_local(entity_ids, s[:, 0]), to_local(relation_ids, s[:, 1]), to_local(entity_ids, s[:, 2])], axis=1
            )
            for s in splits
        ]
        return cls(name, entity_ids, relation_ids, *local)

    @property
    def num_entities(self) -> int:
        """Number of entities in all splits."""
        return len(self.entity_ids)

    @property
    def num_relations(self) -> int:
        """Number of relations in all splits."""
        return len(self.relation_ids)

    @cached_property
    def num_trained_entities(self) -> int:
        """Number of entities in the train split."""
        return int(self.train[:, [0, 2]].max()) + 1

    @cached_property
    def num_trained_relations(self) -> int:
        """Number of relations in the train split."""
        return int(self.train[:, 1].max()) + 1

    @property
    def triples(self) -> np.ndarray:
        """All splits together in local IDs, int64 `[n, 3]`."""
        return np.concatenate([self.train, self.valid, self.test])

    def to_global(self, triples: np.ndarray) -> np.ndarray:
        """Convert local to global IDs.

        Args:
            triples: int64 `[n, 3]`.
        """
        return np.stack(
            [self.entity_ids[triples[:, 0]], self.relation_ids[triples[:, 1]], self.entity_ids[triples[:, 2]]], axis=1
        )


@dataclass(frozen=True, eq=False, repr=False)
class FederatedGraph:
    """Clients' graphs over one global vocabulary."""

    name: str
    entities: tuple[str, ...]
    relations: tuple[str, ...]
    clients: tuple[ClientGraph, ...]
    sensitive: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.clients:
            raise DataError(f"{self.name}: a federation needs at least one client")
        names = [client.name for client in self.clients]
        if len(set(names)) != len(names):
            raise DataError(f"{self.name}: client names must be unique, got {', '.join(names)}")
        for client in self.clients:
            if client.entity_ids.max() >= len(self.entities) or client.relation_ids.max() >= len(self.relations):
                raise DataError(f"{self.name}: client {client.name} has a global id beyond the vocabularies")

    def _repr_html_(self) -> str:
        heads = ("client", "entities", "relations", *SPLITS)
        rows = [
            (client.name, client.num_entities, client.num_relations, *(len(getattr(client, split)) for split in SPLITS))
            for client in self.clients
        ]
        return block(repr(self), self.warnings, heads=heads, rows=rows)

    def __repr__(self) -> str:
        return f"FederatedGraph({printable(self.name, 80)}: {len(self.clients)} clients, {_sizes(self, self.clients)})"

    def to_frame(self) -> pd.DataFrame:
        """Return all triples by name: columns `client`, `head`, `relation`, `tail`, `split`, as `fkgsec.graph_from`
        reads them.
        """
        import pandas as pd  # optional on machines that only train

        frames = [
            _named_triples(self, {split: client.to_global(getattr(client, split)) for split in SPLITS})
            for client in self.clients
        ]
        return (
            pd.concat(frames, keys=[client.name for client in self.clients], names=["client", None])
            .reset_index("client")
            .reset_index(drop=True)
        )

    @cached_property
    def hash(self) -> str:
        """sha256 over names and the clients' splits, see `content_hash`. Names of clients do not count."""
        arrays = [client.to_global(getattr(client, split)) for client in self.clients for split in SPLITS]
        return content_hash(self.entities, self.relations, arrays)

    def with_warnings(self, warnings: Iterable[str]) -> FederatedGraph:
        """Return the same federation with additional warnings.

        Args:
            warnings: one line each.
        """
        return replace(self, warnings=(*self.warnings, *warnings))


def _sizes(graph: KnowledgeGraph | FederatedGraph, parts: Sequence[KnowledgeGraph | ClientGraph]) -> str:
    counts = ", ".join(f"{sum(len(getattr(part, split)) for part in parts):,} {split}" for split in SPLITS)
    count = len(graph.warnings)
    warned = f"; {count} warning{'s' if count > 1 else ''}" if count else ""
    return f"{len(graph.entities):,} entities, {len(graph.relations):,} relations, {counts} triples{warned}"


def _named_triples(graph: KnowledgeGraph | FederatedGraph, splits: dict[str, np.ndarray]) -> pd.DataFrame:
    import pandas as pd

    triples = np.concatenate(list(splits.values()))
    entities, relations = np.array(graph.entities, dtype=object), np.array(graph.relations, dtype=object)
    names = {"head": entities[triples[:, 0]], "relation": relations[triples[:, 1]], "tail": entities[triples[:, 2]]}
    return pd.DataFrame({**names, "split": np.repeat(list(splits), [len(rows) for rows in splits.values()])})
