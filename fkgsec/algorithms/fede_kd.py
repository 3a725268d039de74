"""FedE-KD: a client keeps a model to itself, shares one of fewer dimensions, and both learn from each other."""

import math
from typing import Annotated

from msgspec import Meta
from torch import Tensor

from fkgsec.federation.recipes import ENTITIES, Recipe
from fkgsec.kge.local.distillation import divergence, prediction_losses
from fkgsec.kge.local.rule import LocalRule
from fkgsec.kge.settings import KgeSettings


class FedEKDSettings(KgeSettings, frozen=True):
    """The size of what is shared.

    Attributes:
        shared_dim_ratio: dimension of the shared model over that of the one that a client keeps.
    """

    shared_dim_ratio: Annotated[
        float, Meta(ge=0, le=1, description="the shared model's dimension over the private one's")
    ] = 0.75

    def shared_dim(self, dim: int) -> int:
        return math.ceil(self.shared_dim_ratio * dim)


def co_distillation(
    low: Tensor, high: Tensor, counts: Tensor, *, temperature: float, importance: Tensor | float = 1.0
) -> Tensor:
    """Both models' losses, plus their divergences from each other divided by these losses. Source: feds.txt Eq. 6.

    Gradients are those of the equation as it stands: through both divergences, and through the losses that divide them.
    """
    predicted = prediction_losses(low, high, counts, temperature)
    distilled = divergence(low, high, counts) + divergence(high, low, counts)
    return importance * predicted + distilled / predicted


class FedEKDRule(LocalRule):
    """Co-distillation of the two models."""

    def distil(self, own: Tensor, shared: Tensor, counts: Tensor, importance: Tensor) -> Tensor:
        temperature = self.options.sampling_temperature
        return co_distillation(shared, own, counts, temperature=temperature, importance=importance)


FEDE_KD = Recipe(
    "fede-kd",
    ENTITIES,
    "feds.txt VI-A",
    FedEKDSettings,
    private="whole",
    local=FedEKDRule,
)
