"""The federated algorithms, each a row of small parts; `run_federation` reads the row and knows no algorithm by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fkgsec.federation.objectives import ObjectiveName

Table = Literal["entities", "relations"]


@dataclass(frozen=True)
class Recipe:
    """What makes an algorithm.

    Attributes:
        shared: the tables whose rows go to the server and come back as the mean over the clients that hold the row.
        pooled: one party trains on the triples of all clients (no federation at all; the upper reference).
        keep_optimizer: whether Adam's moments outlive a round. FedE's and FedR's codes build a new Adam every round, since
            the shared rows have changed under it; training without exchange keeps its own.
        evaluated: "global", each client's tables after the broadcast; "local", as its own training left them before it.
        objective: what clients add to their loss, see `fkgsec.federation.objectives`.
        mu: its weight, unless options say another.
        source: where it comes from.
    """

    name: str
    shared: tuple[Table, ...]
    source: str
    pooled: bool = False
    keep_optimizer: bool = False
    evaluated: Literal["global", "local"] = "global"
    objective: ObjectiveName = "plain"
    mu: float = 0.0


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "single", (), "each client alone: 'Local' in fedr.txt Table 2, 'Single' in feds.txt", keep_optimizer=True
        ),
        Recipe(
            "collective", (), "all triples at one party: 'centralized' in fedlu.txt", pooled=True, keep_optimizer=True
        ),
        Recipe("fede", ("entities",), "Chen et al. 2021, as in fedr.txt section 2"),
        Recipe("fedep", ("entities",), "FedE with each client's own model evaluated, feds.txt IV-B", evaluated="local"),
        Recipe(
            "fedprox",
            ("entities",),
            "FedE with a proximal term, fedlu.txt sections 2 and 5.2",
            objective="proximal",
            mu=0.1,
        ),
        Recipe(
            "fedec",
            ("entities",),
            "FedE with a contrastive term (Chen et al. 2022), fedlu.txt section 3",
            objective="contrastive",
            mu=0.3,
        ),
        Recipe("fedr", ("relations",), "fedr.txt Algorithm 1, without its PSU and SecAgg"),
    )
}
