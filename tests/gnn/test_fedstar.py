"""FedStar: its network against one of torch_geometric's layers, what it shares, its mean by hand."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fkgsec.algorithms.graphs.fedstar import STRUCTURE, FedStarRule
from fkgsec.errors import SpecError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.geometric import layers
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.gnn.task import GraphTask
from fkgsec.gnn.training import ClientTrainer
from fkgsec.graphs.sets import FederatedGraphs

SMALL = GnnOptions(algorithm="fedstar", width=8, rounds=3, batch_size=16, device="cpu", seed=6)


@pytest.fixture(scope="module")
def finished(motifs: FederatedGraphs) -> GnnResult:
    return run_federation(motifs, SMALL)


@pytest.mark.parametrize("model", ["gin", "gcn", "sage", "torch_geometric.nn.GraphConv"])
def test_the_network_is_that_of_torch_geometric_s_layers(model: str, motifs: FederatedGraphs) -> None:
    """The equations of FedStar, written out with layers that read edges, and the same numbers in them."""
    options = replace(SMALL, model=model)
    trainer = ClientTrainer(motifs.clients[0], options, FedStarRule(options), (STRUCTURE,))
    own = {name: one.detach() for name, one in trainer.model.state_dict().items()}
    batch = Batch.of(trainer.client.graphs.subset(range(5)))
    edges, width = batch.edge_index, trainer.client.graphs.num_labels[0]

    def layer(module: nn.Module, prefix: str) -> nn.Module:
        module.load_state_dict({n.removeprefix(prefix): t for n, t in own.items() if n.startswith(prefix)})
        return module

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ own[f"{name}.weight"].T + own[f"{name}.bias"]

    x, s = linear(batch.x[:, :width], "pre"), linear(batch.x[:, width:], "structure.embedding")
    for number in range(2):
        if model == "gin":
            made: nn.Module = layers().GINConv(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8)))
        else:
            made = type(trainer.model.convs[number])(16, 8)  # type: ignore[index]
            assert "." in model or type(made) in (layers().GCNConv, layers().SAGEConv)
        x = functional.relu(layer(made, f"convs.{number}.")(torch.cat([x, s], 1), edges))
        s = torch.tanh(layer(layers().GCNConv(8, 8), f"structure.convs.{number}.")(s, edges))
    x = layers().global_add_pool(linear(torch.cat([x, s], 1), "joined"), batch.graph_of)
    expected = linear(functional.relu(linear(x, "post")), "head")
    with torch.no_grad():
        assert torch.allclose(trainer.model(batch), expected, atol=1e-5)
        plain = Batch.of(
            motifs.clients[0].graphs.subset(range(5))
        )  # without structure features, which then are computed
        assert torch.allclose(trainer.model(plain), expected, atol=1e-5)


def test_the_structure_channel_alone_is_shared(motifs: FederatedGraphs, finished: GnnResult) -> None:
    """Of the paper's size: 32 x 64 + 64, and 3 (64 x 64 + 64)."""
    large = GraphTask(motifs, GnnOptions(algorithm="fedstar", layers=3, device="cpu"))
    assert sum(torch.Size(shape).numel() for shape in large.layout.shapes.values()) == 14_592
    first, _, last = finished.models
    for name in first:
        if first[name].shape == last[name].shape and not name.endswith("eps"):  # GIN's, a constant
            assert torch.equal(first[name], last[name]) == name.startswith(STRUCTURE), name
    assert "structure.embedding.weight/31" in finished.row_names["parameters"]


def test_columns_of_degrees_that_a_client_never_has_move_by_weight_decay_alone(motifs: FederatedGraphs) -> None:
    """What its upload tells: of a molecule's nodes none has more than five edges here."""
    task = GraphTask(motifs, replace(SMALL, weight_decay=0.0))
    before = task.rows("parameters", 0).clone()
    task.train(1, [0], lambda: None)
    moved = (task.rows("parameters", 0) != before).any(1).tolist()
    names = task.layout.names
    degrees = set(np.clip(motifs.clients[0].graphs.subset(motifs.clients[0].train).degrees, 1, 16).tolist())
    for degree in range(1, 17):
        assert moved[names.index(f"structure.embedding.weight/{15 + degree}")] == (degree in degrees)


def test_without_walks_and_degrees_there_is_no_structure() -> None:
    with pytest.raises(SpecError, match=r"num_walks.*num_degrees"):
        GnnOptions(algorithm="fedstar", settings={"num_walks": 0, "num_degrees": 0})
