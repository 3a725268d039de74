"""1-out-of-2 oblivious transfer in ristretto255 (Chou and Orlandi 2015), many transfers under one sender's key.

The sender holds two messages for each transfer, the receiver a bit. The receiver gets the message of its bit and
nothing of the other. The sender does not learn the bit: what it receives is a uniform element whatever the bit is.

Each party sees: the sender one element for each transfer; the receiver one element and both ciphertexts.

Assumes: both follow the protocol (semi-honest), computational Diffie-Hellman, the key derivation as a random oracle. The
two messages of a transfer must have the same length, or the lengths tell them apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocols.errors import WrongLength
from protocols.keys import NONCE_BYTES, TAG_BYTES, seal, unseal
from protocols.oprf import add, check_element, multiply, multiply_generator, random_scalar, subtract
from protocols.prg import Randomness, derive

OVERHEAD_BYTES = NONCE_BYTES + TAG_BYTES  # by which a ciphertext is longer than its message


@dataclass(frozen=True)
class TransferKey:
    """The sender's key of a session: a secret scalar a, the element A = a G that it announces, and a A, kept secret."""

    secret: bytes = field(repr=False)
    element: bytes
    squared: bytes = field(repr=False)


@dataclass(frozen=True)
class Choice:
    """The receiver's state of one transfer: its bit, the element it sends, and the key of the message it will open."""

    bit: bool = field(repr=False)
    element: bytes
    key: bytes = field(repr=False)


def announce(randomness: Randomness) -> TransferKey:
    """Sender: a fresh key for the transfers of one session. Source: Chou and Orlandi 2015, figure 1. Differs: none."""
    secret = random_scalar(randomness)
    element = multiply_generator(secret)
    return TransferKey(secret, element, multiply(secret, element))


def choose(announced: bytes, bit: bool, *, context: bytes, randomness: Randomness) -> Choice:
    """Receiver: the choice of `bit` in one transfer.

    Args:
        announced: the sender's element A.
        context: what names the transfer (session and number); no two transfers of a key may share it.

    Raises `InvalidElement`. Source: Chou and Orlandi 2015, figure 1: B = c G or A + c G, key H(c A). Differs: none.
    """
    check_element(announced, "the announced element")
    secret = random_scalar(randomness)
    plain = multiply_generator(secret)
    element = add(announced, plain) if bit else plain
    return Choice(bit, element, _key(multiply(secret, announced), announced, element, context))


def transfer(
    key: TransferKey, chosen: bytes, messages: tuple[bytes, bytes], *, context: bytes, randomness: Randomness
) -> tuple[bytes, bytes]:
    """Sender: the two messages, each under the key that the receiver knows for one bit only.

    Args:
        chosen: the receiver's element B.
        messages: of the same length; message 0 can be opened by a receiver that chose 0.

    Raises `InvalidElement`, and `WrongLength` for messages of different lengths.
    Source: Chou and Orlandi 2015, figure 1: k_0 = H(a B), k_1 = H(a B - a A). Differs: the messages are sealed by
    ChaCha20-Poly1305, so that damage is noticed.
    """
    if len(messages[0]) != len(messages[1]):
        raise WrongLength(f"messages of {len(messages[0])} and {len(messages[1])} bytes; a transfer needs one length")
    shared = multiply(key.secret, check_element(chosen, "a chosen element"))
    shifted = subtract(shared, key.squared)
    sealed = [
        seal(
            _key(secret, key.element, chosen, context),
            message,
            associated=context + bytes([bit]),
            randomness=randomness,
        )
        for bit, (secret, message) in enumerate(zip((shared, shifted), messages, strict=True))
    ]
    return sealed[0], sealed[1]


def receive(choice: Choice, sealed: tuple[bytes, bytes], *, context: bytes, source: str) -> bytes:
    """Receiver: the message of its bit. Raises `BadCiphertext`, naming `source`."""
    return unseal(choice.key, sealed[choice.bit], associated=context + bytes([choice.bit]), source=source)


def _key(shared: bytes, announced: bytes, chosen: bytes, context: bytes) -> bytes:
    return derive(shared, "oblivious transfer", announced, chosen, context)
