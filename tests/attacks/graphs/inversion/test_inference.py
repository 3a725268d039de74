"""Blocks against the network itself, counts and wirings by hand, graphs back from their gradients."""

import itertools
from collections import Counter

import networkx as nx
import numpy as np
import pytest
import torch
from torch.nn import functional

from fkgsec.attacks.graphs.inversion.assembly import Kind, Wirings, block_counts
from fkgsec.attacks.graphs.inversion.blocks import Linear, deeper, grown, labels_of
from fkgsec.attacks.graphs.inversion.inference import Step, invert
from fkgsec.attacks.graphs.inversion.similarity import LabelledGraph, similarity
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.models import Architecture, GraphClassifier, make_classifier
from fkgsec.graphs.collection import load_graphs
from fkgsec.graphs.features import feature_width
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import GraphSet
from fkgsec.graphs.twins import twin_groups
from fkgsec.randomness import generator

RATE, DECAY = 0.1, 5e-4


def one_graph(labels: list[int], edges: list[tuple[int, int]], num_labels: int = 3) -> GraphSet:
    both = np.array(edges + [(other, one) for one, other in edges])
    return GraphSet.from_edges(
        "one", np.array([len(labels)]), both, np.array([1]), np.array(labels), num_classes=2, num_labels=(num_labels,)
    )


PATH = one_graph([2, 0, 2], [(0, 1), (1, 2)])
KNOWN = one_graph([0, 1, 2, 0, 1, 2], [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)])  # a ring of six


def network(graphs: GraphSet, layers: int = 2, width: int = 64) -> GraphClassifier:
    architecture = Architecture("gin", layers, width, 0.0)
    return make_classifier(architecture, feature_width(graphs), graphs.num_classes, generator(0, "network"))


def stepped(model: GraphClassifier, graphs: GraphSet, rate: float = RATE) -> Step:
    """What a server reads of a step on all graphs at once."""
    model.zero_grad()
    batch = Batch.of(graphs)
    functional.cross_entropy(model(batch), batch.classes).backward()
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    after = {name: (one - rate * (one.grad + DECAY * one)).detach() for name, one in model.named_parameters()}
    return Step.between(before, after, rate, DECAY)


def test_gradients_are_read_from_the_difference() -> None:
    model = network(PATH)
    step = stepped(model, PATH)
    for name, parameter in model.named_parameters():
        error = (step.gradients[name] - parameter.grad.double()).abs().max()
        assert error < 12 * step.noise[name], name
        assert step.noise[name] < 1e-6


def test_a_path_of_three_nodes_comes_back_from_its_gradient() -> None:
    found = invert(stepped(network(PATH), PATH), 2, KNOWN, np.random.default_rng(0))
    assert found.neighbourhoods == {(0, 2), (0, 2, 2)}
    assert found.graph is not None
    assert sorted(found.graph.labels) == [0, 2, 2]
    centre = found.graph.labels.index(0)
    assert {frozenset(edge) for edge in found.graph.edges} == {
        frozenset({centre, one}) for one in range(3) if one != centre
    }


@pytest.fixture(scope="module")
def molecules() -> GraphSet:
    return generate_motifs(0, clients=1, size=60)[0]


@pytest.mark.parametrize(("layers", "asked"), [(1, [2]), (2, [1, 2]), (3, [0, 1, 2])])
def test_molecules_come_back(layers: int, asked: list[int], molecules: GraphSet) -> None:
    """Every neighbourhood; with two layers or more, which see rings, graphs up to isomorphism."""
    model = network(molecules, layers)
    for number in asked:
        one, true = molecules.subset([number]), LabelledGraph.of(molecules, number)
        found = invert(stepped(model, one), layers, molecules.subset(range(40, 60)), np.random.default_rng(0))
        assert found.neighbourhoods >= true.neighbourhoods()
        assert len(found.neighbourhoods) < 1.3 * len(true.neighbourhoods())
        assert found.graph is not None
        guess = LabelledGraph(*found.graph)
        assert Counter(guess.labels) == Counter(true.labels)
        if layers > 1:
            assert len(set(twin_groups(one, guess.like(molecules)))) == 1
            assert similarity(true, guess) == 1


def test_a_step_on_several_graphs_tells_the_neighbourhoods_of_all(molecules: GraphSet) -> None:
    graphs = molecules.subset([0, 1, 2])
    found = invert(stepped(network(graphs), graphs), 2, graphs, np.random.default_rng(0), whole=False)
    true = set().union(*(LabelledGraph.of(graphs, one).neighbourhoods() for one in range(3)))
    assert found.neighbourhoods >= true
    assert len(found.neighbourhoods) < 1.3 * len(true)


def test_nothing_comes_back_from_noise() -> None:
    """A gradient of random numbers spans everything, and no counts explain it."""
    step, rng = stepped(network(PATH), PATH), np.random.default_rng(0)
    noise = {name: torch.from_numpy(rng.normal(size=one.shape)) for name, one in step.gradients.items()}
    assert invert(Step(step.parameters, noise, step.noise), 2, KNOWN, rng).graph is None


def test_blocks_are_all_there_are_and_read_what_the_network_reads() -> None:
    graphs = one_graph([0, 1, 1, 2, 0], [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)])
    model = network(graphs, width=8)
    step = stepped(model, graphs)
    level = labels_of([0, 1, 2], step.parameters["pre.weight"].T + step.parameters["pre.bias"])
    naive = {(centre, pair) for centre in range(3) for size in range(4) for pair in multisets(range(3), size)}
    assert set(grown(level, 3)) == naive
    batch, layer = Batch.of(graphs), step.layer(0)
    x = model.pre(batch.x)
    hidden = functional.relu(model.convs[0].nn[0](x + batch.adjacency @ x)).detach().double()
    around = LabelledGraph.of(graphs, 0).neighbours()
    labels = graphs.labels[:, 0]
    present = [(int(labels[node]), tuple(sorted(labels[near].tolist()))) for node, near in enumerate(around)]
    readings = layer.readings(level, present)
    assert torch.allclose(readings, hidden, atol=1e-6)
    assert layer.last.reads(readings).all()
    # Depth 2: the blocks of the graph's own nodes are among those that fit.
    first = deeper(layer, level, present, readings)
    own = {place: first.blocks.index(one) for place, one in enumerate(present)}
    second = {(own[node], tuple(sorted(own[other] for other in near))) for node, near in enumerate(around)}
    assert second <= set(grown(first, 3))
    assert [first.classes[own[node]] for node in (0, 1)] == [first.classes[own[0]]] * 2  # 0+{1,1} and 1+{0,1} are alike


def multisets(items: range, size: int) -> list[tuple[int, ...]]:
    return sorted({tuple(sorted(one)) for one in itertools.product(items, repeat=size)})


def test_a_span_admits_what_it_holds() -> None:
    rng = np.random.default_rng(0)
    read = torch.from_numpy(rng.normal(size=(4, 12)))
    gradient = torch.from_numpy(rng.normal(size=(12, 4))) @ read
    layer = Linear(torch.eye(12).double(), torch.zeros(12).double(), gradient, torch.zeros(12).double(), noise=1e-9)
    assert layer.rank() == 4
    assert layer.reads(torch.cat([read, 3 * read[:1] - read[1:2]])).all()
    assert not layer.reads(torch.from_numpy(rng.normal(size=(50, 12)))).any()


def test_counts_by_hand() -> None:
    """Two nodes of the first class and one of the third; the fourth column is the sum of the first two."""
    columns = np.array([[1.0, 0, 2, 1], [0, 1, 0, 1], [0, 0, 1, 0], [1, 1, 1, 2]])
    counts = list(
        block_counts(
            columns, np.arange(4), np.zeros((0, 4)), columns @ [2, 0, 1, 0], np.full(4, 1e-6), np.random.default_rng(0)
        )
    )
    assert [one.tolist() for one in counts] == [[2, 0, 1, 0]]
    assert not list(
        block_counts(
            columns,
            np.arange(4),
            np.zeros((0, 4)),
            np.array([1.0, 2, 3, -9]),
            np.full(4, 1e-6),
            np.random.default_rng(0),
        )
    )


def test_balance_settles_counts_that_columns_leave_open() -> None:
    """Two classes add the same; of the first there are as many nodes as of the third, as each is the other's neighbour."""
    columns, rng = np.array([[1.0, 1, 0], [0, 0, 1]]), np.random.default_rng(0)
    counts = list(
        block_counts(columns, np.arange(3), np.array([[1.0, 0, -1]]), np.array([4.0, 3]), np.full(2, 1e-6), rng)
    )
    assert counts[-1].tolist() == [3, 1, 3]


@pytest.mark.parametrize(("weights", "expected"), [({6: 100.0}, 1), ({3: 100.0}, 2)])
def test_frequent_rings_come_first(weights: dict[int, float], expected: int) -> None:
    """Six nodes with two neighbours of their own kind are a ring of six, or two of three."""
    kinds = {0: [Kind(7, 0, (0, 0))]}
    made = Wirings(kinds, {0: 6}, lambda size: weights.get(size, 0.001), np.random.default_rng(0)).search(30)
    components = []
    for wiring in made:
        graph = nx.Graph(wiring.edges)
        assert wiring.labels == (7,) * 6
        assert all(degree == 2 for _, degree in graph.degree)
        components.append(nx.number_connected_components(graph))
    assert len(components) == 30
    assert np.mean(np.array(components) == expected) > 0.8


def test_similarity_by_hand() -> None:
    path = LabelledGraph((0, 0, 1), ((0, 1), (1, 2)))
    turned = LabelledGraph((1, 0, 0), ((0, 1), (1, 2)))
    star = LabelledGraph((0, 0, 1), ((0, 2), (1, 2)))
    assert similarity(path, turned) == 1
    # Labels agree; of neighbourhoods none of 0+{0}, 0+{0,1}, 1+{0} is among 0+{1}, 0+{1}, 1+{0,0}.
    assert similarity(path, star) == pytest.approx(1 / 3)
    assert similarity(path, LabelledGraph((0, 0, 1, 1), ())) == pytest.approx((3 / 4) / 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layers", "rate", "exact", "alike"),
    [("MUTAG", 2, 0.1, 0.4, 0.95), ("PTC_MR", 3, 0.1, 0.4, 0.6), ("PTC_MR", 2, 0.001, 0.5, 0.8)],
)
def test_real_molecules_come_back(name: str, layers: int, rate: float, exact: float, alike: float) -> None:
    """With two layers but for rings that look alike to depth two."""
    graphs = load_graphs(name)
    model, chosen = network(graphs, layers), np.random.default_rng(5).permutation(len(graphs))
    known, hits, likeness = graphs.subset(chosen[-30:]), [], []
    for number in chosen[:12].tolist():
        one = graphs.subset([number])
        found = invert(stepped(model, one, rate), layers, known, np.random.default_rng(0))
        guess = None if found.graph is None else LabelledGraph(*found.graph)
        likeness.append(0.0 if guess is None else similarity(LabelledGraph.of(graphs, number), guess))
        hits.append(guess is not None and len(set(twin_groups(one, guess.like(graphs)))) == 1)
    assert np.mean(hits) >= exact
    assert np.mean(likeness) >= alike
