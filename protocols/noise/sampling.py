"""Noise for differential privacy: the continuous Gaussian, and the discrete Gaussian and Skellam for a ring.

    rows = values + gaussian(len(values), sigma=0.5, randomness=source)                     # float64
    elements = ring.add(elements, ring.from_integers(Skellam(1600.0).sample(len(elements), source)))

Each party samples alone, and nothing is sent. Anybody with the seed of a sample can subtract it.
Assumes: a secret source of randomness, and AES-256-CTR indistinguishable from random (the guarantee is computational).
Not promised: constant time. Table look-ups and rejections take a time that depends on the sample.

The two integer distributions are drawn by one rule, in proposals of fixed size, so that no proposal steers the next:
1. Cut |x| into bins {0}, [1, 1 + width), [1 + width, 1 + 2 width), ... and choose one with probability proportional to
   width * P(its first value), by inverting a table of the cumulative sums with 127 bits.
2. Choose the value uniformly in its bin, and accept it with probability P(value) / P(first value); choose the sign.
The width is 1 up to a standard deviation of 256 (nothing is rejected then), later a power of two of at most 1/64 of it.
A compiled loop does this with the first 64 bits and floating point, and leaves close cases open. `_decide` settles those in
integers and 100-digit decimals. So no value depends on floating point.

Statistical distance per sample to the exact distribution, `SAMPLE_DISTANCE` = 2^-113. Four parts: the mass beyond the table,
2^-128; at most 2^12 cumulative sums, each off by 2^-127 at most; an acceptance probability rounded to 2^-128; and the
division by the share of accepted proposals (above 0.9), which at most doubles the second and third part (2^-114).
`sampling_delta` says how it enters delta.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from fkgsec.protocols.core.compiled import compiled
from fkgsec.protocols.core.errors import ProtocolError
from fkgsec.protocols.core.prg import SEED_BYTES, Randomness, derive, draw, seeded

SAMPLE_DISTANCE = 2.0**-113
# Of both integer distributions. Other values need another look at the number formats.
MIN_SIGMA, MAX_SIGMA = 2.0**-40, 2.0**40
# Up to here every value has its own bin.
_DIRECT_SIGMA = 256.0
# Bits of a cumulative sum. The 128th bit of a proposal's first two words is the sign.
_BITS = 127
# A decision closer than this is left to exact arithmetic. The floating-point formula errs by less than a tenth of it.
_GUARD = 2.0**-18
# Proposals per call of the compiled loop: their words fit a cache.
_BLOCK = 1 << 16
_GUIDE_BITS = 10
_CONTEXT = Context(prec=100)
_REJECTED, _ACCEPTED, _OPEN = 0, 1, 2


class NoiseError(ProtocolError):
    """A scale or a length of noise that is not allowed."""


def gaussian(length: int, sigma: float, randomness: Randomness) -> np.ndarray:
    """Draw continuous Gaussian noise for floating-point embeddings.

    Floating point cannot represent a Gaussian exactly: the low bits of value + noise reveal something about the value (Mironov
    2012, for Laplace), which no epsilon here covers. If that matters, and for anything in a ring, use `DiscreteGaussian` or
    `Skellam`. The last bits may differ between machines.

    Args:
        sigma: standard deviation; 0 gives zeros.
        randomness: source of a seed of 32 bytes.

    Returns:
        float64 `[length]`, mean 0.

    Raises `NoiseError` for a negative or infinite sigma or a negative length.
    Source: Box and Muller 1958. Differs: 64-bit uniforms end the tail at 9.4 sigma (mass 2^-64).
    """
    _check_length(length)
    if not (math.isfinite(sigma) and sigma >= 0):
        raise NoiseError(f"sigma must be finite and not negative; got {sigma}")
    stream = seeded(derive(draw(randomness, SEED_BYTES), "gaussian noise"))
    out = np.empty(length + length % 2)
    for begin in range(0, len(out), _BLOCK):
        part = out[begin : begin + _BLOCK]
        _box_muller(np.frombuffer(stream(8 * len(part)), dtype="<u8"), sigma, part)
    return out[:length]


@dataclass(frozen=True)
class DiscreteGaussian:
    """The discrete Gaussian: P(x) proportional to exp(-x^2 / (2 sigma^2)) on the integers.

    Attributes:
        sigma: `MIN_SIGMA` to `MAX_SIGMA`, in units of the ring. The standard deviation is at most this, and this to 1e-6
            from sigma = 1 on. Sums are not discrete Gaussian: `accounting.epsilon_of` covers them.

    Raises `NoiseError` for another sigma.
    Source: Canonne, Kamath, Steinke 2020 (the distribution).
    Differs: drawn by the table and rejection of this module, not by their rejection from a discrete Laplace.
    """

    sigma: float

    def __post_init__(self) -> None:
        if not MIN_SIGMA <= self.sigma <= MAX_SIGMA:
            raise NoiseError(f"sigma must lie in 2^-40..2^40; got {self.sigma}")

    def sample(self, length: int, randomness: Randomness) -> np.ndarray:
        """Draw a sample.

        Args:
            randomness: source of a seed of 32 bytes, which determines the sample.

        Returns:
            int64 `[length]`.

        Raises `NoiseError` for a negative length.
        """
        return _sample(self, length, randomness)

    def _relative(self, value: int) -> Decimal:
        """Compute P(value) / P(0)."""
        with localcontext(_CONTEXT):
            return (-(Decimal(value) ** 2) / (2 * Decimal(self.sigma) ** 2)).exp()

    def _log_tail(self, value: int) -> float:
        """Bound log P(x >= value): the distribution is sub-Gaussian with parameter sigma."""
        return -((value / self.sigma) ** 2) / 2

    def _slope(self) -> tuple[float, float]:
        """Return (first, second): log P(start) - log P(value) = D (first - S second), D and S difference and sum of squares."""
        return 1 / (2 * self.sigma**2), 0.0


@dataclass(frozen=True)
class Skellam:
    """The symmetric Skellam distribution: the difference of two Poisson variables of mean variance / 2 each.

    P(x) = exp(-variance) I_|x|(variance), I the modified Bessel function. Sums are Skellam, and variances add.

    Attributes:
        variance: `MIN_SIGMA`^2 to `MAX_SIGMA`^2, in squared units of the ring.

    Raises `NoiseError` for another variance.
    Source: Skellam 1946; Agarwal, Kairouz, Liu 2021 for its use. Differs: drawn as this module says, not from Poissons.
    """

    variance: float

    def __post_init__(self) -> None:
        if not MIN_SIGMA**2 <= self.variance <= MAX_SIGMA**2:
            raise NoiseError(f"variance must lie in 2^-80..2^80; got {self.variance}")

    @property
    def sigma(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.variance)

    def sample(self, length: int, randomness: Randomness) -> np.ndarray:
        """Draw a sample, as `DiscreteGaussian.sample` does."""
        return _sample(self, length, randomness)

    def _relative(self, value: int) -> Decimal:
        """Compute P(value) / P(0)."""
        if self.sigma <= _DIRECT_SIGMA:
            return _bessel_by_recurrence(self)[value]
        with localcontext(_CONTEXT):
            return (_log_bessel(value, Decimal(self.variance)) - _log_bessel(0, Decimal(self.variance))).exp()

    def _log_tail(self, value: int) -> float:
        """Bound log P(x >= value) by Chernoff: exp(variance (cosh l - 1) - l value) at its best l."""
        ratio = value / self.variance
        return value * (ratio / (math.hypot(1, ratio) + 1) - math.asinh(ratio))

    def _slope(self) -> tuple[float, float]:
        """Return the slope from the first terms of the expansion of `_log_bessel` in value^2 / variance."""
        return 1 / (2 * self.variance) + 1 / (4 * self.variance**2), 1 / (24 * self.variance**3)


IntegerNoise = DiscreteGaussian | Skellam


def sampling_delta(epsilon: float, num_samples: int) -> float:
    """Bound the part of delta that inexact sampling adds: (1 + e^epsilon) num_samples `SAMPLE_DISTANCE`.

    Args:
        num_samples: values drawn by all clients in all rounds together.

    >>> sampling_delta(1.0, 10**12) < 1e-20
    True
    """
    # Total variation distances add over samples. A mechanism within distance eta of an (epsilon, delta) one is
    # (epsilon, delta + (1 + e^epsilon) eta).
    return (1 + math.exp(epsilon)) * num_samples * SAMPLE_DISTANCE


# The table.


class _Table(NamedTuple):
    """Bin k ends at `sums[k]` (of 2^127) and starts at value 0 (k = 0) or 1 + (k - 1) `width`."""

    width: int
    sums: tuple[int, ...]
    high: np.ndarray  # uint64: the upper 63 bits of `sums`
    guide: np.ndarray  # int64: for the upper 10 of these, the first bin that can be meant

    def start(self, bin: int) -> int:
        """Return the first value of a bin."""
        return 1 + (bin - 1) * self.width if bin else 0


@lru_cache(maxsize=32)
def _table(noise: IntegerNoise) -> _Table:
    # Step 1 of the module's rule: cumulative sums of width * P(first value), scaled to integers of 127 bits.
    width = 1 if noise.sigma <= _DIRECT_SIGMA else 1 << math.floor(math.log2(noise.sigma / 64))
    with localcontext(_CONTEXT):
        weights = [Decimal(1)]
        weights += [2 * width * noise._relative(start) for start in range(1, _support(noise), width)]
        cumulative = list(accumulate(weights))
        scale = 2**_BITS / cumulative[-1]
        sums = [int(total * scale) for total in cumulative[:-1]] + [2**_BITS]
    high = np.array([total >> 64 for total in sums], dtype=np.uint64)
    firsts = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(63 - _GUIDE_BITS)
    return _Table(width, tuple(sums), high, np.searchsorted(high, firsts, side="left"))


def _support(noise: IntegerNoise) -> int:
    """Find the smallest value with P(|x| >= value) <= 2^-128 by the distribution's tail bound."""
    limit = -129 * math.log(2)
    reach = 1
    while noise._log_tail(reach) > limit:
        reach *= 2
    return bisect_right(range(reach), -limit, key=lambda value: -noise._log_tail(value))


@lru_cache(maxsize=32)
def _bessel_by_recurrence(noise: Skellam) -> tuple[Decimal, ...]:
    """Compute I_n(x) / I_0(x) for n up to the support, x the variance.

    Source: Miller's backward recurrence, stable in this direction.
    """
    with localcontext(_CONTEXT):
        x = Decimal(noise.variance)
        size = _support(noise)
        # I_(n-1) = I_(n+1) + (2 n / x) I_n. It starts `size` past the support with (0, 1) instead of the true pair; the error
        # that this leaves within the support is far below 2^-160.
        following, current = Decimal(0), Decimal(1)
        values = []
        for n in range(2 * size, 0, -1):
            following, current = current, following + 2 * n / x * current
            values.append(current)
        return tuple(value / current for value in values[: -size - 2 : -1])


@lru_cache(maxsize=64)
def _log_bessel(n: int, x: Decimal) -> Decimal:
    """Compute log I_n(x) - x + log(2 pi) / 2 for x > 2^16, to more than 40 digits; in the context of 100.

    Source: Debye's uniform expansion (DLMF 10.41.3) up to U_12; the first omitted term is below 2^-160 at this x.
    """
    modulus = (x * x + n * n).sqrt()
    # modulus - x - n asinh(n / x), without the cancellation of modulus - x
    exponent = n * n / (modulus + x) - n * ((n + modulus) / x).ln()
    square = (n / modulus) ** 2
    series = Decimal(0)
    for coefficients in reversed(_debye_coefficients()):
        term = Decimal(0)
        for coefficient in reversed(coefficients):
            term = term * square + coefficient
        series = series / modulus + term
    return exponent - modulus.ln() / 2 + series.ln()


@lru_cache(maxsize=1)
def _debye_coefficients() -> tuple[tuple[Decimal, ...], ...]:
    """Compute row k = 0..12, column j: the coefficient of p^(k + 2 j) in U_k(p).

    Source: DLMF 10.41.9.
    """
    rows = []
    row = [Fraction(1)]
    for k in range(13):
        with localcontext(_CONTEXT):
            rows.append(tuple(Decimal(c.numerator) / c.denominator for c in row))
        # U_(k+1)(p) = p^2 (1 - p^2) U_k'(p) / 2 + integral of (1 - 5 t^2) U_k(t) / 8 over 0..p.
        # With p = n / modulus, (p / n)^k is modulus^-k.
        following = [Fraction(0)] * (len(row) + 1)
        for j, c in enumerate(row):
            power = k + 2 * j
            following[j] += c * power / 2 + c / (8 * (power + 1))
            following[j + 1] -= c * power / 2 + 5 * c / (8 * (power + 3))
        row = following
    return tuple(rows)


# The draw.


def _check_length(length: int) -> None:
    if length < 0:
        raise NoiseError(f"length must not be negative; got {length}")


def _sample(noise: IntegerNoise, length: int, randomness: Randomness) -> np.ndarray:
    _check_length(length)
    seed = draw(randomness, SEED_BYTES)
    proposals, further = seeded(derive(seed, "noise proposals")), seeded(derive(seed, "noise further bits"))
    table = _table(noise)
    num_words = 1 if table.width == 1 else 3
    out = np.empty(length, dtype=np.int64)
    done = 0
    while done < length:
        # A few more proposals than values are due, since under a tenth is rejected.
        num_proposals = min(_BLOCK, (length - done) * 33 // 32 + 8)
        words = np.frombuffer(proposals(8 * num_words * num_proposals), dtype="<u8").reshape(num_proposals, num_words)
        values, verdicts = _propose(words, table.high, table.guide, table.width, *noise._slope())
        for i in np.flatnonzero(verdicts == _OPEN):
            extra = np.frombuffer(further(16), dtype="<u8").tolist()
            value = _decide(noise, table, words[i].tolist(), extra)
            values[i], verdicts[i] = (0, _REJECTED) if value is None else (value, _ACCEPTED)
        accepted = values[verdicts == _ACCEPTED][: length - done]
        out[done : done + len(accepted)] = accepted
        done += len(accepted)
    return out


def _decide(noise: IntegerNoise, table: _Table, words: Sequence[int], extra: Sequence[int]) -> int | None:
    """Decide one proposal exactly.

    Args:
        words: 1 or 3 words of 64 bits: sign and bin; offset in the bin; acceptance.
        extra: 2 words: the lower 64 bits of bin and acceptance.

    Returns:
        The sampled value, or None if the proposal is rejected.
    """
    bin = bisect_right(table.sums, (words[0] >> 1) << 64 | extra[0])
    start = table.start(bin)
    value = start
    if bin and table.width > 1:
        value += words[1] & (table.width - 1)
    # Step 2: accept with probability P(value) / P(start), compared with a uniform number of 128 bits.
    if value > start:
        with localcontext(_CONTEXT):
            if Decimal(words[2] << 64 | extra[1]) >= 2**128 * noise._relative(value) / noise._relative(start):
                return None
    return -value if words[0] & 1 else value


@compiled(nogil=True)
def _propose(words, high, guide, width, first, second):
    """Decide each row of `words` from its first bits: (int64 values, uint8 verdicts), some `_OPEN`."""
    values = np.empty(len(words), dtype=np.int64)
    verdicts = np.empty(len(words), dtype=np.uint8)
    for i in range(len(words)):
        place = words[i, 0] >> np.uint64(1)
        bin = guide[place >> np.uint64(63 - _GUIDE_BITS)]
        while place > high[bin]:
            bin += 1
        # If the upper 63 bits equal those of the bin's end, the lower bits decide: leave it open.
        verdict = _OPEN if place == high[bin] else _ACCEPTED
        value = bin
        if width > 1 and bin > 0:
            start = 1 + (bin - 1) * width
            offset = np.int64(words[i, 1] & np.uint64(width - 1))
            value = start + offset
            if offset > 0 and verdict == _ACCEPTED:
                larger, smaller = float(value), float(start)
                exponent = offset * (larger + smaller) * (first - second * (larger * larger + smaller * smaller))
                # Step 2 in floating point; too close to call within `_GUARD` is left open.
                margin = math.exp(-exponent) - float(words[i, 2]) * 2.0**-64
                verdict = _OPEN if abs(margin) < _GUARD else (_ACCEPTED if margin > 0 else _REJECTED)
        values[i] = -value if words[i, 0] & np.uint64(1) else value
        verdicts[i] = verdict
    return values, verdicts


@compiled(nogil=True)
def _box_muller(words, sigma, out):
    """Fill `out` (even length) from as many words."""
    for i in range(0, len(out), 2):
        # Box and Muller 1958: two uniforms give two independent Gaussians. Adding 1 keeps the logarithm's argument above 0.
        radius = sigma * math.sqrt(-2 * math.log((float(words[i]) + 1.0) * 2.0**-64))
        angle = 2 * math.pi * float(words[i + 1]) * 2.0**-64
        out[i] = radius * math.cos(angle)
        out[i + 1] = radius * math.sin(angle)
