"""Small federations for the tests of the loop."""

import numpy as np
import pytest

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.kge.options import KgeOptions


@pytest.fixture(scope="session")
def uneven() -> FederatedGraph:
    """Three clients whose train splits take 3, 2 and 1 batches of 32."""
    rng = np.random.default_rng(3)
    clients = []
    for name, count in (("small", 20), ("large", 90), ("middle", 50)):
        triples = np.unique(rng.integers(0, [30, 4, 30], size=(count, 3)), axis=0)
        rng.shuffle(triples)
        held_out = len(triples) // 10
        clients.append(
            ClientGraph.from_global(name, triples[2 * held_out :], triples[:held_out], triples[held_out : 2 * held_out])
        )
    entities, relations = tuple(f"entity {i}" for i in range(30)), tuple(f"relation {i}" for i in range(4))
    return FederatedGraph("uneven", entities, relations, tuple(clients))


@pytest.fixture(scope="session")
def consortium() -> FederatedGraph:
    return generate_consortium(clients=3, size=1500, seed=1)


@pytest.fixture
def options() -> KgeOptions:
    return KgeOptions(
        dim=8, batch_size=32, num_negatives=7, local_epochs=2, rounds=2, eval_every=1, patience=0, seed=5, device="cpu"
    )
