"""Twins against networkx on all pairs."""

import os
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from fkgsec.graphs.collection import load_graphs
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs, GraphSet
from fkgsec.graphs.split import by_dataset
from fkgsec.graphs.twins import find_twins, twin_groups

DATA = os.environ.get("FKGSEC_DATA")


def built(
    edge_lists: list[list[tuple[int, int]]], labels: list[list[int]], classes: list[int] | None = None
) -> GraphSet:
    sizes = np.array([len(one) for one in labels])
    first = np.concatenate([[0], np.cumsum(sizes)])
    edges = [(start + a, start + b) for start, own in zip(first, edge_lists, strict=False) for a, b in own]
    flat = np.concatenate([np.array(one) for one in labels])
    numbers = np.array(classes or [0] * len(labels))
    return GraphSet.from_edges("g", sizes, np.array(edges).reshape(-1, 2), numbers, flat, num_classes=2)


def naive_groups(graphs: GraphSet) -> list[int]:
    """The first isomorphic graph of each, by VF2 on every pair."""
    found = []
    for number in range(len(graphs)):
        one = nx.DiGraph(graphs.edges(number).tolist())
        low, high = graphs.node_ptr[number : number + 2]
        one.add_nodes_from((node, {"l": tuple(graphs.labels[low + node])}) for node in range(high - low))
        found.append(one)

    def same(a: nx.DiGraph, b: nx.DiGraph) -> bool:
        return nx.is_isomorphic(a, b, node_match=lambda x, y: x["l"] == y["l"])

    return [
        next(other for other in range(number + 1) if same(found[other], found[number])) for number in range(len(found))
    ]


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_those_of_all_pairs(seed: int) -> None:
    """Small random directed graphs, of which many are isomorphic under another order of the nodes."""
    rng = np.random.default_rng(seed)
    edge_lists, labels = [], []
    for _ in range(60):
        size = int(rng.integers(2, 5))
        order = rng.permutation(size)
        pairs = [(a, b) for a in range(size) for b in range(size) if a != b and rng.random() < 0.3]
        own = rng.integers(2, size=size)
        edge_lists.append([(int(order[a]), int(order[b])) for a, b in pairs])
        labels.append(own[np.argsort(order)].tolist())
    graphs = built(edge_lists, labels)
    naive = naive_groups(graphs)
    assert len(set(naive)) < 55
    assert twin_groups(graphs).tolist() == np.unique(naive, return_inverse=True)[1].tolist()


def test_graphs_that_colours_cannot_tell_apart() -> None:
    """A ring of six and two triangles: every node has two neighbours."""
    ring = [(place, (place + 1) % 6) for place in range(6)]
    triangles = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
    moved = [((2 * a) % 5 if a < 5 else 5, (2 * b) % 5 if b < 5 else 5) for a, b in ring]
    both = [own + [(b, a) for a, b in own] for own in (ring, triangles, moved)]
    assert twin_groups(built(both, [[0] * 6] * 3)).tolist() == [0, 1, 0]


def test_labels_and_directions_tell_graphs_apart() -> None:
    graphs = built([[(0, 1)], [(1, 0)], [(0, 1)], [(0, 1), (1, 0)]], [[0, 0], [0, 0], [0, 1], [0, 0]])
    assert twin_groups(graphs).tolist() == [0, 0, 1, 2]
    assert twin_groups(built([[(0, 1)], [(1, 0)]], [[0, 1], [0, 1]])).tolist() == [0, 1]


def test_leaks_of_two_clients_by_hand() -> None:
    edge, none = [(0, 1), (1, 0)], []
    first = built([edge, edge, none, none], [[0, 0], [0, 0], [1], [2]], [0, 1, 0, 1])
    second = built([none, none], [[2], [1]], [0, 0])
    clients = (
        ClientGraphs("a", first, np.array([0, 2]), np.array([3]), np.array([1])),
        ClientGraphs("b", second, np.array([0]), np.array([]), np.array([1])),
    )
    twins = find_twins(FederatedGraphs("two", clients))
    counts = twins.table.set_index(["client", "split"])
    assert counts.loc[("a", "test")].tolist() == [1, 1, 0, 1]  # the edge stands in train, with class 0
    assert counts.loc[("a", "valid")].tolist() == [1, 0, 1, 1]  # b trains on a 2, with class 0
    assert counts.loc[("b", "test")].tolist() == [1, 0, 1, 0]
    assert counts.loc[("b", "valid")].tolist() == [0, 0, 0, 0]
    assert twins.warning().startswith("2 of 2 test graphs are isomorphic to a training graph (of another class for 1)")
    others = tuple(
        ClientGraphs(one.name, one.graphs, one.train, one.valid, one.test, vocabulary=one.name) for one in clients
    )
    apart = find_twins(FederatedGraphs("two", others)).table.set_index(["client", "split"])
    assert apart["twin_other"].sum() == 0  # labels of two data sets mean different things


needs_data = pytest.mark.skipif(
    not DATA or not (Path(DATA) / "TUDataset").is_dir(), reason="FKGSEC_DATA has no TUDataset"
)


@needs_data
@pytest.mark.parametrize(("name", "groups"), [("MUTAG", 175), ("DHFR-cleaned", 578)])
def test_published_sets(name: str, groups: int) -> None:
    """The cleaned set has no twins, as its makers say."""
    graphs = load_graphs(name)
    assert int(twin_groups(graphs).max()) + 1 == groups
    clean = find_twins(by_dataset([graphs], seed=0, clean=True))
    assert clean.table["twin_own"].sum() == 0
