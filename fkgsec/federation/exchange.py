"""How shared tables go from party to party. Here in clear, as the papers' codes do; a defense replaces this one part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from fkgsec.federation.messages import SERVER, Alignment, Channel, Rows
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import Table
from fkgsec.federation.server import SharedTable


class Holding(NamedTuple):
    """The rows of a shared table that a client holds, by name: it receives all, and uploads the first `num_uploaded`."""

    names: list[str]
    num_uploaded: int


class Received(NamedTuple):
    """A broadcast of one table to one client.

    Attributes:
        rows: float32 `[n, width]` in the order of its holding.
        taken: bool `[n]`, the rows that the client takes over, the others stay its own; None: all.
    """

    rows: Tensor
    taken: Tensor | None = None


class Uploaded(NamedTuple):
    """What an upload of one table came to.

    Attributes:
        num_survivors: clients in the mean; 0 when it failed and the table stays as it was.
        num_clipped: values that were cut to the range a protocol can carry.
    """

    num_survivors: int
    num_clipped: int = 0


class Exchange:
    """Alignment, broadcast and upload of the shared tables in clear.

    Leakage: the server sees every client's names and rows.

    Args:
        channel: takes every message.
        options: of the federation.
        parties: the clients, in their order.
        tables: what is shared.
        run: names the run, by its data and options.
    """

    def __init__(
        self, channel: Channel, options: FederationOptions, parties: Sequence[str], tables: Sequence[Table], run: str
    ) -> None:
        self.channel = channel
        self.options = options
        self.parties = tuple(parties)
        self.run = run
        self.server: dict[Table, SharedTable] = {table: SharedTable(table) for table in tables}
        # What each participant put into the last upload, where that is not what crossed; see `FederationResult.inputs`.
        self.inputs: dict[Table, dict[str, Tensor]] = {}

    def align(self, table: Table, held: Mapping[str, Holding]) -> None:
        """Round 0: afterwards `server[table].names` is the union of what clients hold."""
        for party, holding in held.items():
            message = Alignment(0, party, SERVER, table, holding.names, holding.num_uploaded)
            received = self.channel.send(message)
            assert isinstance(received, Alignment)
            self.server[table].align(received)

    def broadcast(self, round: int, table: Table) -> dict[str, Received]:
        """What each client receives of the table."""
        shared = self.server[table]
        received = {}
        for party, places in shared.holdings.items():
            message = self.channel.send(Rows.pack(round, SERVER, party, table, shared.rows[places]))
            assert isinstance(message, Rows)
            received[party] = Received(message.unpack())
        return received

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor]) -> Uploaded:
        """Participants send their rows, `[num_uploaded, width]` each; the table becomes the mean over holders."""
        uploads = []
        for party, own in rows.items():
            received = self.channel.send(Rows.pack(round, party, SERVER, table, own))
            assert isinstance(received, Rows)
            uploads.append(received)
        self.server[table].aggregate(uploads)
        return Uploaded(len(uploads))

    def restore(self, held: Mapping[Table, Mapping[str, Holding]], rows: Mapping[Table, Tensor]) -> None:
        """Go on from a checkpoint, whose transcript is back in the channel: the alignment, and the tables' rows."""
        for message in self.channel.transcript.messages(0):
            if isinstance(message, Alignment):
                self.server[message.table].align(message)
        for table, values in rows.items():
            self.server[table].initialise(values)

    def rounds_worth_noting(self) -> set[int]:
        """The rounds whose opened sums an adversary still has a use for, beside the best and the last."""
        return set()

    def statement(self) -> list[str]:
        """What the exchange protects, a line for each protection with its guarantee; nothing in clear."""
        return []

    def initialise(self, table: Table, rows: Tensor) -> None:
        """Set the first rows, one for each name."""
        self.server[table].initialise(rows)


MakeExchange = Callable[[Channel, FederationOptions, Sequence[str], Sequence[Table], str], Exchange]
