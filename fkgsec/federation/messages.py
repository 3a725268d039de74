"""Everything that crosses between parties: typed messages, and the channel that serialises, counts and records them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.federation.recipes import Table

SERVER = "server"
Direction = Literal["up", "down"]


def client_party(name: str) -> str:
    """The party name of a client, kept apart from the server's."""
    return f"client/{name}"


class Message(msgspec.Struct, frozen=True, tag_field="kind", array_like=False):
    """What every message says of itself."""

    round: int
    sender: str
    receiver: str
    table: Table

    @property
    def label(self) -> str:
        """What the transcript's line calls it."""
        return str(self.__struct_config__.tag)


class Alignment(Message, frozen=True, tag="alignment"):
    """Client to server, before round 1: the names of the rows it wants to receive, those that it will upload first.

    Leakage: the server learns every name that the client holds. Private set union (fedr.txt Algorithm 1 line 1) is what
    prevents that; until it is chosen, the message says it in clear, as FedE does.
    """

    names: list[str]
    num_uploaded: int


class Rows(Message, frozen=True, tag="rows"):
    """Embedding rows in the order of the client's alignment: an upload (client to server) or a broadcast (back)."""

    num_rows: int
    width: int
    data: bytes

    @classmethod
    def pack(cls, round: int, sender: str, receiver: str, table: Table, rows: Tensor) -> Rows:
        """Serialise float32 `[n, width]` as little-endian bytes."""
        array = np.ascontiguousarray(rows.detach().cpu().numpy(), dtype="<f4")
        num_rows, width = array.shape
        return cls(round, sender, receiver, table, num_rows, width, array.tobytes())

    def unpack(self) -> Tensor:
        """The rows, float32 `[num_rows, width]`, on the CPU. Raises `RunError` when the length does not fit."""
        if len(self.data) != 4 * self.num_rows * self.width:
            raise RunError(
                f"message of {self.sender} in round {self.round}: {len(self.data)} bytes do not hold "
                f"{self.num_rows} x {self.width} float32"
            )
        return torch.from_numpy(np.frombuffer(self.data, dtype="<f4").reshape(self.num_rows, self.width).copy())


class ProtocolMessage(Message, frozen=True, tag="protocol"):
    """A message of a cryptographic protocol, sealed up: this package carries and counts it, and cannot read it.

    `step` is what the protocol calls it, `content` what it serialised.
    """

    step: str
    content: bytes

    @property
    def label(self) -> str:
        return self.step


AnyMessage = Alignment | Rows | ProtocolMessage
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """The bytes that would cross the network (msgpack)."""
    return _encoder.encode(message)


def decode(frame: bytes) -> AnyMessage:
    """The message in `frame`. Raises `RunError` when it is damaged."""
    try:
        return _decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise RunError(f"a message cannot be read: {error}") from error


class Opened(msgspec.Struct, frozen=True):
    """What the server computed from a secure aggregation. It never crosses; an adversary that is the server has it.

    Attributes:
        survivors: the parties that are in the sum.
        total: float64 `[n, width]`, the sum of the survivors' rows, little-endian bytes; empty when only holders were summed.
        holders: int64 `[n]`, how many of them hold each row, little-endian bytes.
        error: largest absolute error of an element of `total`.
    """

    round: int
    table: Table
    survivors: list[str]
    total: bytes
    holders: bytes
    error: float

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """The total `[n, width]` and the holders `[n]`."""
        holders = np.frombuffer(self.holders, dtype="<i8")
        return np.frombuffer(self.total, dtype="<f8").reshape(len(holders), -1), holders


_opened_decoder = msgspec.msgpack.Decoder(Opened)


class Entry(NamedTuple):
    """One line of the transcript."""

    round: int
    sender: str
    receiver: str
    kind: str
    table: Table
    num_bytes: int

    @property
    def direction(self) -> Direction:
        return "up" if self.receiver == SERVER else "down"


@dataclass
class Transcript:
    """What crossed: a line for every message of the run, and the serialised messages of some rounds.

    Holding every upload of a long run would take gigabytes, so `frames` keeps the rounds that `retain` was told to keep
    (the alignment, the latest and the best round, and each client's last upload up to these); attacks work on those.
    `notes` holds what the server opened in some rounds, serialised too.
    """

    entries: list[Entry] = field(default_factory=list)
    frames: dict[int, list[bytes]] = field(default_factory=dict)
    notes: dict[int, list[bytes]] = field(default_factory=dict)

    def record(self, message: AnyMessage, frame: bytes) -> None:
        line = Entry(message.round, message.sender, message.receiver, message.label, message.table, len(frame))
        self.entries.append(line)
        self.frames.setdefault(message.round, []).append(frame)

    def note(self, opened: Opened) -> None:
        """Keep what the server opened. Nothing crosses: no line, no bytes."""
        self.notes.setdefault(opened.round, []).append(_encoder.encode(opened))

    def opened(self, round: int) -> list[Opened]:
        """What the server opened in a retained round, a note for each table; empty where nothing was."""
        return [_opened_decoder.decode(note) for note in self.notes.get(round, [])]

    def retain(self, rounds: set[int], noted: set[int]) -> None:
        """Forget the messages of all rounds but `rounds`, and the notes of all but `noted`; the lines stay."""
        self.frames = {number: frames for number, frames in self.frames.items() if number in rounds}
        self.notes = {number: notes for number, notes in self.notes.items() if number in noted}

    def latest_uploads(self, round: int) -> set[int]:
        """The rounds in which each client last uploaded, up to this one: what the server holds of everybody."""
        latest = {
            entry.sender: entry.round for entry in self.entries if entry.direction == "up" and 0 < entry.round <= round
        }
        return set(latest.values())

    def messages(self, round: int) -> list[AnyMessage]:
        """The messages of a retained round in the order of sending; empty when it was not retained."""
        return [decode(frame) for frame in self.frames.get(round, [])]

    def num_bytes(self, direction: Direction, round: int | None = None) -> int:
        """Bytes in one direction, of one round or of the whole run."""
        return sum(
            entry.num_bytes
            for entry in self.entries
            if entry.direction == direction and (round is None or entry.round == round)
        )


@dataclass
class Channel:
    """The one way from party to party. What is received is what was decoded from the bytes that were counted."""

    transcript: Transcript = field(default_factory=Transcript)

    def send(self, message: AnyMessage) -> AnyMessage:
        frame = encode(message)
        self.transcript.record(message, frame)
        return decode(frame)
