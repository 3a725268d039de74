"""The comparison with PyKEEN: both do the work that is timed."""

import numpy as np
import pytest

from fkgsec.data.graph import KnowledgeGraph

pytest.importorskip("pykeen")

from benchmarks.peers.pykeen import Cost, make_theirs, ours, theirs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_both_train_and_rank(name: str) -> None:
    rng = np.random.default_rng(0)
    triples = np.unique(rng.integers(0, [40, 3, 40], size=(1500, 3)), axis=0)
    entities, relations = tuple(f"e{i}" for i in range(40)), tuple(f"r{i}" for i in range(3))
    graph = KnowledgeGraph("small", entities, relations, triples[60:], triples[:30], triples[30:60])
    pykeen, fkgsec = theirs(graph, name, batches=1, ranked=15), ours(graph, name)
    assert pykeen.keys() == fkgsec.keys() == {"epoch", "ranking"}
    assert all(cost.seconds > 0 for cost in (*pykeen.values(), *fkgsec.values()))
    assert pykeen["epoch"].share == pytest.approx(512 / len(graph.train))
    assert pykeen["ranking"].share == 0.5
    assert fkgsec["epoch"].share == fkgsec["ranking"].share == 1
    sizes = {tuple(one.shape) for one in make_theirs(graph, name)[0].parameters()}
    assert (40, 256 if name == "rotate" else 128) in sizes or (40, 128) in sizes


def test_a_part_is_scaled() -> None:
    assert Cost(3.0, 0.25).whole == 12.0
