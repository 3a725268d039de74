"""Linked pairs ranked by the server alone: planted ones, at random rows, and what defenses change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph
from fkgsec.attacks import ATTACKS, KgeAttackOptions, run_attacks
from fkgsec.attacks.kge.task import default_attacks
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.kge.models import ClientTables
from fkgsec.kge.options import KgeOptions

NONE = np.zeros((0, 3), dtype=np.int64)
SERVER, VICTIM = "server", "victim"


@pytest.mark.planted("edges", "60 linked pairs of close rows among 7,140: AUC above .99", {"auc": 7140})
def test_planted_pairs_are_found(near_pairs, attacked) -> None:
    found = attacked(near_pairs(), "edges")
    auc, precision = found[SERVER, VICTIM, "auc"], found[SERVER, VICTIM, "precision"]
    assert auc.estimate.value > 0.99
    assert auc.counts == {"pairs": 120 * 119 // 2, "linked": 60}
    assert (auc.baseline.value, auc.leak, auc.colluder) == (0.5, None, None)
    assert precision.estimate.value == precision.attainable == 0.6  # of the first 100, 60 are linked at all
    assert precision.baseline.value == 60 / auc.counts["pairs"]


@pytest.mark.null("edges", "shuffled rows, 5 draws: mean AUC .4 to .6")
def test_at_shuffled_rows_it_is_chance(near_pairs, attacked) -> None:
    values = [attacked(near_pairs(shuffled=True, seed=seed), "edges")[SERVER, VICTIM, "auc"] for seed in range(5)]
    assert 0.4 < np.mean([one.estimate.value for one in values]) < 0.6
    assert sum(one.estimate.low <= 0.5 <= one.estimate.high for one in values) >= 4


@pytest.mark.parametrize("defense", ["", "secagg", "psu,secagg", "robust:rule=clip"])
def test_what_sums_and_robust_rules_cannot_stop(federate, attacked, defense: str) -> None:
    """The mean that the server publishes itself has the links, and it knows or guesses who holds which row."""
    found = attacked(federate(defense), "edges")
    for victim in ("hospital-2", "hospital-3"):
        assert found[SERVER, victim, "auc"].estimate.low > 0.55


def test_a_server_that_nobody_helps_is_asked_for_links_and_degrees(federate) -> None:
    """Where no attack is named: reconstruction alone would say that there is nothing to start from."""
    found = run_attacks(federate(), KgeAttackOptions(threat=(SERVER,), unlinked_heads=0)).figures
    reasons = {one.attack: {other.reason for other in found if other.attack == one.attack} for one in found}
    assert list(reasons) == ["reconstruction", "update-recovery", "edges", "degrees"]
    assert reasons["reconstruction"] == {"no element-embedding pair is known without a colluder"}
    assert reasons["edges"] == reasons["degrees"] == {None}
    for threat in ((), (SERVER, "collusion"), ("models",)):
        assert default_attacks("fede", threat) == ("reconstruction", "update-recovery")


def test_noise_stops_it(federate, attacked) -> None:
    found = attacked(federate("dp:unit=row,clip=0.1,epsilon=8"), "edges")
    for victim in ("hospital-2", "hospital-3"):
        one = found[SERVER, victim, "auc"]
        assert one.estimate.low < 0.5 < one.estimate.value + 0.1 < 0.7


def test_of_so_few_pairs_that_all_come_first_no_share_is_told(fabricate, attacked) -> None:
    """Fourteen entities have 91 pairs: however they are ranked, the first 100 hold them all."""
    triples = np.array([(head, 0, (head + 1) % 14) for head in range(14)])
    clients = tuple(ClientGraph.from_global(name, triples, NONE, NONE) for name in ("colluder", "victim"))
    graph = FederatedGraph("few", tuple(f"e{number}" for number in range(14)), ("r",), clients)
    tables = [ClientTables(torch.randn(14, 16), torch.randn(1, 16)) for _ in clients]
    found = attacked(fabricate(graph, tables, tables), "edges")
    precision = found[SERVER, VICTIM, "precision"]
    assert precision.reason == "there are 91 pairs, of which all would be among the first 100"
    assert not found[SERVER, VICTIM, "auc"].reason


def test_with_names_the_guess_by_names_is_a_base(near_pairs, attacked) -> None:
    """The colluder holds the first 30 of the victim's 60 triples: a reader of names puts these pairs first."""
    found = attacked(near_pairs(shuffled=True), "edges", "identifiers", leak=(1.0,))
    one = found["identifiers", VICTIM, "precision"]
    assert set(one.guesses) == {"chance", "names"}
    assert one.guesses["names"].value == one.baseline.value == 0.3
    assert one.estimate.value >= 0.3
    assert (one.leak, one.colluder) == (1.0, "colluder")


def test_where_no_entities_cross_it_says_so(federate, attacked) -> None:
    found = attacked(federate(algorithm="fedr"), "edges")
    assert {one.reason for one in found.values()} == {"none of its entity embeddings was transmitted"}
    needs = ATTACKS["edges"].needs
    assert needs.never("fedr", THREAT_MODELS[SERVER]) == "fedr transmits no entity embedding"
    assert needs.never(KgeOptions().algorithm, THREAT_MODELS[SERVER]) is None
