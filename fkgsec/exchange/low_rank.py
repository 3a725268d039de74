"""FedE-SVD: the change of a client's row, taken as a matrix, is transmitted as a few singular triplets.

Clients send their changes factorized. The server sends the aggregated change factorized too, and applies what it sends. The
codec truncates, so it works with any aggregation of rows. A change is of use only to a client that has the row before it, so
every client receives every broadcast. With secure sums, clients upload their last received rows plus the truncated change,
unshortened; broadcasts stay factorized.

Leakage: the server sees every client's names, and its rows except for what the factorization omits.
Source: feds.txt VI-B.

Legend: `n` rows, `W` their width, `k` columns of the matrix, `m = W / k` its rows, `r` singular values kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.exchange.aggregation import Answers
from fkgsec.exchange.codec import CODECS, ClientCodec, Codec, Content, Contribution, ServerCodec
from fkgsec.exchange.parts import Delivered, Holding, Observed, Received, SharedTable, Sum, Upload
from fkgsec.federation.messages import SERVER, AnyMessage, LowRankRows
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import Table


class Factors(NamedTuple):
    """Singular triplets of `n` matrices: left `[n, m, r]`, values `[n, r]`, right `[n, k, r]`."""

    left: Tensor
    values: Tensor
    right: Tensor

    def rows(self) -> Tensor:
        """Multiply the factors out, and lay each matrix out as a row: `[n, m k]`."""
        return ((self.left * self.values[:, None]) @ self.right.transpose(1, 2)).flatten(1)

    def flattened(self) -> Tensor:
        """Concatenate the numbers of each triplet: `[n, m r + r + k r]`."""
        return torch.cat([self.left.flatten(1), self.values, self.right.flatten(1)], dim=1)

    @classmethod
    def unflattened(cls, rows: Tensor, *, columns: int, rank: int) -> Factors:
        """Undo `flattened`.

        Args:
            rows: `[n, m r + r + k r]`. columns: k. rank: r.
        """
        height = rows.shape[1] // rank - 1 - columns
        left, values, right = rows.split([height * rank, rank, columns * rank], dim=1)
        return cls(left.unflatten(1, (height, rank)), values, right.unflatten(1, (columns, rank)))


def factorise(updates: Tensor, *, columns: int, rank: int) -> Factors:
    """Compute the largest singular triplets of each row, taken as a matrix.

    Args:
        updates: `[n, W]`.
        columns: k; it divides W. rank: r.

    Source: feds.txt VI-B.
    """
    matrices = updates.unflatten(1, (-1, columns))
    # feds.txt VI-B: one singular value decomposition per row, as a matrix of m rows and k columns.
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    return Factors(left[:, :, :rank], values[:, :rank], right.transpose(1, 2)[:, :, :rank])


def orthogonality(left: Tensor, right: Tensor) -> Tensor:
    """Compute (|U^T U - I|_F^2 + |V^T V - I|_F^2) / r^2 for each pair.

    Args:
        left: `[n, m, r]`. right: `[n, k, r]`.

    Source: feds.txt Eq. 7.
    """
    return (_off_orthogonal(left) + _off_orthogonal(right)) / left.shape[2] ** 2


def _off_orthogonal(side: Tensor) -> Tensor:
    identity = torch.eye(side.shape[2], dtype=side.dtype, device=side.device)
    return (side.transpose(1, 2) @ side - identity).square().sum((1, 2))


def _factorised(changes: Tensor, options: RunOptions) -> Factors:
    return factorise(changes, columns=options.settings.columns, rank=options.settings.rank)


class LowRankClient(ClientCodec):
    """The client's half: it knows the rows that the server has of it, `[n, W]`, from what it received."""

    def __init__(self, holding: Holding, options: RunOptions, answers: Answers) -> None:
        super().__init__(holding, options, answers)
        self.received: Tensor | None = None
        self._change: Factors | None = None

    def encode(self, round: int, rows: Tensor) -> Contribution:
        assert self.received is not None
        # The server has the received rows, so the change relative to them is enough.
        before = self.received[: len(rows)]
        self._change = _factorised(rows.float() - before, self.options)
        return super().encode(round, before + self._change.rows())

    def pack(self, round: int, party: str, table: Table, contribution: Contribution) -> AnyMessage:
        assert self._change is not None
        return LowRankRows.pack(round, party, SERVER, table, self._change)

    def shape(self, message: AnyMessage) -> tuple[int, int]:
        if isinstance(message, LowRankRows):
            return message.num_rows, message.height * message.columns
        return super().shape(message)

    def read(self, message: AnyMessage, num_rows: int | None = None) -> Content:
        # Rows in round 0, factors of changes afterwards.
        if message.round == 0:
            return super().read(message, num_rows)
        if not isinstance(message, LowRankRows):
            raise RunError(f"{message.receiver} was to be sent low-rank rows of {message.table}; got {message.label}")
        factors, expected = Factors(*message.unpack()), num_rows or self.num_rows
        if len(factors.values) != expected:
            raise RunError(f"{message.receiver} was sent {len(factors.values)} rows; {expected} expected")
        change = factors.rows()
        # A truncated change can have larger numbers than the change: its norm is at most sqrt(W) times the largest number.
        return Content(torch.arange(expected), factors.flattened(), change, change.shape[1] ** 0.5)

    def take(self, round: int, content: Content) -> Received:
        if round == 0:
            self.received = content.values
        else:
            assert self.received is not None
            self.received = self.received + content.values
        return Received(self.received)

    def tensors(self) -> dict[str, Tensor]:
        # The server's rows are not in later messages, so a resumed client must have them.
        return {} if self.received is None else {"received": self.received}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.received = tensors["received"]


class LowRankServer(ServerCodec):
    """The server's half: the change that it sends, and what it saw of each client."""

    sends_changes = True

    def __init__(self, shared: SharedTable, options: RunOptions, answers: Answers) -> None:
        super().__init__(shared, options, answers)
        # The change that was sent in this round.
        self._change: Factors | None = None
        self._seen: dict[str, Tensor] = {}

    def accept(self, round: int, message: AnyMessage) -> Upload:
        if not isinstance(message, LowRankRows):
            raise RunError(f"{message.sender} uploaded {message.label} of {self.shared.table}; low-rank rows expected")
        places, settings = self.shared.places(message.sender, message.num_rows), self.options.settings
        shape = message.height * message.columns, message.columns, message.rank
        if shape != (due := (self.shared.rows.shape[1], settings.columns, settings.rank)):
            raise RunError(
                f"{message.sender} uploaded low-rank rows of {message.table} of {shape} width, columns and rank; {due} expected"
            )
        change = Factors(*message.unpack()).rows()
        # The server knows the rows before the change, and so the client's rows.
        self._seen[message.sender] = self.shared.rows[places] + change
        return Upload(places, change, self.shared.weights[message.sender])

    def values(self, upload: Upload) -> Tensor:
        return self.shared.rows[upload.places] + upload.rows

    def previous(self) -> Tensor:
        # No change, for rows that nobody uploaded.
        return torch.zeros_like(self.shared.rows)

    def summed(self, opened: Sum) -> Sum:
        # Clients upload rows, and the aggregation averages changes: subtract the table from each holder's part.
        return Sum(opened.total - opened.weights[:, None] * self.shared.rows.double(), opened.weights)

    def publish(self, aggregated: Tensor, delivered: Delivered) -> None:
        # feds.txt VI-B: the mean of truncated changes has a higher rank, so truncate it again. The server applies exactly what
        # it sends, so its table and the clients' stay equal.
        self._change = _factorised(aggregated, self.options)
        self.shared.rows = self.shared.rows + self._change.rows()

    def content(self, round: int, answer: Tensor, holding: Tensor) -> Tensor:
        # Whole rows in round 0, the factors of their changes afterwards.
        if round == 0:
            return answer
        assert self._change is not None
        return Factors(*(part[holding] for part in self._change)).flattened()

    def pack(self, round: int, party: str, content: Tensor) -> AnyMessage:
        if round == 0:
            return super().pack(round, party, content)
        columns, rank = self.options.settings.columns, self.options.settings.rank
        factors = Factors.unflattened(content, columns=columns, rank=rank)
        return LowRankRows.pack(round, SERVER, party, self.shared.table, factors)

    def observed(self) -> dict[str, Observed]:
        # Each client's rows as of its last upload.
        return {party: Observed(rows, torch.ones(len(rows), dtype=torch.bool)) for party, rows in self._seen.items()}

    def tensors(self) -> dict[str, Tensor]:
        return {str(self.shared.parties.index(party)): rows for party, rows in self._seen.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._seen = {self.shared.parties[int(place)]: rows for place, rows in tensors.items()}


CODECS.register("low-rank", Codec(LowRankClient, LowRankServer, to_everyone=True))
