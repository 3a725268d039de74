"""PFedEG: each client receives a personal mean of all clients' rows, weighted by affinity, and trains on from it."""

from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective


class PFedEGRule(LocalRule):
    """Adds the distance to received rows, and starts from received or own rows."""

    def takes_over(self, round: int) -> bool:
        # pfedeg.txt Algorithm 1, line 21: E_c^t = K_c^t; the ablation _Reg in 4.4 skips it.
        return round == 0 or self.settings.start == "received"

    def objective(self) -> WeightedObjective:
        """Return the distance, weighted by mu."""
        # pfedeg.txt Eq. 2 and 3: the loss plus beta D(E_c, K_c).
        return WeightedObjective(OBJECTIVES["distance"], self.settings.mu)
