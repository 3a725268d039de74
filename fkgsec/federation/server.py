"""The server's side: which rows each client holds, and the aggregation of what they upload."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.federation.messages import Alignment, Rows
from fkgsec.federation.recipes import Table


def mean_over_holders(previous: Tensor, uploads: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The plain mean of each row over the clients that uploaded it, `[n, width]`.

    Args:
        previous: float `[n, width]`, kept where nobody uploaded the row.
        uploads: pairs (row numbers int64 `[m]`, rows float `[m, width]`), summed in this order.

    Source: fedr.txt Algorithm 1 line 8 (sum of masked rows divided by the sum of masks). Differs: the published codes set
    rows nobody holds to zero, and sum over clients that did not train when only a part takes part.
    """
    total, holders = torch.zeros_like(previous), torch.zeros(len(previous), 1)
    for ids, rows in uploads:
        total.index_add_(0, ids, rows)
        holders.index_add_(0, ids, torch.ones(len(ids), 1))
    return torch.where(holders > 0, total / holders.clamp_min(1), previous)


@dataclass
class SharedTable:
    """One shared table on the server, which knows rows by the names that clients sent.

    Attributes:
        names: the union of names in order of first arrival.
        rows: float32 `[len(names), width]`.
        holdings: for each client (party name), the rows it receives; the first `num_uploaded[party]` it also uploads.
    """

    table: Table
    names: list[str] = field(default_factory=list)
    rows: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    holdings: dict[str, Tensor] = field(default_factory=dict)
    num_uploaded: dict[str, int] = field(default_factory=dict)

    def align(self, message: Alignment) -> None:
        """Take in a client's names. Raises `RunError` for a second alignment of a client or a name given twice."""
        if message.sender in self.holdings:
            raise RunError(f"{message.sender} sent a second alignment of {self.table}")
        if len(set(message.names)) != len(message.names):
            raise RunError(f"{message.sender} named a row of {self.table} twice")
        place = {name: number for number, name in enumerate(self.names)}
        for name in message.names:
            if name not in place:
                place[name] = len(self.names)
                self.names.append(name)
        self.holdings[message.sender] = torch.tensor([place[name] for name in message.names], dtype=torch.int64)
        self.num_uploaded[message.sender] = message.num_uploaded

    def places(self, sender: str, num_rows: int) -> Tensor:
        """The rows that a client's upload of so many is of. Raises `RunError` for an unknown sender or another number."""
        if sender not in self.holdings:
            raise RunError(f"an upload of {self.table} by {sender}, who is unknown")
        ids = self.holdings[sender][: self.num_uploaded[sender]]
        if num_rows != len(ids):
            raise RunError(f"{sender} uploaded {num_rows} rows of {self.table}; {len(ids)} expected")
        return ids

    def aggregate(self, uploads: list[Rows]) -> None:
        """Replace rows by the mean over their holders. Raises `RunError` for unknown or repeated senders and wrong shapes."""
        pairs, seen = [], set()
        for upload in uploads:
            if upload.sender in seen:
                raise RunError(f"an upload of {self.table} by {upload.sender}, who sent one already")
            seen.add(upload.sender)
            ids, rows = self.places(upload.sender, upload.num_rows), upload.unpack()
            if rows.shape[1] != self.rows.shape[1]:
                raise RunError(
                    f"{upload.sender} uploaded rows of {self.table} of width {rows.shape[1]}; {self.rows.shape[1]} expected"
                )
            pairs.append((ids, rows))
        self.rows = mean_over_holders(self.rows, pairs)

    def initialise(self, rows: np.ndarray | Tensor) -> None:
        """Set the first rows, one for each name."""
        self.rows = torch.as_tensor(rows)
