"""Classifiers that an adversary has, and asks about any graph.

model = GraphModel(settings, parameters)
model.losses(graphs)                             # float64 [n], of each graph's class
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import asdict
from torch import Tensor

from fkgsec.federation.recipes import RECIPES, Recipe
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.rule import GraphRule
from fkgsec.gnn.training import ClientTrainer
from fkgsec.graphs.sets import ClientGraphs, GraphSet

_NOT_PUBLIC = ("seed", "protocol_seed", "device", "defense")


@dataclass(frozen=True)
class PublicSettings:
    """What every party knows of a run: its options, which are attributes here, but for seeds, device and defense.

    >>> PublicSettings.of(GnnOptions(width=32)).width
    32
    """

    fields: Mapping[str, Any]

    @classmethod
    def of(cls, options: GnnOptions) -> PublicSettings:
        """Those of a run."""
        return cls({name: value for name, value in asdict(options).items() if name not in _NOT_PUBLIC})

    def __getattr__(self, name: str) -> Any:
        if name == "fields" or name not in self.fields:
            raise AttributeError(f"{name!r} is no public setting of a run")
        return self.fields[name]

    @property
    def recipe(self) -> Recipe:
        """Of the algorithm."""
        return RECIPES[self.fields["algorithm"]]

    def options(self, seed: int, **changes: Any) -> GnnOptions:
        """Options of a run like it, in clear, with a seed of the adversary's own."""
        return GnnOptions(**{**self.fields, "seed": seed, "device": "cpu", **changes})


@dataclass(frozen=True, eq=False)
class GraphModel:
    """A whole classifier: parameters by name, and what a client keeps beside them."""

    settings: PublicSettings
    parameters: Mapping[str, Tensor]

    def probabilities(self, graphs: GraphSet) -> np.ndarray:
        """Of each class of graphs of the data set that it was trained for, float64 `[n, C]`."""
        every = np.arange(len(graphs))
        asked = ClientGraphs("asked", graphs, every, every[:0], every[:0])
        options = self.settings.options(seed=0)  # draws first values, which the parameters replace
        rule = (self.settings.recipe.local or GraphRule)(options)
        return ClientTrainer(asked, options, rule, rule.shared).classify(every, self.parameters).values

    def losses(self, graphs: GraphSet) -> np.ndarray:
        """Cross entropy of each graph's class, float64 `[n]`."""
        true = self.probabilities(graphs)[np.arange(len(graphs)), graphs.classes]
        return -np.log(np.maximum(true, np.finfo(np.float64).tiny))
