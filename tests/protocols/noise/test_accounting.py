"""Accounting: against other accountants, against divergences computed from the probabilities, and against an audit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fkgsec.protocols.core.prg import seeded
from fkgsec.protocols.noise import accounting as module
from fkgsec.protocols.noise.accounting import (
    AccountingError,
    Guarantee,
    compose,
    epsilon_of,
    guarantee_of,
    ring_sensitivity,
    scale_for,
)
from fkgsec.protocols.noise.guarantee import NoiseName, Releases
from fkgsec.protocols.noise.sampling import DiscreteGaussian, Skellam, gaussian, sampling_delta
from tests.protocols.noise.audit import audit_epsilon, audit_lower_bound


def gaussian_epsilon(multiplier: float, *, rounds: int, delta: float, accountant: str = "rdp") -> float:
    return epsilon_of([Releases("gaussian", multiplier, rounds)], delta=delta, accountant=accountant)


def ring(noise: NoiseName, scale: float, **changes) -> Releases:
    """Four sums of five clients' vectors of 50 integers."""
    shape = {"count": 4, "l2_sensitivity": 3.0, "dimension": 50, "smallest_cohort": 5}
    return Releases(noise, scale, **(shape | changes))


def ring_epsilon(noise: NoiseName, scale: float, *, delta: float = 1e-6, **changes) -> float:
    return epsilon_of([ring(noise, scale, **changes)], delta=delta)


UNIT = {"unit": "row", "neighbouring": "one row replaced", "mechanism": "noise"}


def analytic_delta(epsilon: float, noise_multiplier: float) -> float:
    """Of one Gaussian, exactly. Source: Balle and Wang 2018, Theorem 8."""
    s = noise_multiplier
    return float(
        stats.norm.cdf(1 / (2 * s) - epsilon * s) - math.exp(epsilon) * stats.norm.cdf(-1 / (2 * s) - epsilon * s)
    )


# Against other accountants.

CASES = [(1.0, 1, 1e-5), (0.6, 3, 1e-6), (3.0, 200, 1e-5)]


@pytest.mark.parametrize(("multiplier", "rounds", "delta"), CASES)
def test_rdp_agrees_with_dp_accounting(multiplier, rounds, delta):
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import rdp_privacy_accountant

    reference = rdp_privacy_accountant.RdpAccountant()
    reference.compose(dp.GaussianDpEvent(multiplier), rounds)
    ours = gaussian_epsilon(multiplier, rounds=rounds, delta=delta)
    assert ours == pytest.approx(reference.get_epsilon(delta), rel=0.02)


@pytest.mark.parametrize(("multiplier", "rounds", "delta"), CASES)
def test_prv_agrees_with_dp_accounting_pld_and_is_below_rdp(multiplier, rounds, delta):
    pytest.importorskip("dp_accounting")
    from dp_accounting.pld import privacy_loss_distribution

    reference = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, value_discretization_interval=1e-3
    ).self_compose(rounds)
    ours = gaussian_epsilon(multiplier, rounds=rounds, delta=delta, accountant="prv")
    assert ours == pytest.approx(reference.get_epsilon_for_delta(delta), rel=0.02)
    assert ours < gaussian_epsilon(multiplier, rounds=rounds, delta=delta)


@pytest.mark.parametrize("multiplier", [0.3, 10.0])
@pytest.mark.parametrize("rounds", [1, 16])
def test_full_batches_are_never_below_the_exact_gaussian_and_close(multiplier, rounds):
    """`rounds` Gaussians are one with multiplier / sqrt(rounds)."""
    for accountant, slack in (("rdp", 0.2), ("prv", 0.01)):
        epsilon = gaussian_epsilon(multiplier, rounds=rounds, delta=1e-5, accountant=accountant)
        alone = multiplier / math.sqrt(rounds)
        assert analytic_delta(epsilon, alone) <= 1e-5
        assert analytic_delta(epsilon * (1 - slack) - 0.0015, alone) > 1e-5


def test_discrete_gaussian_of_one_client_agrees_with_opendp():
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    mechanism = dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float), scale=4.0)
    reference = dp.c.make_zCDP_to_approxDP(mechanism).map(3.0).epsilon(1e-6)
    ours = ring_epsilon("discrete", 4.0, count=1, smallest_cohort=1)
    assert ours == pytest.approx(reference, rel=1e-4)


# Against the probabilities.


def renyi(masses: np.ndarray, shift: int, order: float) -> float:
    """Divergence of order `order` of a distribution on integers and itself moved by `shift`."""
    log_masses = np.log(masses)
    terms = order * log_masses[shift:] + (1 - order) * log_masses[:-shift]
    return float(np.logaddexp.reduce(terms)) / (order - 1)


@pytest.mark.parametrize("sigma", [0.5, 1.5])
@pytest.mark.parametrize("num_clients", [1, 5])
def test_the_bound_of_discrete_gaussian_sums_holds_for_the_convolved_probabilities(sigma, num_clients):
    reach = int(36 * sigma)  # down to 1e-280
    one = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    one /= one.sum()
    masses = one
    for _ in range(num_clients - 1):
        masses = np.convolve(masses, one)
    masses = masses[masses > 1e-280]
    orders = np.array([1.01, 1.2, 1.5, 2.0, 4.0, 16.0])
    for shift in (1, 2):
        bound = module._rdp_of_discrete_gaussians(orders, sigma, float(shift), 1, num_clients)
        exact = np.array([renyi(masses, shift, order) for order in orders])
        assert (exact <= bound * (1 + 1e-9)).all()
        as_if_gaussian = orders * shift**2 / (2 * num_clients * sigma**2)
        if sigma == 1.5:
            np.testing.assert_allclose(bound, as_if_gaussian, rtol=1e-3)
        if sigma == 0.5 and num_clients == 5 and shift == 1:  # why KLS21's term is there
            assert (exact > as_if_gaussian).any()


@pytest.mark.parametrize("variance", [0.5, 2.0, 30.0])
def test_the_skellam_bound_holds_for_the_probabilities(variance):
    x = np.arange(-250, 251)
    masses = stats.skellam.pmf(x, variance / 2, variance / 2)
    masses = masses[masses > 1e-280]
    orders = np.array([2.0, 3.0, 8.0])
    for shift in (1, 2):
        bound = module._rdp_of_skellam(orders, variance, float(shift), 1)
        exact = np.array([renyi(masses, shift, order) for order in orders])
        assert (exact <= bound * (1 + 1e-9)).all()
        if variance == 30:  # there the bound is close, and half the noise would not be covered
            assert (bound < 1.2 * exact).all()
            assert (exact > module._rdp_of_skellam(orders, 2 * variance, float(shift), 1)).all()


def test_the_skellam_bound_by_hand():
    """Its second term is more than these probabilities need, so they cannot show that it is there."""
    assert module._rdp_of_skellam(np.array([3.0]), 10.0, 2.0, 1)[0] == pytest.approx(0.6 + (5 * 4 + 6 * 2) / 400)
    assert module._rdp_of_skellam(np.array([8.0]), 0.5, 1.0, 1)[0] == pytest.approx(8.0 + 3.0)


def test_the_conversion_agrees_with_opacus():
    from opacus.accountants.analysis.rdp import get_privacy_spent

    orders = [1.5, 2.0, 4.0, 8.0, 30.0]
    rdp = [order / 18 for order in orders]
    reference, _ = get_privacy_spent(orders=orders, rdp=rdp, delta=1e-5)
    assert module._epsilon_of_rdp(np.array(orders), np.array(rdp), 1e-5) == pytest.approx(float(reference), rel=1e-12)


def test_many_clients_share_the_noise_of_one():
    """At a large sigma n clients of sigma are one of sqrt(n) sigma, for both distributions."""
    one = gaussian_epsilon(10 / 3, rounds=4, delta=1e-6)
    assert ring_epsilon("discrete", 2.0, smallest_cohort=25) == pytest.approx(one, rel=1e-4)
    assert ring_epsilon("skellam", 2e4**2, smallest_cohort=25, l2_sensitivity=3e4) == pytest.approx(one, rel=1e-2)


# Inverses and monotonicity.


@pytest.mark.parametrize("epsilon", [0.05, 20.0])
@pytest.mark.parametrize(
    ("releases", "accountant"),
    [
        (Releases("gaussian", 1.0, 20), "rdp"),
        (Releases("gaussian", 1.0, 20), "prv"),
        (ring("discrete", 1.0, l2_sensitivity=ring_sensitivity(2.0, 50, 16)), "rdp"),
        (ring("skellam", 1.0, l2_sensitivity=ring_sensitivity(2.0, 50, 16)), "rdp"),
    ],
)
def test_the_noise_keeps_the_claim_and_is_no_larger_than_needed(releases: Releases, accountant: str, epsilon: float):
    scale = scale_for(epsilon, releases, delta=1e-5, accountant=accountant)
    assert epsilon_of([replace(releases, scale=scale)], delta=1e-5, accountant=accountant) <= epsilon
    assert epsilon_of([replace(releases, scale=scale * 0.998)], delta=1e-5, accountant=accountant) > epsilon


def test_sigma_is_never_below_what_the_theorem_covers():
    assert scale_for(1e4, ring("discrete", 1.0), delta=1e-6) == 0.5


@settings(max_examples=20, deadline=None)
@given(
    scale=st.floats(0.5, 1e6),
    more=st.floats(1.0, 10.0),
    clients=st.integers(1, 30),
    more_clients=st.integers(0, 30),
    rounds=st.integers(1, 100),
    dimension=st.integers(1, 10**6),
)
def test_more_noise_clients_or_delta_never_cost_and_more_rounds_or_sensitivity_never_help(
    scale, more, clients, more_clients, rounds, dimension
):
    def discrete(factor=1.0, **changes):
        return ring_epsilon("discrete", scale * factor, **(in_ring | changes))

    def skellam(factor=1.0, **changes):
        return ring_epsilon("skellam", scale**2 * factor, **(in_ring | changes))

    def central(factor=1.0, *, delta=1e-6, count=rounds):
        return gaussian_epsilon(scale * factor, rounds=count, delta=delta)

    in_ring = {"l2_sensitivity": 10.0, "dimension": dimension, "smallest_cohort": clients, "count": rounds}
    for epsilon in (discrete, skellam, central):
        base = epsilon() * (1 + 1e-12)
        assert epsilon(more) <= base
        assert epsilon(delta=1e-5) <= base
        assert epsilon(count=rounds + 1) * (1 + 1e-12) >= epsilon()
    for epsilon in (discrete, skellam):
        assert epsilon(smallest_cohort=clients + more_clients) <= epsilon() * (1 + 1e-12)
        assert epsilon(l2_sensitivity=10.0 * more) * (1 + 1e-12) >= epsilon()


# Sensitivity in the ring.


def test_ring_sensitivity_covers_rounding_and_no_less_would():
    """`dimension` coordinates pushed just over the middle between two integers, against those just under."""
    dimension, bits = 64, 4
    step = 2.0**-bits
    vector = (np.floor(np.full(dimension, 2.0 / math.sqrt(dimension)) / step) + 0.5) * step
    clip = float(np.linalg.norm(vector))
    bound = ring_sensitivity(2 * clip, dimension, bits)
    up, down = (np.rint(sign * vector * (1 + 4e-12) / step) for sign in (1, -1))
    moved = float(np.linalg.norm(up - down))
    assert bound - 1e-6 < moved <= bound * (1 + 1e-9)
    assert moved > 2 * clip / step * 1.1  # rounding left out would be too little


# Audit.


def worlds(noise_multiplier: float, n: int, seed: bytes) -> tuple[np.ndarray, np.ndarray]:
    randomness = seeded(seed)
    return 1.0 + gaussian(n, noise_multiplier, randomness), gaussian(n, noise_multiplier, randomness)


def test_the_audited_bound_stays_below_the_claim_and_exceeds_it_when_noise_is_halved():
    multiplier, delta = 1.0, 1e-5
    claim = gaussian_epsilon(multiplier, rounds=1, delta=delta, accountant="prv")
    honest = audit_lower_bound(*worlds(multiplier, 60_000, b"honest"), delta)
    assert 0.4 * claim < honest.epsilon < claim
    halved = audit_lower_bound(*worlds(multiplier / 2, 100_000, b"halved"), delta)
    assert halved.epsilon > claim


@pytest.mark.parametrize("noise", [DiscreteGaussian(8.0), Skellam(64.0)], ids=str)
def test_summed_ring_noise_passes_the_audit_of_its_claim_and_that_of_one_client_fails(noise):
    """Eight clients, a canary of 12 units in one of them. Then only one of the eight adds its noise."""
    shape = {"l2_sensitivity": 12.0, "dimension": 1, "smallest_cohort": 8, "count": 1, "delta": 1e-5}
    if isinstance(noise, DiscreteGaussian):
        claim = ring_epsilon("discrete", noise.sigma, **shape)
    else:
        claim = ring_epsilon("skellam", noise.variance, **shape)
    randomness = seeded(f"audit of {noise}".encode())

    def audit(num_noisy: int) -> float:
        without, with_canary = (
            np.sum([noise.sample(50_000, randomness) for _ in range(num_noisy)], axis=0) for _ in range(2)
        )
        return audit_lower_bound(with_canary + 12, without, 1e-5).epsilon

    assert 0.3 * claim < audit(8) < claim
    assert audit(1) > claim


def test_audit_epsilon_by_hand():
    """No false positive in n: the upper end solves (1 - p)^n = 0.025; every canary missed leaves no evidence."""
    high_positive = 1 - 0.025 ** (1 / 200)
    high_negative = float(stats.beta.ppf(0.975, 51, 50))
    bound = audit_epsilon(false_positives=0, num_out=200, false_negatives=50, num_in=100, delta=1e-3)
    assert bound == pytest.approx(math.log((1 - 1e-3 - high_negative) / high_positive), rel=1e-9)
    swapped = audit_epsilon(false_positives=50, num_out=100, false_negatives=0, num_in=200, delta=1e-3)
    assert swapped == pytest.approx(bound, rel=1e-9)
    assert audit_epsilon(false_positives=0, num_out=200, false_negatives=100, num_in=100, delta=0.0) == 0


def test_the_threshold_is_chosen_and_evaluated_on_different_trials():
    """Scores that separate the worlds on the first, third, ... trial only: the evaluation sees none of it."""
    trials = np.arange(2000)
    planted = np.where(trials % 2 == 0, 5.0, 0.0)
    assert audit_lower_bound(planted, -planted, 0.0).epsilon == 0
    apart = audit_lower_bound(np.full(2000, 5.0), np.full(2000, -5.0), 0.0)
    no_error_high = 1 - 0.025 ** (1 / 1000)
    assert apart.threshold == 5.0
    assert apart.num_trials == 2000
    assert apart.false_positive_high == pytest.approx(no_error_high)
    assert apart.epsilon == pytest.approx(math.log((1 - no_error_high) / no_error_high))


# The claim, and misuse.


def test_a_guarantee_describes_itself_in_one_line():
    guarantee = Guarantee(0.5, 1e-6, "row", "one row more or less", "Gaussian", 1, None, "prv")
    assert guarantee.describe() == "(0.5, 1e-06)-DP per row (one row more or less): Gaussian, 1 release, accountant prv"
    with pytest.raises(AccountingError, match="epsilon"):
        Guarantee(math.nan, 1e-6, "row", "", "", 1, None, "prv")
    with pytest.raises(AccountingError, match="delta"):
        Guarantee(1.0, 1.0, "row", "", "", 1, None, "prv")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: gaussian_epsilon(0.0, rounds=1, delta=1e-5), "scale"),
        (lambda: gaussian_epsilon(0.0, rounds=1, delta=1e-5, accountant="prv"), "scale"),
        (lambda: gaussian_epsilon(1.0, rounds=0, delta=1e-5), "rounds"),
        (lambda: gaussian_epsilon(1.0, rounds=1, delta=0.0), "delta"),
        (lambda: gaussian_epsilon(1.0, rounds=1, delta=1e-5, accountant="gdp"), "gdp"),
        (lambda: scale_for(1.0, Releases("gaussian", 1.0, 1), delta=1e-5, accountant="PRV"), "PRV"),
        (lambda: scale_for(0.0, Releases("gaussian", 1.0, 1), delta=1e-5), "epsilon"),
        (lambda: ring_sensitivity(1.0, 0, 3), "dimension"),
        (lambda: ring_sensitivity(-1.0, 1, 3), "l2_sensitivity"),
        (lambda: ring_sensitivity(1.0, 1, -1), "fraction_bits"),
        (lambda: ring_epsilon("discrete", 0.4), "1/2"),
        (lambda: ring_epsilon("discrete", math.nan), "scale"),
        (lambda: ring_epsilon("discrete", 1.0, smallest_cohort=0), "smallest_cohort"),
        (lambda: ring_epsilon("skellam", 1.0, dimension=0), "dimension"),
        (lambda: ring_epsilon("skellam", 0.0), "scale"),
        (lambda: ring_epsilon("skellam", 1.0, delta=1.0), "delta"),
        (lambda: guarantee_of([ring("skellam", 1.0)], delta=1e-5, accountant="prv", **UNIT), "gaussian noise only"),
        (lambda: audit_epsilon(false_positives=3, num_out=2, false_negatives=0, num_in=2, delta=0.0), "positives"),
        (lambda: audit_epsilon(false_positives=0, num_out=2, false_negatives=-1, num_in=2, delta=0.0), "negatives"),
        (
            lambda: audit_epsilon(false_positives=0, num_out=2, false_negatives=0, num_in=2, delta=0.0, confidence=1.0),
            "confidence",
        ),
        (lambda: audit_lower_bound(np.zeros(3), np.zeros(9), 0.0), "scores_in"),
        (lambda: audit_lower_bound(np.zeros(9), np.full(9, np.nan), 0.0), "NaN"),
        (lambda: audit_lower_bound(np.zeros(9), np.zeros(9), 1.0), "delta"),
    ],
)
def test_misuse_is_refused_by_name(call, named):
    with pytest.raises(AccountingError, match=named):
        call()


# Composition.


def stated(*releases: Releases, accountant: str = "rdp", delta: float = 1e-5) -> Guarantee:
    return guarantee_of(releases, delta=delta, accountant=accountant, **UNIT)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_gaussian_releases_compose_as_if_they_were_of_one_run(accountant: str) -> None:
    run, unlearning = (stated(Releases("gaussian", 1.5, count), accountant=accountant) for count in (3, 1))
    together = compose([run, unlearning])
    assert together.epsilon == pytest.approx(
        gaussian_epsilon(1.5, rounds=4, delta=1e-5, accountant=accountant), rel=1e-9 if accountant == "rdp" else 0.01
    )
    assert (together.rounds, together.delta) == (4, 1e-5)
    assert run.epsilon < together.epsilon < run.epsilon + unlearning.epsilon


def test_integer_noise_composes_and_counts_what_inexact_sampling_adds() -> None:
    shared = {"l2_sensitivity": 40.0, "dimension": 8, "smallest_cohort": 3}
    for noise, scale in (("discrete", 60.0), ("skellam", 3600.0)):
        one = stated(Releases(noise, scale, 2, **shared, num_samples=10**20))
        both = compose([one, one])
        assert both.epsilon == ring_epsilon(noise, scale, **shared, delta=1e-5)
        inexact = sampling_delta(both.epsilon, 2 * 10**20)
        assert both.delta == pytest.approx(1e-5 + inexact, rel=1e-12)
        assert inexact > 1e-14
        assert both.smallest_cohort == 3


def test_tables_with_different_noise_compose() -> None:
    first, second = (stated(Releases("gaussian", scale, 5)) for scale in (1.0, 2.0))
    both = compose([first, second])
    equal = (1 / (1 / 1.0**2 + 1 / 2.0**2)) ** 0.5  # the multiplier that is as much as both
    assert both.epsilon == pytest.approx(gaussian_epsilon(equal, rounds=5, delta=1e-5), rel=1e-9)
    assert max(first.epsilon, second.epsilon) < both.epsilon < first.epsilon + second.epsilon


def test_a_guarantee_that_names_no_mechanism_adds_up() -> None:
    told = Guarantee(2.0, 1e-6, "row", "one row replaced", "told", 3, None, "somebody")
    both = compose([told, stated(Releases("gaussian", 1.0, 1))])
    assert both.epsilon == 2.0 + gaussian_epsilon(1.0, rounds=1, delta=1e-5)
    assert both.delta == math.fsum([1e-6, 1e-5])
    assert (both.rounds, both.accountant) == (4, "sum of somebody and rdp")


def test_guarantees_of_different_units_do_not_compose() -> None:
    with pytest.raises(AccountingError, match="guarantees of different unit do not compose: client, row"):
        compose([stated(Releases("gaussian", 1.0, 1)), Guarantee(1, 0, "client", "one row replaced", "", 1, None, "")])
    with pytest.raises(AccountingError, match="nothing to compose"):
        compose([])


def test_prv_is_refused_where_opacus_cuts_tails() -> None:
    releases = [Releases("gaussian", 2.0, 3)]
    assert epsilon_of(releases, delta=1e-12, accountant="prv") > 0
    with pytest.raises(AccountingError, match="below 1e-12"):
        epsilon_of(releases, delta=1e-14, accountant="prv")
