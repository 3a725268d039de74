"""Compiled CPU counts of the competitors of true entities, in one pass over the scores.

Counts are integers, so they do not depend on the order of summation. Nothing needs to be compiled beforehand, unlike in
`fkgsec.kge.cpu_kernels`.
"""

from __future__ import annotations

from numba import prange

from fkgsec.protocols.core.compiled import compiled


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
