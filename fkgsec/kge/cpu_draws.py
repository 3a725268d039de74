"""Negatives on the CPU: known triples masked, and drawn by Philox besides, each in one compiled pass over what a step needs.

Integers alone: the numbers depend on no order of summing, so there is nothing to compile beforehand as in
`fkgsec.kge.cpu_kernels`. `fkgsec.philox` says which words these are.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads as get_num_threads
from numba import prange

from fkgsec.philox import LOW, MULTIPLIERS, ROUNDS, WEYL
from fkgsec.protocols.core.compiled import compiled

_LOW, _HALF = np.uint64(LOW), np.uint64(32)
_FIRST, _SECOND = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
_WEYL_FIRST, _WEYL_SECOND = np.uint64(WEYL[0]), np.uint64(WEYL[1])


@compiled()
def philox(counter, key, out):
    """Fill `out` uint64 `[4]` for a counter uint64 `[4]` of 32-bit words and a key of 64 bits."""
    c0, c1, c2, c3 = counter[0], counter[1], counter[2], counter[3]
    k0, k1 = key & _LOW, key >> _HALF
    for _ in range(ROUNDS):
        first, second = c0 * _FIRST, c2 * _SECOND
        c0, c1, c2, c3 = (second >> _HALF) ^ c1 ^ k0, second & _LOW, (first >> _HALF) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _WEYL_FIRST) & _LOW, (k1 + _WEYL_SECOND) & _LOW
    out[0], out[1], out[2], out[3] = c0, c1, c2, c3


@compiled(inline="always")
def _is_member(wanted, members, begin, end):
    """Return whether it is among the sorted `members[begin:end]`, by binary search."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if members[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low < end and members[low] == wanted


@compiled(parallel=True)
def draw_negatives(key, where, pool, groups, start, members, drawn):
    """Fill `drawn` int32 `[B, K]` with entities of `pool` int32 `[n]`; -1 for a member of the row's group.

    Number k of row b is the word at place b * K + k of `where` uint64 `[3]`: step, epoch, round. Group g owns
    `members[start[g] : start[g + 1]]`, sorted.
    """
    K, size = drawn.shape[1], np.uint64(len(pool))
    for b in prange(len(drawn)):
        begin, end = start[groups[b]], start[groups[b] + 1]
        four = np.empty(4, np.uint64)
        counter = np.array([np.uint64(0), where[0], where[1], where[2]])
        for k in range(K):
            place = b * K + k
            if k == 0 or place % 4 == 0:
                counter[0] = np.uint64(place // 4)
                philox(counter, key, four)
            wanted = pool[np.int64((four[place % 4] * size) >> _HALF)]
            drawn[b, k] = -1 if _is_member(wanted, members, begin, end) else wanted


@compiled(parallel=True)
def mask_known(threads, candidates, groups, start, members):
    """Set to -1 every candidate that is among the sorted members of its row's group.

    Of a small group they are marked in an array that is asked; in a large one binary search finds them.
    """
    B, K = candidates.shape
    span = 0
    for b in range(B):
        if start[groups[b] + 1] > start[groups[b]]:
            span = max(span, members[start[groups[b] + 1] - 1] + 1)
    marks = np.zeros((threads, span), np.bool_)
    for thread in prange(threads):
        marked = marks[thread]
        for b in range(B * thread // threads, B * (thread + 1) // threads):
            begin, end = start[groups[b]], start[groups[b] + 1]
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
