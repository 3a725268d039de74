"""Batches of graphs, normalized edges and dropout."""

import numpy as np
import pytest
import torch

from fkgsec.gnn.batches import Batch
from fkgsec.gnn.geometric import layers
from fkgsec.gnn.models import Architecture, GraphClassifier, convolution_of, dropout, make_classifier
from fkgsec.graphs.features import feature_width
from fkgsec.graphs.sets import GraphSet
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


@pytest.mark.parametrize("kind", ["directed", "two", "attributes", "degrees"])
def test_normalized_edges_give_the_layer_that_normalizes_itself(kind: str) -> None:
    graphs = drawn_graphs(kind)
    batch = Batch.of(graphs, [3, 0, 2, 2])
    x = torch.randn(len(batch.graph_of), 8, generator=torch.Generator().manual_seed(0))
    ours, theirs = convolution_of("gcn")(8, 8), layers().GCNConv(8, 8)
    theirs.load_state_dict(ours.state_dict())
    assert torch.allclose(ours(x, batch.normalized), theirs(x, batch.adjacency), atol=1e-6)


def test_features_that_are_solved_for_are_differentiated_by_the_layers() -> None:
    graphs = drawn_graphs("attributes")
    model, batch = network(graphs, "gin"), Batch.of(graphs)
    batch.x.requires_grad_()
    gradients = torch.autograd.grad(model(batch).sum(), list(model.parameters())[:2], create_graph=True)
    (found,) = torch.autograd.grad(sum(one.square().sum() for one in gradients), batch.x)
    assert float(found.abs().sum()) > 0


@pytest.mark.parametrize("share", [0.5, 0.25, 0.3, 0.9])
def test_dropout_drops_that_share_and_scales_the_rest(share: float) -> None:
    x = dropout(torch.ones(400, 500), share, generator(0, "test"))
    kept = (x > 0).numpy()
    assert kept.mean() == pytest.approx(1 - share, abs=0.005)
    assert float(x.max()) == pytest.approx(1 / (1 - share), abs=1e-3)
    neighbors = np.corrcoef(kept[:, :-1].ravel(), kept[:, 1:].ravel())[0, 1]
    assert abs(neighbors) < 0.01


def test_a_batch_holds_its_graphs() -> None:
    graphs = drawn_graphs("directed")
    ids = [4, 2, 2, 0]
    batch, alone = Batch.of(graphs, ids), graphs.subset(ids)
    assert np.array_equal(batch.edge_index.T.numpy(), alone.edges())
    assert np.array_equal(batch.graph_of.numpy(), alone.graph_of)
    assert batch.classes.tolist() == alone.classes.tolist()
    assert torch.equal(batch.x, Batch.of(alone).x)
    assert torch.equal(batch.adjacency.to_dense().nonzero().T, batch.edge_index.flip(0))
