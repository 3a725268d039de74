"""Noise for differential privacy, and what it guarantees.

    noise = DiscreteGaussian(sigma=40.0).sample(1000, seeded(seed))       # int64 [1000], for a ring
    epsilon_of([Releases("gaussian", 2.0, 1)], delta=1e-5)     # of one release, with noise of twice the sensitivity

`sampling` draws noise, `accounting` computes the epsilon of a number of releases, and `guarantee` states it.
"""
