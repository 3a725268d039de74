"""FedProx for graph networks: a proximal term keeps a client's shared parameters near those it received."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fkgsec.gnn.training import GraphRule, pulled

if TYPE_CHECKING:
    from fkgsec.gnn.training import ClientTrainer


class GraphFedProxRule(GraphRule):
    """Adds the proximal term.

    Differs from GCFL's code in round 1, where that code pulls a client to its own random start, not to what it
    received.
    """

    keeps_received = True

    def correct(self, trainer: ClientTrainer) -> float:
        return pulled(trainer.shared, trainer.received, self.settings.mu)
