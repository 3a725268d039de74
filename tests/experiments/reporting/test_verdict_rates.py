"""How often verdicts and comparisons err, with the estimators of attacks: nulls are rarely called LEAKS or "lower", and the named
effect shows."""

from collections.abc import Callable
from statistics import NormalDist

import msgspec
import numpy as np
import pytest

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.membership.figures import measure_membership, placements
from fkgsec.attacks.membership.intervals import dyadic_auc, spearman
from fkgsec.attacks.outcomes import Outcomes, of_auc, of_mean
from fkgsec.estimate import Estimate, exact, over_draws, proportion
from fkgsec.experiments.reporting.verdict import Difference, difference, judge

TRIALS = 1000
NORMAL = NormalDist()


def auc_shift(auc: float) -> float:
    """The shift of a normal score that gives this AUC."""
    return float(np.sqrt(2) * NORMAL.inv_cdf(auc))


def membership(rng: np.random.Generator, effect: float) -> Estimate:
    scores = np.concatenate([rng.normal(auc_shift(0.5 + effect), 1, 300), rng.normal(0, 1, 300)])
    return measure_membership(scores, np.arange(600) < 300, attack="x", control="y", rng=rng).auc


def links(rng: np.random.Generator, effect: float) -> Estimate:
    ends = np.stack(np.triu_indices(40, 1), axis=1)
    linked = rng.random(len(ends)) < 0.2
    ends = np.concatenate([ends[linked], ends[~linked]])
    members = rng.normal(auc_shift(0.5 + effect), 1, int(linked.sum()))
    return dyadic_auc(members, rng.normal(0, 1, int((~linked).sum())), ends)


def degrees(rng: np.random.Generator, effect: float) -> Estimate:
    values = rng.normal(size=200)
    rank = 2 * np.sin(np.pi * effect / 6)  # of normal pairs with this rank correlation
    return spearman(rank * values + np.sqrt(1 - rank**2) * rng.normal(size=200), values)


def shares(rng: np.random.Generator, effect: float) -> Estimate:
    return proportion(int(rng.binomial(1500, 0.3 + effect)), 1500)


def shares_over_leaks(rng: np.random.Generator, effect: float) -> Estimate:
    """Six draws of leaked entities, of which each has a rate of its own."""
    rates = np.clip(0.3 + effect + rng.normal(0, 0.02, size=6), 0, 1)
    counts = rng.binomial(1500, rates)
    return over_draws(proportion(int(counts[0]), 1500), (counts[1:] / 1500).tolist(), "leaks")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measure", "base"), [(membership, 0.5), (links, 0.5), (degrees, 0.0), (shares, 0.3), (shares_over_leaks, 0.3)]
)
@pytest.mark.parametrize("num_figures", [1, 8])
def test_of_1000_nulls_at_most_5_percent_leak_and_90_percent_of_named_effects_are_seen(
    measure: Callable[[np.random.Generator, float], Estimate], base: float, num_figures: int
) -> None:
    rng = np.random.default_rng(11)

    def figures(effect: float) -> list[Figure]:
        effects = [effect, *[0.0] * (num_figures - 1)]
        return [
            Figure("x", "y", f"model {number}", "all", measure(rng, size), exact(base, 1), attainable=1.0)
            for number, size in enumerate(effects)
        ]

    nulls = [figures(0.0) for _ in range(TRIALS)]
    assert sum(judge(one).label == "LEAKS" for one in nulls) <= 0.05 * TRIALS
    effect = float(np.median([one.visible_effect(num_figures) for null in nulls[:50] for one in null]))
    seen = sum(judge(figures(effect)).label == "LEAKS" for _ in range(TRIALS))
    assert seen >= 0.9 * TRIALS - 3 * np.sqrt(0.9 * 0.1 * TRIALS)


Pair = tuple[tuple[float, Outcomes | None], tuple[float, Outcomes | None]]
NUM_HEADS, NUM_TRIPLES = 150, 1200
_WEIGHTS = 1 / np.arange(10, 10 + NUM_HEADS)
HEADS = np.random.default_rng(0).choice(NUM_HEADS, NUM_TRIPLES, p=_WEIGHTS / _WEIGHTS.sum())
TRIPLE_ENDS = np.stack([HEADS, NUM_HEADS + np.random.default_rng(1).integers(0, NUM_HEADS, NUM_TRIPLES)], axis=1)
MEMBER_ENDS = np.arange(1200).reshape(600, 2)


def outcome(hits: np.ndarray, ends: np.ndarray) -> tuple[float, Outcomes | None]:
    return float(hits.mean()), of_mean(hits, ends)


def correlated(rng: np.random.Generator, shared: np.ndarray, count: int) -> np.ndarray:
    """Normal scores of which a training draws 30 % of the variance anew, with ranks as uniform as the shared ones."""
    return np.sqrt(0.7) * shared + np.sqrt(0.3) * rng.normal(size=count)


def hits_by_entity(rng: np.random.Generator, effect: float) -> Pair:
    """Triples rebuilt by two trainings: what is right depends on the head, and hubs stand in many triples."""
    by_head, by_triple = rng.normal(size=NUM_HEADS), rng.normal(size=NUM_TRIPLES)

    def right(rate: float) -> tuple[float, Outcomes | None]:
        heads, triples = correlated(rng, by_head, NUM_HEADS), correlated(rng, by_triple, NUM_TRIPLES)
        return outcome((heads[HEADS] + 2 * triples) / np.sqrt(5) < NORMAL.inv_cdf(rate), TRIPLE_ENDS)

    return right(0.5), right(0.5 - effect)


def rare_hits(rng: np.random.Generator, effect: float) -> Pair:
    """Few of 300 entities named."""
    shared = rng.normal(size=300)
    ends = np.arange(300)[:, None]
    rates = 0.03 + effect, 0.03
    first, second = (outcome(correlated(rng, shared, 300) < NORMAL.inv_cdf(rate), ends) for rate in rates)
    return first, second


def membership_scores(rng: np.random.Generator, effect: float) -> Pair:
    shared = rng.normal(size=600)

    def auc(size: float) -> tuple[float, Outcomes | None]:
        scores = correlated(rng, shared, 600)
        parts = scores[:300] + auc_shift(size), scores[300:]
        return float(placements(*parts).members.mean()), of_auc(*parts, MEMBER_ENDS)

    return auc(0.7), auc(0.7 - effect)


def shares_by_draw(rng: np.random.Generator, effect: float) -> Pair:
    """Six draws of leaked entities, the same ones for both, that move both shares alike."""
    shared, drawn = rng.normal(size=500), rng.normal(0, 0.05, 6)

    def share(rate: float) -> tuple[float, Outcomes | None]:
        scores = correlated(rng, shared, 500)
        rates = rate + drawn + rng.normal(0, 0.01, 6)
        hits = [scores < NORMAL.inv_cdf(float(one)) for one in np.clip(rates, 0.001, 0.999)]
        value, outcomes = outcome(hits[0], np.arange(500)[:, None])
        assert outcomes is not None
        return value, msgspec.structs.replace(outcomes, draws=tuple(float(one.mean()) for one in hits))

    return share(0.5), share(0.5 - effect)


def compared(pair: Pair, num_differences: int) -> Difference:
    """The second configuration against the first; intervals of the figures themselves are not read."""
    (first, base), (second, outcomes) = pair
    figures = [
        Figure("x", "y", "server", "all", Estimate(value, 0.0, 1.0, 1, ""), outcomes=kept)
        for value, kept in ((second, outcomes), (first, base))
    ]
    assert base is not None
    return difference(figures[0], figures[1], num_differences, ends={base.items: base.ends})


@pytest.mark.slow
@pytest.mark.parametrize("measure", [hits_by_entity, rare_hits, membership_scores, shares_by_draw])
@pytest.mark.parametrize("num_differences", [1, 12])
def test_of_1000_defenses_that_change_nothing_5_percent_differ_and_90_percent_of_named_differences_are_seen(
    measure: Callable[[np.random.Generator, float], Pair], num_differences: int
) -> None:
    rng = np.random.default_rng(12)
    nulls = [compared(measure(rng, 0.0), num_differences) for _ in range(TRIALS)]
    assert all(null.paired for null in nulls)
    told = sum(null.shown for null in nulls)
    allowed = 0.05 / num_differences * TRIALS
    assert told <= (allowed if num_differences == 1 else allowed + 2.5 * np.sqrt(allowed))
    effect = float(np.median([null.visible for null in nulls]))
    seen = sum(compared(measure(rng, effect), num_differences).shown for _ in range(TRIALS))
    assert seen >= 0.9 * TRIALS
