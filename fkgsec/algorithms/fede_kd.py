"""FedE-KD: a client keeps a model to itself, shares one of fewer dimensions, and both learn from each other."""

import math
from typing import Annotated

from msgspec import Meta

from fkgsec.federation.recipes import ENTITIES, Recipe
from fkgsec.federation.settings import AlgorithmSettings


class FedEKDSettings(AlgorithmSettings, frozen=True):
    """The size of what is shared.

    Attributes:
        shared_dim_ratio: dimension of the shared model over that of the one that a client keeps.
    """

    shared_dim_ratio: Annotated[
        float, Meta(ge=0, le=1, description="the shared model's dimension over the private one's")
    ] = 0.75

    def shared_dim(self, dim: int) -> int:
        return math.ceil(self.shared_dim_ratio * dim)


FEDE_KD = Recipe(
    "fede-kd",
    ENTITIES,
    "feds.txt VI-A",
    FedEKDSettings,
    private="whole",
    distillation="co",
    evaluated="private",
)
