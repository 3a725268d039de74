"""Training without a federation, the references below and above it: each client alone, and all triples at one party."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from fkgsec.federation.recipes import Recipe
from fkgsec.kge.settings import KgeSettings

Variant = Literal["paper", "published"]


class VariantSettings(KgeSettings, frozen=True):
    """Whether training follows a paper's text or FedLU's published code, which trains its baselines alike.

    Attributes:
        variant: "paper", or "published": triples weighed by frequency, and batches and negatives drawn once for the run
            (nju-websoft/FedLU). An option that is given wins over the variant's value.
    """

    variant: Annotated[Variant, Meta(description="training as the paper has it, or as FedLU's code")] = "paper"

    @property
    def training(self) -> Mapping[str, str]:
        return {"triple_weights": "frequency", "redraw": "never"} if self.variant == "published" else {}


class SingleSettings(VariantSettings, frozen=True):
    """Settings of clients that train alone.

    Attributes:
        variant: as in `VariantSettings`; "published" also keeps each client's own best round and starts from entity rows in the
            range that the code's server has.
    """

    @property
    def training(self) -> Mapping[str, str]:
        own = {"entity_range": "width", "best_round": "client"} if self.variant == "published" else {}
        return {**super().training, **own}


SINGLE = Recipe(
    "single",
    (),
    "each client alone: 'Local' in fedr.txt Table 2, 'Single' in feds.txt",
    SingleSettings,
    keep_optimizer=True,
)
COLLECTIVE = Recipe(
    "collective",
    (),
    "all triples at one party: 'centralized' in fedlu.txt",
    VariantSettings,
    pooled=True,
    keep_optimizer=True,
)
