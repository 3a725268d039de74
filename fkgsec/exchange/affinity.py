"""PFedEG: each client receives a mean of all clients' rows that weighs near clients more (pfedeg.txt section 3.4).

The server keeps every client's most recent upload, and sends each client its own mean of them: it needs single uploads.

Leakage: the server sees every client's names and rows.

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
from fkgsec.exchange.aggregation import AGGREGATIONS, Aggregation
from fkgsec.exchange.parts import Delivered, SharedTable
from fkgsec.federation.options import RunOptions


def shared_affinity(holdings: Sequence[Tensor]) -> Tensor:
    """Compute the overlap |E_i and E_j| / |E_i or E_j| of the clients' rows, float64 `[C, C]`.

    Args:
        holdings: int64 `[n]` of each client.

    Source: pfedeg.txt Eq. 4.
    """
    # Existence matrix of the clients, `[C, N]`: products of it count shared rows.
    holds = torch.stack(_existence(holdings))
    both = holds @ holds.T
    sizes = holds.sum(1)
    # Eq. 4. A client's weight of itself is the least of its weights of the others; the diagonal of 1 is never the least.
    weights = both / (sizes[:, None] + sizes - both)
    return weights.diagonal_scatter(weights.min(1).values)


def embedding_affinity(holdings: Sequence[Tensor], rows: Sequence[Tensor]) -> Tensor:
    """Sum e^cos over the rows that two clients share, float64 `[C, C]`; a client's weight of itself is 1 / e.

    Args:
        holdings: int64 `[n]` of each client. rows: each client's rows `[n, W]`.

    Source: pfedeg.txt Eq. 5.
    """
    count, size = len(holdings), 1 + max(int(ids.max()) for ids in holdings)
    # Position of each row of the table at each client, -1 if it does not hold the row.
    place = torch.full((count, size), -1)
    for client, ids in enumerate(holdings):
        place[client, ids] = torch.arange(len(ids))
    weights = torch.eye(count, dtype=torch.float64) / math.e
    for first in range(count):
        for second in range(first):
            # Eq. 5 for a pair of clients; it is symmetric.
            shared = (place[first] >= 0) & (place[second] >= 0)
            cosines = cosine_similarity(rows[first][place[first, shared]], rows[second][place[second, shared]], dim=1)
            weights[first, second] = weights[second, first] = cosines.double().exp().sum()
    return weights


def scaled(affinity: Tensor) -> Tensor:
    """Divide each client's weights by their sum.

    Args:
        affinity: `[C, C]`.

    Source: pfedeg.txt Eq. 6.
    """
    return affinity / affinity.sum(1, keepdim=True)


def supplementary(
    weights: Tensor, holdings: Sequence[Tensor], rows: Sequence[Tensor], *, mixing: float, num_rows: int
) -> list[Tensor]:
    """Compute the rows that each client receives, float32 `[n, W]`: a weighted mean over holders, mixed with its own row.

    Args:
        weights: `[C, C]` of Eq. 6.
        holdings: int64 `[n]` of each client. rows: `[n, W]` of each.
        mixing: share of the mean. num_rows: N.

    Source: pfedeg.txt Eq. 7-12. Differs: if the weights of all holders of a row are zero, which Eq. 4 allows, the paper
    divides by zero; here, the client's own row stays.
    """
    holds = torch.stack(_existence(holdings, num_rows))
    totals = weights @ holds
    received = []
    for client, holding in enumerate(holdings):
        total = torch.zeros(num_rows, rows[client].shape[1], dtype=torch.float64)
        # Eq. 7-11: the weighted sum of all clients' rows, divided below by the weights of those that hold the row.
        for other, ids in enumerate(holdings):
            total.index_add_(0, ids, weights[client, other] * rows[other].double())
        share = totals[client][holding][:, None]
        mean = torch.where(
            share > 0, total[holding] / share.clamp_min(torch.finfo(torch.float64).tiny), rows[client].double()
        )
        # Eq. 12: mix the supplementary knowledge with the client's own rows.
        received.append((mixing * mean + (1 - mixing) * rows[client]).float())
    return received


def _existence(holdings: Sequence[Tensor], num_rows: int | None = None) -> list[Tensor]:
    size = num_rows or 1 + max(int(ids.max()) for ids in holdings)
    return [torch.zeros(size, dtype=torch.float64).index_fill_(0, ids, 1) for ids in holdings]


class WeightedByAffinity(Aggregation):
    """Supplementary knowledge of each client about the rows that it uploads; the table does not change.

    Weights of clients do not enter: how much one counts for another follows from what they share.
    """

    needs = "single uploads"
    answers = "personal rows"
    keeps_uploads = True

    def __init__(self, shared: SharedTable, options: RunOptions) -> None:
        super().__init__(shared, options)
        self._uploads: dict[str, Tensor] = {}
        self._knowledge: dict[str, Tensor] = {}

    def begin(self) -> None:
        # The first rows count as each client's upload until it uploads.
        table = self.shared
        self._uploads = {party: table.rows[table.uploaded(party)] for party in table.parties}

    def aggregate(self, round: int, previous: Tensor, delivered: Delivered) -> Tensor:
        for party, upload in delivered.uploads.items():
            if upload.rows.shape != self._uploads[party].shape:
                raise RunError(f"{party} uploaded {list(upload.rows.shape)} of {self.shared.table}, unlike before")
            # A client that sits a round out counts with its last upload.
            self._uploads[party] = upload.rows
        self._share()
        return previous

    def answer(self, round: int, party: str | None, holding: Tensor) -> Tensor:
        # The first rows in round 0, later the client's own mean of the rows that it uploads.
        if round == 0 or party is None:
            return super().answer(round, party, holding)
        # No upload has arrived since the start or a resume.
        if not self._knowledge:
            self._share()
        return self._knowledge[party]

    def _share(self) -> None:
        uploads, holdings = list(self._uploads.values()), [self.shared.uploaded(party) for party in self._uploads]
        by_embedding = self.options.settings.affinity == "embedding"
        affinity = embedding_affinity(holdings, uploads) if by_embedding else shared_affinity(holdings)
        mixing, num_rows = self.options.settings.mixing, len(self.shared.rows)
        knowledge = supplementary(scaled(affinity), holdings, uploads, mixing=mixing, num_rows=num_rows)
        self._knowledge = dict(zip(self._uploads, knowledge, strict=True))

    def tensors(self) -> dict[str, Tensor]:
        return {str(place): rows for place, rows in enumerate(self._uploads.values())}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._uploads = {party: tensors[str(place)] for place, party in enumerate(self._uploads)}


AGGREGATIONS.register("affinity", WeightedByAffinity)
