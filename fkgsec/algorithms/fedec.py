"""FedEC over FedE: a contrastive term draws a client's shared rows to those received and away from its last training's."""

from typing import Annotated

from msgspec import Meta

from fkgsec.algorithms.fede import FedESettings
from fkgsec.federation.recipes import ENTITIES, Recipe
from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective


class FedECSettings(FedESettings, frozen=True):
    """The contrastive term, and when shared models are judged.

    Attributes:
        mu: its weight. tau: its temperature.
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the contrastive term")] = 0.3
    tau: Annotated[float, Meta(gt=0, description="temperature of the contrastive term")] = 0.2


class FedECRule(LocalRule):
    """A contrastive term."""

    def objective(self) -> WeightedObjective:
        return WeightedObjective(OBJECTIVES["contrastive"], self.settings.mu, self.settings.tau)


FEDEC = Recipe(
    "fedec",
    ENTITIES,
    "FedE with a contrastive term (Chen et al. 2022), fedlu.txt section 3",
    FedECSettings,
    local=FedECRule,
)
