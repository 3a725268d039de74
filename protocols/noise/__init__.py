"""Noise for differential privacy, and what it guarantees.

    noise = DiscreteGaussian(sigma=40.0).sample(1000, seeded(seed))       # int64 [1000], for a ring
    gaussian_epsilon(2.0, rounds=1, delta=1e-5)        # of one release, with noise of twice the sensitivity

`sampling` draws noise, `accounting` computes the epsilon of a number of releases, `guarantee` states it, and `audit` bounds it
from below by trials, whatever was claimed.
"""

from fkgsec.protocols.noise.sampling import (
    MAX_SIGMA,
    MIN_SIGMA,
    SAMPLE_DISTANCE,
    DiscreteGaussian,
    IntegerNoise,
    NoiseError,
    Skellam,
    gaussian,
    sampling_delta,
)

__all__ = [
    "MAX_SIGMA",
    "MIN_SIGMA",
    "SAMPLE_DISTANCE",
    "DiscreteGaussian",
    "IntegerNoise",
    "NoiseError",
    "Skellam",
    "gaussian",
    "sampling_delta",
]
