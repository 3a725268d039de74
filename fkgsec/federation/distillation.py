"""How two models of one client learn from each other: losses of the scores that both give the same candidates.

Legend: `B` positives, `K` candidates of each, the positive in column 0. `counts` bool `[B, K]` says which candidates count (a
negative that is a known triple does not). All losses are float `[B]`, one for each positive, and differentiable.
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor
from torch.nn.functional import log_softmax

from fkgsec.kge.loss import negative_sampling_loss

DistillationName = Literal["none", "mutual", "co"]


def divergence(scores: Tensor, others: Tensor, counts: Tensor) -> Tensor:
    """D_KL(P || Q) of P = softmax(scores) and Q = softmax(others) over the candidates that count. Source: fedlu.txt Eq. 8-10."""
    log_p, log_q = (log_softmax(side.masked_fill(~counts, -math.inf), dim=1) for side in (scores, others))
    difference = (log_p - log_q).masked_fill(~counts, 0)
    return (log_p.exp() * difference).sum(1)


def mutual(
    private: Tensor, shared: Tensor, counts: Tensor, *, temperature: float, mu: float, variant: str = "paper"
) -> Tensor:
    """Each model's own loss plus mu times its divergence from the other, which stands still for it.

    Source: fedlu.txt Eq. 5-11, with KL(P, Q) read as D_KL(P || Q). Differs in variant "published" as FedLU's code does: the
    divergence is D_KL(teacher || student), and the prediction loss is halved.
    Differs: both models take their step at once, from the same scores (the code: the local one first, then the global one).
    """
    if variant == "published":
        distilled = divergence(shared.detach(), private, counts) + divergence(private.detach(), shared, counts)
    else:
        distilled = divergence(private, shared.detach(), counts) + divergence(shared, private.detach(), counts)
    predicted = _prediction_losses(private, shared, counts, temperature)
    return (0.5 if variant == "published" else 1) * predicted + mu * distilled


def co_distillation(low: Tensor, high: Tensor, counts: Tensor, *, temperature: float) -> Tensor:
    """Both models' losses, plus their divergences from each other divided by these losses. Source: feds.txt Eq. 6.

    Gradients are those of the equation as it stands: through both divergences, and through the losses that divide them.
    """
    predicted = _prediction_losses(low, high, counts, temperature)
    distilled = divergence(low, high, counts) + divergence(high, low, counts)
    return predicted + distilled / predicted


def _prediction_losses(first: Tensor, second: Tensor, counts: Tensor, temperature: float) -> Tensor:
    """Both models' own losses, fedlu.txt Eq. 7."""
    first_loss, second_loss = (
        negative_sampling_loss(scores, counts, temperature=temperature) for scores in (first, second)
    )
    return first_loss + second_loss
