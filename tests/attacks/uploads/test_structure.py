"""Rows named by their place among others: planted in another space, shuffled, and what defenses change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph, KgeModel
from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.kge.view import VictimView
from fkgsec.attacks.uploads import structure
from fkgsec.attacks.uploads.structure import NEAREST, profiles
from fkgsec.kge.models import ClientTables
from fkgsec.kge.result import KgeResult

THREAT, COUNT, DIM = "collusion+entities", 60, 16


@pytest.fixture(scope="module")
def moved_apart(fabricate):
    """A factory of runs of FedR: both clients hold the same entities, at places that differ by one step for all of a client,
    which no relation sees. `shuffled`: the victim's rows are of other entities."""

    def make(*, shuffled: bool = False, seed: int = 0) -> KgeResult:
        rng = torch.Generator().manual_seed(seed)
        relations = torch.randn(4, DIM, generator=rng)
        rows = torch.randn(COUNT, DIM, generator=rng)
        triples = np.array([(head, head % 4, (head + 1 + head % 3) % COUNT) for head in range(COUNT)])
        for head, kind, tail in triples[: COUNT // 2]:
            rows[tail] = rows[head] + relations[kind] + 0.1 * torch.randn(DIM, generator=rng)
        none = np.zeros((0, 3), dtype=np.int64)
        clients = tuple(ClientGraph.from_global(name, triples, none, none) for name in ("colluder", "victim"))
        graph = FederatedGraph("apart", tuple(f"e{number}" for number in range(COUNT)), ("a", "b", "c", "d"), clients)
        place = rows[clients[0].entity_ids.tolist()]
        kinds = relations[clients[0].relation_ids.tolist()]
        order = torch.randperm(COUNT, generator=rng) if shuffled else torch.arange(COUNT)
        far = 20 * torch.randn(DIM, generator=rng)
        there = (place + far + 0.01 * torch.randn(COUNT, DIM, generator=rng))[order]
        tables = [ClientTables(place, kinds), ClientTables(there, kinds)]
        return fabricate(graph, tables, tables, algorithm="fedr", dim=DIM)

    return make


def figures(result: KgeResult, *threats: str, leak: float = 1.0) -> dict[tuple[str, str], Figure]:
    options = KgeAttackOptions(attack=("structure",), threat=threats, leak=(leak,))
    return {(one.victim, one.variant): one for one in run_attacks(result, options).figures}


def test_columns_of_a_profile_by_a_naive_loop() -> None:
    model, rng = KgeModel("transe", 8), torch.Generator().manual_seed(0)
    rows, relations = torch.randn(12, 8, generator=rng), torch.randn(2, 8, generator=rng)
    found = profiles(model, rows, relations)
    assert found.shape == (12, 4 * 2 + 3)
    best, mean = torch.empty(12), torch.empty(12)  # of heads, in the second relation
    for row in range(12):
        fits = sorted(
            (float(model.score(rows[o], relations[1], rows[row])) for o in range(12) if o != row), reverse=True
        )
        best[row], mean[row] = fits[0], float(np.mean(fits[:NEAREST]))
    for column, expected in ((6, best), (7, mean), (8, rows.norm(dim=1))):
        torch.testing.assert_close(
            found[:, column], (expected - expected.mean()) / expected.std(), rtol=1e-4, atol=1e-4
        )


@pytest.mark.planted("structure", "60 rows moved by one step: more than 70% named", {"err": 60})
def test_rows_of_another_space_are_named_by_their_place(moved_apart) -> None:
    found = figures(moved_apart())
    one = found["victim", "profiles"]
    assert (one.threat_model, one.attainable) == (THREAT, 1.0)
    assert one.baseline is not None
    assert one.baseline.value == pytest.approx(1 / COUNT)
    assert one.estimate.value > 0.7
    assert found["victim", "rows"].estimate.value < 0.2
    assert found["victim", "strongest"].by in ("profiles", "both")


@pytest.mark.null("structure", "shuffled rows, 20 draws: mean share within .02 of 1 in 60")
def test_shuffled_rows_are_chance(moved_apart) -> None:
    values = [figures(moved_apart(shuffled=True, seed=seed))["victim", "profiles"].estimate.value for seed in range(20)]
    assert abs(np.mean(values) - 1 / COUNT) < 0.02


def test_relation_rows_that_stay_the_clients_own_take_the_profiles_away(moved_apart, fabricate) -> None:
    """Where no relation is shared, the victim's table acts otherwise: by another one nothing fits."""
    result = moved_apart()
    turned = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(1))).Q
    own, victim = result.trained
    tables = [own, ClientTables(victim.entities @ turned, victim.relations @ turned)]
    apart = figures(fabricate(result.graph, tables, tables, algorithm="fedr", dim=DIM))
    assert apart["victim", "profiles"].estimate.value < figures(result)["victim", "profiles"].estimate.value - 0.3


@pytest.mark.parametrize("defense", ["", "secagg"])
def test_sums_of_relations_do_not_stop_it(federate, defense: str) -> None:
    found = figures(federate(defense, "fedr"))
    strongest = [found[victim, "strongest"] for victim in ("hospital-2", "hospital-3")]
    assert all(not one.reason for one in strongest)
    base = [one.baseline.value for one in strongest if one.baseline]
    assert np.mean([one.estimate.value for one in strongest]) > 3 * np.mean(base)


def test_where_it_cannot_run_it_says_so(federate) -> None:
    assert {one.reason for one in figures(federate("", "fedr"), "collusion").values()} == {
        "no entity embedding of it is known"
    }
    assert {one.reason for one in figures(federate("", "fedr"), "server").values()} == {"it needs a colluder, a server"}
    few = figures(federate("", "fedr"), leak=0.001)
    assert {one.reason for one in few.values()} == {"1 entities leaked; it takes 3"}


def test_rows_of_a_sum_go_by_their_names(federate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sum the adversary takes rows for the victim's in an order, and a number, of their own: all are right."""
    result: KgeResult = federate("psu,secagg")
    names, counts = result.row_names["entities"], {}

    def right(victim: VictimView, name: Callable[[VictimView], structure.Named]) -> structure.Named:
        told = np.array([names[row] for row in victim.claims["entities"].rows], dtype=object)
        own = next(one for one in result.graph.clients if one.name == victim.name)
        held = {result.graph.entities[number] for number in own.entity_ids[: own.num_trained_entities]}
        counts[victim.name] = len(held.intersection(told)), len(held)
        assert len(told) != len(held)
        return replace(name(victim), ways={"rows": told})

    monkeypatch.setattr(
        structure, "claim_each", lambda victims, name: {victim.name: right(victim, name) for victim in victims}
    )
    found = figures(result, THREAT)
    for victim, (count, held) in counts.items():
        assert found[victim, "rows"].estimate.value == count / held > 0
    assert len(counts) == 2
