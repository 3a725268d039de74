"""FedEC over FedE: a contrastive term draws a client's shared rows to those received and away from its last training's."""

from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective


class FedECRule(LocalRule):
    """A contrastive term."""

    def objective(self) -> WeightedObjective:
        return WeightedObjective(OBJECTIVES["contrastive"], self.settings.mu, self.settings.tau)
