"""Guarantees of differential privacy, with the releases that they were computed from, so that they compose.

    >>> noise = Releases("gaussian", 2.0, count=3)
    >>> Guarantee(4.2, 1e-5, "row", "one row replaced", "Gaussian noise", 3, None, "rdp", (noise,)).rounds
    3

Composition: `fkgsec.protocols.noise.accounting.compose`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Literal

from fkgsec.protocols.core.errors import ProtocolError

NoiseName = Literal["gaussian", "discrete", "skellam"]


class AccountingError(ProtocolError):
    """A parameter for which there is no guarantee, or one that the theorem does not cover."""


@dataclass(frozen=True)
class Releases:
    """Outputs of one noisy mechanism on the data of one unit.

    Attributes:
        noise: "gaussian" on real numbers; "discrete" (Gaussian) or "skellam" on integers that several clients add.
        scale: for gaussian noise the standard deviation over the sensitivity; for discrete noise each client's sigma; for
            skellam noise each client's variance. The last two are in units of the ring.
        count: number of outputs.
        l2_sensitivity: integer noise only: of a sum of the clients' vectors, in units of the ring; see
            `accounting.ring_sensitivity`.
        dimension: integer noise only: elements of a vector.
        smallest_cohort: integer noise only: the fewest clients whose noise is in a sum and unknown to the adversary.
        num_samples: integers drawn in all outputs by all clients. Inexact sampling may leak a little with each.
    """

    noise: NoiseName
    scale: float
    count: int
    l2_sensitivity: float = 1.0
    dimension: int = 1
    smallest_cohort: int = 1
    num_samples: int = 0


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-differential privacy, with everything needed to interpret it.

    Attributes:
        epsilon, delta: of all releases together.
        unit: whose data are protected: "client", "row", "triple".
        neighbouring: the two inputs that must be indistinguishable, in words.
        mechanism: the noise, in words.
        rounds: number of releases, over all runs that it covers.
        smallest_cohort: the fewest noisy clients in a sum for which it holds; None if the noise does not depend on it.
        accountant: method that computed epsilon.
        releases: inputs of the computation; empty if it was not computed here.
        sampling_delta: the part of delta that inexact sampling takes.
        sampling_assumed_exact: True if epsilon or delta are such that inexact sampling cannot be counted.

    Raises `AccountingError` for a negative or undefined epsilon and a delta outside 0..1.
    """

    epsilon: float
    delta: float
    unit: str
    neighbouring: str
    mechanism: str
    rounds: int
    smallest_cohort: int | None
    accountant: str
    releases: tuple[Releases, ...] = ()
    sampling_delta: float = 0.0
    sampling_assumed_exact: bool = False

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:
            raise AccountingError(f"epsilon must not be negative; got {self.epsilon}")
        if not 0 <= self.delta < 1:
            raise AccountingError(f"delta must lie in 0..1, 1 excluded; got {self.delta}")

    def describe(self) -> str:
        """Describe the guarantee in one line for a report.

        >>> Guarantee(1.5, 1e-5, "client", "one upload replaced", "Skellam", 10, 5, "rdp").describe()
        '(1.5, 1e-05)-DP per client (one upload replaced): Skellam, 10 releases, 5 or more clients, accountant rdp'
        """
        cohort = "" if self.smallest_cohort is None else f", {self.smallest_cohort} or more clients"
        exact = ", as if sampling were exact" if self.sampling_assumed_exact else ""
        releases = "1 release" if self.rounds == 1 else f"{self.rounds} releases"
        return (
            f"({_round_up(self.epsilon)}, {_round_up(self.delta)})-DP per {self.unit} ({self.neighbouring}): "
            f"{self.mechanism}{exact}, {releases}{cohort}, accountant {self.accountant}"
        )


def _round_up(value: float) -> str:
    """Format with four digits, rounded up."""
    if value <= 0 or math.isinf(value):
        return f"{value:.4g}"
    # Rounding down would print a stronger guarantee than was computed.
    digits = 3 - math.floor(math.log10(value))
    scaled = Decimal(repr(value)).scaleb(digits).to_integral_value(ROUND_CEILING)
    return f"{float(scaled.scaleb(-digits)):.4g}"
