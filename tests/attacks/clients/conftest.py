"""Runs of two clients that hold the same entities, where one may be asked about the other's triples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fkgsec import ClientGraph, FederatedGraph, KgeModel
from fkgsec.kge.models import ClientTables
from fkgsec.kge.result import KgeResult

NONE = np.zeros((0, 3), dtype=np.int64)


@pytest.fixture(scope="session")
def linked_apart(fabricate) -> Callable[..., KgeResult]:
    """A factory of runs: both hold 40 entities and 2 relations; rows are acted on along the victim's triples, which the other
    has not; 20 more of the same relations are not trained on. `shuffled` permutes the rows."""

    def make(*, shuffled: bool = False, seed: int = 0, model: str = "transe") -> KgeResult:
        rng, dim, count = np.random.default_rng(seed), 16, 40
        kge = KgeModel(model, dim)
        relations = torch.from_numpy(rng.normal(0, 1, (2, kge.relation_width)).astype(np.float32))
        heads = torch.from_numpy(rng.normal(0, 1, (count // 2, kge.entity_width)).astype(np.float32))
        kinds = torch.arange(count // 2) % 2
        entities = torch.stack([heads, kge.query(heads, relations[kinds], "tail")], dim=1).reshape(count, -1)
        if shuffled:
            entities = entities[torch.from_numpy(rng.permutation(count))]
        own = np.array([(place, 0, (place + 7) % count) for place in range(count)] + [(0, 1, 9)])
        theirs = np.array([(2 * place, place % 2, 2 * place + 1) for place in range(count // 2)])
        unseen = np.array([(2 * place, place % 2, (2 * place + 5) % count) for place in range(count // 2)])
        parts = ("own", own, NONE), ("victim", theirs, unseen)
        clients = tuple(ClientGraph.from_global(name, train, NONE, test) for name, train, test in parts)
        graph = FederatedGraph("planted", tuple(f"e{number}" for number in range(count)), ("r0", "r1"), clients)
        tables = [
            ClientTables(entities[one.entity_ids.tolist()], relations[one.relation_ids.tolist()]) for one in clients
        ]
        return fabricate(graph, tables, tables, model=model, dim=dim)

    return make
