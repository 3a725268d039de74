"""Local training against a naive loop, the rules against autograd."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from fkgsec.algorithms.graphs.fedprox import GraphFedProxRule
from fkgsec.errors import SpecError, TrainingError
from fkgsec.gnn import training
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.models import ENCODER
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.training import ClientTrainer, GraphRule
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs, GraphSet
from fkgsec.randomness import generator

SMALL = {"width": 8, "batch_size": 20}  # 48 graphs: the last batch of an epoch is smaller


def trainer(client: ClientGraphs, options: GnnOptions) -> ClientTrainer:
    rule = GraphFedProxRule(options) if options.algorithm == "fedprox-gc" else GraphRule(options)
    return ClientTrainer(client, options, rule, (ENCODER,))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox-gc"])
def test_a_round_is_that_of_a_naive_loop(algorithm: str, motifs: FederatedGraphs) -> None:
    """Graph by graph, without dropout, the loss with the proximal term differentiated as a whole."""
    client = motifs.clients[0]
    settings = {"mu": 0.5} if algorithm == "fedprox-gc" else None
    options = GnnOptions(algorithm=algorithm, dropout=0.0, local_epochs=2, settings=settings, **SMALL)
    ours, theirs = trainer(client, options), trainer(client, options)
    anchor = {name: torch.full_like(one, 0.05) for name, one in theirs.shared.items()}
    ours.received = anchor
    loss = ours.train(3, lambda: None)

    adam, losses = torch.optim.Adam(theirs.model.parameters(), lr=1e-3, weight_decay=5e-4), []
    for epoch in range(2):
        order = generator(0, "batches", client.name, 3, epoch).permutation(len(client.train))
        for start in range(0, len(order), options.batch_size):
            chosen = client.train[order[start : start + options.batch_size]]
            one_by_one = [theirs.model(Batch.of(client.graphs.subset([number]))) for number in chosen]
            classes = torch.tensor(client.graphs.classes[chosen])
            value = functional.cross_entropy(torch.cat(one_by_one), classes)
            if algorithm == "fedprox-gc":
                value = value + 0.25 * sum((theirs.shared[name] - anchor[name]).square().sum() for name in anchor)
            adam.zero_grad()
            value.backward()
            adam.step()
            losses += [value.item()] * len(chosen)
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    for name, tensor in theirs.model.state_dict().items():
        assert torch.allclose(ours.model.state_dict()[name], tensor, atol=2e-5), name


def test_threads_do_not_change_a_bit(threads) -> None:
    """With 37 attributes, as many as NCI1 has labels: MKL's products of such widths differ with the number of threads."""
    rng, sizes = generator(0, "graphs"), np.full(60, 20)
    edges = np.repeat(np.arange(60) * 20, 30)[:, None] + rng.integers(0, 20, (60 * 30, 2))
    attributes = rng.normal(size=(1_200, 37)).astype(np.float32)
    graphs = GraphSet.from_edges("drawn", sizes, edges, np.arange(60) % 2, attributes=attributes)
    client, states = ClientGraphs("one", graphs, np.arange(50), np.arange(50, 55), np.arange(55, 60)), []
    for count in (1, 2):
        threads(count)
        one = trainer(client, GnnOptions(width=5))
        one.train(1, lambda: None)
        states.append(torch.cat([tensor.flatten() for tensor in one.model.state_dict().values()]))
        assert torch.get_num_threads() == count
    assert torch.equal(*states)


def test_a_step_of_sgd_is_the_gradient_of_one_batch(motifs: FederatedGraphs) -> None:
    """W - rate (gradient + decay W), over the first graphs of the order alone."""
    client = motifs.clients[0]
    options = GnnOptions(
        width=8, batch_size=3, dropout=0.0, optimizer="sgd", local_steps=1, learning_rate=0.1, weight_decay=0.25
    )
    ours, theirs, steps = trainer(client, options), trainer(client, options), []
    loss = ours.train(2, lambda: steps.append(1))
    chosen = client.train[generator(0, "batches", client.name, 2, 0).permutation(len(client.train))[:3]]
    value = functional.cross_entropy(
        theirs.model(Batch.of(client.graphs.subset(chosen))), torch.tensor(client.graphs.classes[chosen])
    )
    value.backward()
    assert len(steps) == ours.num_steps == 1
    assert loss == pytest.approx(value.item(), rel=1e-6)
    for name, tensor in theirs.model.named_parameters():
        stepped = tensor - 0.1 * (tensor.grad + 0.25 * tensor)
        assert torch.allclose(ours.model.state_dict()[name], stepped, atol=1e-7), name


@pytest.mark.parametrize(("name", "value"), [("optimizer", "momentum"), ("local_steps", 0)])
def test_a_way_of_training_that_there_is_not_is_refused(name: str, value: object) -> None:
    with pytest.raises(SpecError, match=f"{name} must be"):
        GnnOptions(**{name: value})


def test_classification_is_of_each_graph_alone(motifs: FederatedGraphs, monkeypatch: pytest.MonkeyPatch) -> None:
    client = motifs.clients[1]
    one = trainer(client, GnnOptions(width=8))
    whole = one.classify(client.test)
    monkeypatch.setattr(training, "JUDGED_AT_ONCE", 2)
    parts = one.classify(client.test)
    single = np.concatenate([one.classify(client.test[place : place + 1]).values for place in range(len(client.test))])
    assert np.allclose(whole.values, parts.values, atol=1e-6)
    assert np.allclose(whole.values, single, atol=1e-6)
    assert whole.classes.tolist() == client.graphs.classes[client.test].tolist()
    assert np.allclose(whole.values.sum(axis=1), 1)
    assert len(one.classify(np.empty(0, dtype=np.int64)).correct) == 0


def test_a_loss_that_is_not_finite_stops(motifs: FederatedGraphs) -> None:
    one = trainer(motifs.clients[0], GnnOptions(**SMALL))
    with torch.no_grad():
        one.model.head.bias.fill_(torch.inf)
    with pytest.raises(TrainingError, match="round 4, client molecules-1, epoch 1, step 1: the loss is"):
        one.train(4, lambda: None)
