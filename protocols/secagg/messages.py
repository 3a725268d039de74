"""The messages of secure aggregation, and their bytes (msgpack).

    frame = encode(Receipt(setting.session, setting.round, "client0", unopened=()))
    check_header(decode(frame), Receipt, session=setting.session, round=setting.round, senders=setting.parties)

Every message states its session, round and sender; a receiver checks all three before anything else.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple, TypeVar

import msgspec

from fkgsec.protocols.core.errors import (
    LateMessage,
    MalformedMessage,
    ReplayedMessage,
    UnexpectedMessage,
    UnknownSender,
)


class Message(msgspec.Struct, frozen=True, tag_field="kind"):
    """Header of every message of a protocol."""

    session: bytes
    round: int
    sender: str


class Advertisement(Message, frozen=True, tag="secagg-advertisement"):
    """Client to server, round 0: fresh public keys and a commitment to the self mask's seed, signed by the identity."""

    mask_key: bytes
    share_key: bytes
    commitment: bytes
    signature: bytes


class KeyList(Message, frozen=True, tag="secagg-key-list"):
    """Server to one client: the advertisements of itself and its neighbours, in the order of the setting's parties."""

    advertisements: tuple[Advertisement, ...]


class SealedShares(Message, frozen=True, tag="secagg-sealed-shares"):
    """Client to server, round 1: for each neighbour its two shares, sealed for that neighbour alone."""

    sealed: dict[str, bytes]


class ShareInbox(Message, frozen=True, tag="secagg-share-inbox"):
    """Server to one client: what its neighbours sealed for it, by source."""

    sealed: dict[str, bytes]


class Receipt(Message, frozen=True, tag="secagg-receipt"):
    """Client to server, end of round 1: the neighbours whose sealed shares it could not open, mostly none."""

    unopened: tuple[str, ...]


class Cohort(Message, frozen=True, tag="secagg-cohort"):
    """Server to one client: who takes part from here, of itself and its neighbours. These, and no others, it masks with."""

    members: tuple[str, ...]


class MaskedUpload(Message, frozen=True, tag="secagg-masked-upload"):
    """Client to server, round 2: each vector under its masks, little-endian ring elements."""

    vectors: dict[str, bytes]


class Survivors(Message, frozen=True, tag="secagg-survivors"):
    """Server to one survivor: whose upload is in the sum, of itself and its neighbours; and how many are, of all."""

    survivors: tuple[str, ...]
    num_survivors: int


class Confirmation(Message, frozen=True, tag="secagg-confirmation"):
    """Client to server, round 3: what the sender was told, signed.

    Attributes:
        keys: digest of its key list (`bindings.keys_digest`).
        num_survivors: of all parties.
        survivors: a bit for itself and each neighbour, in the setting's order (`bindings.survivor_bits`).
    """

    keys: bytes
    num_survivors: int
    survivors: bytes
    signature: bytes


class UnmaskRequest(Message, frozen=True, tag="secagg-unmask-request"):
    """Server to one client: the confirmations of its neighbours, and whose shares of which kind it asks for."""

    confirmations: tuple[Confirmation, ...]
    self_masks: tuple[str, ...]
    mask_keys: tuple[str, ...]


class RevealedShares(Message, frozen=True, tag="secagg-revealed-shares"):
    """Client to server, round 4: for each survivor a share of its self mask's seed, for each dropped one of its key."""

    self_masks: dict[str, bytes]
    mask_keys: dict[str, bytes]


AnyMessage = (
    Advertisement
    | KeyList
    | SealedShares
    | ShareInbox
    | Receipt
    | Cohort
    | MaskedUpload
    | Survivors
    | Confirmation
    | UnmaskRequest
    | RevealedShares
)


class Failure(NamedTuple):
    """In place of a client's message: why none arrived, as the channel or the client itself says."""

    sender: str
    reason: str


Arrival = Message | Failure


class _Kind(msgspec.Struct):
    """Part that messages of all protocols share."""

    kind: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)
_kind_decoder = msgspec.msgpack.Decoder(_Kind)


def encode(message: Message) -> bytes:
    """Encode a message of any protocol as the bytes that are transmitted."""
    return _encoder.encode(message)


def decode(frame: bytes) -> AnyMessage:
    """Decode a message of secure aggregation. Raises `MalformedMessage`."""
    try:
        return _decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # names that are no UTF-8 raise the latter
        raise MalformedMessage(f"{len(frame)} bytes cannot be read as a message: {error}") from error


def kind_of(frame: bytes) -> str:
    """Read the kind of the message in `frame`, of any protocol; empty for bytes that are not a message."""
    try:
        return _kind_decoder.decode(frame).kind
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


_CLIENT_ORDER = (Advertisement, SealedShares, Receipt, MaskedUpload, Confirmation, RevealedShares)
Kind = TypeVar("Kind", bound=Message)


def check_header(message: Message, kind: type[Kind], *, session: bytes, round: int, senders: Container[str]) -> Kind:
    """Check a message's kind, session, round and sender, and return it.

    Args:
        kind: class of message that is due.
        senders: parties that take part in this stage.

    Raises:
        ReplayedMessage: another session or round.
        LateMessage: a client's message of a stage before that of `kind`.
        UnexpectedMessage: any other kind.
        UnknownSender: a sender that has no part in this stage.
    """
    if message.session != session or message.round != round:
        raise ReplayedMessage(
            f"{type(message).__name__} of {message.sender} belongs to session {message.session.hex()} round "
            f"{message.round}; this is session {session.hex()} round {round}"
        )
    if not isinstance(message, kind):
        # Tell a late message from a wrong one: a client that is too slow is no attacker.
        if type(message) in _CLIENT_ORDER and kind in _CLIENT_ORDER[_CLIENT_ORDER.index(type(message)) :]:
            raise LateMessage(
                f"{type(message).__name__} of {message.sender}: its stage is over, {kind.__name__} is due"
            )
        raise UnexpectedMessage(f"{type(message).__name__} of {message.sender}: {kind.__name__} is due")
    if message.sender not in senders:
        raise UnknownSender(f"{kind.__name__} of {message.sender!r}, which has no part in this stage")
    return message
