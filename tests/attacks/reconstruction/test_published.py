"""The counts of FedR's notebooks, recomputed with loops as PUBLISHED.md describes them."""

from __future__ import annotations

import numpy as np
import pytest

from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions
from fkgsec.attacks.registry import build_view
from fkgsec.attacks.view import ALL
from fkgsec.kge.result import KgeResult
from tests.attacks.pairs import Pair, reconstruct


def published_rows(result: KgeResult, threat: str, leak: float) -> dict[str, Pair]:
    options = KgeAttackOptions(threat=(threat,), leak=(leak,), metric="published")
    rows, items = reconstruct(result, options)
    assert len(items) == 0  # the notebooks' counts are not sums over items
    return {row.victim: row for row in rows if row.victim != ALL}


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def largest(query: np.ndarray, named: dict[str, np.ndarray]) -> str:
    return max(named, key=lambda name: cosine(query, named[name]))


@pytest.mark.parametrize("leak", [0.7, 1.0])
def test_fede(trained_runs, leak: float) -> None:
    """ERR |pool and E_k| / |E_k|; TRR over true pairs inside the pool, of shared rows, over all training triples."""
    result = trained_runs["fede"]
    graph = result.graph
    colluder = graph.clients[0]
    known = build_view(result, THREAT_MODELS["collusion"], colluder=colluder.name, leak=leak, seed=0).colluder
    pool = set(known.entity_names)
    shared = {
        graph.entities[n]: row.numpy() for n, row in zip(colluder.entity_ids, result.tables[0].entities, strict=True)
    }
    own = {
        graph.relations[n]: row.numpy()
        for n, row in zip(colluder.relation_ids, result.trained[0].relations, strict=True)
    }
    relations = {name: own[name] for name in known.relation_names}
    for client in graph.clients[1:]:
        row = published_rows(result, "collusion", leak)[client.name]
        entities = {graph.entities[number] for number in client.entity_ids[: client.num_trained_entities]}
        assert row.err.estimate.value == len(pool & entities) / len(entities)
        assert row.err.advantage == 0  # no embedding is looked at
        given = right = majority = 0
        for h, r, t in client.to_global(client.train):
            head, relation, tail = graph.entities[h], graph.relations[r], graph.entities[t]
            if head in pool and tail in pool:
                given += 1
                right += largest(shared[tail] - shared[head], relations) == relation
                majority += relation == known.majority_relation
        assert len(client.train) > given > right > 0
        assert row.trr.estimate.value == right / len(client.train)
        assert row.trr.guesses["majority"].value == majority / len(client.train)
        assert not row.unlinked


def test_fede_looks_at_shared_rows_not_at_uploads(planted, fabricate) -> None:
    """What clients trained, and so what they uploaded, does not count: only the server's broadcast does."""
    result = planted()
    shuffled = planted(shuffled=True)
    same = fabricate(result.graph, [result.trained[0], *shuffled.trained[1:]], result.tables)
    assert published_rows(same, "collusion", 1.0) == published_rows(result, "collusion", 1.0)


@pytest.mark.parametrize("leak", [0.5, 1.0])
def test_fedr(trained_runs, leak: float) -> None:
    """ERR from embeddings; "TRR" is right entities in a linked pair, over training triples."""
    result = trained_runs["fedr"]
    graph = result.graph
    known = build_view(
        result, THREAT_MODELS["collusion+entities"], colluder=graph.clients[0].name, leak=leak, seed=0
    ).colluder
    pool = dict(zip(known.entity_names, known.entities.numpy(), strict=True))
    for place, client in enumerate(graph.clients[1:], 1):
        row = published_rows(result, "collusion+entities", leak)[client.name]
        vectors = result.trained[place].entities[: client.num_trained_entities].numpy()
        names = [graph.entities[number] for number in client.entity_ids[: client.num_trained_entities]]
        right = {name for name, vector in zip(names, vectors, strict=True) if largest(vector, pool) == name}
        linked = {graph.entities[n] for n in client.to_global(client.train)[:, [0, 2]].ravel()}
        chance = sum(name in pool for name in names) / len(pool)
        assert row.err.estimate.value == pytest.approx(len(right) / len(names))
        assert row.err.baseline.value == pytest.approx(chance / len(names))
        assert row.trr.estimate.value == pytest.approx(len(right & linked) / len(client.train))
        assert row.trr.guesses["majority"].value == pytest.approx(chance / len(client.train))


def test_fedr_finds_a_planted_signal(planted) -> None:
    rows = published_rows(planted(algorithm="fedr"), "collusion+entities", 1.0)
    for row in rows.values():
        assert row.err.estimate.value > 0.4
        # The notebook divides entities by triples, so the figure is no share of triples.
        assert row.trr.estimate.value * row.trr.estimate.n == pytest.approx(row.err.estimate.value * row.err.estimate.n)
