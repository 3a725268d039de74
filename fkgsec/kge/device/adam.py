"""One step of Adam for a table of all clients, each with its own count of steps.

Source: Kingma & Ba 2015, Algorithm 1, as torch's fused Adam has it: beta 0.9 and 0.999, epsilon 1e-8.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

import math

import triton
import triton.language as tl

LOG_FIRST = tl.constexpr(math.log(0.9))
LOG_SECOND = tl.constexpr(math.log(0.999))


@triton.jit
def count_steps(moving, steps, divisors, CLIENTS, BLOCK: tl.constexpr):
    """Add `moving` int32 `[C]` to `steps` int64 `[C]`, and fill `divisors` float32 `[2, C]`: what moments of so many steps are
    divided by, of the second the root. In float64: 1 - 0.999^t of small t has hardly a digit in float32."""
    c = tl.arange(0, BLOCK)
    inside = c < CLIENTS
    count = tl.load(steps + c, mask=inside, other=0) + tl.load(moving + c, mask=inside, other=0)
    tl.store(steps + c, count, mask=inside)
    taken = tl.maximum(count, 1).to(tl.float64)
    tl.store(divisors + c, (1.0 - tl.exp(taken * LOG_FIRST)).to(tl.float32), mask=inside)
    tl.store(divisors + CLIENTS + c, tl.sqrt(1.0 - tl.exp(taken * LOG_SECOND)).to(tl.float32), mask=inside)


@triton.jit
def adam_step(
    rows, gradients, first, second, row_client, moving, divisors, bad, learning_rate, SIZE, WIDTH, CLIENTS,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Move rows `[N, WIDTH]` and both moments, of clients whose `moving` is not 0; nothing where `bad` is set.

    Args:
        row_client: int32 `[N]`. moving: int32 `[C]`. divisors: float32 `[2, C]`, see `count_steps`.
        bad: int32 `[1]`, set as soon as a loss is not finite. SIZE: N times WIDTH.
    """
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < tl.where(tl.load(bad) == 0, SIZE, 0)
    client = tl.load(row_client + places // WIDTH, mask=inside, other=0)
    moves = inside & (tl.load(moving + client, mask=inside, other=0) != 0)
    gradient = tl.load(gradients + places, mask=moves, other=0.0)
    mean = tl.load(first + places, mask=moves, other=0.0)
    square = tl.load(second + places, mask=moves, other=0.0)
    value = tl.load(rows + places, mask=moves, other=0.0)
    mean = mean + (gradient - mean) * (1 - 0.9)
    square = 0.999 * square + (1 - 0.999) * gradient * gradient
    by_first = tl.load(divisors + client, mask=moves, other=1.0)
    by_second = tl.load(divisors + CLIENTS + client, mask=moves, other=1.0)
    value = value - learning_rate / by_first * mean / (tl.sqrt(square) / by_second + 1e-8)
    tl.store(first + places, mean, mask=moves)
    tl.store(second + places, square, mask=moves)
    tl.store(rows + places, value, mask=moves)
