"""FedProx over FedE: a proximal term keeps a client's shared rows near those it received."""

from typing import Annotated, Literal

from msgspec import Meta

from fkgsec.algorithms.fede import FedESettings
from fkgsec.federation.recipes import ENTITIES, Recipe
from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective


class FedProxSettings(FedESettings, frozen=True):
    """The proximal term, and when shared models are judged.

    Attributes:
        mu: its weight.
        proximal: how far a client's table is from the one received: "squared", mu / 2 |w - w_t|^2, as FedProx defines it and
            the code of FedLU's authors has it; or "distance", mu |w - w_t|, as their paper words it.
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the proximal term")] = 0.1
    proximal: Annotated[
        Literal["distance", "squared"],
        Meta(description="half the squared distance to the rows received, or the distance"),
    ] = "squared"


class FedProxRule(LocalRule):
    """A proximal term."""

    def objective(self) -> WeightedObjective:
        return WeightedObjective(OBJECTIVES[self.settings.proximal], self.settings.mu)


FEDPROX = Recipe(
    "fedprox",
    ENTITIES,
    "FedE with a proximal term, fedlu.txt section 2 (and 5.2, footnote 3: distance)",
    FedProxSettings,
    local=FedProxRule,
)
