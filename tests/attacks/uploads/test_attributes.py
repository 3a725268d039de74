"""Answers to sensitive relations: planted ones, at shuffled rows, and what noise leaves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph
from fkgsec.attacks.uploads.attributes import Answers, Inferred, _ranks
from fkgsec.kge.models import ClientTables

THREAT = "identifiers"


def planted(fabricate, *, shuffled: bool = False, sensitive: bool = True, seed: int = 0):
    """Patients 20-39 of the victim have drug k % 20, the colluder's patients 40-59 the next one; rows are translated.

    The last five drugs of the victim are its test triples; in train these patients have others.
    """
    rng, dim = np.random.default_rng(seed), 16
    drugs, relation = torch.from_numpy(rng.normal(0, 1, (20, dim)).astype(np.float32)), torch.ones(1, dim)
    patients = torch.cat([drugs - relation, drugs.roll(-1, 0) - relation]) + 0.01 * torch.randn(40, dim)
    entities = torch.cat([drugs, patients])
    theirs = np.array([(20 + k, 0, k) for k in range(20)])
    own = np.array([(40 + k, 0, (k + 1) % 20) for k in range(20)])
    test = theirs[15:]  # not trained on, with heads and tails that other triples keep in train
    train = np.concatenate([theirs[:15], [(20 + k, 0, 15 + (k - 14) % 5) for k in range(15, 20)]])
    none = test[:0]
    clients = (
        ClientGraph.from_global("colluder", own, none, none),
        ClientGraph.from_global("victim", train, none, test),
    )
    graph = FederatedGraph(
        "planted",
        tuple(f"e{k}" for k in range(60)),
        ("prescribed",),
        clients,
        frozenset({"prescribed"} if sensitive else ()),
    )
    tables = [ClientTables(entities[one.entity_ids.tolist()], relation) for one in clients]
    if shuffled:
        tables[1] = ClientTables(tables[1].entities[rng.permutation(len(tables[1].entities))], relation)
    return fabricate(graph, tables, tables)


@pytest.mark.planted("attributes", "20 answers of 20 candidates at exact translations: MRR above .95")
def test_planted_answers_are_ranked_first(fabricate, attacked) -> None:
    found = attacked(planted(fabricate), "attributes", leak=(1.0,))
    held_out = found[THREAT, "victim", "mrr"]
    assert held_out.estimate.value > 0.95
    assert (held_out.counts, held_out.attainable, held_out.leak) == ({"triples": 5}, 1.0, 1.0)
    assert held_out.baseline.value < 0.3
    assert found[THREAT, "victim", "hits@10"].estimate.value == 1.0
    assert found[THREAT, "victim", "mrr_trained"].counts == {"triples": 20}


@pytest.mark.null("attributes", "shuffled rows, 6 draws: mean MRR within .1 of the prior's")
def test_at_shuffled_rows_it_is_the_prior(fabricate, attacked) -> None:
    values = [
        attacked(planted(fabricate, shuffled=True, seed=seed), "attributes", leak=(1.0,))[
            THREAT, "victim", "mrr_trained"
        ]
        for seed in range(6)
    ]
    assert np.mean([one.estimate.value - one.baseline.value for one in values]) < 0.1


def test_ranks_filter_other_true_answers_and_share_ties() -> None:
    answers = Answers(
        np.array(["a", "b", "c", "d"], dtype=object),
        {"score": lambda _: np.array([4.0, 3.0, 3.0, 1.0]), "with prior": lambda _: np.zeros(4)},
        np.array([0.0, 0.0, 1.0, 2.0]),
    )
    asked = [("h", "r", "b"), ("h", "r", "a"), ("h", "r", "x"), ("h", "other", "a")]
    ranks = _ranks(Inferred({"r": answers}), asked, {("h", "r"): {"a", "b", "x"}, ("h", "other"): {"a"}})
    assert ranks["score"].tolist() == [1.5, 1.0, np.inf, np.inf]
    assert ranks["prior"].tolist() == [3.0, 3.0, np.inf, np.inf]
    assert ranks["with prior"].tolist() == [2.0, 2.0, np.inf, np.inf]


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["", "robust:rule=clip"])
def test_trained_answers_leak_whatever_resists_clients(federate, attacked, defense: str) -> None:
    found = attacked(federate(defense, size=4000, rounds=25), "attributes", leak=(1.0,))
    for victim in ("hospital-2", "hospital-3"):
        one = found[THREAT, victim, "mrr_trained"]
        assert one.estimate.low > one.baseline.value
        assert one.estimate.value <= one.attainable < 1.0


@pytest.mark.slow
def test_noise_stops_it(federate, attacked) -> None:
    found = attacked(federate("dp:unit=row,clip=0.1,epsilon=8", size=4000, rounds=25), "attributes", leak=(1.0,))
    for victim in ("hospital-2", "hospital-3"):
        one = found[THREAT, victim, "mrr_trained"]
        assert one.estimate.low <= one.baseline.value


def test_without_sensitive_relations_it_says_so(fabricate, attacked, federate) -> None:
    found = attacked(planted(fabricate, sensitive=False), "attributes")
    assert {one.reason for one in found.values()} == {"planted marks no relation as sensitive"}
    result = federate()
    some = dataclasses.replace(result, graph=dataclasses.replace(result.graph, sensitive=frozenset({"treats"})))
    assert attacked(some, "attributes", leak=(1.0,)) != attacked(result, "attributes", leak=(1.0,))
