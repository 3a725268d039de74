"""FedS: of the rows that clients share, each side sends those that matter most this round (feds.txt section III).

`TopK` is the codec (which rows are sent, in both directions), `SumOfOthers` the aggregation. Only rows that
another client holds too are ever sent; the first broadcast tells each client which these are. Synchronization rounds send all.

Leakage: the server sees every client's names, which of them changed most in each round, and the rows that were sent. A client
learns which of its names others hold, and how many of them uploaded each.

Where a transport delivers the sum alone, a client chooses by itself and masks zeros elsewhere; the server ranks downloads by the
count of all uploaders (FedS: without the receiver, whom it cannot tell), and the client subtracts what it put into the sum before
it combines (Eq. 3, 4). A row that it alone sent comes back as nothing, so some downloads are wasted. A row counts as sent (Eq. 1)
if the client's part of it was in an opened sum. That use is ours; feds.txt has no secure form.

Legend: `n` rows of one client, `N` rows of the table, `W` their width.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fkgsec.errors import RunError
from fkgsec.exchange.aggregation import AGGREGATIONS, Aggregation, Answers
from fkgsec.exchange.codec import CODECS, ClientCodec, Codec, Content, Contribution, ServerCodec
from fkgsec.exchange.parts import Delivered, Holding, Observed, Received, SharedTable, Upload
from fkgsec.federation.messages import SERVER, AnyMessage, Rows, SparseRows
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator


def num_selected(num_shared: int, sparsity: float) -> int:
    """Compute the number of rows to send: K = max(1, floor(N_c p)), at most all.

    Args:
        num_shared: N_c, rows that others hold too. sparsity: p.

    Source: feds.txt Eq. 2.
    """
    # The tiny addend undoes rounding: 0.29 * 100 is 28.999... in floating point.
    return min(num_shared, max(1, int(num_shared * sparsity + 1e-9)))


def changes(rows: Tensor, history: Tensor) -> Tensor:
    """Score the change of each row: cosine distance to its last uploaded value, float `[n]`.

    Args:
        rows, history: `[n, W]`, current and last uploaded.

    Source: feds.txt Eq. 1.
    """
    return 1 - cosine_similarity(rows, history, dim=1)


def largest(values: Tensor, count: int) -> Tensor:
    """Mark the `count` largest values, bool `[n]`; among equals the first.

    Args:
        values: `[n]`.
    """
    chosen = torch.zeros(len(values), dtype=torch.bool)
    # A stable sort makes the choice reproducible.
    chosen[torch.sort(values, descending=True, stable=True).indices[:count]] = True
    return chosen


def most_uploaded(counts: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Mark the `count` rows that most clients uploaded, bool `[n]`, but none without an upload.

    Args:
        counts: uploads of each row, int64 `[n]`.
        rng: breaks ties.

    Source: feds.txt III-D.
    """
    # A random order before a stable sort breaks ties at random.
    order = torch.from_numpy(rng.permutation(len(counts)))
    chosen = torch.zeros(len(counts), dtype=torch.bool)
    chosen[order[largest(counts[order], count)]] = True
    return chosen & (counts > 0)


def is_synchronised(round: int, sparse_rounds: int) -> bool:
    """Return whether all shared rows are sent: after every `sparse_rounds` sparse rounds; if it is 0, only in round 0.

    Args:
        sparse_rounds: sparse rounds between two synchronizations.

    Source: feds.txt III-E, F. Differs from III-B, where two sentences have it the other way round.
    """
    return round == 0 or (sparse_rounds > 0 and round % (sparse_rounds + 1) == 0)


def _schedule(options: RunOptions, round: int) -> bool:
    return is_synchronised(round, options.settings.sparse_rounds)


class TopKClient(ClientCodec):
    """The client's half: it knows which of its rows others hold, and its rows as it sent them last.

    Attributes:
        shared: bool `[num_rows]`. history: float32 `[num_uploaded, W]`, the first rows until it sends others (feds.txt III-C).
    """

    def __init__(self, holding: Holding, options: RunOptions, answers: Answers) -> None:
        super().__init__(holding, options, answers)
        self.shared = torch.zeros(self.num_rows, dtype=torch.bool)
        self.history: Tensor | None = None
        # The round of the last opened sum, and the client's part of it.
        self._summed: tuple[int, Contribution] | None = None

    def encode(self, round: int, rows: Tensor) -> Contribution:
        chosen = self.shared[: len(rows)]
        if not _schedule(self.options, round):
            assert self.history is not None
            count = num_selected(int(self.shared.sum()), self.options.settings.sparsity)
            # feds.txt III-C: the K shared rows with the largest change since they were last sent (Eq. 1, 2).
            changed = changes(rows, self.history).masked_fill(~chosen, -torch.inf)
            chosen = largest(changed, min(count, int(chosen.sum())))
        return Contribution(chosen, rows[chosen])

    def pack(self, round: int, party: str, table: Table, contribution: Contribution) -> AnyMessage:
        # In synchronized rounds the server knows which rows they are.
        if _schedule(self.options, round):
            return Rows.pack(round, party, SERVER, table, contribution.rows)
        return SparseRows.pack(round, party, SERVER, table, contribution.chosen, contribution.rows)

    def sent(self, round: int, rows: Tensor, contribution: Contribution, summed: Contribution | None = None) -> None:
        assert self.history is not None
        # Suppressed rows count as sent too. Otherwise a client would choose them in vain, round after round.
        self.history = torch.where(contribution.chosen[:, None], rows, self.history)
        self._summed = None if summed is None else (round, summed)

    def read(self, message: AnyMessage, num_rows: int | None = None) -> Content:
        # Rows to take over; or, in sparse rounds, sums with the number of uploads in a last column.
        if isinstance(message, SparseRows):
            if message.num_rows != self.num_rows:
                raise RunError(f"{message.receiver} was sent {message.num_rows} rows; its rows are {self.num_rows}")
            indices, rows, counts = message.unpack()
            if self._counted(message.round):
                return Content(indices, torch.column_stack([rows, counts.float()]), rows, counts)
            return Content(indices, rows, rows)
        if not isinstance(message, Rows) or self._counted(message.round):
            raise RunError(f"{message.receiver} was to be sent sparse rows of {message.table}; got {message.label}")
        # In synchronized rounds the message names no rows: all shared ones, in order.
        indices = torch.nonzero(self.shared)[:, 0]
        if len(indices) != message.num_rows:
            raise RunError(f"{message.sender} sent {message.num_rows} rows of {message.table}; {len(indices)} expected")
        rows = message.unpack()
        return Content(indices, rows, rows)

    def take(self, round: int, content: Content) -> Received:
        # Replace the shared rows that were sent; combine a sum with the client's own row.
        if self._counted(round):
            return self._combined(content.places, *self._of_others(round, content))
        selected = torch.zeros(self.num_rows, dtype=torch.bool).index_fill_(0, content.places, True)
        rows = torch.zeros(self.num_rows, content.rows.shape[1]).index_copy_(0, content.places, content.rows)
        if round == 0:
            self.shared = selected
            if self.history is None:
                self.history = rows[: self.num_uploaded]
        return Received(rows, selected)

    def tensors(self) -> dict[str, Tensor]:
        return {"shared": self.shared} | ({} if self.history is None else {"history": self.history})

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        # Before the first broadcast there is no history.
        self.shared, self.history = tensors["shared"], tensors.get("history")

    def _counted(self, round: int) -> bool:
        return self.answers == "counted sums" and not _schedule(self.options, round)

    def _combined(self, places: Tensor, sums: Tensor, counts: Tensor) -> Received:
        """Combine the client's rows E at `places` with sums A `[k, W]` of `counts` P `[k]` other clients.

        Source: feds.txt Eq. 4, w = 1.
        """
        # Eq. 4: (A + w E) / (w + P). The returned rows are A / (w + P); the share of E is w / (w + P).
        selected = torch.zeros(self.num_rows, dtype=torch.bool).index_fill_(0, places[counts > 0], True)
        rows, shares = torch.zeros(self.num_rows, sums.shape[1]), torch.zeros(self.num_rows)
        # Division by the client's weight plus the counts, which include the weights of the others.
        rows[places] = sums / (self.weight + counts)[:, None]
        return Received(rows, selected, shares.index_copy_(0, places, self.weight / (float(self.weight) + counts)))

    def _of_others(self, round: int, content: Content) -> tuple[Tensor, Tensor]:
        """Subtract the client's own part from sums and counts, as it was encoded: a value may have been clipped."""
        places, sums, counts = content.places, content.values, content.rows[:, -1].long()
        # Only a client whose part is in this round's sum has something to subtract.
        if self._summed is None or self._summed[0] != round:
            return sums, counts
        included, values = self._summed[1]
        uploads = torch.zeros(self.num_rows, sums.shape[1], dtype=torch.float64)
        mine = torch.zeros(self.num_rows, dtype=torch.int64)
        uploads[: len(included)][included], mine[: len(included)][included] = values, self.weight
        return (sums - uploads[places]).float(), counts - mine[places]


class TopKServer(ServerCodec):
    """The server's half: the shared rows, the renewed rows, and the last upload of each row of each client."""

    sends_changes = True

    def __init__(self, shared: SharedTable, options: RunOptions, answers: Answers) -> None:
        super().__init__(shared, options, answers)
        self._shared: dict[str, Tensor] = {}
        self._seen: dict[str, Observed] = {}

    def begin(self) -> None:
        # Find the shared rows. The first rows count as the clients' last uploads.
        table = self.shared
        # Rows that only one client holds are never transmitted (feds.txt III-B).
        count = torch.bincount(torch.cat(list(table.holdings.values())), minlength=len(table.names))
        self._shared = {party: count[holding] > 1 for party, holding in table.holdings.items()}
        # After a start or a resume, all rows count as renewed.
        self._renewed = torch.ones(len(table.names), dtype=torch.bool)
        self._seen = {
            party: Observed(table.rows[table.uploaded(party)], torch.zeros(number, dtype=torch.bool))
            for party, number in table.num_uploaded.items()
        }

    def partial(self, round: int) -> bool:
        return not _schedule(self.options, round)

    def crossed(self, message: AnyMessage) -> Tensor:
        # Those that it names, else all shared ones.
        if isinstance(message, SparseRows):
            return message.unpack()[0]
        return torch.nonzero(self._shared[message.receiver])[:, 0]

    def accept(self, round: int, message: AnyMessage) -> Upload:
        allowed_rows = self.shared.uploaded(message.sender)
        if isinstance(message, SparseRows):
            self.shared.places(message.sender, message.num_rows)
            places, values, _ = message.unpack()
        elif isinstance(message, Rows):
            places = torch.nonzero(self._shared[message.sender][: len(allowed_rows)])[:, 0]
            if len(places) != message.num_rows:
                raise RunError(
                    f"{message.sender} sent {message.num_rows} rows of {message.table}; {len(places)} expected"
                )
            values = message.unpack()
        else:
            raise RunError(f"{message.sender} uploaded {message.label} of {message.table}; rows expected")
        if message.width != self.shared.rows.shape[1]:
            raise RunError(
                f"{message.sender} uploaded rows of {message.table} of width {message.width}; "
                f"{self.shared.rows.shape[1]} expected"
            )
        # Sparse uploads renew some rows only. The last value of each row is what an adversary at the server knows.
        before = self._seen[message.sender]
        self._seen[message.sender] = Observed(
            before.rows.index_copy(0, places, values), before.seen.index_fill(0, places, True)
        )
        return Upload(allowed_rows[places], values, self.shared.weights[message.sender])

    def publish(self, aggregated: Tensor, delivered: Delivered) -> None:
        super().publish(aggregated, delivered)
        self._renewed = delivered.renewed()

    def pack(self, round: int, party: str, content: Tensor) -> AnyMessage:
        # The shared rows that a client uploaded, or of counted sums the K with most uploads.
        table, shared = self.shared.table, self._shared[party]
        if self.answers == "counted sums" and not _schedule(self.options, round):
            sums, counts = content[:, :-1], content[:, -1].long()
            rng = generator(self.options.seed, "download ties", table, round, self.shared.parties.index(party))
            # feds.txt III-D: the server sends the K rows to which most clients contributed, ties at random.
            number = num_selected(int(shared.sum()), self.options.settings.sparsity)
            chosen = most_uploaded(counts * shared, number, rng)
            return SparseRows.pack(round, SERVER, party, table, chosen, sums[chosen], counts[chosen])
        # Rows without an upload this round are not sent. The first broadcast tells the client which of its rows are shared.
        chosen = shared & (self._renewed[self.shared.holdings[party]] | (round == 0))
        if round > 0 and torch.equal(chosen, shared):
            return Rows.pack(round, SERVER, party, table, content[chosen])
        return SparseRows.pack(round, SERVER, party, table, chosen, content[chosen])

    def observed(self) -> dict[str, Observed]:
        return self._seen

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{name}.{self.shared.parties.index(party)}": tensor
            for party, seen in self._seen.items()
            for name, tensor in seen._asdict().items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for party in self._seen:
            place = self.shared.parties.index(party)
            self._seen[party] = Observed(tensors[f"rows.{place}"], tensors[f"seen.{place}"])


class SumOfOthers(Aggregation):
    """In synchronized rounds the mean over holders; else for each client the sum over the other clients, with their number.

    If only the sum is delivered, a client receives the sum of all, itself included. Source: feds.txt Eq. 3.
    """

    answers = "counted sums"

    def __init__(self, shared: SharedTable, options: RunOptions) -> None:
        super().__init__(shared, options)
        self._delivered: Delivered | None = None

    def aggregate(self, round: int, previous: Tensor, delivered: Delivered) -> Tensor:
        # The table changes in synchronized rounds only.
        self._delivered = delivered
        return delivered.sum().mean(previous) if _schedule(self.options, round) else previous

    def answer(self, round: int, party: str | None, holding: Tensor) -> Tensor:
        # Rows of the table; in sparse rounds sums `[n, W]` with counts in a last column.
        if _schedule(self.options, round):
            return super().answer(round, party, holding)
        assert self._delivered is not None
        # Eq. 3: the sum over the other clients that uploaded the row; their number is the priority.
        total, counts = self._delivered.sum(without=party)
        return torch.column_stack([total.float(), counts.float()])[holding]


CODECS.register("top-k", Codec(TopKClient, TopKServer, frozenset({"rows", "counted sums"}), chooses_rows=True))
AGGREGATIONS.register("sum of others", SumOfOthers)
