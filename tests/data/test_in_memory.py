"""Graphs from objects in memory: names stay, clients and splits are where they were given, and what is wrong is one line."""

import importlib.util
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from fkgsec import FederatedGraph, KnowledgeGraph, graph_from, partition, read_path
from fkgsec.errors import DataError, SpecError

ROWS = [("ann", "takes", "aspirin"), ("bob", "takes", "ibuprofen"), ("ann", "knows", "bob")]
FRAME = pd.DataFrame(ROWS, columns=["head", "relation", "tail"])
OF_TWO = FRAME.assign(client=["north", "south", "north"], split=["train", "train", "Validation"])


def rows_of(graph: Any) -> list[tuple[str, str, str]]:
    return list(graph.to_frame()[["head", "relation", "tail"]].itertuples(index=False, name=None))


def multigraph() -> nx.MultiDiGraph:
    made = nx.MultiDiGraph()
    made.add_edges_from((head, tail, relation) for head, relation, tail in ROWS)
    return made


def labelled() -> nx.DiGraph:
    made = nx.DiGraph()
    made.add_edges_from((head, tail, {"kind": relation}) for head, relation, tail in ROWS)
    return made


@pytest.mark.parametrize(
    "given",
    [
        {"triples": FRAME},
        {"triples": FRAME.astype("category")},
        {"triples": FRAME.rename(columns={"head": "h", "tail": 7}), "columns": ("h", "relation", 7)},
        {"triples": ROWS},
        {"triples": (list(row) for row in ROWS)},
        {"triples": np.array(ROWS)},
        {"triples": multigraph()},
        {"triples": labelled(), "relation": "kind"},
    ],
)
def test_every_kind_gives_the_same_triples(given: dict[str, Any]) -> None:
    graph = graph_from(**given)
    assert isinstance(graph, KnowledgeGraph)
    assert sorted(rows_of(graph)) == sorted(ROWS)
    assert set(graph.entities) == {"ann", "aspirin", "bob", "ibuprofen"}
    assert graph.warnings == ()


def test_a_frame_is_read_as_its_file(tmp_path: Any) -> None:
    OF_TWO.to_csv(tmp_path / "t.csv", index=False)
    of_file, of_frame = read_path(tmp_path / "t.csv"), graph_from(OF_TWO)
    assert (of_frame.hash, of_frame.entities) == (of_file.hash, of_file.entities)
    assert len(of_frame.warnings) == len(of_file.warnings)
    assert graph_from(of_frame.to_frame()).hash == of_frame.hash


def test_clients_by_column_mapping_and_partition() -> None:
    by_column = graph_from(OF_TWO)
    assert isinstance(by_column, FederatedGraph)
    assert [client.name for client in by_column.clients] == ["north", "south"]
    assert [len(client.valid) for client in by_column.clients] == [1, 0]
    named = graph_from(FRAME.assign(site=[10, 9, 10], split="train"), client_column="site")
    assert isinstance(named, FederatedGraph)
    assert [client.name for client in named.clients] == ["9", "10"]  # as files have them: in natural order
    mapped = graph_from({"south": ROWS[1:2], "north": FRAME.iloc[:1]}, valid={"north": ROWS[2:]})
    assert isinstance(mapped, FederatedGraph)
    assert [client.name for client in mapped.clients] == ["south", "north"]
    assert sorted(rows_of(mapped)) == sorted(rows_of(by_column))
    whole = graph_from(FRAME)
    assert isinstance(whole, KnowledgeGraph)
    assert rows_of(partition(whole, "triples", 3, 0))
    assert "3 train, 0 valid, 0 test triples" in repr(partition(whole, "triples", 3, 0))


def test_ratio_splits_each_client_and_keeps_equal_triples_together() -> None:
    rng = np.random.default_rng(0)
    some, more = (rng.integers(0, [12, 2, 12], (count, 3)) for count in (60, 90))
    graph = graph_from({"some": np.concatenate([some, some]), "more": more}, ratio=(8, 1, 1), seed=3)
    assert isinstance(graph, FederatedGraph)
    for client, given in zip(graph.clients, (some, more), strict=True):
        count = len(np.unique(given, axis=0))
        assert len(client.triples) == count == len(np.unique(client.triples, axis=0))
        assert (len(client.valid), len(client.test)) == (count // 10, count // 10)
    assert any("some: " in line and "exact duplicates and were dropped" in line for line in graph.warnings)
    again = graph_from({"some": np.concatenate([some, some]), "more": more}, ratio=(8, 1, 1), seed=3)
    assert again.hash == graph.hash
    assert graph_from({"some": some, "more": more}, ratio=(8, 1, 1), seed=4).hash != graph.hash
    with pytest.raises(SpecError, match="ratio is"):
        graph_from(ROWS, ratio=(0, 1, 1))


def test_what_is_odd_is_counted() -> None:
    twice = graph_from([*ROWS, ROWS[0]])
    assert twice.warnings == ("train: 1 duplicate triple, first at graph: triple 3",)
    unseen = graph_from(ROWS, test=[("zoe", "takes", "aspirin"), ("ann", "sees", "bob")])
    assert [line.split(", first")[0] for line in unseen.warnings] == [
        "test: 1 entity that train lacks", "test: 1 relation that train lacks",
    ]  # fmt: skip
    lone = multigraph()
    lone.add_node("nobody")
    assert graph_from(lone).entities[-1] == "nobody"
    assert "no splits, all triples are in train" in graph_from({"a": ROWS, "b": ROWS}).warnings[0]
    assert graph_from(ROWS, sensitive=["takes"]).sensitive == {"takes"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"triples": FRAME.assign(tail=["a", np.nan, "b"])}, "graph: row 1: the tail is missing"),
        ({"triples": FRAME.set_index(pd.Index(["x", "y", "z"])).assign(head=["a", None, "b"])},
         "graph: row 'y': the head is missing"),
        ({"triples": FRAME.assign(relation=pd.array([1, None, 2], dtype="Int64"))}, "graph: row 1: the relation is missing"),
        ({"triples": FRAME.assign(tail=["a", " ", "b"])}, "graph: row 1: the tail is empty"),
        ({"triples": FRAME.assign(tail=[1.0, 2.0, 3.0])}, "graph: row 0: the tail must be text or a whole number; got 1.0"),
        ({"triples": FRAME, "columns": ("h", "relation", "tail")},
         "graph: no column 'h'; the frame has 'head', 'relation', 'tail'"),
        ({"triples": FRAME, "client_column": "head"}, "graph: one column is requested twice (head, relation, tail, head)"),
        ({"triples": OF_TWO.assign(client=["a", None, "b"])}, "graph: row 1: the client is missing"),
        ({"triples": OF_TWO.assign(split="holdout")},
         "graph: row 0: split 'holdout' is none of train, valid, validation, val, dev, test"),
        ({"triples": OF_TWO.assign(split=["train", "test", "train"])}, "graph: client 'south' has no triples to train on"),
        ({"triples": OF_TWO, "ratio": (8, 1, 1)},
         "graph: ratio applies to triples without splits, and these have some; leave it out"),
        ({"triples": OF_TWO, "valid": OF_TWO}, "graph: the split valid is given twice, in a column and as valid="),
        ({"triples": FRAME, "test": OF_TWO}, "graph: some splits have a client column and some have none"),
        ({"triples": [("a", "r", "b"), ("a", "r")]},
         "graph: triple 1 must be three names (head, relation, tail); got ('a', 'r')"),
        ({"triples": [("a", "r", 1), ("1", "r", "b")]},
         "graph: triple 0: the tail 1 stands as a number here and as text elsewhere; give one of them"),
        ({"triples": [("a", "r", True)]}, "graph: triple 0: the tail must be text or a whole number; got True"),
        ({"triples": [("a", "r", "\x1b[2J\ud800")]}, r"graph: triple 0: '\x1b[2J\ud800' is no text (a NUL or half a character)"),
        ({"triples": []}, "graph: no triples to train on"),
        ({"triples": np.zeros((4, 2))}, "graph: an array of triples has shape [n, 3]; got [4, 2]"),
        ({"triples": "triples.csv"}, "graph: 'triples.csv' is text; fkgsec.read_path reads files"),
        ({"triples": {}}, "graph: a mapping without clients"),
        ({"triples": {"a": ROWS}, "test": ROWS}, "graph: test: a mapping of clients is expected, as for the others; got list"),
        ({"triples": {"a": ROWS}, "test": {"b": ROWS}}, "graph: test: client 'b' has no triples to train on"),
        ({"triples": {"a": OF_TWO}}, "graph: client 'a' has a client column itself; leave one of them out"),
        ({"triples": {3: ROWS}}, "graph: a client's name must be text; got 3"),
        ({"triples": labelled()},
         "graph: a DiGraph has no keys that name relations; give relation=, the edge attribute that does"),
        ({"triples": labelled(), "relation": "label"}, "graph: the edge 'ann' to 'aspirin' has no attribute 'label'"),
        ({"triples": nx.MultiGraph(multigraph())},
         "graph: an undirected graph does not say which end of an edge is the head; give a MultiDiGraph"),
        ({"triples": nx.MultiDiGraph([("a", "b")])},
         "graph: the edge 'a' to 'b' has the key 0, a number of NetworkX's; give relation=, the edge attribute that names the "
         "relation"),
        ({"triples": ROWS, "sensitive": ["\x1b"]}, r"graph: sensitive relations that the graph does not have: '\x1b'"),
        ({"triples": graph_from(ROWS)}, "graph: a KnowledgeGraph is a graph already; fkgsec.partition divides one"),
    ],
)  # fmt: skip
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as refused:
        graph_from(**given)
    assert str(refused.value) == message


def test_a_graph_says_its_size_and_not_its_names() -> None:
    graph = graph_from([(f"e{number}", "r", f"e{number + 1}") for number in range(5000)], name="evil\x1b[2J")
    assert (
        repr(graph) == r"KnowledgeGraph(evil\x1b[2J: 5,001 entities, 1 relations, 5,000 train, 0 valid, 0 test triples)"
    )


@pytest.mark.skipif(importlib.util.find_spec("pykeen") is None, reason="PyKEEN is not installed")
def test_a_factory_keeps_its_ids() -> None:
    from pykeen.triples import CoreTriplesFactory, TriplesFactory

    factory = TriplesFactory.from_labeled_triples(np.array(ROWS), create_inverse_triples=True)
    test = TriplesFactory.from_labeled_triples(
        np.array(ROWS[:1]), entity_to_id=factory.entity_to_id, relation_to_id=factory.relation_to_id
    )
    graph = graph_from(factory, test=test)
    assert isinstance(graph, KnowledgeGraph)
    assert dict(zip(graph.entities, range(9), strict=False)) == factory.entity_to_id
    assert dict(zip(graph.relations, range(9), strict=False)) == factory.relation_to_id
    assert graph.train.tolist() == factory.mapped_triples.tolist()
    assert rows_of(graph)[-1] == ROWS[0]
    bare = graph_from(CoreTriplesFactory(factory.mapped_triples, factory.num_entities, factory.real_num_relations))
    assert isinstance(bare, KnowledgeGraph)
    assert (bare.entities, bare.train.tolist()) == (("0", "1", "2", "3"), factory.mapped_triples.tolist())
    assert "named by their ids" in bare.warnings[0]
