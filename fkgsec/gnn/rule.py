"""What an algorithm adds to the local training of graph networks: a recipe's `local` part, whose hooks the trainer calls.

class Anchored(GraphRule):                       # pulls shared parameters to those received
    keeps_received = True

    def correct(self, shared, received):
        return pulled(shared, received, self.settings.mu)

register(Recipe("anchored", PARAMETERS, "this script", MySettings, task="graph", local=Anchored))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fkgsec.gnn.options import GnnOptions


class GraphRule:
    """The hooks, all without effect: local training is that of FedAvg.

    One rule serves all clients. It has no state of its own between rounds, since checkpoints do not hold it.

    Attributes:
        keeps_received: whether clients keep the shared parameters as they last received them.
    """

    keeps_received = False

    def __init__(self, options: GnnOptions) -> None:
        self.options = options
        self.settings: Any = options.settings

    def correct(self, shared: Mapping[str, nn.Parameter], received: Mapping[str, Tensor]) -> float:
        """Change the gradients of a batch before Adam's step; returns what the loss grows by.

        Args:
            shared: the client's shared parameters with their gradients, by name. received: as they were last received.
        """
        return 0.0


@torch.no_grad()
def pulled(shared: Mapping[str, nn.Parameter], received: Mapping[str, Tensor], weight: float) -> float:
    """Add the gradients of weight / 2 |w - w_t|^2 over all shared parameters; returns that term.

    Source: Li et al. 2020 (FedProx).
    """
    squares = 0.0
    for name, parameter in shared.items():
        difference = parameter - received[name]
        if parameter.grad is not None:
            parameter.grad.add_(difference, alpha=weight)
        squares += float(difference.square().sum())
    return weight / 2 * squares
