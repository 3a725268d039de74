"""What of the clients' networks crosses, as rows of the table `parameters`: a rule's `crossing` part.

crossing = Crossing(trainers, rule, first)       # `first`: the shared parameters that all begin with
crossing.rows(0)                                 # what the first client uploads, [n, width]
crossing.receive(1, 0, received)                 # what it makes of a broadcast
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fkgsec.exchange import Holding, Received
from fkgsec.gnn.layout import Layout

if TYPE_CHECKING:
    from fkgsec.gnn.rule import GraphRule
    from fkgsec.gnn.training import ClientTrainer


class Crossing:
    """All clients hold the same rows, of the shared parameters, and take over what the server makes of them.

    Attributes:
        layout: of a client's rows. shared: of those that are sent back.
    """

    def __init__(self, trainers: Sequence[ClientTrainer], rule: GraphRule, first: Mapping[str, Tensor]) -> None:
        self.trainers, self.rule, self.first = trainers, rule, first
        width, memory = trainers[0].options.width, trainers[0].memory
        self.upwards = Layout.of({name: memory[name] for name in rule.upwards}, width)
        self.shared = Layout.of(trainers[0].shared, width)
        self.layout = Layout(width, {**self.shared.shapes, **self.upwards.shapes})

    def holdings(self, weights: Sequence[int]) -> list[Holding]:
        """Of each client, which counts for its weight in a mean."""
        names, upwards = self.layout.names, len(self.upwards.names)
        return [Holding(names, len(names), weight, upwards) for weight in weights]

    def first_rows(self, names: Sequence[str]) -> Tensor:
        """The server's first rows of these names, `[n, width]`."""
        zeros = {name: torch.zeros(shape) for name, shape in self.upwards.shapes.items()}
        rows = dict(zip(self.layout.names, self.layout.pack({**self.first, **zeros}), strict=True))
        return torch.stack([rows[name] for name in names])

    def rows(self, place: int) -> Tensor:
        """A client's rows; once it has trained, those that it uploads, `[n, width]`."""
        return self._packed(place, self.trainers[place].outgoing)

    def receive(self, round: int, place: int, received: Received) -> None:
        """Let a client take over what a broadcast said."""
        self.trainers[place].take(self.layout.unpack(received.merged(self._packed(place))))

    def _packed(self, place: int, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """Some tensors as rows, if none the shared parameters, and what goes with them."""
        trainer = self.trainers[place]
        told = {name: trainer.memory[name] for name in self.rule.upwards}
        return self.layout.pack({**(tensors or trainer.shared), **told})
