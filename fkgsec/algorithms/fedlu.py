"""FedLU: each client has a private model; it and the shared model learn from each other (mutual distillation)."""

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
    """Add each model's loss, times `importance`, and mu times its divergence from the other model, which gets no
    gradient.

    Args:
        private, shared: float `[B, K]`, scores of the two models.
        counts: bool `[B, K]`, which candidates count.
        temperature: of the self-adversarial weights.
        mu: weight of the distillation.
        variant: "paper", or "published" for FedLU's code.
        importance: weight of each positive's prediction, float `[B]`.

    Returns:
        Losses, float `[B]`.

    Source: fedlu.txt Eq. 5-11, with KL(P, Q) read as D_KL(P || Q). Differs in variant "published" as FedLU's code does:
    the
    divergence is D_KL(teacher || student), and the prediction loss is halved.
    Differs: both models take their step at once, from the same scores (the code: the local one first, then the global
    one).
    """
    if variant == "published":
        distilled = divergence(shared.detach(), private, counts) + divergence(private.detach(), shared, counts)
    else:
        # fedlu.txt Eq. 8: each model learns from the other; the teacher is constant.
        distilled = divergence(private, shared.detach(), counts) + divergence(shared, private.detach(), counts)
    # fedlu.txt Eq. 7, and Eq. 11: the prediction loss plus mu times the distillation loss, for both models.
    predicted = prediction_losses(private, shared, counts, temperature)
    return (0.5 if variant == "published" else 1) * importance * predicted + mu * distilled


class FedLURule(LocalRule):
    """Mutual distillation after a warm-up. The two models start from different rows, or from the same."""

    def __init__(self, options: KgeOptions) -> None:
        super().__init__(options)
        self.starts_private = self.settings.private_start == "server"
        self._warming_up = False

    def begin_round(self, round: int) -> None:
        # Round 0 is unlearning, which distills.
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
