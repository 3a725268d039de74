"""A trigger in a known graph, poisoned clients by hand, and a backdoor that is found where it was planted."""

import itertools

import networkx as nx
import numpy as np
import pytest

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.graphs.backdoor import MALICIOUS, METRICS, NAME, Plan, Trigger, poisoned
from fkgsec.attacks.options import GraphAttackOptions
from fkgsec.attacks.registry import run_attacks
from fkgsec.attacks.view import ALL
from fkgsec.errors import SpecError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.graphs.collection import load_federation
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs, GraphSet

RING = Trigger(np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]], dtype=bool))


def chains(count: int, size: int = 6) -> GraphSet:
    """Paths, of classes 0, 1, 0, 1, ..."""
    one = np.array([(node, node + 1) for node in range(size - 1)])
    edges = np.concatenate([one + size * number for number in range(count)])
    return GraphSet.from_edges(
        "chains",
        np.full(count, size),
        np.concatenate([edges, edges[:, ::-1]]),
        np.arange(count) % 2,
        np.tile(np.arange(size) % 3, count),
        num_classes=2,
    )


def undirected(graphs: GraphSet, number: int) -> set[frozenset[int]]:
    return {frozenset(edge) for edge in graphs.edges(number).tolist()}


def holds(before: set, after: set, size: int, trigger: Trigger) -> bool:
    """Whether some nodes have the trigger among them, and all edges but those among them are as before."""
    wanted = nx.from_numpy_array(trigger.adjacency)
    for nodes in itertools.combinations(range(size), len(trigger)):
        inner = {edge for edge in after if edge <= set(nodes)}
        built = nx.Graph()
        built.add_nodes_from(nodes)
        built.add_edges_from(tuple(edge) for edge in inner)
        if {e for e in before if not e <= set(nodes)} == after - inner and nx.is_isomorphic(built, wanted):
            return True
    return False


def test_a_trigger_takes_the_place_of_the_edges_among_its_nodes() -> None:
    """Against all choices of nodes; the other graphs' nodes and labels stay."""
    graphs, path = chains(8), Trigger(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=bool))
    for trigger in (RING, path):
        made = trigger.hidden_in(graphs, np.random.default_rng(0))
        assert np.array_equal(made.labels, graphs.labels)
        assert np.array_equal(made.node_ptr, graphs.node_ptr)
        for number in range(8):
            assert holds(undirected(graphs, number), undirected(made, number), 6, trigger)
    assert len({frozenset(undirected(made, number)) for number in range(8)}) > 1  # at random nodes


def test_a_trigger_of_all_nodes_is_all_that_is_left() -> None:
    made = RING.hidden_in(chains(1, size=3), np.random.default_rng(0))
    assert undirected(made, 0) == {frozenset(pair) for pair in itertools.combinations(range(3), 2)}
    with pytest.raises(ValueError, match="it has 3 nodes"):
        RING.hidden_in(chains(1, size=2), np.random.default_rng(0))


def test_a_drawn_trigger_has_about_its_density() -> None:
    drawn = Trigger.drawn(60, 0.8, np.random.default_rng(0)).adjacency
    assert np.array_equal(drawn, drawn.T)
    assert not drawn.diagonal().any()
    assert drawn[np.triu_indices(60, 1)].mean() == pytest.approx(0.8, abs=0.04)


def test_a_share_of_training_graphs_of_other_classes_is_poisoned() -> None:
    graphs = chains(20)
    client = ClientGraphs("c", graphs, np.arange(10), np.arange(10, 15), np.arange(15, 20))
    found = poisoned(client, Plan(RING, ("c",), 0, 0.3), np.random.default_rng(0))
    changed = [number for number in range(20) if undirected(graphs, number) != undirected(found.graphs, number)]
    assert len(changed) == 3  # 0.3 * 10
    assert set(changed) <= {1, 3, 5, 7, 9}  # trained on, of class 1
    assert [one for one in range(20) if found.graphs.classes[one] != graphs.classes[one]] == changed
    assert (found.graphs.classes[changed] == 0).all()
    for number in changed:
        assert holds(undirected(graphs, number), undirected(found.graphs, number), 6, RING)
    assert np.array_equal(found.graphs.labels, graphs.labels)
    # No more than there are, and none where all are of the target.
    assert (poisoned(client, Plan(RING, ("c",), 0, 1.0), np.random.default_rng(0)).graphs.classes[:10] == 0).all()
    same = ClientGraphs("c", graphs.subset([0, 2, 4]), np.arange(3), np.arange(0), np.arange(0))
    assert poisoned(same, Plan(RING, ("c",), 0, 1.0), np.random.default_rng(0)) is same


def test_honest_clients_stay_as_they_are(one_set: FederatedGraphs, small: GnnOptions) -> None:
    first, second, third = one_set.clients
    result, seen = run_federation(one_set, small), []

    def train(graphs: FederatedGraphs, options: GnnOptions) -> GnnResult:
        seen.append(graphs)
        return result

    options = GraphAttackOptions(attack=(NAME,), malicious=2, trigger_size=0.3)
    run_attacks(result, options, train=train)
    (made,) = seen
    assert made.clients[2] is third
    assert made.hash != one_set.hash
    for before, after in zip((first, second), made.clients, strict=False):
        changed = before.graphs.classes != after.graphs.classes
        assert changed.sum() == int(0.2 * len(before.train))
        assert not changed[np.concatenate([before.valid, before.test])].any()
        for split in ("train", "valid", "test"):
            assert np.array_equal(getattr(before, split), getattr(after, split))


@pytest.mark.parametrize(
    ("name", "value"),
    [("malicious", 0), ("poisoned", 0.0), ("trigger_size", 1.5), ("trigger_density", -1.0), ("target_class", -1)],
)
def test_a_backdoor_that_there_is_not_is_refused(name: str, value: float) -> None:
    with pytest.raises(SpecError, match=f"{name} must"):
        GraphAttackOptions(**{name: value})


def figures(result: GnnResult, **options: object) -> dict[tuple[str, str, str], Figure]:
    found = run_attacks(result, GraphAttackOptions(attack=(NAME,), **options)).figures
    return {(one.victim, one.metric, one.variant): one for one in found}


@pytest.fixture(scope="module")
def shared_run(one_set: FederatedGraphs) -> GnnResult:
    """Whole networks are shared."""
    options = GnnOptions(
        width=16, rounds=20, batch_size=16, learning_rate=0.01, dropout=0.0, device="cpu", settings={"share": "all"}
    )
    return run_federation(one_set, options)


@pytest.mark.planted("backdoor", "two of three clients poison 40%: success above .6", {"success": 2})
def test_a_backdoor_works_where_it_was_planted(shared_run: GnnResult) -> None:
    """A large dense trigger, planted by two of three."""
    first, second, third = (client.name for client in shared_run.graph.clients)
    found = figures(shared_run, malicious=2, poisoned=0.4, trigger_size=0.35, trigger_density=1.0, target_class=1)
    assert {key[0] for key in found} == {ALL, first, second, third}
    success = found[third, "success", ""]
    assert success.baseline is not None
    assert found[first, "success", MALICIOUS].estimate.value == found[second, "success", MALICIOUS].estimate.value == 1
    assert success.estimate == found[ALL, "success", ""].estimate
    assert success.estimate.value > 0.6
    drop = found[ALL, "clean-drop", ""].estimate
    assert drop.low <= drop.value <= drop.high
    assert drop.n == len(shared_run.graph.clients[2].test)


@pytest.mark.null("backdoor", "nothing poisoned: success at its baseline")
def test_where_nothing_is_poisoned_nothing_changes(shared_run: GnnResult) -> None:
    """A share below one graph: the twin is the same run, and success is its baseline."""
    found = figures(shared_run, poisoned=0.001)
    for (_, metric, _), one in found.items():
        assert one.baseline is not None
        assert one.estimate.value == one.baseline.value, metric


def test_what_cannot_be_attacked_says_why(
    graph_runs: dict[str, GnnResult], shared_run: GnnResult, two_sets: FederatedGraphs
) -> None:
    assert all("transmits nothing" in one.reason for one in figures(graph_runs["local-gc"]).values())
    assert all("classes are 0 to 1" in one.reason for one in figures(shared_run, target_class=2).values())
    assert all("fewer than 2 nodes" in one.reason for one in figures(shared_run, trigger_size=0.05).values())
    found = figures(graph_runs["fedavg"])
    own, *others = (client.name for client in two_sets.clients)
    assert {key[0] for key, one in found.items() if one.reason} == set(others)
    assert {key for key, one in found.items() if not one.reason} == {(own, metric, MALICIOUS) for metric in METRICS}


@pytest.mark.slow
def test_mutag_over_four_clients() -> None:
    """One of four poisons a fifth of its graphs, as the paper has it, with whole networks shared."""
    graphs = load_federation("MUTAG", seed=0, clients=4)
    options = GnnOptions(rounds=30, batch_size=32, dropout=0.0, device="cpu", settings={"share": "all"})
    found = figures(run_federation(graphs, options), malicious=1)
    assert found[ALL, "success", ""].num_attacked == 3
    twice = figures(run_federation(graphs, replace(options, seed=1)), malicious=2, poisoned=0.5, trigger_size=0.3)
    success = twice[ALL, "success", ""]
    assert success.baseline is not None
    assert success.estimate.value > success.baseline.value + 0.1
