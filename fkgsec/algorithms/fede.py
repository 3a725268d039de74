"""FedE: entity rows are averaged over the clients that hold them. FedEP is the same, judged by each client's own model."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from fkgsec.algorithms.alone import VariantSettings
from fkgsec.federation.recipes import ENTITIES, Recipe


class FedESettings(VariantSettings, frozen=True):
    """When shared models are judged.

    Attributes:
        variant: as in `VariantSettings`; "published" also starts from entity rows in the range that the code's server has.
        evaluate: whether they are validated, kept and tested "after" the broadcast of a round, or "before" it, as local training
            left them (FedLU's code, in FedE, FedProx and FedEC, too).
    """

    evaluate: Annotated[
        Literal["after", "before"], Meta(description="shared models after a round's broadcast, or before it")
    ] = "after"

    @property
    def training(self) -> Mapping[str, str]:
        own = {"entity_range": "width"} if self.variant == "published" else {}
        return {**super().training, **own}

    @property
    def evaluates_before_broadcast(self) -> bool:
        return self.evaluate == "before"


FEDE = Recipe("fede", ENTITIES, "Chen et al. 2021, as in fedr.txt section 2", FedESettings)
FEDEP = Recipe("fedep", ENTITIES, "FedE with each client's own model evaluated, feds.txt IV-B", evaluated="local")
