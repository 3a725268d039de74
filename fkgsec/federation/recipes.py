"""The federated algorithms, each a row of small parts; `run_federation` reads the row and knows no algorithm by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Table = Literal["entities", "relations"]


@dataclass(frozen=True)
class Recipe:
    """What makes an algorithm.

    Attributes:
        shared: the tables whose rows go to the server and come back as the mean over the clients that hold the row.
        pooled: one party trains on the triples of all clients (no federation at all; the upper reference).
        keep_optimizer: whether Adam's moments outlive a round. FedE's and FedR's codes build a new Adam every round, since
            the shared rows have changed under it; training without exchange keeps its own.
        source: where it comes from.
    """

    name: str
    shared: tuple[Table, ...]
    source: str
    pooled: bool = False
    keep_optimizer: bool = False


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
        Recipe("fedr", ("relations",), "fedr.txt Algorithm 1, without its PSU and SecAgg"),
    )
}
