"""The server's half of an exchange of one shared table: the table, its aggregation, and its half of the codec.

    server = TableServer(SharedTable("entities", parties), codec, aggregation, options)
    server.shared.align(message)                                             # of each client
    server.initialise(rows)
    server.aggregate(1, {message.sender: server.accept(1, message), ...})
    server.message(1, "client/a")                                            # what this client is sent

Nothing here refers to an object of a client: what the server knows of one came in a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from fkgsec.exchange.aggregation import Aggregation
from fkgsec.exchange.codec import Codec
from fkgsec.exchange.parts import Delivered, Screened, SharedTable, Sum, Upload, below
from fkgsec.federation.messages import AnyMessage
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import Table

Tamper = Callable[[int, Table, str, Tensor], Tensor]
"""(round, table, party, rows for it) -> the rows that an adversary sends instead."""

Screen = Callable[[int, Table, Mapping[str, Upload], Tensor], Screened]
"""(round, table, uploads by party, rows as last sent `[N, width]`) -> the uploads to aggregate."""


class TableServer:
    """See the module."""

    def __init__(self, shared: SharedTable, codec: Codec, aggregation: type[Aggregation], options: RunOptions) -> None:
        self.shared = shared
        self.codec = codec.server(shared, options, aggregation.answers)
        self.aggregation = aggregation(shared, options)
        # Set by an adversary at the server.
        self.tamper: Tamper | None = None
        # Set by a defense that works on single uploads.
        self.screen: Screen | None = None

    def initialise(self, rows: Tensor) -> None:
        """Set the first rows, one per name."""
        self.shared.initialise(rows)
        self.codec.begin()
        self.aggregation.begin()

    def aggregate(self, round: int, uploads: Mapping[str, Upload]) -> Mapping[str, int]:
        """Aggregate single uploads.

        Args:
            uploads: by party.

        Returns:
            Number of rows that a screen changed, by party.
        """
        # In the order of the parties, so that the result does not depend on who was first.
        ordered: Mapping[str, Upload] = {party: uploads[party] for party in self.shared.parties if party in uploads}
        cut: Mapping[str, int] = {}
        if self.screen is not None:
            ordered, cut = self.screen(round, self.shared.table, ordered, self.shared.rows)
        self._publish(round, Delivered(self._shape, single=ordered))
        return cut

    def aggregate_sum(self, round: int, opened: Sum) -> None:
        """Aggregate a sum of uploads.

        Args:
            opened: from secure aggregation.
        """
        self._publish(round, Delivered(self._shape, opened=self.codec.summed(opened)))

    def content(self, round: int, party: str | None, holding: Tensor) -> Tensor:
        """Return what a client receives for some rows, float32 `[n, V]`.

        Args:
            party: receiver; None: the values that are the same for all.
            holding: rows, int64 `[n]`.
        """
        return self.codec.content(round, self.aggregation.answer(round, party, holding), holding)

    def message(self, round: int, party: str) -> AnyMessage:
        """Encode the broadcast to a client that was aligned in plaintext."""
        holding = self.shared.sent(party)
        return self.codec.pack(round, party, self.sent(round, party, self.content(round, party, holding)))

    def sent(self, round: int, party: str, content: Tensor) -> Tensor:
        """Return what the server sends a client: `content`, unless an adversary replaces it.

        Args:
            content: honest values for the party.
        """
        return content if self.tamper is None else self.tamper(round, self.shared.table, party, content.clone())

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint, by name."""
        parts = {"codec": self.codec, "aggregation": self.aggregation}
        named = {f"{part}.{name}": tensor for part, half in parts.items() for name, tensor in half.tensors().items()}
        return {"rows": self.shared.rows} | named

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `tensors` returned, after alignment."""
        self.initialise(tensors["rows"])
        self.codec.load(below("codec.", tensors))
        self.aggregation.load(below("aggregation.", tensors))

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.shared.names), self.shared.rows.shape[1]

    def _publish(self, round: int, delivered: Delivered) -> None:
        # The codec may change the aggregate, for example truncate it: the table is what clients receive.
        self.codec.publish(self.aggregation.aggregate(round, self.codec.previous(), delivered), delivered)
