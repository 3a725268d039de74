"""The compiled CPU loops behind `fkgsec.kge.kernels`, which says what they compute. float32 arrays, contiguous.

Legend: `B` positives, `K` candidates of each, `N` table rows, `W` width.
"""

from __future__ import annotations

import math

import numpy as np
from numba import get_num_threads, njit, prange

L1, MODULUS, DOT = 0, 1, 2
# Sums may be reordered and contracted for vector units; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_ZERO, _ONE = np.float32(0), np.float32(1)
_MINUS_INFINITY = np.float32(-np.inf)


@njit(fastmath=_FAST, cache=True)
def _similarity(kind, x, y):
    total = _ZERO
    if kind == L1:
        for d in range(x.shape[0]):
            total += abs(x[d] - y[d])
        total = -total
    elif kind == MODULUS:
        half = x.shape[0] // 2
        for d in range(half):
            real, imaginary = x[d] - y[d], x[half + d] - y[half + d]
            total += math.sqrt(real * real + imaginary * imaginary)
        total = -total
    else:
        for d in range(x.shape[0]):
            total += x[d] * y[d]
    return total


@njit(fastmath=_FAST, cache=True)
def _add_gradient(kind, coefficient, x, y, out):
    """out += coefficient * d similarity(x, y) / dx; at a kink the subgradient is 0, as autograd takes it."""
    if kind == L1:
        for d in range(x.shape[0]):
            difference = x[d] - y[d]
            sign = _ONE if difference > 0 else (-_ONE if difference < 0 else _ZERO)
            out[d] -= coefficient * sign
    elif kind == MODULUS:
        half = x.shape[0] // 2
        for d in range(half):
            real, imaginary = x[d] - y[d], x[half + d] - y[half + d]
            modulus = math.sqrt(real * real + imaginary * imaginary)
            scaled = coefficient / modulus if modulus > 0 else _ZERO
            out[d] -= real * scaled
            out[half + d] -= imaginary * scaled
    else:
        for d in range(x.shape[0]):
            out[d] += coefficient * y[d]


@njit(parallel=True, fastmath=_FAST, cache=True)
def candidate_loss(
    kind, queries, table, candidates, weights, margin, temperature, coefficients, losses, query_gradient
):
    """Fill `coefficients` `[B, K]` (d weighted loss / d score), `losses` `[B]` and `query_gradient` `[B, W]`."""
    B, K = candidates.shape
    for b in prange(B):
        query, out = queries[b], query_gradient[b]
        highest = _MINUS_INFINITY
        for k in range(K):
            row = candidates[b, k]
            if row >= 0:
                score = margin + _similarity(kind, query, table[row])
                coefficients[b, k] = score
                if k > 0 and not score <= highest:
                    highest = score
        normaliser = _ZERO
        for k in range(1, K):
            if candidates[b, k] >= 0:
                normaliser += math.exp(temperature * (coefficients[b, k] - highest))
        loss = _ZERO
        out[:] = _ZERO
        for k in range(K):
            row = candidates[b, k]
            if row < 0:
                coefficients[b, k] = _ZERO
                continue
            score = coefficients[b, k]
            small = math.exp(-abs(score))
            sigmoid = (_ONE if score > 0 else small) / (_ONE + small)
            if k == 0:
                loss += math.log1p(small) + max(-score, _ZERO)
                coefficient = weights[b] * (sigmoid - _ONE)
            else:
                share = math.exp(temperature * (score - highest)) / normaliser
                loss += share * (math.log(_ONE + small) + max(score, _ZERO))
                coefficient = weights[b] * share * sigmoid
            coefficients[b, k] = coefficient
            _add_gradient(kind, coefficient, query, table[row], out)
        losses[b] = loss


@njit(parallel=True, fastmath=_FAST, cache=True)
def _table_gradient(kind, queries, table, candidates, coefficients, gradient, parts):
    B, K = candidates.shape
    N = table.shape[0]
    flat = candidates.reshape(-1)
    for part in prange(parts):
        low, high = N * part // parts, N * (part + 1) // parts
        # A counting sort of the candidates that fall into this part's rows: each row is then read and written once.
        start = np.zeros(high - low + 1, np.int64)
        for j in range(B * K):
            if low <= flat[j] < high:
                start[flat[j] - low + 1] += 1
        for i in range(high - low):
            start[i + 1] += start[i]
        order = np.empty(start[high - low], np.int32)
        fill = start.copy()
        for j in range(B * K):
            if low <= flat[j] < high:
                order[fill[flat[j] - low]] = j
                fill[flat[j] - low] += 1
        for i in range(high - low):
            row, out = table[low + i], gradient[low + i]
            out[:] = _ZERO
            for place in range(start[i], start[i + 1]):
                b = order[place] // K
                _add_gradient(kind, coefficients[b, order[place] - b * K], row, queries[b], out)


def table_gradient(kind, queries, table, candidates, coefficients, gradient):
    """Fill `gradient` `[N, W]` with the sum over candidates of coefficient * d similarity / d row."""
    parts = min(len(table), 4 * get_num_threads())
    _table_gradient(kind, queries, table, candidates, coefficients, gradient, parts)


@njit(parallel=True, fastmath=_FAST, cache=True)
def similarity_matrix(kind, queries, rows, out):
    """Fill `out` `[B, N]`. Queries go in fours, so that a row is loaded once for four of them.

    A product too is summed here: a BLAS sums the columns at the edge of its blocks in another order, so equal rows would get
    scores that differ in the last bit, and ties would be lost.
    """
    B, W = queries.shape
    N = rows.shape[0]
    half = W // 2
    for block in prange((B + 3) // 4):
        first = 4 * block
        a, b = queries[first], queries[min(first + 1, B - 1)]
        c, d = queries[min(first + 2, B - 1)], queries[min(first + 3, B - 1)]
        for n in range(N):
            row = rows[n]
            sa, sb, sc, sd = _ZERO, _ZERO, _ZERO, _ZERO
            if kind == L1:
                for w in range(W):
                    x = row[w]
                    sa += abs(a[w] - x)
                    sb += abs(b[w] - x)
                    sc += abs(c[w] - x)
                    sd += abs(d[w] - x)
            elif kind == MODULUS:
                for w in range(half):
                    x, y = row[w], row[half + w]
                    sa += math.sqrt((a[w] - x) * (a[w] - x) + (a[half + w] - y) * (a[half + w] - y))
                    sb += math.sqrt((b[w] - x) * (b[w] - x) + (b[half + w] - y) * (b[half + w] - y))
                    sc += math.sqrt((c[w] - x) * (c[w] - x) + (c[half + w] - y) * (c[half + w] - y))
                    sd += math.sqrt((d[w] - x) * (d[w] - x) + (d[half + w] - y) * (d[half + w] - y))
            else:
                for w in range(W):
                    x = row[w]
                    sa -= a[w] * x
                    sb -= b[w] * x
                    sc -= c[w] * x
                    sd -= d[w] * x
            out[first, n] = -sa
            if first + 1 < B:
                out[first + 1, n] = -sb
            if first + 2 < B:
                out[first + 2, n] = -sc
            if first + 3 < B:
                out[first + 3, n] = -sd


@njit(parallel=True, cache=True)
def mask_known(candidates, groups, start, members):
    """Set to -1 every candidate that binary search finds among the sorted members of its row's group."""
    for b in prange(candidates.shape[0]):
        begin, end = start[groups[b]], start[groups[b] + 1]
        for k in range(candidates.shape[1]):
            wanted = candidates[b, k]
            low, high = begin, end
            while low < high:
                middle = (low + high) >> 1
                if members[middle] < wanted:
                    low = middle + 1
                else:
                    high = middle
            if low < end and members[low] == wanted:
                candidates[b, k] = -1
