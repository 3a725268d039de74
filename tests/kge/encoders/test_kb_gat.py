"""KB-GAT: its edges by brute force, attention against a loop over edges, losses by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.kge.encoders.kb_gat import MARGIN, Attention, Edges, KbGatEncoder, edges_of
from fkgsec.kge.models import ClientTables
from tests.kge.encoders.conftest import tiny


@pytest.mark.parametrize("at_once", [256, 3])
def test_two_hop_edges_equal_brute_force(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fkgsec.kge.encoders.kb_gat.SOURCES_AT_ONCE", at_once)
    triples = np.random.default_rng(4).integers(0, [12, 3, 12], size=(25, 3))
    direct = {(h, t) for h, _, t in triples.tolist()}
    expected: dict[tuple[int, int], tuple[int, int]] = {}
    for h, r, m in sorted(triples.tolist(), key=lambda one: (one[2], one[1])):
        for m2, r2, t in sorted(triples.tolist(), key=lambda one: one[1]):
            if m == m2 and h != t and (h, t) not in direct:
                expected.setdefault((h, t), (r, r2))
    found = torch.stack(edges_of(triples, 12, 3), dim=1)[25:].tolist()
    assert {(source, target): (first, second) for target, source, first, second in found} == expected
    assert len(found) == len(expected)


def test_attention_equals_a_loop_over_edges() -> None:
    rng = np.random.default_rng(5)
    layer = Attention(4, rng)
    x, relations = (torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32)) for n in (5, 2))
    columns = [[0, 0, 0, 2, 3], [1, 2, 2, 4, 3], [0, 1, 1, 0, 1], [2, 2, 0, 2, 1]]  # entities 1 and 4 attend to nobody
    edges = Edges(*(torch.tensor(column) for column in columns))
    parts, weigh = layer.parts.detach().double().numpy(), layer.weigh.detach().double().numpy()[:, 0]
    rows, kinds = x.double().numpy(), [*relations.double().numpy(), np.zeros(4)]
    expected = np.zeros((5, 4))
    for node in range(5):
        vectors = [
            np.concatenate([rows[target], rows[source], kinds[first] + kinds[second]]) @ parts
            for target, source, first, second in zip(*columns, strict=True)
            if target == node
        ]
        powers = [float(vector @ weigh) for vector in vectors]
        weights = [math.exp(-(power if power > 0 else 0.2 * power)) for power in powers]
        for weight, vector in zip(weights, vectors, strict=True):
            expected[node] += weight / sum(weights) * vector
    np.testing.assert_allclose(layer(x, relations, edges, lambda one: one).detach(), expected, atol=1e-6)


def encoder_of(graph: ClientGraph, **changes: object) -> KbGatEncoder:
    return KbGatEncoder(graph, graph.train, tiny("kb-gat", **changes), key=0)


def test_distance_loss_by_hand() -> None:
    """Two entities and one triple: the only other tail is entity 0, the only other head entity 1."""
    triples = np.array([[0, 0, 1]])
    encoder = encoder_of(ClientGraph.from_global("two", triples, triples[:0], triples[:0]), dim=2)
    entities, relations = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[-1.0, 0.5]])
    # |h + r - t| = |0| + |-0.5|; with tail 0: |-1| + |0.5|; with head 1: |-1| + |0.5|
    losses = {MARGIN + 0.5 - 1.5}
    for seed in range(20):
        loss = encoder._distance_loss(entities, relations, np.array([0]), np.random.default_rng(seed))
        assert float(loss) in (*losses, 0.0)  # 0 where both draws are the triple itself, which do not count
        if float(loss):
            return
    raise AssertionError("no negative was ever drawn")


def test_the_decoder_learns_on_rows_that_stay(uneven: FederatedGraph) -> None:
    graph = uneven.clients[1]
    encoder = encoder_of(graph, decoder_epochs=15, decoder_negatives=5, learning_rate=0.02)
    rng = np.random.default_rng(7)
    rows = {
        "entities": torch.from_numpy(rng.normal(size=(graph.num_entities, 8)).astype(np.float32)),
        "relations": torch.from_numpy(rng.normal(size=(graph.num_relations, 8)).astype(np.float32)),
    }
    before = {name: one.clone() for name, one in encoder.network.state_dict().items()}

    def loss() -> float:
        encoded: ClientTables = encoder.encode(rows, encoder.network.state_dict())
        model = encoder.options.decoder(encoded)
        everything = np.arange(len(graph.train))
        return float(encoder._decoder_loss(model, encoded, everything, np.random.default_rng(8)))

    first = loss()
    encoder.fit_decoder(rows, round=1)
    assert loss() < 0.8 * first
    after = encoder.network.state_dict()
    assert all(torch.equal(one, after[name]) for name, one in before.items() if not name.startswith("decoder."))
    assert all(one.grad is None for one in encoder.network.parameters())
