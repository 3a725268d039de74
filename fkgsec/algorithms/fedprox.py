"""FedProx over FedE: a proximal term keeps a client's shared rows near those it received."""

from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective


class FedProxRule(LocalRule):
    """A proximal term."""

    def objective(self) -> WeightedObjective:
        return WeightedObjective(OBJECTIVES[self.settings.proximal], self.settings.mu)
