"""A membership attack from uploads, as a package outside fkgsec would ship it: linked rows lie nearer to each other.

With the entry point `shapes = "shapes_attack:SHAPES"` in group `fkgsec.attacks` nothing else is needed.
"""

import numpy as np

from fkgsec import ATTACKS, Attack, Figure, Laboratory, Needs, Truth, View


def run(view: View, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """For each victim the closeness of every pair of its uploaded rows `[n, n]`."""
    claims = {}
    for victim in view.victims:
        rows = victim.entities.numpy()
        claims[victim.name] = -np.abs(rows[:, None] - rows[None]).sum(axis=2)
    return claims


def score(claims: dict[str, np.ndarray], truth: Truth) -> list[Figure]:
    """AUC of trained pairs against as many random ones that are not linked."""
    figures = []
    for victim, closeness in claims.items():
        linked = np.unique(truth.client(victim).train[:, [0, 2]], axis=0)
        free = np.ones(closeness.shape, dtype=bool)
        np.fill_diagonal(free, False)
        free[linked[:, 0], linked[:, 1]] = False
        others = truth.rng.permutation(closeness[free])[: len(linked)]
        figures += truth.membership(victim, closeness[linked[:, 0], linked[:, 1]], others)
    return figures


ABOUT = "tells linked pairs of uploaded rows by how near they lie"
SHAPES = Attack("shapes", ABOUT, Needs(single_uploads=("entities",)), {"auc": "AUC of linked pairs"}, run, score)


def install() -> None:
    ATTACKS.register("shapes", SHAPES)
