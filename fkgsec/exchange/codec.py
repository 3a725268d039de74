"""Codecs of rows: a codec turns rows into messages and messages into rows, with one half for each side.

    client = CODECS["dense"].client(holding, options)
    message = client.pack(1, "client/a", "entities", client.encode(1, rows))
    upload = server.accept(1, message)                     # on the other side: which rows of the table, and their values

The client's half remembers what it sent and received, where that matters; the server's half what it saw of each client. The
halves share no object: a codec is the pair of their classes, with what it can carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.exchange.aggregation import Answers
from fkgsec.exchange.parts import Delivered, Holding, Observed, Received, Sum, Upload
from fkgsec.exchange.table import SharedTable
from fkgsec.federation.messages import SERVER, AnyMessage, Rows, SparseRows
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import Table
from fkgsec.registry import Registry


class Contribution(NamedTuple):
    """Part of a client's rows that it sends: which ones, bool `[num_uploaded]`, and their values `[k, width]`."""

    chosen: Tensor
    rows: Tensor


class Content(NamedTuple):
    """Content of a broadcast for one client.

    Attributes:
        places: int64 `[k]`, which of its rows it is of.
        rows: float32 `[k, V]` as the server sent them, a row of what it commits to each.
        values: float32 `[k, width]`, what is compared with the largest value that can come of uploads.
        scale: times that value, `[k]` or one number.
    """

    places: Tensor
    rows: Tensor
    values: Tensor
    scale: Tensor | float = 1.0

    def at(self, places: Tensor) -> Content:
        """Select the client's rows of a whole table, at `places` int64 `[n]`."""
        return Content(torch.arange(len(places)), self.rows[places], self.values[places], self.scale)


class ClientCodec:
    """The client's half, for one table. This one sends and receives whole rows as they are.

    Args:
        holding: the client's rows. answers: of the aggregation.
    """

    def __init__(self, holding: Holding, options: RunOptions, answers: Answers) -> None:
        self.num_rows, self.num_uploaded, self.weight = len(holding.names), holding.num_uploaded, holding.weight
        self.num_sent = self.num_rows - holding.num_upwards
        self.options, self.answers = options, answers

    def encode(self, round: int, rows: Tensor) -> Contribution:
        """Return what to send of the rows `[num_uploaded, width]`, with the values that the server will read."""
        return Contribution(torch.ones(len(rows), dtype=torch.bool), rows)

    def pack(self, round: int, party: str, table: Table, contribution: Contribution) -> AnyMessage:
        """The upload of what `encode` gave last."""
        return Rows.pack(round, party, SERVER, table, contribution.rows)

    def sent(self, round: int, rows: Tensor, contribution: Contribution, summed: Contribution | None = None) -> None:
        """The contribution reached the server, alone or in a sum.

        Args:
            rows: what `encode` was given. summed: the client's part of an opened sum, float64, its weight included.
        """

    def shape(self, message: AnyMessage) -> tuple[int, int]:
        """Rows and width that a broadcast says it has."""
        return (message.num_rows, message.width) if isinstance(message, Rows | SparseRows) else (0, 0)

    def read(self, message: AnyMessage, num_rows: int | None = None) -> Content:
        """Return what a broadcast says of the client's rows, or of a whole table of `num_rows`.

        Raises:
            RunError: another message than such rows can have.
        """
        if not isinstance(message, Rows):
            raise RunError(f"{message.receiver} was to be sent rows of {message.table}; got {message.label}")
        rows, expected = (
            message.unpack(),
            (num_rows,) if num_rows else (self.num_sent, self.num_rows, self.num_uploaded),
        )
        if len(rows) not in expected:
            raise RunError(f"{message.receiver} was sent {len(rows)} rows of {message.table}; {expected[0]} expected")
        return Content(torch.arange(len(rows)), rows, rows)

    def take(self, round: int, content: Content) -> Received:
        """Return what the client makes of it: all rows, or those of its first rows that it also uploads or alone is sent."""
        missing = self.num_rows - len(content.rows)
        if not missing:
            return Received(content.rows)
        rows = torch.cat([content.rows, torch.zeros(missing, content.rows.shape[1])])
        return Received(rows, torch.arange(self.num_rows) < len(content.rows))

    def tensors(self) -> dict[str, Tensor]:
        """Return what the client must keep to go on after a stop, by name."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""


class ServerCodec:
    """The server's half, for one table. This one takes and sends whole rows as they are.

    Attributes:
        sends_changes: a broadcast holds what changed in its round, so a round without uploads publishes an empty aggregate, too.
    """

    sends_changes: ClassVar[bool] = False

    def __init__(self, shared: SharedTable, options: RunOptions, answers: Answers) -> None:
        self.shared, self.options, self.answers = shared, options, answers
        self.changed_levels: float | None = None  # see `Uploaded`; set by `publish`

    def begin(self) -> None:
        """Called once the first rows are set, and after a resume before `load`."""
        return

    def partial(self, round: int) -> bool:
        """Return whether uploads of the round leave out some of the rows that others have."""
        return False

    def crossed(self, message: AnyMessage) -> Tensor:
        """Return which of the receiver's rows a broadcast is of, int64 `[k]`."""
        return torch.arange(len(self.shared.holdings[message.receiver]))

    def accept(self, round: int, message: AnyMessage) -> Upload:
        """The rows of an upload. Raises `RunError` for an unknown sender and for another message than it can send."""
        if not isinstance(message, Rows):
            raise RunError(f"{message.sender} uploaded {message.label} of {self.shared.table}; rows expected")
        places, rows = self.shared.places(message.sender, message.num_rows), message.unpack()
        if rows.shape[1] != self.shared.rows.shape[1]:
            raise RunError(
                f"{message.sender} uploaded rows of {self.shared.table} of width {rows.shape[1]}; {self.shared.rows.shape[1]} "
                "expected"
            )
        return Upload(places, rows, self.shared.weights[message.sender])

    def values(self, upload: Upload) -> Tensor:
        """The client's rows as an upload has them, `[k, width]`."""
        return upload.rows

    def previous(self) -> Tensor:
        """Return what stands for a row that nobody uploaded, `[N, width]`."""
        return self.shared.rows

    def summed(self, opened: Sum) -> Sum:
        """The sum of what `accept` would have read of rows whose sum is given."""
        return opened

    def publish(self, aggregated: Tensor, delivered: Delivered) -> None:
        """Make the aggregate `[N, width]` the table."""
        self.shared.rows = aggregated

    def content(self, round: int, answer: Tensor, holding: Tensor) -> Tensor:
        """Return what crosses of an answer for the rows `held` int64 `[n]`: float32 `[n, V]`."""
        return answer

    def pack(self, round: int, party: str, content: Tensor) -> AnyMessage:
        """The broadcast to a client, of the content for its rows."""
        return Rows.pack(round, SERVER, party, self.shared.table, content)

    def observed(self) -> dict[str, Observed]:
        """Return what the server knows of each client's rows; empty where each upload says all of it in one message."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold, by name."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""


@dataclass(frozen=True)
class Codec:
    """Both halves of a codec, and what must be known of it to combine it with an aggregation and a transport.

    Attributes:
        carries: the answers of an aggregation that its broadcasts can hold.
        chooses_rows: which rows cross depends on their values and on who holds them: the server must know holdings, and noise on
            values would not cover the choice.
        whole: every broadcast renews all rows of a client, so that two clients that were sent the same have the same.
        to_everyone: broadcasts say what changed, and go to all clients in every round.
    """

    client: type[ClientCodec] = ClientCodec
    server: type[ServerCodec] = ServerCodec
    carries: frozenset[Answers] = frozenset({"rows"})
    chooses_rows: bool = False
    whole: bool = False
    to_everyone: bool = False

    @property
    def same_for_all(self) -> bool:
        """Return whether clients that took every broadcast of the same history have the same rows."""
        return self.whole or self.to_everyone


CODECS: Registry[Codec] = Registry("codec", "fkgsec.codecs")
CODECS.register("dense", Codec(carries=frozenset({"rows", "personal rows"}), whole=True))
