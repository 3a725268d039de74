"""A federation ranks filtered by train, valid and test of the client, at validation and at the end, both sides, by hand.

The setting is TransE with one dimension: an entity is a place on a line, the one relation is a step of 1, and a triple
(h, r, t) scores by the distance of h + 1 to t. (h, r, t1) in test and (h, r, t2) in valid: each must step out of the other's way.
"""

import numpy as np
import pytest

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.federation.loop import Federation, run_federation
from fkgsec.kge.local.evaluation import Evaluator
from fkgsec.kge.models import ClientTables
from fkgsec.kge.options import KgeOptions

# Client a holds entities 0..3 at these places, b entities 2..6; 7 stands in b's test alone. So each ranks among its own.
PLACES = {"a": [0.0, 1.1, 2.4, 10.0], "b": [0.0, 3.0, 1.3, 1.2, 0.9, 0.55]}
TRIPLES = {
    "a": {"train": [(0, 3), (1, 2), (2, 0)], "valid": [(0, 1), (3, 0), (1, 3)], "test": [(0, 2), (3, 1), (2, 3)]},
    "b": {"train": [(2, 3), (3, 4), (5, 6), (6, 2)], "valid": [(2, 4), (6, 5)], "test": [(2, 5), (6, 7)]},
}
# Rank of the tail, rank of the head. What a filter by train alone would say instead stands behind.
VALID = {
    "a": [
        # 0 + 1 = 1: nearest 1 (.1). Heads near 1.1 - 1 = .1: 0 (.1).
        (1, 1),  # 1, 1
        # 10 + 1 = 11: 3 (1), 2 (8.6), 1 (9.9; in test), 0 (11). Heads near -1: 0 (1), 1 (2.1), 2 (3.4; in train), 3 (11).
        (3, 3),  # 4, 3
        # 1.1 + 1 = 2.1: 2 (.3; in train), 1 (1), 0 (2.1), 3 (7.9). Heads near 9: 3 (1), 2 (6.6; in test), 1 (7.9).
        (3, 2),  # 3, 3
    ],
    "b": [
        # 0 + 1 = 1: 6 (.1), 5 (.2; in test), 4 (.3), 7 (.45), 2 (1). Heads near .3: 7 (.25), 2 (.3), 6 (.6).
        (2, 2),  # 3, 2
        # .9 + 1 = 1.9: 4 (.6), 5 (.7), 6 (1). Heads near .2: 2 (.2; in test), 7 (.35), 6 (.7).
        (2, 2),  # 2, 3
    ],
}
TEST = {
    "a": [
        # 0 + 1 = 1: 1 (.1; in valid), 0 (1), 2 (1.4). Heads near 1.4: 1 (.3; in train), 2 (1), 0 (1.4), 3 (8.6).
        (2, 2),  # 3, 2
        # 11: 3 (1), 2 (8.6), 1 (9.9). Heads near .1: 0 (.1; in valid), 1 (1), 2 (2.3), 3 (9.9).
        (3, 3),  # 3, 4
        # 2.4 + 1 = 3.4: 2 (1), 1 (2.3), 0 (3.4; in train), 3 (6.6). Heads near 9: 3 (1), 2 (6.6).
        (3, 2),  # 3, 2
    ],
    "b": [
        # 1: 6 (.1), 5 (.2). Heads near .2: 2 (.2).
        (2, 1),  # 2, 1
        # 1.9: 4 (.6), 5 (.7; in valid), 6 (1), 3 (1.1), 7 (1.35). Heads near -.45: 2 (.45), 7 (1), 6 (1.35).
        (4, 3),  # 5, 3
    ],
}


@pytest.fixture(scope="module")
def crossed() -> FederatedGraph:
    clients = [
        ClientGraph.from_global(
            name, *(np.array([(h, 0, t) for h, t in splits[split]]) for split in ("train", "valid", "test"))
        )
        for name, splits in TRIPLES.items()
    ]
    return FederatedGraph("crossed", tuple(f"entity {i}" for i in range(8)), ("step",), tuple(clients))


def on_the_line(federation: Federation, evaluator: Evaluator) -> None:
    """Put every client's entities to their places, in the rows that this evaluator reads."""
    for place, client in enumerate(federation.graph.clients):
        tables = evaluator.client_tables(place)
        first = int(client.entity_ids.min())
        for row, entity in enumerate(client.entity_ids):
            tables.entities[row] = PLACES[client.name][entity - first]
        tables.relations[:] = 1.0


@pytest.mark.parametrize("algorithm", ["fede", "single", "fedr", "fedlu", "fede-kd"])
def test_by_hand(algorithm: str, crossed: FederatedGraph) -> None:
    """The shared model's evaluator and, where clients keep a second model, that one's."""
    options = KgeOptions(algorithm=algorithm, dim=1, device="cpu")
    federation = Federation(crossed, options)
    assert (federation.task.evaluator is not federation.task.shared_evaluator) == (algorithm in ("fedlu", "fede-kd"))
    for evaluator in (federation.task.evaluator, federation.task.shared_evaluator):
        on_the_line(federation, evaluator)
        for split, expected in (("valid", VALID), ("test", TEST)):
            for found, client in zip(evaluator.ranks(split), crossed.clients, strict=True):
                assert found.tolist() == [list(pair) for pair in expected[client.name]], (split, client.name)
        ranks = np.array([rank for pairs in VALID.values() for pair in pairs for rank in pair])
        assert evaluator.mrr("valid") == pytest.approx((1 / ranks).mean())


def naive_ranks(graph: ClientGraph, tables: ClientTables, triples: np.ndarray) -> list[list[float]]:
    """TransE's filtered ranks, triple by triple; ties get the mean rank."""
    known = {
        tuple(int(part) for part in triple) for split in (graph.train, graph.valid, graph.test) for triple in split
    }
    ranks = []
    for h, r, t in triples.tolist():
        pair = []
        for true, others in (
            ((h, r, t), [(h, r, e) for e in range(graph.num_entities)]),
            ((h, r, t), [(e, r, t) for e in range(graph.num_entities)]),
        ):

            def far(one: tuple[int, int, int]) -> float:
                return float((tables.entities[one[0]] + tables.relations[one[1]] - tables.entities[one[2]]).abs().sum())

            rivals = [far(one) for one in others if one not in known]
            pair.append(1 + sum(d < far(true) for d in rivals) + sum(d == far(true) for d in rivals) / 2)
        ranks.append(pair)
    return ranks


@pytest.mark.parametrize("algorithm", ["fede", "single", "collective", "fedlu"])
def test_of_a_run_by_a_naive_reference(algorithm: str, crossed: FederatedGraph) -> None:
    """The figures that a run returns: test ranks of the kept tables, and the validation MRR of its one round."""
    options = KgeOptions(
        algorithm=algorithm, dim=4, rounds=1, local_epochs=1, eval_every=1, batch_size=8, num_negatives=2, device="cpu"
    )
    result = run_federation(crossed, options)
    models = {"own": (result.private or result.tables, result.test_ranks)}
    if result.private:
        models["shared"] = (result.tables, result.shared_test_ranks)
    for tables, ranks in models.values():
        for client, own, found in zip(crossed.clients, tables, ranks, strict=True):
            assert np.allclose(found, naive_ranks(client, own, client.test), atol=1e-6)
    valid = [
        rank
        for client, own in zip(crossed.clients, models["own"][0], strict=True)
        for pair in naive_ranks(client, own, client.valid)
        for rank in pair
    ]
    assert result.rounds[1].valid == pytest.approx((1 / np.array(valid)).mean())
