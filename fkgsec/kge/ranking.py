"""Filtered ranking of triples: the rank of the true entity among all of a client's entities.

known = [KnownTriples.build(graph.triples, side, graph.num_relations) for side in ("tail", "head")]
ranks = filtered_ranks(model, entities, relations, graph.test, known)     # float64 [n, 2]
(1 / ranks).mean()                                                        # MRR over both sides
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fkgsec.kge.device.where import can_run
from fkgsec.kge.models import KgeModel, Side
from fkgsec.kge.negatives import KnownTriples

Sides = Literal["tail", "both"]
SCORE_BLOCK_BYTES = 16 * 2**20  # scores held at once; small enough to stay in the cache


def sides_of(sides: Sides) -> tuple[Side, ...]:
    return ("tail",) if sides == "tail" else ("tail", "head")


def filtered_ranks(
    model: KgeModel,
    entities: Tensor,
    relations: Tensor,
    triples: np.ndarray,
    known: Sequence[KnownTriples],
    block_bytes: int = SCORE_BLOCK_BYTES,
) -> np.ndarray:
    """Realistic filtered ranks, float64 `[n, len(known)]`, one column for each side in `known`.

    Args:
        entities `[N, W]`, relations `[M, V]`: embedding rows; every entity is a candidate.
        triples: int64 `[n, 3]` to rank, in the ids of these rows.
        known: the true triples of each side that are not counted as competitors (usually train + valid + test).
        block_bytes: bound on the scores held at once; on a GPU none are held (`fkgsec.kge.device.ranking`).

    The rank is the mean of the optimistic (ties lost by the others) and the pessimistic one, so a model that gives every
    entity the same score gets the middle rank, not the first. Source: Berrendorf et al. 2020.
    Differs: the published codes break ties by an unstable sort.

    Raises:
        FloatingPointError: an embedding is NaN or infinite.
    """
    if not (torch.isfinite(entities).all() and torch.isfinite(relations).all()):
        raise FloatingPointError("an embedding is not finite (NaN or infinity)")
    if can_run(entities) and isinstance(model.similarity, int):
        return np.stack([_ranks_on_device(model, entities, relations, triples, index) for index in known], axis=1)
    ranks = np.empty((len(triples), len(known)))
    step = max(1, block_bytes // (4 * max(1, len(entities))))
    for column, index in enumerate(known):
        anchor, candidate = (0, 2) if index.side == "tail" else (2, 0)
        for low in range(0, len(triples), step):
            part = triples[low : low + step]
            chosen = torch.tensor(part).to(entities.device)
            queries = model.query(entities[chosen[:, anchor]], relations[chosen[:, 1]], index.side)
            scores = model.score_all(queries, entities)
            true = scores.gather(1, chosen[:, candidate, None])
            above, level = (scores > true).sum(1), (scores == true).sum(1)
            position, member = (torch.from_numpy(x).to(entities.device) for x in index.expand(index.groups(part)))
            filtered = scores[position, member]
            size = len(part)
            above -= torch.bincount(position, filtered > true[position, 0], minlength=size).long()
            level -= torch.bincount(position, filtered == true[position, 0], minlength=size).long()
            # The true entity itself is one of the known ones, or (an unknown triple) still counted in `level`.
            own = torch.zeros(size, dtype=torch.bool, device=entities.device)
            own[position[member == chosen[position, candidate]]] = True
            level -= (~own).long()
            ranks[low : low + step, column] = (1 + above + level / 2).cpu().numpy()
    return ranks


def _ranks_on_device(
    model: KgeModel, entities: Tensor, relations: Tensor, triples: np.ndarray, index: KnownTriples
) -> np.ndarray:
    """Ranks float64 `[n]` of one side, counted where the embeddings lie."""
    from fkgsec.kge.device.ranking import ranks_on_device

    assert isinstance(model.similarity, int)
    anchor, candidate = (0, 2) if index.side == "tail" else (2, 0)
    chosen = torch.from_numpy(np.ascontiguousarray(triples)).to(entities.device)
    queries = model.query(entities[chosen[:, anchor]], relations[chosen[:, 1]], index.side)
    start, members = (torch.from_numpy(part).to(entities.device) for part in (index.start, index.members))
    groups, true = index.groups(triples), chosen[:, candidate]
    return (
        ranks_on_device(model.similarity, queries, entities, true, groups, start, members, margin=model.margin)
        .cpu()
        .numpy()
    )
