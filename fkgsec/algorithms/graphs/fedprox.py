"""FedProx over graph networks: a proximal term keeps a client's shared parameters near those it received."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fkgsec.algorithms.graphs.fedavg import PARAMETERS, FedAvgSettings
from fkgsec.federation.recipes import Recipe
from fkgsec.gnn.training import GraphRule, pulled

if TYPE_CHECKING:
    from fkgsec.gnn.training import ClientTrainer


class GraphFedProxSettings(FedAvgSettings, frozen=True):
    """The same as FedAvg's, and the weight of the proximal term, mu / 2 |w - w_t|^2.

    Attributes:
        mu: 0.01 is GCFL's code's; cefgl.txt does not give its own.
    """

    mu: Annotated[float, Meta(ge=0, le=1_000_000, description="weight of the proximal term")] = 0.01


class GraphFedProxRule(GraphRule):
    """The proximal term.

    Differs from GCFL's code in round 1, where it pulls a client to its own random start, not to what it received.
    """

    keeps_received = True

    def correct(self, trainer: ClientTrainer) -> float:
        return pulled(trainer.shared, trainer.received, self.settings.mu)


FEDPROX = Recipe(
    "fedprox-gc",
    PARAMETERS,
    "Li et al. 2020, as in GCFL's code; the name fedprox is that of knowledge graphs",
    GraphFedProxSettings,
    task="graph",
    keep_optimizer=True,
    keeps_first=True,
    local=GraphFedProxRule,
)
