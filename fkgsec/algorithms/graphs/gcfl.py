"""GCFL, GCFL+ and GCFL+dWs: FedAvg in clusters of clients, which are split in two when their updates disagree.

`fkgsec.exchange.tensors.clusters` decides on splits and makes them. Selection: the published code reports each client's best test
accuracy over all models that its cluster had before a split or at the end, which is selection on test graphs. Here the round with
the best validation is selected, as in all algorithms; `select=test` comes closest to the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fkgsec.exchange.tensors.clusters import GRADIENT_NORM
from fkgsec.gnn.training import GraphRule

if TYPE_CHECKING:
    from fkgsec.gnn.training import ClientTrainer


class GradientNormRule(GraphRule):
    """A client also uploads the norm of the shared parameters' gradients in the last batch of a round.

    The norm takes a whole row, of which one number is used. Source: GCFL's code (`convGradsNorm`); the paper uses the norms of
    updates, which need no upload.
    """

    upwards = (GRADIENT_NORM,)

    def begin(self, trainer: ClientTrainer) -> None:
        trainer.memory[GRADIENT_NORM] = torch.zeros(())

    def train(self, trainer: ClientTrainer, round: int, on_step: Callable[[], None]) -> float:
        # Train a round, then store the gradient norm of its last batch.
        loss = super().train(trainer, round, on_step)
        # GCFL's code takes the gradients that the last batch left.
        gradients = [parameter.grad for parameter in trainer.shared.values() if parameter.grad is not None]
        squares = sum(float(gradient.double().square().sum()) for gradient in gradients)
        trainer.memory[GRADIENT_NORM] = torch.tensor(squares**0.5, dtype=torch.float32)
        return loss
