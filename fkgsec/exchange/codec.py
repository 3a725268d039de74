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
from fkgsec.exchange.parts import Delivered, Holding, Observed, Received, SharedTable, Sum, Upload
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
        places: int64 `[k]`, indices of the client's rows.
        rows: float32 `[k, V]` as the server sent them; the server commits to these.
        values: float32 `[k, width]`, compared with the largest value that uploads can give.
        scale: factor of that value, `[k]` or a number.
    """

    places: Tensor
    rows: Tensor
    values: Tensor
    scale: Tensor | float = 1.0

    def at(self, places: Tensor) -> Content:
        """Select the client's rows of a whole table.

        Args:
            places: int64 `[n]`.
        """
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
        """Choose the rows to send.

        Args:
            rows: `[num_uploaded, width]`.

        Returns:
            The chosen rows, with the values that the server will read.
        """
        return Contribution(torch.ones(len(rows), dtype=torch.bool), rows)

    def pack(self, round: int, party: str, table: Table, contribution: Contribution) -> AnyMessage:
        """Encode the upload of the last contribution.

        Args:
            contribution: from `encode`.
        """
        return Rows.pack(round, party, SERVER, table, contribution.rows)

    def sent(self, round: int, rows: Tensor, contribution: Contribution, summed: Contribution | None = None) -> None:
        """Note that a contribution reached the server, alone or in a sum.

        Args:
            rows: argument of `encode`. summed: the client's part of an opened sum, float64, its weight included.
        """

    def shape(self, message: AnyMessage) -> tuple[int, int]:
        """Return the rows and the width that a broadcast states."""
        return (message.num_rows, message.width) if isinstance(message, Rows | SparseRows) else (0, 0)

    def read(self, message: AnyMessage, num_rows: int | None = None) -> Content:
        """Decode a broadcast.

        Args:
            num_rows: rows of a whole table; None: the message has the client's rows alone.

        Raises:
            RunError: the message does not fit these rows.
        """
        if not isinstance(message, Rows):
            raise RunError(f"{message.receiver} was to be sent rows of {message.table}; got {message.label}")
        # A client receives all rows, those that are sent back, or (as a peer) those that it also uploads.
        rows, expected = (
            message.unpack(),
            (num_rows,) if num_rows else (self.num_sent, self.num_rows, self.num_uploaded),
        )
        if len(rows) not in expected:
            raise RunError(f"{message.receiver} was sent {len(rows)} rows of {message.table}; {expected[0]} expected")
        return Content(torch.arange(len(rows)), rows, rows)

    def take(self, round: int, content: Content) -> Received:
        """Take over the content: all rows, or only those that the client also uploads.

        Args:
            content: from `read`.
        """
        missing = self.num_rows - len(content.rows)
        if not missing:
            return Received(content.rows)
        # The last rows are not sent back; the client keeps its own values there.
        rows = torch.cat([content.rows, torch.zeros(missing, content.rows.shape[1])])
        return Received(rows, torch.arange(self.num_rows) < len(content.rows))

    def tensors(self) -> dict[str, Tensor]:
        """Return the client's state for a checkpoint, by name."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `tensors` returned."""


class ServerCodec:
    """The server's half, for one table. This one takes and sends whole rows as they are.

    Attributes:
        sends_changes: a broadcast holds what changed in its round, so a round without uploads publishes an empty aggregate, too.
    """

    sends_changes: ClassVar[bool] = False

    def __init__(self, shared: SharedTable, options: RunOptions, answers: Answers) -> None:
        self.shared, self.options, self.answers = shared, options, answers
        # Set by `publish`; see `Uploaded`.
        self.changed_levels: float | None = None

    def begin(self) -> None:
        """Prepare the state, once the first rows are set, and after a resume before `load`."""
        return

    def partial(self, round: int) -> bool:
        """Return whether uploads of the round omit some of the rows that others have."""
        return False

    def crossed(self, message: AnyMessage) -> Tensor:
        """Return which of the receiver's rows a broadcast contains, int64 `[k]`."""
        return torch.arange(len(self.shared.holdings[message.receiver]))

    def accept(self, round: int, message: AnyMessage) -> Upload:
        """Decode an upload.

        Args:
            message: from a client.

        Raises:
            RunError: an unknown sender, or a message that does not fit its rows.
        """
        if not isinstance(message, Rows):
            raise RunError(f"{message.sender} uploaded {message.label} of {self.shared.table}; rows expected")
        places, rows = self.shared.places(message.sender, message.num_rows), message.unpack()
        # The width comes from a client: a wrong one would fail later, inside the aggregation.
        if rows.shape[1] != self.shared.rows.shape[1]:
            raise RunError(
                f"{message.sender} uploaded rows of {self.shared.table} of width {rows.shape[1]}; {self.shared.rows.shape[1]} "
                "expected"
            )
        return Upload(places, rows, self.shared.weights[message.sender])

    def values(self, upload: Upload) -> Tensor:
        """Return the client's rows in an upload, `[k, width]`."""
        return upload.rows

    def previous(self) -> Tensor:
        """Return the value of rows that nobody uploaded, `[N, width]`."""
        return self.shared.rows

    def summed(self, opened: Sum) -> Sum:
        """Convert a sum of rows to the sum of what `accept` reads.

        Args:
            opened: weighted sum of rows `[N, width]`.
        """
        return opened

    def publish(self, aggregated: Tensor, delivered: Delivered) -> None:
        """Make the aggregate the table.

        Args:
            aggregated: `[N, width]`. delivered: the uploads it is made of.
        """
        self.shared.rows = aggregated

    def content(self, round: int, answer: Tensor, holding: Tensor) -> Tensor:
        """Return the transmitted form of an answer, float32 `[n, V]`.

        Args:
            answer: of the aggregation, for these rows. holding: rows of the receiver, int64 `[n]`.
        """
        return answer

    def pack(self, round: int, party: str, content: Tensor) -> AnyMessage:
        """Encode the broadcast to a client.

        Args:
            content: for its rows, `[n, V]`.
        """
        return Rows.pack(round, SERVER, party, self.shared.table, content)

    def observed(self) -> dict[str, Observed]:
        """Return the server's knowledge of each client's rows; empty if each upload contains all of them."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the server's state for a checkpoint, by name."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `tensors` returned."""


@dataclass(frozen=True)
class Codec:
    """Both halves of a codec, and what must be known of it to combine it with an aggregation and a transport.

    Attributes:
        carries: the answers of an aggregation that its broadcasts can hold.
        chooses_rows: the rows to send depend on their values and on who holds them: the server must know holdings, and noise on
            values would not cover the choice.
        whole: every broadcast renews all rows of a client, so that two clients that were sent the same have the same.
        to_everyone: broadcasts say what changed, and go to all clients in every round.
    """

    # Defaults: whole rows in both directions.
    client: type[ClientCodec] = ClientCodec
    server: type[ServerCodec] = ServerCodec
    carries: frozenset[Answers] = frozenset({"rows"})
    chooses_rows: bool = False
    whole: bool = False
    to_everyone: bool = False

    @property
    def same_for_all(self) -> bool:
        """True if clients with the same history of broadcasts have the same rows."""
        return self.whole or self.to_everyone


CODECS: Registry[Codec] = Registry("codec", "fkgsec.codecs")
CODECS.register("dense", Codec(carries=frozenset({"rows", "personal rows"}), whole=True))
