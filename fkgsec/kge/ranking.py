"""Filtered ranking of triples: the rank of the true entity among all of a client's entities.

known = [KnownTriples.build(graph.triples, side, graph.num_relations) for side in ("tail", "head")]
ranks = filtered_ranks(model, entities, relations, graph.test, known)     # float64 [n, 2]
utility(ranks, seed=0)["mrr"]                                             # an `Estimate`: MRR with its bootstrap interval
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fkgsec import estimate
from fkgsec.estimate import Estimate, critical_value
from fkgsec.kge import kernels
from fkgsec.kge.models import HITS, KgeModel, Side, Sides
from fkgsec.kge.negatives import KnownTriples
from fkgsec.randomness import generator

SCORE_BLOCK_BYTES = 16 * 2**20  # scores in memory at once; small enough to stay in the cache
TRUE_BLOCK = (
    256  # triples per block if candidates are drawn: the true entities' scores are a square matrix of this size
)


def sides_of(sides: Sides) -> tuple[Side, ...]:
    """List the sides to rank.

    Args:
        sides: option `eval_sides`.
    """
    return ("tail",) if sides == "tail" else ("tail", "head")


def filtered_ranks(
    model: KgeModel,
    entities: Tensor,
    relations: Tensor,
    triples: np.ndarray,
    known: Sequence[KnownTriples],
    block_bytes: int = SCORE_BLOCK_BYTES,
    drawn: np.ndarray | None = None,
) -> np.ndarray:
    """Compute realistic filtered ranks, one column for each side in `known`.

    The rank is the mean of the optimistic and the pessimistic rank under ties. A model that gives every entity the same
    score gets the middle rank, not the first. Source: Berrendorf et al. 2020. Differs: the published code breaks ties
    by an unstable sort.

    Args:
        model: scores rows.
        entities: float `[N, W]`; every entity is a candidate.
        relations: float `[M, V]`.
        triples: int64 `[n, 3]` to rank, in the IDs of these rows.
        known: true triples of each side, not counted as competitors (usually train, valid and test).
        block_bytes: bound on the scores in memory at once.
        drawn: distinct IDs, ascending: the M of N entities, drawn uniformly, that are candidates. The rank is then 1 +
            N / M times the number of drawn competitors before the true entity. Its mean over draws is the rank among
            all entities (Horvitz & Thompson 1952), so its reciprocal is biased upward (Jensen), the more so the smaller
            M.

    Returns:
        Ranks, float64 `[n, len(known)]`.

    Raises:
        FloatingPointError: an embedding is NaN or infinite.
    """
    # NaN compares as false with everything: it would rank first, silently.
    if not (torch.isfinite(entities).all() and torch.isfinite(relations).all()):
        raise FloatingPointError("an embedding is not finite (NaN or infinity)")
    ranks = np.empty((len(triples), len(known)))
    # Candidates, and each entity's column among them; -1: not drawn.
    pool, column_of = entities, np.arange(len(entities))
    if drawn is not None:
        pool, column_of = entities[torch.from_numpy(drawn).to(entities.device)], np.full(len(entities), -1)
        column_of[drawn] = np.arange(len(drawn))
    step = max(1, block_bytes // (4 * max(1, len(pool))))
    step = step if drawn is None else min(step, TRUE_BLOCK)
    for place, index in enumerate(known):
        anchor, candidate = (0, 2) if index.side == "tail" else (2, 0)
        for low in range(0, len(triples), step):
            part = triples[low : low + step]
            chosen = torch.tensor(part).to(entities.device)
            queries = model.query(entities[chosen[:, anchor]], relations[chosen[:, 1]], index.side)
            scores = model.score_all(queries, pool)
            # The true score comes from the same loop as the others: computed in another way, its last bit could differ
            # and ties be lost. Of drawn candidates, the diagonal is the true entity of each query.
            true = (
                scores.gather(1, chosen[:, candidate, None])[:, 0]
                if drawn is None
                else model.score_all(queries, entities[chosen[:, candidate]]).diagonal()
            )
            # Neither the true entity nor the known ones compete; NaN is neither above nor level.
            position, member = index.expand(index.groups(part))
            rows = np.concatenate([np.arange(len(part)), position])
            columns = column_of[np.concatenate([part[:, candidate], member])]
            scores[tuple(torch.from_numpy(at[columns >= 0]).to(entities.device) for at in (rows, columns))] = math.nan
            above, level = kernels.count_competitors(scores, true)
            # Realistic rank: ties count half. Drawn candidates are scaled up to all entities (Horvitz & Thompson 1952).
            before = (above + level / 2) * (len(entities) / max(1, len(pool)))
            ranks[low : low + step, place] = (1 + before).cpu().numpy()
    return ranks


def sampled_mrr(ranks: Sequence[np.ndarray], sizes: Sequence[int], candidates: int | None) -> Estimate | None:
    """Estimate the validation MRR of all triples from a sample of each client's; None without triples.

    Clients are strata: the mean over a client's drawn triples (sides averaged) counts for all its triples, which is
    unbiased over the draw of triples. The interval is normal, with the finite-population correction.

    Args:
        ranks: float64 `[n, sides]` of each client's drawn triples.
        sizes: number of validation triples of each client.
        candidates: number of drawn candidates, None: all. With candidates the estimate is biased upward, see
            `filtered_ranks`, and the interval holds for these candidates.
    """
    total, drawn = sum(sizes), sum(map(len, ranks))
    if not total:
        return None
    value = variance = 0.0
    for client_ranks, size in zip(ranks, sizes, strict=True):
        if not size:
            continue
        # Stratified sampling: value = sum of N_c / N * mean_c.
        items = (1 / client_ranks).mean(axis=1)
        value += size / total * float(items.mean())
        if len(items) < size:
            # variance = sum of (N_c / N)^2 (1 - n_c / N_c) s_c^2 / n_c; a full stratum has no sampling error.
            variance += (size / total) ** 2 * (1 - len(items) / size) * float(items.var(ddof=1)) / len(items)
    half = critical_value() * math.sqrt(variance)
    method = f"unbiased over the draw of {drawn:,} of {total:,} triples"
    if candidates is not None:
        method = (
            f"{drawn:,} of {total:,} triples drawn; biased upwards, ranks scaled from {candidates:,} drawn candidates"
        )
    return Estimate(value, max(0.0, value - half), min(1.0, value + half), drawn, method)


def utility(ranks: np.ndarray, seed: int) -> dict[str, Estimate]:
    """Compute MRR (bootstrap) and Hits@1, 3, 5, 10 (Wilson). The triple is the unit; its sides are averaged.

    Args:
        ranks: float64 `[n, sides]`.
        seed: of the bootstrap.

    Returns:
        Estimates by metric, such as "mrr" and "hits@10".
    """
    rng = generator(seed, "bootstrap")
    figures = {"mrr": estimate.mean((1 / ranks).mean(axis=1), rng)}
    for k in HITS:
        figures[f"hits@{k}"] = estimate.proportion(float((ranks <= k).mean(axis=1).sum()), len(ranks))
    return figures
