"""Messages between parties, and the channel that serializes, counts and records them.

channel = Channel()
received = channel.send(Rows.pack(1, client_party("a"), SERVER, "entities", rows))
received.unpack()                               # float32 [n, width], decoded from the bytes that were counted
channel.transcript.num_bytes("up", 1)
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.federation.disk.frames import Frames, SharedData
from fkgsec.federation.recipes import Table

SERVER = "server"
Direction = Literal["up", "down"]


def client_party(name: str) -> str:
    """Return the party name of a client, which never equals the server's.

    Args:
        name: of the client.
    """
    return f"client/{name}"


class Message(msgspec.Struct, frozen=True, tag_field="kind", array_like=False):
    """Header of every message."""

    round: int
    sender: str
    receiver: str
    table: Table

    @property
    def label(self) -> str:
        """Name of the message in the transcript."""
        return str(self.__struct_config__.tag)


class Alignment(Message, frozen=True, tag="alignment", omit_defaults=True):
    """Client to server, before round 1: the names of the rows it wants to receive, those that it will upload first.

    Leakage: the server learns every name that the client holds. Private set union (fedr.txt Algorithm 1, line 1) prevents that;
    without it, the message is in plaintext, as in FedE.

    Attributes:
        names: row names; uploaded ones first.
        num_uploaded: number of rows that the client uploads.
        weight: integer weight of its rows in a mean; 1 if sums of rows come with sums of weights.
        num_upwards: number of last rows that the server does not send back.
    """

    names: list[str]
    num_uploaded: int
    weight: int = 1
    num_upwards: int = 0


class Rows(Message, frozen=True, tag="rows"):
    """Embedding rows in the order of the client's alignment: an upload (client to server) or a broadcast (back)."""

    num_rows: int
    width: int
    data: bytes

    @classmethod
    def pack(cls, round: int, sender: str, receiver: str, table: Table, rows: Tensor) -> Rows:
        """Serialize rows as little-endian bytes.

        Args:
            round, sender, receiver, table: header, see `Message`.
            rows: float32 `[n, width]`.
        """
        num_rows, width = rows.shape
        return cls(round, sender, receiver, table, num_rows, width, _packed(rows))

    def unpack(self) -> Tensor:
        """Return the rows, float32 `[num_rows, width]`, on the CPU. Raises `RunError` if the length does not match."""
        return _unpacked(self, self.data, self.num_rows, self.width)


class SparseRows(Message, frozen=True, tag="sparse-rows"):
    """Some of a client's rows: one bit per row says which, followed by these rows in order (feds.txt III-C, III-D).

    In a broadcast, `priorities` are the numbers of other clients whose uploads each row sums.
    """

    num_rows: int
    width: int
    signs: bytes
    data: bytes
    priorities: bytes

    @classmethod
    def pack(
        cls,
        round: int,
        sender: str,
        receiver: str,
        table: Table,
        chosen: Tensor,
        rows: Tensor,
        priorities: Tensor | None = None,
    ) -> SparseRows:
        """Serialize selected rows.

        Args:
            round, sender, receiver, table: header, see `Message`.
            chosen: bool `[n]`.
            rows: float32 `[number chosen, width]`.
            priorities: int64 `[number chosen]`, or None in an upload.

        Raises:
            RunError: a priority exceeds 65,535.
        """
        if priorities is not None and len(priorities) and int(priorities.max()) >= 2**16:
            raise RunError(f"{table}: a row is the sum of {int(priorities.max())} uploads; at most 65,535 can be said")
        # feds.txt III-D: the priority of a row is the number of clients in its sum; two bytes each.
        counts = b"" if priorities is None else priorities.numpy().astype("<u2").tobytes()
        # feds.txt III-C: the sign vector marks the rows that follow.
        signs = np.packbits(chosen.numpy()).tobytes()
        return cls(round, sender, receiver, table, len(chosen), rows.shape[1], signs, _packed(rows), counts)

    def without_rows(self) -> SparseRows:
        """Return the same selection with rows of width 0."""
        return msgspec.structs.replace(self, width=0, data=b"", priorities=b"")

    def unpack(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return indices int64 `[k]`, rows float32 `[k, width]` and priorities int64 `[k]` (zeros in an upload).

        Raises:
            RunError: lengths do not match.
        """
        signs = np.frombuffer(self.signs, dtype=np.uint8)
        if len(signs) != -(-self.num_rows // 8):
            raise RunError(f"message of {self.sender} in round {self.round}: {len(signs)} bytes of signs")
        # The sign vector back to row indices.
        places = torch.from_numpy(np.nonzero(np.unpackbits(signs, count=self.num_rows))[0])
        counts = np.frombuffer(self.priorities or bytes(2 * len(places)), dtype="<u2").astype(np.int64)
        if len(counts) != len(places):
            raise RunError(
                f"message of {self.sender} in round {self.round}: {len(counts)} priorities of {len(places)} rows"
            )
        return places, _unpacked(self, self.data, len(places), self.width), torch.from_numpy(counts)


class LowRankRows(Message, frozen=True, tag="low-rank-rows"):
    """Changes of a client's rows as singular triplets: left `[n, m, r]`, values `[n, r]`, right `[n, k, r]`."""

    num_rows: int
    height: int
    columns: int
    rank: int
    data: bytes

    @classmethod
    def pack(
        cls, round: int, sender: str, receiver: str, table: Table, factors: tuple[Tensor, Tensor, Tensor]
    ) -> LowRankRows:
        """Serialize the three factors, one after the other.

        Args:
            round, sender, receiver, table: header, see `Message`.
            factors: left `[n, m, r]`, values `[n, r]`, right `[n, k, r]`.
        """
        left, _, right = factors
        data = b"".join(_packed(part) for part in factors)
        return cls(round, sender, receiver, table, len(left), left.shape[1], right.shape[1], left.shape[2], data)

    def unpack(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three factors. Raises `RunError` if the length does not match."""
        heights = (self.height, 1, self.columns)
        whole = _unpacked(self, self.data, 1, self.num_rows * self.rank * sum(heights))[0]
        left, values, right = whole.split([self.num_rows * self.rank * height for height in heights])
        return (
            left.reshape(self.num_rows, self.height, self.rank),
            values.reshape(self.num_rows, self.rank),
            right.reshape(self.num_rows, self.columns, self.rank),
        )


class QuantisedRows(Message, frozen=True, tag="quantised-rows", omit_defaults=True):
    """Quantized rows: integers of `bits` bits, times a step per run of rows.

    `ranks`: rank of each tensor if some are transmitted as factors (`fkgsec.exchange.tensors.factors`); -1 for a whole tensor.
    """

    num_rows: int
    width: int
    bits: int
    counts: list[int]
    steps: bytes
    data: bytes
    ranks: list[int] = []

    @classmethod
    def pack(
        cls,
        round: int,
        sender: str,
        receiver: str,
        table: Table,
        levels: Tensor,
        steps: Tensor,
        bits: int,
        ranks: Sequence[int] = (),
    ) -> QuantisedRows:
        """Serialize levels and steps; equal steps of consecutive rows are sent once.

        Args:
            round, sender, receiver, table: header, see `Message`.
            levels: int64 `[n, width]` in -2^(bits - 1)..2^(bits - 1) - 1.
            steps: float32 `[n]`, step of each row.
            bits: per transmitted value.
            ranks: see the class.
        """
        # Run lengths of equal steps: the rows of one tensor share a step.
        starts = torch.ones(len(steps), dtype=torch.bool)
        starts[1:] = steps[1:] != steps[:-1]
        counts = torch.diff(torch.cat([starts.nonzero()[:, 0], torch.tensor([len(steps)])])).tolist()
        # Shift levels to unsigned and pack their bits, most significant first.
        offset = (levels.reshape(-1, 1).numpy() + 2 ** (bits - 1)) >> np.arange(bits)[::-1]
        data = np.packbits((offset & 1).astype(np.uint8)).tobytes()
        num_rows, width = levels.shape
        sizes = (num_rows, width, bits, counts)
        return cls(round, sender, receiver, table, *sizes, _packed(steps[starts]), data, list(ranks))

    def unpack(self) -> tuple[Tensor, Tensor]:
        """Return levels int64 `[num_rows, width]` and the step of each row, float32. Raises `RunError` if lengths do
        not match.
        """
        numbers, packed = self.num_rows * self.width, np.frombuffer(self.data, dtype=np.uint8)
        # Lengths come from the network: check them before they size arrays.
        fits = 1 <= self.bits <= 32 and min(self.counts, default=0) >= 0 and sum(self.counts) == self.num_rows
        if not fits or len(packed) != -(-numbers * self.bits // 8):
            raise RunError(
                f"message of {self.sender} in round {self.round}: {len(packed)} bytes do not hold {self.num_rows} x {self.width} "
                f"numbers of {self.bits} bits"
            )
        steps = _unpacked(self, self.steps, len(self.counts), 1)[:, 0]
        bits = np.unpackbits(packed, count=numbers * self.bits).reshape(numbers, self.bits).astype(np.int64)
        # Bits to unsigned integers, then back to signed levels.
        levels = bits @ (1 << np.arange(self.bits)[::-1]) - 2 ** (self.bits - 1)
        rows = torch.from_numpy(levels).reshape(self.num_rows, self.width)
        return rows, steps.repeat_interleave(torch.tensor(self.counts))

    def rows(self) -> Tensor:
        """Return the rows, float32 `[num_rows, width]`. Raises `RunError` if some are factors."""
        if any(rank >= 0 for rank in self.ranks):
            raise RunError(f"message of {self.sender} in round {self.round}: its rows are factors")
        levels, steps = self.unpack()
        return levels * steps[:, None]


def _packed(values: Tensor) -> bytes:
    return np.ascontiguousarray(values.detach().cpu().numpy(), dtype="<f4").tobytes()


def _unpacked(message: Message, data: bytes, num_rows: int, width: int) -> Tensor:
    if len(data) != 4 * num_rows * width:
        raise RunError(
            f"message of {message.sender} in round {message.round}: {len(data)} bytes do not hold {num_rows} x {width} float32"
        )
    # A copy: tensors on a read-only buffer must not be written.
    return torch.from_numpy(np.frombuffer(data, dtype="<f4").reshape(num_rows, width).copy())


class ProtocolMessage(Message, frozen=True, tag="protocol"):
    """Message of a cryptographic protocol, opaque to this package, which transmits and counts it.

    `step` is the protocol's name for it, `content` its serialized content.
    """

    step: str
    content: bytes

    @property
    def label(self) -> str:
        return self.step


AnyMessage = Alignment | Rows | SparseRows | LowRankRows | QuantisedRows | ProtocolMessage
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """Serialize a message (msgpack).

    Args:
        message: of any kind.
    """
    return _encoder.encode(message)


def decode(frame: bytes) -> AnyMessage:
    """Deserialize a message.

    Args:
        frame: from `encode`.

    Raises:
        RunError: the bytes are damaged.
    """
    try:
        return _decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # names that are no UTF-8 raise the latter
        raise RunError(f"a message cannot be read: {error}") from error


class Opened(msgspec.Struct, frozen=True):
    """Result of a secure aggregation at the server. It is never transmitted; an adversary that is the server has it.

    Attributes:
        survivors: parties in the sum.
        total: float64 `[n, width]`, sum of the survivors' rows, little-endian bytes; empty if only holders were summed.
        holders: int64 `[n]`, number of survivors that hold each row, little-endian bytes.
        error: largest absolute error of an element of `total`.
    """

    round: int
    table: Table
    survivors: list[str]
    total: bytes
    holders: bytes
    error: float

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the total `[n, width]` and the holders `[n]`."""
        holders = np.frombuffer(self.holders, dtype="<i8")
        return np.frombuffer(self.total, dtype="<f8").reshape(len(holders), -1), holders


_opened_decoder = msgspec.msgpack.Decoder(Opened)


class Entry(NamedTuple):
    """Line of the transcript."""

    round: int
    sender: str
    receiver: str
    kind: str
    table: Table
    num_bytes: int

    @property
    def direction(self) -> Direction:
        """ "up" to the server, "down" from it."""
        return "up" if self.receiver == SERVER else "down"


class _Totals:
    """Running totals of a transcript's lines, so that no round scans millions of lines.

    Attributes:
        num_bytes: by round and direction.
        uploads: by sender, the rounds in which it sent something to the server, ascending, without round 0.
        sparse: rounds with sparse uploads.
        broadcasts: rounds in which the server sent something.
    """

    def __init__(self, entries: list[Entry]) -> None:
        self._entries, self._counted = entries, 0
        self.num_bytes: Counter[tuple[int, Direction]] = Counter()
        self.uploads: dict[str, list[int]] = {}
        self.sparse: set[int] = set()
        self.broadcasts: set[int] = set()

    def covers(self, entries: list[Entry]) -> bool:
        """Return whether it counts this list, and the list has not shrunk.

        Args:
            entries: lines of the transcript.
        """
        return entries is self._entries and self._counted <= len(entries)

    def catch_up(self) -> None:
        """Count the lines added since the last call."""
        for entry in itertools.islice(self._entries, self._counted, None):
            direction = entry.direction
            self.num_bytes[entry.round, direction] += entry.num_bytes
            if direction == "down":
                self.broadcasts.add(entry.round)
                continue
            # The rounds whose uploads keep their selection when messages are discarded.
            if entry.kind == "sparse-rows":
                self.sparse.add(entry.round)
            rounds = self.uploads.setdefault(entry.sender, [])
            # Lines mostly arrive in order of rounds; insort handles the others.
            if entry.round > 0 and (not rounds or rounds[-1] != entry.round):
                bisect.insort(rounds, entry.round)
        self._counted = len(self._entries)


@dataclass
class Transcript:
    """Transmitted messages: a line for every message of the run, and the serialized messages of some rounds.

    Every upload of a long run would take gigabytes. `frames` therefore has only the rounds that `retain` selected (alignment,
    latest and best round, and each client's last upload up to these); attacks use them. `notes` has the secure sums that the
    server opened in some rounds, also serialized.
    """

    entries: list[Entry] = field(default_factory=list)
    frames: dict[int, Frames] = field(default_factory=dict)
    notes: dict[int, Frames] = field(default_factory=dict)
    _counts: _Totals | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def _totals(self) -> _Totals:
        # A resumed run replaces the list; counting starts over then.
        if self._counts is None or not self._counts.covers(self.entries):
            self._counts = _Totals(self.entries)
        self._counts.catch_up()
        return self._counts

    def record(self, message: AnyMessage, frame: bytes) -> None:
        """Add a message.

        Args:
            message: of any kind.
            frame: its bytes.
        """
        line = Entry(message.round, message.sender, message.receiver, message.label, message.table, len(frame))
        self.entries.append(line)
        self.frames.setdefault(message.round, Frames()).append(frame, shared=message.sender == SERVER)

    def note(self, opened: Opened) -> None:
        """Store a sum that the server opened. Nothing is transmitted: no line, no bytes.

        Args:
            opened: the sum.
        """
        self.notes.setdefault(opened.round, Frames()).append(_encoder.encode(opened), shared=False)

    def opened(self, round: int) -> list[Opened]:
        """Return the sums that the server opened in a retained round, one per table."""
        return [_opened_decoder.decode(note) for note in self.notes.get(round, [])]

    def retain(self, rounds: set[int], noted: set[int], *, broadcasts: set[int] | None = None) -> None:
        """Discard the messages of all rounds but `rounds`, and the notes of all but `noted`; lines stay.

        Discarded sparse uploads keep one bit per row: whether it was sent.

        Args:
            rounds: rounds whose messages are retained.
            noted: rounds whose notes are retained.
            broadcasts: rounds of which at least the server's messages are retained.
        """
        frames_kept = {number: frames for number, frames in self.frames.items() if number in rounds}
        for number in sorted((broadcasts or set()) & set(self.frames) - rounds):
            # Broadcasts alone: uploads of that round are not needed.
            frames_kept[number] = Frames(frame for frame in self.frames[number] if decode(frame).receiver != SERVER)
        # Which rows a client sent is a leak of its own, and needs one bit per row.
        for number in self._totals.sparse & set(self.frames) - rounds:
            uploads = (
                message
                for message in self.each_message(number)
                if isinstance(message, SparseRows) and message.receiver == SERVER
            )
            frames_kept[number] = Frames(
                [*frames_kept.get(number, ()), *(encode(message.without_rows()) for message in uploads)]
            )
        self.frames = dict(sorted(frames_kept.items()))
        self.notes = {number: notes for number, notes in self.notes.items() if number in noted}

    def latest_uploads(self, round: int) -> set[int]:
        """Return the rounds in which each client last uploaded, up to `round`."""
        before = ((rounds, bisect.bisect_right(rounds, round)) for rounds in self._totals.uploads.values())
        return {rounds[end - 1] for rounds, end in before if end}

    def last_broadcast(self, round: int) -> int:
        """Return the round of the last broadcast before the last upload up to `round`; 0 if there is none.

        Args:
            round: number of the round. If rows are exchanged in every round, the result is the round before it.
        """
        # Clients trained this upload from the broadcast before it.
        uploaded = max(self.latest_uploads(round), default=round)
        return max((number for number in self._totals.broadcasts if number < uploaded), default=0)

    def messages(self, round: int) -> list[AnyMessage]:
        """Return the messages of a round in sending order; empty if it was not retained."""
        return list(self.each_message(round))

    def each_message(self, round: int) -> Iterator[AnyMessage]:
        """Iterate over the messages of a round, one in memory at a time."""
        return map(decode, self.frames.get(round, []))

    def num_bytes(self, direction: Direction, round: int | None = None) -> int:
        """Count the bytes in one direction.

        Args:
            direction: "up" or "down".
            round: number of the round; None: the whole run.
        """
        counts = self._totals.num_bytes
        if round is not None:
            return counts[round, direction]
        return sum(num_bytes for (_, way), num_bytes in counts.items() if way == direction)


@dataclass
class Channel:
    """The only connection between parties. A receiver gets the decoding of the counted bytes."""

    transcript: Transcript = field(default_factory=Transcript)
    _shared: SharedData = field(default_factory=SharedData, init=False, repr=False, compare=False)

    def send(self, message: AnyMessage) -> AnyMessage:
        """Serialize, count and record a message; return what the receiver decodes.

        Args:
            message: of any kind.
        """
        frame = encode(message)
        self.transcript.record(message, frame)
        # Receivers of one broadcast share its bytes, instead of one copy per client.
        return self._shared.held_by(decode(frame))
