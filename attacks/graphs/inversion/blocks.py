"""Building blocks of graphs: the surroundings of a node to some depth, and their representation in a network.

    level = labels_of([0, 3], embeddings)                               # depth 0: a block for each label
    candidates = grown(level, max_degree=4)
    readings = layer.readings(level, candidates)
    admitted = layer.last.reads(readings)                               # depth 1: those that the gradient admits

A block of depth d consists of a block of depth d - 1 for its center, and one for each of its neighbors. The gradient of a
linear layer is a sum of outer products, one per node, so that its rows span the layer's inputs. A block whose value lies
outside of that span is not in the graph.

Source: Drencheva et al. 2025 (GRAIN), sections 4.1 and 4.2, for GCN and GAT. Differs: for GIN, whose layers are checked by the
second of their two linear layers, since the inputs of the first span no more than the blocks one depth below. GRAIN has degrees
among a node's features; here there are only labels, and degrees are inferred. GRAIN's tolerance is a constant; here an error is
compared with the rounding of parameters.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

# Largest number of candidates of one depth.
MAX_BLOCKS = 60_000
# Relative rounding error of a float32 sum.
FLOAT32_ERROR = 1e-7
# Largest distance from the span, relative to what noise explains; blocks of the graph stay below 1.
ADMITTED = 1.5

Candidate = tuple[int, tuple[int, ...]]


class TooManyBlocks(Exception):
    """More candidates than are enumerated."""


def rounding(parameter: Tensor, learning_rate: float) -> float:
    """Return the standard error of gradient entries computed from the difference of two float32 parameters.

    Args:
        learning_rate: of the step.
    """
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
        """Return the number of dimensions that the rows of the gradient span, beyond noise."""
        return len(self._span()[0])

    def _span(self) -> tuple[Tensor, Tensor, float]:
        """Return an orthonormal basis `[r, in]` of the rows, singular values `[r]`, and the length of noise in a row."""
        _, sizes, basis = torch.linalg.svd(self.weight_gradient, full_matrices=False)
        length = self.noise * self.weight.shape[1] ** 0.5
        # Singular values below three times the noise are indistinguishable from zero.
        large = sizes > 3 * length
        return basis[large], sizes[large], length

    def reads(self, values: Tensor) -> Tensor:
        """Test which values the layer may have read: those in the span of the gradient's rows.

        A direction of the span is less certain the smaller its singular value; the tolerance accounts for it.

        Args:
            values: candidate inputs, float64 `[k, in]`.

        Returns:
            bool `[k]`.
        """
        basis, sizes, length = self._span()
        parts = values @ basis.T
        error = length * (parts / sizes).norm(dim=1)
        # GRAIN section 4.1, span check: distance of a value from the row space, compared with the error of the basis.
        return (values - parts @ basis).norm(dim=1) < ADMITTED * error


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution of GIN: a linear layer of the sum over a node and its neighbors, ReLU, and the linear layer `last`."""

    first: Linear
    last: Linear

    def readings(self, level: Level, candidates: Sequence[Candidate]) -> Tensor:
        """Return the inputs of `last` at the center of each candidate, float64 `[k, width]`.

        Args:
            level: blocks of the depth below.
            candidates: center and neighbors of each, as indices of blocks.
        """
        summed = level.outputs[torch.tensor([center for center, _ in candidates], dtype=torch.int64)]
        row = np.repeat(np.arange(len(candidates)), [len(neighbours) for _, neighbours in candidates])
        around = [place for _, neighbours in candidates for place in neighbours]
        summed.index_add_(0, torch.from_numpy(row), level.outputs[torch.tensor(around, dtype=torch.int64)])
        return self.first(summed).relu()


@dataclass(frozen=True, eq=False)
class Level:
    """Blocks of one depth.

    Attributes:
        outputs: outputs of the convolutions so far at their centers, float64 `[k, width]`.
        labels: labels of their centers.
        classes: equal for blocks that the network cannot distinguish: GIN adds a node to its neighbors, and so does not see
            which of them is the center.
        blocks: for depths from 1 on, center and sorted neighbors of each, as indices of blocks of the depth below.
    """

    outputs: Tensor
    labels: list[int]
    classes: list[int]
    blocks: list[Candidate] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)


def labels_of(labels: Sequence[int], embeddings: Tensor) -> Level:
    """Build depth 0: a block for each label.

    Args:
        labels: labels of the blocks.
        embeddings: their embeddings, `[k, width]`.
    """
    return Level(embeddings, list(labels), list(range(len(labels))))


def grown(level: Level, max_degree: int) -> list[Candidate]:
    """Enumerate all blocks of the next depth that these blocks can form.

    Args:
        level: blocks of one depth.
        max_degree: largest degree of the center of blocks of depth 1; deeper blocks have the degrees of their parts.

    Raises:
        TooManyBlocks: there are more than `MAX_BLOCKS`.
    """
    level_above = _around_blocks(level) if level.blocks else _around_labels(level, max_degree)
    candidates = list(itertools.islice(level_above, MAX_BLOCKS + 1))
    if len(candidates) > MAX_BLOCKS:
        raise TooManyBlocks
    return candidates


def _around_labels(level: Level, max_degree: int) -> Iterator[Candidate]:
    for center, degree in itertools.product(range(len(level)), range(max_degree + 1)):
        for neighbours in itertools.combinations_with_replacement(range(len(level)), degree):
            yield center, neighbours


def _around_blocks(level: Level) -> Iterator[Candidate]:
    """Enumerate deeper blocks: a neighbor must match what the center sees, and see what the center is."""
    # Blocks by (center, neighbor): overlapping blocks must agree on the shared edge.
    fitting: dict[tuple[int, int], list[int]] = {}
    for place, (center, neighbours) in enumerate(level.blocks):
        for neighbour in set(neighbours):
            fitting.setdefault((center, neighbour), []).append(place)
    for place, (center, neighbours) in enumerate(level.blocks):
        parts = [
            itertools.combinations_with_replacement(fitting.get((neighbour, center), ()), count)
            for neighbour, count in Counter(neighbours).items()
        ]
        for chosen in itertools.product(*parts):
            yield place, tuple(sorted(itertools.chain(*chosen)))


def deeper(layer: Layer, level: Level, candidates: Sequence[Candidate], readings: Tensor) -> Level:
    """Build the next depth from admitted candidates.

    Args:
        layer: convolution of that depth.
        level: blocks of the depth below.
        candidates: center and neighbors of each, as indices of blocks.
        readings: inputs of the layer's last part at each, float64 `[k, width]`.
    """
    numbers: dict[tuple[int, ...], int] = {}
    classes = []
    for center, neighbours in candidates:
        # GIN sums a node and its neighbors: blocks with the same multiset are indistinguishable.
        key = tuple(sorted([level.classes[center], *(level.classes[place] for place in neighbours)]))
        classes.append(numbers.setdefault(key, len(numbers)))
    labels = [level.labels[center] for center, _ in candidates]
    return Level(layer.last(readings).relu(), labels, classes, list(candidates))
