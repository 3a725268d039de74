"""Links learnt from the colluder's own pairs: a planted signal, shuffled truth, rows that never crossed, little to learn from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fkgsec import KgeModel
from fkgsec.attacks.figure import Figure, headline
from fkgsec.attacks.kge.view import ColluderKnowledge
from fkgsec.attacks.options import KgeAttackOptions
from fkgsec.attacks.reconstruction.learned import learn_relations
from fkgsec.attacks.registry import run_attacks
from fkgsec.attacks.uploads.links import MAX_LINKED, LinkLearner, learn_links
from fkgsec.estimate import at_level, mean, proportion

MODEL = KgeModel("transe", 8)
COUNT = 120


def typed(seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Rows of four types, and triples that link each row to half of those of the next type, by a relation for each type."""
    rng = np.random.default_rng(seed)
    types = np.arange(COUNT) % 4
    rows = torch.from_numpy(np.eye(4)[types].repeat(2, axis=1) * 3 + rng.normal(size=(COUNT, 8))).float()
    ends = [(h, t) for h in range(COUNT) for t in range(COUNT) if types[t] == (types[h] + 1) % 4 and (h + t) % 8 < 4]
    return rows, np.array([(h, types[h], t) for h, t in ends])


def knowledge(rows: torch.Tensor, triples: np.ndarray, num_relations: int = 4) -> ColluderKnowledge:
    names = np.array([f"e{number}" for number in range(len(rows))], dtype=object)
    relations = np.array([f"r{number}" for number in range(num_relations)], dtype=object)
    acting = torch.randn(num_relations, 8, generator=torch.Generator().manual_seed(3))
    return ColluderKnowledge(names, rows, rows, relations, acting, triples)


def learnt(known: ColluderKnowledge) -> LinkLearner | None:
    return learn_links(MODEL, known, learn_relations(MODEL, known, 0), 0)


def auc(learner: LinkLearner, rows: torch.Tensor, triples: np.ndarray) -> float:
    """The share of pairs of a linked pair and another that the ranking puts in the right order."""
    scores = learner.rank(rows, np.arange(len(rows))).scores
    linked = np.zeros(scores.shape, dtype=bool)
    linked[triples[:, 0], triples[:, 2]] = True
    off = ~np.eye(len(rows), dtype=bool)
    others = np.sort(scores[~linked & off])
    return float(np.searchsorted(others, scores[linked]).mean() / len(others))


class TestLearner:
    def test_finds_links_and_their_relations_among_rows_that_it_never_saw(self) -> None:
        rows, triples = typed()
        strange, linked = typed(seed=1)
        learner = learnt(knowledge(rows, triples))
        assert learner is not None
        assert auc(learner, strange, linked) > 0.85
        ranking = learner.rank(strange, np.arange(COUNT))
        right = ranking.relations[linked[:, 0], linked[:, 2]] == np.array([f"r{one}" for one in linked[:, 1]])
        assert right.mean() > 0.95
        assert np.isneginf(np.diag(ranking.scores)).all()

    def test_shuffled_truth_gives_chance(self) -> None:
        """Links drawn at random beside the rows: nothing of them is learnt that holds for others."""
        rows, triples = typed()
        shuffled = np.random.default_rng(2).permutation(COUNT)
        triples = np.stack([shuffled[triples[:, 0]], triples[:, 1], shuffled[::-1][triples[:, 2]]], axis=1)
        strange, linked = typed(seed=1)
        learner = learnt(knowledge(rows, triples))
        assert learner is not None
        assert auc(learner, strange, linked) == pytest.approx(0.5, abs=0.15)

    def test_some_heads_and_rows_that_never_crossed(self) -> None:
        rows, triples = typed()
        learner = learnt(knowledge(rows, triples))
        assert learner is not None
        partly = rows.clone()
        partly[5] = torch.nan
        found = learner.rank(partly, np.array([3, 5, 9]))
        assert found.scores.shape == found.relations.shape == (3, COUNT)
        assert np.isneginf(found.scores[1]).all()
        assert np.isneginf(found.scores[:, 5]).all()
        assert np.isfinite(found.scores[[0, 2]]).sum() == 2 * (COUNT - 2)
        assert np.isneginf(learner.rank(rows * torch.nan, np.array([3])).scores).all()

    def test_pairs_of_no_probability_that_a_float_holds_are_still_told_apart(self) -> None:
        rows, triples = typed()
        learner = learnt(knowledge(rows, triples))
        assert learner is not None
        scores = learner.rank(1000 * typed(seed=1)[0], np.arange(COUNT)).scores[~np.eye(COUNT, dtype=bool)]
        assert np.isfinite(scores).all()
        assert scores.min() < np.log(np.finfo(np.float64).tiny)
        assert len(np.unique(scores)) > 0.5 * len(scores), (len(np.unique(scores)), len(scores))

    @pytest.mark.parametrize("triples", [[(0, 1, -1)], [(0, 1, 2), (3, 1, 4)], [(0, 0, 0), (1, 1, 1)]])
    def test_where_nothing_can_be_learnt_there_is_no_ranking(self, triples: list[tuple[int, int, int]]) -> None:
        assert learnt(knowledge(typed()[0], np.array(triples))) is None

    def test_a_colluder_of_many_links_is_sampled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows, triples = typed()
        assert len(triples) < MAX_LINKED
        monkeypatch.setattr("fkgsec.attacks.uploads.links.MAX_LINKED", 200)
        monkeypatch.setattr("fkgsec.attacks.uploads.links.MAX_HEADS", 60)
        learner = learnt(knowledge(rows, triples))
        assert learner is not None
        assert auc(learner, *typed(seed=1)) > 0.8


class TestOnFederations:
    def figures(self, result, **options) -> dict[tuple[str, str, str], Figure]:
        chosen = KgeAttackOptions(attack=("reconstruction",), threat=("collusion",), leak=(1.0,), **options)
        found = run_attacks(result, chosen, leak_draws=0).figures
        return {(one.victim, one.metric, one.variant): one for one in found}

    def test_the_strongest_of_both_rankings_is_what_counts(self, trained_runs) -> None:
        found = self.figures(trained_runs["fede"])
        victims = {victim for victim, metric, _ in found if metric == "average_precision"}
        for victim in victims:
            for metric in ("precision", "recall", "average_precision"):
                ways = {way: found[victim, metric, way] for way in ("score", "learned")}
                best = found[victim, metric, "strongest"]
                assert best.estimate.value == max(one.estimate.value for one in ways.values())
                assert best.compared == 2
                assert best.estimate.high >= ways[best.by].estimate.high
        assert victims
        counted = headline(found.values())
        assert {one.variant for one in counted if one.metric == "average_precision"} == {"strongest"}

    def test_one_inference_alone_leaves_the_learned_ranking_out(self, trained_runs) -> None:
        found = self.figures(trained_runs["fede"], inference="cosine")
        ways = {variant for _, metric, variant in found if metric == "recall"}
        assert ways == {"score", "strongest"}


def test_an_interval_of_the_best_of_several() -> None:
    share, rng = proportion(30, 100), np.random.default_rng(0)
    assert at_level(share, 1) is share
    assert at_level(share, 3) == proportion(30, 100, compared=3)
    sampled = mean(rng.normal(size=50), rng)
    wider = at_level(sampled, 2)
    assert wider.value == sampled.value
    assert (sampled.value - wider.low) / (sampled.value - sampled.low) == pytest.approx(2.2414 / 1.96, rel=1e-3)
    assert at_level(sampled, 2, least=sampled.low).low == sampled.low
