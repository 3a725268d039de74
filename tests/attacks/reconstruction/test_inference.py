"""The reconstruction attack: a planted signal is found, shuffled embeddings give chance, formulas agree with loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fkgsec import KgeModel
from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView, VictimView
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.reconstruction.inference import (
    best_relations,
    expected_pairs,
    infer_entities,
    infer_entities_nearest,
    infer_relation_rows,
    infer_relations,
    nothing_to_attack,
    rank_pairs,
)
from fkgsec.attacks.registry import build_view
from fkgsec.attacks.view import ALL, View
from fkgsec.kge.models import MODELS, ModelName
from tests.attacks.pairs import reconstruct

NUM_RELATIONS = 5  # of `conftest._planted`
HALF_RANGE = 12 / 8  # gamma + epsilon over the dimension of `view_with`


def complex_rows(rows: np.ndarray) -> np.ndarray:
    half = rows.shape[-1] // 2
    return rows[..., :half] + 1j * rows[..., half:]


def naive_score(model: ModelName, h: np.ndarray, r: np.ndarray, t: np.ndarray) -> float:
    """One triple by the formulas of fedr.txt Table 6."""
    if model == "transe":
        return 10 - float(np.abs(h + r - t).sum())
    if model == "distmult":
        return float((h * r * t).sum())
    h, t = complex_rows(h), complex_rows(t)
    if model == "complex":
        return float((h * complex_rows(r) * t.conj()).sum().real)
    return 10 - float(np.abs(h * np.exp(1j * np.pi * r / HALF_RANGE) - t).sum())


def naive_best_relation(model: ModelName, h: np.ndarray, relations: np.ndarray, t: np.ndarray, by: str) -> int:
    """Step 2 and 3 of fedr.txt 3.1: r' = argmax f(h, r, t), then the known relation with the largest cosine to it."""
    if by == "score":
        return int(np.argmax([naive_score(model, h, r, t) for r in relations]))
    if model in ("transe", "distmult"):
        best, known = t - h if model == "transe" else h * t, relations
    else:
        best = complex_rows(h).conj() * complex_rows(t)
        known = complex_rows(relations) if model == "complex" else np.exp(1j * np.pi * relations / HALF_RANGE)
        best = best / np.abs(best) if model == "rotate" else best
    return int(np.argmax([(best.conj() @ r).real / np.linalg.norm(best) / np.linalg.norm(r) for r in known]))


def view_with(model: ModelName, num_entities: int = 7, num_relations: int = 4) -> tuple[View, VictimView]:
    """A view of random rows, dimension 8."""
    kge, rng = KgeModel(model, 8), torch.Generator().manual_seed(3)

    def rows(count: int, width: int) -> torch.Tensor:
        return torch.randn(count, width, generator=rng)

    colluder = ColluderKnowledge(
        np.array([f"e{i}" for i in range(5)]),
        rows(5, kge.entity_width),
        rows(5, kge.entity_width),
        np.array([f"r{i}" for i in range(num_relations)]),
        rows(num_relations, kge.relation_width),
        np.array([(0, 0, 1)]),
    )
    victim = VictimView("victim", rows(num_entities, kge.entity_width), rows(3, kge.relation_width), None, "uploaded")
    view = KgeView(
        threat_model=THREAT_MODELS["collusion"], model=kge, round=1, leak=1.0, colluder=colluder, victims=(victim,)
    )
    return view, victim


class TestAgainstLoops:
    @pytest.mark.parametrize("by", ["cosine", "score"])
    @pytest.mark.parametrize("model", MODELS)
    def test_best_relation_of_each_pair(self, monkeypatch: pytest.MonkeyPatch, model: ModelName, by) -> None:
        view, victim = view_with(model)
        pairs = np.array([(h, t) for h in range(7) for t in range(7) if h != t])
        rows, relations = victim.entities.double().numpy(), view.colluder.relations.double().numpy()
        expected = [naive_best_relation(model, rows[h], relations, rows[t], by) for h, t in pairs]
        guesses = infer_relations(view, victim, pairs, by)
        assert guesses.tolist() == [f"r{place}" for place in expected]
        assert len(set(expected)) == 4  # else a constant answer would do
        monkeypatch.setattr("fkgsec.attacks.reconstruction.inference.PAIRS_AT_ONCE", 1)
        assert infer_relations(view, victim, pairs, by).tolist() == guesses.tolist()

    @pytest.mark.parametrize("by", ["cosine", "score"])
    def test_no_pairs_give_no_relations(self, by) -> None:
        view, victim = view_with("transe")
        assert len(infer_relations(view, victim, np.zeros((0, 2), dtype=np.int64), by)) == 0

    @pytest.mark.parametrize("model", MODELS)
    def test_pairs_are_ranked_by_the_relation_that_fits_best(self, model: ModelName) -> None:
        view, victim = view_with(model)
        rows, relations = victim.entities.double().numpy(), view.colluder.relations.double().numpy()
        heads = np.array([1, 4, 6])
        ranking = rank_pairs(view, victim, heads)
        assert ranking.scores.shape == ranking.relations.shape == (3, 7)
        for place, head in enumerate(heads):
            for tail in range(7):
                if head == tail:
                    assert ranking.scores[place, tail] == -np.inf
                    continue
                scores = [naive_score(model, rows[head], r, rows[tail]) for r in relations]
                assert ranking.scores[place, tail] == pytest.approx(max(scores), abs=1e-4)
                assert ranking.relations[place, tail] == f"r{np.argmax(scores)}"

    @pytest.mark.parametrize("model", MODELS)
    def test_relation_rows_by_cosine_of_what_they_do(self, model: ModelName) -> None:
        view, victim = view_with(model)
        known = view.colluder.relations.double().numpy()
        sent = victim.relations.double().numpy()
        if model == "rotate":  # phases that differ by a whole turn are the same relation
            known, sent = (np.exp(1j * np.pi * rows / HALF_RANGE) for rows in (known, sent))
        expected = [
            int(np.argmax([(r.conj() @ k).real / np.linalg.norm(r) / np.linalg.norm(k) for k in known])) for r in sent
        ]
        assert infer_relation_rows(view, victim).tolist() == [f"r{place}" for place in expected]

    def test_a_phase_and_its_whole_turn_are_one_relation(self) -> None:
        view, victim = view_with("rotate")
        turned = view.colluder.relations[[2, 0]] + 2 * HALF_RANGE
        assert infer_relation_rows(view, replace(victim, relations=turned)).tolist() == ["r2", "r0"]

    def test_score_takes_the_length_of_a_relation_into_account_and_cosine_does_not(self) -> None:
        model, zero = KgeModel("transe", 2), torch.zeros(1, 2)
        relations, tail = torch.tensor([[10.0, 0.1], [1.0, 0.2]]), torch.tensor([[1.0, 0.0]])
        assert best_relations(model, relations, zero, tail, "cosine").tolist() == [0]
        assert best_relations(model, relations, zero, tail, "score").tolist() == [1]

    def test_names_that_are_known_are_read(self) -> None:
        view, victim = view_with("transe")
        names = np.array([f"x{i}" for i in range(7)])
        guesses = infer_entities(view, replace(victim, entity_names=names))
        assert (guesses.names.tolist(), guesses.cosines.tolist()) == (names.tolist(), [1.0] * 7)

    @pytest.mark.parametrize("broadcast_is_nearer", [True, False])
    def test_the_nearer_of_own_and_broadcast_rows_names(self, *, broadcast_is_nearer: bool) -> None:
        view, victim = view_with("transe")
        colluder, noise = view.colluder, torch.Generator().manual_seed(5)
        near, far = (
            victim.entities[:5] + size * torch.randn(5, colluder.entities.shape[1], generator=noise)
            for size in (0.01, 3.0)
        )
        own, broadcast = (far, near) if broadcast_is_nearer else (near, far)
        view = replace(view, colluder=replace(colluder, entities=own, shared_entities=broadcast))
        found = infer_entities_nearest(view, victim).names[:5].tolist()
        assert found == [f"e{place}" for place in range(5)]
        assert (infer_entities(view, victim).names[:5].tolist() == found) == (not broadcast_is_nearer)
        known = replace(victim, entity_names=np.array([f"x{place}" for place in range(7)]))
        assert infer_entities_nearest(view, known).names.tolist() == known.entity_names.tolist()

    @pytest.mark.parametrize(
        ("linked", "candidates", "expected"),
        [(0, 1000, 1), (1, 1000, 40), (3, 1000, 120), (3, 5, 1), (5, 0, 0)],
    )
    def test_claims_follow_the_colluders_density(self, linked: int, candidates: int, expected: int) -> None:
        """Of 25 ordered pairs of its 5 entities the colluder links so many; ends that were not leaked do not count."""
        view, _ = view_with("transe")
        triples = np.array([(0, 0, -1), (-1, 1, 2)] + [(0, r, 1 + i % 4) for i in range(linked) for r in (0, 1)])
        colluder = replace(view.colluder, triples=triples)
        distinct = min(linked, 4)
        assert colluder.pair_density == distinct / 25
        if linked != 5:
            assert expected_pairs(colluder, candidates) == expected
        assert expected_pairs(colluder, 0) == 0


class TestNothingToAttack:
    def test_reasons(self) -> None:
        view, victim = view_with("transe")
        assert nothing_to_attack(view, victim) is None
        assert "without a colluder" in nothing_to_attack(replace(view, colluder=None), victim)
        assert "only relation embeddings" in nothing_to_attack(view, replace(victim, entities=None))
        assert "no embedding" in nothing_to_attack(view, replace(victim, entities=None, relations=None))


class TestPlanted:
    """`conftest._planted`: what is shared is the same up to noise, and tail = head acted on by relation."""

    @staticmethod
    def expected(result, leak: float) -> dict[str, tuple[float, float]]:
        """ERR and TRR of each victim when embeddings tell all: what both hold, among what was leaked."""
        graph = result.graph
        known = build_view(result, THREAT_MODELS["collusion"], colluder="colluder", leak=leak, seed=0).colluder
        entities, relations = set(known.entity_names), set(known.relation_names)
        figures = {}
        for client in graph.clients[1:]:
            named = [
                (graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in client.to_global(client.train)
            ]
            held = {name for h, _, t in named for name in (h, t)}
            rebuilt = [h in entities and r in relations and t in entities for h, r, t in named]
            figures[client.name] = (len(held & entities) / len(held), sum(rebuilt) / len(named))
        return figures

    @pytest.mark.planted(
        "reconstruction",
        "rows within .001 of the colluder's: every entity and triple that the leak allows",
        {"err": 36, "trr": 30},
    )
    @pytest.mark.parametrize("leak", [0.5, 1.0])
    @pytest.mark.parametrize("inference", ["cosine", "score"])
    @pytest.mark.parametrize("model", MODELS)
    def test_is_found_from_shared_entities(self, planted, model: ModelName, inference, leak: float) -> None:
        result = planted(model)
        expected = self.expected(result, leak)
        rows, _ = reconstruct(
            result, KgeAttackOptions(threat=("collusion",), leak=(leak,), inference=inference, unlinked_heads=0)
        )
        assert 0 < min(err for err, _ in expected.values()) < max(err for err, _ in expected.values()) < 1
        for row in rows:
            if row.victim != ALL:
                assert row.variant in (inference, "strongest")
                assert (row.err.estimate.value, row.trr.estimate.value) == pytest.approx(expected[row.victim])
                assert row.err.advantage > 0.15

    @pytest.mark.parametrize("model", MODELS)
    def test_is_found_from_shared_relations_and_assumed_entities(self, planted, model: ModelName) -> None:
        result = planted(model, "fedr")
        expected = self.expected(result, 1.0)
        rows, _ = reconstruct(
            result, KgeAttackOptions(threat=("collusion+entities",), leak=(1.0,), inference="cosine", unlinked_heads=0)
        )
        for row in rows:
            if row.victim != ALL and row.variant == "cosine":
                assert (row.err.estimate.value, row.trr.estimate.value) == pytest.approx(expected[row.victim])

    @pytest.mark.parametrize("model", ["transe", "rotate", "complex"])
    def test_linked_pairs_are_found_without_being_told(self, planted, model: ModelName) -> None:
        """Names given, triples of known relations rank first. (DistMult cannot tell a triple from its reverse.)"""
        options = KgeAttackOptions(threat=("identifiers",), leak=(1.0,), unlinked_heads=10**6)
        rows, _ = reconstruct(planted(model), options)
        for row in rows:
            if row.unlinked:
                assert row.unlinked["precision"].counts["heads"] == row.err.estimate.n
                assert row.unlinked["precision"].counts["pairs"] == row.err.estimate.n * (row.err.estimate.n - 1)
                assert row.unlinked["average_precision"].estimate.value == pytest.approx(
                    (NUM_RELATIONS - 1) / NUM_RELATIONS
                )
                assert row.unlinked["average_precision"].estimate.low > 0.7
                reachable = row.trr.estimate.n * (NUM_RELATIONS - 1) // NUM_RELATIONS
                found = min(reachable, row.unlinked["precision"].estimate.n)
                assert row.unlinked["precision"].estimate.value == pytest.approx(
                    found / row.unlinked["precision"].estimate.n
                )
                assert row.unlinked["recall"].estimate.value == pytest.approx(found / row.trr.estimate.n)
                assert row.unlinked["precision"].baseline.value < 0.01
                assert row.unlinked["recall"].baseline.value < 0.01

    @pytest.mark.null("reconstruction", "shuffled rows, 15 draws: as many entities as guessing")
    @pytest.mark.parametrize("model", MODELS)
    def test_shuffled_rows_give_chance(self, planted, model: ModelName) -> None:
        """Over many shuffles the number of right entities is that of the baseline, and so it is for triples."""
        options = KgeAttackOptions(threat=("collusion",), leak=(1.0,), inference="cosine", unlinked_heads=0)
        runs = (planted(model, shuffled=True, clusters=18, seed=seed) for seed in range(15))
        pooled = [reconstruct(run, options)[0][2] for run in runs]
        assert {(row.victim, row.variant) for row in pooled} == {(ALL, "cosine")}
        right, chance = (
            sum(getattr(row.err, name).value * row.err.estimate.n for row in pooled)
            for name in ("estimate", "baseline")
        )
        assert abs(right - chance) < 3.5 * chance**0.5
        assert chance > 10  # else the test could not fail
        assert (
            np.mean(
                [row.trr.estimate.low <= row.trr.guesses["majority"].value <= row.trr.estimate.high for row in pooled]
            )
            >= 0.9
        )

    def test_the_relation_must_be_right_too(self, planted) -> None:
        """With the colluder's relation rows turned round, entities are still right and triples are not."""
        result = planted("transe")
        colluder, *victims = result.trained
        turned = replace(result, trained=[replace(colluder, relations=colluder.relations.roll(1, 0)), *victims])
        options = KgeAttackOptions(threat=("collusion",), leak=(1.0,), inference="cosine", unlinked_heads=0)
        before, after = (reconstruct(run, options)[0][2] for run in (result, turned))
        assert (after.victim, after.variant) == (ALL, "cosine")
        assert (after.err.estimate, after.trr.estimate.value) == (before.err.estimate, 0)
        assert before.trr.estimate.value > 0.4
