"""The client's half of an exchange of one shared table: its half of the codec, and the guard of its rows.

client = TableClient("client/a", "entities", holding, codec, aggregation, options)
received = client.receive(message)                       # a broadcast
contribution = client.contribute(1, rows)                # the rows to upload
client.sent(contribution)                                # once they have arrived
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
"""(round, table, trained rows float32 `[num_uploaded, width]`, the same rows as last received) -> the rows to upload, float64,
for example clipped and with noise."""


class Kept(NamedTuple):
    """A contribution before it is sent: its round and the (guarded) rows that it is made of."""

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
        # False with secure sums: the server needs only the sum of the weights.
        self.tells_weight = True
        # The client's rows as last received.
        self.received = torch.empty(0, 0)

    def alignment(self) -> Alignment:
        """Return the client's names, in plaintext."""
        announced = self.holding if self.tells_weight else self.holding._replace(weight=1)
        return Alignment(0, self.party, SERVER, self.table, *announced)

    def contribute(self, round: int, rows: Tensor) -> Kept:
        """Guard and encode the client's trained rows.

        Args:
            rows: float32 `[num_uploaded, width]`; copied.
        """
        # In one process, the rows of all clients are views of one tensor.
        rows = rows.clone()
        if self.guard:
            # The guard compares the rows with those last received: clipping bounds the change.
            rows = self.guard(round, self.table, rows, self.received[: len(rows)])
        return Kept(round, rows, self.codec.encode(round, rows))

    def pack(self, contribution: Kept) -> AnyMessage:
        """Encode the plaintext upload of the last contribution.

        Args:
            contribution: from `contribute`.
        """
        return self.codec.pack(contribution.round, self.party, self.table, contribution.contribution)

    def sent(self, contribution: Kept, summed: Contribution | None = None) -> None:
        """Note that a contribution has arrived.

        Args:
            contribution: from `contribute`.
            summed: the client's part of an opened sum.
        """
        self.codec.sent(*contribution, summed)

    def receive(self, message: AnyMessage) -> Received:
        """Read a broadcast and take it over.

        Args:
            message: from the server.

        Raises:
            RunError: the message does not fit the client's rows.
        """
        return self.take(message.round, self.codec.read(message))

    def take(self, round: int, content: Content) -> Received:
        """Take over the content of a broadcast.

        Args:
            content: what the codec read.
        """
        received = self.codec.take(round, content)
        self.received = received.rows
        return received

    def tensors(self) -> dict[str, Tensor]:
        """Return the client's state for a checkpoint, by name."""
        parts = {"received": self.received} if self.guard else {}
        return parts | {f"codec.{name}": tensor for name, tensor in self.codec.tensors().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `tensors` returned."""
        self.received = tensors.get("received", self.received)
        self.codec.load({name.removeprefix("codec."): tensor for name, tensor in tensors.items() if name != "received"})
