"""Controls against their definition written as loops, and the cleaned test split of FB15k-237."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkgsec import ClientGraph, KnowledgeGraph, read_path
from fkgsec.attacks.membership.controls import Controls, matched_controls
from fkgsec.errors import DataError

DATA = os.environ.get("FKGSEC_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="FKGSEC_DATA is not set")
NONE = np.zeros((0, 3), dtype=np.int64)

Triple = tuple[int, int, int]


def make_graph(
    seed: int, *, num_entities: int = 12, num_relations: int = 3, sizes: tuple[int, int, int]
) -> ClientGraph:
    """Random triples with skewed degrees; some stand in two splits, or twice in one."""
    rng = np.random.default_rng(seed)

    def triples(count: int) -> np.ndarray:
        ends = (num_entities * rng.random((2, count)) ** 2).astype(np.int64)
        return np.stack([ends[0], rng.integers(0, num_relations, count), ends[1]], axis=1)

    return ClientGraph("a", np.arange(num_entities), np.arange(num_relations), *map(triples, sizes))


def some_of_train(graph: ClientGraph, seed: int, share: float = 0.3) -> np.ndarray:
    distinct = np.unique(graph.train, axis=0)
    count = max(1, round(share * len(distinct)))
    return np.random.default_rng(seed).permutation(distinct)[:count]


class Naive:
    """What is known of a triple in the graph that a re-trained model sees."""

    def __init__(self, graph: ClientGraph, forget: np.ndarray) -> None:
        gone = set(map(tuple, forget.tolist()))
        self.train: list[Triple] = [t for t in map(tuple, graph.train.tolist()) if t not in gone]
        self.seen = {tuple(t) for part in (graph.train, graph.valid) for t in part.tolist()}
        self.test = {tuple(t) for t in graph.test.tolist()}

    def degree(self, entity: int) -> int:
        return [end for head, _, tail in self.train for end in (head, tail)].count(entity)

    def linked(self, triple: Triple) -> bool:
        ends = {triple[0], triple[2]}
        return any({head, tail} == ends for head, _, tail in self.train)

    def doublings(self, one: Triple, other: Triple) -> float:
        pairs = ((one[0], other[0]), (one[2], other[2]))
        return max(abs(math.log2((1 + self.degree(a)) / (1 + self.degree(b)))) for a, b in pairs)

    def bins(self, triple: Triple) -> tuple[int, int]:
        head, tail = (math.floor(math.log2(1 + self.degree(entity))) for entity in (triple[0], triple[2]))
        return head, tail


def check_shape(controls: Controls, forget: np.ndarray, naive: Naive) -> None:
    assert (np.diff(controls.rows) > 0).all()
    assert len(np.unique(controls.triples, axis=0)) == len(controls.triples) == len(controls.rows)
    for row, triple in zip(controls.rows, controls.triples, strict=True):
        assert naive.doublings(tuple(forget[row]), tuple(triple)) < 1
        assert triple[1] == forget[row][1]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_held_out_controls_are_what_they_should_be_and_as_many_as_can_be(seed: int) -> None:
    graph = make_graph(seed, sizes=(60, 8, 40))
    forget = some_of_train(graph, seed)
    elsewhere = graph.test[:5]
    naive = Naive(graph, forget)
    free = naive.test - naive.seen - {tuple(t) for t in elsewhere.tolist()}
    try:
        controls = matched_controls(graph, forget, np.random.default_rng(seed), seen_elsewhere=elsewhere)
    except DataError:
        controls = Controls(np.zeros(0, np.int64), NONE)
    check_shape(controls, forget, naive)
    used = {tuple(t) for t in controls.triples.tolist()}
    assert used <= free
    for row, triple in zip(controls.rows, controls.triples, strict=True):
        assert naive.linked(tuple(forget[row])) == naive.linked(tuple(triple))
    for row in np.setdiff1d(np.arange(len(forget)), controls.rows):
        mine = tuple(forget[row].tolist())
        for other in free - used:
            same = mine[1] == other[1] and naive.linked(mine) == naive.linked(other)
            assert not (same and naive.bins(mine) == naive.bins(other)), f"{mine} could have had {other}"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_shared_controls_match_every_triple_that_has_one_like_it(seed: int) -> None:
    graph = make_graph(seed, sizes=(60, 8, 40))
    forget = some_of_train(graph, seed)
    naive = Naive(graph, forget)
    free = naive.test - naive.seen
    matched = {shared: _matched_or_none(graph, forget, seed, shared=shared) for shared in (False, True)}
    assert set(matched[False].rows) <= set(matched[True].rows)
    for row, triple in zip(matched[True].rows, matched[True].triples, strict=True):
        assert tuple(triple) in free
        assert triple[1] == forget[row][1]
        assert naive.linked(tuple(forget[row])) == naive.linked(tuple(triple))
        assert naive.doublings(tuple(forget[row]), tuple(triple)) < 1
    for row in np.setdiff1d(np.arange(len(forget)), matched[True].rows):
        mine = tuple(forget[row].tolist())
        for other in free:
            same = mine[1] == other[1] and naive.linked(mine) == naive.linked(other)
            assert not (same and naive.bins(mine) == naive.bins(other)), f"{mine} could have had {other}"


def test_shared_controls_are_all_that_are_as_similar_as_the_most_similar() -> None:
    """Two triples at hubs of degree 4 share both controls at such hubs; a control of degree 6 is not as similar."""
    train, leaf = [], 5
    for hub, degree in enumerate((4, 4, 4, 4, 6)):
        train += star(hub, range(leaf, leaf + degree), 0)
        leaf += degree
    asked = [(0, 0, leaf), (1, 0, leaf + 1)]
    test = [(hub, 0, leaf + hub) for hub in (2, 3, 4)]
    graph = ClientGraph("a", np.arange(leaf + 5), np.arange(1), np.array(train + asked), NONE, np.array(test))
    controls = matched_controls(graph, np.array(asked), np.random.default_rng(0), shared=True)
    assert controls.rows.tolist() == [0, 0, 1, 1]
    assert controls.triples.tolist() == [list(test[0]), list(test[1])] * 2


def _matched_or_none(graph: ClientGraph, forget: np.ndarray, seed: int, *, shared: bool) -> Controls:
    try:
        return matched_controls(graph, forget, np.random.default_rng(seed), shared=shared)
    except DataError:
        return Controls(np.zeros(0, np.int64), NONE)


def star(hub: int, leaves: range, relation: int) -> list[Triple]:
    return [(hub, relation, leaf) for leaf in leaves]


def test_the_nearest_degrees_are_taken_first() -> None:
    # Hubs of degree 3, 4, 5, 6, 7 after forgetting one triple each; each hub has a held-out triple to a fresh leaf.
    train, forget, test, leaf = [], [], [], 20
    for hub, degree in enumerate((3, 4, 5, 6, 7)):
        train += star(hub, range(leaf, leaf + degree), 0)
        forget.append((hub, 0, leaf + degree))
        test.append((hub, 0, leaf + degree + 1))
        leaf += degree + 2
    graph = ClientGraph("a", np.arange(leaf), np.arange(1), np.array(train + forget), NONE, np.array(test))
    controls = matched_controls(graph, np.array(forget), np.random.default_rng(0))
    assert controls.triples[:, 0].tolist() == [0, 1, 2, 3, 4]
    # With the triple of hub 3 (degree 6) alone to match: 5 is nearest, 4 and 7 are within a doubling too.
    others = [0, 1, 2, 4]
    train = np.array(train + [forget[hub] for hub in others])
    graph = ClientGraph("a", np.arange(leaf), np.arange(1), train, NONE, np.array([test[3]]))
    controls = matched_controls(graph, np.array([forget[hub] for hub in others]), np.random.default_rng(0))
    assert controls.rows.tolist() == [2]


def test_equal_generators_give_equal_controls_and_others_give_others() -> None:
    graph = make_graph(3, num_entities=40, sizes=(400, 0, 200))
    forget = some_of_train(graph, 3)
    first, again, other = (matched_controls(graph, forget, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first.triples, again.triples)
    assert not np.array_equal(first.triples, other.triples)


def test_what_cannot_be_used_is_said() -> None:
    graph = make_graph(1, sizes=(60, 5, 30))
    rng = np.random.default_rng(0)
    first = graph.train[:1]
    unknown = np.array([[0, 0, 11]])
    assert not (graph.train == unknown).all(axis=1).any()
    for forget, message in (
        (NONE, "client a forget: it needs at least one triple; got none"),
        (np.concatenate([first, unknown]), "client a forget: row 1, triple [0, 0, 11], is not in train"),
        (np.concatenate([first, first]), "client a forget: a triple occurs twice in it"),
        (np.array([[0, 3, 0]]), "client a forget: an id is out of range"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            matched_controls(graph, forget, rng)
    with pytest.raises(DataError, match="seen_elsewhere: an id is out of range"):
        matched_controls(graph, first, rng, seen_elsewhere=np.array([[0, 0, 12]]))


def test_no_control_at_all_is_an_error() -> None:
    graph = make_graph(1, sizes=(60, 0, 0))
    with pytest.raises(
        DataError, match=r"^client a: none of 1 forgotten triples has a held_out control .* 0 test triples"
    ):
        matched_controls(graph, graph.train[:1], np.random.default_rng(0))


def _only_client(graph: KnowledgeGraph) -> ClientGraph:
    return ClientGraph.from_global(graph.name, graph.train, graph.valid, graph.test)


@needs_data
@pytest.mark.slow
def test_the_cleaned_split_of_fb15k237_has_no_control_for_linked_pairs() -> None:
    """The figures of the module's docstring, and that matching sees them."""
    graph = read_path(Path(DATA or "") / "FB15k-237")
    assert isinstance(graph, KnowledgeGraph)
    client = _only_client(graph)
    forget = np.random.default_rng(0).permutation(client.train)[:2721]
    count = client.num_entities
    left = client.train[~np.isin(_keys(client, client.train), _keys(client, forget))]
    pairs = np.concatenate([left[:, 0] * count + left[:, 2], left[:, 2] * count + left[:, 0]])
    linked = {
        name: np.isin(t[:, 0] * count + t[:, 2], pairs) for name, t in (("forget", forget), ("test", client.test))
    }
    assert linked["forget"].mean() == pytest.approx(0.38, abs=0.02)
    assert not linked["test"].any()
    controls = matched_controls(client, forget, np.random.default_rng(0))
    assert not linked["forget"][controls.rows].any()
    assert len(controls.rows) > 0.9 * (~linked["forget"]).sum()


def _keys(client: ClientGraph, triples: np.ndarray) -> np.ndarray:
    return (triples[:, 0] * client.num_relations + triples[:, 1]) * client.num_entities + triples[:, 2]
