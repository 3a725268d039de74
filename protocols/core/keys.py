"""Key agreement, signatures and sealed messages: the primitives of `cryptography`, with errors that name the party.

    ours, theirs = generate(randomness), generate(other_randomness)
    secret = agree(ours.private, theirs.public, peer="client1")                      # 32 bytes, the same at both ends
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
    """Generate an X25519 key pair from 32 bytes of `randomness`. Source: RFC 7748 section 6.1. Differs: none."""
    private = draw(randomness, KEY_BYTES)
    return KeyPair(private, public_key(private))


def public_key(private: bytes) -> bytes:
    """Compute the public key of a raw X25519 private key. Raises `WrongLength` unless it has 32 bytes."""
    return loaded(private).public_key().public_bytes_raw()


def loaded(private: bytes) -> X25519PrivateKey:
    """Load a raw X25519 private key for `agree` with many peers. Raises `WrongLength` unless it has 32 bytes."""
    if len(private) != KEY_BYTES:
        raise WrongLength(f"an X25519 private key of {len(private)} bytes; it must have {KEY_BYTES}")
    return X25519PrivateKey.from_private_bytes(private)


def agree(private: bytes | X25519PrivateKey, public: bytes, *, peer: str) -> bytes:
    """Compute the X25519 shared secret, 32 bytes. It is not a key yet: pass it to `prg.derive`.

    Args:
        private: raw key, or a loaded one. Loading costs as much as the agreement, so call `loaded` first for many peers.
        public: raw public key of `peer`, 32 bytes.
        peer: name for errors.

    Raises:
        LowOrderPoint: the public key has small order.
        WrongLength: a key of another length.

    Source: RFC 7748 section 6.1, with the check for the all-zero secret. Differs: none.
    """
    if len(public) != KEY_BYTES or (isinstance(private, bytes) and len(private) != KEY_BYTES):
        own_bytes = len(private) if isinstance(private, bytes) else KEY_BYTES
        raise WrongLength(f"X25519 keys of {own_bytes} and {len(public)} bytes (of {peer}); they have {KEY_BYTES}")
    # `exchange` raises `ValueError` if the shared secret is zero, the check that RFC 7748 section 6.1 recommends.
    key = loaded(private) if isinstance(private, bytes) else private
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise LowOrderPoint(f"the public key of {peer} has small order: {public.hex()}") from error


def check_order(public: bytes, *, peer: str) -> None:
    """Check that a public key does not have small order.

    Args:
        public: raw X25519 public key, 32 bytes.
        peer: its owner, named in errors.

    Raises:
        LowOrderPoint: the public key has small order.
        WrongLength: a key of another length.
    """
    # Any private key will do: X25519 clamps it to a multiple of 8, the order of the small subgroup.
    agree(_ANY_PRIVATE, public, peer=peer)


def sign(identity: Ed25519PrivateKey, message: bytes) -> bytes:
    """Sign `message` with Ed25519; returns 64 bytes. Source: RFC 8032. Differs: none."""
    return identity.sign(message)


def verify(identity: bytes, signature: bytes, message: bytes, *, signer: str) -> None:
    """Check an Ed25519 signature.

    Args:
        identity: raw public key of the signer, 32 bytes.
        signature: 64 bytes.
        signer: name for errors.

    Raises:
        BadSignature: the signature does not verify.
    """
    if not _verifies(identity, signature, message):
        raise BadSignature(f"the signature of {signer} does not verify under its pinned identity")


# In a simulation, every one of N clients checks the same N signatures.
@lru_cache(maxsize=4096)
def _verifies(identity: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def seal(key: bytes, plaintext: bytes, *, associated: bytes, randomness: Randomness) -> bytes:
    """Encrypt with ChaCha20-Poly1305 under a random nonce: nonce (12 bytes), ciphertext, tag (16 bytes).

    Args:
        key: 32 bytes.
        associated: authenticated context, which `unseal` needs again.

    Source: RFC 8439 section 2.8. Differs: none.
    """
    # Each key seals one message, so a fixed nonce would do. A random one keeps a state that is run twice from
    # encrypting two messages with one keystream.
    nonce = draw(randomness, NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, associated)


def unseal(key: bytes, sealed: bytes, *, associated: bytes, source: str) -> bytes:
    """Decrypt a message of `seal`.

    Args:
        associated: context given to `seal`.
        source: the sender, named in errors.

    Raises:
        BadCiphertext: the message, its context or its key is not the sender's.
    """
    if len(sealed) < NONCE_BYTES + TAG_BYTES:
        raise BadCiphertext(f"the sealed message of {source} has {len(sealed)} bytes: too short")
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], associated)
    except InvalidTag as error:
        raise BadCiphertext(f"the sealed message of {source} fails authentication") from error
