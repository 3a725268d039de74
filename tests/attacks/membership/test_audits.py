"""Membership inference on whole runs: one that memorised, one that learnt nothing, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from attacks.membership.audits import Inference, infer_membership
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


def found(inferences: list[Inference], client: str, model: str, attack: str) -> Inference:
    (one,) = (i for i in inferences if (i.client, i.model, i.attack) == (client, model, attack))
    return one


def test_a_run_that_memorised_is_noticed_and_one_that_learnt_nothing_is_not(memorised: FederationResult) -> None:
    for model in ("local", "global"):
        auc = found(infer_membership(memorised, seed=0), ALL, model, "loss").result.auc
        assert auc.low > 0.5
    idle = run_federation(
        memorised.graph, msgspec.structs.replace(MEMORISED, rounds=1, local_epochs=1, learning_rate=1e-7, eval_every=1)
    )
    for one in infer_membership(idle, seed=0):
        assert one.result.auc.low <= 0.5 <= one.result.auc.high, one


def test_every_client_and_all_together_with_as_many_members_as_controls(memorised: FederationResult) -> None:
    inferences = infer_membership(memorised, seed=0)
    names = [client.name for client in memorised.graph.clients]
    assert [(one.client, one.model) for one in inferences] == [
        (name, model) for name in [*names] for model in ("local", "global")
    ] + [(ALL, "local"), (ALL, "global")]
    for model in ("local", "global"):
        parts = [found(inferences, name, model, "loss").result for name in names]
        together = found(inferences, ALL, model, "loss").result
        assert together.num_forgotten == sum(one.num_forgotten for one in parts)
        assert together.num_controls == sum(one.num_controls for one in parts)
    assert infer_membership(memorised, seed=0) == inferences
    assert infer_membership(memorised, seed=1) != inferences


@pytest.mark.slow
def test_shadow_federations_sharpen_it(graph: FederatedGraph, memorised: FederationResult) -> None:
    inferences = infer_membership(memorised, seed=0, num_shadows=4)
    assert {one.attack for one in inferences} == {"loss", "calibrated", "lira"}
    for model in ("local", "global"):
        loss, lira = (found(inferences, ALL, model, attack).result.auc for attack in ("loss", "lira"))
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
