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
from fkgsec.federation.messages import SERVER, Channel, Message, Rows, SparseRows
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import Table
from fkgsec.federation.server import SharedTable, mean_over_holders
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


def is_synchronised(round: int, sparse_rounds: int) -> bool:
    """Whether all rows are sent: every (s + 1)-th round, so that s sparse ones lie between two; with s = 0 never.

    Source: feds.txt III-E, F. Differs from III-B, where two sentences have it the other way round.
    """
    return round == 0 or (sparse_rounds > 0 and round % (sparse_rounds + 1) == 0)


class Selection:
    """What each client knows of one table: which of its rows another one holds too, and its rows as it sent them last.

    Attributes:
        shared: bool `[rows it receives]` by party. sent: float32 `[rows it uploads, W]` by party.
    """

    def __init__(self, options: FederationOptions) -> None:
        self._sparsity = float(options.setting("sparsity"))
        self.shared: dict[str, Tensor] = {}
        self.sent: dict[str, Tensor] = {}

    def align(self, table: SharedTable, rows: Tensor) -> None:
        """Find the shared rows. What a client sent last counts as the first rows `[N, W]` (feds.txt III-C)."""
        count = torch.bincount(torch.cat(list(table.holdings.values())), minlength=len(table.names))
        for party, held in table.holdings.items():
            self.shared[party] = count[held] > 1
            self.sent[party] = rows[held[: table.num_uploaded[party]]]

    def count(self, party: str) -> int:
        """K of a client, in both directions."""
        return num_selected(int(self.shared[party].sum()), self._sparsity)

    def choose(self, party: str, own: Tensor, *, everything: bool) -> Tensor:
        """Which of its rows `[n, W]` a client is to upload, bool `[n]`."""
        chosen = self.shared[party][: len(own)]
        if not everything:
            changed = changes(own, self.sent[party]).masked_fill(~chosen, -torch.inf)
            chosen = largest(changed, min(self.count(party), int(chosen.sum())))
        return chosen

    def remember(self, party: str, own: Tensor, chosen: Tensor) -> None:
        """The client has sent the chosen ones, bool `[n]`, of its rows `[n, W]`."""
        self.sent[party] = torch.where(chosen[:, None], own, self.sent[party])

    def tensors(self, prefix: str, parties: Sequence[str]) -> dict[str, Tensor]:
        """What a checkpoint must hold, by name."""
        return {f"{prefix}.{place}": self.sent[party] for place, party in enumerate(parties)}

    def restore(self, prefix: str, parties: Sequence[str], tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave, after `align`."""
        self.sent |= {party: tensors[f"{prefix}.{place}"] for place, party in enumerate(parties)}


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
        self._selection: dict[Table, Selection] = {table: Selection(options) for table in tables}
        # What the server knows: this round's uploads, as row numbers and rows, and which rows of a client ever crossed.
        self._uploads: dict[Table, dict[str, tuple[Tensor, Tensor]]] = {table: {} for table in tables}
        self._seen: dict[Table, dict[str, Tensor]] = {table: {} for table in tables}

    def initialise(self, table: Table, rows: Tensor) -> None:
        """As in clear; now clients can tell what changed."""
        super().initialise(table, rows)
        self._selection[table].align(self.server[table], rows)
        self._seen[table] = {
            party: torch.zeros(count, dtype=torch.bool) for party, count in self.server[table].num_uploaded.items()
        }

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor]) -> Uploaded:
        """Each participant sends its shared rows, all of them or those that changed most."""
        shared = self.server[table]
        everything = is_synchronised(round, int(self.options.setting("sparse_rounds")))
        self._uploads[table] = {}
        for party, own in rows.items():
            chosen = self._selection[table].choose(party, own, everything=everything)
            self._selection[table].remember(party, own, chosen)
            message = pack_chosen(round, party, SERVER, table, chosen, own, known=everything)
            received = self.channel.send(message)
            places, values = unpack_chosen(received, chosen)
            if received.sender in self._uploads[table]:
                raise RunError(f"an upload of {table} by {received.sender}, who sent one already")
            self._seen[table][received.sender][places] = True
            self._uploads[table][received.sender] = shared.places(received.sender, len(own))[places], values
        if everything:
            shared.rows = mean_over_holders(shared.rows, list(self._uploads[table].values()))
        return Uploaded(len(rows))

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """Each client's shared rows: all of them as the mean over holders, or the sums that most others have a part in."""
        server, selection = self.server[table], self._selection[table]
        if is_synchronised(round, int(self.options.setting("sparse_rounds"))):
            fresh = torch.full((len(server.names),), round == 0)
            for ids, _ in self._uploads[table].values():
                fresh[ids] = True
            return {party: send_shared(self.channel, round, server, selection, party, fresh) for party in parties}
        received = {}
        for party in parties:
            held = server.holdings[party]
            sums, counts = sums_of_others(self._uploads[table], party, server.rows)
            rng = generator(self.options.seed, "download ties", table, round, self.parties.index(party))
            chosen = most_uploaded(counts[held] * selection.shared[party], selection.count(party), rng)
            message = SparseRows.pack(round, SERVER, party, table, chosen, sums[held][chosen], counts[held][chosen])
            arrived = self.channel.send(message)
            assert isinstance(arrived, SparseRows)
            received[party] = combine_chosen(len(held), *arrived.unpack())
        return received

    def observed(self, table: Table) -> dict[str, Observed]:
        """What a client sent last of each row, and which rows it ever sent: the server can keep both."""
        return {party: Observed(self._selection[table].sent[party], seen) for party, seen in self._seen[table].items()}

    def tensors(self) -> dict[str, Tensor]:
        """As in clear, and what each client sent."""
        kept = super().tensors()
        for table, selection in self._selection.items():
            kept |= selection.tensors(f"sent.{table}", self.parties)
            kept |= {f"seen.{table}.{place}": self._seen[table][party] for place, party in enumerate(self.parties)}
        return kept

    def restore(self, held: Mapping[Table, Mapping[str, Holding]], tensors: Mapping[str, Tensor]) -> None:
        """As in clear."""
        super().restore(held, tensors)
        for table, selection in self._selection.items():
            selection.align(self.server[table], self.server[table].rows)
            selection.restore(f"sent.{table}", self.parties, tensors)
            self._seen[table] = {
                party: tensors[f"seen.{table}.{place}"].clone() for place, party in enumerate(self.parties)
            }


def pack_chosen(
    round: int, sender: str, receiver: str, table: Table, chosen: Tensor, rows: Tensor, *, known: bool
) -> Rows | SparseRows:
    """The chosen ones of `rows` `[n, W]`; where the receiver knows which these are, without saying so."""
    if known:
        return Rows.pack(round, sender, receiver, table, rows[chosen])
    return SparseRows.pack(round, sender, receiver, table, chosen, rows[chosen])


def unpack_chosen(message: Message, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Places int64 `[k]` and rows `[k, W]` of a message; of one that does not say which, those `expected`."""
    if isinstance(message, SparseRows):
        places, rows, _ = message.unpack()
        return places, rows
    assert isinstance(message, Rows)
    places = torch.nonzero(expected)[:, 0]
    if len(places) != message.num_rows:
        raise RunError(f"{message.sender} sent {message.num_rows} rows of {message.table}; {len(places)} expected")
    return places, message.unpack()


def send_shared(
    channel: Channel, round: int, server: SharedTable, selection: Selection, party: str, fresh: Tensor
) -> Received:
    """A client's shared rows as the server has them; the first broadcast also says which rows are shared.

    Those that are not `fresh`, bool `[N]`, nobody sent this time, since their holders sat the round out: they do not cross.
    """
    shared, held = selection.shared[party], server.holdings[party]
    chosen, rows = shared & fresh[held], server.rows[held]
    known = round > 0 and torch.equal(chosen, shared)
    message = pack_chosen(round, SERVER, party, server.table, chosen, rows, known=known)
    received = channel.send(message)
    if _header(received) != _header(message):
        raise RunError(f"{party} was to be sent {_header(message)}; got {_header(received)}")
    places, values = unpack_chosen(received, shared)
    taken = torch.zeros(len(shared), dtype=torch.bool).index_fill_(0, places, True)
    return Received(torch.zeros_like(rows).index_copy_(0, places, values), taken)


def _header(message: Message) -> tuple[object, ...]:
    """What a receiver knows of a message beforehand: kind, round, sender, receiver, table; rows where bits name them; width."""
    rows = message.num_rows if isinstance(message, SparseRows) else None
    width = message.width if isinstance(message, Rows | SparseRows) else None
    return message.label, message.round, message.sender, message.receiver, message.table, rows, width


def combine_chosen(num_rows: int, places: Tensor, sums: Tensor, counts: Tensor) -> Received:
    """Eq. 4 for the rows at `places`: what the client's own row becomes with a sum `[k, W]` of `counts` `[k]` others."""
    taken = torch.zeros(num_rows, dtype=torch.bool).index_fill_(0, places[counts > 0], True)
    rows = torch.zeros(num_rows, sums.shape[1])
    rows[places] = combined(torch.zeros_like(sums), sums, counts)
    return Received(rows, taken, torch.zeros(num_rows).index_copy_(0, places, 1 / (1.0 + counts)))
