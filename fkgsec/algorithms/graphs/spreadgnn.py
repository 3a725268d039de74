"""SpreadGNN: no server; each client averages its network with its neighbors', and regularizes its last layer by theirs.

Clients form a ring, each with `neighbours` others on either side. After every `period` rounds each client sends its convolutions,
the layer after the readout and its last layer to its neighbors. It takes the mean of theirs and its own, except for the last
layer. The last layer has a row for each class of the client's task; it is trained with the multi-task term

    task_reg / 2 tr(Phi^T Omega^-1 Phi),   Omega = (Phi Phi^T)^(1/2) / tr (Phi Phi^T)^(1/2)

where Phi has the rows of the client's last layer and of those that its neighbors sent last. Omega describes how tasks
relate. With the optimal Omega the term is half the squared nuclear norm of Phi, whose gradient is |Phi|_* U V^T for Phi
= U S V^T.

Source: He et al. 2022, and its code. Differs: a client has one task of several classes, not labels of several binary
tasks. In the code the term has no effect, since it is computed from detached weights. The code's means include the last
layer, since the name of the excluded layer does not match, and exclude the client's own parameters. Means are
unweighted, as in the paper; the code weights by training items. Clients do not share Omega; in the paper neighbors
align it. Rows are sent through a relay (`fkgsec.exchange.tensors.peers`); bytes down are those that peers would send.
cefgl.txt, which uses it as a baseline, does not say how it was adapted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fkgsec.exchange import Holding, Received
from fkgsec.gnn.layout import Layout
from fkgsec.gnn.models import ENCODER
from fkgsec.gnn.training import Crossing, GraphRule

if TYPE_CHECKING:
    from fkgsec.gnn.training import ClientTrainer

HEAD = "head.weight"
NEIGHBOUR = "neighbour."


def neighbours_of(place: int, count: int, either_side: int) -> list[int]:
    """Return the nearest other clients in a ring.

    Args:
        place: index of the client.
        count: number of clients.
        either_side: number of neighbors on either side.

    >>> neighbours_of(0, 5, 1), neighbours_of(0, 3, 2)
    ([1, 4], [1, 2])
    """
    # In a small ring both directions reach the same clients; each counts once.
    steps = range(1, min(either_side, count // 2) + 1)
    near = {(place + side * step) % count for side in (-1, 1) for step in steps}
    return sorted(near - {place})


class NeighboursCrossing(Crossing):
    """Exchange in which a client uploads rows under its own name and receives its neighbors'."""

    def __init__(self, trainers: Sequence[ClientTrainer], rule: GraphRule, first: Mapping[str, Tensor]) -> None:
        super().__init__(trainers, rule, first)
        either_side = trainers[0].options.settings.neighbours
        self.neighbours = [neighbours_of(place, len(trainers), either_side) for place in range(len(trainers))]
        self.own = [Layout.of(self._tensors(place), self.layout.width) for place in range(len(trainers))]

    def _tensors(self, place: int) -> dict[str, Tensor]:
        """Return the tensors that a client sends: averaged parameters and its last layer."""
        trainer = self.trainers[place]
        return {**trainer.shared, HEAD: trainer.model.get_parameter(HEAD)}

    def _names(self, place: int) -> list[str]:
        return [f"{self.trainers[place].client.name}:{name}" for name in self.own[place].names]

    def holdings(self, weights: Sequence[int]) -> list[Holding]:
        names = [self._names(place) for place in range(len(self.trainers))]
        return [
            Holding(row_names + [name for other in self.neighbours[place] for name in names[other]], len(row_names))
            for place, row_names in enumerate(names)
        ]

    def first_rows(self, names: Sequence[str]) -> Tensor:
        # Return the initial shared parameters; last layers are zeros.
        rows = {}
        for place, layout in enumerate(self.own):
            packed = layout.pack({**self.first, HEAD: torch.zeros(layout.shapes[HEAD])})
            # Row names carry the client's name: every client's rows are separate at the relay.
            rows |= dict(zip(self._names(place), packed, strict=True))
        return torch.stack([rows[name] for name in names])

    def rows(self, place: int) -> Tensor:
        # Return a client's rows, then its neighbors' as it last received them.
        others = [
            self.own[other].pack(
                {name: self.trainers[place].memory[self._key(other, name)] for name in self.own[other].shapes}
            )
            for other in self.neighbours[place]
        ]
        return torch.cat([self.own[place].pack(self._tensors(place)), *others])

    def _key(self, other: int, name: str) -> str:
        return f"{NEIGHBOUR}{other:09d}.{name}"

    def receive(self, round: int, place: int, received: Received) -> None:
        # Average the client's parameters with its neighbors', and store their last layers for the multi-task term.
        trainer = self.trainers[place]
        rows = received.rows[len(self.own[place].names) :].to(trainer.device)
        models: list[Mapping[str, Tensor]] = [trainer.shared]
        for other in self.neighbours[place]:
            layout = self.own[other]
            tensors = layout.unpack(rows[: len(layout.names)])
            trainer.memory |= {self._key(other, name): tensor.clone() for name, tensor in tensors.items()}
            models.append(tensors)
            rows = rows[len(layout.names) :]
        # Round 0 sends initial rows, which all clients have; there is nothing to average.
        if round:
            trainer.take(
                {name: torch.stack([model[name].detach() for model in models]).mean(0) for name in trainer.shared}
            )


class SpreadGNNRule(GraphRule):
    """Averages convolutions and the layer after the readout, and adds the multi-task term to the last layer's
    gradient."""

    crossing = NeighboursCrossing

    @property
    def shared(self) -> tuple[str, ...]:
        """Prefixes of the averaged parameters."""
        return (ENCODER, "post.")

    def correct(self, trainer: ClientTrainer) -> float:
        memories = sorted(trainer.memory)  # by client: sums depend on the order, and a checkpoint has another order
        heads = [trainer.memory[name] for name in memories if name.endswith(f".{HEAD}")]
        if not (self.settings.task_reg and any(bool(head.any()) for head in heads)):
            return 0.0  # no neighbor has sent its last layer yet
        parameter = trainer.model.get_parameter(HEAD)
        value, gradient = multi_task_term(torch.cat([parameter.detach(), *heads]))
        assert parameter.grad is not None
        parameter.grad.add_(gradient[: len(parameter)], alpha=self.settings.task_reg)
        return self.settings.task_reg * value


def multi_task_term(phi: Tensor) -> tuple[float, Tensor]:
    """Compute tr(Phi^T Omega^-1 Phi) / 2 for the optimal Omega, and its gradient by Phi with Omega fixed.

    Directions in which Phi is zero are excluded.

    Args:
        phi: float `[T, width]`, last layers of all tasks.
    """
    # With the optimal Omega the term is |Phi|_*^2 / 2, and its gradient |Phi|_* U V^T.
    left, values, right = torch.linalg.svd(phi.double(), full_matrices=False)
    # Singular vectors of zero singular values are arbitrary.
    some = values > values[0] * 1e-9
    norm = values.sum()
    return float(norm.square() / 2), (norm * left[:, some] @ right[some]).to(phi.dtype)
