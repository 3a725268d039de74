"""Minibatches of graphs: their nodes side by side, with the edges of all of them.

    batch = Batch.of(graphs, [4, 0, 9])              # three graphs of a GraphSet; without numbers, all of them
    batch.x, batch.edge_index, batch.graph_of        # [n, F], int64 [2, m], int64 [n]
    batch.incoming.indptr, batch.incoming.sources    # the same edges in compressed rows

A compiled loop gathers the compressed rows of a `GraphSet`, without an object for each graph: torch_geometric's collation of as
many takes longer than a training step, this a hundredth of it. What only torch_geometric's own layers read (`x` of one-hot
features, `adjacency`, `edge_index`) is made when it is asked for.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Sequence
from functools import cached_property
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.graphs.features import node_features, one_hot_columns
from fkgsec.graphs.sets import GraphSet


@functools.cache
def loops() -> ModuleType:
    """`fkgsec.gnn.kernels`, imported when a batch is first made: no other command is to wait for numba."""
    from fkgsec.gnn import kernels

    return kernels


class Edges(NamedTuple):
    """Compressed rows, int32: node v has the edges from (or to) `sources[indptr[v] : indptr[v + 1]]`."""

    indptr: np.ndarray
    sources: np.ndarray

    def transposed(self) -> Edges:
        """The same edges, by their other ends."""
        out = Edges(np.zeros_like(self.indptr), np.empty_like(self.sources))
        loops().transpose(*self, *out)
        return out


class Batch:
    """Some graphs as a model reads them.

    Attributes:
        x: float32 `[n, F]`, the features of all nodes.
        adjacency: sparse `[n, n]` in compressed rows; entry (v, u) is 1 where an edge goes from u to v.
        graph_of: int64 `[n]`, the graph of each node.
        classes: int64 `[B]`.
        columns: int32 `[n, k]`, the columns of a node's own features that are 1, where they are known to be one-hot; else None.
        structure: float32 `[n, S]`, the last columns of `x`, where the graphs come with features of structure; else None.
    """

    columns: np.ndarray | None = None
    structure: Tensor | None = None

    def __init__(self, x: Tensor, adjacency: Tensor, graph_of: Tensor, classes: Tensor) -> None:
        self.x, self.adjacency, self.graph_of, self.classes = x, adjacency, graph_of, classes

    @classmethod
    def of(
        cls, graphs: GraphSet, ids: Sequence[int] | np.ndarray | None = None, device: torch.device | str = "cpu"
    ) -> Batch:
        """Those graphs, in this order; None: all."""
        numbers = np.arange(len(graphs)) if ids is None else np.asarray(ids, dtype=np.int64)
        store = _store(graphs)
        sizes = graphs.sizes[numbers]
        first = np.concatenate([[0], np.cumsum(sizes)])
        edges = Edges(
            np.empty(first[-1] + 1, dtype=np.int32), np.empty(int(store.num_edges[numbers].sum()), dtype=np.int32)
        )
        graph_of, nodes = np.empty(first[-1], dtype=np.int64), np.empty(first[-1], dtype=np.int64)
        loops().gather(graphs.node_ptr, *store.edges, numbers, first, *edges, graph_of, nodes)
        return _Gathered(graphs, numbers, nodes, edges, torch.from_numpy(graph_of).to(device))

    def __len__(self) -> int:
        return len(self.classes)

    @cached_property
    def incoming(self) -> Edges:
        """For each node those that it receives from."""
        parts = (self.adjacency.crow_indices(), self.adjacency.col_indices())
        return Edges(*(part.to("cpu", torch.int32).numpy() for part in parts))

    @cached_property
    def outgoing(self) -> Edges:
        """For each node those that receive from it."""
        return self.incoming.transposed()

    @cached_property
    def degrees(self) -> np.ndarray:
        """Edges that come in at each node, float32 `[n]`."""
        return np.diff(self.incoming.indptr).astype(np.float32)

    @cached_property
    def edge_index(self) -> Tensor:
        """The edges, int64 `[2, m]`: from, to."""
        targets = np.repeat(np.arange(len(self.graph_of)), np.diff(self.incoming.indptr))
        return torch.from_numpy(np.stack([self.incoming.sources, targets]).astype(np.int64)).to(self.graph_of.device)


class _Store(NamedTuple):
    """What batches are gathered from, made once for a set.

    Attributes:
        num_edges: of each graph. undirected: whether every edge has one back.
        columns: int32 `[N, k]`, see `Batch`.
    """

    edges: Edges
    num_edges: np.ndarray
    undirected: bool
    columns: np.ndarray | None


class _Gathered(Batch):
    """Graphs of a set; the tensors that torch_geometric's layers read are made when they are asked for."""

    def __init__(self, graphs: GraphSet, ids: np.ndarray, nodes: np.ndarray, edges: Edges, graph_of: Tensor) -> None:
        store = _store(graphs)
        self._graphs, self._nodes, self._undirected = graphs, nodes, store.undirected
        self.incoming, self.graph_of = edges, graph_of
        self.columns = None if store.columns is None else store.columns[nodes]
        self.classes = torch.from_numpy(graphs.classes[ids]).to(graph_of.device)
        if graphs.structure is not None:
            self.structure = torch.from_numpy(graphs.structure.values[nodes]).to(graph_of.device)

    @cached_property
    def x(self) -> Tensor:  # type: ignore[override]
        return torch.from_numpy(node_features(self._graphs, self._nodes)).to(self.graph_of.device)

    @cached_property
    def adjacency(self) -> Tensor:  # type: ignore[override]
        indptr, sources = (torch.from_numpy(part.astype(np.int64)) for part in self.incoming)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")  # no concern of users
            ones, size = torch.ones(len(sources)), (len(self._nodes),) * 2
            return torch.sparse_csr_tensor(indptr, sources, ones, size=size, device=self.graph_of.device)

    @cached_property
    def outgoing(self) -> Edges:
        return self.incoming if self._undirected else self.incoming.transposed()


_STORES: weakref.WeakKeyDictionary[GraphSet, _Store] = weakref.WeakKeyDictionary()


def _store(graphs: GraphSet) -> _Store:
    if graphs not in _STORES:
        edges, columns = Edges(graphs.indptr.astype(np.int32), graphs.sources.astype(np.int32)), one_hot_columns(graphs)
        same = [np.array_equal(one, other) for one, other in zip(edges, edges.transposed(), strict=True)]
        num_edges = np.diff(graphs.indptr[graphs.node_ptr])
        _STORES[graphs] = _Store(edges, num_edges, all(same), None if columns is None else columns.astype(np.int32))
    return _STORES[graphs]
