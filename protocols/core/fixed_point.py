"""Fixed point: real values as ring elements, such that the sum over all clients cannot wrap around.

    >>> encoding = FixedPoint.finest(num_clients=20, clip=4.0)
    >>> values = encoding.encode(np.array([0.5, -0.25, 9.0]))
    >>> values.num_clipped, encoding.decode(values.values)
    (1, array([ 0.5 , -0.25,  4.  ]))

Values are clipped, scaled by a power of two and rounded; `bound` is the error of a sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fkgsec.protocols.core.errors import NotFinite, OutOfRing, SettingError, WrongType
from fkgsec.protocols.core.prg import Ring

_DOUBLE_BITS = 53  # integers up to 2^53 are exact in float64
_BLOCK = 2**15  # elements: the temporaries of one block stay in cache


class Encoded(NamedTuple):
    """Ring elements, shaped as the values were, and how many values were clipped."""

    values: np.ndarray
    num_clipped: int


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point encoding x -> round(x * 2^fraction_bits), ties to even, of values clipped to +-clip.

    Attributes:
        clip: largest absolute value of one client's element, above 0.
        fraction_bits: bits after the point, 0 to 52.
        num_clients: largest number of summands.
        ring: the ring of sums.
        headroom: additional absolute value that the sum must hold, such as noise, in the units of the values.

    Raises:
        SettingError: values out of range.
        OutOfRing: num_clients * clip * 2^f + headroom * 2^f is not below modulus / 2, or exceeds 2^53.
    """

    clip: float
    fraction_bits: int
    num_clients: int
    ring: Ring = Ring.UINT32
    headroom: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise SettingError(f"clip: {self.clip}; it must be finite and above 0")
        if not 0 <= self.fraction_bits < _DOUBLE_BITS:
            raise SettingError(f"fraction_bits: {self.fraction_bits}; it must lie in 0..{_DOUBLE_BITS - 1}")
        if self.num_clients < 1:
            raise SettingError(f"num_clients: {self.num_clients}; it must be at least 1")
        if not (math.isfinite(self.headroom) and self.headroom >= 0):
            raise SettingError(f"headroom: {self.headroom}; it must be finite and at least 0")
        # The sum must keep its sign in the ring (below half the modulus) and be exact in float64 (at most 2^53).
        largest = self.num_clients * round(self.clip * 2**self.fraction_bits)
        largest += math.ceil(self.headroom * 2**self.fraction_bits)
        if 2 * largest >= self.ring.modulus or largest > 2**_DOUBLE_BITS:
            allowed = min((self.ring.modulus - 1) // 2, 2**_DOUBLE_BITS)
            raise OutOfRing(
                f"{self.num_clients} clients * {self.clip} * 2^{self.fraction_bits} with headroom {self.headroom} "
                f"reach {largest}; a sum in {self.ring.value} reaches {allowed}"
            )

    @classmethod
    def finest(
        cls, num_clients: int, clip: float = 16.0, headroom: float = 0.0, ring: Ring = Ring.UINT32
    ) -> FixedPoint:
        """Return the encoding with the most fraction bits that cannot overflow.

        Args:
            num_clients: largest number of summands.
            clip: largest absolute value of one element, above 0.
            headroom: additional absolute value that the sum must hold, such as noise.

        Raises:
            OutOfRing: not even 0 fraction bits fit.

        >>> FixedPoint.finest(20).fraction_bits
        22
        """
        for fraction_bits in range(_DOUBLE_BITS - 1, 0, -1):
            try:
                return cls(clip, fraction_bits, num_clients, ring, headroom)
            except OutOfRing:
                continue
        return cls(clip, 0, num_clients, ring, headroom)

    def encode(self, values: np.ndarray) -> Encoded:
        """Encode real values as ring elements, and count the clipped ones.

        Args:
            values: float32 or float64 array of any shape.

        Raises:
            WrongType: another dtype.
            NotFinite: NaN or infinity.
        """
        if values.dtype not in (np.float32, np.float64):
            raise WrongType(f"values to encode: {values.dtype}; float32 or float64 is needed")
        if not np.isfinite(values).all():
            raise NotFinite(f"values to encode: {int((~np.isfinite(values)).sum())} are NaN or infinite")
        flat = np.ravel(values)
        encoded, num_clipped = np.empty(flat.size, dtype=self.ring.dtype), 0
        for start in range(0, flat.size, _BLOCK):
            # Compute in float64: there, multiplying by a power of two is exact, so `rint` is the only rounding.
            exact = flat[start : start + _BLOCK].astype(np.float64)
            num_clipped += int(np.count_nonzero(np.abs(exact) > self.clip))
            np.clip(exact, -self.clip, self.clip, out=exact)
            np.multiply(exact, 2.0**self.fraction_bits, out=exact)
            integers = np.rint(exact, out=exact).astype(np.int64)
            encoded[start : start + _BLOCK] = self.ring.from_integers(integers)
        return Encoded(encoded.reshape(values.shape), num_clipped)

    def decode(self, total: np.ndarray) -> np.ndarray:
        """Decode a sum of ring elements to float64.

        Args:
            total: array of any shape, dtype of the ring.

        Raises:
            WrongType: another dtype.
        """
        if total.dtype != self.ring.dtype:
            raise WrongType(f"sum to decode: {total.dtype}; {self.ring.dtype} is needed for {self.ring.value}")
        return self.ring.to_integers(total) * 2.0**-self.fraction_bits

    @property
    def bound(self) -> float:
        """Largest absolute error of the decoded sum of clipped values: num_clients * 2^-(f + 1)."""
        return self.num_clients * 2.0 ** -(self.fraction_bits + 1)
