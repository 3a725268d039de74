"""FedE-SVD: the changes of entity rows cross as a few singular triplets, which FedE-SVD+ trains in a round's last epoch."""

from typing import Annotated

from msgspec import Meta

from fkgsec.errors import SpecError
from fkgsec.federation.recipes import ENTITIES, Recipe
from fkgsec.federation.settings import AlgorithmSettings


class FedESVDSettings(AlgorithmSettings, frozen=True):
    """The matrix that an entity's update is taken as.

    Attributes:
        rank: singular values sent of it. columns: of the matrix.
    """

    rank: Annotated[int, Meta(ge=1, le=1_000_000, description="singular values sent of an entity's update")] = 5
    columns: Annotated[int, Meta(ge=1, le=1_000_000, description="of the matrix that an update is taken as")] = 8

    def check(self, entity_width: int) -> None:
        rank, columns = self.rank, self.columns
        if entity_width % columns or columns >= entity_width // columns or rank > columns:
            raise SpecError(
                f"rank and columns: an update of {entity_width} numbers is no matrix of {columns} columns, more rows, and {rank} "
                "singular values"
            )


class FedESVDPlusSettings(FedESVDSettings, frozen=True):
    """The same, and the weight of keeping singular vectors orthogonal.

    Attributes:
        mu: the paper's alpha (feds.txt Eq. 7).
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the singular vectors' orthogonality")] = 0.05


FEDE_SVD = Recipe("fede-svd", ENTITIES, "feds.txt VI-B", FedESVDSettings, codec="low-rank")
FEDE_SVD_PLUS = Recipe(
    "fede-svd+", ENTITIES, "feds.txt VI-B", FedESVDPlusSettings, codec="low-rank", objective="factors"
)
