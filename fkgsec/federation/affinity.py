"""PFedEG: each client receives a mean of all clients' rows that weighs near clients more (pfedeg.txt section 3.4).

Legend: `C` clients, `n` rows of one of them, `N` rows of the table, `W` their width. `holdings` has int64 `[n]` for each client:
the rows of the table that it has, in its order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from fkgsec.errors import RunError
from fkgsec.federation.exchange import Exchange, Holding, Received, Uploaded
from fkgsec.federation.messages import SERVER, Channel, Rows
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import Table


def shared_affinity(holdings: Sequence[Tensor]) -> Tensor:
    """|E_i and E_j| / |E_i or E_j|, float64 `[C, C]`; a client's weight of itself is its least of the others'.

    Source: pfedeg.txt Eq. 4.
    """
    holds = torch.stack(_existence(holdings))
    both = holds @ holds.T
    sizes = holds.sum(1)
    weights = both / (sizes[:, None] + sizes - both)  # 1 of itself, which is never the least
    return weights.diagonal_scatter(weights.min(1).values)


def embedding_affinity(holdings: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
    """The sum of e^cos over the rows that two clients share, float64 `[C, C]`; a client's weight of itself is 1 / e.

    Args:
        rows: each client's rows `[n, W]`.

    Source: pfedeg.txt Eq. 5.
    """
    count, size = len(holdings), 1 + max(int(ids.max()) for ids in holdings)
    place = torch.full((count, size), -1)
    for client, ids in enumerate(holdings):
        place[client, ids] = torch.arange(len(ids))
    weights = torch.eye(count, dtype=torch.float64) / math.e
    for first in range(count):
        for second in range(first):
            shared = (place[first] >= 0) & (place[second] >= 0)
            cosines = cosine_similarity(rows[first][place[first, shared]], rows[second][place[second, shared]], dim=1)
            weights[first, second] = weights[second, first] = cosines.double().exp().sum()
    return weights


def scaled(affinity: Tensor) -> Tensor:
    """Each client's weights over their sum. Source: pfedeg.txt Eq. 6."""
    return affinity / affinity.sum(1, keepdim=True)


def supplementary(
    weights: Tensor, holdings: Sequence[Tensor], rows: Sequence[Tensor], *, mixing: float, num_rows: int
) -> list[Tensor]:
    """What each client receives, float32 `[n, W]`: mixing times the weighted mean over holders, the rest its own row.

    Args:
        weights: `[C, C]` of Eq. 6. num_rows: N.

    Source: pfedeg.txt Eq. 7-12. Differs: where the weights of all holders of a row are zero, which Eq. 4 allows, the paper
    divides by zero; the client's own row stays.
    """
    holds = torch.stack(_existence(holdings, num_rows))
    totals = weights @ holds
    received = []
    for client, own in enumerate(holdings):
        total = torch.zeros(num_rows, rows[client].shape[1], dtype=torch.float64)
        for other, ids in enumerate(holdings):
            total.index_add_(0, ids, weights[client, other] * rows[other].double())
        share = totals[client][own][:, None]
        mean = torch.where(
            share > 0, total[own] / share.clamp_min(torch.finfo(torch.float64).tiny), rows[client].double()
        )
        received.append((mixing * mean + (1 - mixing) * rows[client]).float())
    return received


def _existence(holdings: Sequence[Tensor], num_rows: int | None = None) -> list[Tensor]:
    size = num_rows or 1 + max(int(ids.max()) for ids in holdings)
    return [torch.zeros(size, dtype=torch.float64).index_fill_(0, ids, 1) for ids in holdings]


class AffinityExchange(Exchange):
    """The server keeps every client's last upload, and sends each client its own mean of them.

    Leakage: the server sees every client's names and rows.
    """

    def __init__(
        self, channel: Channel, options: FederationOptions, parties: Sequence[str], tables: Sequence[Table], run: str
    ) -> None:
        super().__init__(channel, options, parties, tables, run)
        self._uploads: dict[Table, dict[str, Tensor]] = {table: {} for table in tables}

    def initialise(self, table: Table, rows: Tensor) -> None:
        """As in clear; until a client uploads, the server takes the first rows for its."""
        super().initialise(table, rows)
        shared = self.server[table]
        self._uploads[table] = {
            party: rows[shared.holdings[party][: shared.num_uploaded[party]]] for party in self.parties
        }

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor]) -> Uploaded:
        """Participants send their rows, which the server keeps."""
        for party, own in rows.items():
            message = self.channel.send(Rows.pack(round, party, SERVER, table, own))
            assert isinstance(message, Rows)
            received = message.unpack()
            if received.shape != self._uploads[table][message.sender].shape:
                raise RunError(f"{message.sender} uploaded {list(received.shape)} of {table}, unlike before")
            self._uploads[table][message.sender] = received
        return Uploaded(len(rows))

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """The first rows in round 0, each client's supplementary knowledge afterwards; what it does not upload stays its own."""
        if round == 0:
            return super().broadcast(round, table, parties)
        shared = self.server[table]
        uploads = [self._uploads[table][party] for party in self.parties]
        holdings = [shared.holdings[party][: len(own)] for party, own in zip(self.parties, uploads, strict=True)]
        by_embedding = self.options.setting("affinity") == "embedding"
        affinity = embedding_affinity(holdings, uploads) if by_embedding else shared_affinity(holdings)
        mixing, num_rows = float(self.options.setting("mixing")), len(shared.names)
        knowledge = supplementary(scaled(affinity), holdings, uploads, mixing=mixing, num_rows=num_rows)
        received = {}
        for party in parties:
            own = knowledge[self.parties.index(party)]
            message = self.channel.send(Rows.pack(round, SERVER, party, table, own))
            assert isinstance(message, Rows)
            taken = torch.arange(len(shared.holdings[party])) < len(own)
            rows = torch.zeros(len(taken), own.shape[1])
            rows[: len(own)] = message.unpack()
            received[party] = Received(rows, taken)
        return received

    def tensors(self) -> dict[str, Tensor]:
        """As in clear, and what each client uploaded last."""
        uploads = {
            f"upload.{table}.{place}": parties[party]
            for table, parties in self._uploads.items()
            for place, party in enumerate(self.parties)
        }
        return super().tensors() | uploads

    def restore(self, held: Mapping[Table, Mapping[str, Holding]], tensors: Mapping[str, Tensor]) -> None:
        """As in clear."""
        super().restore(held, tensors)
        for table in self.server:
            self._uploads[table] = {
                party: tensors[f"upload.{table}.{place}"] for place, party in enumerate(self.parties)
            }
