"""Classifier of graphs: a linear layer, graph convolutions of torch_geometric, a readout, two linear layers.

    model = make_classifier(architecture, num_features=7, num_classes=2, rng=generator(0, "model"))
    logits = model(batch)                            # [B, C], no dropout
    logits = model(batch, rng)                       # with dropout drawn from `rng`

Source: code of GCFL and FedStar: `pre`, convolutions of equal width each followed by ReLU and dropout, sum of the nodes, `post`
with ReLU and dropout, `head`. Differs: they return log-probabilities. All their algorithms share the convolutions alone.

Another convolution is given by the dotted name of its class, such as `torch_geometric.nn.GATConv`. It is constructed as
`C(width, width)` and called as `conv(x, edge_index)`.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fkgsec.errors import SpecError
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.geometric import layers
from fkgsec.gnn.options import MODELS, Architecture, Readout

ENCODER = "convs."
_DIGITS = 16  # binary digits of the share of dropped values


class GraphClassifier(nn.Module):
    """Graph classifier; see the module."""

    def __init__(self, architecture: Architecture, num_features: int, num_classes: int) -> None:
        super().__init__()
        width, convolution = architecture.width, convolution_of(architecture.model)
        self.architecture = architecture
        self.pre = nn.Linear(num_features, width)
        self.convs = nn.ModuleList(convolution(width, width) for _ in range(architecture.layers))
        self.post = nn.Linear(width, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, batch: Batch, rng: np.random.Generator | None = None) -> Tensor:
        """Compute logits `[B, C]`.

        Args:
            batch: graphs.
            rng: source of dropout; None: no dropout.
        """
        share = self.architecture.dropout
        x, edges = self.pre(batch.x), edges_for(self.architecture.model, batch)
        for convolution in self.convs:
            x = dropout(functional.relu(convolution(x, edges)), share, rng)
        # Readout after the last layer only, as in the published code.
        x = read_out(x, batch, self.architecture.readout)
        return self.head(dropout(functional.relu(self.post(x)), share, rng))


def edges_for(model: str, batch: Batch) -> Tensor:
    """Return edges in the format of a convolution. Compressed rows are faster, but other layers may only support
    `edge_index`.

    Args:
        model: name of the convolution.
        batch: graphs.
    """
    if model == "gcn":
        return batch.normalized
    return batch.adjacency if model in MODELS else batch.edge_index


def read_out(x: Tensor, batch: Batch, readout: Readout) -> Tensor:
    """Pool nodes to graphs `[B, width]`.

    Args:
        x: float `[n, width]`, nodes.
        batch: their graphs.
        readout: kind of pooling.
    """
    pool = {"sum": layers().global_add_pool, "mean": layers().global_mean_pool, "max": layers().global_max_pool}
    return pool[readout](x, batch.graph_of, len(batch))


def dropout(x: Tensor, share: float, rng: np.random.Generator | None) -> Tensor:
    """Drop about this share of the values, and scale up the others so that the mean stays.

    The share is rounded to a multiple of 1 / 65,536. One bit of a random word decides on each value: one word for 64
    values and each binary digit of the share, so that a share of one half takes one word. `rng.random` would take 64
    times as many words.

    Args:
        x: float, of any shape.
        share: of dropped values, 0 to 1.
        rng: source of randomness; None: nothing is dropped.
    """
    # The number of kept values in 65,536; trailing zero digits need no draw.
    num_kept = 2**_DIGITS - round(share * 2**_DIGITS)
    if rng is None or num_kept == 2**_DIGITS:
        return x
    count = -(-x.numel() // 64)
    words = rng.integers(0, 2**64, count, dtype=np.uint64)
    for digit in range((num_kept & -num_kept).bit_length(), _DIGITS):
        # So far a bit is 1 with probability 0.d, d the binary digits so far; OR makes it 0.1d, AND makes it 0.0d.
        drawn = rng.integers(0, 2**64, count, dtype=np.uint64)
        words = words | drawn if num_kept >> digit & 1 else words & drawn
    # Little-endian on every machine, so that masks are the same.
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")[: x.numel()].reshape(x.shape)
    # Scale by the exact share of kept values, so that the mean stays.
    return x * (torch.from_numpy(bits).to(x.device) * (2**_DIGITS / num_kept))


def convolution_of(model: str) -> Callable[[int, int], nn.Module]:
    """Return a function that builds a convolution from the widths of its input and output.

    Args:
        model: "gin", "gcn", "sage", or a dotted name.

    Raises:
        SpecError: the dotted name is no torch module.
    """

    def gin(inputs: int, width: int) -> nn.Module:
        """Build a GIN convolution with a perceptron of two layers, as in the code of GCFL."""
        return layers().GINConv(nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width)))

    if model == "gin":
        return gin
    if model == "gcn":
        # Edges come normalized (`Batch.normalized`), once per batch instead of once per layer.
        return lambda inputs, width: layers().GCNConv(inputs, width, normalize=False)
    if model == "sage":
        return layers().SAGEConv
    module, _, name = model.rpartition(".")
    layers()
    try:
        convolution = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"model {model!r} cannot be found ({error})") from error
    if not (isinstance(convolution, type) and issubclass(convolution, nn.Module)):
        raise SpecError(f"model {model!r} is no torch.nn.Module")
    return lambda inputs, width: _plugged(convolution, model, inputs, width)


def _plugged(kind: type[nn.Module], model: str, inputs: int, width: int) -> nn.Module:
    """Build a foreign convolution and try it on two nodes. Raises `SpecError` if it does not have the required
    interface.
    """
    try:
        convolution = kind(inputs, width)
        with torch.no_grad():
            # Try it now: a wrong interface should not fail after data were loaded and clients made.
            out = convolution(torch.zeros(2, inputs), torch.tensor([[0, 1], [1, 0]]))
    except Exception as error:  # whatever a foreign module does
        message = " ".join(str(error).split())
        raise SpecError(
            f"model {model!r} must be made as C({inputs}, {width}) and called as conv(x, edges): {message}"
        ) from error
    if not isinstance(out, Tensor) or out.shape != (2, width):
        raise SpecError(
            f"model {model!r} must return a row of {width} for each node; got {getattr(out, 'shape', type(out))}"
        )
    return convolution


def make_classifier(
    architecture: Architecture, num_features: int, num_classes: int, rng: np.random.Generator
) -> GraphClassifier:
    """Build a classifier whose initial values depend on `rng` alone.

    Args:
        architecture: of the network.
        num_features: of a node.
        num_classes: of a graph.
        rng: source of randomness.
    """
    with drawing_from(rng):
        return GraphClassifier(architecture, num_features, num_classes)


@contextlib.contextmanager
def drawing_from(rng: np.random.Generator) -> Iterator[None]:
    """Seed torch's global generator, from which layers draw initial values, from `rng`; restore it afterwards.

    Args:
        rng: source of randomness.
    """
    with torch.random.fork_rng(devices=[]):
        # torch's layers draw from the global generator only.
        torch.manual_seed(int(rng.integers(2**63)))
        yield
