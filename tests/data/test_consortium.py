"""The embedded consortium: what its docstrings promise, and that it behaves like a real graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec.data import consortium as consortium_module
from fkgsec.data.consortium import (
    INVERSE_RELATIONS,
    PATIENT_RELATIONS,
    RELATIONS,
    SMALLEST_SIZE_PER_CLIENT,
    SYMMETRIC_RELATIONS,
    generate_consortium,
)
from fkgsec.data.graph import FederatedGraph
from fkgsec.data.split_leaks import LEAKS, find_split_leaks
from fkgsec.errors import SpecError

Fact = tuple[str, str, str]


@pytest.fixture(scope="module")
def consortium() -> FederatedGraph:
    return generate_consortium()


def facts_of(federated: FederatedGraph, client: int) -> list[Fact]:
    graph = federated.clients[client]
    return [
        (federated.entities[head], federated.relations[relation], federated.entities[tail])
        for head, relation, tail in graph.to_global(graph.triples).tolist()
    ]


def all_facts(federated: FederatedGraph) -> list[Fact]:
    return [fact for client in range(len(federated.clients)) for fact in facts_of(federated, client)]


def is_patient(name: str) -> bool:
    return "/patient-" in name


def degree_slope(federated: FederatedGraph) -> float:
    """Log-log slope of degree over rank, top tenth of entities."""
    names = [name for head, _, tail in set(all_facts(federated)) for name in (head, tail)]
    degrees = np.sort(np.unique(names, return_counts=True)[1])[::-1]
    top = degrees[: len(degrees) // 10]
    return float(np.polyfit(np.log(np.arange(1, len(top) + 1)), np.log(top), 1)[0])


def test_default_size_split_and_vocabulary(consortium: FederatedGraph) -> None:
    sizes = [len(client.triples) for client in consortium.clients]
    assert sum(sizes) == pytest.approx(13_500, rel=0.03)
    assert sizes == sorted(sizes, reverse=True)
    assert consortium.relations == RELATIONS
    assert consortium.sensitive == set(PATIENT_RELATIONS)
    assert consortium.warnings == ()
    for client in consortium.clients:
        assert len(client.valid) == len(client.test) == len(client.triples) // 10
        assert client.num_trained_entities == client.num_entities
        assert client.num_trained_relations == client.num_relations == len(RELATIONS)
    used = np.unique(np.concatenate([client.entity_ids for client in consortium.clients]))
    assert len(used) == len(consortium.entities) == len(set(consortium.entities))


def test_relations_link_the_kinds_that_their_names_say(consortium: FederatedGraph) -> None:
    found = {relation: set() for relation in RELATIONS}
    for head, relation, tail in all_facts(consortium):
        found[relation].add(tuple("patient" if is_patient(name) else name.split(":")[0] for name in (head, tail)))
    assert found == {
        "diagnosed_with": {("patient", "diagnosis")},
        "prescribed": {("patient", "drug")},
        "has_symptom": {("patient", "symptom")},
        "underwent": {("patient", "procedure")},
        "carries_variant": {("patient", "gene")},
        "treats": {("drug", "diagnosis")},
        "is_treated_by": {("diagnosis", "drug")},
        "contraindicated_for": {("drug", "diagnosis")},
        "interacts_with": {("drug", "drug")},
        "associated_with": {("gene", "diagnosis")},
        "targets": {("drug", "gene")},
        "shares_pathway": {("gene", "gene")},
        "belongs_to_class": {("drug", "class")},
        "subtype_of": {("diagnosis", "diagnosis")},
        "presents_with": {("diagnosis", "symptom")},
        "managed_by": {("diagnosis", "procedure")},
    }


def test_patients_are_private_but_for_transfers(consortium: FederatedGraph) -> None:
    known_at: dict[str, set[int]] = {}
    record_at: dict[Fact, list[int]] = {}
    for client in range(3):
        for fact in facts_of(consortium, client):
            if is_patient(fact[0]):
                known_at.setdefault(fact[0], set()).add(client)
                record_at.setdefault(fact, []).append(client)
            assert not is_patient(fact[2])
    assert {len(hospitals) for hospitals in record_at.values()} == {1}
    assert all(int(patient[len("hospital-")]) - 1 in hospitals for patient, hospitals in known_at.items())
    transferred = np.mean([len(hospitals) == 2 for hospitals in known_at.values()])
    assert 0.01 < transferred < 0.05
    assert max(map(len, known_at.values())) == 2


def test_patterns_stand_in_the_shares_that_the_parameters_say(consortium: FederatedGraph) -> None:
    facts = set(all_facts(consortium))
    opposite = dict(
        [*INVERSE_RELATIONS, *((b, a) for a, b in INVERSE_RELATIONS), *((r, r) for r in SYMMETRIC_RELATIONS)]
    )
    reversible = [fact for fact in facts if fact[1] in opposite]
    unordered = {frozenset((head, tail)) for head, _, tail in reversible}
    stated_twice = len(reversible) / len(unordered) - 1
    assert stated_twice == pytest.approx(consortium_module.STATED_TWICE, abs=0.04)
    # Of the facts that stand once, both directions are tested.
    directions = np.array([head < tail for head, relation, tail in reversible if relation in SYMMETRIC_RELATIONS])
    assert 0.4 < directions.mean() < 0.6

    treats = {(h, t) for h, r, t in facts if r == "treats"} | {(t, h) for h, r, t in facts if r == "is_treated_by"}
    assert not treats & {(h, t) for h, r, t in facts if r == "contraindicated_for"}
    diagnoses: dict[str, set[str]] = {}
    for head, relation, tail in facts:
        if relation == "diagnosed_with":
            diagnoses.setdefault(head, set()).add(tail)
    explained = [
        any((tail, diagnosis) in treats for diagnosis in diagnoses[head])
        for head, relation, tail in facts
        if relation == "prescribed"
    ]
    assert np.mean(explained) > 0.65
    drugs = [head for head, relation, _ in facts if relation == "belongs_to_class"]
    assert len(set(drugs)) == len(drugs)


def test_overlap_is_between_clients_only_and_follows_its_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    for overlap in (0.0, 0.08, 1.0):
        monkeypatch.setattr(consortium_module, "OVERLAP", overlap)
        federated = generate_consortium()
        public = [fact for fact in all_facts(federated) if not is_patient(fact[0])]
        assert len(public) / len(set(public)) - 1 == pytest.approx(overlap, abs=0.02)


def test_no_evaluation_triple_has_its_pair_in_train(
    consortium: FederatedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, _ = find_split_leaks(consortium)
    for leak in LEAKS:
        for split in ("valid", "test"):
            of_split = [row for row in rows if row["split"] == split]
            share = sum(row[leak] for row in of_split) / sum(row["triples"] for row in of_split)
            assert 0.01 < share < 0.08 if leak == "exact_other" else share == 0.0
    # Nothing to control without the patterns: the check above could fail.
    monkeypatch.setattr(consortium_module, "STATED_TWICE", 1.0)
    twice = generate_consortium().clients[0]
    pairs = {frozenset((head, tail)) for head, _, tail in twice.train.tolist()}
    assert len(pairs) < len(twice.train) - 100
    assert not {frozenset((head, tail)) for head, _, tail in twice.test.tolist()} & pairs


def test_degrees_follow_zipf(consortium: FederatedGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    assert -0.6 < degree_slope(consortium) < -0.4
    monkeypatch.setattr(consortium_module, "ZIPF_EXPONENT", 0.0)
    flat = generate_consortium()
    assert degree_slope(flat) > degree_slope(consortium) + 0.1


def test_same_arguments_same_graph() -> None:
    small = generate_consortium(clients=2, size=800, seed=5)
    assert small.hash == generate_consortium(clients=2, size=800, seed=5).hash
    assert small.hash != generate_consortium(clients=2, size=800, seed=6).hash
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    generate_consortium(clients=2, size=800, seed=5)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 12), st.integers(SMALLEST_SIZE_PER_CLIENT, 150), st.integers(0, 2**40))
def test_any_size_and_number_of_clients(clients: int, size_per_client: int, seed: int) -> None:
    federated = generate_consortium(clients, clients * size_per_client, seed)
    assert len(federated.clients) == clients
    assert sum(len(client.triples) for client in federated.clients) < 2 * clients * size_per_client + 60
    for index, client in enumerate(federated.clients):
        assert client.num_trained_entities == client.num_entities
        facts = facts_of(federated, index)
        assert len(set(facts)) == len(facts)
    if clients == 1:
        assert not any(row["exact_other"] for row in find_split_leaks(federated)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": 0}, "clients is 0, allowed: 1 or more"),
        ({"clients": 3, "size": 59}, "size is 59, allowed: 20 per client or more"),
        ({"seed": -1}, "seed is -1, allowed: 0 or more"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        generate_consortium(**arguments)
