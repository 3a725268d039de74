"""Messages between a deployed server and a client: a request of several items, and a reply with an answer to each.

    request = Request(run, 3, [Item(step="broadcast", round=2, table="entities", lasting=5, frames=[...]),
                               Item(step="train", round=3), Item(step="upload", round=3, table="entities")])
    party.answer(encode(request))            # a reply with an `Answer` to each item, in their order

The frames inside are the messages of an exchange in one process (`fkgsec.federation.messages`), byte for byte.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec
import numpy as np

from fkgsec.errors import RunError

LARGEST = 2**31 - 1
"""Upper limit on the bytes of a message, whatever the agreement."""

Step = Literal[
    "hello", "alignment", "union", "place", "broadcast", "train", "validate", "candidate", "keep", "upload", "listen",
    "measure", "audit",
]  # fmt: skip
LASTING: tuple[Step, ...] = ("place", "broadcast", "candidate", "keep", "listen")
"""Steps that a client must take: they are sent again until it answers."""

STALE_REQUEST = "stale request"
"""Part of the error in a reply to a request older than the last answered one."""


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step for a client.

    Attributes:
        round, table: 0 and empty where they do not apply.
        lasting: number of an item that the client must take, from 1 on, so that it takes each once; 0 for the others.
        frames: messages of the step's protocol; None if the client only gets the turn. content: further data, as msgpack.
    """

    step: Step
    round: int = 0
    table: str = ""
    lasting: int = 0
    frames: list[bytes] | None = None
    content: bytes = b""


class Request(msgspec.Struct, frozen=True):
    """A message of the server. `run`: digest of the agreement. `serial`: grows with every request of the run."""

    run: bytes
    serial: int
    items: list[Item]


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of an item: messages, or further content, or the reason for neither (`silence`)."""

    frames: list[bytes] | None = None
    content: bytes = b""
    silence: str = ""


class Reply(msgspec.Struct, frozen=True):
    """A client's message. `error`: the reason for refusing the whole request, which then has no effect."""

    run: bytes
    serial: int
    party: str
    answers: list[Answer]
    error: str = ""


Kind = TypeVar("Kind")
_encoder = msgspec.msgpack.Encoder()


def encode(message: object) -> bytes:
    """Encode a message, or an item's `content`."""
    return _encoder.encode(message)


def decode(frame: bytes, kind: type[Kind], largest_bytes: int = LARGEST) -> Kind:
    """Decode a message.

    Args:
        kind: class of the message. largest_bytes: limit of its size.

    Raises:
        RunError: it is too large or cannot be read.
    """
    # Check the size first: decoding needs memory, and the sender may be hostile.
    if len(frame) > largest_bytes:
        raise RunError(f"a message of {len(frame):,} bytes; at most {largest_bytes:,} are read")
    try:
        return msgspec.msgpack.decode(frame, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"a {kind.__name__.lower()} cannot be read: {error}") from error


# Contents of items and answers.


class Hello(msgspec.Struct, frozen=True):
    """A client's sizes by name (`fkgsec.experiments.tasks.kge`), and a digest of its data under its secret."""

    sizes: dict[str, int]
    data: bytes
    version: str


class Placed(msgspec.Struct, frozen=True):
    """Positions of a client's rows in a table of `num_rows`, int32 little-endian; empty if the client knows all names."""

    num_rows: int
    places: bytes = b""


def placed_rows(places: bytes) -> np.ndarray:
    """Decode the row numbers of `Placed`, int32 `[n]`; an incomplete last one is dropped.

    Args:
        places: little-endian bytes.
    """
    return np.frombuffer(places[: len(places) // 4 * 4], dtype="<i4")


def are_places(places: np.ndarray, count: int, num_rows: int) -> bool:
    """Return True for `count` different rows of a table.

    Args:
        places: int `[n]`. num_rows: of the table.
    """
    within = not len(places) or (int(places.min()) >= 0 and int(places.max()) < num_rows)
    return len(places) == count == len(np.unique(places)) and within


class Trained(msgspec.Struct, frozen=True):
    """The mean loss of a round of local training; None under secure aggregation, as it would reveal a client's rows."""

    loss: float | None


class Validated(msgspec.Struct, frozen=True):
    """The sum and number of reciprocal ranks of a client's validation triples, all sides; zeros for too few."""

    total: float
    count: int
