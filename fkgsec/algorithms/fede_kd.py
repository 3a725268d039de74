"""FedE-KD: a client keeps a model to itself, shares one of fewer dimensions, and both learn from each other."""

from torch import Tensor

from fkgsec.kge.local.distillation import divergence, prediction_losses
from fkgsec.kge.local.rule import LocalRule


def co_distillation(
    low: Tensor, high: Tensor, counts: Tensor, *, temperature: float, importance: Tensor | float = 1.0
) -> Tensor:
    """Both models' losses, plus their divergences from each other divided by these losses. Source: feds.txt Eq. 6.

    Gradients are those of the equation as it stands: through both divergences, and through the losses that divide them.
    """
    predicted = prediction_losses(low, high, counts, temperature)
    distilled = divergence(low, high, counts) + divergence(high, low, counts)
    return importance * predicted + distilled / predicted


class FedEKDRule(LocalRule):
    """Co-distillation of the two models."""

    def distil(self, private: Tensor, shared: Tensor, counts: Tensor, importance: Tensor) -> Tensor:
        temperature = self.options.sampling_temperature
        return co_distillation(shared, private, counts, temperature=temperature, importance=importance)
