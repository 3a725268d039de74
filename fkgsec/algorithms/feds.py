"""FedS: of the shared rows those cross that changed most. FedEPL is FedEP at the dimension that costs as much as FedS."""

from typing import Annotated

from msgspec import Meta

from fkgsec.algorithms.costs import equal_cost_dim
from fkgsec.federation.recipes import ENTITIES, Recipe
from fkgsec.kge.settings import KgeSettings


class FedSSettings(KgeSettings, frozen=True):
    """How sparse rounds are.

    Attributes:
        sparsity: share p of its shared rows that a client and the server send in a sparse round.
        sparse_rounds: so many sparse rounds lie between two in which all shared rows are sent; 0: never all.
    """

    sparsity: Annotated[float, Meta(ge=0, le=1, description="share of the shared rows sent in a sparse round")] = 0.4
    sparse_rounds: Annotated[
        int, Meta(ge=0, le=1_000_000, description="sparse rounds between two with all rows; 0: never all")
    ] = 4


class FedEPLSettings(FedSSettings, frozen=True):
    """The FedS whose cost is matched: the dimension is lowered until a round costs as much on average (feds.txt Eq. 5)."""

    def shared_dim(self, dim: int) -> int:
        return equal_cost_dim(self.sparsity, self.sparse_rounds, dim)


FEDS = Recipe(
    "feds",
    ENTITIES,
    "feds.txt section III",
    FedSSettings,
    codec="top-k",
    aggregation="sum of others",
    evaluated="local",
)
FEDEPL = Recipe(
    "fedepl",
    ENTITIES,
    "FedEP at the dimension that costs as much as FedS, feds.txt IV-B, VI-C",
    FedEPLSettings,
    evaluated="local",
)
