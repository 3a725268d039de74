"""SpreadGNN: no server; each client averages its network with its neighbours', and its last layer leans on theirs.

Clients stand in a ring, each with `neighbours` others on either side. After every `period` rounds each sends its convolutions,
the layer after the readout and its last layer to its neighbours, and takes the mean of theirs and its own but for the last layer.
That one has a row for each class of the client's own task; it is trained with the multi-task term

    task_reg / 2 tr(Phi^T Omega^-1 Phi),   Omega = (Phi Phi^T)^(1/2) / tr (Phi Phi^T)^(1/2)

where Phi has the rows of the client's last layer and of those that its neighbours sent last. Omega says how tasks relate; with
the best one the term is half the squared nuclear norm of Phi, whose gradient is |Phi|_* U V^T for Phi = U S V^T.

Source: He et al. 2022, and its code. Differs: one task of several classes a client, in place of several binary tasks of which
each client has some labels. In the code the term has no effect, as it is computed of detached weights; its means take in the last
layer as well, since the name of the layer that they are to leave out is another's, and leave out the client's own parameters.
Means are unweighted, as in the paper; the code weighs by training items. Clients keep to themselves how their tasks relate; the
paper has neighbours align it. Rows cross a relay (`fkgsec.exchange.tensors.peers`); bytes down are what peers would send.
cefgl.txt, which has it as a baseline, does not say how it was adapted.
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
    """The others nearest to a client in a ring of so many.

    >>> neighbours_of(0, 5, 1), neighbours_of(0, 3, 2)
    ([1, 4], [1, 2])
    """
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
        """Return what a client sends: what is averaged, and its last layer."""
        trainer = self.trainers[place]
        return {**trainer.shared, HEAD: trainer.model.get_parameter(HEAD)}

    def _names(self, place: int) -> list[str]:
        return [f"{self.trainers[place].client.name}:{name}" for name in self.own[place].names]

    def holdings(self, weights: Sequence[int]) -> list[Holding]:
        """A client's own rows, and its neighbours'."""
        names = [self._names(place) for place in range(len(self.trainers))]
        return [
            Holding(row_names + [name for other in self.neighbours[place] for name in names[other]], len(row_names))
            for place, row_names in enumerate(names)
        ]

    def first_rows(self, names: Sequence[str]) -> Tensor:
        """The shared parameters that all begin with; nothing of last layers."""
        rows = {}
        for place, layout in enumerate(self.own):
            packed = layout.pack({**self.first, HEAD: torch.zeros(layout.shapes[HEAD])})
            rows |= dict(zip(self._names(place), packed, strict=True))
        return torch.stack([rows[name] for name in names])

    def rows(self, place: int) -> Tensor:
        """A client's rows, then its neighbours' as it knows them."""
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
        """The mean of the client's own parameters and its neighbours'; last layers are kept for the multi-task term."""
        trainer = self.trainers[place]
        rows = received.rows[len(self.own[place].names) :].to(trainer.device)
        models: list[Mapping[str, Tensor]] = [trainer.shared]
        for other in self.neighbours[place]:
            layout = self.own[other]
            tensors = layout.unpack(rows[: len(layout.names)])
            trainer.memory |= {self._key(other, name): tensor.clone() for name, tensor in tensors.items()}
            models.append(tensors)
            rows = rows[len(layout.names) :]
        if round:
            trainer.take(
                {name: torch.stack([model[name].detach() for model in models]).mean(0) for name in trainer.shared}
            )


class SpreadGNNRule(GraphRule):
    """Convolutions and the layer after the readout are averaged; the multi-task term is in the last layer's gradient."""

    crossing = NeighboursCrossing

    @property
    def shared(self) -> tuple[str, ...]:
        return (ENCODER, "post.")

    def correct(self, trainer: ClientTrainer) -> float:
        memories = sorted(trainer.memory)  # by place: sums go by the order, and a checkpoint has another
        heads = [trainer.memory[name] for name in memories if name.endswith(f".{HEAD}")]
        if not (self.settings.task_reg and any(bool(head.any()) for head in heads)):
            return 0.0  # nothing of neighbours is known yet
        parameter = trainer.model.get_parameter(HEAD)
        value, gradient = multi_task_term(torch.cat([parameter.detach(), *heads]))
        assert parameter.grad is not None
        parameter.grad.add_(gradient[: len(parameter)], alpha=self.settings.task_reg)
        return self.settings.task_reg * value


def multi_task_term(phi: Tensor) -> tuple[float, Tensor]:
    """tr(Phi^T Omega^-1 Phi) / 2 for the best Omega of tasks `[T, width]`, and its gradient by Phi while Omega stays.

    Directions in which Phi has nothing are left out.
    """
    left, values, right = torch.linalg.svd(phi.double(), full_matrices=False)
    some = values > values[0] * 1e-9
    norm = values.sum()
    return float(norm.square() / 2), (norm * left[:, some] @ right[some]).to(phi.dtype)
