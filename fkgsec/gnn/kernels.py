"""The compiled loops behind `fkgsec.gnn.fused` and `fkgsec.gnn.batches`, one thread each. float32 arrays, contiguous.

Legend: `n` nodes, `m` directed edges, `W` width, `B` graphs, `k` labels of a node.
"""

from __future__ import annotations

import numpy as np

from protocols.core.compiled import compiled

_ZERO = np.float32(0)
_WORD_SHIFT = 6  # a word has 64 bits


@compiled()
def gather(node_ptr, indptr, sources, ids, node_shift, new_indptr, new_sources, graph_of, nodes):
    """Lay the graphs `ids` side by side; int32 out.

    Args:
        node_shift: int64 `[B]`, first new node of each graph.
        new_indptr, new_sources: written, `[n + 1]`, `[m]`. graph_of, nodes: written, `[n]`; `nodes` are the old numbers.
    """
    node = edge = 0
    for place in range(ids.shape[0]):
        low, high = node_ptr[ids[place]], node_ptr[ids[place] + 1]
        shift = node_shift[place] - low
        for old in range(low, high):
            graph_of[node] = place
            nodes[node] = old
            new_indptr[node] = edge
            for e in range(indptr[old], indptr[old + 1]):
                new_sources[edge] = sources[e] + shift
                edge += 1
            node += 1
    new_indptr[node] = edge


@compiled()
def transpose(indptr, sources, new_indptr, new_sources):
    """Compressed rows of the transposed adjacency, sources ascending; `new_indptr` is zero on entry."""
    n = indptr.shape[0] - 1
    for e in range(sources.shape[0]):
        new_indptr[sources[e] + 1] += 1
    for v in range(n):
        new_indptr[v + 1] += new_indptr[v]
    filled = new_indptr.copy()
    for v in range(n):
        for e in range(indptr[v], indptr[v + 1]):
            u = sources[e]
            new_sources[filled[u]] = v
            filled[u] += 1


@compiled()
def aggregate(indptr, sources, x, left, right, own, out):
    """out[v] = left[v] (own right[v] x[v] + sum of right[u] x[u] over the sources u of v); rows beyond the nodes are 0."""
    n, W = indptr.shape[0] - 1, x.shape[1]
    out[n:] = 0
    for v in range(n):
        weight = own * right[v]
        for d in range(W):
            out[v, d] = weight * x[v, d]
        for e in range(indptr[v], indptr[v + 1]):
            u = sources[e]
            weight = right[u]
            for d in range(W):
                out[v, d] += weight * x[u, d]
        weight = left[v]
        if weight != 1:
            for d in range(W):
                out[v, d] *= weight


@compiled()
def embed(columns, table, bias, out):
    """out[v] = bias + sum of the rows `columns[v]` of `table` `[F, W]`; rows beyond the nodes are 0."""
    W = table.shape[1]
    out[columns.shape[0] :] = 0
    for v in range(columns.shape[0]):
        for d in range(W):
            out[v, d] = bias[d]
        for place in range(columns.shape[1]):
            row = columns[v, place]
            for d in range(W):
                out[v, d] += table[row, d]


@compiled()
def embed_gradients(columns, derivatives, table_gradient, bias_gradient):
    """Add d loss / d out to the rows of the table that were read, and to the bias."""
    W = derivatives.shape[1]
    for v in range(columns.shape[0]):
        for d in range(W):
            bias_gradient[d] += derivatives[v, d]
        for place in range(columns.shape[1]):
            row = columns[v, place]
            for d in range(W):
                table_gradient[row, d] += derivatives[v, d]


@compiled()
def activate(x, bias, out):
    """out = relu(x + bias); other memory than `x`, as in-place loops over two names of it are not vectorised."""
    for v in range(x.shape[0]):
        for d in range(x.shape[1]):
            out[v, d] = max(x[v, d] + bias[d], _ZERO)


@compiled()
def drop(x, words, scale):
    """Make the values of `x` whose bit is 0 zero and scale the others, in place.

    Value number i of x, row by row, has bit i % 64 of word i // 64; values beyond the words stay.
    """
    flat = x.reshape(-1)
    whole = min(flat.shape[0] >> _WORD_SHIFT, words.shape[0])
    for number in range(whole):
        word, low = words[number], number << _WORD_SHIFT
        for d in range(64):
            flat[low + d] *= scale * np.float32((word >> np.uint64(d)) & np.uint64(1))
    for i in range(whole << _WORD_SHIFT, min(flat.shape[0], words.shape[0] << _WORD_SHIFT)):
        flat[i] *= scale * np.float32((words[whole] >> np.uint64(i & 63)) & np.uint64(1))


@compiled()
def before_relu(derivatives, y, scale, sums):
    """In place, scale d loss / d y where y is positive and make it 0 elsewhere; add its columns to `sums`."""
    for v in range(y.shape[0]):
        for d in range(y.shape[1]):
            value = derivatives[v, d] * scale if y[v, d] > 0 else _ZERO
            derivatives[v, d] = value
            sums[d] += value


@compiled()
def pool(x, graph_of, out):
    """Add each node's row to its graph's."""
    for v in range(graph_of.shape[0]):
        g = graph_of[v]
        for d in range(x.shape[1]):
            out[g, d] += x[v, d]


@compiled()
def spread(x, graph_of, out):
    """out[v] = the row of v's graph; rows beyond the nodes are 0."""
    out[graph_of.shape[0] :] = 0
    for v in range(graph_of.shape[0]):
        g = graph_of[v]
        for d in range(x.shape[1]):
            out[v, d] = x[g, d]
