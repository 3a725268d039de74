"""Loss terms that keep a client's shared rows close to the federation's.

Each objective gives the loss of every shared row and its derivative, which a step adds to that of the triples; written out,
since autograd over whole tables costs a step several times what it needs. Legend: `N` rows of all clients together, `W` their
width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


LEAST_NORM = 1e-8  # of a row whose cosine is taken; a shorter one is taken to be so long
ObjectiveName = Literal["distance", "squared", "contrastive"]


class Objective(NamedTuple):
    """Loss term of a client.

    Attributes:
        row_loss: of rows `[N, W]`, those received, those of the last training, and tau: losses `[N]` and the derivative of each
            by its row `[N, W]`.
        reduction: a client takes the sum of its rows' losses, their mean, or the root of their sum.
        uses_previous: whether it looks at the rows that the last training left.
    """

    row_loss: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    reduction: Literal["sum", "mean", "root"]
    uses_previous: bool = False

    def of_client(self, row_losses: Tensor) -> tuple[float, float]:
        """A client's loss of its rows' losses `[n]`, and its derivative by each of them (0 for a root of 0)."""
        from fkgsec.kge.kernels import ordered_sum

        total = ordered_sum(row_losses)
        if self.reduction == "mean":
            return total / len(row_losses), 1 / len(row_losses)
        if self.reduction == "root":
            root = math.sqrt(total)
            return root, 0.0 if root == 0 else 0.5 / root
        return total, 1.0


def squared_distance(rows: Tensor, received: Tensor, previous: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """|row - received|^2 / 2 of each row, float `[N]`, summed over a client's rows and weighted by mu.

    Source: FedProx's definition (fedlu.txt section 2: mu / 2 |w - w_t|^2 over all shared parameters).
    """
    moves = rows - received
    return moves.square().sum(dim=1) / 2, moves


def contrastive(rows: Tensor, received: Tensor, previous: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """-log(exp(s_g / tau) / (exp(s_g / tau) + exp(s_p / tau))) of each row, float `[N]`; mean over a client's rows, times mu.

    s_g and s_p are the cosines of the row to the one received and to the one that the client's last training left (before its
    first: to the first one received, so the term pulls nowhere).

    Source: FedEC (Chen et al. 2022) as fedlu.txt section 3 describes it, after MOON (Li et al. 2021), Eq. 2, 3.
    Differs: FedEC's own text is not at hand; all shared rows of a client enter every step, not those of the batch alone.
    FedLU's code takes the mean cosine over all rows first and one log-ratio of the means.
    """
    import torch
    from torch.nn.functional import logsigmoid

    apart = torch.nn.functional.normalize(previous) - torch.nn.functional.normalize(received)
    norms = rows.norm(dim=1).clamp_min(LEAST_NORM)
    difference = (rows * apart).sum(dim=1) / norms  # s_p - s_g
    # softplus and the logarithm of its derivative, written so that the bits do not depend on place, see `fkgsec.kge.kernels`
    loss, log_sigmoid = -logsigmoid(-difference / tau), logsigmoid(difference / tau)
    slope = log_sigmoid.exp() / (tau * norms)
    return loss, apart.mul_(slope[:, None]).addcmul_(rows, (-slope * difference / norms)[:, None])


def distance(rows: Tensor, received: Tensor, previous: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """|row - received|^2 of each row, float `[N]`; a client takes the root of their sum, the distance of the whole tables.

    Source: pfedeg.txt Eq. 3; fedlu.txt 5.2, footnote 3. At distance zero, where the root has no derivative, it pulls nowhere.
    """
    moves = rows - received
    return moves.square().sum(dim=1), moves.mul_(2)


OBJECTIVES: dict[ObjectiveName, Objective] = {
    "squared": Objective(squared_distance, "sum"),
    "contrastive": Objective(contrastive, "mean", uses_previous=True),
    "distance": Objective(distance, "root"),
}
