"""Pairs of rows: candidates, closeness by naive loops, and the interval of an AUC over dependent pairs."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fkgsec import KgeModel, Truth
from fkgsec.attacks.membership.figures import estimate_auc, placements
from fkgsec.attacks.membership.intervals import spearman
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.uploads.pairs import (
    Pairs,
    attraction,
    candidate_pairs,
    closeness,
    linked_pairs,
    ranking_auc,
    right_of_first,
    share_of_first,
    standardised,
)
from fkgsec.estimate import exact, proportion

RNG = np.random.default_rng(0)


def test_every_pair_once_and_of_many_those_of_a_sample() -> None:
    whole = candidate_pairs(5, RNG)
    assert list(zip(whole.first, whole.second, strict=True)) == list(itertools.combinations(range(5), 2))
    some = candidate_pairs(40, np.random.default_rng(1), max_pairs=200)
    found = [frozenset(pair) for pair in zip(some.first, some.second, strict=True)]
    assert len(some.rows) == 5
    wanted = {frozenset((row, other)) for row in some.rows for other in range(40) if other != row}
    assert len(found) == len(wanted)
    assert set(found) == wanted


@pytest.mark.parametrize("name", ["transe", "rotate", "distmult", "complex"])
def test_closeness_does_not_see_the_relation_and_fits_a_naive_loop(name: str) -> None:
    model = KgeModel(name, 6)
    rows = torch.from_numpy(RNG.normal(size=(4, model.entity_width)).astype(np.float32))
    found = closeness(model, rows[:2], rows)
    for i, j in itertools.product(range(2), range(4)):
        if name == "transe":
            expected = -(rows[i] - rows[j]).abs().sum()
        elif name == "rotate":  # the best score that any phases give
            expected = -(torch.hypot(*rows[i].chunk(2)) - torch.hypot(*rows[j].chunk(2))).abs().sum()
        else:
            expected = model.best_relation(rows[i], rows[j]).norm()
        assert found[i, j] == pytest.approx(float(expected), rel=1e-4, abs=1e-5)
    if name in ("rotate", "complex"):  # turned by some phases, a row is as near as before
        phases = torch.from_numpy(RNG.uniform(-3, 3, (1, 6)).astype(np.float32))
        turned = KgeModel("rotate", 6).query(rows, phases / (torch.pi / KgeModel("rotate", 6).initial_range), "tail")
        np.testing.assert_allclose(closeness(model, turned[:2], rows), found, rtol=1e-4, atol=1e-5)


def test_standardised_by_a_naive_loop() -> None:
    values, rows = RNG.normal(size=(2, 5)).astype(np.float32), np.array([1, 3])
    found = standardised(values, rows)
    for i, j in itertools.product(range(2), range(5)):
        if j == rows[i]:
            continue
        own = np.delete(values[i], rows[i])
        column = np.array([values[k, j] for k in range(2) if rows[k] != j])
        expected = (values[i, j] - own.mean()) / own.std()
        expected += (values[i, j] - column.mean()) / column.std() if len(column) > 1 else 0
        assert found[i, j] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_rows_that_were_moved_towards_each_other_attract() -> None:
    before = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    after = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])  # the first two meet, the third goes away
    found = attraction(after, after, np.arange(3), before)
    assert found[0, 1] == found[1, 0] == pytest.approx(2.0)
    assert found[0, 2] < 0.0


def test_linked_pairs_either_way_round() -> None:
    pairs = candidate_pairs(4, RNG)
    linked = linked_pairs(np.array([(2, 0, 1), (0, 1, 0)]), pairs, np.array([0, 2, 1, -1]))
    found = {(int(a), int(b)) for a, b, one in zip(pairs.first, pairs.second, linked, strict=True) if one}
    assert found == {(1, 2)}


def test_ties_at_the_end_count_as_expected() -> None:
    scores, linked = np.array([3.0, 1.0, 1.0, 1.0, 0.0]), np.array([True, True, False, False, True])
    assert right_of_first(scores, linked, 2) == pytest.approx(1 + 1 / 3)
    assert right_of_first(scores, linked, 5) == pytest.approx(3)


def test_auc_and_its_dyadic_variance_by_a_naive_loop() -> None:
    pairs = candidate_pairs(9, RNG)
    linked = RNG.random(len(pairs.first)) < 0.3
    scores = np.round(RNG.normal(size=len(linked)) + linked, 1)  # with ties
    found = ranking_auc(scores, linked, pairs)
    wins = (scores[linked][:, None] > scores[~linked]) + 0.5 * (scores[linked][:, None] == scores[~linked])
    assert found.value == pytest.approx(wins.mean())
    influence = np.empty(len(linked))
    influence[linked] = (wins.mean(axis=1) - wins.mean()) / linked.sum()
    influence[~linked] = (wins.mean(axis=0) - wins.mean()) / (~linked).sum()
    ends = [{int(a), int(b)} for a, b in zip(pairs.first, pairs.second, strict=True)]
    variance = sum(
        influence[p] * influence[q] for p, q in itertools.product(range(len(ends)), repeat=2) if ends[p] & ends[q]
    )
    variance = max(variance, float((influence**2).sum()))
    expected = estimate_auc(placements(scores[linked], scores[~linked]), variance, found.method)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert ranking_auc(scores, linked, pairs, compared=4).low < found.low < wins.mean() < found.high


def test_rows_may_be_numbered_with_gaps() -> None:
    """Of a victim that sends some of its rows alone, as FedS does, numbers exceed how many there are."""
    pairs = candidate_pairs(9, RNG)
    apart = Pairs(3 * pairs.rows + 5, pairs.mask, 3 * pairs.first + 5, 3 * pairs.second + 5)
    linked = np.arange(len(pairs.first)) % 3 == 0
    scores = RNG.normal(size=len(linked))
    assert ranking_auc(scores, linked, apart) == ranking_auc(scores, linked, pairs)
    assert share_of_first(scores, linked, apart, 10) == share_of_first(scores, linked, pairs, 10)


def test_the_interval_covers_where_pairs_share_rows() -> None:
    """Rows with effects of their own on all their pairs: taken for independent, pairs would give an interval far too narrow."""
    covered, widths = 0, []
    rng = np.random.default_rng(7)
    for _ in range(60):
        pairs = candidate_pairs(40, rng)
        effect = rng.normal(size=40)
        linked = rng.random(len(pairs.first)) < 0.1
        scores = effect[pairs.first] + effect[pairs.second] + rng.normal(size=len(linked))
        found = ranking_auc(scores, linked, pairs)
        covered += found.low <= 0.5 <= found.high
        widths.append(found.high - found.low)
    assert covered >= 53
    assert np.mean(widths) < 0.4


def test_spearman_is_scipys_and_its_interval_covers() -> None:
    from scipy.stats import spearmanr

    scores, values = RNG.normal(size=30), RNG.integers(0, 5, 30)
    assert spearman(scores, values).value == pytest.approx(spearmanr(scores, values)[0])
    assert spearman(np.zeros(10), np.arange(10)).value == 0.0
    assert spearman(np.arange(10), np.arange(10)).value == pytest.approx(1.0)
    rng, covered = np.random.default_rng(3), 0
    for _ in range(300):
        found = spearman(rng.normal(size=25), rng.normal(size=25))
        covered += found.low <= 0 <= found.high
    assert 275 <= covered <= 297
    with pytest.raises(ValueError, match="at least 4; got 3 and 3"):
        spearman(np.arange(3), np.arange(3))


def test_the_strongest_of_ways_and_guesses_is_corrected_for_the_choice() -> None:
    attack: Any = SimpleNamespace(name="x", errors=())
    rng = np.random.default_rng(0)
    truth = Truth(attack, THREAT_MODELS["server"], 1, None, [], ["v"], ("c",), KgeAttackOptions(), rng)
    ways = {"a": partial(proportion, 30, 100), "b": partial(proportion, 50, 100)}
    *_, best = truth.figures("m", "v", ways, {"chance": exact(0.1, 100), "names": exact(0.4, 100)})
    assert (best.by, best.compared, best.variant, best.estimate) == (
        "b",
        3,
        "strongest",
        proportion(50, 100, compared=3),
    )
    assert best.baseline == exact(0.4, 100)
    *_, best = truth.figures("m", "v", ways, {"chance": exact(0.6, 100)})
    assert (best.by, best.compared, best.estimate.value) == ("chance", 2, 0.6)
    assert best.estimate.low <= 0.6 <= best.estimate.high


def test_the_share_of_first_pairs_and_its_influence_by_hand() -> None:
    """Of six pairs the first two: one is linked. At the threshold one of two is (the second and the third)."""
    pairs = candidate_pairs(4, RNG)  # 01 02 03 12 13 23
    scores, linked = np.array([6.0, 5, 4, 3, 2, 1]), np.array([True, False, True, False, False, False])
    found = share_of_first(scores, linked, pairs, 2)
    influence = np.array([0.25, -0.25, 0, 0, 0, 0])
    by_row = np.array([0, 0.25, -0.25, 0])  # rows 0 and 3 see both or none
    assert (by_row**2).sum() - influence @ influence == 0  # less than as many independent pairs would give
    assert (found.value, found.n, found.method) == (0.5, 2, "dyadic wilson")
    assert (found.low, found.high) == (proportion(1, 2).low, proportion(1, 2).high)


def test_intervals_of_the_share_of_first_pairs_cover_where_hubs_bring_many_at_once() -> None:
    """An interval that takes the first pairs for independent ones covers too seldom."""
    rng, values, kinds = np.random.default_rng(1), [], ([], [])
    for _ in range(150):
        pairs = candidate_pairs(60, rng)
        hub, seen = (rng.normal(size=60)[[pairs.first, pairs.second]].sum(axis=0) for _ in range(2))
        linked = rng.random(len(hub)) < 1 / (1 + 9 * np.exp(-0.8 * hub))
        scores = linked + 0.4 * seen + 0.24 * hub + rng.normal(size=len(hub))
        values.append(right_of_first(scores, linked, 100) / 100)
        kinds[0].append(share_of_first(scores, linked, pairs, 100))
        kinds[1].append(proportion(100 * values[-1], 100))
    dyadic, plain = (np.mean([one.low <= np.mean(values) <= one.high for one in kind]) for kind in kinds)
    assert dyadic > 0.89
    assert plain < 0.86
