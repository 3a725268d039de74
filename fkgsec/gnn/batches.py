"""Minibatches of graphs: their nodes side by side, with the edges of all of them.

batch = Batch.of(graphs, [4, 0, 9])              # three graphs of a GraphSet; without numbers, all of them
batch.x, batch.edge_index, batch.graph_of        # [n, F], int64 [2, m], int64 [n]
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor

from fkgsec.graphs.features import node_features
from fkgsec.graphs.sets import GraphSet


class Batch:
    """Some graphs as input of a model.

    Attributes:
        x: float32 `[n, F]`, features of all nodes.
        adjacency: sparse `[n, n]` in compressed rows; entry (v, u) is 1 for an edge from u to v.
        graph_of: int64 `[n]`, graph of each node.
        classes: int64 `[B]`, class of each graph.
    """

    def __init__(self, x: Tensor, adjacency: Tensor, graph_of: Tensor, classes: Tensor) -> None:
        self.x, self.adjacency, self.graph_of, self.classes = x, adjacency, graph_of, classes

    @classmethod
    def of(
        cls, graphs: GraphSet, ids: Sequence[int] | np.ndarray | None = None, device: torch.device | str = "cpu"
    ) -> Batch:
        """Concatenate graphs into one batch, in order.

        Args:
            graphs: to choose from.
            ids: int64, graph numbers; None: all.
            device: of the tensors.
        """
        # A subset renumbers nodes, so adjacency and features fit.
        part = graphs if ids is None else graphs.subset(np.asarray(ids, dtype=np.int64))
        # torch_geometric multiplies by the values of a sparse adjacency.
        ones = np.ones(len(part.sources), dtype=np.float32)
        return cls(
            torch.from_numpy(node_features(part).copy()).to(device),
            compressed(part.indptr, part.sources, ones).to(device),
            torch.from_numpy(part.graph_of.copy()).to(device),
            torch.from_numpy(part.classes.copy()).to(device),
        )

    def __len__(self) -> int:
        return len(self.classes)

    @cached_property
    def edge_index(self) -> Tensor:
        """Edges, int64 `[2, m]`: source, target."""
        # Row v of the compressed matrix has the sources of node v.
        counts = self.adjacency.crow_indices().diff()
        targets = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        return torch.stack([self.adjacency.col_indices(), targets])

    @cached_property
    def normalized(self) -> Tensor:
        """D^-1/2 (A + I) D^-1/2, sparse `[n, n]`, D the row sums of A + I. Source: Kipf and Welling 2017, Eq. 2."""
        indptr, sources, values = (
            part.cpu().numpy()
            for part in (self.adjacency.crow_indices(), self.adjacency.col_indices(), self.adjacency.values())
        )
        # In scipy, on the CPU: torch cannot add sparse matrices in compressed rows.
        edges = csr_array((values, sources, indptr), shape=tuple(self.adjacency.shape))
        loops = csr_array(edges + eye_array(len(indptr) - 1, format="csr"), dtype=np.float32)
        # Loops make every row sum positive.
        roots = 1 / np.sqrt(loops.sum(axis=1), dtype=np.float32)
        scaled = loops.data * np.repeat(roots, np.diff(loops.indptr)) * roots[loops.indices]
        return compressed(loops.indptr, loops.indices, scaled).to(self.adjacency.device)


def compressed(indptr: np.ndarray, sources: np.ndarray, values: np.ndarray) -> Tensor:
    """Build a square sparse tensor in compressed rows.

    Args:
        indptr, sources: int `[n + 1]` and `[m]`; row v has entries in the columns `sources[indptr[v] : indptr[v + 1]]`.
        values: `[m]`.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")  # torch calls CSR a beta
        return torch.sparse_csr_tensor(
            torch.from_numpy(indptr.astype(np.int64)),
            torch.from_numpy(sources.astype(np.int64)),
            torch.from_numpy(values),
            size=(len(indptr) - 1, len(indptr) - 1),
        )
