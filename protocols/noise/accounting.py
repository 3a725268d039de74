"""Privacy accounting: the epsilon of a given noise, and the noise for a given epsilon.

    >>> noise = Releases("gaussian", 1.0, count=100)
    >>> sigma = scale_for(2.0, noise, delta=1e-5)                                   # over the sensitivity
    >>> epsilon_of([replace(noise, scale=sigma)], delta=1e-5) <= 2.0
    True

An epsilon holds for the unit and the neighboring relation for which the caller computed the sensitivity. A `Guarantee` states
both, and reports print it. Add/remove: one unit is present or absent. Replace: its data change, which doubles the sensitivity
of a clipped sum. `compose` accounts for further releases.

Assumes exact arithmetic and exact noise. `sampling.sampling_delta` bounds what inexact sampling adds to delta;
`sampling.gaussian` says what the low bits of floating-point noise may leak.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fkgsec.protocols.noise.guarantee import AccountingError, Guarantee, Releases
from fkgsec.protocols.noise.sampling import sampling_delta

# Orders of Renyi divergence.
_REAL_ORDERS = 1 + np.geomspace(1e-6, 1e9, 6000)
_INTEGER_ORDERS = np.unique(np.round(np.geomspace(2, 1e9, 4000)))
_RELATIVE_TOLERANCE = 1e-4  # of the bisection; the end that satisfies the claim is returned
_LEAST_SCALE = {"gaussian": 2.0**-40, "discrete": 0.5, "skellam": 2.0**-40}
# The last two name the papers whose bounds hold for integer noise.
_RENYI = ("rdp", "KLS21", "AKL21")
# Beyond this, even a distance of 2^-113 between the drawn and the exact noise gives no useful delta.
_LARGE_EPSILON = 50.0


def epsilon_of(releases: Sequence[Releases], *, delta: float, accountant: str = "rdp") -> float:
    """Compute the epsilon of several mechanisms on the data of the same unit, all noise exact.

    Args:
        delta: target, in (0, 1).
        accountant: "prv" for Gaussian noise only (privacy loss variables composed numerically; an upper bound, at most the larger
            of 0.5 % and 0.001 too high; tighter and slower); "rdp", and for integer noise also "KLS21" and "AKL21": Renyi
            divergences, which add, order by order (an upper bound).

    Raises `AccountingError` outside the allowed ranges, for another accountant, or where opacus cannot compute the figure.
    Source: Mironov 2017, Propositions 1 and 7 (rdp); Gopi, Lee, Wutschitz 2021 (prv), by opacus. For integer noise see
    `_rdp_of_discrete_gaussians` and `_rdp_of_skellam`.
    """
    _check_claim(rounds=sum(release.count for release in releases), delta=delta)
    if accountant == "prv":
        if any(release.noise != "gaussian" for release in releases):
            raise AccountingError("accountant prv takes gaussian noise only")
        for release in releases:
            _check_positive(scale=release.scale)
        return _epsilon_by_prv([(release.scale, 1.0, release.count) for release in releases], delta)
    if accountant not in _RENYI:
        raise AccountingError(f"accountant {accountant!r} is unknown; allowed: {', '.join((*_RENYI, 'prv'))}")
    # The Skellam bound holds at integer orders only (Agarwal, Kairouz, Liu 2021).
    integer = any(release.noise == "skellam" for release in releases)
    orders = _INTEGER_ORDERS if integer else _REAL_ORDERS
    # Mironov 2017, Proposition 1: Renyi divergences of one order add under adaptive composition.
    return _epsilon_of_rdp(orders, np.sum([_rdp(release, orders) for release in releases], axis=0), delta)


def scale_for(epsilon: float, releases: Releases, *, delta: float, accountant: str = "rdp") -> float:
    """Find the smallest scale for which such releases have at most `epsilon`, by bisection on `epsilon_of`.

    Args:
        epsilon: target, above 0.
        releases: the mechanism; its own scale is ignored.
        delta, accountant: as in `epsilon_of`.

    Returns:
        The scale, at most 1e-4 of itself too large and never too small.

    Raises `AccountingError` as `epsilon_of` does, and when no scale up to 2^80 is enough.
    """

    def spent(scale: float) -> float:
        """Compute the epsilon at one scale."""
        return epsilon_of([replace(releases, scale=scale)], delta=delta, accountant=accountant)

    _check_positive(epsilon=epsilon)
    least = _LEAST_SCALE[releases.noise]
    high = max(1.0, least)
    # Epsilon decreases with the scale: bracket the answer by doubling and halving, then bisect on the logarithm. The end
    # that is returned satisfies the claim.
    while spent(high) > epsilon:
        high *= 2
        if high > 2.0**80:
            raise AccountingError(f"no scale up to 2^80 brings epsilon down to {epsilon}")
    low = high
    while spent(low) <= epsilon:
        if low == least:
            return least
        high, low = low, max(low / 2, least)
    while high - low > _RELATIVE_TOLERANCE * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


def epsilon_of_sampled(scale: float, rate: float, count: int, delta: float) -> float:
    """Compute the epsilon of Gaussian noise on Poisson-sampled data, add/remove, by the accountant "prv".

    Args:
        scale: standard deviation over the sensitivity.
        rate: probability of each unit in a release, in (0, 1].
        count: number of releases.
        delta: target, in (0, 1).

    Raises `AccountingError` where opacus cannot compute the figure.
    Source: Gopi, Lee, Wutschitz 2021.
    """
    _check_claim(rounds=count, delta=delta)
    _check_positive(scale=scale, rate=rate)
    return _epsilon_by_prv([(scale, rate, count)], delta)


def _epsilon_by_prv(history: Sequence[tuple[float, float, int]], delta: float) -> float:
    """Compute epsilon from the noise multiplier, sample rate and rounds of each mechanism."""
    from opacus.accountants import PRVAccountant

    # Below this delta, opacus cuts tails that count: at 1e-14 it was 4 % below an optimistic bound.
    if delta < 1e-12:
        raise AccountingError(f"the prv accountant is too low for a delta below 1e-12; got {delta:g}; use rdp")
    accountant = PRVAccountant()
    accountant.history.extend(history)
    try:
        # log(1 - sample_rate) is minus infinity at rate 1, as it should be; the far tails of exp are cut by opacus; its
        # warning is of the orders that choose the width of its grid, where a looser one costs time only
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Optimal order is the")
            # The error of the second call is relative to the result of the first, which costs less.
            rough = float(accountant.get_epsilon(delta, eps_error=0.1))
            epsilon = float(accountant.get_epsilon(delta, eps_error=min(0.1, max(0.001, 0.005 * (rough - 0.1)))))
    except (RuntimeError, ValueError, OverflowError, MemoryError) as error:
        limits = "; ".join(
            f"noise_multiplier {multiplier}, rounds {rounds}, sample_rate {rate}"
            for multiplier, rate, rounds in history
        )
        raise AccountingError(f"the prv accountant cannot compute {limits}, delta {delta}: {error}; use rdp") from error
    if not math.isfinite(epsilon):
        raise AccountingError(f"the prv accountant returned {epsilon} for {history}; use rdp")
    return max(0.0, epsilon)


# Integer noise under secure aggregation.


def ring_sensitivity(l2_sensitivity: float, dimension: int, fraction_bits: int) -> float:
    """Compute the l2 sensitivity, in units of the ring, of vectors scaled by 2^fraction_bits and rounded to nearest.

    Args:
        l2_sensitivity: before scaling, twice the clipping norm: one client's vector is replaced.
        dimension: elements of a vector.
        fraction_bits: bits after the point.

    Raises `AccountingError` for a negative or undefined value.
    Source: Kairouz, Liu, Steinke 2021, Theorem 1, adds sqrt(d) for rounding up or down at random. Differs: to nearest.

    >>> ring_sensitivity(2.0, 4, 3)
    18.0
    """
    _check_count(dimension=dimension)
    _check_positive(l2_sensitivity=l2_sensitivity)
    if fraction_bits < 0:
        raise AccountingError(f"fraction_bits must not be negative; got {fraction_bits}")
    # Rounding moves each coordinate by at most 1/2, and so a vector by sqrt(d) / 2. Both versions of the replaced vector
    # are rounded, which adds sqrt(d).
    return math.ldexp(l2_sensitivity, fraction_bits) + math.sqrt(dimension)


def _rdp_of_discrete_gaussians(
    orders: np.ndarray, sigma: float, l2_sensitivity: float, dimension: int, smallest_cohort: int
) -> np.ndarray:
    """Bound the Renyi divergences of one sum of integer vectors, each with discrete Gaussian noise of its own.

    Args:
        sigma: of each client's noise, in units of the ring, at least 1/2.
        l2_sensitivity: in units of the ring: `ring_sensitivity`.
        smallest_cohort: the fewest clients whose noise is in a sum and unknown to the adversary. Colluders do not count.
            More clients are covered: their additional noise is post-processing.

    Source: Kairouz, Liu, Steinke 2021 (arXiv 2102.06387), Proposition 14. Differs: l1 is bounded by min(l2^2, sqrt(d) l2),
    which holds for integer vectors; the least bound over all cohorts up to the smallest; no sampling of clients.
    """
    # Kairouz, Liu, Steinke 2021, Proposition 14: the divergence of order a is at most the least of a/2 s^2 + tau d,
    # a/2 (s^2 + 2 tau l1 / (sqrt(n) sigma) + tau^2 d) and a/2 (s + tau sqrt(d))^2, with s = l2 / (sqrt(n) sigma) and
    # tau = 10 sum over k < n of exp(-2 pi^2 sigma^2 k / (k + 1)).
    l1_sensitivity = _l1_sensitivity(l2_sensitivity, dimension)
    rdp = np.full_like(orders, math.inf, dtype=np.float64)
    tau = 0.0
    # tau grows with n. The noise of the other clients may be left out as post-processing, so the least bound over n holds.
    for n in range(1, smallest_cohort + 1):
        ratio, l1_ratio = l2_sensitivity / (math.sqrt(n) * sigma), l1_sensitivity / (math.sqrt(n) * sigma)
        squared = min(
            ratio**2 + 2 * tau * l1_ratio + tau**2 * dimension,
            (ratio + tau * math.sqrt(dimension)) ** 2,
        )
        rdp = np.minimum(rdp, np.minimum(orders / 2 * ratio**2 + tau * dimension, orders / 2 * squared))
        tau += 10 * math.exp(-2 * math.pi**2 * sigma**2 * n / (n + 1))
    return rdp


def _rdp_of_skellam(orders: np.ndarray, variance: float, l2_sensitivity: float, dimension: int) -> np.ndarray:
    """Bound the Renyi divergences of one sum of integer vectors with Skellam noise, at integer orders.

    Args:
        variance: of the sum's noise.

    Source: Agarwal, Kairouz, Liu 2021 (arXiv 2110.04995). Differs: l1 is bounded by min(l2^2, sqrt(d) l2), which holds for
    integer vectors; no sampling of clients.
    """
    # Agarwal, Kairouz, Liu 2021: at integer orders a, the divergence is at most
    # a l2^2 / (2 v) + min(((2 a - 1) l2^2 + 6 l1) / (4 v^2), 3 l1 / (2 v)), with v the variance of the sum's noise.
    l1 = _l1_sensitivity(l2_sensitivity, dimension)
    excess = np.minimum(((2 * orders - 1) * l2_sensitivity**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    return orders * l2_sensitivity**2 / (2 * variance) + excess


def _l1_sensitivity(l2_sensitivity: float, dimension: int) -> float:
    """Bound the l1 norm: |x|_1 <= sqrt(d) |x|_2 for all vectors, and <= |x|_2^2 for integer ones."""
    return min(l2_sensitivity**2, math.sqrt(dimension) * l2_sensitivity)


# Composition.


def guarantee_of(
    releases: Sequence[Releases], *, delta: float, unit: str, neighbouring: str, mechanism: str, accountant: str
) -> Guarantee:
    """State the guarantee of several mechanisms on the data of the same unit, computed by `epsilon_of`.

    Args:
        delta: of exact noise; the part of inexact sampling is added.
        unit, neighbouring, mechanism: see `Guarantee`.

    Raises `AccountingError` as `epsilon_of` does.
    """
    epsilon = epsilon_of(releases, delta=delta, accountant=accountant)
    inexact = sampling_delta(min(epsilon, _LARGE_EPSILON), sum(release.num_samples for release in releases))
    sampled = any(release.num_samples for release in releases)
    # For a large epsilon, (1 + e^epsilon) times the distance of the noise exceeds delta. Then assume exact sampling, and say so.
    exact = sampled and (epsilon > _LARGE_EPSILON or inexact > delta)
    cohorts = [release.smallest_cohort for release in releases if release.noise != "gaussian"]
    return Guarantee(
        epsilon,
        delta + (0.0 if exact else inexact),
        unit,
        neighbouring,
        mechanism,
        sum(release.count for release in releases),
        min(cohorts, default=None),
        accountant,
        tuple(releases),
        0.0 if exact else inexact,
        exact,
    )


def compose(guarantees: Sequence[Guarantee]) -> Guarantee:
    """Compose several guarantees on the data of the same units into one.

    Args:
        guarantees: of one unit and one neighboring relation.

    Raises `AccountingError` for none, or for guarantees of different units or neighboring relations.

    >>> once = guarantee_of([Releases("gaussian", 2.0, 1)], delta=1e-5, unit="row", neighbouring="one row replaced",
    ...                     mechanism="Gaussian", accountant="rdp")
    >>> compose([once, once]).epsilon < 2 * once.epsilon, compose([once, once]).rounds
    (True, 2)
    """
    if not guarantees:
        raise AccountingError("nothing to compose")
    first = guarantees[0]
    for name in ("unit", "neighbouring"):
        if len(values := {getattr(guarantee, name) for guarantee in guarantees}) > 1:
            raise AccountingError(f"guarantees of different {name} do not compose: {', '.join(sorted(values))}")
    mechanism = "; ".join(dict.fromkeys(guarantee.mechanism for guarantee in guarantees))
    accountants = list(dict.fromkeys(guarantee.accountant for guarantee in guarantees))
    if len(accountants) == 1 and all(guarantee.releases for guarantee in guarantees):
        return guarantee_of(
            [release for guarantee in guarantees for release in guarantee.releases],
            delta=max(guarantee.delta - guarantee.sampling_delta for guarantee in guarantees),
            unit=first.unit,
            neighbouring=first.neighbouring,
            mechanism=mechanism,
            accountant=accountants[0],
        )
    # Basic composition, which always holds: epsilons and deltas add. It serves where the releases are not known.
    cohorts = [guarantee.smallest_cohort for guarantee in guarantees if guarantee.smallest_cohort is not None]
    return Guarantee(
        math.fsum(guarantee.epsilon for guarantee in guarantees),
        math.fsum(guarantee.delta for guarantee in guarantees),
        first.unit,
        first.neighbouring,
        mechanism,
        sum(guarantee.rounds for guarantee in guarantees),
        min(cohorts, default=None),
        f"sum of {' and '.join(accountants)}",
        sampling_assumed_exact=any(guarantee.sampling_assumed_exact for guarantee in guarantees),
    )


def _rdp(releases: Releases, orders: np.ndarray) -> np.ndarray:
    """Compute the Renyi divergences of all these releases. Each mechanism may depend on earlier outputs (Mironov 2017)."""
    _check_positive(scale=releases.scale, l2_sensitivity=releases.l2_sensitivity)
    _check_count(dimension=releases.dimension, smallest_cohort=releases.smallest_cohort)
    scale, shape = releases.scale, (releases.l2_sensitivity, releases.dimension)
    match releases.noise:
        case "gaussian":
            # Mironov 2017, Proposition 7: a / (2 sigma^2), with sigma relative to the sensitivity.
            return releases.count * orders / (2 * scale**2)
        case "discrete":
            if scale < 0.5:
                raise AccountingError(f"sigma must be at least 1/2 for the bound of sums to hold; got {scale}")
            return releases.count * _rdp_of_discrete_gaussians(orders, scale, *shape, releases.smallest_cohort)
        case "skellam":
            return releases.count * _rdp_of_skellam(orders, releases.smallest_cohort * scale, *shape)


# Shared steps.


def _epsilon_of_rdp(orders: np.ndarray, rdp: np.ndarray, delta: float) -> float:
    """Convert Renyi divergences to the least epsilon at `delta` over `orders`. Each order gives a valid one.

    Source: Canonne, Kamath, Steinke 2020 (the conversion to approximate differential privacy). Differs: none, solved for epsilon.
    """
    # epsilon(a) = D_a + log(1 - 1/a) - (log delta + log a) / (a - 1).
    epsilon = rdp + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(epsilon)))


def _check_claim(*, rounds: int, delta: float) -> None:
    _check_count(rounds=rounds)
    if not 0 < delta < 1:
        raise AccountingError(f"delta must lie between 0 and 1; got {delta}")


def _check_count(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise AccountingError(f"{name} must be at least 1; got {value}")


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise AccountingError(f"{name} must be finite and above 0; got {value}")
