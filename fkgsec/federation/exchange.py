"""How shared tables go from party to party. Here in clear, as the papers' codes do; a defense replaces this one part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from fkgsec.federation.messages import SERVER, Alignment, Channel, Rows
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.protection import NOTHING, Protection
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
        own_share: float32 `[n]`, what of its own row the client adds to a row that it takes over; None: nothing.
    """

    rows: Tensor
    taken: Tensor | None = None
    own_share: Tensor | None = None

    def merged(self, own: Tensor) -> Tensor:
        """The client's rows after it took this over, `[n, width]`."""
        rows = self.rows.to(own.device)
        if self.own_share is not None:
            rows = rows + self.own_share.to(own.device)[:, None] * own
        return rows if self.taken is None else torch.where(self.taken.to(own.device)[:, None], rows, own)


class Observed(NamedTuple):
    """What the server has put together of one client's uploaded rows, where no single message holds them.

    Attributes:
        rows: float32 `[num_uploaded, width]` in the order of the client's holding, each as it was last seen.
        seen: bool `[num_uploaded]`, the rows that ever crossed.
    """

    rows: Tensor
    seen: Tensor


class Uploaded(NamedTuple):
    """What an upload of one table came to.

    Attributes:
        num_survivors: clients in the mean; 0 when it failed and the table stays as it was.
        num_clipped: values that were cut to the range a protocol can carry.
        excluded: by party the reason why a message of it was left out.
    """

    num_survivors: int
    num_clipped: int = 0
    excluded: Mapping[str, str] = MappingProxyType({})


def all_excluded(outcomes: Sequence[Uploaded]) -> dict[str, str]:
    """Whose messages were left out in the uploads of one round, and why, by party in alphabetical order."""
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        for party, reason in outcome.excluded.items():
            reasons.setdefault(party, []).append(reason)
    return {party: "; ".join(reasons[party]) for party in sorted(reasons)}


class Exchange:
    keeps_uploads = False

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
        self.sums = False  # whether the server learns sums of uploads, not each
        # What the server knows beforehand of participants' parts of the last sum; see `FederationResult.known`.
        self.known: dict[Table, dict[str, Tensor]] = {}

    def align(self, table: Table, held: Mapping[str, Holding]) -> None:
        """Round 0: afterwards `server[table].names` is the union of what clients hold."""
        for party, holding in held.items():
            message = Alignment(0, party, SERVER, table, holding.names, holding.num_uploaded)
            received = self.channel.send(message)
            assert isinstance(received, Alignment)
            self.server[table].align(received)

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """What each of these clients receives of the table."""
        shared = self.server[table]
        received = {}
        for party in parties:
            message = self.channel.send(Rows.pack(round, SERVER, party, table, shared.rows[shared.holdings[party]]))
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

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold of this exchange beside its transcript, by name."""
        return {f"rows.{table}": shared.rows for table, shared in self.server.items()}

    def restore(self, held: Mapping[Table, Mapping[str, Holding]], tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint, whose transcript is back in the channel: the alignment, and what `tensors` gave."""
        for message in self.channel.transcript.messages(0):
            if isinstance(message, Alignment):
                self.server[message.table].align(message)
        for table, shared in self.server.items():
            shared.initialise(tensors[f"rows.{table}"])

    def senders(self, requesting: Sequence[int], colluders: int) -> list[int]:
        """Who uploads in a round in which these clients (by place) forget: they alone, where uploads are not summed.

        Args:
            colluders: clients that may tell the server their part of a sum.

        Raises:
            SpecError: a sum of so few would show the server what one of them sent.
        """
        return list(requesting)

    def carried(self) -> dict[str, Tensor]:
        """What a round after the run, such as one of unlearning, goes on from beside what clients hold; nothing in clear."""
        return {}

    def carry_on(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on, after `initialise`, from what another exchange's `carried` gave."""

    def send_again(self, table: Table) -> dict[str, Received]:
        """Round 0 after a run: every client is sent the table. Returns what some take over; the others keep what they have."""
        self.broadcast(0, table, self.parties)
        return {}

    def observed(self, table: Table) -> dict[str, Observed]:
        """What the server knows of each client's rows; empty where each upload says all of it in one message."""
        return {}

    def rounds_worth_noting(self) -> set[int]:
        """The rounds whose opened sums an adversary still has a use for, beside the best and the last."""
        return set()

    def protection(self, before: Protection = NOTHING, rounds: int | None = None) -> Protection:
        """What the exchange protects; nothing in clear.

        Args:
            before: of what crossed before in a run that this one goes on from or repeats: its guarantees compose with these.
            rounds: how many rounds of uploads this exchange carries; None: as many as the options allow.
        """
        return before

    def initialise(self, table: Table, rows: Tensor) -> None:
        """Set the first rows, one for each name."""
        self.server[table].initialise(rows)


MakeExchange = Callable[[Channel, FederationOptions, Sequence[str], Sequence[Table], str], Exchange]
