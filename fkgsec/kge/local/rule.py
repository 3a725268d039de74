"""Additions of an algorithm to local training: a recipe's `local` part, whose hooks the trainer calls.

class Drifting(LocalRule):                       # pulls shared rows to those received, less in every round
    def begin_round(self, round: int) -> None:
        self.weight = self.settings.mu / round

    def objective(self) -> WeightedObjective:
        return WeightedObjective(OBJECTIVES["squared"], self.weight)

register(Recipe("drifting", ENTITIES, "this script", MySettings, local=Drifting))
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fkgsec.errors import SpecError
from fkgsec.federation.recipes import Table

if TYPE_CHECKING:
    from torch import Tensor

    from fkgsec.kge.local.objectives import Objective
    from fkgsec.kge.local.stack import ClientStack
    from fkgsec.kge.options import KgeOptions


class WeightedObjective(NamedTuple):
    """An auxiliary loss of shared rows and its weight; `tau` is the temperature of one that has any."""

    objective: Objective
    weight: float
    tau: float = 1.0


class LocalRule:
    """The hooks, all without effect: local training is that of FedE.

    One rule serves all clients of a trainer. It may keep state within a round; between rounds it has none, since checkpoints
    do not hold it.

    Args:
        options: of the federation; `settings` are those of the algorithm.

    Attributes:
        keeps_received: whether the trainer keeps the rows that clients received, for the rule's own use.
        starts_private: whether the model that a client keeps to itself begins with the shared rows of round 0.
    """

    keeps_received = False
    starts_private = False

    def __init__(self, options: KgeOptions) -> None:
        self.options = options
        self.settings: Any = options.settings

    def begin_round(self, round: int) -> None:
        """Called before a round is trained; unlearning trains as round 0."""

    def takes_over(self, round: int) -> bool:
        """Return whether clients train on from the rows that the broadcast of this round gave them, or from their own."""
        return True

    def objective(self) -> WeightedObjective | None:
        """Return what is added to the loss of a client's shared rows; None: nothing."""
        return None

    def distil(self, private: Tensor, shared: Tensor, counts: Tensor, importance: Tensor) -> Tensor:
        """Return where a client has two models: the loss of each positive `[B]`, by their scores `[B, K]` of the same candidates.

        Args:
            own: scores by the model that the client keeps. shared: by the other. counts: bool `[B, K]`, which candidates count.
            importance: float `[B]`, weight of each positive's prediction, mean 1.
        """
        raise SpecError(f"{self.options.algorithm} has two models and a rule that does not say how they learn")

    def begin_epoch(self, epoch: int, stack: ClientStack, received: Mapping[Table, Tensor]) -> None:
        """Called before each epoch of a round; `received` are the rows of all clients as the round began."""

    def take(self, gradients: dict[Table, Tensor], clients: Collection[int]) -> dict[int, float]:
        """Apply what the rule moves itself, and remove it from the shared model's `gradients`; returns what losses grow by."""
        return {}

    def end_round(self) -> None:
        """Called after the last epoch."""
