"""How often verdicts err, with the estimators of attacks: nulls are rarely called LEAKS, and the named effect shows."""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.membership.figures import measure_membership
from fkgsec.attacks.membership.intervals import dyadic_auc, spearman
from fkgsec.estimate import Estimate, exact, over_draws, proportion
from fkgsec.experiments.reporting.verdict import judge

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
