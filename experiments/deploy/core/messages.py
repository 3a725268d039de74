"""What crosses between a deployed server and a client: one request, one reply, both of several items.

    request = Request(run, 3, [Item(step="broadcast", round=2, table="entities", lasting=5, frames=[...]),
                               Item(step="train", round=3), Item(step="upload", round=3, table="entities")])
    decode_reply(party.answer(encode(request)), largest_bytes).answers      # an `Answer` to each item, in their order

The frames inside are the messages of the laboratory's exchange (`fkgsec.federation.messages`), byte for byte; what stands around
them is the cost of being apart, and counted as such.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec
import numpy as np

from fkgsec.errors import RunError

LARGEST = 2**31 - 1
"""Bytes of a message that no agreement allows to be exceeded."""

Step = Literal[
    "hello",
    "alignment",
    "union",
    "place",
    "broadcast",
    "train",
    "validate",
    "candidate",
    "keep",
    "upload",
    "listen",
    "measure",
    "audit",
]
LASTING: tuple[Step, ...] = ("place", "broadcast", "candidate", "keep", "listen")
"""Steps that a client must take, later if not now: they are sent again until it has answered them."""

LATE = "late request"
"""Stands in the error of a reply to a request whose serial number is lower than that of one that was answered."""


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a client is to do.

    Attributes:
        step: what. round, table: of which; 0 and empty where that says nothing.
        lasting: counts the items that a client must take, from 1 on, so that it takes each once; 0 for the others.
        frames: messages of the step's protocol; None where the client merely gets the turn.
        content: what the step needs beside these, as msgpack.
    """

    step: Step
    round: int = 0
    table: str = ""
    lasting: int = 0
    frames: list[bytes] | None = None
    content: bytes = b""


class Request(msgspec.Struct, frozen=True):
    """What the server sends: `run`, the digest of the agreement; `serial`, which grows with every request of the run."""

    run: bytes
    serial: int
    items: list[Item]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of an item: messages, or further content, or why there is none."""

    frames: list[bytes] | None = None
    content: bytes = b""
    silence: str = ""


class Reply(msgspec.Struct, frozen=True):
    """What a client sends back. `error`: why it took nothing of the request, which is then as if it had not come."""

    run: bytes
    serial: int
    party: str
    answers: list[Answer]
    error: str = ""


Kind = TypeVar("Kind")
_encoder = msgspec.msgpack.Encoder()


def encode(message: object) -> bytes:
    """The bytes of a message, or of what stands in an item's `content`."""
    return _encoder.encode(message)


def decode(frame: bytes, kind: type[Kind], largest_bytes: int = LARGEST) -> Kind:
    """The message in a frame. Raises `RunError` for one that is too large or cannot be read."""
    if len(frame) > largest_bytes:
        raise RunError(f"a message of {len(frame):,} bytes; at most {largest_bytes:,} are read")
    try:
        return msgspec.msgpack.decode(frame, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"a {kind.__name__.lower()} cannot be read: {error}") from error


# What stands in contents.


class Hello(msgspec.Struct, frozen=True):
    """A client's sizes: rows and triples by name (`fkgsec.experiments.tasks.kge`), and a digest of its data under its secret."""

    sizes: dict[str, int]
    data: bytes
    version: str


class Placed(msgspec.Struct, frozen=True):
    """Where a client's rows of a table stand, int32 little-endian, among `num_rows`; empty places: it knows the names itself."""

    num_rows: int
    places: bytes = b""


def placed_rows(places: bytes) -> np.ndarray:
    """Row numbers as `Placed` has them, int32 `[n]`; of other bytes those that are whole."""
    return np.frombuffer(places[: len(places) // 4 * 4], dtype="<i4")


def are_places(places: np.ndarray, count: int, num_rows: int) -> bool:
    """Whether these are `count` different rows of a table of `num_rows`."""
    within = not len(places) or (int(places.min()) >= 0 and int(places.max()) < num_rows)
    return len(places) == count == len(np.unique(places)) and within


class Trained(msgspec.Struct, frozen=True):
    """The mean loss of a round of local training. None under secure aggregation: it would tell which rows a client holds."""

    loss: float | None


class Validated(msgspec.Struct, frozen=True):
    """The sum of the reciprocal ranks of a client's validation triples, all sides, and how many these are; zeros of too few."""

    total: float
    count: int
