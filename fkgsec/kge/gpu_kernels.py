"""The loss over candidates and its gradient on CUDA: the Triton counterpart of `fkgsec.kge.cpu_kernels`.

    losses, query_gradient, table_gradient = candidate_loss(L1, queries, table, candidates, weights, margin=10.0, temperature=1.0)

One program per positive reads each candidate's row once, keeps the query in registers, and normalizes the self-adversarial
weights as the scores arrive. Another kernel sums the gradient of each table row over its candidates, in the order of a stable
sort, so every run gives the same bits. Triton's interpreter runs the same kernels without a GPU.
`tests/kge/test_gpu_kernels.py` compares them with the CPU's loops.

Legend: `B` positives, `K` candidates of each (the positive first, then negatives), `N` table rows, `W` width of a row, `D` number
of dimensions (half the width for complex moduli). Complex rows hold all real parts first.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

import os

os.environ.setdefault(
    "TRITON_DEFAULT_FP_FUSION", "1"
)  # Triton 3.9 warns if it is not set; read when triton is imported

import torch
import triton
import triton.language as tl
from torch import Tensor

from fkgsec.kge.kinds import MODULUS

TILE_NUMBERS = 4096  # candidates times dimensions that one program holds in registers


def candidate_loss(
    kind: int,
    queries: Tensor,
    table: Tensor,
    candidates: Tensor,
    weights: Tensor,
    *,
    margin: float,
    temperature: float,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what `fkgsec.kge.kernels.candidate_loss` returns, for a similarity of `fkgsec.kge.kinds`.

    Args:
        kind: similarity.
        queries: float32 `[B, W]`.
        table: float32 `[N, W]`, on the same device as all other arguments.
        candidates: int32 `[B, K]`, rows of `table`; -1 does not count.
        weights: float32 `[B]`.
        margin: added to similarities.
        temperature: alpha of the self-adversarial weights.
        out: float32 `[N, W]` that takes the table's gradient, or None.

    Returns:
        losses `[B]`, gradient to queries `[B, W]`, gradient to the table `[N, W]` (in `out` if given); all float32.
    """
    (num_positives, num_candidates), width = candidates.shape, table.shape[1]
    dims = width // 2 if kind == MODULUS else width
    block = triton.next_power_of_2(dims)
    sizes = {
        "KIND": kind,
        "TILE": max(2, min(64, TILE_NUMBERS // (block * (2 if kind == MODULUS else 1)))),
        "BLOCK_D": block,
    }
    queries, table, candidates = queries.contiguous(), table.contiguous(), candidates.contiguous()
    slopes = torch.zeros(num_positives, num_candidates, device=table.device)
    highest, normalizer, losses = (torch.zeros(num_positives, device=table.device) for _ in range(3))
    query_gradient = torch.zeros_like(queries)
    table_gradient = torch.empty_like(table) if out is None else out
    # A grid of no programs is an error of CUDA.
    if num_positives == 0:
        return losses, query_gradient, table_gradient.zero_()
    with torch.cuda.device_of(table):
        score_candidates[(num_positives,)](
            queries, table, candidates, weights, slopes, highest, normalizer, losses, query_gradient, margin, temperature,
            num_candidates, dims, width, **sizes,
        )  # fmt: skip
        # The first kernel leaves plain scores; the normalizer is known only after the last candidate.
        columns = min(1024, triton.next_power_of_2(num_candidates))
        slopes_of_scores[(num_positives, triton.cdiv(num_candidates, columns))](
            candidates, slopes, highest, normalizer, weights, temperature, num_candidates, BLOCK=columns
        )
        sorted_rows, order = torch.sort(candidates.flatten(), stable=True)  # -1 marks no row and sorts first
        starts = torch.searchsorted(
            sorted_rows, torch.arange(len(table) + 1, dtype=sorted_rows.dtype, device=table.device)
        )
        sum_row_gradients[(len(table),)](
            table, queries, slopes, order, starts, table_gradient, num_candidates, dims, width, **sizes
        )
    return losses, query_gradient, table_gradient


@triton.jit
def load_rows(rows, offsets, dims, mask, D, KIND: tl.constexpr):
    """Load real and imaginary parts of rows.

    For real rows the second result repeats the first and is not used.

    Args:
        rows: pointer to the table.
        offsets, dims: offset of each row and dimension, in numbers.
        mask: what to load; the rest is 0.
        D: number of dimensions, the offset of imaginary parts.
        KIND: similarity, 1 for complex moduli.
    """
    real = tl.load(rows + offsets + dims, mask=mask, other=0.0)
    imaginary = real
    if KIND == 1:
        imaginary = tl.load(rows + offsets + D + dims, mask=mask, other=0.0)
    return real, imaginary


@triton.jit
def similarity_terms(query, query_i, row, row_i, KIND: tl.constexpr):
    """Compute the terms of the similarity, to be summed over the dimensions.

    Args:
        query, query_i: real and imaginary parts of queries.
        row, row_i: real and imaginary parts of candidate rows.
        KIND: similarity, see `fkgsec.kge.kinds`.
    """
    if KIND == 0:
        terms = -tl.abs(query - row)
    elif KIND == 1:
        terms = -tl.sqrt((query - row) * (query - row) + (query_i - row_i) * (query_i - row_i))
    else:
        terms = query * row
    return terms


@triton.jit
def similarity_vjp(slope, query, query_i, row, row_i, TO_QUERY: tl.constexpr, KIND: tl.constexpr):
    """Multiply `slope` by the derivative of the similarity by the query or by the row; at a kink the subgradient is 0.

    Args:
        slope: derivative of the loss by the similarity.
        query, query_i: real and imaginary parts of queries.
        row, row_i: real and imaginary parts of candidate rows.
        TO_QUERY: True for the derivative by the query.
        KIND: similarity, see `fkgsec.kge.kinds`.
    """
    if KIND == 0:
        sign = tl.where(query > row, 1.0, 0.0) - tl.where(query < row, 1.0, 0.0)
        real = slope * (-sign if TO_QUERY else sign)
        imaginary = real
    elif KIND == 1:
        modulus = tl.sqrt((query - row) * (query - row) + (query_i - row_i) * (query_i - row_i))
        scaled = slope * tl.where(modulus == 0, 0.0, 1.0 / tl.where(modulus == 0, 1.0, modulus))
        scaled = -scaled if TO_QUERY else scaled
        real, imaginary = (query - row) * scaled, (query_i - row_i) * scaled
    else:
        real = slope * (row if TO_QUERY else query)
        imaginary = real
    return real, imaginary


@triton.jit
def softplus(x):
    """Compute log(1 + e^x)."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def sigmoid(x):
    """Compute 1 / (1 + e^-x) without overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x > 0, 1.0, small) / (1.0 + small)


@triton.jit
def score_candidates(
    queries, table, candidates, weights, scores, highest, normalizer, losses, query_gradient, margin, temperature, K, D, W,
    KIND: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Score the candidates of one positive, and compute its loss and the gradient to its query in the same pass.

    Args:
        queries, table, candidates, weights: inputs, as in `candidate_loss`.
        scores: `[B, K]`, filled.
        highest, normalizer: `[B]`, filled with the highest negative score and the sum of self-adversarial weights.
        losses: `[B]`, filled.
        query_gradient: `[B, W]`, filled with the gradient of the weighted losses.
        margin, temperature, K, D, W: numbers, see `candidate_loss` and the legend.
        KIND, TILE, BLOCK_D: similarity, candidates per pass, dimensions rounded up to a power of 2.
    """
    b = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    inside = dims < D
    query, query_i = load_rows(queries, b * W, dims, inside, D, KIND)
    top, total, loss = (
        tl.full((), float("-inf"), tl.float32),
        tl.full((), 0.0, tl.float32),
        tl.full((), 0.0, tl.float32),
    )
    g, g_i = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
    for low in range(1, K, TILE):
        k = low + tl.arange(0, TILE)
        chosen = tl.load(candidates + b * K + k, mask=k < K, other=-1)
        counts = chosen >= 0
        live = counts[:, None] & inside[None, :]
        row, row_i = load_rows(table, tl.maximum(chosen, 0).to(tl.int64)[:, None] * W, dims[None, :], live, D, KIND)
        score = margin + tl.sum(similarity_terms(query[None, :], query_i[None, :], row, row_i, KIND), axis=1)
        tl.store(scores + b * K + k, tl.where(counts, score, 0.0), mask=k < K)
        # Online softmax: what was summed so far is rescaled whenever a higher score arrives.
        higher = tl.maximum(top, tl.max(tl.where(counts, score, float("-inf")), axis=0))
        rescale = tl.where(total == 0, 0.0, tl.exp(temperature * (top - higher)))
        share = tl.where(counts, tl.exp(temperature * (score - higher)), 0.0)
        part, part_i = similarity_vjp(
            (share * sigmoid(score))[:, None], query[None, :], query_i[None, :], row, row_i, True, KIND
        )
        g = g * rescale + tl.sum(tl.where(live, part, 0.0), axis=0)
        if KIND == 1:
            g_i = g_i * rescale + tl.sum(tl.where(live, part_i, 0.0), axis=0)
        loss = loss * rescale + tl.sum(tl.where(counts, share * softplus(score), 0.0), axis=0)
        total = total * rescale + tl.sum(share, axis=0)
        top = higher
    # A positive whose negatives are all masked has no normalizer; its first term remains.
    scale = tl.where(total == 0, 0.0, 1.0 / tl.where(total == 0, 1.0, total))
    weight = tl.load(weights + b)
    first = tl.load(candidates + b * K)
    row, row_i = load_rows(table, tl.maximum(first, 0).to(tl.int64) * W, dims, inside, D, KIND)
    score = margin + tl.sum(similarity_terms(query, query_i, row, row_i, KIND), axis=0)
    tl.store(scores + b * K, tl.where(first >= 0, score, 0.0))
    part, part_i = similarity_vjp(sigmoid(score) - 1.0, query, query_i, row, row_i, True, KIND)
    positive = dims < tl.where(first >= 0, D, 0)
    tl.store(query_gradient + b * W + dims, weight * (g * scale + tl.where(positive, part, 0.0)), mask=inside)
    if KIND == 1:
        tl.store(
            query_gradient + b * W + D + dims, weight * (g_i * scale + tl.where(positive, part_i, 0.0)), mask=inside
        )
    tl.store(losses + b, loss * scale + tl.where(first >= 0, softplus(-score), 0.0))
    tl.store(highest + b, top)
    tl.store(normalizer + b, total)


@triton.jit
def slopes_of_scores(candidates, scores, highest, normalizer, weights, temperature, K, BLOCK: tl.constexpr):
    """Replace scores `[B, K]` by the derivatives of the weighted loss.

    Args:
        candidates, weights, temperature: as in `candidate_loss`.
        scores, highest, normalizer: from `score_candidates`.
        K: candidates per positive.
        BLOCK: columns per program.
    """
    b, k = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    weight, top, total = tl.load(weights + b), tl.load(highest + b), tl.load(normalizer + b)
    counts = tl.load(candidates + b * K + k, mask=k < K, other=-1) >= 0
    score = tl.load(scores + b * K + k, mask=counts, other=0.0)
    # Derivative: sigmoid(s) - 1 of the positive, p sigmoid(s) of a negative.
    share = tl.exp(temperature * (score - top)) / total
    slope = tl.where(k == 0, sigmoid(score) - 1.0, share * sigmoid(score))
    tl.store(scores + b * K + k, tl.where(counts, weight * slope, 0.0), mask=k < K)


@triton.jit
def sum_row_gradients(
    table, queries, slopes, order, starts, gradient, K, D, W,
    KIND: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sum the gradient of one table row over its candidates, in the order of a stable sort.

    Args:
        table, queries: inputs, as in `candidate_loss`.
        slopes: `[B, K]`, from `slopes_of_scores`.
        order, starts: `order[starts[n] : starts[n + 1]]` are row n's flat positions in `[B, K]`.
        gradient: `[N, W]`, filled.
        K, D, W: numbers, see the legend.
        KIND, TILE, BLOCK_D: as in `score_candidates`.
    """
    n = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    inside = dims < D
    row, row_i = load_rows(table, n * W, dims, inside, D, KIND)
    g, g_i = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
    end = tl.load(starts + n + 1)
    for low in range(tl.load(starts + n), end, TILE):
        positions = low + tl.arange(0, TILE)
        valid = positions < end
        position = tl.load(order + positions, mask=valid, other=0)
        slope = tl.load(slopes + position, mask=valid, other=0.0)
        live = valid[:, None] & inside[None, :]
        query, query_i = load_rows(queries, (position // K)[:, None] * W, dims[None, :], live, D, KIND)
        part, part_i = similarity_vjp(slope[:, None], query, query_i, row[None, :], row_i[None, :], False, KIND)
        g += tl.sum(tl.where(live, part, 0.0), axis=0)
        if KIND == 1:
            g_i += tl.sum(tl.where(live, part_i, 0.0), axis=0)
    tl.store(gradient + n * W + dims, g, mask=inside)
    if KIND == 1:
        tl.store(gradient + n * W + D + dims, g_i, mask=inside)
