"""Filtered ranks on the device, every candidate scored and counted where it is read: no array of scores is ever written.

    ranks = ranks_on_device(L1, queries, entities, true, groups, known.start, known.members, margin=10.0)

Legend: `B` queries, `N` entities, `W` width, `D` dimension. Equal rows get equal scores, so that ties are ties.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from fkgsec.kge.device.scoring import load_rows, similarity
from fkgsec.kge.device.sizes import block_of, tile_of
from fkgsec.kge.device.where import current
from fkgsec.kge.kinds import L1, MODULUS


def ranks_on_device(
    kind: int, queries: Tensor, entities: Tensor, true: Tensor, groups: np.ndarray, start: Tensor, members: Tensor, *,
    margin: float,
) -> Tensor:  # fmt: skip
    """Realistic filtered ranks, float64 `[B]`, as `fkgsec.kge.ranking.filtered_ranks` says.

    Args:
        kind: of the similarity. queries: float32 `[B, W]`. entities: float32 `[N, W]`. true: int64 `[B]`, rows of entities.
        groups: int64 `[B]`; group g owns `members[start[g] : start[g + 1]]`, which are no competitors. `start` int64,
            `members` int32 on the device.
        margin: added to similarities, as in training: it decides by a last bit what is a tie.
    """
    width = entities.shape[1]
    model, dim = (0, width) if kind == L1 else (1, width // 2) if kind == MODULUS else (2, width)
    ranks = torch.empty(len(queries), dtype=torch.float64, device=queries.device)
    if not len(queries):
        return ranks
    block = block_of(dim)
    with current(queries.device):
        rank_queries[(len(queries),)](
            queries.contiguous(), entities.contiguous(), true.contiguous(), torch.from_numpy(groups).to(queries.device), start,
            members if len(members) else members.new_zeros(1), ranks, margin, len(entities), dim, width,
            MODEL=model, TILE=tile_of(block, model), BLOCK_D=block,
        )  # fmt: skip
    return ranks


@triton.jit
def scores_of(entities, chosen, counts, query, query_i, dims, inside, margin, D, W, MODEL: tl.constexpr):
    """Scores `[TILE]` of the chosen rows."""
    places = chosen.to(tl.int64)[:, None] * W
    row, row_i = load_rows(entities, places, dims[None, :], counts[:, None] & inside[None, :], D, MODEL)
    return margin + tl.sum(similarity(query[None, :], query_i[None, :], row, row_i, MODEL), axis=1)


@triton.jit
def rank_queries(
    queries, entities, true, groups, start, members, ranks, margin, N, D, W,
    MODEL: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Fill `ranks` `[B]`: 1 + those above + half of those level, known ones apart."""
    b = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    inside = dims < D
    query, query_i = load_rows(queries, b * W, dims, inside, D, MODEL)
    wanted = tl.load(true + b)
    tile = tl.arange(0, TILE)
    # In a tile like any other, so that its score has the bits that it has among the candidates.
    own = scores_of(entities, tile * 0 + wanted, tile >= 0, query, query_i, dims, inside, margin, D, W, MODEL)
    to_beat = tl.max(own, axis=0)
    twice = tl.full((), 2, tl.int64)
    for low in range(0, N, TILE):
        counts = low + tile < N
        score = scores_of(entities, low + tile, counts, query, query_i, dims, inside, margin, D, W, MODEL)
        better = tl.where(score > to_beat, 2, tl.where(score == to_beat, 1, 0))
        twice += tl.sum(tl.where(counts, better, 0), axis=0)
    group = tl.load(groups + b)
    known = tl.full((), 0, tl.int64)
    end = tl.load(start + group + 1)
    for low in range(tl.load(start + group), end, TILE):
        counts = low + tile < end
        member = tl.load(members + low + tile, mask=counts, other=0)
        score = scores_of(entities, member, counts, query, query_i, dims, inside, margin, D, W, MODEL)
        better = tl.where(score > to_beat, 2, tl.where(score == to_beat, 1, 0))
        twice -= tl.sum(tl.where(counts, better, 0), axis=0)
        known += tl.sum(tl.where(counts & (member == wanted), 1, 0), axis=0)
    # An unknown triple is still counted as level with itself.
    twice -= tl.where(known > 0, 0, 1)
    tl.store(ranks + b, twice.to(tl.float64) / 2)
