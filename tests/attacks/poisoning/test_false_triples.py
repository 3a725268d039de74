"""False triples: what they have of the known ones and what not, what is true elsewhere, and who can be asked."""

from types import SimpleNamespace

import numpy as np

from fkgsec import ClientGraph, FederatedGraph
from fkgsec.attacks.poisoning.planting import FalseTriples, draw_false, held_by, without_true

NONE = np.zeros((0, 3), dtype=np.int64)


def named(*triples: str) -> np.ndarray:
    return np.array([one.split() for one in triples], dtype=object).reshape(-1, 3)


def truth_of(graph: FederatedGraph) -> SimpleNamespace:
    clients = {client.name: client for client in graph.clients}
    return SimpleNamespace(graph=graph, unshuffled=clients.__getitem__)


def test_a_false_triple_has_a_relation_and_a_tail_that_its_head_has_nowhere() -> None:
    rng = np.random.default_rng(0)
    ids = np.unique(rng.integers(0, [40, 6, 40], (150, 3)), axis=0)
    known = np.array([(f"e{head}", f"r{kind}", f"e{tail}") for head, kind, tail in ids], dtype=object)
    drawn = draw_false(known, 30, rng, {f"e{number}" for number in range(20)})
    both = [tuple(triple) for part in drawn for triple in part]
    assert (len(drawn.planted), len(drawn.control)) == (30, 30)
    assert len(set(both)) == 60
    for head, relation, tail in both:
        assert not any((h, r) == (head, relation) or (h, t) == (head, tail) for h, r, t in known)
        assert head != tail
        assert {int(head[1:]), int(tail[1:])} <= set(range(20))
        assert head in known[:, 0]
        assert relation in known[:, 1]
        assert tail in known[:, 2]


def test_fewer_are_drawn_where_there_are_not_as_many() -> None:
    drawn = draw_false(named("a r b", "c s d"), 5, np.random.default_rng(0))  # a s d and c r b alone are false
    assert {tuple(triple) for part in drawn for triple in part} == {("a", "s", "d"), ("c", "r", "b")}
    assert len(drawn.planted) == len(drawn.control) == 1
    assert not len(draw_false(named("a r b"), 5, np.random.default_rng(0)).planted)
    assert not len(draw_false(named("a r b", "c s d"), 5, np.random.default_rng(0), set()).planted)


def test_what_is_true_at_any_client_is_left_out_and_others_are_asked_of_who_trains_them() -> None:
    one = ClientGraph.from_global("one", np.array([(0, 0, 1), (2, 1, 3)]), NONE, np.array([(0, 1, 4)]))
    other = ClientGraph.from_global("other", np.array([(3, 0, 1)]), np.array([(1, 0, 3)]), NONE)
    graph = FederatedGraph("g", tuple("abcde"), ("r", "s"), (one, other))
    truth = truth_of(graph)
    plans = {"one": FalseTriples(named("a r b", "b r d", "a s e", "a r d", "d r b", "b r c"), named("a s e", "a r c"))}
    asked = without_true(truth, plans)["one"]  # type: ignore[arg-type]
    assert asked.planted.tolist() == named("a r d", "b r c").tolist()
    assert asked.control.tolist() == named("a r c").tolist()
    # e stands in a test triple alone, and "other" trains b, d and r.
    local = held_by(truth, "one", named("a r d", "a r e", "d s a"))  # type: ignore[arg-type]
    assert one.to_global(local).tolist() == [[0, 0, 3], [3, 1, 0]]
    assert held_by(truth, "other", named("a r d", "b s d")).shape == (0, 3)  # type: ignore[arg-type]
