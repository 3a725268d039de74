"""Candidate graphs of a membership attack: some that a client trained on, and equally many similar ones that nobody trained on.

    candidates = draw_candidates(federation, place=0, seed=0)
    candidates.graphs                                # GraphSet in a random order: the adversary's input
    candidates.member                                # bool [n]: the truth, which it never gets

Controls are the client's test graphs. Each is matched with a training graph of its class and with nearly as many nodes, so that
neither class nor size reveals members. Graphs with a twin anywhere in their data set are left out of both groups: a graph that
is isomorphic to a training graph was in effect trained on, and graphs with twins are common ones, which a model knows better.
Validation graphs are no controls: they chose the best round, and an adversary may have them (`fkgsec.attacks.graphs.view`).

Source: ours, after the controls of `fkgsec.attacks.membership.controls`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from fkgsec.graphs.sets import FederatedGraphs, GraphSet
from fkgsec.graphs.twins import twin_groups
from fkgsec.randomness import generator

# Largest ratio of the numbers of nodes of a control and its member.
LARGEST_RATIO = 1.25


@dataclass(frozen=True, eq=False)
class Candidates:
    """Graphs to classify.

    Attributes:
        graphs: in a random order.
        ids: indices in the client's set, int64 `[n]`.
        member: which of them the client trained on, bool `[n]`.
    """

    graphs: GraphSet
    ids: np.ndarray
    member: np.ndarray


# The adversary and the evaluator draw the same candidates for each threat model.
@functools.lru_cache(maxsize=32)
def draw_candidates(federation: FederatedGraphs, place: int, seed: int) -> Candidates | None:
    """Draw the candidates of a client.

    Args:
        federation: data of the federation.
        seed: seed of the attack.

    Returns:
        Candidates, or None if fewer than two controls have a similar member.
    """
    client = federation.clients[place]
    rng = generator(seed, "candidates", client.name)
    unique = _without_twins(federation, client.vocabulary)[place]
    # Test graphs as controls, and training graphs to match; graphs with twins are excluded.
    controls, free = client.test[unique[client.test]], rng.permutation(client.train[unique[client.train]])
    sizes, classes = client.graphs.sizes, client.graphs.classes
    pairs = []
    for control in rng.permutation(controls):
        ratio = np.maximum(sizes[free], sizes[control]) / np.minimum(sizes[free], sizes[control])
        # Same class, and the nearest number of nodes; each training graph is used once.
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
    """Find the graphs of each client of a data set that have no twin in it, bool `[G]` by client index."""
    graphs_of = {
        place: client.graphs for place, client in enumerate(federation.clients) if client.vocabulary == vocabulary
    }
    groups = twin_groups(*graphs_of.values())
    alone = np.bincount(groups)[groups] == 1
    return dict(
        zip(graphs_of, np.split(alone, np.cumsum([len(graphs) for graphs in graphs_of.values()])[:-1]), strict=True)
    )
