"""Shamir's secret sharing of 32-byte secrets over the prime field of 2^256 + 297.

Any `threshold` shares give the secret; fewer say nothing about it, whatever computer looks at them.
Shares carry no authentication: the caller checks the reconstructed secret against a public key or a commitment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from protocols.errors import BadShare, ReconstructionMismatch, SettingError, TooFewParties, WrongLength
from protocols.prg import Randomness, draw

PRIME = 2**256 + 297  # the smallest prime above 2^256
SECRET_BYTES = 32
SHARE_BYTES = 33  # one bit more than a secret


def split(secret: bytes, *, threshold: int, holders: Sequence[int], randomness: Randomness) -> dict[int, bytes]:
    """Shares of a secret: 33 bytes, little-endian, for each holder.

    Args:
        secret: 32 bytes.
        holders: distinct points 1, 2, ... at which the polynomial is evaluated.

    Raises `WrongLength` for the secret, `SettingError` unless 1 <= threshold <= number of distinct positive holders.
    Source: Shamir 1979. Differs: none.
    """
    if len(secret) != SECRET_BYTES:
        raise WrongLength(f"a secret of {len(secret)} bytes; it must have {SECRET_BYTES}")
    if len(set(holders)) != len(holders) or any(not 0 < holder < PRIME for holder in holders):
        raise SettingError(f"holders must be distinct positive numbers; got {list(holders)}")
    if not 1 <= threshold <= len(holders):
        raise SettingError(f"threshold {threshold}: it must lie in 1..{len(holders)}, the number of holders")
    coefficients = [int.from_bytes(secret, "little"), *(_uniform(randomness) for _ in range(threshold - 1))]
    return {holder: _evaluate(coefficients, holder).to_bytes(SHARE_BYTES, "little") for holder in holders}


def reconstruct(shares: Mapping[int, bytes], *, threshold: int) -> bytes:
    """The secret, 32 bytes, from at least `threshold` shares by holder. Every share given takes part.

    Raises:
        TooFewParties: fewer than `threshold` shares.
        BadShare: a share of another length or outside the field.
        ReconstructionMismatch: shares that do not lie on one polynomial of that degree, or meet outside 32 bytes.

    Source: Shamir 1979, Lagrange interpolation at 0. Differs: surplus shares are checked, not left out.
    """
    if len(shares) < threshold:
        raise TooFewParties(f"{len(shares)} shares; the threshold is {threshold}")
    points = {holder: _element(holder, share) for holder, share in sorted(shares.items())}
    base = tuple(points)[:threshold]
    for checked in (holder for holder in points if holder not in base):
        if _interpolate(points, base, at=checked) != points[checked]:
            raise ReconstructionMismatch(f"the share of holder {checked} does not fit those of {list(base)}")
    secret = _interpolate(points, base, at=0)
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise ReconstructionMismatch(f"the shares of {list(base)} meet in no secret of {SECRET_BYTES} bytes")
    return secret.to_bytes(SECRET_BYTES, "little")


def _uniform(randomness: Randomness) -> int:
    """A uniform field element, by rejection: 257 bits until they are below the prime, twice on average."""
    while True:
        drawn = int.from_bytes(draw(randomness, SHARE_BYTES), "little") & (2**257 - 1)
        if drawn < PRIME:
            return drawn


def _evaluate(coefficients: Sequence[int], at: int) -> int:
    """The polynomial at a point, by Horner's rule; `coefficients[0]` is the constant."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * at + coefficient) % PRIME
    return value


def _element(holder: int, share: bytes) -> int:
    value = int.from_bytes(share, "little")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise BadShare(f"the share of holder {holder} ({len(share)} bytes) is no element of the field")
    return value


def _interpolate(points: Mapping[int, int], base: tuple[int, ...], *, at: int) -> int:
    weights = _lagrange(base, at)
    return sum(weight * points[holder] for weight, holder in zip(weights, base, strict=True)) % PRIME


@lru_cache(maxsize=256)  # a server reconstructs many secrets from the same holders
def _lagrange(base: tuple[int, ...], at: int) -> tuple[int, ...]:
    """The weights with which the values at `base` give the value at `at`."""
    weights = []
    for holder in base:
        above = below = 1
        for other in base:
            if other != holder:
                above = above * (at - other) % PRIME
                below = below * (holder - other) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
