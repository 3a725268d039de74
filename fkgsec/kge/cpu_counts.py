"""Competitors of true entities, counted on the CPU in one compiled pass over the scores.

Integers alone: counts depend on no order of summing, so there is nothing to compile beforehand as in `fkgsec.kge.cpu_kernels`.
"""

from __future__ import annotations

from numba import prange

from fkgsec.protocols.core.compiled import compiled


@compiled(parallel=True)
def count_competitors(scores, true, above, level):
    """Fill `above` and `level` int64 `[B]`: how many of a row's scores `[B, N]` exceed the true one `[B]`, how many equal it."""
    for b in prange(len(scores)):
        true_score, greater, equal = true[b], 0, 0
        for n in range(scores.shape[1]):
            greater += scores[b, n] > true_score
            equal += scores[b, n] == true_score
        above[b], level[b] = greater, equal
