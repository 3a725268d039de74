"""Differential privacy of uploads: clipping, the noise that a guarantee needs, and adding it.

The unit is `DpOptions.unit`. Two inputs are neighbors if the values of one unit are replaced in every round, with the same
holdings. Which rows a client holds is not covered: plaintext uploads name them, and sums count them. Replacing doubles the
sensitivity of a clipped change: 2 clip.

The guarantee covers the transmitted values, against a server that follows the protocol. It does not cover losses, validation
figures (which choose when a run stops, and its best round) and counts of clipped values. A round that is repeated after a stop
adds the same noise to the same values on the CPU, so it releases nothing more. A deployed party draws its noise from its lasting
secret, and uploads no table twice in a round. An unlearning or re-training that was stopped begins anew with other noise; what
it had released by then is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fkgsec.defenses.options import Defense, DpOptions, Noise
from fkgsec.errors import SpecError
from fkgsec.protocols.core.errors import ProtocolError
from fkgsec.protocols.core.fixed_point import FixedPoint
from fkgsec.protocols.core.prg import Randomness, Ring
from fkgsec.protocols.noise.accounting import (
    compose,
    guarantee_of,
    ring_sensitivity,
    scale_for,
)
from fkgsec.protocols.noise.guarantee import Guarantee, Releases
from fkgsec.protocols.noise.sampling import DiscreteGaussian, Skellam, gaussian

_NEIGHBOURING = {
    "client": "all values of one client's uploads replaced",
    "row": "one row of one client's uploads replaced",
}
# Standard deviations of the summed noise that a ring leaves room for.
_TAIL = 12


def clip_changes(rows: np.ndarray, received: np.ndarray, options: DpOptions) -> np.ndarray:
    """Clip the client's change of its rows to the l2 norm `clip`, and return the received rows plus the clipped change.

    Formal guarantee: whatever `rows` are, the change has an l2 norm of at most `clip` (each row for unit "row"), up to the
    rounding of float64.

    Args:
        rows, received: `[n, width]`, as trained and as last received.

    Returns:
        float64 `[n, width]`.
    """
    received = received.astype(np.float64)
    # A change that is not finite counts as zero, since no scaling would bound it.
    change = np.nan_to_num(rows.astype(np.float64) - received, nan=0.0, posinf=0.0, neginf=0.0)
    norm = np.linalg.norm(change, axis=1 if options.unit == "row" else None, keepdims=True)
    return received + change / np.maximum(1.0, norm / options.clip)


@dataclass(frozen=True)
class LocalNoise:
    """Gaussian noise that each client adds before anything is sent; `sigma` in units of the embeddings."""

    sigma: float
    guarantee: Guarantee

    def add(self, rows: np.ndarray, randomness: Randomness) -> np.ndarray:
        """Add noise to rows; returns float64 `[n, width]`."""
        return rows + gaussian(rows.size, self.sigma, randomness).reshape(rows.shape)


@dataclass(frozen=True)
class RingNoise:
    """Integers that each client adds to its encoded upload inside secure aggregation; `sigma` in units of the ring."""

    noise: Noise
    sigma: float
    guarantee: Guarantee

    def draw(self, length: int, randomness: Randomness) -> np.ndarray:
        """Draw `length` integers, int64 `[length]`."""
        return _distribution(self.noise, self.sigma).sample(length, randomness)


def _distribution(noise: Noise, sigma: float) -> DiscreteGaussian | Skellam:
    return Skellam(sigma**2) if noise == "skellam" else DiscreteGaussian(sigma)


def local_noise(options: DpOptions, *, releases: int) -> LocalNoise:
    """Find the Gaussian noise that each client adds to its uploads.

    Args:
        releases: uploads of a unit over the run.

    Raises:
        SpecError: no noise gives the guarantee.
    """
    accountant = options.accountant or "rdp"
    try:
        noise = Releases("gaussian", options.noise_multiplier or 1.0, releases)
        if options.epsilon is not None:
            scale = scale_for(options.epsilon, noise, delta=options.delta, accountant=accountant)
            noise = replace(noise, scale=scale)
        multiplier = noise.scale
        guarantee = guarantee_of(
            [noise],
            delta=options.delta,
            unit=options.unit,
            neighbouring=_NEIGHBOURING[options.unit],
            mechanism="Gaussian noise of each client in floating point, "
            f"{multiplier:.4g} x sensitivity {2 * options.clip:.4g}",
            accountant=accountant,
        )
    except ProtocolError as error:
        raise SpecError(f"defense: dp: {error}") from error
    # Sensitivity of a replaced unit: two changes of norm clip differ by at most 2 clip.
    return LocalNoise(multiplier * 2 * options.clip, guarantee)


def ring_noise(
    defense: Defense, *, releases: int, dimension: int, num_clients: int, fewest_survivors: int
) -> tuple[RingNoise, FixedPoint]:
    """Find the integer noise whose sum over the smallest honest cohort gives the guarantee, and the finest encoding for both.

    Args:
        releases: uploads of a unit over the run. dimension: numbers in a unit (of the table, or of a row).
        num_clients: most summands. fewest_survivors: least that a sum is opened for; colluders' noise does not count.

    Raises `SpecError` when the cohort is all colluders, or noise and values do not fit the ring.
    """
    options, secagg, noise = defense.dp, defense.secagg, defense.distributed_noise
    assert options is not None
    assert secagg is not None
    assert noise is not None
    colluders = 1 if options.colluders is None else options.colluders
    cohort = fewest_survivors - colluders
    if secagg.neighbours is not None and colluders:
        # Colluders can cut the graph of masks: the sum of each honest part is opened, and a part may be one client.
        cohort = min(cohort, 1)
    if cohort < 1:
        raise SpecError(
            f"defense: dp: with {colluders} colluders among at least {fewest_survivors} survivors nobody's noise is "
            "unknown to the server; lower colluders or raise secagg's threshold"
        )
    ring = ring_of(defense)
    failure: ProtocolError | None = None
    # Noise and sensitivity depend on the fraction bits. Try the finest encoding first, until values and noise fit the ring.
    for bits in range(FixedPoint.finest(num_clients, secagg.clip, ring=ring).fraction_bits, -1, -1):
        sensitivity = ring_sensitivity(2 * options.clip, dimension, bits)
        try:
            num_samples = releases * num_clients * dimension
            drawn = Releases(noise, 1.0, releases, sensitivity, dimension, cohort, num_samples=num_samples)
            sigma = _ring_sigma(options, drawn)
            # The noise of all clients adds up to a standard deviation of sqrt(n) sigma. Leave room for 12 of them.
            headroom = _TAIL * num_clients**0.5 * sigma / 2**bits
            encoding = FixedPoint(secagg.clip, bits, num_clients, ring, headroom)
            _distribution(noise, sigma)
            guarantee = guarantee_of(
                [replace(drawn, scale=sigma**2 if noise == "skellam" else sigma)],
                delta=options.delta,
                unit=options.unit,
                neighbouring=_NEIGHBOURING[options.unit],
                mechanism=f"{'Skellam' if noise == 'skellam' else 'discrete Gaussian'} noise of each client in the ring, sigma "
                f"{sigma / 2**bits:.4g} for sensitivity {sensitivity / 2**bits:.4g}, {colluders} colluders",
                accountant="AKL21" if noise == "skellam" else "KLS21",
            )
        # Noise and values do not fit with this many fraction bits. Fewer leave more room.
        except ProtocolError as error:
            failure = error
            continue
        return RingNoise(noise, sigma, guarantee), encoding
    raise SpecError(
        f"defense: dp: the noise does not fit a ring of {secagg.bits} bits ({failure}); take secagg:bits=64"
    )


def _ring_sigma(options: DpOptions, noise: Releases) -> float:
    """Compute the standard deviation of each client's noise, in units of the ring. Raises a `ProtocolError` if there is none."""
    if options.epsilon is None:
        assert options.noise_multiplier is not None
        # The sum of n noises has sqrt(n) times the deviation of one, and the multiplier is of the sum.
        return options.noise_multiplier * noise.l2_sensitivity / noise.smallest_cohort**0.5
    scale = scale_for(options.epsilon, noise, delta=options.delta)
    return scale**0.5 if noise.noise == "skellam" else scale


def ring_of(defense: Defense) -> Ring:
    """Return the ring in which rows are summed."""
    assert defense.secagg is not None
    return Ring.UINT64 if defense.secagg.bits == 64 else Ring.UINT32


def released(guarantees: Mapping[str, Guarantee], *, releases: int) -> dict[str, Guarantee]:
    """State the guarantees of a number of releases of each table.

    Args:
        guarantees: by table, for the whole run.
        releases: rounds to count.

    Returns:
        Guarantees by the tables that each covers.
    """
    if not guarantees:
        return {}
    counted = {
        table: guarantee_of(
            [
                replace(release, count=releases, num_samples=release.num_samples // release.count * releases)
                for release in guarantee.releases
            ],
            delta=guarantee.delta - guarantee.sampling_delta,
            unit=guarantee.unit,
            neighbouring=guarantee.neighbouring,
            mechanism=guarantee.mechanism,
            accountant=guarantee.accountant,
        )
        for table, guarantee in guarantees.items()
    }
    # A row belongs to one table. A client has a part in every table, so what it releases of them composes.
    if any(guarantee.unit == "row" for guarantee in counted.values()):
        return counted
    return {" and ".join(counted): compose(list(counted.values()))}


def composed(before: Mapping[str, Guarantee], after: Mapping[str, Guarantee]) -> dict[str, Guarantee]:
    """Compose earlier and later releases, by the tables that each guarantee covers.

    Args:
        before, after: from `released`.
    """
    both = {tables: compose([before[tables], after[tables]]) for tables in before.keys() & after.keys()}
    return {**after, **before, **both}
