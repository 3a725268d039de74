"""Structure features of nodes: return probabilities of random walks, and the number of edges.

    graphs = with_structure(graphs, num_walks=16, num_degrees=16)
    graphs.structure.values                          # float32 [N, 32]; a subset keeps its rows

Column k - 1 is the probability that a uniform random walk is back at its start after k steps. The number of edges follows as a
one-hot vector, from 1; the last column also stands for larger numbers.

Source: FedStar (Tan et al. 2023), section "structure embedding", and its code. Differs: the code divides by zero for a node
without edges; here no walk returns to such a node. As in the code, the one-hot vector treats it as a node of one edge.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fkgsec.graphs.sets import GraphSet, Structure

if TYPE_CHECKING:
    from scipy import sparse

_MOST_ENTRIES = 4_000_000  # of a transition matrix's powers in memory at once, unless one graph is larger


def with_structure(graphs: GraphSet, *, num_walks: int, num_degrees: int) -> GraphSet:
    """Return the set with structure features, computed unless it has them.

    Args:
        graphs: the set.
        num_walks: longest random walk, in steps.
        num_degrees: columns of the one-hot degree.
    """
    structure = graphs.structure
    # Features are computed once per set, not once per client.
    if structure is not None and (structure.num_walks, structure.num_degrees) == (num_walks, num_degrees):
        return graphs
    values = structure_features(
        graphs.node_ptr, graphs.indptr, graphs.sources, num_walks=num_walks, num_degrees=num_degrees
    )
    return replace(graphs, structure=Structure(num_walks, num_degrees, values))


def structure_features(
    node_ptr: np.ndarray, indptr: np.ndarray, sources: np.ndarray, *, num_walks: int, num_degrees: int
) -> np.ndarray:
    """Compute structure features, float32 `[N, num_walks + num_degrees]`; see the module.

    Args:
        node_ptr, indptr, sources: graphs, as in `GraphSet`.
        num_walks: longest random walk, in steps.
        num_degrees: columns of the one-hot degree.

    >>> path = (np.array([0, 3]), np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1]))
    >>> structure_features(*path, num_walks=2, num_degrees=2).tolist()
    [[0.0, 0.5, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [0.0, 0.5, 1.0, 0.0]]
    """
    degrees = np.bincount(sources, minlength=len(indptr) - 1)
    values = np.zeros((len(degrees), num_walks + num_degrees), dtype=np.float32)
    if num_degrees:
        values[np.arange(len(degrees)), num_walks + np.clip(degrees, 1, num_degrees) - 1] = 1.0
    if num_walks:
        from scipy import sparse  # optional on machines that train embeddings only

        # Blocks of graphs whose dense powers fit in memory; the matrix of a block is block-diagonal.
        entries = np.cumsum(np.diff(node_ptr).astype(np.int64) ** 2)
        for part in np.unique(entries // _MOST_ENTRIES):
            (of_part,) = np.nonzero(entries // _MOST_ENTRIES == part)
            low, high = node_ptr[of_part[0]], node_ptr[of_part[-1] + 1]
            edges = slice(indptr[low], indptr[high])
            # Transition matrix: from a source, each of its edges has probability 1 / degree.
            steps = sparse.csr_array(
                (1 / degrees[sources[edges]], sources[edges] - low, indptr[low : high + 1] - indptr[low]),
                shape=(high - low, high - low),
            )
            values[low:high, :num_walks] = _returns(steps, int(high - low), num_walks)
    return values


def _returns(steps: sparse.csr_array, size: int, num_walks: int) -> np.ndarray:
    """Compute the diagonals of the first powers of a matrix, float64 `[n, num_walks]`.

    The diagonal of M^(a + b) is the row sum of the elementwise product of M^a and (M^b)^T: half of the powers suffice.
    """
    from scipy import sparse

    power, other = steps, sparse.csr_array(sparse.eye_array(size))
    diagonals = []
    for length in range(1, num_walks + 1):
        # Even lengths square the last power: M^2k = M^k M^k.
        if length % 2 == 0:
            other = power
        elif length > 1:
            power = sparse.csr_array(power @ steps)
        diagonals.append(power.multiply(other.T).sum(axis=1))
    return np.stack(diagonals, axis=1)
