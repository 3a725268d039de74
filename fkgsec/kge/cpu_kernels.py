"""The compiled CPU loops behind `fkgsec.kge.kernels`, which says what they compute. float32 arrays, contiguous.

Legend: `B` positives, `K` candidates of each, `N` table rows in `C` segments, `W` width.
"""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import llvmlite.binding
import numba
import numpy as np
from numba import get_num_threads as get_num_threads
from numba import prange

from fkgsec.kge.kinds import L1, MODULUS
from fkgsec.protocols.core.compiled import compiled

# Sums may be reordered and contracted for vector units; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_ZERO, _ONE = np.float32(0), np.float32(1)
_MINUS_INFINITY = np.float32(-np.inf)
# A call that is not inlined counts references to every array that it is passed, by atomic operations: as long as a pair takes.
# `_pull` stays a call, since its last bits hang on it where half the width is no multiple of the vector's.
PARTS = 8  # shares of a table that threads work on; fixed, so that sums do not depend on the number of threads


@compiled(fastmath=_FAST, inline="always")
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


@compiled(fastmath=_FAST)
def _pull(coefficient, x, y, out):
    """out += coefficient * (x - y) / modulus, for each complex number; one output at a time, so that it is vectorised."""
    half = x.shape[0] // 2
    for d in range(half):
        real, imaginary = x[d] - y[d], x[half + d] - y[half + d]
        modulus = math.sqrt(real * real + imaginary * imaginary)
        scaled = coefficient / modulus if modulus > 0 else _ZERO
        out[d] += real * scaled
        out[half + d] += imaginary * scaled


@compiled(fastmath=_FAST, inline="always")
def _add_gradients(kind, coefficient, query, row, query_gradient, row_gradient):
    """Add coefficient * d similarity / d query and / d row; at a kink the subgradient is 0, as autograd takes it."""
    if kind == L1:
        minus, kink = -coefficient, coefficient * _ZERO  # a NaN coefficient stays one, also at a kink
        for d in range(query.shape[0]):
            difference = query[d] - row[d]
            signed = coefficient if difference > _ZERO else (minus if difference < _ZERO else kink)
            query_gradient[d] -= signed
            row_gradient[d] += signed
    elif kind == MODULUS:
        _pull(-coefficient, query, row, query_gradient)
        _pull(coefficient, query, row, row_gradient)
    else:
        for d in range(query.shape[0]):
            query_gradient[d] += coefficient * row[d]
            row_gradient[d] += coefficient * query[d]


@compiled(fastmath=_FAST)
def _weigh(scores, candidates, weight, temperature):
    """The loss of one positive, `fkgsec.kge.loss.negative_sampling_loss` of its scores `[K]`.

    The scores become d weighted loss / d score. Candidates of -1 do not count.
    """
    highest, powers = _MINUS_INFINITY, np.empty_like(scores)
    for k in range(1, len(scores)):
        if candidates[k] >= 0 and not scores[k] <= highest:
            highest = scores[k]
    normaliser = _ZERO
    for k in range(1, len(scores)):
        if candidates[k] >= 0:
            power = math.exp(temperature * (scores[k] - highest))
            normaliser += power
            powers[k] = power
    loss = _ZERO
    for k in range(len(scores)):
        if candidates[k] < 0:
            continue
        power, score = powers[k], scores[k]  # in this order, which decides that of products, so the last bits
        small = math.exp(-abs(score))
        sigmoid = (_ONE if score > 0 else small) / (_ONE + small)
        if k == 0:
            loss += math.log1p(small) + max(-score, _ZERO)
            scores[k] = weight * (sigmoid - _ONE)
        else:
            share = power / normaliser
            loss += share * (math.log(_ONE + small) + max(score, _ZERO))
            scores[k] = weight * share * sigmoid
    return loss


@compiled(parallel=True)
def order_candidates(threads, candidates, N):
    """Candidates `[B, K]` sorted by row: those that are row n stand at places `start[n] : start[n + 1]`; -1 is left out.

    Returns the positive and the column of each place, int32 both, and `start` int64 `[N + 1]`. Within a row they stand as in
    `candidates`, whatever the number of threads, of which each counts and then places the candidates of its own positives.

    So a table larger than the caches is read from end to end instead of K times at random, and each row's gradient is written
    once.
    """
    B, K = candidates.shape
    places = np.zeros((threads, N), np.int64)
    for thread in prange(threads):
        count = places[thread]
        for b in range(B * thread // threads, B * (thread + 1) // threads):
            for k in range(K):
                if candidates[b, k] >= 0:
                    count[candidates[b, k]] += 1
    start, total = np.empty(N + 1, np.int64), 0
    for n in range(N):
        start[n] = total
        for thread in range(threads):
            count_here = places[thread, n]
            places[thread, n] = total
            total += count_here
    start[N] = total
    positives, columns = np.empty(total, np.int32), np.empty(total, np.int32)
    for thread in prange(threads):
        place = places[thread]
        for b in range(B * thread // threads, B * (thread + 1) // threads):
            for k in range(K):
                n = candidates[b, k]
                if n >= 0:
                    positives[place[n]] = b
                    columns[place[n]] = k
                    place[n] += 1
    return positives, columns, start


@compiled(parallel=True, fastmath=_FAST)
def candidate_scores(kind, queries, table, margin, positives, columns, start, scores):
    """Fill `scores` `[B, K]` where a candidate counts; they come as `order_candidates` has them."""
    N = len(table)
    for part in prange(PARTS):
        for n in range(N * part // PARTS, N * (part + 1) // PARTS):
            row = table[n]
            for place in range(start[n], start[n + 1]):
                b = np.uint32(positives[place])
                scores[b, np.uint32(columns[place])] = margin + _similarity(kind, queries[b], row)


@compiled(parallel=True, fastmath=_FAST)
def candidate_gradients(
    kind,
    threads,
    queries,
    table,
    first_query,
    first_row,
    positives,
    columns,
    start,
    coefficients,
    query_gradient,
    table_gradient,
):
    """Fill the gradients to `queries` `[B, W]` and `table` `[N, W]` of the sum of coefficients `[B, K]` times scores.

    A query's gradient is summed within each part and then over the parts in their order. Queries `first_query[c] :
    first_query[c + 1]` have their candidates in segment c of the table, rows `first_row[c] : first_row[c + 1]`, which is
    divided into parts of its own, so that these sums depend on nothing outside it. Each of `threads` takes its parts segment by
    segment: the queries of one and their gradients stay in its cache.
    """
    B, W = queries.shape
    partial = np.empty((PARTS, B, W), np.float32)
    for thread in prange(threads):
        for c in range(len(first_row) - 1):
            first, count = first_row[c], first_row[c + 1] - first_row[c]
            for part in range(PARTS * thread // threads, PARTS * (thread + 1) // threads):
                to_queries = partial[part]
                to_queries[first_query[c] : first_query[c + 1]] = _ZERO
                for n in range(first + count * part // PARTS, first + count * (part + 1) // PARTS):
                    row, to_row = table[n], table_gradient[n]
                    to_row[:] = _ZERO
                    for place in range(start[n], start[n + 1]):
                        b = np.uint32(positives[place])
                        coefficient = coefficients[b, np.uint32(columns[place])]
                        _add_gradients(kind, coefficient, queries[b], row, to_queries[b], to_row)
    for b in prange(B):
        _sum_parts(partial, b, query_gradient[b])


@compiled(fastmath=_FAST)
def _sum_parts(partial, b, total):
    """Sum partial[:, b] over the parts."""
    for d in range(len(total)):
        total_of_d = _ZERO
        for part in range(PARTS):
            total_of_d += partial[part, b, d]
        total[d] = total_of_d


@compiled(parallel=True, fastmath=_FAST)
def l1_gradients(
    threads,
    queries,
    table,
    first_query,
    first_row,
    positives,
    columns,
    start,
    coefficients,
    query_gradient,
    table_gradient,
):
    """`candidate_gradients` of L1, to the same bits: rows take their queries, four at a time, then queries their rows.

    The derivative is a mere sign: to take it twice costs less than to load and store a query's sum for each candidate, as long
    as a part's rows, which queries ask for at random, lie in a cache.
    """
    B, K = coefficients.shape
    rows, of_query = np.empty(B * K, np.int32), np.empty(B * K, np.float32)  # candidates by query, in the order of rows
    of_row = np.empty(len(positives), np.float32)
    bounds = np.empty((B, PARTS + 1), np.int64)
    for c in prange(len(first_row) - 1):
        low, first, count = first_query[c], first_row[c], first_row[c + 1] - first_row[c]
        end = (np.arange(first_query[c + 1] - low) * K + low * K).astype(np.uint32)
        bounds[low : first_query[c + 1], 0] = end
        for part in range(PARTS):
            for n in range(first + count * part // PARTS, first + count * (part + 1) // PARTS):
                for place in range(start[n], start[n + 1]):
                    b = np.uint32(positives[place])
                    coefficient = coefficients[b, np.uint32(columns[place])]
                    of_row[place] = coefficient
                    index = np.uint32(b - low)
                    rows[end[index]] = n
                    of_query[end[index]] = coefficient
                    end[index] += np.uint32(1)
            bounds[low : first_query[c + 1], part + 1] = end
    scratch = np.empty((threads, queries.shape[1]), np.float32)
    for thread in prange(threads):
        for n in range(len(table) * thread // threads, len(table) * (thread + 1) // threads):
            table_gradient[n] = _ZERO
            _add_signs(of_row, positives, start[n], start[n + 1], queries, table[n], table_gradient[n])
        partial = scratch[thread]
        query_gradient[B * thread // threads : B * (thread + 1) // threads] = _ZERO
        for c in range(len(first_row) - 1):
            low, high = max(first_query[c], B * thread // threads), min(first_query[c + 1], B * (thread + 1) // threads)
            for part in range(PARTS):
                for b in range(low, high):
                    partial[:] = _ZERO
                    _add_signs(of_query, rows, bounds[b, part], bounds[b, part + 1], table, queries[b], partial)
                    query_gradient[b] += partial


@compiled(fastmath=False)  # or it would take its callers', and sum the four in another order
def _add_signs(coefficients, others, low, high, vectors, index, total):
    """total += coefficient * sign(vector - own) for the vectors at places low..high, in their order.

    A NaN coefficient stays one, also at a kink.
    """
    place = low
    while place + 4 <= high:
        x0, x1 = vectors[np.uint32(others[place])], vectors[np.uint32(others[place + 1])]
        x2, x3 = vectors[np.uint32(others[place + 2])], vectors[np.uint32(others[place + 3])]
        c0, c1, c2, c3 = (
            coefficients[place],
            coefficients[place + 1],
            coefficients[place + 2],
            coefficients[place + 3],
        )
        for d in range(len(index)):
            d0, d1, d2, d3 = x0[d] - index[d], x1[d] - index[d], x2[d] - index[d], x3[d] - index[d]
            sum_so_far = total[d]
            sum_so_far += c0 if d0 > _ZERO else (-c0 if d0 < _ZERO else c0 * _ZERO)
            sum_so_far += c1 if d1 > _ZERO else (-c1 if d1 < _ZERO else c1 * _ZERO)
            sum_so_far += c2 if d2 > _ZERO else (-c2 if d2 < _ZERO else c2 * _ZERO)
            sum_so_far += c3 if d3 > _ZERO else (-c3 if d3 < _ZERO else c3 * _ZERO)
            total[d] = sum_so_far
        place += 4
    while place < high:
        x0, c0 = vectors[np.uint32(others[place])], coefficients[place]
        for d in range(len(index)):
            d0 = x0[d] - index[d]
            total[d] += c0 if d0 > _ZERO else (-c0 if d0 < _ZERO else c0 * _ZERO)
        place += 1


@compiled(parallel=True, fastmath=_FAST)
def weigh_candidates(scores, candidates, weights, temperature, losses):
    """Scores `[B, K]` become the derivatives of the weighted loss by them; fill `losses` `[B]`."""
    for b in prange(len(scores)):
        losses[b] = _weigh(scores[b], candidates[b], weights[b], temperature)


@compiled(parallel=True, fastmath=_FAST)
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


def compile_once() -> None:
    """Have a process of its own compile the loops, when the cache does not hold them yet.

    numba optimises a parallel loop once more when it writes it to the cache, so a process that compiles it sums in another
    order than those that load it, and the last bits differ. After this call every process loads.
    """
    if numba.config.DISABLE_JIT:  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
        return
    folder = candidate_gradients.stats.cache_path
    if folder is None:
        warnings.warn(
            "numba can write its cache nowhere, so the CPU loops are compiled anew in every process, which takes most of a "
            "minute, and figures may differ in their last digits from those of others; name a folder in NUMBA_CACHE_DIR",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    made_from = (Path(__file__).read_bytes(), numba.__version__, llvmlite.binding.get_host_cpu_name(), sys.version)
    stamp = Path(folder) / f"kernels-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]}.compiled"
    if stamp.exists():
        return
    command = "from fkgsec.kge.cpu_kernels import run_each; run_each()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, env=environment)
    try:
        if done.returncode:
            raise OSError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}")
        stamp.touch()
    except OSError as error:
        warnings.warn(
            f"the CPU loops could not be compiled beforehand ({error}); figures of this run may differ in their last digits "
            "from those of the next",
            RuntimeWarning,
            stacklevel=2,
        )


def run_each() -> None:
    """Run every loop on one row, with the types that `fkgsec.kge.kernels` passes."""
    row, ids = np.ones((1, 2), dtype=np.float32), np.zeros((1, 2), dtype=np.int32)
    unit = np.float32(1)
    similarity_matrix(L1, row, row, np.ones((1, 1), dtype=np.float32))
    order = order_candidates(1, ids, 1)
    candidate_scores(L1, row, row, unit, *order, row.copy())
    weigh_candidates(row.copy(), ids, row[0, :1], unit, row[0, :1].copy())
    segments = np.array([0, 1], dtype=np.int64)
    candidate_gradients(MODULUS, 1, row, row, segments, segments, *order, row, row.copy(), row.copy())
    l1_gradients(1, row, row, segments, segments, *order, row, row.copy(), row.copy())
