"""The bench of graph networks: both sides train the same, and the table has both and the floor."""

import pytest
import torch
from torch import nn

from benchmarks import graphs as bench
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.geometric import layers
from fkgsec.gnn.models import make_classifier
from fkgsec.gnn.options import GnnOptions
from fkgsec.graphs.collection import load_federation
from fkgsec.graphs.features import feature_width
from fkgsec.randomness import generator


def test_gcfl_s_network_is_ours() -> None:
    client, options = load_federation("motifs", seed=0, clients=2, size=80).clients[0], GnnOptions(width=8)
    ours = make_classifier(options.architecture(), feature_width(client.graphs), 2, generator(0, "test"))
    theirs = bench.GcflClient(client, options)
    own = {name.replace("convs", "graph_convs").replace("post", "post.0").replace("head", "readout"): one
           for name, one in ours.state_dict().items()}  # fmt: skip
    theirs.network.load_state_dict(own)
    theirs.network.eval()
    layers()
    from torch_geometric.data import Batch as Collated

    data = Collated.from_data_list([theirs.valid_loader.dataset[i] for i in range(len(client.valid))])
    with torch.no_grad():
        assert torch.allclose(
            theirs.network(data), ours(Batch.of(client.graphs, client.valid)).log_softmax(dim=1), atol=1e-5
        )


def test_its_mean_is_weighted() -> None:
    federation, options = load_federation("motifs", seed=0, clients=2, size=80), GnnOptions(width=8)
    clients = [bench.GcflClient(client, options) for client in federation.clients]
    clients[0].size = 3 * clients[1].size
    for client, value in zip(clients, (1.0, 5.0), strict=True):
        for parameter in client.network.parameters():
            nn.init.constant_(parameter, value)
    bench.gcfl_average(clients)
    for client, value in zip(clients, (1.0, 5.0), strict=True):
        assert {one.detach().mean().item() for one in client.network.graph_convs.parameters()} == {2.0}
        assert client.network.pre.weight.detach().mean().item() == value


@pytest.mark.slow
def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "bench_graphs", lambda: load_federation("motifs", seed=0, clients=2, size=400))
    bench.main(repeats=1, threads=1)
    told = capsys.readouterr().out
    assert "GCFL's code" in told
    assert "floor: operations" in told
