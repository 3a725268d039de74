"""The models that clients are left with after a run, which whoever holds them can ask about any triple.

for kind, model in client_models(result, place=0).items():      # "local", "global"
    model.scores(triples)                                       # float64 [n]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fkgsec.attacks.membership.statistics import triple_scores
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.models import ClientTables, KgeModel
from fkgsec.kge.result import KgeResult


class ClientModel(NamedTuple):
    """One of a client's models: a scoring function and its rows."""

    model: KgeModel
    tables: ClientTables

    def scores(self, triples: np.ndarray) -> np.ndarray:
        """float64 `[n]`, see `fkgsec.attacks.membership.statistics.triple_scores`."""
        return triple_scores(self.model, self.tables.entities, self.tables.relations, triples)


def client_models(result: KgeResult, place: int) -> dict[str, ClientModel]:
    """The models that a client is left with: "global", its rows of the federation's; "local", the one it keeps to itself or,
    where the recipe has none, its rows as they were before the last broadcast."""
    recipe = RECIPES[result.options.algorithm]
    shared = ClientModel(*result.predictor("tables", place))
    if not recipe.shared:
        return {"local" if not recipe.pooled else "global": shared}
    own = "private" if result.private else "trained"
    return {"local": ClientModel(*result.predictor(own, place)), "global": shared}
