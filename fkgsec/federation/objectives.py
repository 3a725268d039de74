"""What a client adds to its loss so that its shared rows do not drift from the federation's.

Each objective gives the loss of every shared row; a step adds their gradient to that of the triples. Legend: `N` rows of
all clients together, `W` their width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

ObjectiveName = Literal["plain", "proximal", "contrastive"]


class Objective(NamedTuple):
    """A loss of rows `[N, W]`, those received, those of the last training, and tau: `[N]`; a client takes its mean or sum."""

    row_loss: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    mean: bool


def proximal(rows: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """|row - received|^2 / 2 of each row, float `[N]`, summed over a client's rows and weighted by mu.

    Source: fedlu.txt section 2 (FedProx: mu / 2 |w - w_t|^2 over all shared parameters). Differs: the footnote of fedlu.txt
    5.2 leaves the square out; we keep the definition's.
    """
    return (rows - received).square().sum(dim=1) / 2


def contrastive(rows: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """-log(exp(s_g / tau) / (exp(s_g / tau) + exp(s_p / tau))) of each row, float `[N]`; mean over a client's rows, times mu.

    s_g and s_p are the cosines of the row to the one received and to the one that the client's last training left (before its
    first: to the first one received, so the term pulls nowhere).

    Source: FedEC (Chen et al. 2022) as fedlu.txt section 3 describes it, after MOON (Li et al. 2021), Eq. 2, 3.
    Differs: FedEC's own text is not at hand; all shared rows of a client enter every step, not those of the batch alone.
    FedLU's code takes the mean cosine over all rows first and one log-ratio of the means.
    """
    near = torch.nn.functional.cosine_similarity(rows, received, dim=1) / tau
    far = torch.nn.functional.cosine_similarity(rows, previous, dim=1) / tau
    return torch.nn.functional.softplus(far - near)


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "proximal": Objective(proximal, mean=False),
    "contrastive": Objective(contrastive, mean=True),
}
