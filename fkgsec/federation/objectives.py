"""What a client adds to its loss so that its shared rows do not drift from the federation's.

Each objective gives the loss of every shared row; a step adds their gradient to that of the triples. Legend: `N` rows of
all clients together, `W` their width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

ObjectiveName = Literal["plain", "distance", "squared", "contrastive", "factors"]


class Objective(NamedTuple):
    """What a client adds to its loss.

    Attributes:
        row_loss: of rows `[N, W]`, those received, those of the last training, and tau: float `[N]`.
        reduction: a client takes the sum of its rows' losses, their mean, or the root of their sum.
    """

    row_loss: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    reduction: Literal["sum", "mean", "root"]

    def of_client(self, row_losses: Tensor) -> tuple[Tensor, Tensor]:
        """A client's loss of its rows' losses `[n]`, and its derivative by each of them (0 for a root of 0), both scalar."""
        total = row_losses.sum()
        if self.reduction == "mean":
            return total / len(row_losses), total.new_tensor(1 / len(row_losses))
        if self.reduction == "root":
            root = total.sqrt()
            return root, torch.where(root > 0, 0.5 / root, 0.0)
        return total, total.new_tensor(1.0)


def squared_distance(rows: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """|row - received|^2 / 2 of each row, float `[N]`, summed over a client's rows and weighted by mu.

    Source: FedProx's definition (fedlu.txt section 2: mu / 2 |w - w_t|^2 over all shared parameters).
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


def distance(rows: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """|row - received|^2 of each row, float `[N]`; a client takes the root of their sum, the distance of the whole tables.

    Source: pfedeg.txt Eq. 3; fedlu.txt 5.2, footnote 3. At distance zero, where the root has no derivative, it pulls nowhere.
    """
    return (rows - received).square().sum(dim=1)


# "factors" is none of these: it changes what is trained, see `fkgsec.federation.factored`.
OBJECTIVES: dict[ObjectiveName, Objective] = {
    "squared": Objective(squared_distance, "sum"),
    "contrastive": Objective(contrastive, "mean"),
    "distance": Objective(distance, "root"),
}
