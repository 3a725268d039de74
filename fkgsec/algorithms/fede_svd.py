"""FedE-SVD: the changes of entity rows cross as a few singular triplets, which FedE-SVD+ trains in a round's last epoch."""

from collections.abc import Collection, Mapping
from typing import Annotated

from msgspec import Meta
from torch import Tensor

from fkgsec.algorithms.factored import FactoredRows
from fkgsec.errors import SpecError
from fkgsec.federation.recipes import ENTITIES, Recipe, Table
from fkgsec.kge.local.rule import LocalRule
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.settings import KgeSettings


class FedESVDSettings(KgeSettings, frozen=True):
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


class FedESVDPlusRule(LocalRule):
    """Singular triplets of the update so far are what is trained in the last epoch of a round."""

    keeps_received = True

    def __init__(self, options: KgeOptions) -> None:
        super().__init__(options)
        self._factored: FactoredRows | None = None

    def begin_epoch(self, epoch: int, stack: ClientStack, received: Mapping[Table, Tensor]) -> None:
        if epoch == self.options.local_epochs - 1:
            self._factored = FactoredRows(
                stack,
                "entities",
                received["entities"],
                columns=self.settings.columns,
                alpha=self.settings.mu,
                learning_rate=self.options.learning_rate,
            )

    def take(self, gradients: dict[Table, Tensor], clients: Collection[int]) -> dict[int, float]:
        return {} if self._factored is None else dict(self._factored.step(gradients.pop("entities"), clients))

    def end_round(self) -> None:
        self._factored = None


FEDE_SVD = Recipe("fede-svd", ENTITIES, "feds.txt VI-B", FedESVDSettings, codec="low-rank")
FEDE_SVD_PLUS = Recipe(
    "fede-svd+", ENTITIES, "feds.txt VI-B", FedESVDPlusSettings, codec="low-rank", local=FedESVDPlusRule
)
