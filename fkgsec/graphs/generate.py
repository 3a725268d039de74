"""Generated graphs whose class depends on a motif: molecules and social circles, so that everything runs without data.

    molecules, circles, others = generate_motifs(seed=0)       # a data set for each client

Each client has a different kind of data set, as in the cross-dataset settings: molecules with different atom vocabularies, or
circles of friends without labels. Within a data set both classes have the same average size and number of edges and atoms: only
the motif distinguishes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fkgsec.errors import SpecError
from fkgsec.graphs.sets import GraphSet
from fkgsec.randomness import generator

MOTIFS = "motifs"
DEFAULT_CLIENTS = 4
DEFAULT_SIZE = 800
SMALLEST_SET = 40
MOST_CLIENTS = 1_000
LARGEST_SIZE = 1_000_000  # graphs: minutes and gigabytes to draw
CARBON, OXYGEN = 0, 1
MAX_FRIENDS = 40
Drawn: TypeAlias = tuple[list[tuple[int, int]], list[int]]
"""One graph: undirected edges `[m, 2]`, the label of each node `[n]`."""


def generate_motifs(seed: int, clients: int = DEFAULT_CLIENTS, size: int = DEFAULT_SIZE) -> list[GraphSet]:
    """Generate one data set per client: every third has social circles, the others molecules with 4 to 8 kinds of
    atoms.

    Args:
        seed: of the generator.
        clients: number of data sets.
        size: total number of graphs, divided evenly; half of each data set is of either class.

    Raises:
        SpecError: fewer than 40 graphs per client, or too many.
    """
    if not 1 <= clients <= MOST_CLIENTS:
        raise SpecError(f"clients must lie in 1..{MOST_CLIENTS:,}; got {clients}")
    if size < SMALLEST_SET * clients:
        raise SpecError(f"size must be at least {SMALLEST_SET} graphs for each of {clients} clients; got {size}")
    if size > LARGEST_SIZE:
        raise SpecError(f"size must be at most {LARGEST_SIZE:,} graphs; got {size}")
    sets = []
    for client in range(clients):
        rng = generator(seed, "generated graphs", client)
        count = size // clients + (client < size % clients)
        if client % 3 == 2:
            sets.append(_set(f"circles-{client + 1}", count, rng, _circles, 0))
        else:
            sets.append(_set(f"molecules-{client + 1}", count, rng, _molecule, 4 + client % 5))
    return sets


def _set(
    name: str,
    count: int,
    rng: np.random.Generator,
    draw: Callable[[np.random.Generator, bool, int], Drawn],
    num_atoms: int,
) -> GraphSet:
    """Generate a data set; `num_atoms` 0: without labels."""
    # Half of the graphs of either class, in random order.
    classes = rng.permutation(np.arange(count) % 2)
    drawn = [draw(rng, bool(label), num_atoms) for label in classes]
    sizes = np.array([len(labels) for _, labels in drawn])
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    edges = np.concatenate(
        [np.array(graph_edges) + start for (graph_edges, _), start in zip(drawn, first, strict=True)]
    )
    return GraphSet.from_edges(
        name,
        sizes,
        np.concatenate([edges, edges[:, ::-1]]),
        classes,
        np.concatenate([labels for _, labels in drawn]) if num_atoms else None,
        num_classes=2,
        num_labels=(num_atoms,) if num_atoms else (),
        max_degree=None if num_atoms else MAX_FRIENDS,
    )


def _molecule(rng: np.random.Generator, motif: bool, num_atoms: int) -> Drawn:
    """Draw a branched chain of atoms and two rings of six. With the motif, two oxygens are opposite in a ring, else
    adjacent.
    """
    # Carbons, and rarer atoms other than oxygen.
    drawn = rng.geometric(0.5, size=rng.integers(6, 15)) - 1
    labels = np.where(drawn, np.minimum(drawn + OXYGEN, num_atoms - 1), CARBON).tolist()
    edges: list[tuple[int, int]] = []
    degree = [0] * len(labels)
    for atom in range(1, len(labels)):
        # Attach to a recent atom with a free bond, so that chains branch like molecules.
        free = [other for other in range(max(0, atom - 4), atom) if degree[other] < 3]
        other = int(rng.choice(free)) if free else atom - 1
        edges.append((other, atom))
        degree[other] += 1
        degree[atom] += 1
    # Two rings, one with oxygens: both classes have the same atoms and bonds.
    for marked in (True, False):
        ring = list(range(len(labels), len(labels) + 6))
        apart = 3 if motif else 1
        oxygens = {0, apart} if marked else set()
        labels += [OXYGEN if place in oxygens else CARBON for place in range(6)]
        edges += [(ring[place], ring[(place + 1) % 6]) for place in range(6)]
        edges.append((int(rng.integers(ring[0])), ring[2]))
    return edges, labels


def _circles(rng: np.random.Generator, motif: bool, num_atoms: int) -> Drawn:
    """Draw a person and 12 to 24 friends: with the motif two dense circles of half the size, else one sparser circle.

    Both have the same expected number of friendships.
    """
    friends = int(rng.integers(12, 25))
    # Two circles of equal size; without the motif they only set the expected density.
    circle = rng.permutation(np.arange(friends) % 2)
    pairs = [(left, right) for left in range(friends) for right in range(left)]
    edges = [(0, friend + 1) for friend in range(friends)]
    within = np.mean([circle[left] == circle[right] for left, right in pairs])
    for left, right in pairs:
        # Without the motif, all pairs share the edges that the two circles would have.
        chance = (0.8 if circle[left] == circle[right] else 0.0) if motif else 0.8 * within
        if rng.random() < chance:
            edges.append((left + 1, right + 1))
    return edges, [0] * (friends + 1)
