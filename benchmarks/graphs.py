"""A round of FedAvg over graph networks, compared to the same training in GCFL's code, and to this machine's lower bound.

    python -m benchmarks.graphs --threads 1

The other training is written as in GCFL's `client.py` and `models.py` with torch_geometric: a `DataLoader` that collates objects,
`GINConv` over edges, `global_add_pool`, `nll_loss`, Adam, an evaluation after the epoch. Both train the same graphs in as many
batches, with the same layers, widths and dropout; neither side's evaluation of test graphs is counted.

The lower bound ("floor") is the larger of two bounds, both measured in the same run:

* operations: the matrix products of the convolutions, forward and backward, over the peak rate of such a product;
* bytes: every tensor of a convolution read and written once per use, over the bandwidth of a copy that fits in the same caches
  as a batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.rounds import best_of, print_table, time_round
from fkgsec.data.catalogue import DATA_VARIABLE
from fkgsec.federation.loop import Federation
from fkgsec.gnn.geometric import layers
from fkgsec.gnn.options import GnnOptions
from fkgsec.graphs.collection import load_federation
from fkgsec.graphs.features import node_features
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs

CHEM_SIX = "MUTAG,BZR,COX2,PTC_MR,AIDS,NCI1"
# Passes over a tensor [nodes, width] of a GIN layer. Forward: neighbours and ReLU read and write once, each product reads and
# writes. Backward: ReLU twice (two read, one written), two products for each weight (two read; one read, one written), neighbours
_PASSES = (2 + 2 * 2) + (2 * 3 + 2 * (2 + 2) + 2)
_PRODUCTS = 6  # of a GIN layer: two weights, forward, to the input, to the weight


class GcflNetwork(nn.Module):
    """`GIN` of GCFL's code, with a trained linear layer where `models.serverGIN` has none."""

    def __init__(self, num_features: int, num_classes: int, options: GnnOptions) -> None:
        super().__init__()
        width, self.dropout = options.width, options.dropout
        self.pre = nn.Linear(num_features, width)
        self.graph_convs = nn.ModuleList(
            layers().GINConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))
            for _ in range(options.layers)
        )
        self.post = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.readout = nn.Linear(width, num_classes)

    def forward(self, data: Any) -> Tensor:
        """Compute log-probabilities `[B, C]`.

        Args:
            data: batch of torch_geometric.
        """
        x = self.pre(data.x)
        for convolution in self.graph_convs:
            x = functional.dropout(
                functional.relu(convolution(x, data.edge_index)), self.dropout, training=self.training
            )
        x = self.post(layers().global_add_pool(x, data.batch))
        x = functional.dropout(x, self.dropout, training=self.training)
        return functional.log_softmax(self.readout(x), dim=1)


class GcflClient:
    """Client of GCFL's code: loaders, network and optimizer."""

    def __init__(self, client: ClientGraphs, options: GnnOptions) -> None:
        from torch_geometric.data import Data
        from torch_geometric.loader import DataLoader

        graphs = client.graphs
        objects = []
        for number in range(len(graphs)):
            # One object per graph, as TUDataset gives them to GCFL's code.
            low, high = graphs.node_ptr[number : number + 2]
            objects.append(
                Data(
                    x=torch.from_numpy(node_features(graphs, np.arange(low, high))),
                    edge_index=torch.from_numpy(graphs.edges(number).T.copy()),
                    y=torch.tensor([graphs.classes[number]]),
                )
            )
        self.size = len(client.train)
        self.train_loader: Any = DataLoader([objects[i] for i in client.train], options.batch_size, shuffle=True)
        self.valid_loader: Any = DataLoader([objects[i] for i in client.valid], options.batch_size, shuffle=True)
        self.network = GcflNetwork(objects[0].num_features, graphs.num_classes, options)
        self.adam = torch.optim.Adam(
            self.network.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
        )

    def train(self) -> None:
        """Train an epoch, like `train_gc`."""
        self.network.train()
        for data in self.train_loader:
            self.adam.zero_grad()
            functional.nll_loss(self.network(data), data.y).backward()
            self.adam.step()

    @torch.no_grad()
    def evaluate(self) -> int:
        """Count the validation graphs that are classified correctly, like `eval_gc`."""
        self.network.eval()
        return sum(int((self.network(data).argmax(dim=1) == data.y).sum()) for data in self.valid_loader)


@torch.no_grad()
def gcfl_average(clients: list[GcflClient]) -> None:
    """Average the convolutions, weighted by training graphs, like `aggregate_weights`.

    Args:
        clients: changed in place.
    """
    total = sum(client.size for client in clients)
    for parameters in zip(*(client.network.graph_convs.parameters() for client in clients), strict=True):
        mean = (
            torch.stack([parameter * client.size for parameter, client in zip(parameters, clients, strict=True)]).sum(0)
            / total
        )
        for parameter in parameters:
            parameter.copy_(mean)


def floor_of_round(graphs: FederatedGraphs, options: GnnOptions) -> tuple[float, float]:
    """Compute the seconds for the operations and for the bytes of a round's training on one core; see the module.

    Args:
        graphs: the clients' graphs.
        options: of the federation.
    """
    nodes = sum(int(client.graphs.sizes[client.train].sum()) for client in graphs.clients)
    W, rows = options.width, 4_096
    x, weight, target = torch.randn(rows, W), torch.randn(W, W), torch.empty(rows, W)
    # Rates measured in the caches that a batch fits in, not in main memory.
    peak = 2 * rows * W * W / _quick(lambda: functional.linear(x, weight))
    bandwidth = 2 * x.nbytes / _quick(lambda: target.copy_(x))
    operations = _PRODUCTS * 2 * W * W * nodes * options.layers
    return operations / peak, _PASSES * 4 * W * nodes * options.layers / bandwidth


def _quick(work: Callable[[], object]) -> float:
    """Measure the CPU seconds of a call: the best mean of 100 calls, out of ten."""
    return best_of(10, lambda: [work() for _ in range(100)]).cpu / 100


def bench_graphs() -> FederatedGraphs:
    """Load six sets of CHEM if there is a data folder, else generate graphs."""
    if os.environ.get(DATA_VARIABLE):
        return load_federation(CHEM_SIX, seed=0)
    return load_federation("motifs", seed=0, clients=6, size=6_000)


def main(
    repeats: Annotated[int, typer.Option(help="rounds, of which the fastest counts")] = 5,
    threads: Annotated[int, typer.Option(help="threads of torch")] = 1,
) -> None:
    """Print a table: ours, GCFL's code, the lower bound."""
    graphs, options = bench_graphs(), GnnOptions(device="cpu")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        # Both sides are measured in the same process, one after the other.
        ours = time_round(Federation(graphs, options), repeats, validate=True)
        clients = [GcflClient(client, options) for client in graphs.clients]

        def their_round() -> None:
            """Train, average and evaluate like GCFL's code."""
            for client in clients:
                client.train()
            gcfl_average(clients)
            for client in clients:
                client.evaluate()

        theirs = best_of(repeats, their_round)
        operations, num_bytes = floor_of_round(graphs, options)
    finally:
        torch.set_num_threads(before)
    floor = max(operations, num_bytes)
    rows = [
        (name, f"{timed.wall:.2f}", f"{timed.cpu:.2f}", f"{timed.cpu / floor:.1f}")
        for name, timed in (("fkgsec", ours), ("GCFL's code", theirs))
    ]
    rows += [("floor: operations", "", f"{operations:.3f}", ""), ("floor: bytes", "", f"{num_bytes:.3f}", "")]
    title = f"A round of FedAvg, GIN, 2 layers of 64, on {graphs.name}; {threads} threads"
    print_table(title, ("", "wall s", "CPU s", "CPU s over the floor"), rows)


if __name__ == "__main__":
    typer.run(main)
