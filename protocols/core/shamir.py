"""Shamir's secret sharing of 32-byte secrets over the prime field of 2^256 + 297.

Any `threshold` shares give the secret. Fewer shares are independent of it, so no computing power recovers it from them.
Shares carry no authentication: the caller checks the reconstructed secret against a public key or a commitment.

    >>> from fkgsec.protocols.core.prg import seeded
    >>> shares = split(bytes(31) + b"!", threshold=2, holders=(1, 2, 3, 4), randomness=seeded(b"example"))
    >>> reconstruct({2: shares[2], 4: shares[4]}, threshold=2)[-1:]
    b'!'
    >>> correct({**shares, 3: shares[1]}, threshold=2)[1]
    frozenset({3})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import mul

from fkgsec.protocols.core.errors import BadShare, ReconstructionMismatch, SettingError, TooFewParties, WrongLength
from fkgsec.protocols.core.prg import Randomness, digest, draw

PRIME = 2**256 + 297  # the smallest prime above 2^256
SECRET_BYTES = 32
SHARE_BYTES = 33  # one bit more than a secret


def split(secret: bytes, *, threshold: int, holders: Sequence[int], randomness: Randomness) -> dict[int, bytes]:
    """Split a secret into one share per holder.

    Args:
        secret: 32 bytes.
        threshold: shares that reconstruct it.
        holders: distinct points 1, 2, ... at which the polynomial is evaluated.

    Returns:
        For each holder 33 bytes, little-endian.

    Raises `WrongLength` for the secret, `SettingError` unless 1 <= threshold <= number of distinct positive holders.
    Source: Shamir 1979. Differs: none.
    """
    if len(secret) != SECRET_BYTES:
        raise WrongLength(f"a secret of {len(secret)} bytes; it must have {SECRET_BYTES}")
    if len(set(holders)) != len(holders) or any(not 0 < holder < PRIME for holder in holders):
        raise SettingError(f"holders must be distinct positive numbers; got {list(holders)}")
    if not 1 <= threshold <= len(holders):
        raise SettingError(f"threshold {threshold}: it must lie in 1..{len(holders)}, the number of holders")
    # Shamir 1979: a polynomial of degree threshold - 1 with the secret as its constant and uniform other coefficients.
    # A holder's share is the value at its point; point 0 is excluded, since its share would be the secret.
    coefficients = [int.from_bytes(secret, "little"), *(_uniform(randomness) for _ in range(threshold - 1))]
    return {
        holder: (sum(map(mul, coefficients, _powers(holder, threshold))) % PRIME).to_bytes(SHARE_BYTES, "little")
        for holder in holders
    }


def reconstruct(shares: Mapping[int, bytes], *, threshold: int) -> bytes:
    """Reconstruct the secret, 32 bytes, from all the shares passed in.

    Args:
        shares: by holder, at least `threshold`. Those beyond the threshold are checked, not ignored.
        threshold: as in `split`.

    Raises:
        TooFewParties: fewer than `threshold` shares.
        BadShare: a share of another length or outside the field.
        ReconstructionMismatch: shares that do not lie on one polynomial of that degree, or meet outside 32 bytes.

    Source: Shamir 1979, Lagrange interpolation at 0; the check is SCRAPE's (Cascudo, David 2017, section 2.1).
    Differs: the dual codeword is (x + r)^(n - threshold - 1), r a hash of the shares, instead of a random polynomial.
    """
    points = _points(shares, threshold)
    holders = tuple(points)
    inverse, at_zero = _weights(holders)
    # SCRAPE: n shares are a codeword of a Reed-Solomon code, and orthogonal to every codeword of its dual code. Shares
    # that lie on no polynomial pass for at most n - threshold - 1 of the 2^256 values of r.
    surplus = len(points) - threshold
    if surplus:
        shift = int.from_bytes(
            digest("shamir check", threshold, *holders, *(shares[holder] for holder in holders)), "little"
        )
        dual = (
            pow(holder + shift, surplus - 1, PRIME) * weight for holder, weight in zip(holders, inverse, strict=True)
        )
        if sum(weight * value for weight, value in zip(dual, points.values(), strict=True)) % PRIME:
            raise ReconstructionMismatch(
                f"the {len(points)} shares of holders {list(holders)} lie on no polynomial of degree below {threshold}"
            )
    # Lagrange interpolation at 0.
    return _secret(sum(weight * value for weight, value in zip(at_zero, points.values(), strict=True)) % PRIME, points)


def correct(shares: Mapping[int, bytes], *, threshold: int) -> tuple[bytes, frozenset[int]]:
    """Reconstruct the secret and name the holders of wrong shares, if at most half of the surplus shares are wrong.

    Args:
        shares: by holder. With n shares, (n - threshold) // 2 may be wrong.
        threshold: as in `split`.

    Returns:
        The secret, 32 bytes, and the holders whose shares do not lie on its polynomial.

    Raises as `reconstruct`, `ReconstructionMismatch` also if more shares are wrong.
    Source: Gao 2003, "A new algorithm for decoding Reed-Solomon codes". Differs: none.
    """
    points = _points(shares, threshold)
    # Gao 2003, step 1: g0 = prod (x - holder), and g1, the polynomial through all points, by Lagrange interpolation.
    product = [1]
    for holder in points:
        product = _times_root(product, holder)
    inverse, _ = _weights(tuple(points))
    through_all = [0] * len(points)
    for (holder, value), weight in zip(points.items(), inverse, strict=True):
        scale = value * weight % PRIME
        for place, remainder in enumerate(_without_root(product, holder)):
            through_all[place] += scale * remainder
    # Gao 2003, step 2: the extended Euclidean algorithm on g0 and g1 stops at the first remainder g of degree below
    # (n + threshold) / 2. `factors` follows v in g = u g0 + v g1.
    remainders = product, _trimmed([remainder % PRIME for remainder in through_all])
    factors: tuple[list[int], list[int]] = [], [1]
    while 2 * (len(remainders[1]) - 1) >= len(points) + threshold:
        quotient, rest = _divided(*remainders)
        remainders = remainders[1], rest
        factors = factors[1], _minus_product(factors[0], quotient, factors[1])
    # Gao 2003, step 3: g / v is the dealer's polynomial if the division has no remainder and the degree is below threshold.
    polynomial, rest = _divided(remainders[1], factors[1])
    wrong = frozenset(holder for holder, value in points.items() if _evaluate(polynomial, holder) != value)
    if rest or len(polynomial) > threshold or 2 * len(wrong) > len(points) - threshold:
        raise ReconstructionMismatch(
            f"more than {(len(points) - threshold) // 2} of the {len(points)} shares of holders {list(points)} are wrong"
        )
    return _secret(polynomial[0] if polynomial else 0, points), wrong


def _uniform(randomness: Randomness) -> int:
    """Draw a uniform field element by rejection: 257 bits until they are below the prime, twice on average."""
    while True:
        drawn = int.from_bytes(draw(randomness, SHARE_BYTES), "little") & (2**257 - 1)
        if drawn < PRIME:
            return drawn


# All clients share with the same holders.
@lru_cache(maxsize=4096)
def _powers(holder: int, count: int) -> tuple[int, ...]:
    """Return 1, x, x^2, ... of a holder's point."""
    powers = [1]
    while len(powers) < count:
        powers.append(powers[-1] * holder % PRIME)
    return tuple(powers)


def _evaluate(coefficients: Sequence[int], at: int) -> int:
    """Evaluate a polynomial at a point by Horner's rule; `coefficients[0]` is the constant."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * at + coefficient) % PRIME
    return value


def _element(holder: int, share: bytes) -> int:
    value = int.from_bytes(share, "little")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise BadShare(f"the share of holder {holder} ({len(share)} bytes) is no element of the field")
    return value


def _points(shares: Mapping[int, bytes], threshold: int) -> dict[int, int]:
    if len(shares) < threshold:
        raise TooFewParties(f"{len(shares)} shares; the threshold is {threshold}")
    return {holder: _element(holder, share) for holder, share in sorted(shares.items())}


def _secret(value: int, points: Mapping[int, int]) -> bytes:
    if value >= 2 ** (8 * SECRET_BYTES):
        raise ReconstructionMismatch(f"the shares of {list(points)} meet in no secret of {SECRET_BYTES} bytes")
    return value.to_bytes(SECRET_BYTES, "little")


# On the complete graph, a server reconstructs many secrets from the same holders.
@lru_cache(maxsize=256)
def _weights(holders: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return 1 / prod (holder - other) for each holder, and the Lagrange weight of its share in the value at 0."""
    negated = 1
    below = []
    for holder in holders:
        product = -holder
        for other in holders:
            if other != holder:
                product = product * (holder - other) % PRIME
        below.append(product)
        negated = negated * -holder % PRIME
    # Montgomery's trick: invert the product of all factors once, then peel off one factor after the other.
    before = [1]
    for factor in below:
        before.append(before[-1] * factor % PRIME)
    left = pow(before[-1], -1, PRIME)
    inverses = [0] * len(holders)
    for place in reversed(range(len(holders))):
        inverses[place] = left * before[place] % PRIME
        left = left * below[place] % PRIME
    return (
        tuple(-holder * factor % PRIME for holder, factor in zip(holders, inverses, strict=True)),
        tuple(negated * factor % PRIME for factor in inverses),
    )


# Polynomials: lists of coefficients, the constant first, without zeros at the end.


def _trimmed(coefficients: list[int]) -> list[int]:
    while coefficients and not coefficients[-1]:
        coefficients.pop()
    return coefficients


def _times_root(polynomial: Sequence[int], root: int) -> list[int]:
    """Multiply by (x - root)."""
    shifted, scaled = [0, *polynomial], [*polynomial, 0]
    return [(high - root * other) % PRIME for high, other in zip(shifted, scaled, strict=True)]


def _without_root(polynomial: Sequence[int], root: int) -> list[int]:
    """Divide by (x - root), which must divide it."""
    # Synthetic division, from the highest coefficient down.
    quotient = [0] * (len(polynomial) - 1)
    carried = 0
    for place in reversed(range(len(quotient))):
        carried = (polynomial[place + 1] + root * carried) % PRIME
        quotient[place] = carried
    return quotient


def _divided(dividend: Sequence[int], divisor: Sequence[int]) -> tuple[list[int], list[int]]:
    """Divide with remainder: quotient and remainder."""
    rest = list(dividend)
    quotient = [0] * max(len(dividend) - len(divisor) + 1, 0)
    leading = pow(divisor[-1], -1, PRIME)
    for place in reversed(range(len(quotient))):
        quotient[place] = rest[place + len(divisor) - 1] * leading % PRIME
        for offset, coefficient in enumerate(divisor):
            rest[place + offset] = (rest[place + offset] - quotient[place] * coefficient) % PRIME
    return _trimmed(quotient), _trimmed(rest[: len(divisor) - 1])


def _minus_product(minuend: Sequence[int], left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Compute minuend - left * right."""
    result = [*minuend, *[0] * max(len(left) + len(right) - 1 - len(minuend), 0)]
    for place, a in enumerate(left):
        for offset, b in enumerate(right):
            result[place + offset] = (result[place + offset] - a * b) % PRIME
    return _trimmed(result)
