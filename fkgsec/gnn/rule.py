"""What an algorithm adds to the local training of graph networks: a recipe's `local` part, whose hooks the trainer calls.

class Anchored(GraphRule):                       # pulls shared parameters to those received
    keeps_received = True

    def correct(self, trainer):
        return pulled(trainer.shared, trainer.received, self.settings.mu)

register(Recipe("anchored", PARAMETERS, "this script", MySettings, task="graph", local=Anchored))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fkgsec.gnn.crossing import Crossing
from fkgsec.gnn.models import ENCODER, GraphClassifier
from fkgsec.gnn.options import GnnOptions
from fkgsec.graphs.sets import GraphSet

if TYPE_CHECKING:
    from fkgsec.gnn.training import ClientTrainer


class GraphRule:
    """The hooks, all without effect: local training is that of FedAvg.

    One rule serves all clients. What it keeps of a client from round to round is in the client's trainer, for checkpoints.

    Attributes:
        keeps_received: whether clients keep the shared parameters as they last received them.
        crossing: what crosses of the networks.
        upwards: the tensors of a client's memory that it uploads with its parameters, and is not sent back.
    """

    keeps_received = False
    crossing: type[Crossing] = Crossing
    upwards: Sequence[str] = ()

    def __init__(self, options: GnnOptions) -> None:
        self.options = options
        self.settings: Any = options.settings

    @property
    def shared(self) -> tuple[str, ...]:
        """How the names of the shared parameters begin."""
        return ("",) if getattr(self.settings, "share", "encoder") == "all" else (ENCODER,)

    def network(self, num_features: int, num_classes: int) -> nn.Module:
        """A client's network, called as `network(batch, rng)` for logits; its first values are torch's global generator's."""
        return GraphClassifier(self.options.architecture(), num_features, num_classes)

    def prepare(self, graphs: GraphSet) -> GraphSet:
        """A client's graphs with what the network reads beside their features."""
        return graphs

    def begin(self, trainer: ClientTrainer) -> None:
        """Give a new client what it keeps beside its network: `trainer.private`, judged with it, and `trainer.memory`."""

    def train(self, trainer: ClientTrainer, round: int, on_step: Callable[[], None]) -> float:
        """A round of a client; returns its mean loss over graphs."""
        return trainer.epochs(round, self.options.local_epochs, on_step)

    def num_epochs(self) -> int:
        """Of a round, for progress."""
        return self.options.local_epochs

    def correct(self, trainer: ClientTrainer) -> float:
        """Change the gradients of a batch before Adam's step; returns what the loss grows by."""
        return 0.0

    def judged(self, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        """What a client's network classifies with, of all that it has: parameters and private tensors by name."""
        return parameters


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
