"""Answers to sensitive relations: planted ones, at shuffled rows, and what noise leaves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph, KgeOptions
from fkgsec.attacks import Figure, KgeAttackOptions, run_attacks
from fkgsec.attacks.uploads.attributes import WAYS, Answers, Inferred, _ranks, _reciprocal
from fkgsec.federation.loop import run_federation
from fkgsec.kge.models import ClientTables, ModelName
from fkgsec.kge.result import KgeResult

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


@pytest.mark.null("attributes", "shuffled rows, 6 draws: mean MRR of every way at most .05 above the prior's")
def test_at_shuffled_rows_it_is_the_prior(fabricate) -> None:
    """By no way. The strongest of four is above the prior by its choice, which its interval covers."""
    beyond: dict[str, list[float]] = {}
    num_covered = 0
    for seed in range(6):
        options = KgeAttackOptions(attack=("attributes",), leak=(1.0,))
        for figure in run_attacks(planted(fabricate, shuffled=True, seed=seed), options).figures:
            if figure.metric == "mrr_trained":
                beyond.setdefault(figure.variant, []).append(figure.estimate.value - figure.baseline.value)
                num_covered += figure.variant == "strongest" and figure.estimate.low <= figure.baseline.value
    assert num_covered >= 5, num_covered
    assert beyond.keys() == {*WAYS, "strongest"}
    assert all(np.mean(beyond[way]) < 0.05 for way in WAYS), beyond


def determined(model: ModelName = "transe", *, shuffled: bool = False) -> KgeResult:
    """A trained federation in which a patient's drug follows from its disease. A third of the drugs is not trained on.

    `shuffled`: drugs are drawn at random.
    """
    rng, count, patients = np.random.default_rng(0), 12, 90
    clients = []
    for name, first in (("colluder", 2 * count), ("victim", 2 * count + patients)):
        diseases = rng.integers(0, count, patients)
        drugs = rng.integers(0, count, patients) if shuffled else diseases
        heads = first + np.arange(patients)
        has, with_, takes = (
            np.stack([heads, np.full(patients, kind), tails], axis=1)
            for kind, tails in ((0, diseases), (1, diseases), (2, count + drugs))
        )
        train = np.concatenate([has, with_, takes[np.arange(patients) % 3 > 0]])
        clients.append(ClientGraph.from_global(name, train, train[:0], takes[::3]))
    names = tuple(f"e{number}" for number in range(2 * (count + patients)))
    graph = FederatedGraph("determined", names, ("has", "with", "takes"), tuple(clients), frozenset({"takes"}))
    options = KgeOptions(
        model=model, dim=16, rounds=40, eval_every=40, patience=0, batch_size=64, num_negatives=16, learning_rate=0.02,
        device="cpu",
    )  # fmt: skip
    return run_federation(graph, options)


def held_out(result: KgeResult) -> dict[str, Figure]:
    """MRR of drugs that nobody trained on, by way."""
    options = KgeAttackOptions(attack=("attributes",), leak=(1.0,))
    return {figure.variant: figure for figure in run_attacks(result, options).figures if figure.metric == "mrr"}


@pytest.mark.planted(
    "attributes", "30 held-out answers that follow from the disease, TransE or RotatE: MRR above .9", {"mrr": 30}
)
@pytest.mark.parametrize("model", ["transe", "rotate"])
def test_answers_that_follow_from_others_are_told_where_relation_rows_do_not_fit(model: ModelName) -> None:
    """With RotatE, cosines of rows gave .25 where moduli give 1."""
    found = held_out(determined(model))
    assert found["neighbors"].estimate.value > max(0.9, found["score"].estimate.value + 0.05)
    assert found["strongest"].estimate.low > found["strongest"].baseline.value


@pytest.mark.null("attributes", "answers drawn at random: the interval includes the prior's MRR")
def test_answers_that_follow_from_nothing_are_not_told() -> None:
    strongest = held_out(determined(shuffled=True))["strongest"]
    assert strongest.estimate.low <= strongest.baseline.value


def test_ranks_filter_other_true_answers_and_share_ties() -> None:
    answers = Answers(
        np.array(["a", "b", "c", "d"], dtype=object),
        {"score": lambda _: np.array([4.0, 3.0, 3.0, 1.0])} | dict.fromkeys(WAYS[1:], lambda _: np.zeros(4)),
        np.array([0.0, 0.0, 1.0, 2.0]),
    )
    asked = [("h", "r", "b"), ("h", "r", "a"), ("h", "r", "x"), ("h", "other", "a")]
    ranks = _ranks(Inferred({"r": answers}), asked, {("h", "r"): {"a", "b", "x"}, ("h", "other"): {"a"}})
    nowhere = [np.inf, 1]
    assert ranks["score"].tolist() == [[0, 2], [0, 1], nowhere, nowhere]
    assert ranks["prior"].tolist() == [[2, 1], [2, 1], nowhere, nowhere]
    assert ranks["with prior"].tolist() == [[0, 3], [0, 3], nowhere, nowhere]
    expected = [(1 + 1 / 2) / 2, 1, 0, 0], [1 / 3, 1 / 3, 0, 0], [(1 + 1 / 2 + 1 / 3) / 3] * 2 + [0, 0]
    for way, values in zip(("score", "prior", "with prior"), expected, strict=True):
        assert _reciprocal(*ranks[way].T) == pytest.approx(values)


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
