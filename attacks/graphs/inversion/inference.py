"""Recover a graph from its gradient: labels, building blocks, their counts, and the graph that they compose.

    step = Step.between(broadcast, upload, settings.learning_rate, settings.weight_decay)
    inverted = invert(step, layers=2, auxiliary=auxiliary, rng=rng)
    inverted.neighbourhoods                          # labels of a node and its neighbors, for each that occurs
    inverted.graph                                   # labels and edges; None if no graph explains the gradient

For a single graph, more is known than the span of its blocks. The gradient of the layer behind the readout is an outer product
with the sum over nodes, and its bias gradient is the other factor. So the gradient of the last convolution is a sum of known
terms, one per node, and the number of occurrences of each block solves a linear system. It remains to decide which blocks are
neighbors. Wirings that agree are ranked by how frequent their rings are in auxiliary graphs.

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

# Searches for wirings of one graph.
SEARCHES = 40
# Weight of a ring that no auxiliary graph has.
RARE_RING = 0.01
# An entry of more than this many standard errors is not zero.
CERTAIN = 6
# Unknowns of the linear system; so many take some seconds.
MAX_CLASSES = 2_000
# Largest number of auxiliary graphs whose rings are counted.
RINGS_OF = 200

Neighbourhood = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Step:
    """A step of plain gradient descent.

    Attributes:
        parameters: parameters before the step by name, float64.
        gradients: gradients by name, float64.
        noise: standard error of each gradient's entries, by name.
    """

    parameters: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    noise: Mapping[str, float]

    @classmethod
    def between(
        cls, before: Mapping[str, Tensor], after: Mapping[str, Tensor], learning_rate: float, weight_decay: float
    ) -> Step:
        """Compute the gradient from the difference of two parameter sets, with the error from float32 rounding.

        Args:
            before: parameters that the client received, by name.
            after: parameters that it sent.
            learning_rate: of the step.
            weight_decay: of the step.
        """
        gradients, noise = {}, {}
        for name, parameter in before.items():
            # w' = w - rate * (gradient + decay * w).
            gradient = (parameter.double() - after[name].double()) / learning_rate
            gradients[name] = gradient - weight_decay * parameter.double()
            largest = gradients[name].reshape(len(parameter), -1).norm(dim=1).max()
            noise[name] = rounding(parameter, learning_rate) + FLOAT32_ERROR * float(largest)
        return cls({name: tensor.double() for name, tensor in before.items()}, gradients, noise)

    def linear(self, name: str) -> Linear:
        """Return the linear layer of that name."""
        weight, bias = f"{name}.weight", f"{name}.bias"
        return Linear(
            self.parameters[weight],
            self.parameters[bias],
            self.gradients[weight],
            self.gradients[bias],
            max(self.noise[weight], self.noise[bias]),
        )

    def layer(self, number: int) -> Layer:
        """Return a convolution of GIN by its number."""
        return Layer(self.linear(f"convs.{number}.nn.0"), self.linear(f"convs.{number}.nn.2"))


@dataclass(frozen=True)
class Inverted:
    """Neighborhoods and graph recovered from a gradient.

    Attributes:
        neighbourhoods: sorted labels of a node and its neighbors, of all nodes of all graphs in the step.
        graph: the graph, if there was one in the step; None if none was found.
    """

    neighbourhoods: frozenset[Neighbourhood]
    graph: LabelledGraph | None = None


def invert(step: Step, layers: int, auxiliary: GraphSet, rng: np.random.Generator, *, whole: bool = True) -> Inverted:
    """Recover what a step trained on.

    Args:
        step: the gradient.
        layers: number of convolutions.
        auxiliary: graphs of the same vocabulary; they bound the degrees and show which rings are frequent.
        rng: draws the order of searches.
        whole: True if the step was over one graph without dropout, so that the graph itself can be recovered.
    """
    pre, max_degree = step.linear("pre"), int(auxiliary.degrees.max())
    # Step 1, labels: a label that no node has gives its column of the input layer no gradient.
    present = pre.weight_gradient.abs().amax(dim=0) > CERTAIN * pre.noise
    labels = torch.nonzero(present).flatten().tolist()
    level = labels_of(labels, pre.weight.T[labels] + pre.bias)
    if not labels:
        return Inverted(frozenset())
    try:
        # Step 2, blocks (GRAIN section 4.1): keep candidates in the span of the convolution's gradient.
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
        return Inverted(graphs, _assembled(step, step.layer(layers - 1), level, auxiliary, rng))
    except TooManyBlocks:
        return Inverted(graphs)


def _admitted(layer: Layer, level: Level, max_degree: int) -> Level:
    """Return the blocks of the next depth that the gradient admits."""
    candidates = grown(level, max_degree)
    if not candidates:
        raise TooManyBlocks
    readings = layer.readings(level, candidates)
    admitted = torch.nonzero(layer.last.reads(readings)).flatten()
    return deeper(layer, level, [candidates[place] for place in admitted.tolist()], readings[admitted])


def _assembled(
    step: Step, layer: Layer, level: Level, auxiliary: GraphSet, rng: np.random.Generator
) -> LabelledGraph | None:
    """Return the likeliest graph of the deepest blocks, None if none is found."""
    candidates = grown(level, int(auxiliary.degrees.max()))
    system = _System.of(step, layer, level, candidates)
    if system is None:
        return None
    known_rings: Counter[int] = Counter()
    for number in range(min(len(auxiliary), RINGS_OF)):
        edges = [(node, other) for node, other in auxiliary.edges(number).tolist() if node < other]
        known_rings.update(_ring_lengths(_network(edges)))
    # Share of each ring length in auxiliary graphs.
    rings = {length: count / known_rings.total() for length, count in known_rings.items()}
    for counts in block_counts(system.columns, system.classes, system.balance, system.observed, system.noise, rng):
        kinds: dict[int, list[Kind]] = {}
        for (center, neighbours), number in zip(system.candidates, system.classes.tolist(), strict=True):
            if counts[number]:
                kinds.setdefault(number, []).append(Kind(level.labels[center], center, neighbours))
        left = {number: int(count) for number, count in enumerate(counts) if count}
        wirings = Wirings(kinds, left, lambda size: rings.get(size, RARE_RING), rng).search(SEARCHES)
        distinct: dict[str, tuple[tuple[int, float], LabelledGraph]] = {}
        for wiring in wirings:
            graph = _network(wiring.edges, wiring.labels)
            lengths = sorted(_ring_lengths(graph))
            # Equal for isomorphic graphs.
            shape = nx.weisfeiler_lehman_graph_hash(graph, node_attr="label", iterations=6)
            likelihood = float(sum(np.log(rings.get(length, RARE_RING)) for length in lengths))
            # Fewer components first, then frequent rings.
            rank = -nx.number_connected_components(graph), likelihood
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
        """Build the system from candidates whose active units are active at some node; None if the gradient is too small."""
        post, last = step.linear("post"), layer.last
        behind = post.bias_gradient
        if not candidates or float(behind.norm()) < CERTAIN * post.noise * len(behind) ** 0.5:
            return None
        # dL/dW_post = behind x pooled^T and dL/db_post = behind, so that pooled = behind^T dL/dW_post / |behind|^2.
        pooled = (behind @ post.weight_gradient) / behind.square().sum()
        # Derivative of the loss by the sum over nodes.
        signal = behind @ post.weight
        readings = layer.readings(level, candidates)
        active = last(readings) > 0
        weak = signal.abs() < 1e-3 * signal.abs().max()
        # A unit with signal but without bias gradient was inactive at every node.
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
        # One node contributes signal x reading^T to dL/dW_last, signal to dL/db_last, and its output to the pooled sum.
        products = (active_signal[:, :, None] * readings[shown][:, None, :]).flatten(start_dim=1)
        columns = torch.cat([products, active_signal, grown_level.outputs[shown]], dim=1).T.numpy()
        observed = torch.cat([last.weight_gradient.flatten(), last.bias_gradient, pooled]).numpy()
        chosen = [candidates[place] for place in places]
        return cls(chosen, columns, classes, _balance(chosen), observed, _noise(post, last, pooled))


def _noise(post: Linear, last: Linear, pooled: Tensor) -> np.ndarray:
    """Return standard errors of the observations, including those of the signal in the columns."""
    width = len(pooled)
    relative = post.noise * width**0.5 / float(post.bias_gradient.norm())
    entries = last.noise + relative * float(last.weight_gradient.square().mean().sqrt())
    units = last.noise + relative * float(last.bias_gradient.square().mean().sqrt())
    sums = post.noise / float(post.bias_gradient.norm()) * (1 + float(pooled.abs().max()))
    sums += 3 * FLOAT32_ERROR * float(pooled.abs().max())
    return np.concatenate([np.full(width * width, entries), np.full(width, units), np.full(width, sums)])


def _balance(candidates: list) -> np.ndarray:
    """Return one row per pair of blocks: nodes of the first that see the second, minus nodes of the second that see the first."""
    rows: dict[tuple[int, int], np.ndarray] = {}
    for column, (center, neighbours) in enumerate(candidates):
        for neighbour in neighbours:
            if neighbour != center:
                pair = (min(center, neighbour), max(center, neighbour))
                row = rows.setdefault(pair, np.zeros(len(candidates)))
                row[column] += 1 if center < neighbour else -1
    return np.array(list(rows.values())).reshape(len(rows), len(candidates))


def _network(edges: Sequence[tuple[int, int]], labels: Sequence[int] = ()) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from((node, {"label": str(label)}) for node, label in enumerate(labels))
    graph.add_edges_from(edges)
    return graph


def _ring_lengths(graph: nx.Graph) -> list[int]:
    """Return the lengths of the shortest independent cycles."""
    return [len(ring) for ring in nx.minimum_cycle_basis(graph)]
