"""Losses by which two models of one client learn from each other's scores of the same candidates.

Legend: `B` positives, `K` candidates per positive, the positive in column 0. `counts` bool `[B, K]` is False for candidates to
leave out, such as negatives that are known triples. All losses are float `[B]`, one per positive, and differentiable.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import log_softmax

from fkgsec.kge.loss import negative_sampling_loss


def divergence(scores: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    """Compute D_KL(P || Q) of P = softmax(scores) and Q = softmax(others) over the candidates that count.

    Args:
        scores, others: float `[B, K]`.
        counts: bool `[B, K]`.

    Source: fedlu.txt Eq. 8-10.
    """
    # P and Q are distributions over the positive and its negatives (fedlu.txt Eq. 9, 10); masked candidates have
    # probability 0.
    log_p, log_q = (log_softmax(side.masked_fill(~counts, -math.inf), dim=1) for side in (scores, others))
    # -inf minus -inf would be NaN.
    difference = (log_p - log_q).masked_fill(~counts, 0)
    return (log_p.exp() * difference).sum(1)


def prediction_losses(first: Tensor, second: Tensor, counts: Tensor, temperature: float) -> Tensor:
    """Add the prediction losses of both models.

    Args:
        first, second: float `[B, K]`, scores of the two models.
        counts: bool `[B, K]`.
        temperature: of the self-adversarial weights.

    Source: fedlu.txt Eq. 7.
    """
    first_loss, second_loss = (
        negative_sampling_loss(scores, counts, temperature=temperature) for scores in (first, second)
    )
    return first_loss + second_loss
