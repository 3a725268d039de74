"""Compiled CPU pass that masks known triples among drawn negatives.

The numbers are integers, so they do not depend on the order of summation. Nothing needs to be compiled beforehand,
unlike in
`fkgsec.kge.cpu_kernels`.
"""

from __future__ import annotations

import numpy as np
from numba import get_num_threads as get_num_threads
from numba import prange

from fkgsec.protocols.core.compiled import compiled


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
