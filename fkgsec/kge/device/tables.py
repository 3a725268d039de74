"""Gradients of tables: what the slots contribute to a row is summed in the order of the slots, so every run has the same bits.

Legend: `B` slots, `K` candidates, `N` rows of entities, `M` of relations, `W`, `V` their widths, `D` dimension.

Row n's contributions stand at `order[start[n] : start[n + 1]]`, places of `candidates` `[B, K + 1]`, whose last column is the
anchor.
`scatter_candidates` adds them with atomics instead, in whatever order they come, which needs no sorting.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fkgsec.kge.device.scoring import load_rows, pull, store_rows


def by_row(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Places of a tensor of rows, sorted by row, stably: order int64 `[n]`, and start int64 `[count + 1]`; -1 is no row."""
    found, order = torch.sort(rows.flatten(), stable=True)
    bounds = torch.arange(count + 1, dtype=found.dtype, device=found.device)
    return order, torch.searchsorted(found, bounds)


@triton.jit
def sum_candidates(
    entities, queries, slopes, to_anchors, order, start, gradients, K, D, W,
    MODEL: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Fill `gradients` `[N, W]`: for each row the sum of slopes `[B, K]` times d score / d row, and of `to_anchors` `[B, W]`."""
    n = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    inside = dims < D
    row, row_i = load_rows(entities, n * W, dims, inside, D, MODEL)
    g, g_i = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
    begin, end = tl.load(start + n), tl.load(start + n + 1)
    for low in range(begin, end, TILE):
        places = low + tl.arange(0, TILE)
        there = places < end
        place = tl.load(order + places, mask=there, other=0)
        b, k = place // (K + 1), place % (K + 1)
        slope = tl.load(slopes + b * K + k, mask=there & (k < K), other=0.0)
        offsets = b[:, None] * W
        scored = (there & (k < K))[:, None] & inside[None, :]
        query, query_i = load_rows(queries, offsets, dims[None, :], scored, D, MODEL)
        pulled, pulled_i = pull(slope[:, None], query, query_i, row[None, :], row_i[None, :], False, MODEL)
        stays = (there & (k == K))[:, None] & inside[None, :]
        anchor, anchor_i = load_rows(to_anchors, offsets, dims[None, :], stays, D, MODEL)
        g += tl.sum(tl.where(scored, pulled, anchor), axis=0)
        if MODEL == 1 or MODEL == 3:
            g_i += tl.sum(tl.where(scored, pulled_i, anchor_i), axis=0)
    store_rows(gradients, n * W, dims, inside, g, g_i, D, MODEL)


@triton.jit
def sum_rows(contributions, order, start, gradients, V, TILE: tl.constexpr, BLOCK: tl.constexpr):
    """Fill `gradients` `[M, V]`: for each row the sum of its `contributions` `[B, V]`."""
    m = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    inside = dims < V
    g = tl.zeros((BLOCK,), tl.float32)
    begin, end = tl.load(start + m), tl.load(start + m + 1)
    for low in range(begin, end, TILE):
        places = low + tl.arange(0, TILE)
        there = places < end
        b = tl.load(order + places, mask=there, other=0)
        g += tl.sum(
            tl.load(contributions + b[:, None] * V + dims[None, :], mask=there[:, None] & inside[None, :], other=0.0), 0
        )
    tl.store(gradients + m * V + dims, g, mask=inside)


@triton.jit
def scatter_candidates(
    entities, queries, candidates, slopes, to_anchors, gradients, K, D, W,
    MODEL: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Add to `gradients` `[N, W]`, which is zero before, what `sum_candidates` fills it with."""
    b = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    inside = dims < D
    query, query_i = load_rows(queries, b * W, dims, inside, D, MODEL)
    anchor, anchor_i = load_rows(to_anchors, b * W, dims, inside, D, MODEL)
    slot = candidates + b * (K + 1)
    live = tl.load(slot + K) >= 0
    for low in range(0, tl.where(live, K + 1, 0), TILE):
        k = low + tl.arange(0, TILE)
        chosen = tl.load(slot + k, mask=k <= K, other=-1)
        counts = (chosen >= 0)[:, None] & inside[None, :]
        places = tl.maximum(chosen, 0).to(tl.int64)[:, None] * W
        row, row_i = load_rows(entities, places, dims[None, :], counts, D, MODEL)
        slope = tl.load(slopes + b * K + k, mask=(chosen >= 0) & (k < K), other=0.0)
        pulled, pulled_i = pull(slope[:, None], query[None, :], query_i[None, :], row, row_i, False, MODEL)
        stays = (k == K)[:, None]
        tl.atomic_add(gradients + places + dims[None, :], tl.where(stays, anchor[None, :], pulled), mask=counts)
        if MODEL == 1 or MODEL == 3:
            part = tl.where(stays, anchor_i[None, :], pulled_i)
            tl.atomic_add(gradients + places + D + dims[None, :], part, mask=counts)
