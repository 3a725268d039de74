"""NoGE: weights by hand, the layer against a dense loop, steps against autograd over dense labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from fkgsec.data.graph import FederatedGraph
from fkgsec.kge.encoders.noge import MAX_GRADIENT_NORM, NogeEncoder, NogeNetwork, cooccurrence
from fkgsec.kge.models import KgeModel
from tests.kge.encoders.conftest import tiny

TRIPLES = np.array([[0, 0, 1], [1, 1, 2], [0, 1, 2]])  # entities 0, 1, 2 and relations 0, 1: nodes 0 to 4


def test_weights_of_three_triples_by_hand() -> None:
    """18 ordered pairs in all; node 0 is in 2 triples, so in 4 of them; 1 likewise, 2 likewise, 3 in 2, 4 in 4."""
    found = cooccurrence(TRIPLES, 3, 2).toarray()
    by_hand = np.array(
        [
            # 0      1       2      3 (relation 0)  4 (relation 1)
            [1.0, 1 / 4, 1 / 4, 1 / 18, 1 / 18],
            [1 / 4, 1.0, 1 / 4, 1 / 18, 1 / 18],
            [1 / 4, 1 / 4, 1.0, 0, 2 / 18],
            [1 / 18, 1 / 18, 0, 1.0, 0],
            [1 / 18, 1 / 18, 2 / 18, 0, 1.0],
        ]
    )
    np.testing.assert_allclose(found, by_hand / by_hand.sum(1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_layer_equals_a_dense_loop(training: bool) -> None:
    rng = np.random.default_rng(2)
    weights = cooccurrence(TRIPLES, 3, 2)
    network = NogeNetwork(weights, 8, rng, torch.device("cpu")).train(training)
    rows = torch.from_numpy(rng.normal(size=(5, 8)).astype(np.float32))
    linear = network.convolution.lin.weight.detach().double().numpy()
    assert np.abs(linear).max() <= 8**-0.5
    dense, x = weights.toarray(), rows.double().numpy()
    gathered = np.zeros((5, 8))
    for node in range(5):
        for other in range(5):
            gathered[node] += dense[node, other] * (linear @ x[other])
    mean, variance = (gathered.mean(0), gathered.var(0)) if training else (0.0, 1.0)
    expected = np.tanh((gathered - mean) / np.sqrt(variance + 1e-5))
    np.testing.assert_allclose(network(rows).detach(), expected, atol=1e-6)


def test_a_step_equals_one_by_autograd_over_dense_labels(uneven: FederatedGraph) -> None:
    """One batch of all queries without dropout: the loss, and rows after a step of plain descent with clipped gradients."""
    graph = uneven.clients[1]
    options = tiny("noge", dropout=0.0, local_epochs=1, batch_size=1000, negative_sides="tail")
    encoder = NogeEncoder(graph, graph.train, options, key=0)
    rng = np.random.default_rng(3)
    sizes = {"entities": graph.num_entities, "relations": graph.num_relations}
    rows = {
        table: torch.from_numpy(rng.normal(size=(count, 8)).astype(np.float32)).requires_grad_()
        for table, count in sizes.items()
    }
    given = {table: one.detach().clone() for table, one in rows.items()}

    pairs = sorted({(int(h), int(r)) for h, r, _ in graph.train})
    count = graph.num_trained_entities
    labels = torch.full((len(pairs), count), 1 / count)
    for h, r, t in graph.train:
        labels[pairs.index((int(h), int(r))), t] = 0.9 + 1 / count
    encoded = encoder.network(torch.cat([rows["entities"], rows["relations"]]))
    heads, relations = (torch.tensor([pair[place] for pair in pairs]) for place in (0, 1))
    queries = KgeModel("noge", 8).query(encoded[heads], encoded[graph.num_entities + relations], "tail")
    expected = binary_cross_entropy_with_logits(queries @ encoded[:count].T, labels)
    leaves = [*rows.values(), *encoder.network.parameters()]
    gradients = torch.autograd.grad(expected, leaves)
    norm = torch.cat([one.flatten() for one in gradients]).norm()
    encoder.network.load_state_dict(NogeEncoder(graph, graph.train, options, key=0).network.state_dict())

    def step() -> None:
        with torch.no_grad():
            for leaf in leaves:
                assert leaf.grad is not None
                leaf -= leaf.grad
                leaf.grad = None

    loss = encoder.train(rows, step, 1, lambda: None)

    assert loss == pytest.approx(expected.item(), rel=1e-5)
    scale = min(1.0, MAX_GRADIENT_NORM / float(norm))
    for table, gradient in zip(rows, gradients, strict=False):
        torch.testing.assert_close(rows[table].detach(), given[table] - scale * gradient, atol=1e-6, rtol=1e-4)
