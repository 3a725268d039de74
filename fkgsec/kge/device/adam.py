"""One step of Adam for a table of all clients, each with its own count of steps.

Source: Kingma & Ba 2015, Algorithm 1, as torch's fused Adam has it: beta 0.9 and 0.999, epsilon 1e-8.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BETAS = (0.9, 0.999)
EPSILON = 1e-8


def corrections(steps: Tensor) -> Tensor:
    """Of step counts `[C]`, what the moments of that many steps are divided by: float32 `[2, C]`, the second one's root.

    In float64: 1 - 0.999^t of small t has hardly a digit in float32.
    """
    counts = steps.double().clamp_min(1)
    return torch.stack([1 - BETAS[0] ** counts, (1 - BETAS[1] ** counts).sqrt()]).float()


@triton.jit
def adam_step(
    rows, gradients, first, second, row_client, moving, divisors, bad, learning_rate, SIZE, WIDTH, CLIENTS,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Move rows `[N, WIDTH]` and both moments, of clients whose `moving` is not 0; nothing where `bad` is set.

    Args:
        row_client: int32 `[N]`. moving: int32 `[C]`. divisors: float32 `[2, C]`, see `corrections`.
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
