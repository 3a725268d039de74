"""The negative-sampling loss, written once in torch operations.

    >>> scores = torch.tensor([[2.0, 0.0, -1.0]])          # a positive, then its two negatives
    >>> negative_sampling_loss(scores, temperature=0.0)    # log(1 + e^-2) + (log(1 + e^0) + log(1 + e^-1)) / 2
    tensor([0.6301])

`fkgsec.kge.kernels.candidate_loss` is the same loss compiled, with its gradient, from tables instead of scores.

Legend: `B` positives, `K` candidates of each, the positive in column 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def negative_sampling_loss(
    scores: Tensor, counts: Tensor | None = None, *, temperature: float, positive_weight: float = 1.0
) -> Tensor:
    """Compute -w log sigma(s_0) - sum_k p_k log sigma(-s_k) of each positive, differentiable by the scores.

    p = softmax(temperature * s) over the negatives (self-adversarial weights), without a gradient. At temperature 0,
    each of n negatives weighs 1/n. A positive whose negatives are all masked keeps its first term alone.

    Args:
        scores: float `[B, K]`; larger is more plausible.
        counts: bool `[B, K]`, False for candidates to leave out, such as negatives that are known triples; all count
            when None.
        temperature: alpha of the self-adversarial weights, at least 0.
        positive_weight: w, weight of the positive relative to its negatives.

    Returns:
        Losses, float `[B]`.

    Source: fedr.txt B.2 (Sun et al. 2019, Eq. 5, 6); at temperature 0 fedlu.txt Eq. 7.
    """
    counts = torch.ones_like(scores, dtype=torch.bool) if counts is None else counts
    negatives, counted = scores[:, 1:], counts[:, 1:]
    # Self-adversarial weights p_k (Sun et al. 2019, Eq. 5), without a gradient.
    weights = torch.softmax((temperature * negatives.detach()).masked_fill(~counted, -math.inf), dim=1)
    # Softmax of -inf alone is NaN: no negative is left, so each weighs 0.
    weights = torch.nan_to_num(weights)
    # -w log sigma(s_0) - sum_k p_k log sigma(-s_k) (Sun et al. 2019, Eq. 6).
    positive = -logsigmoid(scores[:, 0]).masked_fill(~counts[:, 0], 0)
    return positive_weight * positive - (weights * logsigmoid(-negatives)).sum(1)
