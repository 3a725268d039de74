"""FedE-KD: a client has a private model and shares one of fewer dimensions; both learn from each other."""

from torch import Tensor

from fkgsec.kge.local.distillation import divergence, prediction_losses
from fkgsec.kge.local.rule import LocalRule


def co_distillation(
    low: Tensor, high: Tensor, counts: Tensor, *, temperature: float, importance: Tensor | float = 1.0
) -> Tensor:
    """Add both models' losses and their mutual divergences, the latter divided by the losses.

    Gradients are those of the whole equation: through both divergences, and through the losses that divide them.

    Args:
        low, high: float `[B, K]`, scores of the shared and of the private model.
        counts: bool `[B, K]`, which candidates count.
        temperature: of the self-adversarial weights.
        importance: weight of each positive's prediction, float `[B]`.

    Returns:
        Losses, float `[B]`.

    Source: feds.txt Eq. 6.
    """
    # L_L + L_H + (KL(S_L, S_H) + KL(S_H, S_L)) / (L_L + L_H): distillation grows as the supervised loss shrinks.
    predicted = prediction_losses(low, high, counts, temperature)
    distilled = divergence(low, high, counts) + divergence(high, low, counts)
    return importance * predicted + distilled / predicted


class FedEKDRule(LocalRule):
    """Co-distillation of the two models."""

    def distil(self, private: Tensor, shared: Tensor, counts: Tensor, importance: Tensor) -> Tensor:
        temperature = self.options.sampling_temperature
        return co_distillation(shared, private, counts, temperature=temperature, importance=importance)
