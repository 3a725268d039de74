"""Losses beyond that of the candidates: of shared rows (FedProx, FedEC, PFedEG), and of two models that learn from each other.

Legend: `B` slots, `K` candidates, `N` rows, `W` width, `C` clients. The mathematics is that of `fkgsec.kge.local.objectives`,
`fkgsec.algorithms.fedlu.mutual` and `fkgsec.algorithms.fede_kd.co_distillation`, with gradients written out.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from fkgsec.kge.device.draws import batch_and_side
from fkgsec.kge.device.scoring import sigmoid, softplus

SQUARED, DISTANCE, CONTRASTIVE = 0, 1, 2
MUTUAL, PUBLISHED, CO = 0, 1, 2  # FedLU's paper, its code, FedE-KD


@triton.jit
def row_term(rows, received, previous, n, dims, inside, tau, W, KIND: tl.constexpr):
    """A row's loss, and its derivative by the row."""
    row = tl.load(rows + n * W + dims, mask=inside, other=0.0)
    there = tl.load(received + n * W + dims, mask=inside, other=0.0)
    move = row - there
    if KIND == 0:
        loss, slope = tl.sum(move * move, axis=0) / 2, move
    elif KIND == 1:
        loss, slope = tl.sum(move * move, axis=0), 2 * move
    else:
        before = tl.load(previous + n * W + dims, mask=inside, other=0.0)
        length = tl.maximum(tl.sqrt(tl.sum(row * row, axis=0)), 1e-8)
        unit = there / tl.maximum(tl.sqrt(tl.sum(there * there, axis=0)), 1e-12)
        apart = before / tl.maximum(tl.sqrt(tl.sum(before * before, axis=0)), 1e-12) - unit
        difference = tl.sum(row * apart, axis=0) / length
        loss = softplus(difference / tau)
        steep = sigmoid(difference / tau) / (tau * length)
        slope = steep * apart - row * (steep * difference / length)
    return loss, slope


@triton.jit
def row_losses(rows, received, previous, losses, tau, W, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Fill `losses` `[N]` of rows `[N, W]`."""
    n = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    loss, _ = row_term(rows, received, previous, n, dims, dims < W, tau, W, KIND)
    tl.store(losses + n, loss)


@triton.jit
def reduce_rows(losses, row_start, totals, factors, mu, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Add to `totals` float64 `[C]` each client's loss of its rows' losses, times mu; fill `factors` `[C]`, derivatives.

    `row_start` int64 `[C + 1]`. The sum of squares, the root of their sum (a root of 0 pulls nowhere), or the mean.
    """
    c = tl.program_id(0)
    begin, end = tl.load(row_start + c), tl.load(row_start + c + 1)
    total = tl.full((), 0.0, tl.float64)
    for low in range(begin, end, BLOCK):
        places = low + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(losses + places, mask=places < end, other=0.0).to(tl.float64), axis=0)
    factor = total * 0 + 1
    if KIND == 1:
        total = tl.sqrt(total)
        factor = tl.where(total == 0, 0.0, 0.5 / tl.where(total == 0, 1.0, total))
    elif KIND == 2:
        factor = factor / tl.maximum(end - begin, 1).to(tl.float64)
        total = total * factor
    tl.store(totals + c, tl.load(totals + c) + mu * total)
    tl.store(factors + c, (mu * factor).to(tl.float32))


@triton.jit
def pull_rows(
    rows, received, previous, row_client, factors, gradients, tau, W, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    """Add to `gradients` `[N, W]` what the rows' losses pull."""
    n = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    inside = dims < W
    _, slope = row_term(rows, received, previous, n, dims, inside, tau, W, KIND)
    factor = tl.load(factors + tl.load(row_client + n))
    before = tl.load(gradients + n * W + dims, mask=inside, other=0.0)
    tl.store(gradients + n * W + dims, before + factor * slope, mask=inside)


@triton.jit
def client_losses(losses, weights, clients, totals, B, SCALE, BLOCK: tl.constexpr):
    """Fill `totals` float64 `[C]`: each client's losses `[B]` times weights `[B]` and `SCALE`, in the order of its slots."""
    c = tl.program_id(0)
    begin = tl.load(clients + c * 6)
    total = tl.full((), 0.0, tl.float64)
    end = tl.load(clients + c * 6 + 6, mask=c + 1 < tl.num_programs(0), other=0)
    end = tl.where(c + 1 < tl.num_programs(0), end, B)
    for low in range(begin, end, BLOCK):
        places = low + tl.arange(0, BLOCK)
        weight = tl.load(weights + places, mask=places < end, other=0.0)
        loss = tl.load(losses + places, mask=(places < end) & (weight > 0), other=0.0)
        total += tl.sum((weight * loss).to(tl.float64), axis=0)
    tl.store(totals + c, total * SCALE)


@triton.jit
def settle(state, clients, totals, out, moving, bad, BATCH, STEPS, CLIENTS, SIDES: tl.constexpr, BLOCK: tl.constexpr):
    """Write the step's losses, `totals` float64 `[C]`, into `out` `[epochs x STEPS, C]`, and say who moves by them.

    Fills `moving` int32 `[C]`, 1 for clients that have a batch, and sets `bad` int32 `[1]` when a loss is not finite, from which
    step on nobody moves.
    """
    c = tl.arange(0, BLOCK)
    inside = c < CLIENTS
    batch, _ = batch_and_side(state, SIDES)
    total = tl.load(totals + c, mask=inside, other=0.0)
    place = tl.load(state + 1) * STEPS + tl.load(state)
    tl.store(out + place * CLIENTS + c, total, mask=inside)
    worst = tl.max(tl.where(total - total == 0, 0, 1), axis=0)  # neither infinity nor NaN is itself less itself
    stopped = tl.maximum(tl.load(bad), worst)
    tl.store(bad, stopped)
    count = tl.load(clients + c * 6 + 1, mask=inside, other=0)
    active = tl.load(clients + c * 6 + 2, mask=inside, other=0)
    has_batch = (batch * BATCH < count) & (active > 0)
    tl.store(moving + c, tl.where(has_batch, 1 - stopped, 0), mask=inside)


@triton.jit
def prediction(score, counts, negative, temperature):
    """The loss of one model's scores and its derivative by them, `fkgsec.kge.loss.negative_sampling_loss`."""
    top = tl.max(tl.where(negative, score, float("-inf")), axis=0)
    share = tl.where(negative, tl.exp(temperature * (score - top)), 0.0)
    total = tl.sum(share, axis=0)
    share = share / tl.where(total == 0, 1.0, total)
    positive = counts & (negative == 0)
    terms = tl.where(positive, softplus(-score), 0.0) + tl.where(negative, share * softplus(score), 0.0)
    slope = tl.where(positive, sigmoid(score) - 1.0, 0.0) + tl.where(negative, share * sigmoid(score), 0.0)
    return tl.sum(terms, axis=0), slope


@triton.jit
def log_softmax(score, counts):
    """Logarithms of the softmax over the candidates that count, 0 elsewhere."""
    top = tl.max(tl.where(counts, score, float("-inf")), axis=0)
    total = tl.sum(tl.where(counts, tl.exp(score - top), 0.0), axis=0)
    return tl.where(counts, score - top - tl.log(total), 0.0)


@triton.jit
def distil(candidates, own, shared, weights, losses, mu, temperature, K, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Fill `losses` `[B]` of two models' scores `[B, K]`, which become the derivatives of the weighted loss by them.

    `mu` float32 `[1]`, 0 while FedLU warms up; FedE-KD has none.
    """
    b = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    weight = tl.load(weights + b)
    counts = tl.load(candidates + b * (K + 1) + k, mask=k < K, other=-1) >= 0
    negative = counts & (k > 0)
    first = tl.load(own + b * K + k, mask=counts, other=0.0)
    second = tl.load(shared + b * K + k, mask=counts, other=0.0)
    first_loss, first_slope = prediction(first, counts, negative, temperature)
    second_loss, second_slope = prediction(second, counts, negative, temperature)
    log_p, log_q = log_softmax(first, counts), log_softmax(second, counts)
    p, q = tl.where(counts, tl.exp(log_p), 0.0), tl.where(counts, tl.exp(log_q), 0.0)
    forward = tl.sum(p * (log_p - log_q), axis=0)  # D_KL(P || Q), P of the own scores
    backward = tl.sum(q * (log_q - log_p), axis=0)
    predicted, distilled = first_loss + second_loss, forward + backward
    by_first, by_second = p * (log_p - log_q - forward), q * (log_q - log_p - backward)
    if KIND == 1:
        by_first, by_second = p - q, q - p
        predicted = 0.5 * predicted
        first_slope, second_slope = 0.5 * first_slope, 0.5 * second_slope
    if KIND == 2:
        by_first, by_second = by_first + p - q, by_second + q - p
        keep = 1 - distilled / (predicted * predicted)
        loss = predicted + distilled / predicted
        first_slope = keep * first_slope + by_first / predicted
        second_slope = keep * second_slope + by_second / predicted
    else:
        scale = tl.load(mu)
        loss = predicted + scale * distilled
        first_slope, second_slope = first_slope + scale * by_first, second_slope + scale * by_second
    tl.store(losses + b, tl.where(weight > 0, loss, 0.0))
    tl.store(own + b * K + k, tl.where(counts, weight * first_slope, 0.0), mask=k < K)
    tl.store(shared + b * K + k, tl.where(counts, weight * second_slope, 0.0), mask=k < K)
