"""One client alone, by the broadcasts that it receives: planted triples, shuffled rows, and what defenses change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph
from fkgsec.attacks import ATTACKS, Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import build_view
from fkgsec.kge.models import ClientTables

CLIENT = "client"
NONE = np.zeros((0, 3), dtype=np.int64)


@pytest.mark.planted("client-passive", "20 triples that fit exactly: AUC above .99", {"auc": 12})
def test_planted_triples_are_told(linked_apart, attacked) -> None:
    found = attacked(linked_apart(), "client-passive")
    one = found[CLIENT, "victim", "auc_pairs"]
    assert one.estimate.value > 0.99
    assert (one.leak, one.colluder, one.counts["trained"]) == (None, "own", 20)
    assert set(one.guesses) == {"chance", "names"}
    unseen = found[CLIENT, "victim", "auc"]  # true triples that nobody trained on
    assert unseen.estimate.value > 0.99
    assert unseen.counts == {"trained": 6, "others": 6}


@pytest.mark.null("client-passive", "shuffled rows, 6 draws: mean AUC .35 to .65")
def test_at_shuffled_rows_it_is_chance(linked_apart, attacked) -> None:
    values = [
        attacked(linked_apart(shuffled=True, seed=seed), "client-passive")[CLIENT, "victim", "auc_pairs"]
        for seed in range(6)
    ]
    assert 0.35 < np.mean([one.estimate.value for one in values]) < 0.65


def by_score(result) -> list[Figure]:
    """The figures on random pairs by score alone: of so few triples names tell more, and would be the strongest."""
    figures = run_attacks(result, KgeAttackOptions(attack=("client-passive",))).figures
    found = [one for one in figures if (one.metric, one.variant) == ("auc_pairs", "score")]
    assert [one.victim for one in found] == ["hospital-2", "hospital-3"]
    return found


@pytest.mark.parametrize("defense", ["", "secagg", "psu,secagg"])
def test_sums_cannot_stop_it_since_it_reads_the_broadcasts(federate, defense: str) -> None:
    for one in by_score(federate(defense)):
        assert one.estimate.low > 0.55


def test_noise_stops_it(federate) -> None:
    for noisy, clear in zip(*(by_score(federate(one)) for one in ("dp:unit=row,clip=0.1,epsilon=8", "")), strict=True):
        assert noisy.estimate.value < clear.estimate.value - 0.08
        assert noisy.estimate.low <= 0.57
        assert noisy.estimate.high < noisy.baseline.value  # below what names tell


def test_it_sees_no_upload(federate, attacked) -> None:
    """Its view has its own model and what it was sent, and stays the same whatever the others' uploads are."""
    result = federate()
    view = build_view(result, THREAT_MODELS[CLIENT], colluder="hospital-1", leak=0.3, seed=0)
    assert len(view.colluder.entity_names) == result.graph.clients[0].num_trained_entities
    for victim in view.victims:
        assert (victim.entities, victim.relations, victim.entity_names, victim.received) == (None, None, None, {})
    other = [result.trained[0], *(ClientTables(one.entities + 1, one.relations + 1) for one in result.trained[1:])]
    changed = dataclasses.replace(result, trained=other)
    assert attacked(changed, "client-passive") == attacked(result, "client-passive")


def test_where_it_cannot_run_it_says_so(federate, attacked) -> None:
    found = attacked(federate(algorithm="fedr"), "client-passive")
    assert {one.reason for one in found.values()} == {"no entity embedding is broadcast"}
    found = attacked(federate(), "client-passive", "collusion")
    assert {one.reason for one in found.values()} == {"it needs a client alone"}
    needs = ATTACKS["client-passive"].needs
    assert needs.never("fede", THREAT_MODELS["collusion"]) == "it takes a client alone"
    assert needs.never("fedr", THREAT_MODELS[CLIENT]) == "fedr transmits no entity embedding"
    assert needs.never("fede", THREAT_MODELS[CLIENT]) is None


def test_of_relations_that_it_does_not_know_it_is_asked_nothing(fabricate) -> None:
    """Divided by relations, no client can score what another one trains."""
    rows = np.random.default_rng(0).integers(0, 12, (2, 30, 2))
    clients = tuple(
        ClientGraph.from_global(name, np.insert(ends, 1, kind, axis=1), NONE, NONE)
        for kind, (name, ends) in enumerate(zip(("own", "victim"), rows, strict=True))
    )
    graph = FederatedGraph("disjoint", tuple(f"e{number}" for number in range(12)), ("r0", "r1"), clients)
    tables = [ClientTables(torch.randn(one.num_entities, 8), torch.randn(1, 8)) for one in clients]
    result = fabricate(graph, tables, tables, dim=8)
    found = run_attacks(result, KgeAttackOptions(attack=("client-passive",)), train=lambda *_, **__: result)
    assert {one.reason for one in found.figures} == {"own trains no relation of those that victim trains"}
