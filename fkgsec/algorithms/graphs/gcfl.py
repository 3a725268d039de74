"""GCFL, GCFL+ and GCFL+dWs: FedAvg in clusters of clients, which are cut in two where their updates disagree.

What decides on a cut, and how it is made, is `fkgsec.exchange.tensors.clusters`. Selection: the code reports each client's best
test accuracy over all models that a cluster of it had before a cut or at the end, which is selection on test graphs. Here the
round with the best validation is kept, as everywhere; `select=test` is the nearest to the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import torch
from msgspec import Meta

from fkgsec.algorithms.graphs.fedavg import PARAMETERS
from fkgsec.exchange.tensors.clusters import GRADIENT_NORM
from fkgsec.federation.recipes import Recipe
from fkgsec.gnn.options import GnnSettings
from fkgsec.gnn.training import GraphRule

if TYPE_CHECKING:
    from fkgsec.gnn.training import ClientTrainer


class GCFLSettings(GnnSettings, frozen=True):
    """When a cluster is cut. Thresholds go with the network and the data; these are the code's for molecules, with three layers.

    Attributes:
        epsilon1: the mean update of a cluster is shorter. epsilon2: the longest one is longer. Euclidean norms.
        first_cut: in this round and before, none is cut.
    """

    epsilon1: Annotated[
        float, Meta(ge=0, le=1_000_000, description="a cluster is cut if its mean update is shorter")
    ] = 0.07
    epsilon2: Annotated[
        float, Meta(ge=0, le=1_000_000, description="a cluster is cut if its longest update is longer")
    ] = 0.28
    first_cut: Annotated[int, Meta(ge=0, le=1_000_000, description="round after which clusters may be cut")] = 20


class GCFLPlusSettings(GCFLSettings, frozen=True):
    """GCFL's, and the series by which clients are compared.

    Attributes:
        seq_length: norms of a series. standardize: whether each series is divided by its standard deviation.
    """

    seq_length: Annotated[
        int, Meta(ge=1, le=10_000, description="norms in the series that clients are compared by")
    ] = 5
    standardize: Annotated[bool, Meta(description="divide each series by its standard deviation")] = False


class GradientNormRule(GraphRule):
    """A client also uploads the norm of the shared parameters' gradients in the last batch of a round.

    It takes a row of its own, of which one number is used. Source: GCFL's code (`convGradsNorm`); the paper has the norms of
    updates, which need no upload.
    """

    upwards = (GRADIENT_NORM,)

    def begin(self, trainer: ClientTrainer) -> None:
        trainer.memory[GRADIENT_NORM] = torch.zeros(())

    def train(self, trainer: ClientTrainer, round: int, on_step: Callable[[], None]) -> float:
        loss = super().train(trainer, round, on_step)
        gradients = [one.grad for one in trainer.shared.values() if one.grad is not None]
        squares = sum(float(gradient.double().square().sum()) for gradient in gradients)
        trainer.memory[GRADIENT_NORM] = torch.tensor(squares**0.5, dtype=torch.float32)
        return loss


GCFL = Recipe(
    "gcfl",
    PARAMETERS,
    "Xie et al. 2021: clusters by the cosines of updates",
    GCFLSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
    aggregation="clusters",
)
GCFL_PLUS = Recipe(
    "gcfl+",
    PARAMETERS,
    "Xie et al. 2021, as in its code: clusters by series of gradient norms",
    GCFLPlusSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
    aggregation="clusters-by-gradient-norms",
    local=GradientNormRule,
)
GCFL_PLUS_DWS = Recipe(
    "gcfl+dws",
    PARAMETERS,
    "Xie et al. 2021: clusters by series of update norms, as the paper has GCFL+ and its code GCFL+dWs",
    GCFLPlusSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
    aggregation="clusters-by-update-norms",
)
