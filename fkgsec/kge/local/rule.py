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
    """Hooks without effect: local training is that of FedE.

    One rule serves all clients of a trainer. It may keep state within a round, but not between rounds: checkpoints do not store
    it.

    Args:
        options: of the federation; `settings` are those of the algorithm.

    Attributes:
        keeps_received: whether the trainer stores received rows for the rule.
        starts_private: whether the private model starts from the shared rows of round 0.
    """

    keeps_received = False
    starts_private = False

    def __init__(self, options: KgeOptions) -> None:
        self.options = options
        self.settings: Any = options.settings

    def begin_round(self, round: int) -> None:
        """Prepare a round of training. Unlearning trains as round 0."""

    def takes_over(self, round: int) -> bool:
        """Return True if clients train from the rows of this round's broadcast, False if from their own."""
        return True

    def objective(self) -> WeightedObjective | None:
        """Return a loss to add for a client's shared rows, or None."""
        return None

    def distil(self, private: Tensor, shared: Tensor, counts: Tensor, importance: Tensor) -> Tensor:
        """Compute the loss of each positive `[B]` for a client with two models, from both models' scores of the same
        candidates.

        Args:
            private: float `[B, K]`, scores of the client's private model.
            shared: float `[B, K]`, scores of the shared model.
            counts: bool `[B, K]`, which candidates count.
            importance: float `[B]`, weight of each positive's prediction, mean 1.

        Raises:
            SpecError: the rule does not define how two models learn.
        """
        raise SpecError(f"{self.options.algorithm} has two models and a rule that does not say how they learn")

    def begin_epoch(self, epoch: int, stack: ClientStack, received: Mapping[Table, Tensor]) -> None:
        """Prepare an epoch.

        Args:
            epoch: number within the round, from 0.
            stack: tables of all clients.
            received: rows that all clients received at the beginning of the round.
        """

    def take(self, gradients: dict[Table, Tensor], clients: Collection[int]) -> dict[int, float]:
        """Move parameters of the rule and remove their gradients from the shared model's.

        Args:
            gradients: of the shared model's tables; changed in place.
            clients: places of the active clients.

        Returns:
            Additional loss of each client.
        """
        return {}

    def end_round(self) -> None:
        """Finish a round, after its last epoch."""
