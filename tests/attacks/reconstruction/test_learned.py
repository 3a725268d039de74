"""Relations learnt from the colluder's own pairs: planted and real signals, shuffled labels, little to learn from, much."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPClassifier

from fkgsec import KgeModel, KgeOptions, generate_consortium, load_dataset, partition
from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView, VictimView
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.reconstruction import learned
from fkgsec.attacks.reconstruction.leakage import INFERENCES
from fkgsec.attacks.reconstruction.learned import SoftmaxRegression, learn_relations
from fkgsec.attacks.reconstruction.relation_guesses import RelationGuesser
from fkgsec.attacks.registry import build_view
from fkgsec.attacks.view import ALL
from fkgsec.federation.loop import run_federation
from fkgsec.kge.models import ModelName
from fkgsec.kge.result import KgeResult
from tests.attacks.pairs import Pair, reconstruct

MODELS: tuple[ModelName, ...] = ("transe", "rotate", "distmult", "complex")


def knowledge(triples: np.ndarray, entities: torch.Tensor, num_relations: int) -> ColluderKnowledge:
    names = np.array([f"e{number}" for number in range(len(entities))], dtype=object)
    relations = np.array([f"r{number}" for number in range(num_relations)], dtype=object)
    return ColluderKnowledge(
        names, entities, entities, relations, torch.zeros(num_relations, entities.shape[1]), triples
    )


def collusion(known: ColluderKnowledge, victim: VictimView) -> KgeView:
    return KgeView(
        threat_model=THREAT_MODELS["collusion"], model=KgeModel("transe", 4), round=0, colluder=known, victims=(victim,)
    )


def typed_triples(count: int, num_relations: int, seed: int = 0) -> tuple[np.ndarray, torch.Tensor]:
    """Entities of types, told by their rows; the types of head and tail fix the relation."""
    rng = np.random.default_rng(seed)
    num_types = max(2, int(np.ceil(num_relations**0.5)))
    types = rng.integers(0, num_types, 400)
    centres = rng.normal(size=(num_types, 16))
    rows = torch.from_numpy(centres[types] + 0.1 * rng.normal(size=(400, 16))).float()
    ends = rng.integers(0, 400, (count, 2))
    relations = (types[ends[:, 0]] * num_types + types[ends[:, 1]]) % num_relations
    return np.stack([ends[:, 0], relations, ends[:, 1]], axis=1), rows


def share_right(triples: np.ndarray, rows: torch.Tensor, train: np.ndarray, num_relations: int) -> float:
    known = knowledge(train, rows, num_relations)
    learner = learn_relations(KgeModel("transe", 16), known, 0)
    guesses = learner.predict(rows[triples[:, 0]], rows[triples[:, 2]])
    return float((guesses == known.relation_names[triples[:, 1]]).mean())


def of_all(rows: list[Pair]) -> dict[str, Pair]:
    return {row.variant: row for row in rows if row.victim == ALL}


class TestLearner:
    def test_finds_what_rows_tell_and_shuffled_labels_give_chance(self) -> None:
        triples, rows = typed_triples(3000, 9)
        train, unseen = triples[:2000], triples[2000:]
        assert share_right(unseen, rows, train, 9) > 0.95
        shuffled = train.copy()
        shuffled[:, 1] = np.random.default_rng(1).permutation(train[:, 1])
        most = np.bincount(unseen[:, 1]).max() / len(unseen)
        assert share_right(unseen, rows, shuffled, 9) < most + 0.05

    def test_log_posterior_is_a_distribution_whose_best_is_the_prediction(self) -> None:
        triples, rows = typed_triples(800, 4)
        triples = triples[triples[:, 1] != 2]
        learner = learn_relations(KgeModel("transe", 16), knowledge(triples, rows, 4), 0)
        found = learner.log_posterior(rows[:50], rows[50:100])
        np.testing.assert_allclose(np.exp(found[:, [0, 1, 3]]).sum(axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(found[:, 2], -np.log(len(triples) + 4), rtol=1e-6)  # seen in no triple
        best = learner.relation_names[found.argmax(axis=1)]
        assert learner.predict(rows[:50], rows[50:100]).tolist() == best.tolist()

    def test_gives_the_same_again_and_another_seed_other_weights(self) -> None:
        triples, rows = typed_triples(500, 4)
        first, again, other = (
            learn_relations(KgeModel("transe", 16), knowledge(triples, rows, 4), seed) for seed in (0, 0, 1)
        )
        assert (first.classifier.weights == again.classifier.weights).all()
        assert (first.classifier.weights != other.classifier.weights).any()

    @pytest.mark.parametrize("num_classes", [2, 5])
    def test_weights_are_those_of_scikit_learn(self, num_classes: int) -> None:
        rng = np.random.default_rng(0)
        features = rng.normal(size=(450, 6)).astype(np.float32)
        labels = rng.integers(num_classes, size=450) * 3
        reference = MLPClassifier((), batch_size=200, alpha=30 * 200 / 450, learning_rate_init=3e-3, random_state=7)
        for _ in range(3):
            reference.partial_fit(features, labels, classes=np.unique(labels))
        found = SoftmaxRegression.fit(features, labels, num_passes=3, seed=7)
        np.testing.assert_allclose(found.weights, reference.coefs_[0], rtol=1e-5)
        np.testing.assert_allclose(found.probabilities(features), reference.predict_proba(features), rtol=1e-4)

    @pytest.mark.parametrize(
        ("triples", "note", "guess"),
        [
            ([(0, 1, -1), (-1, 1, 2), (3, 0, -1)], "no triple between leaked entities", "r1"),
            ([(0, 1, 2), (1, 1, 2), (3, 1, 0)], "one relation between leaked entities", "r1"),
        ],
    )
    def test_without_two_relations_it_says_so_and_takes_the_majority(self, triples, note: str, guess: str) -> None:
        rows = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
        learner = learn_relations(KgeModel("transe", 16), knowledge(np.array(triples), rows, 2), 0)
        assert note in learner.note
        assert learner.predict(rows[:3], rows[2:]).tolist() == [guess] * 3
        assert learner.predict(rows[:0], rows[:0]).shape == (0,)

    def test_two_triples_are_enough_not_to_fail(self) -> None:
        rows = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
        learner = learn_relations(KgeModel("transe", 16), knowledge(np.array([(0, 0, 1), (1, 2, 3)]), rows, 3), 0)
        assert set(learner.predict(rows, rows)) <= {"r0", "r2"}

    def test_more_than_the_cap_is_subsampled_and_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(learned, "MAX_TRIPLES", 600)
        triples, rows = typed_triples(2000, 4)
        learner = learn_relations(KgeModel("transe", 16), knowledge(triples, rows, 4), 0)
        assert learner.note == "learnt from 600 of the colluder's 2,000 triples between leaked entities"
        assert share_right(triples, rows, triples, 4) > 0.95

    @pytest.mark.slow
    def test_ninety_thousand_triples_of_237_relations(self) -> None:
        triples, rows = typed_triples(90_000, 237)
        rows = torch.cat([rows] * 8, dim=1)  # dimension 128
        learner = learn_relations(KgeModel("transe", 128), knowledge(triples, rows, 237), 0)
        right = learner.predict(rows[triples[:, 0]], rows[triples[:, 2]]) == learner.relation_names[triples[:, 1]]
        assert right.mean() > 0.8


class TestPerceptron:
    """The relation is whether two columns of the head's row have one sign, which no linear classifier of the features tells."""

    def shares_right(self, *, shuffled: bool = False) -> tuple[dict[str, float], float]:
        rng = np.random.default_rng(3)
        rows = torch.from_numpy(rng.normal(size=(600, 4))).float()
        ends = rng.integers(0, 600, (1800, 2))
        relations = (rows[ends[:, 0], 0] * rows[ends[:, 0], 1] > 0).long().numpy()
        train = np.stack([ends[:1200, 0], relations[:1200], ends[:1200, 1]], axis=1)
        if shuffled:
            train[:, 1] = rng.permutation(train[:, 1])
        guesser = RelationGuesser(KgeModel("transe", 4), knowledge(train, rows, 2), 0)
        names = np.full(600, "a stranger", dtype=object)
        victim = VictimView("b", rows, None, None, "uploaded")
        guesses = guesser.guess(victim, ends[1200:], names, names, ("learned", "mlp"))
        right = {way: np.mean(names == [f"r{kind}" for kind in relations[1200:]]) for way, names in guesses.items()}
        return right, float(np.bincount(relations[1200:]).max() / 600)

    def test_finds_what_a_linear_classifier_cannot(self) -> None:
        right, _ = self.shares_right()
        assert right["learned"] < 0.6
        assert right["mlp"] > 0.9

    def test_shuffled_labels_give_chance(self) -> None:
        right, most = self.shares_right(shuffled=True)
        assert right["mlp"] < most + 0.07

    def test_gives_the_same_again_and_another_seed_other_weights(self) -> None:
        triples, rows = typed_triples(300, 4)
        first, again, other = (
            learn_relations(KgeModel("transe", 16), knowledge(triples, rows, 4), seed, "mlp").log_posterior(rows, rows)
            for seed in (0, 0, 1)
        )
        assert (first == again).all()
        assert (first != other).any()

    def test_two_triples_are_enough_and_one_relation_gives_the_majority(self) -> None:
        rows = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
        model = KgeModel("transe", 16)
        learner = learn_relations(model, knowledge(np.array([(0, 0, 1), (1, 2, 3)]), rows, 3), 0, "mlp")
        assert set(learner.predict(rows, rows)) <= {"r0", "r2"}
        learner = learn_relations(model, knowledge(np.array([(0, 1, 2), (1, 1, 2)]), rows, 2), 0, "mlp")
        assert learner.predict(rows[:3], rows[2:]).tolist() == ["r1"] * 3


class TestCombined:
    """The head's row tells one half of the relation and the tail's name the other; rows of tails and names of heads are noise."""

    def guesses(self, *, shuffled: bool = False) -> tuple[dict[str, float], np.ndarray]:
        rng = np.random.default_rng(2)
        types, bits = rng.integers(0, 2, 400), rng.integers(0, 2, 400)
        rows = torch.from_numpy(rng.normal(size=(400, 4)) + 4 * types[:, None]).float()
        rows[200:] = torch.from_numpy(rng.normal(size=(200, 4))).float()  # heads are the first half, tails the second
        ends = np.stack([rng.integers(0, 200, 3000), rng.integers(200, 400, 3000)], axis=1)
        relations = 2 * types[ends[:, 0]] + bits[ends[:, 1]]
        train = np.stack([ends[:2000, 0], relations[:2000], ends[:2000, 1]], axis=1)
        if shuffled:
            train[:, 1] = rng.permutation(train[:, 1])
        known = knowledge(train, rows, 4)
        victim = VictimView("b", rows, None, None, "uploaded")
        view = collusion(known, victim)
        heads = np.full(1000, "a stranger", dtype=object)
        found = RelationGuesser(view.model, known, 0).guess(
            victim, ends[2000:], heads, known.entity_names[ends[2000:, 1]], ("names", "learned", "combined")
        )
        true = known.relation_names[relations[2000:]]
        return {by: float((one == true).mean()) for by, one in found.items()}, true

    def test_rows_and_names_together_say_more_than_either(self) -> None:
        right, _ = self.guesses()
        assert max(right["names"], right["learned"]) < 0.65
        assert right["combined"] > 0.95

    def test_shuffled_labels_give_chance(self) -> None:
        right, true = self.guesses(shuffled=True)
        most = max(float((true == name).mean()) for name in set(true))
        assert max(right.values()) < most + 0.05

    def test_where_nothing_was_learnt_names_decide(self) -> None:
        rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
        known = knowledge(
            np.array([(0, 0, -1), (0, 0, -1), (1, 0, -1), (3, 0, -1), (-1, 1, 2), (-1, 1, 2), (-1, 1, 4)]), rows, 2
        )
        victim = VictimView("b", rows, None, None, "uploaded")
        view = collusion(known, victim)
        names, pairs = known.entity_names, np.array([(0, 1), (3, 2)])
        heads = np.array(["e0", "a stranger"], dtype=object)
        found = RelationGuesser(view.model, known, 0).guess(
            victim, pairs, heads, names[[1, 2]], ("names", "learned", "combined")
        )
        assert found["learned"].tolist() == ["r0", "r0"]
        assert found["combined"].tolist() == found["names"].tolist() == ["r0", "r1"]
        empty = RelationGuesser(view.model, known, 0).guess(victim, pairs[:0], names[:0], names[:0], ("combined",))
        assert empty["combined"].shape == (0,)


class TestOnFederations:
    @pytest.mark.parametrize("model", MODELS)
    def test_a_planted_signal_is_found(self, planted, model: ModelName) -> None:
        rows, _ = reconstruct(
            planted(model, clusters=60), KgeAttackOptions(threat=("collusion",), leak=(1.0,), unlinked_heads=0)
        )
        found = of_all(rows)
        assert found["learned"].trr.estimate.value > 0.8 * found["cosine"].trr.estimate.value > 0.3
        assert found["strongest"].trr.estimate.value >= found["learned"].trr.estimate.value

    def test_the_perceptron_stands_beside_the_other_ways_where_it_is_named(self, planted) -> None:
        options = KgeAttackOptions(threat=("collusion",), leak=(1.0,), inference=("cosine", "mlp"), unlinked_heads=0)
        found = of_all(reconstruct(planted("transe", clusters=60), options)[0])
        assert set(found) == {"cosine", "mlp", "strongest"}
        assert found["mlp"].trr.estimate.value > 0.8 * found["cosine"].trr.estimate.value > 0.3
        assert found["strongest"].trr.compared == 4

    def test_it_is_right_where_the_colluders_relation_rows_say_nothing(self, planted) -> None:
        """Relation rows turned round: comparing with them fails, what was learnt from entity rows stands."""
        result: KgeResult = planted("transe", clusters=60)
        colluder, *victims = result.trained
        turned = replace(result, trained=[replace(colluder, relations=colluder.relations.roll(1, 0)), *victims])
        rows, _ = reconstruct(turned, KgeAttackOptions(threat=("collusion",), leak=(1.0,), unlinked_heads=0))
        found = of_all(rows)
        assert found["cosine"].trr.estimate.value == 0
        assert found["strongest"].trr.by in ("learned", "names")
        assert found["learned"].trr.estimate.value > 0.3

    def test_a_tiny_leak_has_a_remark(self, trained_runs) -> None:
        rows, _ = reconstruct(trained_runs["fede"], KgeAttackOptions(threat=("collusion",), leak=(1e-6,)))
        remarks = {row.trr.remark for row in rows if row.variant == "learned"}
        assert all("learned: the colluder knows no triple between leaked entities" in remark for remark in remarks)

    @pytest.mark.parametrize("leak", [0.3, 1.0])
    def test_it_knows_no_more_than_the_colluder_hands_over(self, trained_runs, leak: float) -> None:
        """Fitted on the view's colluder alone, it gives the very guesses that the attack's items hold."""
        result = trained_runs["fede"]
        view = build_view(result, THREAT_MODELS["collusion"], colluder=result.graph.clients[0].name, leak=leak, seed=0)
        learner = learn_relations(view.model, view.colluder, 0)
        options = KgeAttackOptions(threat=("collusion",), leak=(leak,), inference="learned", unlinked_heads=0)
        _, items = reconstruct(result, options)
        for victim, client in zip(view.victims, result.graph.clients[1:], strict=True):
            own = items[(items["item"] == "triple") & (items["victim"] == victim.name)]
            ends = (victim.entities[client.train[:, end].copy()] for end in (0, 2))
            assert own["guessed_relation_learned"].tolist() == learner.predict(*ends).tolist()


FOUND_BY_AN_AUDIT = {"transe": 0.5935, "rotate": 0.5645, "distmult": 0.5755, "complex": 0.5530}
"""TRR of both victims together that a multilayer perceptron got on UMLS from the same view, in trainings of its own."""


@pytest.mark.slow
@pytest.mark.skipif("FKGSEC_DATA" not in os.environ, reason="needs UMLS")
@pytest.mark.parametrize("model", MODELS)
def test_umls_is_rebuilt_as_well_as_by_an_independent_attack(model: ModelName) -> None:
    graph = partition(load_dataset("UMLS"), "triples", 3, 0)
    options = KgeOptions(model=model, dim=32, rounds=30, num_negatives=32, learning_rate=0.01, patience=0, device="cpu")
    rows, _ = reconstruct(
        run_federation(graph, options),
        KgeAttackOptions(threat=("collusion", "identifiers"), leak=(1.0,), unlinked_heads=0),
    )
    for threat in ("collusion", "identifiers"):
        found = of_all([row for row in rows if row.threat_model == threat])
        print(model, threat, {name: round(row.trr.estimate.value, 4) for name, row in found.items()})
        assert found["strongest"].trr.estimate.value > FOUND_BY_AN_AUDIT[model] - 0.03
        assert found["strongest"].trr.estimate.value > found["cosine"].trr.estimate.value + 0.15
        assert found["strongest"].trr.estimate.value >= max(
            found["names"].trr.guesses["prior"].value, found["names"].trr.guesses["majority"].value
        )


@pytest.mark.slow
def test_on_the_embedded_hospitals_rows_and_names_together_beat_either() -> None:
    options = KgeOptions(dim=32, rounds=20, num_negatives=32, learning_rate=0.01, patience=0, device="cpu")
    result = run_federation(generate_consortium(clients=3, size=3000, seed=0), options)
    rows, _ = reconstruct(result, KgeAttackOptions(threat=("identifiers",), leak=(1.0,), unlinked_heads=0))
    found = of_all(rows)
    print({name: round(row.trr.estimate.value, 4) for name, row in found.items()})
    assert (
        found["combined"].trr.estimate.value
        > max(found["learned"].trr.estimate.value, found["names"].trr.estimate.value) + 0.03
    )
    assert (found["strongest"].trr.by, found["strongest"].trr.compared) == ("combined", len(INFERENCES) + 2)
