"""Features of the structure around nodes: how likely a random walk returns, and how many edges there are.

    graphs = with_structure(graphs, num_walks=16, num_degrees=16)
    graphs.structure.values                          # float32 [N, 32]; a subset keeps its rows

Column k - 1 is the probability that a walk is back where it began after k steps, each along an edge of the node, all alike; then
comes the number of edges as a one-hot vector, from 1 on, where the last column stands for more, too.

Source: FedStar (Tan et al. 2023), section "structure embedding", and its code. Differs: its code divides by the zero edges of a
node that has none; here no walk returns to such a node. As in the code it goes by one edge in the one-hot vector.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fkgsec.graphs.sets import GraphSet, Structure

if TYPE_CHECKING:
    from scipy import sparse

_MOST_ENTRIES = 4_000_000  # of the powers of a transition matrix that are held at a time, but for one large graph


def with_structure(graphs: GraphSet, *, num_walks: int, num_degrees: int) -> GraphSet:
    """The set with these features, which are computed where it has no such."""
    structure = graphs.structure
    if structure is not None and (structure.num_walks, structure.num_degrees) == (num_walks, num_degrees):
        return graphs
    values = structure_features(
        graphs.node_ptr, graphs.indptr, graphs.sources, num_walks=num_walks, num_degrees=num_degrees
    )
    return replace(graphs, structure=Structure(num_walks, num_degrees, values))


def structure_features(
    node_ptr: np.ndarray, indptr: np.ndarray, sources: np.ndarray, *, num_walks: int, num_degrees: int
) -> np.ndarray:
    """Float32 `[N, num_walks + num_degrees]`, of graphs as a `GraphSet` has them: see the module.

    >>> path = (np.array([0, 3]), np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1]))
    >>> structure_features(*path, num_walks=2, num_degrees=2).tolist()
    [[0.0, 0.5, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [0.0, 0.5, 1.0, 0.0]]
    """
    degrees = np.bincount(sources, minlength=len(indptr) - 1)
    values = np.zeros((len(degrees), num_walks + num_degrees), dtype=np.float32)
    if num_degrees:
        values[np.arange(len(degrees)), num_walks + np.clip(degrees, 1, num_degrees) - 1] = 1.0
    if num_walks:
        from scipy import sparse  # which a machine that trains embeddings alone need not have

        entries = np.cumsum(np.diff(node_ptr).astype(np.int64) ** 2)
        for part in np.unique(entries // _MOST_ENTRIES):
            (of_part,) = np.nonzero(entries // _MOST_ENTRIES == part)
            low, high = node_ptr[of_part[0]], node_ptr[of_part[-1] + 1]
            edges = slice(indptr[low], indptr[high])
            steps = sparse.csr_array(
                (1 / degrees[sources[edges]], sources[edges] - low, indptr[low : high + 1] - indptr[low]),
                shape=(high - low, high - low),
            )
            values[low:high, :num_walks] = _returns(steps, int(high - low), num_walks)
    return values


def _returns(steps: sparse.csr_array, size: int, num_walks: int) -> np.ndarray:
    """The diagonals of the first powers of a matrix, float64 `[n, num_walks]`.

    That of M^(a + b) is the row sum of M^a times the transpose of M^b, number by number: half of the powers do.
    """
    from scipy import sparse

    power, other = steps, sparse.csr_array(sparse.eye_array(size))
    diagonals = []
    for length in range(1, num_walks + 1):
        if length % 2 == 0:
            other = power
        elif length > 1:
            power = sparse.csr_array(power @ steps)
        diagonals.append(power.multiply(other.T).sum(axis=1))
    return np.stack(diagonals, axis=1)
