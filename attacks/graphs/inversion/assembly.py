"""From building blocks to graphs: count each block, then find a wiring in which each node has its surroundings.

    for counts in block_counts(columns, classes, balance, observed, noise, rng):     # by class, int64 [c]
        for wiring in Wirings(kinds, counts, rings, rng).search(20): ...         # LabelledGraph

A network of L convolutions gives equal gradients for graphs whose nodes have equal surroundings to depth L. If more than one
wiring remains, a gradient cannot distinguish them, and the rings of auxiliary graphs show which one is likely.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog, nnls

from fkgsec.attacks.graphs.inversion.similarity import LabelledGraph

CORNERS = 12
# Steps of one search for a wiring.
STEPS = 3_000


def block_counts(
    columns: np.ndarray,
    classes: np.ndarray,
    balance: np.ndarray,
    observed: np.ndarray,
    noise: np.ndarray,
    rng: np.random.Generator,
) -> Iterator[np.ndarray]:
    """Count the blocks of each class, int64 `[c]`: integers whose sum of columns matches the observation.

    The least-squares solution comes first. Where classes differ by less than noise, several sums agree. Then follow corners of
    the set of all nonnegative solutions that give every edge two ends, in random directions; most of these are integers.

    Args:
        columns: contribution of one node of each class, `[n, c]`.
        classes: class of each block, int64 `[k]`.
        balance: rows whose sum over all nodes is zero, `[e, k]`.
        observed: observed sums, `[n]`.
        noise: standard errors of the observation, `[n]`.
        rng: draws directions.
    """
    columns, observed = columns / noise[:, None], observed / noise
    tried: set[bytes] = set()
    # Counts are nonnegative, so least squares is constrained.
    solutions = itertools.chain([nnls(columns, observed)[0]], _corners(columns, classes, balance, observed, rng))
    for solution in solutions:
        counts = np.round(solution).astype(np.int64)
        if counts.tobytes() in tried:
            continue
        tried.add(counts.tobytes())
        # Accept residuals of about the size of the noise.
        if np.linalg.norm(columns @ counts - observed) < 5 * len(observed) ** 0.5:
            yield counts


def _corners(
    columns: np.ndarray, classes: np.ndarray, balance: np.ndarray, observed: np.ndarray, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Solve linear programs over blocks, of which several may have one class."""
    left, sizes, right = np.linalg.svd(columns, full_matrices=False)
    # Smaller singular values are dominated by noise.
    large = sizes > 30
    rows, seen = right[large][:, classes], (left.T @ observed)[large] / sizes[large]
    spread = np.minimum(6 / sizes[large] + 1e-6, 0.2)
    for _ in range(CORNERS):
        solution = linprog(
            rng.random(len(classes)),
            A_ub=np.concatenate([rows, -rows]),
            b_ub=np.concatenate([seen + spread, spread - seen]),
            A_eq=balance,
            b_eq=np.zeros(len(balance)),
        )
        if solution.x is None:
            return
        yield np.bincount(classes, solution.x, minlength=columns.shape[1])


class Kind(NamedTuple):
    """A way to be a node of a class.

    Attributes:
        label: label of the node.
        seen_as: block as which its neighbors see it.
        needs: blocks as which it sees its neighbors.
    """

    label: int
    seen_as: int
    needs: tuple[int, ...]


@dataclass(eq=False)
class _Node:
    kind: Kind
    missing: list[int]
    joined: list[int] = field(default_factory=list)


class Wirings:
    """Graphs with a given number of nodes of each class, each with the neighbors that its kind needs.

    A search is depth-first, node after node in the order of their addition. It tries its choices in a random order, in which
    frequent rings are likely to come first, and stops after `STEPS`.

    Args:
        kinds: kinds of nodes by class.
        counts: number of nodes by class.
        ring_weight: weight of a ring with that many nodes.
        rng: draws the order of choices.
    """

    def __init__(
        self,
        kinds: Mapping[int, Sequence[Kind]],
        counts: Mapping[int, int],
        ring_weight: Callable[[int], float],
        rng: np.random.Generator,
    ) -> None:
        self.kinds, self.ring_weight, self.rng = kinds, ring_weight, rng
        self.counts = dict(counts)
        self.steps = 0
        self.nodes: list[_Node] = []

    def search(self, searches: int) -> Iterator[LabelledGraph]:
        """Yield the first wiring of each search that finds one; graphs may repeat."""
        for _ in range(searches):
            self.steps, counts = STEPS, dict(self.counts)
            wiring = next(self._completed(), None)
            self.counts, self.nodes = counts, []
            if wiring is not None:
                yield wiring

    def _completed(self) -> Iterator[LabelledGraph]:
        self.steps -= 1
        if self.steps < 0:
            return
        place = next((number for number, node in enumerate(self.nodes) if node.missing), None)
        if place is not None:
            yield from self._with_neighbour(place)
        elif any(self.counts.values()):
            # All that was begun is whole: another component, which some node of the rarest class left is in.
            number = min(
                (number for number, count in self.counts.items() if count), key=lambda number: self.counts[number]
            )
            kinds = self.kinds[number]
            for place in self.rng.permutation(len(kinds)):
                yield from self._added(number, kinds[place], None)
        else:
            edges = [(place, other) for place, node in enumerate(self.nodes) for other in node.joined if place < other]
            yield LabelledGraph(tuple(node.kind.label for node in self.nodes), tuple(edges))

    def _with_neighbour(self, place: int) -> Iterator[LabelledGraph]:
        """Give a node its first missing neighbor: an existing node or a new one."""
        node = self.nodes[place]
        wanted, own_label = node.missing[0], node.kind.seen_as
        # Distance in edges to each reachable node, by breadth-first search: closing an edge makes a ring of that length
        # plus one.
        distances, frontier = {place: 0}, [place]
        for near in frontier:
            for other in self.nodes[near].joined:
                if other not in distances:
                    distances[other] = distances[near] + 1
                    frontier.append(other)
        closing = [
            other
            for other in range(place + 1, len(self.nodes))
            if other not in node.joined
            and self.nodes[other].kind.seen_as == wanted
            and own_label in self.nodes[other].missing
        ]
        adding = [
            (number, kind)
            for number, count in self.counts.items()
            for kind in (self.kinds[number] if count else ())
            if kind.seen_as == wanted and own_label in kind.needs
        ]
        choices: list[tuple[float, int | tuple[int, Kind]]] = [
            (self.ring_weight(distances[other] + 1) if other in distances else 1.0, other) for other in closing
        ]
        choices += [(1.0 * self.counts[number], (number, kind)) for number, kind in adding]
        # The order of draws without replacement, by weight: an exponential race.
        race = self.rng.exponential(size=len(choices)) / np.array([weight for weight, _ in choices])
        for rank in np.argsort(race, kind="stable").tolist():
            chosen = choices[rank][1]
            if isinstance(chosen, int):
                yield from self._joined(place, chosen)
            else:
                number, kind = chosen
                yield from self._added(number, kind, place)

    def _joined(self, place: int, other: int) -> Iterator[LabelledGraph]:
        node, there = self.nodes[place], self.nodes[other]
        before = list(node.missing), list(there.missing)
        node.missing.remove(there.kind.seen_as)
        there.missing.remove(node.kind.seen_as)
        node.joined.append(other)
        there.joined.append(place)
        yield from self._completed()
        node.joined.pop()
        there.joined.pop()
        node.missing, there.missing = before

    def _added(self, number: int, kind: Kind, place: int | None) -> Iterator[LabelledGraph]:
        self.counts[number] -= 1
        self.nodes.append(_Node(kind, list(kind.needs)))
        yield from self._completed() if place is None else self._joined(place, len(self.nodes) - 1)
        self.nodes.pop()
        self.counts[number] += 1
