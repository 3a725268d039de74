"""PFedEG: each client receives its own mean of all clients' rows, near clients weighing more, and trains on from it."""

from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective


class PFedEGRule(LocalRule):
    """The distance to the rows received, from which, or from its own, a client trains on."""

    def takes_over(self, round: int) -> bool:
        return round == 0 or self.settings.start == "received"

    def objective(self) -> WeightedObjective:
        return WeightedObjective(OBJECTIVES["distance"], self.settings.mu)
