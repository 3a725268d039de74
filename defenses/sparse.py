"""FedS whose uploads are summed securely: what a client needs of the others is the sum without its own part.

What of FedS lives on sums: a client chooses its rows alone, masks the whole table with zeros elsewhere, and sends which rows it
chose as a masked vector of 0 and 1. The server opens the sum of the rows and how many sent each. It ranks downloads by that count
(FedS: by the count without the receiver, which the server cannot know), and sends sums and counts; the client subtracts what it
sent itself (Eq. 3) and combines (Eq. 4). A row that it alone sent comes back as nothing, so some downloads are wasted.

A row counts as sent (Eq. 1) if the client's part of it was in the opened sum: not when the client fell silent before it sent, nor
when too few were left. A client is taken to know whether it was in a sum, for Eq. 3, too: the protocol tells those who stay to
its end, and one that falls silent between sending and the end would have to be told later. A suppressed row counts as sent, since
a client would else choose in vain, round after round, what nobody else chooses.

What it costs: masks hide which rows are zero, so an upload is as long as FedE's under secure aggregation. Downloads stay sparse.

Leakage: the server sees the names that clients sent for alignment, and each round the sums of the chosen rows and how many
survivors chose each, not who. **A row that one client alone chose is opened as it is**; FedS makes such rows frequent. `suppress`
opens only rows that at least t clients chose. With a colluder the server subtracts its part, too. All this is of a server that
follows the protocol: one that does not can send some clients rows of its choice and others none (`defenses.broadcasts`).

Source: ours; feds.txt has no secure form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from defenses.broadcasts import BroadcastError
from defenses.exchange import DefendedExchange
from fkgsec.errors import RunError
from fkgsec.federation.exchange import Holding, Received, Uploaded
from fkgsec.federation.messages import SERVER, Channel, SparseRows
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import Table
from fkgsec.federation.sparse import (
    Selection,
    combine_chosen,
    is_synchronised,
    most_uploaded,
    send_shared,
)
from fkgsec.randomness import generator
from protocols.secagg import Sum


class SparseSums(DefendedExchange):
    """See the module."""

    binds_broadcasts = (
        False  # a client keeps its own for the rows that it is not sent, and which these are the server chooses
    )

    def __init__(
        self, channel: Channel, options: FederationOptions, parties: Sequence[str], tables: Sequence[Table], run: str
    ) -> None:
        super().__init__(channel, options, parties, tables, run)
        self._sparse_rounds = int(options.setting("sparse_rounds"))
        self._selection: dict[Table, Selection] = {table: Selection(options) for table in tables}
        # Of the round: which of its rows each client in the sum chose, and what the server opened, float32 and int64.
        self._chosen: dict[Table, dict[str, Tensor]] = {table: {} for table in tables}
        self._opened: dict[Table, tuple[Tensor, Tensor] | None] = dict.fromkeys(tables)
        self._sums: dict[Table, Tensor] = {}  # both side by side, `[N, W + 1]`, as the server commits to them
        self._since_synchronised: set[int] = set()

    def initialise(self, table: Table, rows: Tensor) -> None:
        """As for a mean; now clients can tell what changed."""
        super().initialise(table, rows)
        self._selection[table].align(self.server[table], rows)

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor]) -> Uploaded:
        """Each participant puts in its shared rows, all of them or those that changed most."""
        everything = is_synchronised(round, self._sparse_rounds)
        placed, self._chosen[table], self._opened[table] = {}, {}, None
        before = self.server[table].rows
        for party, own in rows.items():
            chosen = self._selection[table].choose(party, own, everything=everything)
            held = self._held[table][party][: len(own)]
            placed[party] = held[chosen.numpy()], own[chosen].numpy().astype(np.float64)
            self._chosen[table][party] = chosen
        uploaded = self._add_up(round, table, placed)
        if self._opened[table] is not None:
            for party, chosen in self._chosen[table].items():
                self._selection[table].remember(party, rows[party], chosen)
        whole = everything and self._opened[table] is not None
        self._since_synchronised = {round} if whole else {*self._since_synchronised, round}
        if not everything:
            self.server[table].rows = before
        return uploaded

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """Each client's shared rows: all of them as the mean over holders, or the sums that most clients have a part in."""
        server, selection = self.server[table], self._selection[table]
        opened = self._opened[table]
        if round and opened is None:  # too many dropped out
            return {}
        received = {}
        everything, largest = is_synchronised(round, self._sparse_rounds), self._largest_value(table)
        fresh = torch.ones(len(server.names), dtype=torch.bool) if opened is None else opened[1] > 0
        for party in parties:
            sent = self._table_for(round, table, party)
            if everything:
                try:
                    received[party] = send_shared(
                        self.channel, round, replace(server, rows=sent), selection, party, fresh
                    )
                except RunError as error:
                    raise BroadcastError(
                        f"{party} refuses the broadcast of {table} in round {round}: {error}"
                    ) from error
                taken = received[party].taken
                assert taken is not None
                self._bound.check(round, table, party, received[party].rows, largest)
                places, rows = torch.nonzero(taken)[:, 0], received[party].rows[taken]
            else:
                arrived = self._send_sums(round, table, party, sent)
                try:
                    places, sums, counts = arrived.unpack()
                except RunError as error:
                    raise BroadcastError(
                        f"{party} refuses the broadcast of {table} in round {round}: {error}"
                    ) from error
                self._bound.check(round, table, party, sums, largest * counts.numpy())
                rows = torch.column_stack([sums, counts.float()])
                received[party] = self._without_own(table, party, arrived)
            held = torch.from_numpy(self._held[table][party])
            self._bound.prove(round, table, party, server.names, sent, held[places], rows)
        own = server.rows if everything else self._sums[table]
        self._bound.close(round, table, parties, self._bound.commit(server.names, own))
        return received

    def _send_sums(self, round: int, table: Table, party: str, whole: Tensor) -> SparseRows:
        """The sums and counts of the client's rows that most others sent, of `whole` `[N, W + 1]`, counts last."""
        held, selection = self.server[table].holdings[party], self._selection[table]
        sums, counts = whole[held, :-1], whole[held, -1].long()
        rng = generator(self.options.seed, "download ties", table, round, self._places[party])
        chosen = most_uploaded(counts * selection.shared[party], selection.count(party), rng)
        message = SparseRows.pack(round, SERVER, party, table, chosen, sums[chosen], counts[chosen])
        arrived = self._bound.arrived(message, self.channel.send(message))
        assert isinstance(arrived, SparseRows)
        if (arrived.num_rows, arrived.width) != (message.num_rows, message.width):
            raise BroadcastError(
                f"{party} refuses the broadcast of {table} in round {round}: {arrived.num_rows} x {arrived.width} values, where "
                f"its rows are {message.num_rows} x {message.width}"
            )
        return arrived

    def _table_for(self, round: int, table: Table, party: str) -> Tensor:
        """The mean over holders in rounds in which all rows are sent, else what was opened: sums and, last, counts."""
        if is_synchronised(round, self._sparse_rounds):
            return super()._table_for(round, table, party)
        return self._sums[table]

    def rounds_worth_noting(self) -> set[int]:
        """Also those since all rows were summed: each opened some that the others did not."""
        return super().rounds_worth_noting() | self._since_synchronised

    def carried(self) -> dict[str, Tensor]:
        """As for a mean, and what each client sent."""
        kept = super().carried()
        for table, selection in self._selection.items():
            kept |= {name: rows.clone() for name, rows in selection.tensors(f"sent.{table}", self.parties).items()}
        return kept

    def carry_on(self, tensors: Mapping[str, Tensor]) -> None:
        """As for a mean; a client measures changes against what it sent in the run."""
        super().carry_on(tensors)
        for table, selection in self._selection.items():
            selection.restore(f"sent.{table}", self.parties, tensors)

    def tensors(self) -> dict[str, Tensor]:
        """As for a mean, and what each client sent."""
        kept = super().tensors()
        for table, selection in self._selection.items():
            kept |= selection.tensors(f"sent.{table}", self.parties)
        return kept | {"since": torch.tensor(sorted(self._since_synchronised))}

    def restore(self, held: Mapping[Table, Mapping[str, Holding]], tensors: Mapping[str, Tensor]) -> None:
        """As for a mean."""
        super().restore(held, tensors)
        for table, selection in self._selection.items():
            selection.align(self.server[table], self.server[table].rows)
            selection.restore(f"sent.{table}", self.parties, tensors)
        self._since_synchronised = {int(round) for round in tensors["since"]}

    def statement(self) -> list[str]:
        """As for a mean, and what a sparse sum opens."""
        line = "feds: a row that one client alone chose is opened as it is; suppress:t=2 keeps it back"
        return [*super().statement(), *([] if self.defense.suppress else [line])]

    def _open(self, round: int, table: Table, total: Sum) -> np.ndarray:
        rows = super()._open(round, table, total)
        counts = torch.from_numpy(total.vectors["holders"].astype(np.int64))
        sums = torch.from_numpy(rows.astype(np.float32))
        self._opened[table] = sums, counts
        self._sums[table] = torch.column_stack([sums, counts.float()])
        self._chosen[table] = {party: self._chosen[table][party] for party in total.survivors}
        return rows

    def _without_own(self, table: Table, party: str, message: SparseRows) -> Received:
        """The client's side: subtract what it put into the sum itself."""
        places, sums, counts = message.unpack()
        held = self._held[table][party]
        if party in self._chosen[table]:
            mine = torch.zeros(len(held), dtype=torch.bool)
            mine[: len(self._chosen[table][party])] = self._chosen[table][party]
            if self.defense.suppress:
                mine &= torch.from_numpy(self._sent_rows[table][held])
            # As encoded, not as trained: a value may have been clipped.
            sums = (sums - self.inputs[table][party][held[places]] * mine[places][:, None]).float()
            counts = counts - mine[places].long()
        return combine_chosen(len(held), places, sums, counts)
