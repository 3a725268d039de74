"""A graph from its gradient: labels, building blocks, how often each occurs, and the graph that they make up.

    step = Step.between(broadcast, upload, settings.learning_rate, settings.weight_decay)
    found = invert(step, layers=2, known=auxiliary, rng=rng)
    found.neighbourhoods                             # labels of a node and its neighbours, for each that occurs
    found.graph                                      # labels and edges; None where no graph explains the gradient

Of a single graph more is known than the span of its blocks: the gradient of the layer behind the readout is an outer product with
the sum over nodes, and its bias' gradient is the other factor. So the gradient of the last convolution is a sum with known terms,
one for each node, and how often each block occurs is the solution of a linear system. Which blocks are neighbours of which is
left: wirings that agree are told apart by the rings that are frequent in graphs known to the adversary.

Source: Drencheva et al. 2025 (GRAIN) for blocks; counting them and the choice by rings are ours. GRAIN joins blocks depth-first
and compares whole gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.graphs.inversion.assembly import Kind, Wirings, block_counts
from fkgsec.attacks.graphs.inversion.blocks import (
    FLOAT32_ERROR,
    Layer,
    Level,
    Linear,
    TooManyBlocks,
    deeper,
    grown,
    labels_of,
    rounding,
)
from fkgsec.attacks.graphs.inversion.similarity import LabelledGraph
from fkgsec.graphs.sets import GraphSet

SEARCHES = 40  # for wirings of one graph
RARE_RING = 0.01  # weight of a ring that no known graph has
CERTAIN = 6  # standard errors from which on an entry is not zero
MAX_CLASSES = 2_000  # unknowns of the system, for which it takes some seconds
RINGS_OF = 200  # known graphs whose rings are counted, at most

Neighbourhood = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Step:
    """A step of plain gradient descent: parameters before it and gradients, by name, float64."""

    parameters: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    noise: Mapping[str, float]

    @classmethod
    def between(
        cls, before: Mapping[str, Tensor], after: Mapping[str, Tensor], learning_rate: float, weight_decay: float
    ) -> Step:
        """From what a client received and what it sent, float32, with the error that their rounding makes in a gradient."""
        gradients, noise = {}, {}
        for name, parameter in before.items():
            gradient = (parameter.double() - after[name].double()) / learning_rate
            gradients[name] = gradient - weight_decay * parameter.double()
            largest = gradients[name].reshape(len(parameter), -1).norm(dim=1).max()
            noise[name] = rounding(parameter, learning_rate) + FLOAT32_ERROR * float(largest)
        return cls({name: tensor.double() for name, tensor in before.items()}, gradients, noise)

    def linear(self, name: str) -> Linear:
        """The linear layer of that name."""
        weight, bias = f"{name}.weight", f"{name}.bias"
        return Linear(
            self.parameters[weight],
            self.parameters[bias],
            self.gradients[weight],
            self.gradients[bias],
            max(self.noise[weight], self.noise[bias]),
        )

    def layer(self, number: int) -> Layer:
        """A convolution of GIN."""
        return Layer(self.linear(f"convs.{number}.nn.0"), self.linear(f"convs.{number}.nn.2"))


@dataclass(frozen=True)
class Inverted:
    """Neighbourhoods and graph recovered from a gradient.

    Attributes:
        neighbourhoods: ascending labels of a node and its neighbours, of all nodes of all graphs in the step.
        graph: the graph, where there was one in the step; None where none was found.
    """

    neighbourhoods: frozenset[Neighbourhood]
    graph: LabelledGraph | None = None


def invert(step: Step, layers: int, known: GraphSet, rng: np.random.Generator, *, whole: bool = True) -> Inverted:
    """Recover what a step trained on.

    Args:
        layers: convolutions. known: graphs of the same vocabulary, which say how large degrees get and which rings are frequent.
        whole: whether the step was over one graph without dropout, so that the graph itself can be asked for.
    """
    pre, max_degree = step.linear("pre"), int(known.degrees.max())
    present = pre.weight_gradient.abs().amax(dim=0) > CERTAIN * pre.noise
    labels = torch.nonzero(present).flatten().tolist()
    level = labels_of(labels, pre.weight.T[labels] + pre.bias)
    if not labels:
        return Inverted(frozenset())
    try:
        first = _admitted(step.layer(0), level, max_degree)
    except TooManyBlocks:
        return Inverted(frozenset())
    graphs = frozenset(
        tuple(sorted([label, *(level.labels[place] for place in neighbours)]))
        for label, (_, neighbours) in zip(first.labels, first.blocks, strict=True)
    )
    if not whole:
        return Inverted(graphs)
    try:
        level = level if layers == 1 else first
        for number in range(1, layers - 1):
            level = _admitted(step.layer(number), level, max_degree)
        return Inverted(graphs, _assembled(step, step.layer(layers - 1), level, known, rng))
    except TooManyBlocks:
        return Inverted(graphs)


def _admitted(layer: Layer, level: Level, max_degree: int) -> Level:
    """The blocks of the next depth that the gradient admits."""
    candidates = grown(level, max_degree)
    if not candidates:
        raise TooManyBlocks
    readings = layer.readings(level, candidates)
    admitted = torch.nonzero(layer.last.reads(readings)).flatten()
    return deeper(layer, level, [candidates[place] for place in admitted.tolist()], readings[admitted])


def _assembled(
    step: Step, layer: Layer, level: Level, auxiliary: GraphSet, rng: np.random.Generator
) -> LabelledGraph | None:
    """The likeliest graph of the deepest blocks, None if none is found."""
    candidates = grown(level, int(auxiliary.degrees.max()))
    system = _System.of(step, layer, level, candidates)
    if system is None:
        return None
    known_rings: Counter[int] = Counter()
    for number in range(min(len(auxiliary), RINGS_OF)):
        edges = [(node, other) for node, other in auxiliary.edges(number).tolist() if node < other]
        known_rings.update(_ring_lengths(_network(edges)))
    rings = {length: count / known_rings.total() for length, count in known_rings.items()}  # shares of each length
    for counts in block_counts(system.columns, system.classes, system.balance, system.observed, system.noise, rng):
        kinds: dict[int, list[Kind]] = {}
        for (centre, neighbours), number in zip(system.candidates, system.classes.tolist(), strict=True):
            if counts[number]:
                kinds.setdefault(number, []).append(Kind(level.labels[centre], centre, neighbours))
        left = {number: int(count) for number, count in enumerate(counts) if count}
        wirings = Wirings(kinds, left, lambda size: rings.get(size, RARE_RING), rng).found(SEARCHES)
        distinct: dict[str, tuple[tuple[int, float], LabelledGraph]] = {}
        for wiring in wirings:
            graph = _network(wiring.edges, wiring.labels)
            lengths = sorted(_ring_lengths(graph))
            shape = nx.weisfeiler_lehman_graph_hash(
                graph, node_attr="label", iterations=6
            )  # equal for isomorphic graphs
            likelihood = float(sum(np.log(rings.get(length, RARE_RING)) for length in lengths))
            rank = -nx.number_connected_components(graph), likelihood  # fewer components first, then frequent rings
            distinct.setdefault(f"{shape}:{'-'.join(map(str, lengths))}", (rank, wiring))
        if distinct:
            return max(distinct.values(), key=lambda candidate: candidate[0])[1]
    return None


@dataclass(frozen=True, eq=False)
class _System:
    """The linear system of `block_counts`."""

    candidates: list[tuple[int, tuple[int, ...]]]
    columns: np.ndarray
    classes: np.ndarray
    balance: np.ndarray
    observed: np.ndarray
    noise: np.ndarray

    @classmethod
    def of(cls, step: Step, layer: Layer, level: Level, candidates: list) -> _System | None:
        """Take the candidates whose units are among those that some node had active; None where the gradient is too small."""
        post, last = step.linear("post"), layer.last
        behind = post.bias_gradient
        if not candidates or float(behind.norm()) < CERTAIN * post.noise * len(behind) ** 0.5:
            return None
        pooled = (behind @ post.weight_gradient) / behind.square().sum()
        signal = behind @ post.weight  # d loss / d (sum over nodes)
        readings = layer.readings(level, candidates)
        active = last(readings) > 0
        weak = signal.abs() < 1e-3 * signal.abs().max()
        silent = (last.bias_gradient.abs() < 0.3 * signal.abs()) & ~weak
        places = torch.nonzero(~(active & silent).any(dim=1)).flatten().tolist()
        if not places:
            return None
        grown_level = deeper(layer, level, candidates, readings)
        _, first, classes = np.unique(
            [grown_level.classes[place] for place in places], return_index=True, return_inverse=True
        )
        if len(first) > MAX_CLASSES:
            raise TooManyBlocks
        shown = [places[place] for place in first.tolist()]
        active_signal = active[shown] * signal
        products = (active_signal[:, :, None] * readings[shown][:, None, :]).flatten(start_dim=1)
        columns = torch.cat([products, active_signal, grown_level.outputs[shown]], dim=1).T.numpy()
        observed = torch.cat([last.weight_gradient.flatten(), last.bias_gradient, pooled]).numpy()
        chosen = [candidates[place] for place in places]
        return cls(chosen, columns, classes, _balance(chosen), observed, _noise(post, last, pooled))


def _noise(post: Linear, last: Linear, pooled: Tensor) -> np.ndarray:
    """Standard errors of what is observed, with those of the signal that the columns are made with."""
    width = len(pooled)
    relative = post.noise * width**0.5 / float(post.bias_gradient.norm())
    entries = last.noise + relative * float(last.weight_gradient.square().mean().sqrt())
    units = last.noise + relative * float(last.bias_gradient.square().mean().sqrt())
    sums = post.noise / float(post.bias_gradient.norm()) * (1 + float(pooled.abs().max()))
    sums += 3 * FLOAT32_ERROR * float(pooled.abs().max())
    return np.concatenate([np.full(width * width, entries), np.full(width, units), np.full(width, sums)])


def _balance(candidates: list) -> np.ndarray:
    """A row for each two blocks: nodes that are one and see the other, less nodes that are the other and see the one."""
    rows: dict[tuple[int, int], np.ndarray] = {}
    for column, (centre, neighbours) in enumerate(candidates):
        for neighbour in neighbours:
            if neighbour != centre:
                pair = (min(centre, neighbour), max(centre, neighbour))
                row = rows.setdefault(pair, np.zeros(len(candidates)))
                row[column] += 1 if centre < neighbour else -1
    return np.array(list(rows.values())).reshape(len(rows), len(candidates))


def _network(edges: Sequence[tuple[int, int]], labels: Sequence[int] = ()) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from((node, {"label": str(label)}) for node, label in enumerate(labels))
    graph.add_edges_from(edges)
    return graph


def _ring_lengths(graph: nx.Graph) -> list[int]:
    """Lengths of the shortest independent cycles."""
    return [len(ring) for ring in nx.minimum_cycle_basis(graph)]
