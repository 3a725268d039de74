"""Losses by which two models of one client learn from each other's scores of the same candidates.

Legend: `B` positives, `K` candidates of each, the positive in column 0. `counts` bool `[B, K]` says which candidates count (a
negative that is a known triple does not). All losses are float `[B]`, one for each positive, and differentiable.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import log_softmax

from fkgsec.kge.loss import negative_sampling_loss


def divergence(scores: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    """D_KL(P || Q) of P = softmax(scores) and Q = softmax(others) over the candidates that count. Source: fedlu.txt Eq. 8-10."""
    log_p, log_q = (log_softmax(side.masked_fill(~counts, -math.inf), dim=1) for side in (scores, others))
    difference = (log_p - log_q).masked_fill(~counts, 0)
    return (log_p.exp() * difference).sum(1)


def prediction_losses(first: Tensor, second: Tensor, counts: Tensor, temperature: float) -> Tensor:
    """Both models' own losses, fedlu.txt Eq. 7."""
    first_loss, second_loss = (
        negative_sampling_loss(scores, counts, temperature=temperature) for scores in (first, second)
    )
    return first_loss + second_loss
