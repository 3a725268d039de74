"""Statistics against networkx and against figures counted by hand."""

from __future__ import annotations

import os
from pathlib import Path

import networkx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.formats.folders import read_tsv_folder
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.data.statistics import UNION, local_clustering, statistics_rows

DATA = os.environ.get("FKGSEC_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FKGSEC_DATA is not set")


def naive_clustering(edges: np.ndarray, num_entities: int) -> list[float]:
    graph = networkx.Graph()
    graph.add_nodes_from(range(num_entities))
    graph.add_edges_from((a, b) for a, b in edges.tolist() if a != b)
    coefficients = networkx.clustering(graph)
    assert isinstance(coefficients, dict)
    return [coefficients[entity] for entity in range(num_entities)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=50))
def test_clustering_is_that_of_networkx(pairs: list[tuple[int, int]]) -> None:
    edges = np.array(pairs)
    assert local_clustering(edges, 9) == pytest.approx(naive_clustering(edges, 9))


def test_clustering_of_a_graph_with_hubs_is_that_of_networkx() -> None:
    graph = generate_consortium(1, 3000).clients[0]
    edges = graph.triples[:, [0, 2]]
    expected = naive_clustering(edges, graph.num_entities)
    assert local_clustering(edges, graph.num_entities) == pytest.approx(expected)
    assert 0.05 < np.mean(expected) < 0.6


def test_a_federation_by_hand() -> None:
    none = np.zeros((0, 3), np.int64)
    # A triangle 0 1 2 with one edge in both directions and one triple twice; client b shares entities 2 and 3 of four.
    a = ClientGraph.from_global(
        "a", np.array([[0, 0, 1], [1, 0, 2], [2, 1, 1], [2, 0, 3]]), none, np.array([[0, 0, 2], [0, 0, 1]])
    )
    b = ClientGraph.from_global("b", np.array([[2, 2, 3], [3, 2, 4], [4, 2, 4]]), np.array([[5, 2, 4]]), none)
    federated = FederatedGraph("hand", tuple("uvwxyz"), ("r", "s", "t"), (a, b))
    table = pd.DataFrame(statistics_rows(federated))
    assert table["client"].tolist() == ["a", "b", UNION]
    columns = [
        "clients",
        "entities",
        "relations",
        "train",
        "valid",
        "test",
        "distinct_triples",
        "shared_entities",
        "max_degree",
    ]
    assert table[columns].to_numpy().tolist() == [
        [1, 4, 2, 4, 0, 2, 5, 2, 4],
        [1, 4, 1, 3, 1, 0, 4, 2, 4],
        [2, 6, 3, 7, 1, 2, 9, 2, 5],
    ]
    assert table["mean_degree"].tolist() == pytest.approx([10 / 4, 8 / 4, 18 / 6])
    assert table["clustering"].tolist() == pytest.approx([(1 + 1 + 1 / 3) / 4, 0, (1 + 1 + 1 / 3) / 6])


@needs_data
def test_fb15k_237_has_its_published_figures() -> None:
    graph = read_tsv_folder(Path(DATA or "") / "FB15k-237")
    assert [line.partition(",")[0] for line in graph.warnings] == [
        "valid: 8 entities that train lacks",
        "test: 29 entities that train lacks",
    ]
    client = ClientGraph.from_global("all", graph.train, graph.valid, graph.test)
    row, _ = statistics_rows(FederatedGraph("FB15k-237", graph.entities, graph.relations, (client,)))
    sizes = [row[column] for column in ("entities", "relations", "train", "valid", "test", "distinct_triples")]
    assert sizes == [14_541, 237, 272_115, 17_535, 20_466, 310_116]
    assert row["max_degree"] == 8642
    assert row["mean_degree"] == pytest.approx(42.654, abs=1e-3)
