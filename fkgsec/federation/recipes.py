"""The federated algorithms, each a row of small parts; `run_federation` reads the row and knows no algorithm by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fkgsec.federation.distillation import DistillationName
from fkgsec.federation.objectives import ObjectiveName

Table = Literal["entities", "relations"]


@dataclass(frozen=True)
class Recipe:
    """What makes an algorithm.

    Attributes:
        shared: the tables whose rows go to the server and come back.
        source: where it comes from.
        pooled: one party trains on the triples of all clients (no federation at all; the upper reference).
        keep_optimizer: whether Adam's moments outlive a round. FedE's and FedR's codes build a new Adam every round, since
            the shared rows have changed under it; training without exchange keeps its own, and so does a private model.
        codec: how shared rows cross, a name in `fkgsec.exchange.CODECS`.
        aggregation: what the server makes of them, a name in `fkgsec.exchange.AGGREGATIONS`.
        objective: what clients add to their loss, see `fkgsec.federation.objectives`; the setting "proximal" overrides it.
        private: a second model that each client keeps to itself: "entities", it has entity rows of its own and both models
            use one relation table; "whole", it has both tables. The first model is the one whose rows are shared.
        distillation: how the two models learn from each other, see `fkgsec.federation.distillation`.
        equal_cost: the dimension is lowered until a round costs as much as FedS's on average (feds.txt Eq. 5).
        evaluated: "global", each client's tables after the broadcast, or before it by the setting "evaluate"; "local", as its
            own training left them before it; "private", the second model.
        settings: the options that only some algorithms have, with the paper's values.
    """

    name: str
    shared: tuple[Table, ...]
    source: str
    pooled: bool = False
    keep_optimizer: bool = False
    codec: str = "dense"
    aggregation: str = "mean"
    objective: ObjectiveName = "plain"
    private: Literal["none", "entities", "whole"] = "none"
    distillation: DistillationName = "none"
    equal_cost: bool = False
    evaluated: Literal["global", "local", "private"] = "global"
    settings: Mapping[str, float | str] = field(default_factory=dict)


ENTITIES: tuple[Table, ...] = ("entities",)
_ROWS = (
    Recipe("single", (), "each client alone: 'Local' in fedr.txt Table 2, 'Single' in feds.txt", keep_optimizer=True),
    Recipe("collective", (), "all triples at one party: 'centralized' in fedlu.txt", pooled=True, keep_optimizer=True),
    Recipe("fede", ENTITIES, "Chen et al. 2021, as in fedr.txt section 2", settings={"evaluate": "after"}),
    Recipe("fedep", ENTITIES, "FedE with each client's own model evaluated, feds.txt IV-B", evaluated="local"),
    Recipe(
        "fedepl",
        ENTITIES,
        "FedEP at the dimension that costs as much as FedS, feds.txt IV-B, VI-C",
        equal_cost=True,
        evaluated="local",
        settings={"sparsity": 0.4, "sync_every": 4},
    ),
    Recipe(
        "fedprox",
        ENTITIES,
        "FedE with a proximal term, fedlu.txt section 2 (and 5.2, footnote 3: distance)",
        objective="squared",
        settings={"mu": 0.1, "proximal": "squared", "evaluate": "after"},
    ),
    Recipe(
        "fedec",
        ENTITIES,
        "FedE with a contrastive term (Chen et al. 2022), fedlu.txt section 3",
        objective="contrastive",
        settings={"mu": 0.3, "tau": 0.2, "evaluate": "after"},
    ),
    Recipe("fedr", ("relations",), "fedr.txt Algorithm 1, without its PSU and SecAgg"),
    Recipe(
        "feds",
        ENTITIES,
        "feds.txt section III",
        codec="top-k",
        aggregation="sum of others",
        evaluated="local",
        settings={"sparsity": 0.4, "sync_every": 4},
    ),
    Recipe(
        "fedlu",
        ENTITIES,
        "fedlu.txt 4.1, Algorithm 1",
        private="entities",
        distillation="mutual",
        evaluated="private",
        settings={"mu": 2.0, "wait": 0, "form": "paper", "evaluate": "after", "private_start": "own"},
    ),
    Recipe(
        "pfedeg",
        ENTITIES,
        "pfedeg.txt section 3",
        aggregation="affinity",
        objective="distance",
        evaluated="local",
        settings={"mu": 0.003, "mixing": 0.7, "affinity": "shared", "start": "received"},
    ),
    Recipe(
        "fede-kd",
        ENTITIES,
        "feds.txt VI-A",
        private="whole",
        distillation="co",
        evaluated="private",
        settings={"low_share": 0.75},
    ),
    Recipe("fede-svd", ENTITIES, "feds.txt VI-B", codec="low-rank", settings={"rank": 5, "columns": 8}),
    Recipe(
        "fede-svd+",
        ENTITIES,
        "feds.txt VI-B",
        codec="low-rank",
        objective="factors",
        settings={"rank": 5, "columns": 8, "mu": 0.05},
    ),
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ROWS}
