"""The client's half of an exchange of one shared table: its half of the codec, and what guards its rows before they leave.

client = TableClient("client/a", "entities", holding, codec, aggregation, options)
received = client.receive(message)                       # a broadcast
contribution = client.contribute(1, rows)                # what it lets go of
client.sent(contribution)                                # once it is in
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fkgsec.exchange.aggregation import Aggregation
from fkgsec.exchange.codec import Codec, Content, Contribution
from fkgsec.exchange.parts import Holding, Received
from fkgsec.federation.messages import SERVER, Alignment, AnyMessage
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import Table

Guard = Callable[[int, Table, Tensor, Tensor], Tensor]
"""Of round, table, a client's trained rows float32 `[num_uploaded, width]` and these as it last received them: the rows that it
lets go of, float64, such as clipped ones with noise."""


class Kept(NamedTuple):
    """A contribution on its way: of which round, made of which rows (as guarded)."""

    round: int
    rows: Tensor
    contribution: Contribution


class TableClient:
    """See the module."""

    def __init__(
        self,
        party: str,
        table: Table,
        holding: Holding,
        codec: Codec,
        aggregation: type[Aggregation],
        options: RunOptions,
    ) -> None:
        self.party, self.holding = party, holding
        self.table: Table = table
        self.codec = codec.client(holding, options, aggregation.answers)
        self.chooses_rows = codec.chooses_rows
        self.guard: Guard | None = None
        self.tells_weight = True  # not where uploads are summed: the sum of weights says all that the server needs
        self.received = torch.empty(0, 0)  # its rows as last received

    def alignment(self) -> Alignment:
        """Its names, in clear."""
        announced = self.holding if self.tells_weight else self.holding._replace(weight=1)
        return Alignment(0, self.party, SERVER, self.table, *announced)

    def contribute(self, round: int, rows: Tensor) -> Kept:
        """Return what it lets go of, of its trained rows float32 `[num_uploaded, width]`, which it copies."""
        rows = rows.clone()  # in one process those of all clients lie in one tensor
        if self.guard:
            rows = self.guard(round, self.table, rows, self.received[: len(rows)])
        return Kept(round, rows, self.codec.encode(round, rows))

    def pack(self, contribution: Kept) -> AnyMessage:
        """The upload of what `contribute` gave last, in clear."""
        return self.codec.pack(contribution.round, self.party, self.table, contribution.contribution)

    def sent(self, contribution: Kept, summed: Contribution | None = None) -> None:
        """The contribution is in; `summed`: as its part of an opened sum."""
        self.codec.sent(*contribution, summed)

    def receive(self, message: AnyMessage) -> Received:
        """Return what it makes of a broadcast. Raises `RunError` for one that its rows cannot have."""
        return self.take(message.round, self.codec.read(message))

    def take(self, round: int, content: Content) -> Received:
        """Return what it makes of what it read in a broadcast."""
        received = self.codec.take(round, content)
        self.received = received.rows
        return received

    def tensors(self) -> dict[str, Tensor]:
        """Return what the client must keep to go on after a stop, by name."""
        parts = {"received": self.received} if self.guard else {}
        return parts | {f"codec.{name}": tensor for name, tensor in self.codec.tensors().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        self.received = tensors.get("received", self.received)
        self.codec.load({name.removeprefix("codec."): tensor for name, tensor in tensors.items() if name != "received"})
