"""Building blocks of graphs: the surroundings of a node to some depth, and what a network makes of them.

    level = labels_of([0, 3], embeddings)                               # depth 0: a block for each label
    candidates = grown(level, max_degree=4)
    readings = layer.readings(level, candidates)
    kept = layer.last.reads(readings)                                   # depth 1: those that the gradient admits

A block of depth d is a block of depth d - 1 for its centre, and one for each neighbour of it. The gradient of a linear layer is a
sum of outer products, one for each node that it reads, so that its rows span what it read: a block whose value lies outside of
that span is not in the graph.

Source: Drencheva et al. 2025 (GRAIN), sections 4.1 and 4.2, for GCN and GAT.
Differs: for GIN, whose layers are checked by the second of their two linear layers, since what the first reads spans no more than
the blocks one depth below. GRAIN has degrees among a node's features; here labels alone, and degrees are found. GRAIN's tolerance
is a constant; here an error is compared with what rounding of parameters explains.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

MAX_BLOCKS = 60_000  # candidates of one depth; more are not enumerated
FLOAT32_ERROR = 1e-7  # of a sum, as a share of it
ADMITTED = 1.5  # distance from the span, of those that noise explains; blocks that are there stay below 1

Candidate = tuple[int, tuple[int, ...]]


class TooManyBlocks(Exception):
    """More candidates than are enumerated."""


def rounding(parameter: Tensor, learning_rate: float) -> float:
    """Standard error of a gradient's entries that were read from the difference of two float32 parameters."""
    spacing = np.spacing(parameter.float().abs().numpy()).astype(np.float64)
    return float(np.sqrt((spacing**2).mean() / 12)) / learning_rate


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear layer, `[out, in]` and `[out]`, and its gradients, float64.

    Attributes:
        noise: standard error of the gradients' entries.
    """

    weight: Tensor
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor
    noise: float

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias

    def rank(self) -> int:
        """Dimensions that the rows of the gradient span, beyond noise."""
        return len(self._span()[0])

    def _span(self) -> tuple[Tensor, Tensor, float]:
        """An orthonormal basis `[r, in]` of the rows, singular values `[r]`, and the length of noise in a row."""
        _, sizes, basis = torch.linalg.svd(self.weight_gradient, full_matrices=False)
        length = self.noise * self.weight.shape[1] ** 0.5
        large = sizes > 3 * length
        return basis[large], sizes[large], length

    def reads(self, values: Tensor) -> Tensor:
        """Select the values `[k, in]` that the layer may have read: bool `[k]`, those in the span of the gradient's rows.

        A direction of the span is known the worse the smaller its singular value, by which the distance is measured.
        """
        basis, sizes, length = self._span()
        parts = values @ basis.T
        error = length * (parts / sizes).norm(dim=1)
        return (values - parts @ basis).norm(dim=1) < ADMITTED * error


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution of GIN: a linear layer of the sum over a node and its neighbours, ReLU, and the linear layer `last`."""

    first: Linear
    last: Linear

    def readings(self, level: Level, candidates: Sequence[Candidate]) -> Tensor:
        """Inputs of `last` at the centre of each candidate, float64 `[k, width]`."""
        summed = level.outputs[torch.tensor([centre for centre, _ in candidates], dtype=torch.int64)]
        row = np.repeat(np.arange(len(candidates)), [len(neighbours) for _, neighbours in candidates])
        around = [place for _, neighbours in candidates for place in neighbours]
        summed.index_add_(0, torch.from_numpy(row), level.outputs[torch.tensor(around, dtype=torch.int64)])
        return self.first(summed).relu()


@dataclass(frozen=True, eq=False)
class Level:
    """Blocks of one depth.

    Attributes:
        outputs: what the convolutions so far give at their centres, float64 `[k, width]`.
        labels: of their centres.
        classes: equal for blocks that the network cannot tell apart: GIN adds a node to its neighbours, and so does not see which
            of them is the centre.
        blocks: of depths from 1 on, each its centre and its neighbours, ascending, as blocks of the depth below.
    """

    outputs: Tensor
    labels: list[int]
    classes: list[int]
    blocks: list[Candidate] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)


def labels_of(labels: Sequence[int], embeddings: Tensor) -> Level:
    """Depth 0: a block for each label, with its embedding `[k, width]`."""
    return Level(embeddings, list(labels), list(range(len(labels))))


def grown(level: Level, max_degree: int) -> list[Candidate]:
    """All blocks of the next depth that those of this one can make up.

    Args:
        max_degree: of the centre, of blocks of depth 1; deeper ones have the degrees of those they are made of.

    Raises:
        TooManyBlocks: there are more than `MAX_BLOCKS`.
    """
    level_above = _around_blocks(level) if level.blocks else _around_labels(level, max_degree)
    candidates = list(itertools.islice(level_above, MAX_BLOCKS + 1))
    if len(candidates) > MAX_BLOCKS:
        raise TooManyBlocks
    return candidates


def _around_labels(level: Level, max_degree: int) -> Iterator[Candidate]:
    for centre, degree in itertools.product(range(len(level)), range(max_degree + 1)):
        for neighbours in itertools.combinations_with_replacement(range(len(level)), degree):
            yield centre, neighbours


def _around_blocks(level: Level) -> Iterator[Candidate]:
    """A neighbour must be what the centre sees there, and see there what the centre is."""
    fitting: dict[tuple[int, int], list[int]] = {}
    for place, (centre, neighbours) in enumerate(level.blocks):
        for neighbour in set(neighbours):
            fitting.setdefault((centre, neighbour), []).append(place)
    for place, (centre, neighbours) in enumerate(level.blocks):
        parts = [
            itertools.combinations_with_replacement(fitting.get((neighbour, centre), ()), count)
            for neighbour, count in Counter(neighbours).items()
        ]
        for chosen in itertools.product(*parts):
            yield place, tuple(sorted(itertools.chain(*chosen)))


def deeper(layer: Layer, level: Level, candidates: Sequence[Candidate], readings: Tensor) -> Level:
    """These candidates, with what the layer's last part reads at each, as the next depth."""
    numbers: dict[tuple[int, ...], int] = {}
    classes = []
    for centre, neighbours in candidates:
        key = tuple(sorted([level.classes[centre], *(level.classes[place] for place in neighbours)]))
        classes.append(numbers.setdefault(key, len(numbers)))
    labels = [level.labels[centre] for centre, _ in candidates]
    return Level(layer.last(readings).relu(), labels, classes, list(candidates))
