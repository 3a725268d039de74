"""Key agreement, signatures and sealed messages: the primitives of `cryptography`, with errors that name the party.

    own, theirs = generate(randomness), generate(other_randomness)
    secret = agree(own.private, theirs.public, peer="client1")                      # 32 bytes, the same at both ends
    sealed = seal(secret, b"a share", associated=b"session 7", randomness=randomness)
    unseal(secret, sealed, associated=b"session 7", source="client0")               # b"a share"

Keys travel as raw bytes: X25519 private and public keys of 32 bytes, Ed25519 signatures of 64.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fkgsec.protocols.core.errors import BadCiphertext, BadSignature, LowOrderPoint, WrongLength
from fkgsec.protocols.core.prg import Randomness, draw

KEY_BYTES = 32
SIGNATURE_BYTES = 64
NONCE_BYTES = 12
TAG_BYTES = 16
_ANY_PRIVATE = bytes(KEY_BYTES)


class KeyPair(NamedTuple):
    """An X25519 key pair, raw. `repr` leaves the private key out."""

    private: bytes
    public: bytes

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"


def generate(randomness: Randomness) -> KeyPair:
    """A fresh X25519 key pair from 32 bytes of `randomness`. Source: RFC 7748 section 6.1. Differs: none."""
    private = draw(randomness, KEY_BYTES)
    return KeyPair(private, public_key(private))


def public_key(private: bytes) -> bytes:
    """The public key of a raw X25519 private key. Raises `WrongLength` unless it has 32 bytes."""
    return loaded(private).public_key().public_bytes_raw()


def loaded(private: bytes) -> X25519PrivateKey:
    """A raw X25519 private key for `agree` with many peers. Raises `WrongLength` unless it has 32 bytes."""
    if len(private) != KEY_BYTES:
        raise WrongLength(f"an X25519 private key of {len(private)} bytes; it must have {KEY_BYTES}")
    return X25519PrivateKey.from_private_bytes(private)


def agree(private: bytes | X25519PrivateKey, public: bytes, *, peer: str) -> bytes:
    """The X25519 shared secret, 32 bytes. It is no key yet: pass it to `prg.derive`.

    Loading a raw private key costs as much as the agreement: whoever has many peers calls `loaded` first.

    Raises `LowOrderPoint` when `peer`'s key has small order, `WrongLength` for another length.
    Source: RFC 7748 section 6.1, with the check for the all-zero secret. Differs: none.
    """
    if len(public) != KEY_BYTES or (isinstance(private, bytes) and len(private) != KEY_BYTES):
        own_bytes = len(private) if isinstance(private, bytes) else KEY_BYTES
        raise WrongLength(f"X25519 keys of {own_bytes} and {len(public)} bytes (of {peer}); they have {KEY_BYTES}")
    key = loaded(private) if isinstance(private, bytes) else private
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise LowOrderPoint(f"the public key of {peer} has small order: {public.hex()}") from error


def check_order(public: bytes, *, peer: str) -> None:
    """Raises `LowOrderPoint` when `peer`'s key has small order, `WrongLength` for another length."""
    agree(_ANY_PRIVATE, public, peer=peer)  # every private key is a multiple of 8, the order of the small subgroup


def sign(identity: Ed25519PrivateKey, message: bytes) -> bytes:
    """Ed25519 signature of `message`, 64 bytes. Source: RFC 8032. Differs: none."""
    return identity.sign(message)


def verify(identity: bytes, signature: bytes, message: bytes, *, signer: str) -> None:
    """Raises `BadSignature` unless `signature` is that of `signer`, whose raw Ed25519 public key is `identity`."""
    if not _verifies(identity, signature, message):
        raise BadSignature(f"the signature of {signer} does not verify under its pinned identity")


@lru_cache(maxsize=4096)  # in a simulation every one of N clients checks the same N signatures
def _verifies(identity: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def seal(key: bytes, plaintext: bytes, *, associated: bytes, randomness: Randomness) -> bytes:
    """ChaCha20-Poly1305 under a random nonce: nonce (12 bytes), ciphertext, tag (16 bytes).

    The nonce is random although each key seals one message, so that a state that is run twice reveals nothing.
    Source: RFC 8439 section 2.8. Differs: none.
    """
    nonce = draw(randomness, NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, associated)


def unseal(key: bytes, sealed: bytes, *, associated: bytes, source: str) -> bytes:
    """The plaintext of `seal`. Raises `BadCiphertext`, naming `source`, when anything in it was changed."""
    if len(sealed) < NONCE_BYTES + TAG_BYTES:
        raise BadCiphertext(f"the sealed message of {source} has {len(sealed)} bytes: too short")
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated)
    except InvalidTag as error:
        raise BadCiphertext(f"the sealed message of {source} fails authentication") from error
