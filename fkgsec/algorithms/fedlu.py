"""FedLU: each client keeps a model to itself, and it and the shared one learn from each other (mutual distillation)."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta
from torch import Tensor

from fkgsec.algorithms.alone import Variant
from fkgsec.algorithms.fede import FedESettings
from fkgsec.federation.recipes import ENTITIES, Recipe
from fkgsec.kge.local.distillation import divergence, prediction_losses
from fkgsec.kge.local.rule import LocalRule
from fkgsec.kge.options import KgeOptions

PrivateStart = Literal["own", "server"]


class FedLUSettings(FedESettings, frozen=True):
    """Mutual distillation, and when shared models are judged.

    Attributes:
        mu: weight of what a model learns from the other.
        warmup_rounds: rounds before the two models learn from each other; 0 is the paper's Algorithm 1. Ours: its code begins
            without, too, but switches each direction on by what validation says of both models.
        variant: as in `FedESettings`; "published" also has the code's loss (see `mutual`) and keeps each client's own best round.
        private_start: first entity rows of the model that a client keeps to itself: drawn on its "own", or those that the
            "server" sends in round 0, so that both models start alike (FedLU's code).
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the distillation")] = 2.0
    warmup_rounds: Annotated[
        int, Meta(ge=0, le=1_000_000, description="rounds before the two models learn from each other")
    ] = 0
    private_start: Annotated[
        PrivateStart,
        Meta(description="first entities of a client's second model: its own, or those of the server"),
    ] = "own"

    @property
    def training(self) -> Mapping[str, str]:
        own = {"best_round": "client"} if self.variant == "published" else {}
        return {**super().training, **own}

    def sampling_temperature(self, given: float | None, model: str) -> float:
        return fedlu_temperature(self.variant, given, model)


def fedlu_temperature(variant: Variant, given: float | None, model: str) -> float:
    """FedLU weighs negatives alike (fedlu.txt Eq. 7), its code so but for RotatE."""
    if variant != "published" or model != "rotate":
        return 0.0
    return 1.0 if given is None else given


def mutual(
    private: Tensor,
    shared: Tensor,
    counts: Tensor,
    *,
    temperature: float,
    mu: float,
    variant: str = "paper",
    importance: Tensor | float = 1.0,
) -> Tensor:
    """Each model's own loss, times `importance`, plus mu times its divergence from the other, which stands still for it.

    Source: fedlu.txt Eq. 5-11, with KL(P, Q) read as D_KL(P || Q). Differs in variant "published" as FedLU's code does: the
    divergence is D_KL(teacher || student), and the prediction loss is halved.
    Differs: both models take their step at once, from the same scores (the code: the local one first, then the global one).
    """
    if variant == "published":
        distilled = divergence(shared.detach(), private, counts) + divergence(private.detach(), shared, counts)
    else:
        distilled = divergence(private, shared.detach(), counts) + divergence(shared, private.detach(), counts)
    predicted = prediction_losses(private, shared, counts, temperature)
    return (0.5 if variant == "published" else 1) * importance * predicted + mu * distilled


class FedLURule(LocalRule):
    """Mutual distillation after a warm-up. Its two models begin apart, or with the same rows."""

    def __init__(self, options: KgeOptions) -> None:
        super().__init__(options)
        self.starts_private = self.settings.private_start == "server"
        self._warming_up = False

    def begin_round(self, round: int) -> None:
        self._warming_up = 0 < round <= self.settings.warmup_rounds

    def distil(self, own: Tensor, shared: Tensor, counts: Tensor, importance: Tensor) -> Tensor:
        return mutual(
            own,
            shared,
            counts,
            temperature=self.options.sampling_temperature,
            mu=0 if self._warming_up else self.settings.mu,
            variant=self.settings.variant,
            importance=importance,
        )


FEDLU = Recipe(
    "fedlu",
    ENTITIES,
    "fedlu.txt 4.1, Algorithm 1",
    FedLUSettings,
    private="entities",
    local=FedLURule,
)
