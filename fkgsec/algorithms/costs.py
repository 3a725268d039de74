"""What FedS transmits, by the paper's formula; `FedEPL` takes its dimension from it, and tests compare it with real bytes."""

from __future__ import annotations

import math


def transmitted_ratio(sparsity: float, sparse_rounds: int, dim: int) -> float:
    """Numbers that FedS transmits in a cycle over those of FedE, at most: (p s + 1 + (2 + p) s / (2 D)) / (s + 1).

    Args:
        sparsity: p, the share of rows sent in a round between two synchronisations. sparse_rounds: s, how many such rounds there
            are. dim: D, the width of a row.

    Source: feds.txt Eq. 5. It counts a sign, a priority and a number of a row alike, as the paper does.
    Differs: without synchronisation (s = 0 here) there is no cycle; the ratio is that of one sparse round.
    """
    if sparse_rounds == 0:
        return sparsity + (2 + sparsity) / (2 * dim)
    return (sparsity * sparse_rounds + 1 + (2 + sparsity) * sparse_rounds / (2 * dim)) / (sparse_rounds + 1)


def equal_cost_dim(sparsity: float, sparse_rounds: int, dim: int) -> int:
    """The dimension at which FedE transmits as much as FedS, rounded up. Source: feds.txt VI-C (256: 135 for p = 0.4)."""
    return math.ceil(transmitted_ratio(sparsity, sparse_rounds, dim) * dim - 1e-9)  # 28.000000000000004 is 28
