"""Partitions and splits against naive references, the released FedLU clusters and graphs too small to divide."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec.data.graph import SPLITS, FederatedGraph, KnowledgeGraph
from fkgsec.data.partition import (
    PARTITIONS,
    count_co_occurrence,
    partition,
    split_triples,
)
from fkgsec.errors import DataError, SpecError

DATA = os.environ.get("FKGSEC_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FKGSEC_DATA is not set")

small_triples = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=60)


def make_graph(
    num_triples: int = 600, num_entities: int = 40, num_relations: int = 12, seed: int = 0
) -> KnowledgeGraph:
    """A random graph without duplicates, all in train."""
    rng = np.random.default_rng(seed)
    bounds = (num_entities, num_relations, num_entities)
    rows = np.unique(np.stack([rng.integers(bound, size=2 * num_triples) for bound in bounds], axis=1), axis=0)
    rows = rng.permutation(rows)[:num_triples]
    return graph_of(rows, num_entities, num_relations)


def graph_of(
    train: np.ndarray, num_entities: int, num_relations: int, test: np.ndarray | None = None, name: str = "random"
) -> KnowledgeGraph:
    empty = np.zeros((0, 3), np.int64)
    return KnowledgeGraph(
        name,
        tuple(f"e{i}" for i in range(num_entities)),
        tuple(f"r{i}" for i in range(num_relations)),
        train,
        empty,
        empty if test is None else test,
        sensitive=frozenset({"r0"}),
    )


def rows_of(federated: FederatedGraph, client: int) -> list[tuple[int, ...]]:
    graph = federated.clients[client]
    return [tuple(row) for row in graph.to_global(graph.triples).tolist()]


@pytest.mark.parametrize("how", PARTITIONS)
@pytest.mark.parametrize("clients", [1, 5])
def test_every_triple_goes_to_one_client(how: str, clients: int) -> None:
    graph = make_graph()
    federated = partition(graph, how, clients, seed=3)
    rows = [row for client in range(clients) for row in rows_of(federated, client)]
    assert sorted(rows) == sorted(map(tuple, graph.triples.tolist()))
    assert [client.name for client in federated.clients] == [f"client-{k + 1}" for k in range(clients)]
    assert federated.sensitive == graph.sensitive
    assert (federated.entities, federated.relations) == (graph.entities, graph.relations)


@pytest.mark.parametrize("how", PARTITIONS)
def test_same_seed_same_federation(how: str) -> None:
    graph = make_graph()
    assert partition(graph, how, 3, seed=1).hash == partition(graph, how, 3, seed=1).hash
    assert partition(graph, how, 3, seed=1).hash != partition(graph, how, 3, seed=2).hash


def test_triples_are_dealt_evenly() -> None:
    federated = partition(make_graph(num_triples=602), "triples", 5, seed=0)
    assert sorted(len(client.triples) for client in federated.clients) == [120, 120, 120, 121, 121]


def test_relations_are_dealt_evenly_and_keep_their_triples() -> None:
    federated = partition(make_graph(num_relations=14), "relations", 5, seed=0)
    assert sorted(client.num_relations for client in federated.clients) == [2, 3, 3, 3, 3]
    relations = np.concatenate([client.relation_ids for client in federated.clients])
    assert len(np.unique(relations)) == len(relations) == 14


def test_clusters_find_relations_that_share_entities() -> None:
    """Two planted groups: odd relations link the first twenty entities, even ones the last twenty, three triples cross."""
    rng = np.random.default_rng(0)
    relations = rng.integers(8, size=500)
    ends = rng.integers(20, size=(500, 2)) + 20 * (relations % 2 == 0)[:, None]
    ends[:3, 1] = (ends[:3, 1] + 20) % 40
    rows = np.unique(np.stack([ends[:, 0], relations, ends[:, 1]], axis=1), axis=0)
    for seed in range(3):
        federated = partition(graph_of(rows, 40, 8), "clusters", 2, seed)
        assert [sorted(client.relation_ids.tolist()) for client in federated.clients] == [[0, 2, 4, 6], [1, 3, 5, 7]]


@settings(deadline=None, max_examples=30)
@given(small_triples)
def test_co_occurrence_is_algorithm_2(rows: list[tuple[int, int, int]]) -> None:
    relations_of: dict[int, set[int]] = {}
    for head, relation, tail in rows:
        relations_of.setdefault(head, set()).add(relation)
        relations_of.setdefault(tail, set()).add(relation)
    size = max(relation for _, relation, _ in rows) + 1
    expected = np.zeros((size, size))
    for linked in relations_of.values():
        for first in linked:
            for second in linked - {first}:
                expected[first, second] += 1
    heads, relations, tails = np.array(rows).T
    assert (count_co_occurrence(heads, relations, tails) == expected).all()


def test_splits_are_pooled_and_duplicates_dropped_with_a_count() -> None:
    rows = make_graph().train
    graph = graph_of(np.concatenate([rows[:500], rows[:7]]), 40, 12, test=np.concatenate([rows[500:], rows[:5]]))
    federated = partition(graph, "triples", 2, seed=0)
    assert sum(len(client.triples) for client in federated.clients) == 600
    assert "12 of 612 triples were exact duplicates and were dropped" in federated.warnings


@settings(deadline=None, max_examples=40)
@given(small_triples, st.integers(0, 99), st.tuples(st.integers(1, 8), st.integers(0, 3), st.integers(0, 3)))
def test_a_split_is_a_partition_that_covers(
    rows: list[tuple[int, int, int]], seed: int, ratio: tuple[int, int, int]
) -> None:
    triples = np.unique(np.array(rows), axis=0)
    split = split_triples(triples, ratio, rng=np.random.default_rng(seed))
    assert sorted(map(tuple, np.concatenate(split[:3]).tolist())) == sorted(map(tuple, triples.tolist()))
    assert set(split.train[:, [0, 2]].ravel()) == set(triples[:, [0, 2]].ravel())
    assert set(split.train[:, 1]) == set(triples[:, 1])
    wanted = tuple(len(triples) * part // sum(ratio) for part in ratio[1:])
    assert (len(split.valid), len(split.test)) == wanted or "can leave train" in split.warnings[0]


def test_a_sparse_graph_loses_evaluation_triples_and_says_how_many() -> None:
    """A star of 30 leaves and a triangle hanging on it twice: two triples alone can leave train."""
    star = [[0, 0, leaf] for leaf in range(1, 31)]
    doubled = [[1, 0, 2], [2, 0, 1]]
    triples = np.array(star + doubled)
    for seed in range(5):
        covered = split_triples(triples, rng=np.random.default_rng(seed))
        assert len(covered.valid) == len(covered.test) <= 2
        assert covered.warnings[0].startswith(
            f"valid and test have {len(covered.valid)} and {len(covered.test)} triples"
        )
        assert "not 3 and 3 of 32" in covered.warnings[0]


def test_triples_that_must_stay_cover_their_other_entities_too() -> None:
    """Entities 1 and 3 stand once, and their triples know entities 0 and 2 and the relation: both others can leave train."""
    triples = np.array([[0, 0, 1], [2, 0, 3], [0, 0, 2], [2, 0, 0]])
    for seed in range(5):
        split = split_triples(triples, (2, 1, 1), rng=np.random.default_rng(seed))
        assert (split.train.tolist(), split.warnings) == ([[0, 0, 1], [2, 0, 3]], ())


def test_train_only_triples_stay() -> None:
    triples = make_graph().train
    kept = np.arange(600) % 3 == 0
    split = split_triples(triples, rng=np.random.default_rng(1), train_only=kept)
    train = set(map(tuple, split.train.tolist()))
    assert all(tuple(row) in train for row in triples[kept].tolist())
    assert len(split.test) == 60


@pytest.mark.parametrize("ratio", [(0, 1, 1), (8, -1, 1), (8, 1), (0.8, 0.1, 0.1)])
def test_a_wrong_ratio(ratio: tuple[int, int, int]) -> None:
    with pytest.raises(SpecError, match=r"ratio is .*allowed: three integers"):
        split_triples(make_graph().train, ratio, rng=np.random.default_rng(0))


def test_nothing_to_split_and_a_mask_of_another_length() -> None:
    with pytest.raises(DataError, match="no triples to split"):
        split_triples(np.zeros((0, 3), np.int64), rng=np.random.default_rng(0))
    with pytest.raises(DataError, match=r"train_only has shape \[3\], allowed: \[600\]"):
        split_triples(make_graph().train, rng=np.random.default_rng(0), train_only=np.zeros(3, bool))


@pytest.mark.parametrize(
    ("how", "clients", "error", "message"),
    [
        ("random", 3, SpecError, "partition is 'random', allowed: triples, relations, clusters"),
        ("triples", 0, SpecError, "clients is 0, allowed: 1 or more"),
        ("triples", 601, DataError, "random: 600 triples cannot be divided among 601 clients"),
        ("relations", 13, DataError, "12 relations cannot be divided among 13 clients"),
        ("clusters", 13, DataError, "12 relations cannot be divided among 13 clients"),
    ],
)
def test_what_cannot_be_divided(how: str, clients: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        partition(make_graph(), how, clients, seed=0)


@pytest.mark.slow
@needs_data
def test_clusters_of_fb15k_237_are_the_released_ones() -> None:
    assert DATA is not None
    entities: dict[str, int] = {}
    relations: dict[str, int] = {}

    def read(path: Path) -> np.ndarray:
        lines = [line.split("\t") for line in path.read_text().splitlines()]
        return np.array(
            [
                (
                    entities.setdefault(h, len(entities)),
                    relations.setdefault(r, len(relations)),
                    entities.setdefault(t, len(entities)),
                )
                for h, r, t in lines
            ]
        )

    rows = np.concatenate([read(Path(DATA) / "FB15k-237" / f"{split}.txt") for split in SPLITS])
    graph = graph_of(rows, len(entities), len(relations), name="FB15k-237")
    for clients, sizes in ((3, [15_009, 55_307, 239_800]), (5, [15_009, 17_300, 36_782, 98_554, 142_471])):
        federated = partition(graph, "clusters", clients, seed=clients)
        assert sorted(len(client.triples) for client in federated.clients) == sizes
        clusters = [set(client.relation_ids.tolist()) for client in federated.clients]
        matching = []
        for client in range(clients):
            released = set(read(Path(DATA) / f"FB15k-237-fedlu/C{clients}/{client}/test.txt")[:, 1].tolist())
            matching += [k for k in range(clients) if released <= clusters[k]]
        assert sorted(matching) == list(range(clients))
        assert not [line for line in federated.warnings if "pooled and divided anew" not in line]


def test_warnings_of_the_pooled_splits_are_not_passed_on() -> None:
    triples = np.array([[h, h % 2, (h + 1) % 12] for h in range(12)])
    notes = ("test: 3 entities that train lacks, first at test.txt:1", "5 triples with a literal were skipped")
    graph = KnowledgeGraph(
        "g", tuple(map(str, range(12))), ("r", "s"), triples, triples[:0], triples[:0], warnings=notes
    )
    warnings = partition(graph, "triples", 2, 0).warnings
    assert notes[1] in warnings
    assert notes[0] not in warnings
    assert not any("pooled" in line for line in warnings)  # nothing was split


def test_a_published_split_that_is_pooled_is_said() -> None:
    triples = np.array([[h, 0, (h + 1) % 12] for h in range(12)])
    graph = KnowledgeGraph("g", tuple(map(str, range(12))), ("r",), triples[:10], triples[10:11], triples[11:])
    assert partition(graph, "triples", 2, 0).warnings[0] == (
        "g: its own train, valid and test were pooled and divided anew, 8:1:1 for each client; figures do not compare with those "
        "on its published test split"
    )
