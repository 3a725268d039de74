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
    """So many outputs of one noisy mechanism on the data of one unit.

    Attributes:
        noise: "gaussian" on real numbers; "discrete" (Gaussian) or "skellam" on integers that several clients add.
        scale: of gaussian noise the standard deviation over the sensitivity; of discrete noise each client's sigma, of skellam
            noise each client's variance, both in units of the ring.
        count: outputs.
        l2_sensitivity: of integer noise, of a sum of the clients' vectors, in units of the ring (`accounting.ring_sensitivity`).
        dimension: of integer noise, elements of a vector.
        smallest_cohort: of integer noise, the fewest clients whose noise is in a sum and unknown to the adversary.
        num_samples: integers drawn in all outputs by all clients, each of which inexact sampling may betray by a little.
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
    """(epsilon, delta)-differential privacy with everything that it means nothing without.

    Attributes:
        epsilon, delta: of all releases together.
        unit: whose data are protected: "client", "row", "triple".
        neighbouring: which two inputs must look alike, in words.
        mechanism: the noise, in words.
        rounds: how often it was applied, over all runs that it covers.
        smallest_cohort: the fewest noisy clients in a sum that this holds for; None where noise does not depend on it.
        accountant: how epsilon was computed.
        releases: what it was computed from; empty where it was not computed here.
        sampling_delta: the part of delta that inexact sampling takes.
        sampling_assumed_exact: epsilon or delta are such that inexact sampling cannot be counted.

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
        """Describe it in one line for a report.

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
    """Four digits, never less than the value."""
    if value <= 0 or math.isinf(value):
        return f"{value:.4g}"
    digits = 3 - math.floor(math.log10(value))
    scaled = Decimal(repr(value)).scaleb(digits).to_integral_value(ROUND_CEILING)
    return f"{float(scaled.scaleb(-digits)):.4g}"
