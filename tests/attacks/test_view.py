"""What each adversary holds, and that it holds nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph
from fkgsec.attacks.kge.view import ColluderKnowledge, VictimView
from fkgsec.attacks.options import KGE, THREAT_MODELS, threat_models
from fkgsec.attacks.reconstruction.inference import (
    infer_entities,
    infer_entities_nearest,
    infer_relation_rows,
    infer_relations,
    rank_pairs,
)
from fkgsec.attacks.registry import build_view
from fkgsec.attacks.view import NotAttacked, View
from fkgsec.errors import ThreatModelError
from fkgsec.federation.messages import SERVER, Rows, client_party
from fkgsec.kge.models import ClientTables
from fkgsec.kge.result import KgeResult


def view_of(result: KgeResult, threat: str, *, leak: float = 1.0, seed: int = 0) -> View:
    colluder = result.graph.clients[0].name
    return build_view(result, THREAT_MODELS[threat], colluder=colluder, leak=leak, seed=seed)


def knowledge(result: KgeResult, leak: float, seed: int = 0) -> ColluderKnowledge:
    known = view_of(result, "collusion", leak=leak, seed=seed).colluder
    assert known is not None
    return known


OF_MESSAGES = [name for name, model in threat_models(KGE).items() if model.server and not model.auxiliary]


@pytest.mark.parametrize("algorithm", ["fede", "fedr", "single"])
def test_whoever_holds_the_models_has_these_alone_and_of_every_client(planted, algorithm: str) -> None:
    result = planted(algorithm=algorithm)
    view = view_of(result, "models")
    assert [victim.name for victim in view.victims] == [client.name for client in result.graph.clients]
    assert (view.colluder, view.secure) == (None, {})
    for victim, tables, trained in zip(view.victims, result.tables, result.trained, strict=True):
        assert (victim.entities, victim.relations, victim.entity_names, victim.claims) == (None, None, None, {})
        assert set(victim.models) == ({"local"} if algorithm == "single" else {"local", "global"})
        assert victim.models["local"].tables is (tables if algorithm == "single" else trained)


class TestWhatIsSeen:
    """Each threat model, for shared entities (FedE), shared relations (FedR) and no exchange at all."""

    @pytest.mark.parametrize("algorithm", ["fede", "fedr", "single"])
    @pytest.mark.parametrize("threat", OF_MESSAGES)
    def test_contains_exactly_what_the_threat_model_says(self, planted, threat: str, algorithm: str) -> None:
        model, view = THREAT_MODELS[threat], view_of(planted(algorithm=algorithm), threat)
        assert (view.colluder is not None) == model.colluder
        assert [victim.name for victim in view.victims] == ["victim a", "victim b"]
        for victim in view.victims:
            assert (victim.entities is not None) == (algorithm == "fede" or model.victim_entities)
            assert (victim.relations is not None) == (algorithm == "fedr")
            assert (victim.entity_names is not None) == (algorithm == "fede" and model.identifiers)
            assert victim.origin == (
                "uploaded" if algorithm == "fede" else "assumed known" if model.victim_entities else "not uploaded"
            )

    def test_uploads_are_those_of_the_best_round(self, planted) -> None:
        for algorithm, table in (("fede", "entities"), ("fedr", "relations")):
            result = planted(algorithm=algorithm)
            sent = {
                message.sender: message.unpack()
                for message in result.transcript.messages(result.best_round)
                if isinstance(message, Rows) and message.receiver == SERVER
            }
            for victim in view_of(result, "collusion").victims:
                assert torch.equal(getattr(victim, table), sent[client_party(victim.name)])

    def test_rows_and_names_of_a_victim_are_those_it_trains(self, planted) -> None:
        result = planted()
        view = view_of(result, "identifiers")
        for client, victim in zip(result.graph.clients[1:], view.victims, strict=True):
            names = [result.graph.entities[number] for number in client.entity_ids[: client.num_trained_entities]]
            assert client.num_entities > client.num_trained_entities  # else the test could not fail
            assert victim.entity_names.tolist() == names
            assert len(victim.entities) == len(names)

    def test_assumed_rows_stop_where_training_stops(self, planted) -> None:
        result = planted(algorithm="fedr")
        for client, victim in zip(result.graph.clients[1:], view_of(result, "collusion+entities").victims, strict=True):
            assert len(victim.entities) == client.num_trained_entities

    def test_of_a_client_that_did_not_take_part_nothing_is_seen(self, planted, fabricate) -> None:
        whole = planted()
        result = fabricate(whole.graph, whole.trained, whole.tables, participants=["colluder", "victim a"])
        seen, unseen = view_of(result, "collusion").victims
        assert (seen.origin, unseen.origin, unseen.entities) == ("uploaded", "not uploaded", None)


class TestLeak:
    @pytest.mark.parametrize("leak", [0.3, 0.5, 1.0])
    def test_number_of_pairs_and_their_rows(self, trained_runs, leak: float) -> None:
        result = trained_runs["fede"]
        graph, known = result.graph.clients[0], knowledge(result, leak)
        assert len(known.entity_names) == int(leak * graph.num_trained_entities)
        row_of = {result.graph.entities[number]: row for row, number in enumerate(graph.entity_ids)}
        for name, own, shared in zip(known.entity_names, known.entities, known.shared_entities, strict=True):
            assert row_of[name] < graph.num_trained_entities
            assert torch.equal(own, result.trained[0].entities[row_of[name]])
            assert torch.equal(shared, result.tables[0].entities[row_of[name]])
        assert not torch.equal(known.entities, known.shared_entities)

    @pytest.mark.parametrize("seed", range(3))
    def test_smaller_leaks_are_subsets_of_larger_ones(self, trained_runs, seed: int) -> None:
        small, middle, whole = (
            set(knowledge(trained_runs["fede"], leak, seed).entity_names) for leak in (0.3, 0.5, 1.0)
        )
        assert small < middle < whole
        assert small != set(knowledge(trained_runs["fede"], 0.3, seed + 1).entity_names)

    @pytest.mark.parametrize("leak", [0.3, 1.0])
    def test_triples_and_relations_by_a_naive_loop(self, trained_runs, leak: float) -> None:
        result = trained_runs["fede"]
        graph, known = result.graph.clients[0], knowledge(result, leak)
        leaked = set(known.entity_names)
        expected, pairs, counts = [], set(), {}
        for head, relation, tail in graph.to_global(graph.train):
            names = [result.graph.entities[head], result.graph.entities[tail]]
            if leaked & set(names):
                relation_name = result.graph.relations[relation]
                expected.append((*(name if name in leaked else None for name in names), relation_name))
                counts[relation_name] = counts.get(relation_name, 0) + 1
                if leaked >= set(names):
                    pairs.add(tuple(names))

        def name(place: int) -> str | None:
            return str(known.entity_names[place]) if place >= 0 else None

        rebuilt = [(name(h), name(t), str(known.relation_names[r])) for h, r, t in known.triples]
        assert rebuilt == expected
        assert set(known.relation_names) == set(counts)
        assert counts[known.majority_relation] == max(counts.values())
        assert known.pair_density == len(pairs) / len(leaked) ** 2
        row_of = {result.graph.relations[number]: row for row, number in enumerate(graph.relation_ids)}
        for relation_name, row in zip(known.relation_names, known.relations, strict=True):
            assert torch.equal(row, result.trained[0].relations[row_of[relation_name]])

    def test_number_of_pairs_is_not_rounded_in_binary(self, planted) -> None:
        result = planted(clusters=30)
        assert result.graph.clients[0].num_trained_entities == 100
        assert [len(knowledge(result, share / 100).entity_names) for share in range(1, 101)] == list(range(1, 101))

    def test_a_leak_below_one_entity_gives_one(self, planted) -> None:
        assert len(knowledge(planted(), 1e-6).entity_names) == 1


class TestErrors:
    @pytest.mark.parametrize("leak", [0.0, -0.1, 1.01, float("nan")])
    def test_leak_out_of_range(self, trained_runs, leak: float) -> None:
        with pytest.raises(ThreatModelError, match=r"leak must lie in \(0, 1\]"):
            view_of(trained_runs["fede"], "collusion", leak=leak)

    def test_unknown_colluder(self, trained_runs) -> None:
        with pytest.raises(ThreatModelError, match=r"colluder must be one of hospital-1, .*'nobody'"):
            build_view(trained_runs["fede"], THREAT_MODELS["collusion"], colluder="nobody", leak=1, seed=0)

    def test_a_pooled_run_has_no_federation_to_attack(self, planted) -> None:
        with pytest.raises(ThreatModelError, match="collective has no federation"):
            view_of(planted(algorithm="collective"), "collusion")


def with_other_secrets(result: KgeResult, *, keep_entities: bool) -> KgeResult:
    """The same messages and colluder, but every victim has another graph and other tables.

    Triples are permuted within each column, so that the client still trains, and uploads, the same rows.
    """
    rng = np.random.default_rng(1)

    def other_graph(client: ClientGraph) -> ClientGraph:
        train = np.stack([rng.permutation(column) for column in client.train.T], axis=1)
        return ClientGraph(client.name, client.entity_ids, client.relation_ids, train, client.test, client.valid)

    def other_tables(tables: ClientTables, keep: int) -> ClientTables:
        entities = torch.cat([tables.entities[:keep], torch.randn(tables.entities[keep:].shape)])
        return ClientTables(entities, torch.randn(tables.relations.shape))

    colluder, *victims = result.graph.clients
    graph = result.graph
    keep = [victim.num_trained_entities if keep_entities else 0 for victim in victims]
    return replace(
        result,
        graph=FederatedGraph(graph.name, graph.entities, graph.relations, (colluder, *map(other_graph, victims))),
        trained=[result.trained[0], *map(other_tables, result.trained[1:], keep)],
        tables=[result.tables[0], *map(other_tables, result.tables[1:], [0] * len(keep))],
        test_ranks=[],
    )


class TestOnlyMessagesLeak:
    @pytest.mark.parametrize("algorithm", ["fede", "fedr", "single"])
    @pytest.mark.parametrize("threat", OF_MESSAGES)
    def test_what_did_not_cross_does_not_change_the_view(self, planted, flatten, threat: str, algorithm: str) -> None:
        result = planted(algorithm=algorithm)
        # Without an upload, "collusion+entities" takes the entity rows from the victim, as it says.
        changed = with_other_secrets(result, keep_entities=threat == "collusion+entities" and algorithm != "fede")
        before, after = (flatten(view_of(run, threat, leak=0.5)) for run in (result, changed))
        assert before.keys() == after.keys()
        for name, array in before.items():
            np.testing.assert_array_equal(array, after[name], err_msg=name)

    def test_nor_any_guess(self, trained_runs) -> None:
        result = trained_runs["fede"]
        pairs = np.array([(0, 1), (2, 5), (3, 3)])
        guesses = []
        for run in (result, with_other_secrets(result, keep_entities=False)):
            view = view_of(run, "collusion", leak=0.5)
            for victim in view.victims:
                ranking = rank_pairs(view, victim, np.arange(5))
                guesses.append(
                    (
                        infer_entities(view, victim).names.tolist(),
                        infer_relations(view, victim, pairs).tolist(),
                        infer_relations(view, victim, pairs, "score").tolist(),
                        ranking.scores.tolist(),
                        ranking.relations.tolist(),
                    )
                )
        half = len(guesses) // 2
        assert guesses[:half] == guesses[half:]

    @pytest.mark.parametrize("algorithm", ["fede", "fedr"])
    def test_what_did_cross_does_change_it(self, planted, fabricate, flatten, algorithm: str) -> None:
        """The other way round, so that the test above can fail."""
        result = planted(algorithm=algorithm)
        colluder, *victims = result.trained
        other = [ClientTables(tables.entities + 1, tables.relations + 1) for tables in victims]
        changed = fabricate(result.graph, [colluder, *other], result.tables, algorithm=algorithm)
        before, after = (flatten(view_of(run, "collusion")) for run in (result, changed))
        table = {"fede": "entities", "fedr": "relations"}[algorithm]
        different = {name for name in before if not np.array_equal(before[name], after[name])}
        assert different == {f"victim a {table}", f"victim b {table}"}


@pytest.mark.parametrize("algorithm", ["fede", "fedr"])
def test_no_inference_looks_at_the_place_of_a_row(planted, algorithm: str) -> None:
    """The order of rows follows the vocabulary, and would give names away: shuffled rows are named as they were."""
    view = view_of(planted(algorithm=algorithm), "collusion+entities")
    victim = view.victims[0]
    assert victim.entities is not None
    order = np.random.default_rng(0).permutation(len(victim.entities))
    shuffled = replace(victim, entities=victim.entities[order])
    for infer in (infer_entities, infer_entities_nearest):
        assert infer(view, shuffled).names.tolist() == infer(view, victim).names[order].tolist()
    found, other = rank_pairs(view, victim, order[:3]), rank_pairs(view, shuffled, np.arange(3))
    np.testing.assert_allclose(other.scores, found.scores[:, order], rtol=1e-5)
    if victim.relations is not None:
        order = np.random.default_rng(1).permutation(len(victim.relations))
        shuffled = replace(victim, relations=victim.relations[order])
        assert infer_relation_rows(view, shuffled).tolist() == infer_relation_rows(view, victim)[order].tolist()


def test_rows_without_names_are_said_to_have_none() -> None:
    rows = torch.zeros(2, 4)
    victim = VictimView("b", rows, None, None, "uploaded")
    assert victim.crossed()[0].shape == (2, 4)
    with pytest.raises(NotAttacked, match="names of its entities are not known"):
        victim.named_entities()
