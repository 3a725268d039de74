"""FedLU: each client keeps a model to itself, and it and the shared one learn from each other (mutual distillation)."""

from torch import Tensor

from fkgsec.kge.local.distillation import divergence, prediction_losses
from fkgsec.kge.local.rule import LocalRule
from fkgsec.kge.options import KgeOptions


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
    """Return each model's own loss, times `importance`, plus mu times its divergence from the other, which stands still for it.

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

    def distil(self, private: Tensor, shared: Tensor, counts: Tensor, importance: Tensor) -> Tensor:
        return mutual(
            private,
            shared,
            counts,
            temperature=self.options.sampling_temperature,
            mu=0 if self._warming_up else self.settings.mu,
            variant=self.settings.variant,
            importance=importance,
        )
