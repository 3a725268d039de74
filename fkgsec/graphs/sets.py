"""Sets of graphs with a class each, and their division among clients.

    graphs = read_tu_folder(Path("MUTAG"))          # GraphSet: 188 graphs, 2 classes
    graphs.subset([0, 5])                           # GraphSet of two graphs, with the same vocabularies
    ClientGraphs("MUTAG", graphs, train, valid, test)

Legend: `G` graphs, `N` nodes of all graphs, `E` directed edges of all graphs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fkgsec.data.graph import SPLITS
from fkgsec.errors import DataError


class Structure(NamedTuple):
    """Features float32 `[N, num_walks + num_degrees]` of all nodes."""

    num_walks: int
    num_degrees: int
    values: np.ndarray


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Concatenated graphs: one adjacency in compressed rows over the nodes of all of them.

    Vocabularies (`num_labels`, `num_classes`, `max_degree`) are those of the whole data set, which is assumed public; subsets
    keep them.

    Attributes:
        name: of the data set.
        node_ptr: int64 `[G + 1]`; graph g has the nodes `node_ptr[g] .. node_ptr[g + 1] - 1`.
        indptr, sources: int64 `[N + 1]` and `[E]`; node v receives from `sources[indptr[v] : indptr[v + 1]]`, numbers over all
            graphs, in ascending order.
        classes: int64 `[G]` in 0..num_classes - 1.
        num_classes: of the data set.
        labels: int64 `[N, k]`, k discrete labels of each node, from 0; k may be 0.
        num_labels: number of values of each of the k labels.
        attributes: float32 `[N, a]`, such as coordinates; a may be 0.
        max_degree: public maximum of a node's number of edges; None if unknown.
        warnings: of the reader, one line each.
        structure: structure features, if an algorithm needs them (`fkgsec.graphs.structure`).
    """

    name: str
    node_ptr: np.ndarray
    indptr: np.ndarray
    sources: np.ndarray
    classes: np.ndarray
    num_classes: int
    labels: np.ndarray
    num_labels: tuple[int, ...]
    attributes: np.ndarray
    max_degree: int | None = None
    warnings: tuple[str, ...] = ()
    structure: Structure | None = None

    def __post_init__(self) -> None:
        for field in ("node_ptr", "indptr", "sources", "classes", "labels", "attributes"):
            # Subsets and batches share these arrays.
            getattr(self, field).setflags(write=False)
        if not len(self):
            raise DataError(f"{self.name}: there are no graphs")
        if self.classes.min() < 0 or self.classes.max() >= self.num_classes:
            raise DataError(f"{self.name}: classes must lie in 0..{self.num_classes - 1}; found {self.classes.max()}")

    @classmethod
    def from_edges(
        cls,
        name: str,
        sizes: np.ndarray,
        edges: np.ndarray,
        classes: np.ndarray,
        labels: np.ndarray | None = None,
        attributes: np.ndarray | None = None,
        *,
        num_classes: int | None = None,
        num_labels: tuple[int, ...] | None = None,
        max_degree: int | None = None,
        warnings: Sequence[str] = (),
    ) -> GraphSet:
        """Build a set from edges.

        Args:
            name: of the data set.
            sizes: int64 `[G]`, number of nodes of each graph.
            edges: int64 `[m, 2]`, directed (source, target), numbered over all graphs; duplicates count once.
            classes: int64 `[G]`.
            labels, attributes: see the class; None: none.
            num_classes, num_labels: vocabularies; None: those that occur.
            max_degree, warnings: see the class.
        """
        node_ptr = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        num_nodes = int(node_ptr[-1])
        edges = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        # One packed number per edge sorts by target, then source, and removes duplicates.
        keys = np.unique(edges[:, 1] * num_nodes + edges[:, 0])
        targets, sources = keys // max(num_nodes, 1), keys % max(num_nodes, 1)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=num_nodes))])
        labels = np.zeros((num_nodes, 0), dtype=np.int64) if labels is None else labels.reshape(num_nodes, -1)
        attributes = np.zeros((num_nodes, 0), dtype=np.float32) if attributes is None else attributes
        return cls(
            name=name,
            node_ptr=node_ptr,
            indptr=indptr.astype(np.int64),
            sources=sources,
            classes=np.asarray(classes, dtype=np.int64),
            num_classes=int(np.max(classes)) + 1 if num_classes is None else num_classes,
            labels=labels,
            num_labels=tuple(int(column.max()) + 1 for column in labels.T) if num_labels is None else num_labels,
            attributes=attributes,
            max_degree=max_degree,
            warnings=tuple(warnings),
        )

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all graphs."""
        return len(self.indptr) - 1

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of nodes of each graph, int64 `[G]`."""
        return np.diff(self.node_ptr)

    @cached_property
    def degrees(self) -> np.ndarray:
        """Number of edges that leave each node, int64 `[N]`."""
        return np.bincount(self.sources, minlength=self.num_nodes).astype(np.int64)

    @cached_property
    def graph_of(self) -> np.ndarray:
        """Graph of each node, int64 `[N]`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def edges(self, graph: int | None = None) -> np.ndarray:
        """Return directed edges `[m, 2]` (source, target).

        Args:
            graph: one graph, with its own node numbers; None: all graphs, numbered together.
        """
        low, high = (0, self.num_nodes) if graph is None else self.node_ptr[graph : graph + 2]
        chosen = slice(self.indptr[low], self.indptr[high])
        targets = np.repeat(np.arange(low, high), np.diff(self.indptr[low : high + 1]))
        return np.stack([self.sources[chosen], targets], axis=1) - low

    def subset(self, graphs: Sequence[int] | np.ndarray) -> GraphSet:
        """Select graphs, in this order, with the vocabularies of the whole set.

        Args:
            graphs: int64, graph numbers.
        """
        graphs = np.asarray(graphs, dtype=np.int64)
        nodes = ranges(self.node_ptr[graphs], self.sizes[graphs])
        degrees = np.diff(self.indptr)[nodes]
        node_ptr = np.concatenate([[0], np.cumsum(self.sizes[graphs])]).astype(np.int64)
        # Node numbers of a graph change by the number of nodes before it.
        shift = np.repeat(node_ptr[:-1] - self.node_ptr[graphs], self.sizes[graphs])
        return replace(
            self,
            node_ptr=node_ptr,
            indptr=np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
            sources=self.sources[ranges(self.indptr[nodes], degrees)] + np.repeat(shift, degrees),
            classes=self.classes[graphs],
            labels=self.labels[nodes],
            attributes=self.attributes[nodes],
            structure=self.structure and self.structure._replace(values=self.structure.values[nodes]),
        )

    def arrays(self) -> list[np.ndarray]:
        """Return all arrays that distinguish these graphs from others."""
        # Vocabularies, too, determine the network's shape.
        vocabularies = np.array([self.num_classes, self.max_degree or 0, *self.num_labels], dtype=np.int64)
        return [
            self.node_ptr,
            self.indptr,
            self.sources,
            self.classes,
            self.labels,
            self.attributes.astype("<f4").view("<i4"),
            vocabularies,
        ]


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Concatenate the numbers `starts[i] .. starts[i] + counts[i] - 1` of all i.

    Args:
        starts, counts: int64 `[k]`.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)


@dataclass(frozen=True, eq=False)
class ClientGraphs:
    """Graphs of one client and their splits: int64, each graph in exactly one split.

    `vocabulary` names the data set of its labels and classes: labels of two data sets have different meanings.
    """

    name: str
    graphs: GraphSet
    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    vocabulary: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", self.vocabulary or self.graphs.name)
        for split in SPLITS:
            ids = np.array(getattr(self, split), dtype=np.int64).reshape(-1)
            ids.setflags(write=False)
            object.__setattr__(self, split, ids)
        # Each graph once: a graph in two splits would leak.
        together = np.sort(np.concatenate([self.train, self.valid, self.test]))
        if not np.array_equal(together, np.arange(len(self.graphs))):
            raise DataError(f"client {self.name}: each of its {len(self.graphs)} graphs must stand in one split")
        if not len(self.train):
            raise DataError(f"client {self.name}: the train split is empty")


@dataclass(frozen=True, eq=False)
class FederatedGraphs:
    """Clients of a federation for graph classification."""

    name: str
    clients: tuple[ClientGraphs, ...]
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.clients:
            raise DataError(f"{self.name}: a federation needs at least one client")
        names = [client.name for client in self.clients]
        if len(set(names)) != len(names):
            raise DataError(f"{self.name}: client names must be unique, got {', '.join(names)}")

    @cached_property
    def hash(self) -> str:
        """sha256 over names, graphs and splits: equal data have equal hashes, whatever their file layout."""
        digest = hashlib.sha256()
        for client in self.clients:
            # NUL separates the two names.
            digest.update(client.name.encode() + b"\0" + client.vocabulary.encode() + b"\0")
            for array in (*client.graphs.arrays(), client.train, client.valid, client.test):
                digest.update(str(array.shape).encode())
                digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        return digest.hexdigest()

    def with_warnings(self, warnings: Iterable[str]) -> FederatedGraphs:
        """Return the same federation with additional warnings.

        Args:
            warnings: one line each.
        """
        return replace(self, warnings=(*self.warnings, *warnings))
