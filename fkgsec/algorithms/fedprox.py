"""FedProx on top of FedE: a proximal term keeps a client's shared rows near those it received."""

from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective


class FedProxRule(LocalRule):
    """Adds a proximal term."""

    def objective(self) -> WeightedObjective:
        """Return the proximal term, weighted by mu."""
        # fedlu.txt section 2: the loss plus mu / 2 |w - w_t|^2 over shared parameters.
        return WeightedObjective(OBJECTIVES[self.settings.proximal], self.settings.mu)
