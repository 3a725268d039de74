"""What an audit reads off a run: a triple's relation among all relations between its ends."""

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph
from fkgsec.attacks.forgetting.evidence import OTHERS, weigh_evidence
from fkgsec.attacks.forgetting.readings import READINGS, AuditRun, Reading, relation_ranks
from fkgsec.attacks.membership.audits import Audited, ClientModel
from fkgsec.kge.models import MODELS, ClientTables, KgeModel


@pytest.mark.parametrize("name", ["transe", "rotate", "distmult", "complex"])
def test_a_relations_rank_is_the_one_counted_by_hand(name: str) -> None:
    assert name in MODELS
    model, draw = KgeModel(name, dim=4), torch.Generator().manual_seed(1)
    tables = ClientTables(
        torch.randn(6, model.entity_width, generator=draw), torch.randn(5, model.relation_width, generator=draw)
    )
    rng = np.random.default_rng(0)
    known = np.unique(
        np.column_stack([rng.integers(6, size=60), rng.integers(5, size=60), rng.integers(6, size=60)]), axis=0
    )
    triples = np.concatenate([known[:20], [[0, 4, 5], [5, 0, 5]]])  # known ones, and ones that may not be
    expected = []
    for head, relation, tail in triples:
        others = {one for h, one, t in known.tolist() if (h, t) == (head, tail)} - {relation}
        scores = [
            float(model.score(tables.entities[head], tables.relations[one], tables.entities[tail]))
            for one in range(5)
            if one not in others
        ]
        own = float(model.score(tables.entities[head], tables.relations[relation], tables.entities[tail]))
        expected.append(1 / (1 + sum(score > own + 1e-4 for score in scores)))
    np.testing.assert_allclose(relation_ranks(ClientModel(model, tables), triples, known), expected)


def test_of_equal_relations_none_is_first() -> None:
    model = KgeModel("distmult", dim=2)
    tables = ClientTables(torch.ones(2, 2), torch.ones(3, 2))
    triples = np.array([[0, 1, 1]])
    assert relation_ranks(ClientModel(model, tables), triples, triples).tolist() == [0.5]  # the second of three
    assert relation_ranks(
        ClientModel(model, tables), triples, np.array([[0, 0, 1], [0, 1, 1], [0, 2, 1]])
    ).tolist() == [1.0]


NONE = np.empty((0, 3), dtype=np.int64)


def client(name: str, relations: list[int], train: list[list[int]]) -> ClientGraph:
    return ClientGraph(name, np.arange(4), np.array(relations), np.array(train), NONE, NONE)


def test_of_clients_that_cannot_express_the_triples_it_is_said_that_nothing_bounds_them() -> None:
    """Divided by relations: their rows of the same entities may be the raw run's, and the certificate did not name them."""
    own = np.array([[0, 0, 1], [1, 0, 2], [2, 0, 3], [3, 0, 0]])
    graph = FederatedGraph(
        "by relations",
        ("a", "b", "c", "d"),
        ("r", "s"),
        (client("asked", [0], own.tolist()), client("aside", [1], [[0, 0, 2], [1, 0, 3]])),
    )
    audits = [
        Audited(0, "asked", True, own[:2], own[:2], own[2:]),
        Audited(1, "aside", False, NONE, NONE, NONE, reason="0 forgotten triples with 0 controls; it takes 2 of each"),
    ]
    rng = np.random.default_rng(0)

    def run() -> AuditRun:
        readings = {(0, "global"): Reading({name: rng.random(4) for name in READINGS}, None, np.empty(0))}
        readings[1, "global"] = Reading({name: np.empty(0) for name in READINGS}, None, np.empty(0))
        return AuditRun(readings, {0: np.zeros(4, dtype=bool), 1: np.zeros(0, dtype=bool)})

    evidence = weigh_evidence(run(), [run() for _ in range(3)], [], [], graph, audits, {})
    (row,) = (one for one in evidence.models if one.client == OTHERS)
    assert (row.model, row.asked, row.share) == ("global", False, None)
    assert row.reason is not None
    assert row.reason == "aside: 0 forgotten triples with 0 controls; it takes 2 of each"


@pytest.mark.parametrize("share", [0.3, 1.5])
def test_no_share_above_one_is_told(share: float) -> None:
    """An audited run, and one with a plant, that shift scores by more than training does: the measure is blind there."""
    rng, count, gain = np.random.default_rng(0), 200, 1.0
    forgotten = np.arange(count) < count // 2
    own = np.stack([np.arange(count) % 4, np.zeros(count, dtype=np.int64), np.arange(count) // 4], axis=1)
    graph = FederatedGraph(
        "one", tuple(f"e{number}" for number in range(count)), ("r",), (client("asked", [0], own[:4].tolist()),)
    )
    audits = [Audited(0, "asked", True, own[forgotten], own[forgotten], own[~forgotten])]
    difficulty, half = rng.normal(size=count), np.arange(count) % 2 == 0

    def run(memory: np.ndarray) -> AuditRun:
        values = difficulty + 0.1 * rng.normal(size=count) + gain * memory
        return AuditRun({(0, "local"): Reading(dict.fromkeys(READINGS, values), None, np.empty(0))}, {0: memory == 1})

    none = np.zeros(count)
    references, shadows = [run(none) for _ in range(4)], [run(half * 1.0), run(~half * 1.0)]
    plants = [(share, run(share * forgotten))]
    evidence = weigh_evidence(run(share * forgotten), references, shadows, plants, graph, audits, {})
    (row,) = evidence.models
    told = [row.share, row.planted[0].estimate]
    if share > 1:
        assert told == [None, None]
    else:
        assert [one is not None and one.low < share < one.high <= 1 for one in told] == [True, True]


@pytest.mark.parametrize(("change", "learned"), [(2.0, True), (-2.0, False), (0.0, False)])
def test_clients_that_did_not_ask_are_tested_for_what_they_learned_alone(change: float, learned: bool) -> None:
    """Their scores of the forgotten triples rise, fall or stay; those of the client that asked change with them."""
    rng, count = np.random.default_rng(0), 200
    forgotten = np.arange(count) < count // 2
    own = np.stack([np.arange(count) % 4, np.zeros(count, dtype=np.int64), np.arange(count) // 4], axis=1)
    graph = FederatedGraph(
        "two",
        tuple(f"e{number}" for number in range(count)),
        ("r",),
        tuple(ClientGraph(name, np.arange(count), np.array([0]), own[:4], NONE, NONE) for name in ("asked", "aside")),
    )
    audits = [
        Audited(place, name, place == 0, own[forgotten], own[forgotten], own[~forgotten])
        for place, name in enumerate(("asked", "aside"))
    ]
    difficulty = rng.normal(size=count)

    def run(memory: float) -> AuditRun:
        readings = {
            (place, "global"): Reading(
                dict.fromkeys(READINGS, difficulty + 0.5 * rng.normal(size=count) + memory * forgotten),
                None,
                np.empty(0),
            )
            for place in (0, 1)
        }
        return AuditRun(readings, dict.fromkeys((0, 1), np.zeros(count, dtype=bool)))

    evidence = weigh_evidence(run(change), [run(0.0) for _ in range(4)], [], [], graph, audits, {})
    lowest = {row.client: min(test.p_value for test in row.tests if test.name in READINGS) for row in evidence.models}
    assert (lowest[OTHERS] < 1e-3) == learned
    assert (lowest["asked"] < 1e-3) == (change != 0)
