"""A federation ranks filtered by train, valid and test of the client, at validation and at the end, both sides, by hand.

The setting is TransE with one dimension: an entity is a place on a line, the one relation is a step of 1, and a triple
(h, r, t) scores by the distance of h + 1 to t. (h, r, t1) in test and (h, r, t2) in valid: each must step out of the other's way.
"""

import numpy as np
import pytest

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.federation.loop import Federation
from fkgsec.kge.local.evaluation import Evaluator
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


@pytest.mark.parametrize("algorithm", ["fede", "fedlu"])
def test_by_hand(algorithm: str, crossed: FederatedGraph) -> None:
    """The shared model's evaluator and, where clients keep a second model, that one's."""
    options = KgeOptions(algorithm=algorithm, dim=1, device="cpu")
    federation = Federation(crossed, options)
    assert (federation.task.evaluator is not federation.task.shared_evaluator) == (algorithm == "fedlu")
    for evaluator in (federation.task.evaluator, federation.task.shared_evaluator):
        on_the_line(federation, evaluator)
        for split, expected in (("valid", VALID), ("test", TEST)):
            for found, client in zip(evaluator.ranks(split), crossed.clients, strict=True):
                assert found.tolist() == [list(pair) for pair in expected[client.name]], (split, client.name)
        ranks = np.array([rank for pairs in VALID.values() for pair in pairs for rank in pair])
        assert evaluator.mrr("valid") == pytest.approx((1 / ranks).mean())
