"""FedEC on top of FedE: a contrastive term pulls shared rows toward those received and away from those of the last
training.
"""

from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective


class FedECRule(LocalRule):
    """Adds a contrastive term."""

    def objective(self) -> WeightedObjective:
        """Return the contrastive term, weighted by mu."""
        # fedlu.txt section 3: the loss plus mu times the contrastive term.
        return WeightedObjective(OBJECTIVES["contrastive"], self.settings.mu, self.settings.tau)
