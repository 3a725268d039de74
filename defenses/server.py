"""The server's half of a defended exchange: its history of broadcasts, the sums that it opened, and what it remembers of them.

    server = DefendedServer(terms, tables)
    server.open(1, "entities", total)                     # divides by holders; returns the number of unchanged rows
    server.crossed["entities"]                            # the rows that are in the last sum

It holds no object of a client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from fkgsec.defenses.bound_broadcasts import SentBroadcasts
from fkgsec.defenses.broadcasts import commitment_of_table
from fkgsec.defenses.terms import Terms
from fkgsec.exchange.parts import Sum as Opening
from fkgsec.exchange.server import TableServer
from fkgsec.federation.messages import AnyMessage, Opened
from fkgsec.federation.recipes import Table
from fkgsec.protocols.secagg import Sum


class DefendedServer:
    """See the module.

    Attributes:
        log: all that it says it sent.
        crossed: by table, the rows of the last sum, bool `[N]`: all but suppressed ones, none if it failed.
        opened: by table, whether the last sum was opened.
        notable: rounds whose survivors tell something new of who holds what, and who they were, 0 and 1 by party.
    """

    def __init__(self, terms: Terms, tables: Mapping[Table, TableServer], log: SentBroadcasts) -> None:
        self.terms, self.tables, self.log = terms, tables, log
        self.crossed: dict[Table, np.ndarray] = {}
        self.opened: dict[Table, bool] = {}
        self.notable: dict[int, np.ndarray] = {}
        # Set by an adversary at the server.
        self.rows_to_send: Callable[[int, Table, np.ndarray], np.ndarray] | None = None
        # By party the reason why it takes part in no further sum.
        self.barred: dict[str, str] = {}
        # Rounds since a sum had all rows. Each of them opened some rows that the others did not.
        self.since_whole: set[int] = set()

    def content(self, round: int, table: Table) -> Tensor:
        """Return the table whose rows all clients receive: float32 `[N, V]`."""
        server = self.tables[table]
        return server.content(round, None, torch.arange(len(server.shared.names)))

    def message(self, round: int, table: Table, party: str, content: Tensor) -> AnyMessage:
        """Encode the broadcast to a client: its rows, or all rows if the server does not know which it holds.

        Args:
            party: receiver.
        """
        server = self.tables[table]
        rows = content if self.terms.defense.psu else content[server.shared.holdings[party]]
        return server.codec.pack(round, party, rows)

    def commit(self, table: Table, content: Tensor) -> bytes:
        """Commit to a table: the digest of all of it after a private union, else the root of its Merkle tree.

        Args:
            content: `[N, V]`.
        """
        names = self.tables[table].shared.names
        if self.terms.defense.psu:
            return commitment_of_table(names, content.numpy())
        return self.log.tree(names, content).root

    def prove(self, table: Table, content: Tensor, message: AnyMessage) -> bytes | None:
        """Prove that the rows of a broadcast belong to the content; None if it has no rows.

        Args:
            content: `[N, V]`.
            message: the broadcast to one client.
        """
        shared, codec = self.tables[table].shared, self.tables[table].codec
        places = shared.holdings[message.receiver][codec.crossed(message)]
        return self.log.tree(shared.names, content).prove(places.numpy()) if len(places) else None

    def begin(self, table: Table) -> None:
        """Reset the state of the last sum before a round's sums."""
        self.crossed[table] = np.zeros(len(self.tables[table].shared.names), dtype=bool)
        self.opened[table] = False

    def end(self, round: int, table: Table) -> None:
        """Update the rounds since a sum had all rows."""
        whole = self.opened[table] and not self.tables[table].codec.partial(round)
        self.since_whole = {round} if whole else {*self.since_whole, round}

    def open(self, round: int, table: Table, total: Sum, crossed: np.ndarray | None = None) -> int:
        """Aggregate an opened sum.

        Args:
            total: sums of rows and weights.
            crossed: the rows that clients had to send, bool `[N]`; None: all.

        Returns:
            Number of rows that keep their old value, since honest clients cannot have given the sum.
        """
        shape = tuple(self.tables[table].shared.rows.shape)
        rows = self.terms.encodings[table].decode(total.vectors["rows"]).reshape(shape)
        weights = total.vectors["holders"].astype(np.int64)
        most = len(total.survivors) * self.terms.largest_weight[table]
        beyond = np.abs(rows).max(axis=1, initial=0) > weights * self.terms.largest_value(table)
        # A mean beyond the clip, or a count beyond the survivors' weights, comes from a malicious client. Clients would refuse a
        # broadcast of such a mean.
        wrong = (weights > most) | (beyond & (weights > 0))
        sound = np.where(wrong, 0, weights)
        self.crossed[table] = np.ones(shape[0], dtype=bool) if crossed is None else crossed
        opening = Opening(torch.from_numpy(np.where(wrong[:, None], 0, rows)), torch.from_numpy(sound))
        self.tables[table].aggregate_sum(round, opening)
        self.opened[table] = True
        return int(wrong.sum())

    def note(self, round: int, table: Table, total: Sum) -> Opened:
        """Return what the server computed from a session, for an adversary at the server."""
        encoding = self.terms.encodings[table]
        rows = encoding.decode(total.vectors["rows"]) if "rows" in total.vectors else np.zeros(0)
        survivors = list(total.survivors)
        self.remember_survivors(round, survivors)
        holders = total.vectors["holders"].astype("<i8").tobytes()
        return Opened(round, table, survivors, rows.astype("<f8").tobytes(), holders, encoding.bound)

    def remember_survivors(self, round: int, survivors: Collection[str]) -> None:
        """Remember a round if its set of survivors is linearly independent of the earlier ones.

        Args:
            survivors: of the round.
        """
        present = np.array([party in survivors for party in self.terms.parties], dtype=np.float64)
        # Only such a round adds an equation about who holds which row.
        earlier = [*self.notable.values(), present]
        if round not in self.notable and np.linalg.matrix_rank(np.stack(earlier)) == len(earlier):
            self.notable[round] = present
