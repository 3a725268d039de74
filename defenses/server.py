"""The server's half of a defended exchange: what it sent, the sums that it opened, and what it keeps of them.

    server = DefendedServer(terms, tables)
    server.open(1, "entities", total)                     # divides by holders; returns what to note
    server.crossed["entities"]                            # which rows the last sum has

No object of a client is kept here.
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
        self.rows_to_send: Callable[[int, Table, np.ndarray], np.ndarray] | None = None  # an adversary's
        self.barred: dict[str, str] = {}  # by party, why it takes part in no further sum
        self.since_whole: set[int] = set()  # rounds since a sum had all rows: each opened some that the others did not

    def content(self, round: int, table: Table) -> Tensor:
        """Return what clients are sent rows of, the same for all: float32 `[N, V]`."""
        server = self.tables[table]
        return server.content(round, None, torch.arange(len(server.shared.names)))

    def message(self, round: int, table: Table, party: str, content: Tensor) -> AnyMessage:
        """The broadcast to a client: its rows of the content; of all, where the server cannot tell which are its own."""
        server = self.tables[table]
        rows = content if self.terms.defense.psu else content[server.shared.holdings[party]]
        return server.codec.pack(round, party, rows)

    def commit(self, table: Table, content: Tensor) -> bytes:
        """The commitment to the content: its digest, or the root of its tree."""
        names = self.tables[table].shared.names
        if self.terms.defense.psu:
            return commitment_of_table(names, content.numpy())
        return self.log.tree(names, content).root

    def prove(self, table: Table, content: Tensor, message: AnyMessage) -> bytes | None:
        """That the rows of a broadcast are those of the content; None where it has none."""
        shared, codec = self.tables[table].shared, self.tables[table].codec
        places = shared.holdings[message.receiver][codec.crossed(message)]
        return self.log.tree(shared.names, content).prove(places.numpy()) if len(places) else None

    def begin(self, table: Table) -> None:
        """Before a round's sums."""
        self.crossed[table] = np.zeros(len(self.tables[table].shared.names), dtype=bool)
        self.opened[table] = False

    def end(self, round: int, table: Table) -> None:
        """After a round's sums."""
        whole = self.opened[table] and not self.tables[table].codec.partial(round)
        self.since_whole = {round} if whole else {*self.since_whole, round}

    def open(self, round: int, table: Table, total: Sum, crossed: np.ndarray | None = None) -> int:
        """Aggregate what was summed. `crossed`: the rows that clients were told to send.

        Returns how many rows keep their old value, because honest clients cannot have given the sum: the mean is beyond the clip,
        or the count beyond the survivors' weights. Clients would refuse a broadcast of such a mean.
        """
        shape = tuple(self.tables[table].shared.rows.shape)
        rows = self.terms.encodings[table].decode(total.vectors["rows"]).reshape(shape)
        weights = total.vectors["holders"].astype(np.int64)
        most = len(total.survivors) * self.terms.largest_weight[table]
        beyond = np.abs(rows).max(axis=1, initial=0) > weights * self.terms.largest_value(table)
        wrong = (weights > most) | (beyond & (weights > 0))
        sound = np.where(wrong, 0, weights)
        self.crossed[table] = np.ones(shape[0], dtype=bool) if crossed is None else crossed
        opening = Opening(torch.from_numpy(np.where(wrong[:, None], 0, rows)), torch.from_numpy(sound))
        self.tables[table].aggregate_sum(round, opening)
        self.opened[table] = True
        return int(wrong.sum())

    def note(self, round: int, table: Table, total: Sum) -> Opened:
        """Return what the server computed from a session, for whoever attacks as it."""
        encoding = self.terms.encodings[table]
        rows = encoding.decode(total.vectors["rows"]) if "rows" in total.vectors else np.zeros(0)
        survivors = list(total.survivors)
        self.remember_survivors(round, survivors)
        holders = total.vectors["holders"].astype("<i8").tobytes()
        return Opened(round, table, survivors, rows.astype("<f8").tobytes(), holders, encoding.bound)

    def remember_survivors(self, round: int, survivors: Collection[str]) -> None:
        """Keep the rounds whose survivors are no combination of earlier ones: they tell who holds what."""
        present = np.array([party in survivors for party in self.terms.parties], dtype=np.float64)
        earlier = [*self.notable.values(), present]
        if round not in self.notable and np.linalg.matrix_rank(np.stack(earlier)) == len(earlier):
            self.notable[round] = present
