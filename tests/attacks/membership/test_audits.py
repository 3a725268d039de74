"""Membership inference on whole runs: one that memorised, one that learnt nothing, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from attacks import AttackOptions, Figure, run_attacks
from attacks.membership.inference import METRICS, TOO_FEW, infer_membership
from attacks.view import ALL
from fkgsec import ClientGraph, FederatedGraph, FederationOptions, FederationResult, generate_consortium
from fkgsec.errors import DataError
from fkgsec.federation.loop import run_federation

MEMORISED = FederationOptions(
    algorithm="fedlu", dim=24, gamma=4, rounds=30, local_epochs=2, eval_every=30, batch_size=64, num_negatives=16,
    learning_rate=0.02, device="cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> FederatedGraph:
    return generate_consortium(clients=3, size=3000, seed=1)


@pytest.fixture(scope="module")
def memorised(graph: FederatedGraph) -> FederationResult:
    return run_federation(graph, MEMORISED)


def found(figures: list[Figure], client: str, model: str, attack: str) -> Figure:
    """The AUC of one attack on one model."""
    (one,) = (f for f in figures if (f.victim, f.variant, f.metric) == (client, f"{model}, {attack}", "auc"))
    return one


def test_a_run_that_memorised_is_noticed_and_one_that_learnt_nothing_is_not(memorised: FederationResult) -> None:
    for model in ("local", "global"):
        auc = found(infer_membership(memorised, seed=0), ALL, model, "loss").estimate
        assert auc.low > 0.5
    idle = run_federation(
        memorised.graph, msgspec.structs.replace(MEMORISED, rounds=1, local_epochs=1, learning_rate=1e-7, eval_every=1)
    )
    for one in infer_membership(idle, seed=0):
        if one.metric == "auc":
            assert one.estimate.low <= 0.5 <= one.estimate.high, one


def test_every_client_and_all_together_with_as_many_members_as_controls(memorised: FederationResult) -> None:
    inferences = infer_membership(memorised, seed=0)
    names = [client.name for client in memorised.graph.clients]
    assert [(one.victim, one.variant) for one in inferences if one.metric == "auc"] == [
        (name, f"{model}, loss") for name in [*names] for model in ("local", "global")
    ] + [(ALL, "local, loss"), (ALL, "global, loss")]
    for model in ("local", "global"):
        parts = [found(inferences, name, model, "loss") for name in names]
        together = found(inferences, ALL, model, "loss")
        for name in ("members", "controls"):
            assert together.counts[name] == sum(one.counts[name] for one in parts)
        assert together.num_attacked == len(names)
    assert infer_membership(memorised, seed=0) == inferences
    assert infer_membership(memorised, seed=1) != inferences


@pytest.mark.slow
def test_shadow_federations_sharpen_it(graph: FederatedGraph, memorised: FederationResult) -> None:
    inferences = infer_membership(memorised, seed=0, num_shadows=4)
    assert {one.variant.partition(", ")[2] for one in inferences} == {"loss", "calibrated", "lira"}
    for model in ("local", "global"):
        loss, lira = (found(inferences, ALL, model, attack).estimate for attack in ("loss", "lira"))
        assert lira.value > loss.value


def test_without_never_seen_triples_there_is_nothing_to_compare_with(
    graph: FederatedGraph, memorised: FederationResult
) -> None:
    def without_test(client: ClientGraph) -> ClientGraph:
        none = np.empty((0, 3), dtype=np.int64)
        return ClientGraph(client.name, client.entity_ids, client.relation_ids, client.train, client.valid, none)

    bare = replace(memorised, graph=replace(graph, clients=tuple(map(without_test, graph.clients))))
    with pytest.raises(DataError, match="no client has training triples with matched never-seen ones"):
        infer_membership(bare, seed=0)
    for one in run_attacks(bare, AttackOptions(attack=("membership",))).figures:
        assert one.reason == TOO_FEW


def test_the_registered_attack_says_the_same_from_a_view_of_the_models_alone(memorised: FederationResult) -> None:
    figures = run_attacks(memorised, AttackOptions(attack=("membership",), leak=(0.3, 1.0))).figures
    assert figures == infer_membership(memorised, seed=0)
    assert {one.metric for one in figures} == set(METRICS)
    assert {(one.threat_model, one.leak, one.colluder) for one in figures} == {("models", None, None)}
    low = [one for one in figures if one.metric == "tpr@0.001"]
    assert {one.estimate.high for one in low} == {1.0}
    assert all("0.1% false alarms take 1,000 never-seen triples" in str(one.reason) for one in low)


def test_under_a_threat_model_without_models_it_says_what_it_needs(memorised: FederationResult) -> None:
    """It is not run under another one than was asked for."""
    figures = run_attacks(memorised, AttackOptions(attack=("membership",), threat=("server",))).figures
    assert {one.threat_model for one in figures} == {"server"}
    assert {one.reason for one in figures} == {"it needs clients' models"}
