"""Rows that clients send each other through a relay. Each row belongs to one client, and others receive it unchanged.

A client holds its own rows first, which it uploads, and then those of its peers. After round 0 it receives the peers' rows alone:
the bytes down are those that peers would send each other directly. Bytes up are the relay's.

Leakage: the relay sees everything that clients send. Without one, a client's peers do.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.exchange.aggregation import AGGREGATIONS, Aggregation, Answers
from fkgsec.exchange.codec import CODECS, ClientCodec, Codec, Content, Contribution, ServerCodec
from fkgsec.exchange.parts import Delivered, Holding, Received
from fkgsec.federation.messages import SERVER, AnyMessage, Rows
from fkgsec.federation.options import RunOptions


class Relay(Aggregation):
    """The table has each client's last rows. A sum of them would be each row alone, so sums are refused."""

    needs = "single uploads"

    def aggregate(self, round: int, previous: Tensor, delivered: Delivered) -> Tensor:
        rows = previous.clone()
        for upload in delivered.uploads.values():
            # No mean: each row has one owner.
            rows[upload.places] = upload.rows.float()
        return rows


class PeersClient(ClientCodec):
    """The client's half: its own rows are those that it sent last."""

    def __init__(self, holding: Holding, options: RunOptions, answers: Answers) -> None:
        super().__init__(holding, options, answers)
        self._own = torch.empty(0, 0)

    def encode(self, round: int, rows: Tensor) -> Contribution:
        self._own = rows.float()
        return super().encode(round, rows)

    def read(self, message: AnyMessage, num_rows: int | None = None) -> Content:
        # The peers' rows; in round 0 all rows.
        others = self.num_rows - self.num_uploaded
        if num_rows or message.round == 0 or not (isinstance(message, Rows) and message.num_rows == others):
            return super().read(message, num_rows)
        rows = message.unpack()
        return Content(torch.arange(self.num_uploaded, self.num_rows), rows, rows)

    def shape(self, message: AnyMessage) -> tuple[int, int]:
        # Including the client's own rows.
        rows, width = super().shape(message)
        return rows + (self.num_uploaded if message.round else 0), width

    def take(self, round: int, content: Content) -> Received:
        # Round 0, or a restart: the message has the client's own rows too.
        if len(content.rows) == self.num_rows:
            self._own = content.rows[: self.num_uploaded].clone()
            return Received(content.rows)
        if len(content.rows) != self.num_rows - self.num_uploaded:
            raise RunError(f"{len(content.rows)} rows of peers; {self.num_rows - self.num_uploaded} expected")
        return Received(torch.cat([self._own, content.rows]), torch.arange(self.num_rows) >= self.num_uploaded)

    def tensors(self) -> dict[str, Tensor]:
        return {"own": self._own}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._own = tensors["own"]


class PeersServer(ServerCodec):
    """The relay's half."""

    def crossed(self, message: AnyMessage) -> Tensor:
        # All rows in round 0, then those that are not the receiver's.
        return super().crossed(message)[self.shared.num_uploaded[message.receiver] if message.round else 0 :]

    def pack(self, round: int, party: str, content: Tensor) -> AnyMessage:
        # Without its own rows after round 0.
        num_uploaded = self.shared.num_uploaded[party] if round else 0
        return Rows.pack(round, SERVER, party, self.shared.table, content[num_uploaded:])


CODECS.register("peers", Codec(PeersClient, PeersServer))
AGGREGATIONS.register("relay", Relay)
