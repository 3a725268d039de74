"""The messages of private set union, beside those of secure aggregation, and their bytes (msgpack).

    message = decode_message(frame)
    message.identifiers if isinstance(message, UnionList) else message.num_cells

Their headers are checked like those of secure aggregation.
"""

from __future__ import annotations

import msgspec

from fkgsec.protocols.core.errors import MalformedMessage
from fkgsec.protocols.secagg.messages import AnyMessage, Message


class Announcement(Message, frozen=True, tag="psu-announcement"):
    """Server to every client: the salt and the number of cells of attempt `round`, counted from 0."""

    salt: bytes
    num_cells: int


class UnionList(Message, frozen=True, tag="psu-union-list"):
    """Server to every client: the union, sorted by code point, as peeled in attempt `round`."""

    identifiers: tuple[str, ...]


_decoder = msgspec.msgpack.Decoder(AnyMessage | Announcement | UnionList)


def decode_message(frame: bytes) -> Message:
    """Decode a message of this protocol or of secure aggregation. Raises `MalformedMessage`."""
    try:
        return _decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # names that are no UTF-8 raise the latter
        raise MalformedMessage(f"{len(frame)} bytes cannot be read as a message: {error}") from error
