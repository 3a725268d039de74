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
    """-w log sigma(s_0) - sum_k p_k log sigma(-s_k) of each positive, float `[B]`, differentiable by the scores.

    p = softmax(temperature * s) over the positive's negatives (self-adversarial weights), without a gradient; at temperature 0
    each of n negatives weighs 1/n. A positive without any negative left keeps its first term alone.

    Args:
        scores: float `[B, K]`; larger is more plausible.
        counts: bool `[B, K]`, which candidates count (a negative that is a known triple does not); all when None.
        positive_weight: w, of the positive beside its negatives.

    Source: fedr.txt B.2 (Sun et al. 2019, Eq. 5, 6); at temperature 0 fedlu.txt Eq. 7.
    """
    counts = torch.ones_like(scores, dtype=torch.bool) if counts is None else counts
    negatives, counted = scores[:, 1:], counts[:, 1:]
    weights = torch.softmax((temperature * negatives.detach()).masked_fill(~counted, -math.inf), dim=1)
    weights = torch.nan_to_num(weights)
    positive = -logsigmoid(scores[:, 0]).masked_fill(~counts[:, 0], 0)
    return positive_weight * positive - (weights * logsigmoid(-negatives)).sum(1)
