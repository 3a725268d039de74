"""FedS: of the rows that clients share, each side sends those that matter most this round (feds.txt section III).

Legend: `n` rows of one client, `N` rows of the table, `W` their width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fkgsec.errors import RunError
from fkgsec.federation.exchange import Exchange, Holding, Observed, Received, Uploaded
from fkgsec.federation.messages import SERVER, Channel, Rows, SparseRows
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import Table
from fkgsec.federation.server import mean_over_holders
from fkgsec.randomness import generator


def num_selected(num_shared: int, sparsity: float) -> int:
    """K, the rows that are sent of so many: N_c p, rounded down, and at least one. Source: feds.txt Eq. 2."""
    return min(num_shared, max(1, int(num_shared * sparsity + 1e-9)))  # 0.29 * 100 is 28.999...


def changes(rows: Tensor, history: Tensor) -> Tensor:
    """1 - cosine of each row `[n, W]` to the one that was sent last, float `[n]`. Source: feds.txt Eq. 1."""
    return 1 - cosine_similarity(rows, history, dim=1)


def largest(values: Tensor, count: int) -> Tensor:
    """The `count` largest values, bool `[n]`; among equals those that come first."""
    chosen = torch.zeros(len(values), dtype=torch.bool)
    chosen[torch.sort(values, descending=True, stable=True).indices[:count]] = True
    return chosen


def sums_of_others(uploads: Mapping[str, tuple[Tensor, Tensor]], party: str, like: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the sum over the other clients that uploaded it, `[N, W]`, and how many they are, int64 `[N]`.

    Args:
        uploads: row numbers int64 `[m]` and rows `[m, W]` of each uploading client. like: `[N, W]`, for its shape.

    Source: feds.txt Eq. 3.
    """
    sums, counts = torch.zeros_like(like), torch.zeros(len(like), dtype=torch.int64)
    for sender, (ids, rows) in uploads.items():
        if sender != party:
            sums.index_add_(0, ids, rows)
            counts.index_add_(0, ids, torch.ones_like(ids))
    return sums, counts


def most_uploaded(counts: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """The `count` rows that most clients uploaded, bool `[n]`; at random among equals, and never one that none uploaded.

    Source: feds.txt III-D.
    """
    order = torch.from_numpy(rng.permutation(len(counts)))
    chosen = torch.zeros(len(counts), dtype=torch.bool)
    chosen[order[largest(counts[order], count)]] = True
    return chosen & (counts > 0)


def combined(own: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """(A + E) / (1 + P), the mean of a client's row and those that the sum is of, `[n, W]`. Source: feds.txt Eq. 4."""
    return (sums + own) / (1 + counts)[:, None]


def is_synchronised(round: int, sync_every: int) -> bool:
    """Whether all rows are sent: every (s + 1)-th round, so that s sparse ones lie between two; with s = 0 never.

    Source: feds.txt III-E, F. Differs from III-B, where two sentences have it the other way round.
    """
    return round == 0 or (sync_every > 0 and round % (sync_every + 1) == 0)


class SparseExchange(Exchange):
    """Top-K of rows in both directions, and all of them in synchronised rounds.

    Only rows that another client holds too ever cross; the first broadcast tells each client which these are. Of the rows that
    it receives a client uploads those in its training triples, as everywhere.

    Leakage: the server sees every client's names, which of them changed most in each round, and the rows that were sent. A
    client learns which of its names others hold, and how many of them uploaded each.
    Source: feds.txt section III.
    """

    def __init__(
        self, channel: Channel, options: FederationOptions, parties: Sequence[str], tables: Sequence[Table], run: str
    ) -> None:
        super().__init__(channel, options, parties, tables, run)
        self._sparsity = float(options.setting("sparsity"))
        self._sync_every = int(options.setting("sync_every"))
        # What each client knows: which of its rows are shared, and its uploadable rows as it sent them last.
        self._shared: dict[Table, dict[str, Tensor]] = {table: {} for table in tables}
        self._sent: dict[Table, dict[str, Tensor]] = {table: {} for table in tables}
        # What the server knows: this round's uploads, as row numbers and rows, and which rows of a client ever crossed.
        self._uploads: dict[Table, dict[str, tuple[Tensor, Tensor]]] = {table: {} for table in tables}
        self._seen: dict[Table, dict[str, Tensor]] = {table: {} for table in tables}

    def initialise(self, table: Table, rows: Tensor) -> None:
        """As in clear. What a client sent last counts as the first rows (feds.txt III-C)."""
        super().initialise(table, rows)
        shared = self.server[table]
        self._find_shared(table)
        for party in self.parties:
            own = shared.holdings[party][: shared.num_uploaded[party]]
            self._sent[table][party] = rows[own]
            self._seen[table][party] = torch.zeros(len(own), dtype=torch.bool)

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor]) -> Uploaded:
        """Each participant sends its shared rows, all of them or those that changed most."""
        shared = self.server[table]
        everything = is_synchronised(round, self._sync_every)
        self._uploads[table] = {}
        for party, own in rows.items():
            chosen = self._choose(table, party, own, everything=everything)
            received = self.channel.send(self._packed(round, party, SERVER, table, chosen, own[chosen], everything))
            places, values = self._unpacked(received, chosen)
            if received.sender in self._uploads[table]:
                raise RunError(f"an upload of {table} by {received.sender}, who sent one already")
            self._sent[table][party] = torch.where(chosen[:, None], own, self._sent[table][party])
            self._seen[table][received.sender][places] = True
            ids = shared.places(received.sender, len(own))
            self._uploads[table][received.sender] = ids[places], values
        if everything:
            shared.rows = mean_over_holders(shared.rows, list(self._uploads[table].values()))
        return Uploaded(len(rows))

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """Each client's shared rows: all of them as the mean over holders, or the sums that most others have a part in."""
        everything = is_synchronised(round, self._sync_every)
        received = {}
        for party in parties:
            held, shared = self.server[table].holdings[party], self._shared[table][party]
            if everything:
                rows = self.server[table].rows[held]
                # The first broadcast says which rows are shared; afterwards the client knows.
                message = self._packed(round, SERVER, party, table, shared, rows[shared], round > 0)
                places, values = self._unpacked(self.channel.send(message), shared)
                received[party] = _received(len(held), places, values, torch.zeros_like(places))
                continue
            sums, counts = sums_of_others(self._uploads[table], party, self.server[table].rows)
            rng = generator(self.options.seed, "download ties", table, round, self.parties.index(party))
            count = num_selected(int(shared.sum()), self._sparsity)
            chosen = most_uploaded(counts[held] * shared, count, rng)
            message = self.channel.send(
                SparseRows.pack(round, SERVER, party, table, chosen, sums[held][chosen], counts[held][chosen])
            )
            assert isinstance(message, SparseRows)
            received[party] = _received(len(held), *message.unpack(), combine=True)
        return received

    def observed(self, table: Table) -> dict[str, Observed]:
        """What a client sent last of each row, and which rows it ever sent: the server can keep both."""
        return {party: Observed(self._sent[table][party], seen) for party, seen in self._seen[table].items()}

    def tensors(self) -> dict[str, Tensor]:
        """As in clear, and what each client sent."""
        kept = {
            f"{name}.{table}.{place}": parties[party]
            for name, of_table in (("sent", self._sent), ("seen", self._seen))
            for table, parties in of_table.items()
            for place, party in enumerate(self.parties)
        }
        return super().tensors() | kept

    def restore(self, held: Mapping[Table, Mapping[str, Holding]], tensors: Mapping[str, Tensor]) -> None:
        """As in clear."""
        super().restore(held, tensors)
        for table in self.server:
            self._find_shared(table)
            for place, party in enumerate(self.parties):
                self._sent[table][party] = tensors[f"sent.{table}.{place}"].clone()
                self._seen[table][party] = tensors[f"seen.{table}.{place}"].clone()

    def _find_shared(self, table: Table) -> None:
        """Which rows of each client another one holds too."""
        holdings = self.server[table].holdings
        count = torch.bincount(torch.cat(list(holdings.values())), minlength=len(self.server[table].names))
        self._shared[table] = {party: count[held] > 1 for party, held in holdings.items()}

    def _choose(self, table: Table, party: str, own: Tensor, *, everything: bool) -> Tensor:
        """Which of its rows `[n, W]` a client uploads, bool `[n]`."""
        shared = self._shared[table][party][: len(own)]
        if everything:
            return shared
        count = num_selected(int(self._shared[table][party].sum()), self._sparsity)
        changed = changes(own, self._sent[table][party]).masked_fill(~shared, -torch.inf)
        return largest(changed, min(count, int(shared.sum())))

    def _packed(
        self, round: int, sender: str, receiver: str, table: Table, chosen: Tensor, rows: Tensor, known: bool
    ) -> Rows | SparseRows:
        """Rows alone where the receiver knows which ones they are."""
        if known:
            return Rows.pack(round, sender, receiver, table, rows)
        return SparseRows.pack(round, sender, receiver, table, chosen, rows)

    def _unpacked(self, message: object, expected: Tensor) -> tuple[Tensor, Tensor]:
        """Places and rows of a message; of rows alone, those expected."""
        if isinstance(message, SparseRows):
            places, rows, _ = message.unpack()
            return places, rows
        assert isinstance(message, Rows)
        places, rows = torch.nonzero(expected)[:, 0], message.unpack()
        if len(places) != len(rows):
            raise RunError(f"{message.sender} sent {len(rows)} rows of {message.table}; {len(places)} expected")
        return places, rows


def _received(num_rows: int, places: Tensor, values: Tensor, counts: Tensor, *, combine: bool = False) -> Received:
    """What a client makes of rows at some places: it takes them over, or its own row and a sum become their mean (Eq. 4)."""
    taken = torch.zeros(num_rows, dtype=torch.bool).index_fill_(0, places, True)
    rows, own_share = torch.zeros(num_rows, values.shape[1]), torch.zeros(num_rows)
    rows[places] = combined(torch.zeros_like(values), values, counts)
    own_share[places] = 1 / (1.0 + counts)
    return Received(rows, taken, own_share if combine else None)
