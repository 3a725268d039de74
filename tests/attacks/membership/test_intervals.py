"""AUC, TPR and means of triples: values by scikit-learn, variances by a naive loop, and coverage where hubs dominate."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from fkgsec.attacks.membership.figures import auc_of, tpr_at_fpr
from fkgsec.attacks.membership.intervals import dyadic_auc, dyadic_mean, dyadic_tpr
from fkgsec.estimate import mean_of_shares, proportion


def case(seed: int, m: int = 150, c: int = 180, entities: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    ends, liked = rng.integers(0, entities, (m + c, 2)), rng.normal(size=entities)
    scores = (liked[ends].sum(axis=1) + rng.normal(size=m + c) + 1.0 * (np.arange(m + c) < m)).round(1)  # with ties
    return scores[:m], scores[m:], ends


@pytest.mark.parametrize("seed", range(4))
def test_values_are_those_of_scikit_learn(seed: int) -> None:
    members, controls, ends = case(seed)
    truth, scores = np.arange(len(ends)) < len(members), np.concatenate([members, controls])
    assert dyadic_auc(members, controls, ends).value == pytest.approx(roc_auc_score(truth, scores))
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    for most in (0.01, 0.1):
        found = dyadic_tpr(members, controls, ends, most)
        assert found.value == pytest.approx(tpr[fpr <= most].max())
    with pytest.raises(ValueError, match="more than 50 controls"):
        dyadic_tpr(members, controls[:50], ends[: len(members) + 50], 0.01)


def test_by_hand() -> None:
    """Three members above 9 of 10 controls, one below all: AUC (3 * 9.. ) and at 10 % false alarms 3 of 4."""
    members, controls = np.array([9.5, 9.6, 9.7, 0.5]), np.arange(1.0, 11.0)
    ends = np.arange(28).reshape(14, 2)  # no two share an entity
    assert dyadic_auc(members, controls, ends).value == pytest.approx((9 + 9 + 9 + 0) / 40)
    found = dyadic_tpr(members, controls, ends, 0.1)
    assert (found.value, found.n) == (0.75, 4)
    alone = tpr_at_fpr(members, controls, 0.1, "remembered").tpr
    assert alone is not None
    assert found.low <= alone.low  # which does not count that the threshold is chance, too
    assert found.high >= alone.high


def test_more_ways_widen_it_and_shared_entities_too() -> None:
    members, controls, ends = case(7)
    apart = np.arange(2 * len(ends)).reshape(-1, 2)
    for measure in (
        lambda where, compared: dyadic_auc(members, controls, where, compared=compared),
        lambda where, compared: dyadic_tpr(members, controls, where, 0.1, compared=compared),
    ):
        one, several, hubs = measure(apart, 1), measure(apart, 8), measure(ends, 1)
        assert several.low < one.low < one.high < several.high
        assert hubs.high - hubs.low > one.high - one.low
        assert several.method.endswith(", best of 8")


def test_intervals_hold_where_hubs_dominate() -> None:
    """Scores vary by entity, of which few stand in most triples: usual intervals cover too seldom, these about as they say."""
    rng, repeats, m, entities, gain, share = np.random.default_rng(0), 150, 400, 150, 1.5, 0.36
    weights = 1 / np.arange(1, entities + 1) ** 0.8
    deviation = np.sqrt(1 + 2 * share)
    auc = norm.cdf(gain / deviation / np.sqrt(2))
    tpr = norm.sf(norm.isf(0.01) - gain / deviation)
    covered = np.zeros(4)
    for _ in range(repeats):
        ends = rng.choice(entities, (2 * m, 2), p=weights / weights.sum())
        liked = rng.normal(0, np.sqrt(share), entities)
        scores = liked[ends].sum(axis=1) + rng.normal(size=2 * m) + gain * (np.arange(2 * m) < m)
        members, controls = scores[:m], scores[m:]
        wide, low = dyadic_auc(members, controls, ends), dyadic_tpr(members, controls, ends, 0.01)
        usual = auc_of(members, controls), tpr_at_fpr(members, controls, 0.01, "remembered").tpr
        for place, (one, true) in enumerate(((wide, auc), (low, tpr), (usual[0], auc), (usual[1], tpr))):
            covered[place] += one.low <= true <= one.high
    dyadic, counted = covered[:2] / repeats, covered[2:] / repeats
    assert (dyadic >= (0.88, 0.92)).all(), dyadic
    assert (counted <= dyadic - 0.03).all(), counted


def answers(rng: np.random.Generator, heads: int = 150, tails: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Reciprocal ranks of 1 to 7 answers of each head, of which all depend on the head and on the answer; and ends."""
    first = np.repeat(np.arange(heads), rng.integers(1, 8, heads))
    weights = 1 / np.arange(1, tails + 1)
    second = rng.choice(tails, len(first), p=weights / weights.sum())
    liked = rng.normal(size=heads)[first] + 0.4 * rng.normal(size=tails)[second] + rng.normal(size=len(first))
    return 1 / np.ceil(np.exp(np.maximum(2 - liked, 0))), np.stack([first, heads + second], axis=1)


def test_intervals_of_means_hold_where_an_entity_has_several_answers() -> None:
    """The usual bootstrap of triples covers two thirds of the time what these cover nearly as often as they say."""
    rng = np.random.default_rng(0)
    true = np.mean([answers(rng)[0].mean() for _ in range(400)])
    covered = np.zeros(2)
    for _ in range(200):
        values, ends = answers(rng)
        found = dyadic_mean(values, ends), mean_of_shares(values, rng)
        covered += [one.low <= true <= one.high for one in found]
    assert covered[0] / 200 >= 0.9, covered
    assert covered[1] <= covered[0] - 30, covered


def test_means_of_triples_apart_together_and_alike() -> None:
    values = np.tile([1.0, 1.0, 0.0, 0.0], 20)
    apart = dyadic_mean(values, np.arange(160).reshape(80, 2))
    together = dyadic_mean(
        values, np.stack([np.arange(80) // 2, 40 + np.arange(80)], axis=1)
    )  # heads with one answer twice
    assert (apart.value, apart.n, apart.method) == (0.5, 80, "dyadic wilson")
    assert apart.high - apart.low == pytest.approx(proportion(40, 80).high - proportion(40, 80).low, rel=0.05)
    assert together.high - together.low == pytest.approx(2**0.5 * (apart.high - apart.low), rel=0.06)
    assert dyadic_mean(values, np.arange(160).reshape(80, 2), compared=3).low < apart.low
    alike = dyadic_mean(np.ones(3), np.array([(0, 3), (1, 4), (2, 5)]))
    assert alike == msgspec.structs.replace(proportion(3, 3), method="dyadic wilson")
    assert dyadic_mean(np.ones(1), np.array([(0, 1)])).low < 0.3


@pytest.mark.parametrize(("num_triples", "num_independent"), [(6, 3), (12, 9)])
def test_a_mean_of_few_triples_has_the_interval_of_student(num_triples: int, num_independent: int) -> None:
    """(n - 1) / (t / z)^2 independent triples: 5 / (2.571 / 1.96)^2 = 2.9, and 11 / (2.201 / 1.96)^2 = 8.7."""
    values, ends = np.arange(num_triples) % 2.0, np.arange(2 * num_triples).reshape(-1, 2)  # no two share an entity
    share, wide = dyadic_mean(values, ends), proportion(num_independent / 2, num_independent)
    assert (share.value, share.low, share.high) == (0.5, pytest.approx(wide.low), pytest.approx(wide.high))
