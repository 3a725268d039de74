"""Randomness, key derivation, keystreams, and the rings that the protocols compute in.

    >>> seed = derive(bytes(32), "an example", "client0", 7)                        # bound to a purpose and a context
    >>> seeded(seed)(4) == seeded(seed)(4)
    True
    >>> Ring.UINT32.add(np.array([2**32 - 1], dtype=np.uint32), np.array([2], dtype=np.uint32))
    array([1], dtype=uint32)

A pseudorandom generator (PRG) expands a seed of 32 bytes. Here it is the keystream of AES-256-CTR or ChaCha20 from counter 0,
read as little-endian ring elements. A seed is derived for one purpose (`derive`) and never used twice.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import get_args

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fkgsec.protocols import CipherName
from fkgsec.protocols.core.errors import OutOfRing, RandomnessError, SettingError, WrongLength, WrongType

Randomness = Callable[[int], bytes]
"""n -> n random bytes: `secrets.token_bytes` in production, `seeded(...)` in simulations and tests."""

SEED_BYTES = 32
_VERSION = b"fkgsec/protocols/v1"


def draw(randomness: Randomness, num_bytes: int) -> bytes:
    """Draw `num_bytes` bytes. Raises `RandomnessError` if the source returns another number."""
    drawn = randomness(num_bytes)
    if len(drawn) != num_bytes:
        raise RandomnessError(f"randomness returned {len(drawn)} bytes; {num_bytes} were requested")
    return drawn


def frame(*parts: bytes | str | int) -> bytes:
    """Encode `parts` so that no other list of parts has the same encoding.

    >>> frame("a", "bc") == frame("ab", "c")
    False
    """
    framed = bytearray()
    # Each part is preceded by its type and by its length in 8 bytes, so the encoding can be parsed in one way only.
    for part in parts:
        match part:
            case bytes():
                kind, content = b"b", part
            case str():
                kind, content = b"s", part.encode()
            case int():
                kind, content = b"i", str(int(part)).encode()
        framed += kind + len(content).to_bytes(8, "little") + content
    return bytes(framed)


def hkdf_sha256(secret: bytes, *, salt: bytes | None, info: bytes, length: int) -> bytes:
    """Derive `length` bytes with HKDF-SHA256, extract and expand. Source: RFC 5869. Differs: none."""
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)


def derive(secret: bytes, purpose: str, *context: bytes | str | int, length: int = SEED_BYTES) -> bytes:
    """Derive a key for one purpose and context. Other purposes or contexts give independent keys.

    Args:
        secret: input key material, such as an X25519 secret.
        purpose: names the use of the key.
        context: values that the key is bound to.
        length: bytes of the key.

    Source: RFC 5869; `info` is `frame` of this package's version, purpose and context. Differs: none.
    """
    return hkdf_sha256(secret, salt=None, info=frame(_VERSION, purpose, *context), length=length)


def digest(purpose: str, *context: bytes | str | int) -> bytes:
    """Compute SHA-256 of this package's version, a purpose and a context, 32 bytes."""
    state = hashes.Hash(hashes.SHA256())
    state.update(frame(_VERSION, purpose, *context))
    return state.finalize()


def keystream(seed: bytes, cipher: CipherName, start: bytes = bytes(16)) -> CipherContext:
    """Open a keystream: `update_into` turns zeros into its next bytes.

    Args:
        seed: 32 bytes, the cipher's key; used for one keystream only, which is why counter and nonce may start at zero.
        start: 16 bytes, counter and nonce in the cipher's order; published test vectors need other values than zero.

    Raises `WrongLength` for another seed length, `SettingError` for an unknown cipher.
    Source: NIST SP 800-38A (CTR), RFC 8439 section 2.4 (ChaCha20). Differs: none.
    """
    if len(seed) != SEED_BYTES:
        raise WrongLength(f"a keystream's seed has {len(seed)} bytes; it must have {SEED_BYTES}")
    match cipher:
        case "aes-256-ctr":
            return Cipher(algorithms.AES(seed), modes.CTR(start)).encryptor()
        case "chacha20":
            return Cipher(algorithms.ChaCha20(seed, start), None).encryptor()
        case _:
            raise SettingError(f"cipher {cipher!r} is unknown; allowed: {', '.join(get_args(CipherName))}")


def seeded(seed: bytes) -> Randomness:
    """Return a deterministic source of randomness for simulations and tests.

    Args:
        seed: any bytes. The same seed gives the same stream, whatever the sizes of the reads.

    >>> ours, same = seeded(b"example"), seeded(b"example")
    >>> ours(3) + ours(5) == same(8)
    True
    """
    stream = keystream(derive(seed, "seeded randomness"), "aes-256-ctr")
    return lambda num_bytes: stream.update(bytes(num_bytes))


class Ring(enum.Enum):
    """The integers modulo 2^32, 2^64 or the Mersenne prime 2^61-1, as little-endian numpy arrays.

    Elements of 2^61-1 are uint64 below p. Its field structure is what the invertible Bloom lookup table needs.
    """

    UINT32 = "2^32"
    UINT64 = "2^64"
    MERSENNE61 = "2^61-1"

    @property
    def modulus(self) -> int:
        """Number of elements."""
        return {"2^32": 2**32, "2^64": 2**64, "2^61-1": 2**61 - 1}[self.value]

    @property
    def dtype(self) -> np.dtype:
        """Little-endian numpy dtype of the elements."""
        return np.dtype("<u4") if self is Ring.UINT32 else np.dtype("<u8")

    def zeros(self, length: int) -> np.ndarray:
        """Return a vector of `length` zeros."""
        return np.zeros(length, dtype=self.dtype)

    def check(self, values: np.ndarray, length: int, what: str) -> None:
        """Check that `values` is a vector of ring elements.

        Args:
            length: expected number of elements.
            what: names the vector in errors.

        Raises:
            WrongType: not a vector of the ring's dtype.
            WrongLength: another number of elements.
            OutOfRing: an element that is not reduced.
        """
        if not isinstance(values, np.ndarray) or values.dtype != self.dtype or values.ndim != 1:
            actual = f"{values.dtype} {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
            raise WrongType(f"{what}: {actual}; a vector of {self.dtype} is needed for the ring {self.value}")
        if len(values) != length:
            raise WrongLength(f"{what}: {len(values)} values; the setting says {length}")
        if self is Ring.MERSENNE61 and length and int(values.max()) >= self.modulus:
            raise OutOfRing(f"{what}: {int(values.max())} is not below 2^61-1")

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Add elementwise."""
        if self is Ring.MERSENNE61:
            return _below_p(a + b)
        return a + b

    def subtract(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Subtract `b` from `a`, elementwise."""
        if self is Ring.MERSENNE61:
            return _below_p(a + (_P - b))
        return a - b

    def from_integers(self, integers: np.ndarray) -> np.ndarray:
        """Encode signed integers as ring elements, negative ones as modulus - |x|.

        Args:
            integers: int64 array of any shape.

        Raises:
            WrongType: another dtype.
            OutOfRing: a value that `to_integers` would not return.
        """
        if integers.dtype != np.int64:
            raise WrongType(f"integers: {integers.dtype}; int64 is needed")
        largest = (self.modulus - 1) // 2
        if integers.size and (int(integers.max()) > largest or int(integers.min()) < -largest):
            raise OutOfRing(f"integers in {integers.min()}..{integers.max()}; {self.value} holds +-{largest}")
        if self is Ring.MERSENNE61:
            return np.where(integers < 0, integers + np.int64(self.modulus), integers).astype(self.dtype)
        return integers.astype(self.dtype)

    def to_integers(self, values: np.ndarray) -> np.ndarray:
        """Decode ring elements as the signed integers (int64) nearest to zero."""
        match self:
            case Ring.UINT32:
                # Two's complement reads the upper half of the ring as negative numbers.
                return values.view("<i4").astype(np.int64)
            case Ring.UINT64:
                return values.view("<i8").astype(np.int64)
            case Ring.MERSENNE61:
                signed = values.astype(np.int64)
                return np.where(signed > (self.modulus - 1) // 2, signed - np.int64(self.modulus), signed)


_P = np.uint64(Ring.MERSENNE61.modulus)


def _below_p(values: np.ndarray) -> np.ndarray:
    """Values of at most 2 p, reduced once."""
    return np.where(values >= _P, values - _P, values)
