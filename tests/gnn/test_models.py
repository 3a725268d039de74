"""Networks against torch_geometric's own use of its layers, and what is refused."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fkgsec.errors import SpecError
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.geometric import layers
from fkgsec.gnn.models import MODELS, Architecture, GraphClassifier, make_classifier
from fkgsec.graphs.features import feature_width, node_features
from fkgsec.graphs.sets import FederatedGraphs, GraphSet
from fkgsec.randomness import generator


class Averaged(nn.Module):
    """A convolution of one's own, which reads edges."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.scale * self.linear(x).index_add(0, edge_index[1], x[edge_index[0]])


class Short(nn.Module):
    """One that returns too few numbers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x[:, :1]


def collated(graphs: GraphSet, ids: list[int]) -> object:
    """As torch_geometric makes a minibatch: an object for each graph, then collation."""
    layers()
    from torch_geometric.data import Batch as Collated
    from torch_geometric.data import Data

    data = []
    for number in ids:
        low, high = graphs.node_ptr[number : number + 2]
        edges = torch.from_numpy(graphs.edges(number).T.copy())
        x = torch.from_numpy(node_features(graphs, np.arange(low, high)))
        data.append(Data(x=x, edge_index=edges, y=torch.tensor([graphs.classes[number]])))
    return Collated.from_data_list(data)


def published(model: GraphClassifier, data: object) -> Tensor:
    """GCFL's `GIN.forward` without dropout, with the model's layers; those of GCN normalize edges themselves."""
    for convolution in model.convs:
        if isinstance(convolution, layers().GCNConv):
            convolution.normalize = convolution.add_self_loops = True
    x, edges = model.pre(data.x), data.edge_index  # type: ignore[attr-defined]
    for convolution in model.convs:
        x = functional.relu(convolution(x, edges))
    x = functional.relu(model.post(layers().global_add_pool(x, data.batch)))  # type: ignore[attr-defined]
    return model.head(x)


@pytest.mark.parametrize("model", [*MODELS, "torch_geometric.nn.GATConv", f"{__name__}.Averaged"])
@pytest.mark.parametrize("place", [0, 2])
def test_logits_and_gradients_are_those_of_torch_geometric(model: str, place: int, motifs: FederatedGraphs) -> None:
    graphs, ids = motifs.clients[place].graphs, [3, 0, 17, 21, 4]
    network = make_classifier(Architecture(model, layers=3, width=8), feature_width(graphs), 2, generator(0, "test"))
    data, batch = collated(graphs, ids), Batch.of(graphs.subset(ids))
    assert batch.classes.tolist() == data.y.tolist()  # type: ignore[attr-defined]
    ours, theirs = network(batch), published(network, data)
    assert torch.allclose(ours, theirs, atol=1e-6, rtol=1e-5)
    gradients = [
        torch.autograd.grad(functional.cross_entropy(logits, batch.classes), list(network.parameters()))
        for logits in (ours, theirs)
    ]
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("readout", ["mean", "max"])
def test_readouts(readout: str, motifs: FederatedGraphs) -> None:
    graphs = motifs.clients[0].graphs.subset([0, 1])
    network = make_classifier(Architecture(width=8, readout=readout), 4, 2, generator(0, "test"))  # type: ignore[arg-type]
    batch = Batch.of(graphs)
    x = network.pre(batch.x)
    for convolution in network.convs:
        x = convolution(x, batch.edge_index).relu()
    parts = x.split(graphs.sizes.tolist())
    pooled = torch.stack([part.mean(0) if readout == "mean" else part.max(0).values for part in parts])
    assert torch.allclose(network(batch), network.head(network.post(pooled).relu()), atol=1e-6)


def test_first_values_are_a_function_of_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (make_classifier(Architecture(), 5, 2, generator(seed, "test")) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert not torch.equal(first.pre.weight, other.pre.weight)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"model": "gan"}, "model must be gin, gcn, sage or a convolution's dotted name; got 'gan'"),
        ({"model": "os; rm"}, "model must be gin, gcn, sage"),
        ({"layers": 0}, "layers must be at least 1; got 0"),
        ({"width": 0}, "width must be at least 1; got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1; got 1.0"),
        ({"dropout": float("nan")}, "dropout must be at least 0 and below 1"),
        ({"readout": "median"}, "readout must be one of sum, mean, max; got 'median'"),
    ],
)
def test_architectures_that_are_refused(options: dict[str, object], fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        Architecture(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ("torch_geometric.nn.NoConv", "cannot be found"),
        ("nowhere.Conv", r"cannot be found \(No module named 'nowhere'\)"),
        ("os.path.join", "is no torch.nn.Module"),
        ("torch_geometric.nn.GINConv", r"must be made as C\(8, 8\) and called as conv\(x, edges\)"),
        (f"{__name__}.Short", "must return a row of 8 for each node; got torch.Size"),
    ],
)
def test_convolutions_that_do_not_fit_are_refused_in_one_line(model: str, fault: str) -> None:
    with pytest.raises(SpecError, match=fault) as refused:
        make_classifier(Architecture(model, width=8), 4, 2, generator(0, "test"))
    assert "\n" not in str(refused.value)
