"""PFedEG: each client receives its own mean of all clients' rows, near clients weighing more, and trains on from it."""

from typing import Annotated, Literal

from msgspec import Meta

from fkgsec.federation.recipes import ENTITIES, Recipe
from fkgsec.federation.settings import AlgorithmSettings
from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective

Affinity = Literal["shared", "embedding"]


class PFedEGSettings(AlgorithmSettings, frozen=True):
    """The personal means and what clients do with them.

    Attributes:
        mu: weight of the distance to the rows received.
        mixing: the paper's p, the share of the others' knowledge in what a client receives.
        affinity: how two clients are weighed, by the entities that they share or by the embeddings of these.
        start: what a round's training starts from, the rows received or the client's own (`_Reg` in pfedeg.txt 4.4).
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the distance to the rows received")] = 0.003
    mixing: Annotated[float, Meta(ge=0, le=1, description="share of the others in what a client receives")] = 0.7
    affinity: Annotated[Affinity, Meta(description="near clients by what they share")] = "shared"
    start: Annotated[
        Literal["received", "own"], Meta(description="a round starts from the rows received, or a client's own")
    ] = "received"


class PFedEGRule(LocalRule):
    """The distance to the rows received, from which, or from its own, a client trains on."""

    def takes_over(self, round: int) -> bool:
        return round == 0 or self.settings.start == "received"

    def objective(self) -> WeightedObjective:
        return WeightedObjective(OBJECTIVES["distance"], self.settings.mu)


PFEDEG = Recipe(
    "pfedeg",
    ENTITIES,
    "pfedeg.txt section 3",
    PFedEGSettings,
    aggregation="affinity",
    evaluated="local",
    local=PFedEGRule,
)
