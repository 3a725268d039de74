"""How two models of one client learn from each other: losses of the scores that both give the same candidates.

Legend: `B` positives, `K` candidates of each, the positive in column 0. `counts` bool `[B, K]` says which candidates count (a
negative that is a known triple does not). All losses are float `[B]`, one for each positive, and differentiable.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid, softmax

DistillationName = Literal["none", "mutual", "co"]


def prediction_loss(scores: Tensor, counts: Tensor, temperature: float) -> Tensor:
    """-log sigma(s_0) - sum_k w_k log sigma(-s_k), w = softmax(temperature * s) over the negatives, without a gradient.

    Source: fedr.txt B.2 (Sun et al. 2019, Eq. 5, 6); at temperature 0 every negative weighs 1/n, as in fedlu.txt Eq. 7.
    """
    negatives, counted = scores[:, 1:], counts[:, 1:]
    weights = softmax((temperature * negatives.detach()).masked_fill(~counted, -math.inf), dim=1)
    weights = torch.nan_to_num(weights)  # a positive without any negative left
    return -logsigmoid(scores[:, 0]).masked_fill(~counts[:, 0], 0) - (weights * logsigmoid(-negatives)).sum(1)


def divergence(scores: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    """D_KL(P || Q) of P = softmax(scores) and Q = softmax(others) over the candidates that count. Source: fedlu.txt Eq. 8-10."""
    log_p, log_q = (log_softmax(side.masked_fill(~counts, -math.inf), dim=1) for side in (scores, others))
    difference = (log_p - log_q).masked_fill(~counts, 0)
    return (log_p.exp() * difference).sum(1)


def mutual(
    private: Tensor, shared: Tensor, counts: Tensor, *, temperature: float, mu: float, form: str = "paper"
) -> Tensor:
    """Each model's own loss plus mu times its divergence from the other, which stands still for it.

    Source: fedlu.txt Eq. 5-11, with KL(P, Q) read as D_KL(P || Q). Differs in form "published" as FedLU's code does: the
    divergence is D_KL(teacher || student), and the prediction loss is halved.
    Differs: both models take their step at once, from the same scores (the code: the local one first, then the global one).
    """
    if form == "published":
        distilled = divergence(shared.detach(), private, counts) + divergence(private.detach(), shared, counts)
    else:
        distilled = divergence(private, shared.detach(), counts) + divergence(shared, private.detach(), counts)
    predicted = prediction_loss(private, counts, temperature) + prediction_loss(shared, counts, temperature)
    return (0.5 if form == "published" else 1) * predicted + mu * distilled


def co_distillation(low: Tensor, high: Tensor, counts: Tensor, *, temperature: float) -> Tensor:
    """Both models' losses, plus their divergences from each other divided by these losses. Source: feds.txt Eq. 6.

    Gradients are those of the equation as it stands: through both divergences, and through the losses that divide them.
    """
    predicted = prediction_loss(low, counts, temperature) + prediction_loss(high, counts, temperature)
    distilled = divergence(low, high, counts) + divergence(high, low, counts)
    return predicted + distilled / predicted
