"""The oblivious pseudorandom function OPRF(ristretto255, SHA-512) of RFC 9497, base mode, and the group it works in.

The server holds a key k, the client an input x. The client learns F_k(x), 64 bytes, and nothing else of k. The server
learns nothing of x: a blinded element is uniform whatever x is. Base mode proves nothing to the client: a server that
uses another key is not noticed.

Assumes: one-more gap Diffie-Hellman in ristretto255, hash functions as random oracles.

The group arithmetic is libsodium's, by way of `rbcl` (extra `two-party`). rbcl 1.1.2 accepts an encoding with the high
bit set, and adds an invalid element as if it were the identity; every element is therefore checked here first.
Elements and scalars are their encodings, 32 bytes. No element that is received or returned is the identity.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import NamedTuple

from cryptography.hazmat.primitives import hashes

from protocols.errors import ProtocolError, WrongLength
from protocols.prg import Randomness, draw

ELEMENT_BYTES = 32  # Ne
SCALAR_BYTES = 32  # Ns
SEED_BYTES = 32
OUTPUT_BYTES = 64  # Nh
MAX_INPUT_BYTES = 2**16 - 1
ORDER = 2**252 + 27742317777372353535851937790883648493  # RFC 9496 section 4

_CONTEXT = b"OPRFV1-" + b"\x00" + b"-ristretto255-SHA512"  # CreateContextString of section 3.1, mode 0
_FIELD = 2**255 - 19
_IDENTITY = bytes(ELEMENT_BYTES)


class MissingExtra(ProtocolError):
    """A package of an optional extra that is not installed."""


class InvalidElement(ProtocolError):
    """Bytes that are not the canonical encoding of a ristretto255 element other than the identity."""


class InvalidScalar(ProtocolError):
    """A scalar that is zero, or not below the order of the group."""


class InvalidInput(ProtocolError):
    """An input that hashes to the identity, or a seed from which no key comes. Neither happens by chance."""


@functools.cache
def _group() -> ModuleType:
    """rbcl, loaded at the first use. Raises `MissingExtra` without it."""
    try:
        import rbcl
    except ImportError as error:
        raise MissingExtra("ristretto255 needs rbcl: pip install fkgsec[two-party]") from error
    return rbcl


def check_element(encoded: bytes, what: str) -> bytes:
    """`encoded` when it is a canonical encoding and not the identity (DeserializeElement). Raises `InvalidElement`.

    Source: RFC 9496 section 4.3.1, RFC 9497 sections 2.1 and 4.1. Differs: none.
    """
    canonical = len(encoded) == ELEMENT_BYTES and int.from_bytes(encoded, "little") < _FIELD and encoded != _IDENTITY
    if not canonical or not _group().crypto_core_ristretto255_is_valid_point(encoded):
        raise InvalidElement(f"{what} is not a ristretto255 element: {encoded.hex() or 'no bytes'}")
    return encoded


def random_scalar(randomness: Randomness) -> bytes:
    """A uniform scalar other than zero, from 64 bytes of `randomness`. Source: RFC 9497 section 2.1. Differs: none."""
    return _nonzero(_group().crypto_core_ristretto255_scalar_reduce(draw(randomness, 64)))


def multiply(scalar: bytes, element: bytes) -> bytes:
    """`scalar` times a checked `element`. Raises `InvalidScalar` for zero."""
    return _group().crypto_scalarmult_ristretto255(_nonzero(scalar), element)


def multiply_generator(scalar: bytes) -> bytes:
    """`scalar` times the generator. Raises `InvalidScalar` for zero."""
    return _group().crypto_scalarmult_ristretto255_base(_nonzero(scalar))


def add(a: bytes, b: bytes) -> bytes:
    """The sum of two checked elements. Raises `InvalidElement` when it is the identity."""
    return _not_identity(_group().crypto_core_ristretto255_add(a, b), "a sum of elements")


def subtract(a: bytes, b: bytes) -> bytes:
    """The difference of two checked elements. Raises `InvalidElement` when they are the same."""
    return _not_identity(_group().crypto_core_ristretto255_sub(a, b), "a difference of elements")


def hash_to_group(data: bytes) -> bytes:
    """The element of `data`, whose discrete logarithm nobody knows. Raises `InvalidInput`, `WrongLength` (65,535 bytes).

    Source: RFC 9497 section 4.1 (HashToGroup), RFC 9380 section 5.3.1. Differs: none.
    """
    _check_length(data, "an input", MAX_INPUT_BYTES)
    element = _group().crypto_core_ristretto255_from_hash(_expand(data, b"HashToGroup-" + _CONTEXT))
    if element == _IDENTITY:
        raise InvalidInput(f"an input of {len(data)} bytes hashes to the identity")
    return element


def derive_key(seed: bytes, info: bytes) -> bytes:
    """The secret key of `seed`, 32 uniform bytes, for one purpose `info` of at most 65,535 bytes.

    Raises `InvalidInput`, `WrongLength`. Source: RFC 9497 section 3.2.1 (DeriveKeyPair). Differs: the public key is left
    out, base mode has no use for it; a counter other than 0 (chance 2^-252) is refused, not tried.
    """
    if len(seed) != SEED_BYTES:
        raise WrongLength(f"a seed of {len(seed)} bytes; it must have {SEED_BYTES}")
    _check_length(info, "info", MAX_INPUT_BYTES)
    derive_input = seed + len(info).to_bytes(2, "big") + info + b"\x00"
    key = _group().crypto_core_ristretto255_scalar_reduce(_expand(derive_input, b"DeriveKeyPair" + _CONTEXT))
    if not any(key):
        raise InvalidInput("the seed gives the key zero")
    return key


class Blinded(NamedTuple):
    """The client's blind, secret, and the element that it sends. `repr` leaves the blind out."""

    blind: bytes
    element: bytes

    def __repr__(self) -> str:
        return f"Blinded(element={self.element.hex()})"


def blind(data: bytes, randomness: Randomness) -> Blinded:
    """Client: hide `data`. Raises as `hash_to_group`. Source: RFC 9497 section 3.3.1 (Blind). Differs: none."""
    scalar = random_scalar(randomness)
    return Blinded(scalar, multiply(scalar, hash_to_group(data)))


def blind_evaluate(key: bytes, blinded: bytes) -> bytes:
    """Server: the key times a blinded element. Raises `InvalidElement`.

    Source: RFC 9497 section 3.3.1 (BlindEvaluate). Differs: none.
    """
    return multiply(key, check_element(blinded, "a blinded element"))


def finalize(data: bytes, blind: bytes, evaluated: bytes) -> bytes:
    """Client: F_k(data), 64 bytes. Raises `InvalidElement`. Source: RFC 9497 section 3.3.1 (Finalize). Differs: none."""
    inverse = _group().crypto_core_ristretto255_scalar_invert(_nonzero(blind))
    return output(data, multiply(inverse, check_element(evaluated, "an evaluated element")))


def evaluate(key: bytes, data: bytes) -> bytes:
    """Server alone: F_k(data), 64 bytes. Source: RFC 9497 section 3.3.1 (Evaluate). Differs: none."""
    return output(data, multiply(key, hash_to_group(data)))


def output(data: bytes, element: bytes) -> bytes:
    """F_k(data) from k times the element of `data`: the last lines of Finalize and Evaluate.

    Apart, because one element serves the evaluations of one input under many keys.
    """
    framed = len(data).to_bytes(2, "big") + data + len(element).to_bytes(2, "big") + element
    return _sha512(framed + b"Finalize")


def _expand(data: bytes, tag: bytes) -> bytes:
    """64 uniform bytes: expand_message_xmd with SHA-512, which at this length is one block. Source: RFC 9380 5.3.1."""
    suffix = tag + len(tag).to_bytes(1, "big")
    first = _sha512(bytes(128) + data + (64).to_bytes(2, "big") + b"\x00" + suffix)
    return _sha512(first + b"\x01" + suffix)


def _sha512(data: bytes) -> bytes:
    state = hashes.Hash(hashes.SHA512())
    state.update(data)
    return state.finalize()


def _check_length(data: bytes, what: str, most: int) -> None:
    if len(data) > most:
        raise WrongLength(f"{what} of {len(data)} bytes; at most {most} are allowed")


def _nonzero(scalar: bytes) -> bytes:
    """Raises `InvalidScalar` unless canonical and not zero; libsodium would drop the high bit."""
    if len(scalar) != SCALAR_BYTES or not 0 < int.from_bytes(scalar, "little") < ORDER:
        raise InvalidScalar(f"a scalar of {len(scalar)} bytes is zero or not below the order of the group")
    return scalar


def _not_identity(element: bytes, what: str) -> bytes:
    if element == _IDENTITY:
        raise InvalidElement(f"{what} is the identity")
    return element
