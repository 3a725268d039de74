"""Splits and divisions against counts, and the published code's chunks against its own lines."""

import random

import numpy as np
import pytest

from fkgsec.data.graph import SPLITS
from fkgsec.errors import DataError, SpecError
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs, GraphSet
from fkgsec.graphs.split import by_chance, by_chunks, by_dataset, stratified, stratified_by_group
from fkgsec.graphs.twins import find_twins


def paths(sizes: list[int], classes: list[int], name: str = "paths", **options: object) -> GraphSet:
    """A path of so many nodes for each graph."""
    first = np.cumsum([0, *sizes])
    edges = [
        (start + node, start + node + 1) for start, size in zip(first, sizes, strict=False) for node in range(size - 1)
    ]
    both = np.array([*edges, *((other, one) for one, other in edges)])
    labels = np.zeros(first[-1], dtype=np.int64)
    return GraphSet.from_edges(name, np.array(sizes), both, np.array(classes), labels, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_every_class_has_its_share_of_each_split(seed: int) -> None:
    classes = np.repeat([0, 1, 2], [97, 40, 11])
    split = stratified(classes, np.random.default_rng(seed))
    for number, share in enumerate((0.8, 0.1, 0.1)):
        assert abs((split == number).sum() - share * len(classes)) <= 1
        for one in range(3):
            assert abs(((split == number) & (classes == one)).sum() - share * (classes == one).sum()) <= 1


def test_groups_stay_together() -> None:
    rng = np.random.default_rng(0)
    groups = np.unique(rng.integers(300, size=500), return_inverse=True)[1]
    classes = rng.integers(2, size=500)
    split = stratified_by_group(classes, groups, rng)
    assert all(len(set(split[groups == group])) == 1 for group in range(groups.max() + 1))
    for number, share in enumerate((0.8, 0.1, 0.1)):
        for one in range(2):
            assert ((split == number) & (classes == one)).sum() == pytest.approx(share * (classes == one).sum(), abs=4)


def test_a_group_that_is_most_of_the_data_trains() -> None:
    split = stratified_by_group(np.zeros(30, dtype=np.int64), np.minimum(np.arange(30), 10), np.random.default_rng(0))
    assert set(split[10:]) == {0}
    assert [int((split == number).sum()) for number in range(3)] == [24, 3, 3]


def test_one_client_for_each_data_set() -> None:
    sets = generate_motifs(0, clients=3, size=150)
    federation = by_dataset(sets, seed=0)
    assert [client.name for client in federation.clients] == [graphs.name for graphs in sets]
    assert [len(client.graphs) for client in federation.clients] == [50, 50, 50]
    assert federation.hash == by_dataset(sets, seed=0).hash
    assert len({federation.hash, by_dataset(sets, seed=1).hash, by_dataset(sets[::-1], seed=0).hash}) == 3
    with pytest.raises(DataError, match="at least one data set"):
        by_dataset([], seed=0)


def published_chunks(graphs: list[int], num_client: int, seed: int) -> list[list[int]]:
    """GCFL's code, `_randChunk` without overlap."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    total = len(graphs)
    size = min(50, int(total / num_client))
    chunks = [graphs[i * size : (i + 1) * size] for i in range(num_client)]
    for graph in graphs[num_client * size :]:
        chunks[np.random.randint(low=0, high=num_client, size=1)[0]].append(graph)  # noqa: NPY002
    return chunks


def test_chunks_begin_in_file_order_as_published() -> None:
    graphs = paths(list(range(2, 322)), [0, 1] * 160)
    federation = by_chunks(graphs, clients=5, seed=0)
    published = published_chunks(list(range(320)), 5, 0)
    for client, chunk in zip(federation.clients, published, strict=True):
        assert (client.graphs.sizes[:50] - 2).tolist() == chunk[:50]
    found = np.concatenate([client.graphs.sizes - 2 for client in federation.clients])
    assert sorted(found) == list(range(320))
    assert {len(client.graphs) for client in federation.clients} != {64}  # the rest is drawn


def test_random_parts_are_even_and_mixed() -> None:
    federation = by_chance(paths(list(range(2, 103)), [0] * 50 + [1] * 51), clients=4, seed=0)
    assert [len(client.graphs) for client in federation.clients] == [26, 25, 25, 25]
    assert all(0.2 < client.graphs.classes.mean() < 0.8 for client in federation.clients)


@pytest.mark.parametrize("divide", [by_chunks, by_chance])
def test_clean_divisions_have_no_twins(divide: object) -> None:
    sizes = np.random.default_rng(0).integers(3, 40, size=200).tolist()  # paths of one size are isomorphic
    graphs = paths(sizes, [size % 2 for size in sizes])
    plain = find_twins(divide(graphs, clients=2, seed=0))  # type: ignore[operator]
    clean = find_twins(divide(graphs, clients=2, seed=0, clean=True))  # type: ignore[operator]
    assert plain.table[["twin_own", "twin_other"]].to_numpy().sum() > 20
    assert clean.table[["twin_own", "twin_other"]].to_numpy().sum() == 0
    assert clean.warning() == ""
    assert "test graphs are isomorphic to a training graph" in plain.warning()


def test_what_cannot_be_divided_is_refused() -> None:
    graphs = paths([3] * 30, [0] * 30)
    with pytest.raises(SpecError, match="clients is 0"):
        by_chunks(graphs, clients=0, seed=0)
    with pytest.raises(DataError, match="30 graphs over 4 clients are fewer than 10 each"):
        by_chance(graphs, clients=4, seed=0)
    with pytest.raises(DataError, match="each of its 3 graphs must stand in one split"):
        ClientGraphs("c", graphs.subset([0, 1, 2]), np.array([0, 1]), np.array([1]), np.array([2]))
    with pytest.raises(DataError, match="train split is empty"):
        ClientGraphs("c", graphs.subset([0]), np.array([]), np.array([0]), np.array([]))
    one = ClientGraphs("c", graphs.subset([0]), np.array([0]), np.array([]), np.array([]))
    with pytest.raises(DataError, match="names must be unique"):
        FederatedGraphs("f", (one, one))
    with pytest.raises(DataError, match="at least one client"):
        FederatedGraphs("f", ())


def test_a_subset_has_the_same_graphs() -> None:
    graphs = generate_motifs(0, clients=1, size=40)[0]
    chosen = [7, 3, 3, 20]
    part = graphs.subset(chosen)
    for place, number in enumerate(chosen):
        assert np.array_equal(part.edges(place), graphs.edges(number))
        own, all_ = (slice(*one.node_ptr[at : at + 2]) for one, at in ((part, place), (graphs, number)))
        assert np.array_equal(part.labels[own], graphs.labels[all_])
    assert part.classes.tolist() == graphs.classes[chosen].tolist()
    assert [len(SPLITS), part.num_labels] == [3, graphs.num_labels]
