"""What is asked of a victim's triples: nothing that was told, and controls that nobody trained on."""

from __future__ import annotations

import numpy as np
import pytest

from fkgsec.attacks import ATTACKS, Truth
from fkgsec.attacks.membership.audits import contains
from fkgsec.attacks.membership.figures import estimate_auc, placements
from fkgsec.attacks.membership.intervals import dyadic_tpr
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.uploads.questions import TPR, draw_questions, named, question_figures
from fkgsec.estimate import proportion


def truth_of(result) -> Truth:
    model, victims = THREAT_MODELS["server+triples"], ["hospital-2", "hospital-3"]
    rng = np.random.default_rng(0)
    who, options = ("hospital-1",), KgeAttackOptions()
    return Truth(ATTACKS["server-aux"], model, result.best_round, 1.0, [result], victims, who, options, rng)


def all_known(triples: np.ndarray) -> np.ndarray:
    return np.ones(len(triples), dtype=bool)


def test_members_were_trained_on_and_others_by_nobody(federate) -> None:
    truth = truth_of(federate())
    client = truth.client("hospital-2")
    told = client.train[:40]
    asked = draw_questions(truth, "hospital-2", all_known, np.random.default_rng(1), told)
    assert asked.reason is None
    assert len(asked.members) == len(asked.unseen) >= 2
    for triples in (asked.members, asked.trained):
        assert contains(client.train, triples).all()
        assert not contains(told, triples).any()
    assert contains(client.test, asked.unseen).all()
    everybody = np.concatenate([one.to_global(one.train) for one in truth.graph.clients])
    assert not contains(everybody, client.to_global(asked.unseen)).any()
    linked = {tuple(pair) for one in truth.graph.clients for pair in one.to_global(one.triples)[:, [0, 2]]}
    pairs = client.to_global(asked.random)[:, [0, 2]]
    assert len(pairs) > 100
    assert not any((head, tail) in linked or (tail, head) in linked or head == tail for head, tail in pairs)


def test_what_is_not_known_is_not_asked(federate) -> None:
    truth = truth_of(federate())
    asked = draw_questions(truth, "hospital-2", lambda triples: triples[:, 1] == 0, np.random.default_rng(1))
    for triples in asked[:4]:
        assert set(triples[:, 1]) <= {0}
    nothing = draw_questions(truth, "hospital-2", lambda triples: triples[:, 0] < 0, np.random.default_rng(1))
    assert nothing.reason == "0 trained triples and 0 others can be asked about; it takes 2 of each"
    figures = question_figures(truth, "hospital-2", nothing, {"any": len}, {})
    assert {one.metric for one in figures} == set(ATTACKS["server-aux"].metrics)
    assert all(one.reason for one in figures)


def test_a_scorer_that_knows_and_one_that_guesses(federate) -> None:
    truth, rng = truth_of(federate()), np.random.default_rng(2)
    asked = draw_questions(truth, "hospital-2", all_known, rng)
    trained = {tuple(triple) for triple in named(truth, "hospital-2", truth.client("hospital-2").train)}

    def knowing(triples: np.ndarray) -> np.ndarray:
        return np.array([float(tuple(triple) in trained) for triple in triples])

    def guessing(triples: np.ndarray) -> np.ndarray:
        return rng.random(len(triples))

    for scorer, low, high in ((knowing, 1.0, 1.0), (guessing, 0.3, 0.7)):
        found = {
            one.metric: one for one in question_figures(truth, "hospital-2", asked, {"way": scorer}, {"g": guessing})
        }
        assert low <= found["auc"].estimate.value <= high
        assert low <= found["auc_pairs"].estimate.value <= high
        few = found["tpr@0.001"]
        assert few.reason == f"0.1% false alarms take 1,000 others; {len(asked.unseen)} can be asked about"
        pairs = found["tpr@0.01_pairs"]
        assert pairs.estimate.value == pytest.approx(1.0) if scorer is knowing else pairs.estimate.value < 0.05
        assert found["auc"].guesses["chance"].value == 0.5
    assert list(TPR.values()) == ["tpr@0.01", "tpr@0.001"]


def test_triples_that_share_an_entity_count_as_what_varies_together(federate) -> None:
    """Scored by their entities: the interval goes by the naive sum over triples that share one, and is wider than of as many
    independent ones."""
    truth, rng = truth_of(federate()), np.random.default_rng(4)
    asked = draw_questions(truth, "hospital-2", all_known, rng)
    liked = dict(zip(truth.graph.entities, rng.normal(size=len(truth.graph.entities)), strict=True))

    def score(triples: np.ndarray) -> np.ndarray:
        return np.array([liked[head] + liked[tail] for head, _, tail in triples])

    figures = question_figures(truth, "hospital-2", asked, {"way": score}, {})
    found = next(one for one in figures if (one.metric, one.variant) == ("auc_pairs", "way")).estimate
    placed = placements(*(score(named(truth, "hospital-2", part)) for part in (asked.trained, asked.random)))
    auc = placed.members.mean()
    ends = np.concatenate([asked.trained, asked.random])[:, [0, 2]]
    influence = np.concatenate([(part - auc) / len(part) for part in (placed.members, placed.controls)])
    stands_in = np.zeros((len(ends), ends.max() + 1))
    stands_in[np.arange(len(ends))[:, None], ends] = 1
    variance = float(influence @ (stands_in @ stands_in.T > 0) @ influence)
    expected = estimate_auc(placed, variance, "dyadic+newcombe")
    assert (found.value, found.method) == (auc, expected.method)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    alone = estimate_auc(placed, float(influence @ influence), "")
    assert found.high - found.low > 1.2 * (alone.high - alone.low)


def test_shares_found_count_entities_and_the_threshold_too(federate) -> None:
    """Scored by their entities: TPR has the interval of dyadic data, wider than of as many independent triples."""
    truth, rng = truth_of(federate()), np.random.default_rng(4)
    asked = draw_questions(truth, "hospital-2", all_known, rng)
    liked = dict(zip(truth.graph.entities, rng.normal(size=len(truth.graph.entities)), strict=True))
    trained = {tuple(triple) for triple in named(truth, "hospital-2", truth.client("hospital-2").train)}

    def score(triples: np.ndarray) -> np.ndarray:
        return np.array([liked[one[0]] + liked[one[2]] + (tuple(one) in trained) for one in triples])

    figures = question_figures(truth, "hospital-2", asked, {"way": score, "other": score}, {})
    found = {one.variant: one.estimate for one in figures if one.metric == "tpr@0.01_pairs"}
    scores = [score(named(truth, "hospital-2", part)) for part in (asked.trained, asked.random)]
    ends = np.concatenate([asked.trained, asked.random])[:, [0, 2]]
    assert found["way"] == dyadic_tpr(*scores, ends, 0.01)
    assert found["strongest"] == dyadic_tpr(*scores, ends, 0.01, compared=2)
    alone = proportion(found["way"].value * len(asked.trained), len(asked.trained))
    assert found["way"].high - found["way"].low > 1.2 * (alone.high - alone.low)
