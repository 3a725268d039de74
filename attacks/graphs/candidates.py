"""Graphs that a membership attack is asked about: some that a client trained on, and as many like them that nobody did.

    asked = draw_candidates(federation, place=0, seed=0)
    asked.graphs                                     # GraphSet in a random order: what the adversary gets
    asked.member                                     # bool [n]: what it is to tell, and never gets

Controls are the client's test graphs. For each, a training graph of its class with nearly as many nodes is a candidate, too, so
that neither class nor size says who is a member. Graphs with a twin anywhere in their data set are left out on both sides: one
that is isomorphic to a training graph was trained on in effect, and what has twins is a common graph, which a model knows better.
Validation graphs are no controls: they chose the round that is kept, and an adversary may have them
(`fkgsec.attacks.graphs.view`).

Source: ours, after the controls of `fkgsec.attacks.membership.controls`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from fkgsec.graphs.sets import FederatedGraphs, GraphSet
from fkgsec.graphs.twins import twin_groups
from fkgsec.randomness import generator

LARGEST_RATIO = 1.25  # of the numbers of nodes of a control and its member


@dataclass(frozen=True, eq=False)
class Candidates:
    """Graphs to tell apart.

    Attributes:
        graphs: in a random order.
        ids: int64 `[n]`, their numbers in the client's set.
        member: bool `[n]`, which of them the client trained on.
    """

    graphs: GraphSet
    ids: np.ndarray
    member: np.ndarray


@functools.lru_cache(maxsize=32)  # the adversary is asked, and the evaluator joins the truth, for each threat model
def draw_candidates(federation: FederatedGraphs, place: int, seed: int) -> Candidates | None:
    """The candidates of the client at a place; None where fewer than two controls have a member like them.

    Args:
        seed: of the attack.
    """
    client = federation.clients[place]
    rng = generator(seed, "candidates", client.name)
    unique = _without_twins(federation, client.vocabulary)[place]
    controls, free = client.test[unique[client.test]], rng.permutation(client.train[unique[client.train]])
    sizes, classes = client.graphs.sizes, client.graphs.classes
    pairs = []
    for control in rng.permutation(controls):
        ratio = np.maximum(sizes[free], sizes[control]) / np.minimum(sizes[free], sizes[control])
        ratio[classes[free] != classes[control]] = np.inf
        if len(free) and ratio.min() <= LARGEST_RATIO:
            pairs.append((free[ratio.argmin()], control))
            free = np.delete(free, ratio.argmin())
    if len(pairs) < 2:
        return None
    ids = np.array(pairs, dtype=np.int64).T.reshape(-1)
    order = rng.permutation(len(ids))
    return Candidates(client.graphs.subset(ids[order]), ids[order], order < len(pairs))


@functools.lru_cache(maxsize=16)
def _without_twins(federation: FederatedGraphs, vocabulary: str) -> dict[int, np.ndarray]:
    """Graphs of each client of a data set that have no twin with any of them, bool `[G]` by client index."""
    graphs_of = {
        place: client.graphs for place, client in enumerate(federation.clients) if client.vocabulary == vocabulary
    }
    groups = twin_groups(*graphs_of.values())
    alone = np.bincount(groups)[groups] == 1
    return dict(
        zip(graphs_of, np.split(alone, np.cumsum([len(graphs) for graphs in graphs_of.values()])[:-1]), strict=True)
    )
