"""Compiled CPU loops behind `fkgsec.kge.kernels`, which documents what they compute. Arrays are float32 and contiguous.

Legend: `B` positives, `K` candidates per positive, `N` table rows in `C` segments, `W` width of a row.
"""

from __future__ import annotations

import contextlib
import fcntl
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
    """Add coefficient * (x - y) / modulus to `out`, for each complex number."""
    half = x.shape[0] // 2
    for d in range(half):
        real, imaginary = x[d] - y[d], x[half + d] - y[half + d]
        modulus = math.sqrt(real * real + imaginary * imaginary)
        # The modulus has no derivative at 0; autograd takes the subgradient 0.
        scaled = coefficient / modulus if modulus > 0 else _ZERO
        out[d] += real * scaled
        out[half + d] += imaginary * scaled


@compiled(fastmath=_FAST, inline="always")
def _add_gradients(kind, coefficient, query, row, query_gradient, row_gradient):
    """Add coefficient * d similarity / d query and / d row. At a kink the subgradient is 0, as in autograd."""
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
    """Return the loss of one positive and replace its scores `[K]` by the derivatives of the weighted loss.

    The loss is that of `fkgsec.kge.loss.negative_sampling_loss`. Candidates of -1 do not count.
    """
    # Softmax over the negatives: the highest score is subtracted first, so that exp does not overflow.
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
        # exp of a negative number alone: neither sigmoid nor softplus overflows.
        small = math.exp(-abs(score))
        sigmoid = (_ONE if score > 0 else small) / (_ONE + small)
        if k == 0:
            # Positive: -log sigmoid(s), with derivative sigmoid(s) - 1.
            loss += math.log1p(small) + max(-score, _ZERO)
            scores[k] = weight * (sigmoid - _ONE)
        else:
            # Negative: -p log sigmoid(-s), with derivative p sigmoid(s); the weight p carries no gradient.
            share = power / normaliser
            loss += share * (math.log(_ONE + small) + max(score, _ZERO))
            scores[k] = weight * share * sigmoid
    return loss


@compiled(parallel=True)
def order_candidates(threads, candidates, N):
    """Sort candidates by table row, so that each row is read and its gradient written once.

    A table larger than the caches is then read from end to end instead of K times at random.

    Args:
        threads: number of threads; the result does not depend on it.
        candidates: int32 `[B, K]`, rows of the table; -1 is left out.
        N: number of table rows.

    Returns:
        The positive and the column of each entry, both int32, and `start` int64 `[N + 1]`. The entries of row n are
        `start[n] : start[n + 1]`, in the order in which they stand in `candidates`.
    """
    B, K = candidates.shape
    # Counting sort. First pass: each thread counts the candidates of its share of positives.
    places = np.zeros((threads, N), np.int64)
    for thread in prange(threads):
        count = places[thread]
        for b in range(B * thread // threads, B * (thread + 1) // threads):
            for k in range(K):
                if candidates[b, k] >= 0:
                    count[candidates[b, k]] += 1
    # Prefix sums over rows, then threads: counts become the first entry of each (row, thread).
    start, total = np.empty(N + 1, np.int64), 0
    for n in range(N):
        start[n] = total
        for thread in range(threads):
            count_here = places[thread, n]
            places[thread, n] = total
            total += count_here
    start[N] = total
    # Second pass: each thread places the candidates of the same share, so the sort is stable.
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
    """Score every candidate that counts.

    Args:
        kind: similarity, see `fkgsec.kge.kinds`.
        queries: `[B, W]`.
        table: `[N, W]`.
        margin: added to every similarity.
        positives, columns, start: from `order_candidates`.
        scores: `[B, K]`, filled where a candidate counts.
    """
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
    """Compute the gradients of the sum of coefficients times scores.

    A query's gradient is summed within each part and then over the parts in order. Each segment of the table is divided
    into its own parts, so these sums depend on nothing outside the segment. Each thread takes its parts segment by
    segment: the queries of one segment and their gradients stay in its cache.

    Args:
        kind: similarity, see `fkgsec.kge.kinds`.
        threads: number of threads; the result does not depend on it.
        queries: `[B, W]`.
        table: `[N, W]`.
        first_query, first_row: int64 `[C + 1]`. Queries `first_query[c] : first_query[c + 1]` have their candidates in
            rows `first_row[c] : first_row[c + 1]`.
        positives, columns, start: from `order_candidates`.
        coefficients: `[B, K]`, derivative of the loss by each score.
        query_gradient, table_gradient: `[B, W]` and `[N, W]`, filled.
    """
    B, W = queries.shape
    # One partial sum per part, not per thread: the number of threads must not change the bits.
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
    """Sum `partial[:, b]` over the parts, in order."""
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
    """Compute the same bits as `candidate_gradients` does for L1, in two passes: by rows, then by queries.

    The derivative of L1 is a sign. Taking it twice costs less than loading and storing a query's sum for each
    candidate, as long as the rows of a part fit in a cache.

    Args:
        threads: number of threads; the result does not depend on it.
        queries: `[B, W]`.
        table: `[N, W]`.
        first_query, first_row: int64 `[C + 1]`, segments as in `candidate_gradients`.
        positives, columns, start: from `order_candidates`.
        coefficients: `[B, K]`, derivative of the loss by each score.
        query_gradient, table_gradient: `[B, W]` and `[N, W]`, filled.
    """
    B, K = coefficients.shape
    rows, of_query = np.empty(B * K, np.int32), np.empty(B * K, np.float32)  # candidates by query, in the order of rows
    of_row = np.empty(len(positives), np.float32)
    bounds = np.empty((B, PARTS + 1), np.int64)
    # Regroup the candidates by query; within a query they keep the order of rows, and `bounds` marks its parts.
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
    # Pass over rows: the gradient of each row by its queries.
    scratch = np.empty((threads, queries.shape[1]), np.float32)
    for thread in prange(threads):
        for n in range(len(table) * thread // threads, len(table) * (thread + 1) // threads):
            table_gradient[n] = _ZERO
            _add_signs(of_row, positives, start[n], start[n + 1], queries, table[n], table_gradient[n])
        # Pass over queries: one partial sum per part, added up in the order of `candidate_gradients`.
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
    """Add coefficient * sign(vector - index) to `total` for the vectors low..high, in order, four at a time.

    A NaN coefficient stays NaN, also at a kink.
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
    """Replace scores by the derivatives of the weighted loss, and fill the losses.

    Args:
        scores: `[B, K]`, the positive in column 0; changed in place.
        candidates: int32 `[B, K]`; -1 does not count.
        weights: `[B]`, weight of each positive's loss.
        temperature: of the self-adversarial weights of negatives.
        losses: `[B]`, filled with the unweighted losses.
    """
    for b in prange(len(scores)):
        losses[b] = _weigh(scores[b], candidates[b], weights[b], temperature)


@compiled(parallel=True, fastmath=_FAST)
def similarity_matrix(kind, queries, rows, out):
    """Compute similarities of all queries to all rows. Queries go in fours, so that a row is loaded once for four of
    them.

    Dot products are summed here too. A BLAS sums the columns at the edge of its blocks in another order: equal rows
    would get scores that differ in the last bit, and ties would be lost.

    Args:
        kind: similarity, see `fkgsec.kge.kinds`.
        queries: `[B, W]`.
        rows: `[N, W]`.
        out: `[B, N]`, filled.
    """
    B, W = queries.shape
    N = rows.shape[0]
    half = W // 2
    for block in prange((B + 3) // 4):
        first = 4 * block
        # The last block repeats the last query; the copies are not written.
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


@compiled(inline="always")
def _is_member(wanted, members, begin, end):
    """Return whether `wanted` is among the sorted `members[begin:end]`, by binary search."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if members[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low < end and members[low] == wanted


@compiled(parallel=True)
def mask_known(threads, candidates, groups, start, members):
    """Set to -1 every candidate that is among the sorted members of its row's group.

    Args:
        threads: number of threads; the result does not depend on it.
        candidates: int32 `[B, K]`, changed in place.
        groups: int64 `[B]`, group of each row.
        start: int64, group g has `members[start[g]:start[g + 1]]`.
        members: int32, ascending within a group.
    """
    B, K = candidates.shape
    # The largest member bounds the array of marks. Members ascend, so the last one of a group is its largest.
    span = 0
    for b in range(B):
        if start[groups[b] + 1] > start[groups[b]]:
            span = max(span, members[start[groups[b] + 1] - 1] + 1)
    marks = np.zeros((threads, span), np.bool_)
    for thread in prange(threads):
        marked = marks[thread]
        for b in range(B * thread // threads, B * (thread + 1) // threads):
            begin, end = start[groups[b]], start[groups[b] + 1]
            # Marking writes every member twice, binary search reads log2(members) numbers per candidate: search in large
            # groups.
            if end - begin > 2 * K:
                for k in range(K):
                    if _is_member(candidates[b, k], members, begin, end):
                        candidates[b, k] = -1
                continue
            for place in range(begin, end):
                marked[members[place]] = True
            for k in range(K):
                wanted = candidates[b, k]
                if 0 <= wanted < span and marked[wanted]:
                    candidates[b, k] = -1
            for place in range(begin, end):
                marked[members[place]] = False


@compiled(parallel=True)
def count_competitors(scores, true, above, level):
    """Count, for each row of scores, those above the true score and those equal to it.

    Args:
        scores: float32 `[B, N]`.
        true: float32 `[B]`, the score of each row's true entity.
        above, level: int64 `[B]`, filled with the counts.
    """
    for b in prange(len(scores)):
        true_score, greater, equal = true[b], 0, 0
        for n in range(scores.shape[1]):
            greater += scores[b, n] > true_score
            equal += scores[b, n] == true_score
        above[b], level[b] = greater, equal


@compiled()
def convolution_scores(before, filters, candidates, weights, out):
    """Score candidates by ConvKB, with one row of D sums instead of the convolutions of all candidates.

    Each dimension has its own sum, and these are added up at the end, in an order that is not left to the compiler.

    Args:
        before: `[B, C, D]`, what a query adds to each channel and dimension.
        filters: `[B, C]`, by which a candidate is multiplied.
        candidates: `[N, D]`.
        weights: `[C, D]`.
        out: `[B, N]`, filled.
    """
    C, D = weights.shape
    for b in range(before.shape[0]):
        sums = np.empty(D, dtype=np.float32)
        for n in range(candidates.shape[0]):
            sums[:] = _ZERO
            for c in range(C):
                tap = filters[b, c]
                for d in range(D):
                    value = before[b, c, d] + tap * candidates[n, d]
                    sums[d] += weights[c, d] * (value if value > _ZERO else _ZERO)
            total = _ZERO
            for d in range(D):
                total += sums[d]
            out[b, n] = total


def compile_once() -> None:
    """Compile the loops in a separate process if the cache does not hold them yet.

    numba optimizes a parallel loop once more when it writes it to the cache. A process that compiles it therefore sums
    in another order than those that load it, and the last bits differ. After this call every process loads.
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
    # The stamp names everything that changes the machine code. A new stamp means that the loops are compiled again.
    made_from = (Path(__file__).read_bytes(), numba.__version__, llvmlite.binding.get_host_cpu_name(), sys.version)
    stamp = Path(folder) / f"kernels-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:16]}.compiled"
    if stamp.exists():
        return
    command = "from fkgsec.kge.cpu_kernels import run_each; run_each()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        with stamp.with_suffix(".lock").open("w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks
                # Until the file is closed: processes that start together compile once.
                fcntl.flock(lock, fcntl.LOCK_EX)
            if stamp.exists():
                return
            done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, env=environment)
            if done.returncode:
                raise OSError(
                    done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"
                )
            stamp.touch()
    except OSError as error:
        warnings.warn(
            f"the CPU loops could not be compiled beforehand ({error}); figures of this run may differ in their last digits "
            "from those of the next",
            RuntimeWarning,
            stacklevel=2,
        )


def run_each() -> None:
    """Run every loop on one row, with the types that `fkgsec.kge.kernels` passes, so that numba compiles it."""
    row, ids = np.ones((1, 2), dtype=np.float32), np.zeros((1, 2), dtype=np.int32)
    unit = np.float32(1)
    similarity_matrix(L1, row, row, np.ones((1, 1), dtype=np.float32))
    order = order_candidates(1, ids, 1)
    candidate_scores(L1, row, row, unit, *order, row.copy())
    weigh_candidates(row.copy(), ids, row[0, :1], unit, row[0, :1].copy())
    segments = np.array([0, 1], dtype=np.int64)
    candidate_gradients(MODULUS, 1, row, row, segments, segments, *order, row, row.copy(), row.copy())
    l1_gradients(1, row, row, segments, segments, *order, row, row.copy(), row.copy())
    groups, start = np.zeros(1, dtype=np.int64), np.array([0, 1], dtype=np.int64)
    mask_known(1, ids.copy(), groups, start, ids[0, :1])
    count_competitors(row, row[0, :1], groups.copy(), groups.copy())
    convolution_scores(row[None], row[:, :1], row, row, np.ones((1, 1), dtype=np.float32))
