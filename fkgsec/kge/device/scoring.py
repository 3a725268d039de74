"""Queries, scores and the loss over candidates with its gradient: one pass over a positive's candidates, its query in registers.

Legend: `B` slots, `K` candidates of each, the positive in column 0; `D` dimension; `W`, `V` widths of entity and relation rows.
A candidate of -1 does not count. Complex rows hold all real parts first.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from fkgsec.kge.device.draws import batch_and_side

TRANSE, ROTATE, DISTMULT, COMPLEX = 0, 1, 2, 3


@triton.jit
def load_rows(rows, places, dims, mask, D, MODEL: tl.constexpr):
    """Real and imaginary parts of rows at these offsets; the second of a real model is the first again, and nobody's."""
    real = tl.load(rows + places + dims, mask=mask, other=0.0)
    imaginary = real
    if MODEL == 1 or MODEL == 3:
        imaginary = tl.load(rows + places + D + dims, mask=mask, other=0.0)
    return real, imaginary


@triton.jit
def relation_vector(relation, imaginary, side, phase, MODEL: tl.constexpr):
    """The relation as it acts on the side that is replaced: RotatE's phase as a unit complex number, conjugated for heads."""
    if MODEL == 1:
        turn = relation * phase
        relation = tl.cos(turn)
        imaginary = tl.sin(turn)
    if MODEL == 0:
        relation = relation * side
    return relation, imaginary * side


@triton.jit
def query_of(anchor, anchor_i, vector, vector_i, MODEL: tl.constexpr):
    """What candidates are compared with."""
    query, query_i = anchor, anchor_i
    if MODEL == 0:
        query = anchor + vector
    elif MODEL == 2:
        query = anchor * vector
    else:
        query = anchor * vector - anchor_i * vector_i
        query_i = anchor * vector_i + anchor_i * vector
    return query, query_i


@triton.jit
def similarity(query, query_i, row, row_i, MODEL: tl.constexpr):
    """Terms of the similarity of query and row, to be summed over the dimensions."""
    if MODEL == 0:
        terms = -tl.abs(query - row)
    elif MODEL == 1:
        terms = -tl.sqrt((query - row) * (query - row) + (query_i - row_i) * (query_i - row_i))
    elif MODEL == 2:
        terms = query * row
    else:
        terms = query * row + query_i * row_i
    return terms


@triton.jit
def pull(coefficient, query, query_i, row, row_i, TO_QUERY: tl.constexpr, MODEL: tl.constexpr):
    """Coefficient times the derivative of the similarity by the query, or by the row; at a kink the subgradient is 0."""
    if MODEL == 0:
        sign = tl.where(query > row, 1.0, 0.0) - tl.where(query < row, 1.0, 0.0)
        real = coefficient * (-sign if TO_QUERY else sign)
        imaginary = real
    elif MODEL == 1:
        modulus = tl.sqrt((query - row) * (query - row) + (query_i - row_i) * (query_i - row_i))
        scaled = coefficient * tl.where(modulus == 0, 0.0, 1.0 / tl.where(modulus == 0, 1.0, modulus))
        scaled = -scaled if TO_QUERY else scaled
        real, imaginary = (query - row) * scaled, (query_i - row_i) * scaled
    else:
        real = coefficient * (row if TO_QUERY else query)
        imaginary = coefficient * (row_i if TO_QUERY else query_i)
    return real, imaginary


@triton.jit
def softplus(x):
    """log(1 + e^x)."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x), without overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x > 0, 1.0, small) / (1.0 + small)


@triton.jit
def load_query(
    entities, relations, slot, relation_of, side, dims, inside, phase, COLUMNS, D, W, V, MODEL: tl.constexpr
):
    """A slot's anchor row, relation vector and query; a slot without a triple has some row's."""
    anchor_row = tl.maximum(tl.load(slot + COLUMNS - 1), 0).to(tl.int64)
    anchor, anchor_i = load_rows(entities, anchor_row * W, dims, inside, D, MODEL)
    relation = tl.load(relations + relation_of * V + dims, mask=inside, other=0.0)
    imaginary = relation
    if MODEL == 3:
        imaginary = tl.load(relations + relation_of * V + D + dims, mask=inside, other=0.0)
    vector, vector_i = relation_vector(relation, imaginary, side, phase, MODEL)
    query, query_i = query_of(anchor, anchor_i, vector, vector_i, MODEL)
    return anchor, anchor_i, vector, vector_i, query, query_i


@triton.jit
def store_rows(out, place, dims, inside, real, imaginary, D, MODEL: tl.constexpr):
    """Write a row as `load_rows` reads it."""
    tl.store(out + place + dims, real, mask=inside)
    if MODEL == 1 or MODEL == 3:
        tl.store(out + place + D + dims, imaginary, mask=inside)


@triton.jit
def store_query_gradients(
    to_anchors, to_relations, b, dims, inside, g, g_i, anchor, anchor_i, vector, vector_i, query, query_i,
    side, phase, D, W, V, MODEL: tl.constexpr,
):  # fmt: skip
    """Carry a query's gradient (g, g_i) to the anchor's row `[W]` and to the relation's `[V]`."""
    if MODEL == 0:
        store_rows(to_anchors, b * W, dims, inside, g, g_i, D, MODEL)
        tl.store(to_relations + b * V + dims, g * side, mask=inside)
    elif MODEL == 2:
        store_rows(to_anchors, b * W, dims, inside, g * vector, g_i, D, MODEL)
        tl.store(to_relations + b * V + dims, g * anchor, mask=inside)
    else:
        real, imaginary = g * vector + g_i * vector_i, g_i * vector - g * vector_i
        store_rows(to_anchors, b * W, dims, inside, real, imaginary, D, MODEL)
        if MODEL == 1:
            tl.store(to_relations + b * V + dims, side * phase * (g_i * query - g * query_i), mask=inside)
        else:
            tl.store(to_relations + b * V + dims, g * anchor + g_i * anchor_i, mask=inside)
            tl.store(to_relations + b * V + D + dims, side * (g_i * anchor - g * anchor_i), mask=inside)


@triton.jit
def candidate_pass(
    state, entities, relations, candidates, relation_of, weights, queries, scores, highest, normaliser, losses,
    to_anchors, to_relations, margin, temperature, phase, K, D, W, V,
    SIDES: tl.constexpr, MODEL: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Loss of each slot and its gradients, in one pass over its candidates: their shares are normalised as they come.

    Fills queries `[B, W]`, scores `[B, K]`, highest and normaliser `[B]` (of the shares), losses `[B]`, and gradients to the
    anchors `[B, W]` and relations `[B, V]` of the loss times the slot's weight. Those by the scores are `coefficients`.
    """
    b = tl.program_id(0).to(tl.int64)
    _, side = batch_and_side(state, SIDES)
    weight = tl.load(weights + b)
    slot = candidates + b * (K + 1)
    dims = tl.arange(0, BLOCK_D)
    inside = dims < D
    relation_row = tl.where(weight > 0, tl.load(relation_of + b), 0).to(tl.int64)
    anchor, anchor_i, vector, vector_i, query, query_i = load_query(
        entities, relations, slot, relation_row, side, dims, inside, phase, K + 1, D, W, V, MODEL
    )
    store_rows(queries, b * W, dims, inside, query, query_i, D, MODEL)
    top, total, loss = (
        tl.full((), float("-inf"), tl.float32),
        tl.full((), 0.0, tl.float32),
        tl.full((), 0.0, tl.float32),
    )
    g, g_i = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
    for low in range(1, tl.where(weight > 0, K, 0), TILE):
        k = low + tl.arange(0, TILE)
        chosen = tl.load(slot + k, mask=k < K, other=-1)
        counts = chosen >= 0
        places = tl.maximum(chosen, 0).to(tl.int64)[:, None] * W
        row, row_i = load_rows(entities, places, dims[None, :], counts[:, None] & inside[None, :], D, MODEL)
        score = margin + tl.sum(similarity(query[None, :], query_i[None, :], row, row_i, MODEL), axis=1)
        tl.store(scores + b * K + k, tl.where(counts, score, 0.0), mask=k < K)
        higher = tl.maximum(top, tl.max(tl.where(counts, score, float("-inf")), axis=0))
        kept = tl.where(total == 0, 0.0, tl.exp(temperature * (top - higher)))  # of what came before
        share = tl.where(counts, tl.exp(temperature * (score - higher)), 0.0)
        pulled, pulled_i = pull(
            (share * sigmoid(score))[:, None], query[None, :], query_i[None, :], row, row_i, True, MODEL
        )
        live = counts[:, None] & inside[None, :]
        g = g * kept + tl.sum(tl.where(live, pulled, 0.0), axis=0)
        if MODEL == 1 or MODEL == 3:
            g_i = g_i * kept + tl.sum(tl.where(live, pulled_i, 0.0), axis=0)
        loss = loss * kept + tl.sum(tl.where(counts, share * softplus(score), 0.0), axis=0)
        total = total * kept + tl.sum(share, axis=0)
        top = higher
    scale = tl.where(total == 0, 0.0, 1.0 / tl.where(total == 0, 1.0, total))
    first = tl.load(slot)
    row, row_i = load_rows(entities, tl.maximum(first, 0).to(tl.int64) * W, dims, inside, D, MODEL)
    score = margin + tl.sum(similarity(query, query_i, row, row_i, MODEL), axis=0)
    tl.store(scores + b * K, tl.where(first >= 0, score, 0.0))
    pulled, pulled_i = pull(sigmoid(score) - 1.0, query, query_i, row, row_i, True, MODEL)
    positive = dims < tl.where(first >= 0, D, 0)
    g = weight * (g * scale + tl.where(positive, pulled, 0.0))
    g_i = weight * (g_i * scale + tl.where(positive, pulled_i, 0.0))
    tl.store(losses + b, loss * scale + tl.where(first >= 0, softplus(-score), 0.0))
    tl.store(highest + b, top)
    tl.store(normaliser + b, total)
    store_query_gradients(
        to_anchors, to_relations, b, dims, inside, g, g_i, anchor, anchor_i, vector, vector_i, query, query_i,
        side, phase, D, W, V, MODEL,
    )  # fmt: skip


@triton.jit
def coefficients(candidates, scores, highest, normaliser, weights, temperature, K, BLOCK: tl.constexpr):
    """Scores `[B, K]` become the derivatives of the weighted loss by them."""
    b, k = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    weight, top, total = tl.load(weights + b), tl.load(highest + b), tl.load(normaliser + b)
    counts = tl.load(candidates + b * (K + 1) + k, mask=k < K, other=-1) >= 0
    score = tl.load(scores + b * K + k, mask=counts, other=0.0)
    share = tl.exp(temperature * (score - top)) / total
    slope = tl.where(k == 0, sigmoid(score) - 1.0, share * sigmoid(score))
    tl.store(scores + b * K + k, tl.where(counts, weight * slope, 0.0), mask=k < K)


@triton.jit
def score_pass(
    state, entities, relations, candidates, relation_of, weights, queries, scores, margin, phase, K, D, W, V,
    SIDES: tl.constexpr, MODEL: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Fill queries `[B, W]` and scores `[B, K]`, 0 where a candidate does not count, for losses of two models."""
    b = tl.program_id(0).to(tl.int64)
    _, side = batch_and_side(state, SIDES)
    weight = tl.load(weights + b)
    slot = candidates + b * (K + 1)
    dims = tl.arange(0, BLOCK_D)
    inside = dims < D
    relation_row = tl.where(weight > 0, tl.load(relation_of + b), 0).to(tl.int64)
    _, _, _, _, query, query_i = load_query(
        entities, relations, slot, relation_row, side, dims, inside, phase, K + 1, D, W, V, MODEL
    )
    store_rows(queries, b * W, dims, inside, query, query_i, D, MODEL)
    for low in range(0, tl.where(weight > 0, K, 0), TILE):
        k = low + tl.arange(0, TILE)
        chosen = tl.load(slot + k, mask=k < K, other=-1)
        counts = chosen >= 0
        places = tl.maximum(chosen, 0).to(tl.int64)[:, None] * W
        row, row_i = load_rows(entities, places, dims[None, :], counts[:, None] & inside[None, :], D, MODEL)
        score = margin + tl.sum(similarity(query[None, :], query_i[None, :], row, row_i, MODEL), axis=1)
        tl.store(scores + b * K + k, tl.where(counts, score, 0.0), mask=k < K)


@triton.jit
def query_pass(
    state, entities, relations, candidates, relation_of, weights, slopes, to_anchors, to_relations, phase, K, D, W, V,
    SIDES: tl.constexpr, MODEL: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Gradients to anchors `[B, W]` and relations `[B, V]` from those by the scores, `slopes` `[B, K]`."""
    b = tl.program_id(0).to(tl.int64)
    _, side = batch_and_side(state, SIDES)
    weight = tl.load(weights + b)
    slot = candidates + b * (K + 1)
    dims = tl.arange(0, BLOCK_D)
    inside = dims < D
    relation_row = tl.where(weight > 0, tl.load(relation_of + b), 0).to(tl.int64)
    anchor, anchor_i, vector, vector_i, query, query_i = load_query(
        entities, relations, slot, relation_row, side, dims, inside, phase, K + 1, D, W, V, MODEL
    )
    g, g_i = tl.zeros((BLOCK_D,), tl.float32), tl.zeros((BLOCK_D,), tl.float32)
    for low in range(0, tl.where(weight > 0, K, 0), TILE):
        k = low + tl.arange(0, TILE)
        chosen = tl.load(slot + k, mask=k < K, other=-1)
        live = (chosen >= 0)[:, None] & inside[None, :]
        places = tl.maximum(chosen, 0).to(tl.int64)[:, None] * W
        row, row_i = load_rows(entities, places, dims[None, :], live, D, MODEL)
        slope = tl.load(slopes + b * K + k, mask=chosen >= 0, other=0.0)
        pulled, pulled_i = pull(slope[:, None], query[None, :], query_i[None, :], row, row_i, True, MODEL)
        g = g + tl.sum(tl.where(live, pulled, 0.0), axis=0)
        if MODEL == 1 or MODEL == 3:
            g_i = g_i + tl.sum(tl.where(live, pulled_i, 0.0), axis=0)
    store_query_gradients(
        to_anchors, to_relations, b, dims, inside, g, g_i, anchor, anchor_i, vector, vector_i, query, query_i,
        side, phase, D, W, V, MODEL,
    )  # fmt: skip
