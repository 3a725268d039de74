"""FedLU: each client keeps a model to itself, and it and the shared one learn from each other (mutual distillation)."""

from typing import Annotated, Literal

from msgspec import Meta

from fkgsec.algorithms.fede import FedESettings
from fkgsec.federation.recipes import ENTITIES, Recipe

Variant = Literal["paper", "published"]
PrivateStart = Literal["own", "server"]


class FedLUSettings(FedESettings, frozen=True):
    """Mutual distillation, and when shared models are judged.

    Attributes:
        mu: weight of what a model learns from the other.
        warmup_rounds: rounds before the two models learn from each other; 0 is the paper's Algorithm 1. Ours: its code begins
            without, too, but switches each direction on by what validation says of both models.
        variant: "paper", or "published": as FedLU's code does.
        private_start: first entity rows of the model that a client keeps to itself: drawn on its "own", or those that the
            "server" sends in round 0, so that both models start alike (FedLU's code).
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the distillation")] = 2.0
    warmup_rounds: Annotated[
        int, Meta(ge=0, le=1_000_000, description="rounds before the two models learn from each other")
    ] = 0
    variant: Annotated[Variant, Meta(description="paper, or published as FedLU's code")] = "paper"
    private_start: Annotated[
        PrivateStart,
        Meta(description="first entities of a client's second model: its own, or those of the server"),
    ] = "own"

    def sampling_temperature(self, given: float | None, model: str) -> float:
        return fedlu_temperature(self.variant, given, model)


def fedlu_temperature(variant: Variant, given: float | None, model: str) -> float:
    """FedLU weighs negatives alike (fedlu.txt Eq. 7), its code so but for RotatE."""
    if variant != "published" or model != "rotate":
        return 0.0
    return 1.0 if given is None else given


FEDLU = Recipe(
    "fedlu",
    ENTITIES,
    "fedlu.txt 4.1, Algorithm 1",
    FedLUSettings,
    private="entities",
    distillation="mutual",
    evaluated="private",
)
