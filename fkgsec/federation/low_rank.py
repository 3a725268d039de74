"""FedE-SVD: what an entity's row changed by crosses as a few singular triplets of it, taken as a matrix.

Legend: `n` rows, `W` their width, `k` columns of the matrix, `m = W / k` its rows, `r` singular values kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fkgsec.federation.exchange import Exchange, Holding, Observed, Received, Uploaded
from fkgsec.federation.messages import SERVER, Channel, LowRankRows
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import Table
from fkgsec.federation.server import mean_over_holders


class Factors(NamedTuple):
    """Singular triplets of `n` matrices: left `[n, m, r]`, values `[n, r]`, right `[n, k, r]`."""

    left: Tensor
    values: Tensor
    right: Tensor

    def rows(self) -> Tensor:
        """The matrices that they make, each laid out as a row: `[n, m k]`."""
        return ((self.left * self.values[:, None]) @ self.right.transpose(1, 2)).flatten(1)


def factorise(updates: Tensor, *, columns: int, rank: int) -> Factors:
    """The `rank` largest singular triplets of each row of `updates` `[n, W]`, taken as a matrix of `columns` columns.

    Source: feds.txt VI-B.
    """
    matrices = updates.unflatten(1, (-1, columns))
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    return Factors(left[:, :, :rank], values[:, :rank], right.transpose(1, 2)[:, :, :rank])


def orthogonality(left: Tensor, right: Tensor) -> Tensor:
    """(|U^T U - I|_F^2 + |V^T V - I|_F^2) / r^2 of each of `n` pairs `[n, m, r]`, `[n, k, r]`. Source: feds.txt Eq. 7."""
    return (_off_orthogonal(left) + _off_orthogonal(right)) / left.shape[2] ** 2


def _off_orthogonal(side: Tensor) -> Tensor:
    identity = torch.eye(side.shape[2], dtype=side.dtype, device=side.device)
    return (side.transpose(1, 2) @ side - identity).square().sum((1, 2))


class LowRankExchange(Exchange):
    """Clients send what their rows changed by, factorised; the server sends the mean of it over holders, factorised too.

    Every client receives every broadcast: a change is of use only to who has what it changes, so `parties` is not asked.
    Leakage: the server sees every client's names, and its rows up to what the factorisation leaves out.
    Source: feds.txt VI-B.
    """

    def __init__(
        self, channel: Channel, options: FederationOptions, parties: Sequence[str], tables: Sequence[Table], run: str
    ) -> None:
        super().__init__(channel, options, parties, tables, run)
        self._columns, self._rank = int(options.setting("columns")), int(options.setting("rank"))
        self._change: dict[Table, Factors] = {}  # of the round: what the server sends
        self._before: dict[Table, Tensor] = {}  # the rows that it changes
        self._seen: dict[Table, dict[str, Tensor]] = {table: {} for table in tables}

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor]) -> Uploaded:
        """See the class."""
        shared = self.server[table]
        changes = []
        for party, own in rows.items():
            held = shared.holdings[party][: len(own)]
            message = LowRankRows.pack(round, party, SERVER, table, self._factorise(own - shared.rows[held]))
            received = self.channel.send(message)
            assert isinstance(received, LowRankRows)
            change = Factors(*received.unpack()).rows()
            places = shared.places(received.sender, len(change))
            self._seen[table][party] = shared.rows[places] + change
            changes.append((places, change))
        self._before[table] = shared.rows
        self._change[table] = self._factorise(mean_over_holders(torch.zeros_like(shared.rows), changes))
        shared.rows = shared.rows + self._change[table].rows()
        return Uploaded(len(rows))

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """The whole rows in round 0, their changes afterwards."""
        if table not in self._change:
            return super().broadcast(round, table, self.parties)
        received = {}
        for party in self.parties:
            places = self.server[table].holdings[party]
            own = Factors(*(part[places] for part in self._change[table]))
            message = self.channel.send(LowRankRows.pack(round, SERVER, party, table, own))
            assert isinstance(message, LowRankRows)
            received[party] = Received(self._before[table][places] + Factors(*message.unpack()).rows())
        return received

    def observed(self, table: Table) -> dict[str, Observed]:
        """Each client's rows as its last upload gives them."""
        return {
            party: Observed(rows, torch.ones(len(rows), dtype=torch.bool)) for party, rows in self._seen[table].items()
        }

    def tensors(self) -> dict[str, Tensor]:
        """As in clear, and what was seen of each client."""
        seen = {
            f"seen.{table}.{self.parties.index(party)}": rows
            for table, parties in self._seen.items()
            for party, rows in parties.items()
        }
        return super().tensors() | seen

    def restore(self, held: Mapping[Table, Mapping[str, Holding]], tensors: Mapping[str, Tensor]) -> None:
        """As in clear."""
        super().restore(held, tensors)
        for table, seen in self._seen.items():
            for place, party in enumerate(self.parties):
                if f"seen.{table}.{place}" in tensors:
                    seen[party] = tensors[f"seen.{table}.{place}"]

    def _factorise(self, updates: Tensor) -> Factors:
        return factorise(updates, columns=self._columns, rank=self._rank)
