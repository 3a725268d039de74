"""Loss terms that keep a client's shared rows close to the federation's.

Each objective gives the loss of every shared row and its derivative, which a step adds to that of the triples. Derivatives are
written out: autograd over whole tables would make a step several times slower. Legend: `N` rows of all clients together, `W`
their width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


LEAST_NORM = 1e-8  # lower bound on the norm of a row in a cosine
ObjectiveName = Literal["distance", "squared", "contrastive"]


class Objective(NamedTuple):
    """Loss term of a client.

    Attributes:
        row_loss: maps rows `[N, W]`, received rows, rows after the last training, and tau to losses `[N]` and the derivative of
            each by its row `[N, W]`.
        reduction: a client's loss is the sum of its rows' losses, their mean, or the root of their sum.
        uses_previous: whether `row_loss` reads the rows after the last training.
    """

    row_loss: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    reduction: Literal["sum", "mean", "root"]
    uses_previous: bool = False

    def of_client(self, row_losses: Tensor) -> tuple[float, float]:
        """Reduce the losses of a client's rows.

        Args:
            row_losses: float `[n]`.

        Returns:
            The client's loss, and its derivative by each row's loss (0 for a root of 0).
        """
        from fkgsec.kge.kernels import ordered_sum

        total = ordered_sum(row_losses)
        if self.reduction == "mean":
            return total / len(row_losses), 1 / len(row_losses)
        if self.reduction == "root":
            root = math.sqrt(total)
            return root, 0.0 if root == 0 else 0.5 / root
        return total, 1.0


def squared_distance(rows: Tensor, received: Tensor, previous: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Compute |row - received|^2 / 2 of each row; summed over a client's rows and weighted by mu.

    Args:
        rows, received: float `[N, W]`.
        previous, tau: unused.

    Returns:
        Losses `[N]` and derivatives `[N, W]`.

    Source: definition of FedProx (fedlu.txt section 2: mu / 2 |w - w_t|^2 over all shared parameters).
    """
    moves = rows - received
    return moves.square().sum(dim=1) / 2, moves


def contrastive(rows: Tensor, received: Tensor, previous: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Compute -log(exp(s_g / tau) / (exp(s_g / tau) + exp(s_p / tau))) of each row; mean over a client's rows, times
    mu.

    s_g is the row's cosine to the received row, s_p that to the row after the client's last training. Before the first
    training s_p uses the first received row, so the term has no gradient.

    Args:
        rows, received, previous: float `[N, W]`.
        tau: temperature, positive.

    Returns:
        Losses `[N]` and derivatives `[N, W]`.

    Source: FedEC (Chen et al. 2022) as fedlu.txt section 3 describes it, after MOON (Li et al. 2021), Eq. 2, 3.
    Differs: the text of FedEC was unavailable. All shared rows of a client enter every step, not those of the batch
    alone. FedLU's code takes the mean cosine over all rows first, and one log-ratio of the means.
    """
    import torch
    from torch.nn.functional import logsigmoid

    # The loss depends on s_p - s_g alone, which is linear in the normalized row.
    apart = torch.nn.functional.normalize(previous) - torch.nn.functional.normalize(received)
    norms = rows.norm(dim=1).clamp_min(LEAST_NORM)
    difference = (rows * apart).sum(dim=1) / norms  # s_p - s_g
    # softplus(x) = -logsigmoid(-x): softplus itself has bits that depend on a row's position, see `fkgsec.kge.kernels`.
    loss, log_sigmoid = -logsigmoid(-difference / tau), logsigmoid(difference / tau)
    slope = log_sigmoid.exp() / (tau * norms)
    # d cosine / d row = (unit vector - cosine * row / norm) / norm, for both cosines at once.
    return loss, apart.mul_(slope[:, None]).addcmul_(rows, (-slope * difference / norms)[:, None])


def distance(rows: Tensor, received: Tensor, previous: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Compute |row - received|^2 of each row; a client takes the root of their sum, the distance of the whole tables.

    Args:
        rows, received: float `[N, W]`.
        previous, tau: unused.

    Returns:
        Losses `[N]` and derivatives `[N, W]`.

    Source: pfedeg.txt Eq. 3; fedlu.txt 5.2, footnote 3. At distance 0 the root has no derivative; the gradient is 0.
    """
    moves = rows - received
    return moves.square().sum(dim=1), moves.mul_(2)


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "squared": Objective(squared_distance, "sum"),
    "contrastive": Objective(contrastive, "mean", uses_previous=True),
    "distance": Objective(distance, "root"),
}
