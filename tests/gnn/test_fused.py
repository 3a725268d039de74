"""The networks by hand against torch_geometric's layers and autograd, their bits, what they leave behind."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fkgsec.algorithms.graphs.fedstar import FedStarClassifier, FedStarSettings
from fkgsec.gnn import fused
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.fused import CONVOLUTIONS, Dropped
from fkgsec.gnn.models import Architecture, GraphClassifier, drawing_from, make_classifier
from fkgsec.graphs.features import feature_width
from fkgsec.graphs.sets import GraphSet
from fkgsec.graphs.structure import with_structure
from fkgsec.randomness import generator


def drawn_graphs(kind: str) -> GraphSet:
    """Five graphs: "directed" edges and loops, "two" labels of each node, "attributes" or "degrees" in place of labels."""
    rng = generator(0, "graphs", kind)
    sizes = np.array([7, 1, 12, 30, 5])
    starts = np.cumsum(sizes) - sizes
    edges = np.concatenate(
        [rng.integers(0, size, (2 * size, 2)) + start for size, start in zip(sizes, starts, strict=True)]
    )
    if kind != "directed":
        edges = np.concatenate([edges, edges[:, ::-1]])
        edges = edges[edges[:, 0] != edges[:, 1]]
    total = int(sizes.sum())
    labels = rng.integers(0, 4, (total, 2 if kind == "two" else 1))
    attributes = rng.normal(size=(total, 3)).astype(np.float32)
    described = {"attributes": {"attributes": attributes}, "degrees": {"max_degree": 40}}.get(kind, {"labels": labels})
    return GraphSet.from_edges(kind, sizes, edges, np.array([0, 1, 0, 1, 1]), **described)  # type: ignore[arg-type]


def network(graphs: GraphSet, model: str, width: int = 8, layers: int = 3) -> GraphClassifier:
    architecture = Architecture(model, layers=layers, width=width)
    return make_classifier(architecture, feature_width(graphs), 2, generator(0, "test"))


def derivatives(model: nn.Module, batch: Batch, dropout: bool) -> list[torch.Tensor]:
    logits = model(batch, generator(0, "dropout") if dropout else None)
    return [logits, *torch.autograd.grad(functional.cross_entropy(logits, batch.classes), list(model.parameters()))]


@pytest.mark.parametrize("model", list(CONVOLUTIONS))
@pytest.mark.parametrize("kind", ["directed", "two", "attributes", "degrees"])
@pytest.mark.parametrize(("width", "times"), [(8, 1), (64, 1), (64, 7)])  # the last has 427 nodes, in 512 rows
def test_values_and_gradients_are_those_of_the_layers(
    model: str, kind: str, width: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = drawn_graphs(kind)
    one, ids = network(graphs, model, width), [3, 0, 2, 2] * times
    for dropout in (False, True):
        ours = derivatives(one, Batch.of(graphs, ids), dropout)
        with monkeypatch.context() as patched:
            patched.setattr("fkgsec.gnn.models.supports", lambda *_: False)
            theirs = derivatives(one, Batch.of(graphs, ids), dropout)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.allclose(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("model", list(CONVOLUTIONS))
@pytest.mark.parametrize(("kind", "times"), [("directed", 1), ("attributes", 7)])
def test_fedstar_s_gradients_are_those_of_the_layers(
    model: str, kind: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = drawn_graphs(kind)
    graphs, ids = with_structure(plain, num_walks=3, num_degrees=4), [3, 0, 2, 2] * times
    with drawing_from(generator(0, "test")):
        architecture, settings = Architecture(model, width=8), FedStarSettings(num_walks=3, num_degrees=4)
        one = FedStarClassifier(architecture, settings, feature_width(plain), 2)
    for dropout in (False, True):
        ours = derivatives(one, Batch.of(graphs, ids), dropout)
        with monkeypatch.context() as patched:
            patched.setattr("fkgsec.algorithms.graphs.fedstar.supports", lambda *_: False)
            theirs = derivatives(one, Batch.of(graphs, ids), dropout)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.allclose(a, b, atol=1e-6, rtol=1e-5)


def test_products_of_many_rows() -> None:
    rng = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=rng) for shape in ((2_048, 64), (48, 64), (48,)))
    assert fused.padded_rows(len(x)) == len(x) == fused.padded_rows(2_000)
    for relu in (False, True):
        y, pull = fused.dense(x, weight, bias, relu=relu)
        reference = functional.linear(x.double(), weight.double(), bias.double())
        assert torch.allclose(y.double(), reference.relu() if relu else reference, atol=1e-5)
        given = torch.randn(y.shape, generator=rng)
        through = (given * (y > 0) if relu else given).double()
        expected = (through @ weight.double(), through.T @ x.double(), through.sum(dim=0))
        for found, wanted in zip(pull(given), expected, strict=True):
            assert torch.allclose(found.double(), wanted, atol=1e-3, rtol=1e-5)


def test_a_second_derivative_is_refused() -> None:
    graphs = drawn_graphs("two")
    model, batch = network(graphs, "gin"), Batch.of(graphs)
    loss = functional.cross_entropy(model(batch), batch.classes)
    (first,) = torch.autograd.grad(loss, model.pre.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward()


def test_features_that_are_solved_for_are_differentiated_by_the_layers() -> None:
    graphs = drawn_graphs("attributes")
    model, batch = network(graphs, "gin"), Batch.of(graphs)
    batch.x.requires_grad_()
    gradients = torch.autograd.grad(model(batch).sum(), list(model.parameters())[:2], create_graph=True)
    (found,) = torch.autograd.grad(sum(one.square().sum() for one in gradients), batch.x)
    assert float(found.abs().sum()) > 0


def test_nothing_waits_for_the_garbage_collector() -> None:
    graphs = drawn_graphs("two")
    model, batch = network(graphs, "gin"), Batch.of(graphs)
    gc.disable()
    try:
        logits = model(batch, generator(0, "dropout"))
        functional.cross_entropy(logits, batch.classes).backward()
        node, values = weakref.ref(logits.grad_fn), weakref.ref(logits)
        del logits
        assert values() is None
        assert node() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("share", [0.5, 0.25, 0.3, 0.9])
def test_shares_of_bits(share: float) -> None:
    dropped = Dropped.drawn(200_000, share, generator(0, "test"))
    bits = dropped.bits((400, 500))
    assert bits.mean() == pytest.approx(1 - share, abs=0.005)
    assert dropped.scale == pytest.approx(1 / (1 - share), abs=1e-3)
    assert (
        abs(np.corrcoef(bits[:, :-1].ravel(), bits[:, 1:].ravel())[0, 1]) < 0.01
    )  # neighbours know nothing of each other


def test_one_word_of_bits_serves_for_a_half() -> None:
    rng, again = generator(0, "test"), generator(0, "test")
    words = Dropped.drawn(130, 0.5, rng).words
    assert np.array_equal(words, again.integers(0, 2**64, 3, dtype=np.uint64))


def test_a_batch_holds_its_graphs() -> None:
    graphs = drawn_graphs("directed")
    ids = [4, 2, 2, 0]
    batch, alone = Batch.of(graphs, ids), graphs.subset(ids)
    assert np.array_equal(batch.edge_index.T.numpy(), alone.edges())
    assert np.array_equal(batch.graph_of.numpy(), alone.graph_of)
    assert batch.classes.tolist() == alone.classes.tolist()
    assert torch.equal(batch.x, Batch.of(alone).x)
    assert torch.equal(batch.adjacency.to_dense().nonzero().T, batch.edge_index.flip(0))
    indptr, sources = batch.outgoing
    targets = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    assert {*zip(targets.tolist(), sources.tolist(), strict=True)} == {*map(tuple, alone.edges().tolist())}
    made = Batch(batch.x, batch.adjacency, batch.graph_of, batch.classes)
    assert all(np.array_equal(one, other) for one, other in zip(made.outgoing, batch.outgoing, strict=True))
