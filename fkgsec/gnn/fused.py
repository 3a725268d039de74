"""The networks of GIN, GCN and GraphSAGE on the CPU, forward and backward by hand; torch_geometric's to 1e-6.

    y, pull = dense(x, weight, bias, relu=True)      # values, and what takes d loss / d y to those of the arguments
    to_x, to_weight, to_bias = pull(derivatives)
    logits = classify(model, batch, 0.5, rng)        # of a GraphClassifier, for autograd

Neighbours are summed over compressed rows, ReLU and dropout pass once over the values (`fkgsec.gnn.kernels`), products of
matrices are oneDNN's. A whole network is one node of autograd's graph. There are no second derivatives; asking for one raises.

Legend: `n` nodes (and rows of none, see `padded_rows`), `W` width, `I` inputs, `O` outputs, `B` graphs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional

from fkgsec.gnn.batches import Batch, Edges, loops

_NO_WORDS = np.zeros(0, dtype=np.uint64)
_ROWS = 256
_DIGITS = 16  # of a share of values that are dropped
Pull = Callable[[Tensor], tuple[Any, ...]]  # None where something has no derivatives
Group = tuple[Tensor, ...]


class Dropped(NamedTuple):
    """What dropout does to the values of a tensor, row by row: those whose bit is 0 are dropped, the others scaled.

    Value number i has bit i % 64 of `words[i // 64]`, uint64. No words: every value stays.
    """

    words: np.ndarray = _NO_WORDS
    scale: float = 1.0

    @classmethod
    def drawn(cls, num_values: int, share: float, rng: np.random.Generator | None) -> Self:
        """About that share of the values, taken to the next 65,536th, which the scale makes up for; no generator: none.

        A word for 64 values is drawn for each binary digit of the share, from the last that is not 0: one for a half.
        """
        kept = 2**_DIGITS - round(share * 2**_DIGITS)
        if rng is None or kept == 2**_DIGITS:
            return cls()
        count = -(-num_values // 64)
        words = rng.integers(0, 2**64, count, dtype=np.uint64)
        for digit in range((kept & -kept).bit_length(), _DIGITS):
            # So far a bit is 1 with the probability 0.d, d the digits so far; one more makes it 0.1d or 0.0d.
            drawn = rng.integers(0, 2**64, count, dtype=np.uint64)
            words = words | drawn if kept >> digit & 1 else words & drawn
        return cls(words, 2**_DIGITS / kept)

    def bits(self, shape: tuple[int, ...]) -> np.ndarray:
        """Bool of that shape, true where a value stays."""
        bits = np.unpackbits(self.words.astype("<u8").view(np.uint8), bitorder="little")
        return bits[: int(np.prod(shape))].reshape(shape) == 1


KEEP_ALL = Dropped()


def padded_rows(num_nodes: int) -> int:
    """Rows of a tensor for so many nodes: the next multiple of 256, the last ones of no node; fewer nodes are not padded.

    What these rows hold is finite, and its derivatives are 0, so that no sum over rows changes.
    """
    return num_nodes if num_nodes < _ROWS else -(-num_nodes // _ROWS) * _ROWS


def padded(x: Tensor) -> Tensor:
    """`x` with such rows, of zeros."""
    return functional.pad(x, (0, 0, 0, padded_rows(len(x)) - len(x)))


def supports(batch: Batch, parameter: Tensor) -> bool:
    """Whether these functions serve: float32 on the CPU, and features that are data, not what an attack solves for."""
    data = "x" not in vars(batch) or not batch.x.requires_grad
    return data and parameter.device.type == "cpu" and parameter.dtype == torch.float32


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """x weight^T + bias, `[n, O]`, perhaps with ReLU.

    oneDNN uses a CPU's widest vectors whoever made it, MKL half of them on AMD's. But it compiles code for every shape, so that
    it is for numbers of rows that come again (`padded_rows`).
    """
    if max(x.shape) % _ROWS == 0 and _onednn():
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu" if relu else "none", [], "")
    y = functional.linear(x, weight, bias)
    return y.relu_() if relu else y


@functools.cache
def _onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def dense(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    relu: bool = False,
    dropped: Dropped = KEEP_ALL,
    to_x: bool = True,
) -> tuple[Tensor, Pull]:
    """x weight^T + bias, then ReLU and, after it, dropout. `pull` gives those of x (where `to_x`), weight and bias."""
    y = product(x, weight, bias, relu=relu)
    if len(dropped.words):
        loops().drop(y.numpy(), dropped.words, np.float32(dropped.scale))

    def pull(derivatives: Tensor) -> tuple[Any, ...]:
        through, to_bias = _before_relu(derivatives, y, dropped.scale) if relu else (derivatives, None)
        if bias is not None and to_bias is None:
            to_bias = derivatives.sum(dim=0)
        return product(through, weight.T) if to_x else None, product(through.T, x.T), to_bias

    return y, pull


def activated(x: Tensor, bias: Tensor, dropped: Dropped = KEEP_ALL) -> tuple[Tensor, Pull]:
    """ReLU of x + bias, then dropout. `pull` gives those of x and bias."""
    y = torch.empty_like(x)
    loops().activate(x.numpy(), bias.numpy(), y.numpy())
    if len(dropped.words):
        loops().drop(y.numpy(), dropped.words, np.float32(dropped.scale))
    return y, lambda derivatives: _before_relu(derivatives, y, dropped.scale)


def _before_relu(derivatives: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """In place, those of what ReLU and dropout made y of, and their columns' sums; y is positive where it passed both."""
    sums = torch.zeros(y.shape[1])
    loops().before_relu(derivatives.numpy(), y.numpy(), np.float32(scale), sums.numpy())
    return derivatives, sums


class Weights(NamedTuple):
    """Of a sum over neighbours: of the nodes that it is for, of those that it reads, and of a node in its own sum."""

    left: np.ndarray
    right: np.ndarray
    own: float


def neighbour_sum(x: Tensor, batch: Batch, weights: Weights) -> tuple[Tensor, Pull]:
    """left_v (own right_v x_v + sum over sources u of right_u x_u). `pull` gives those of x."""

    def along(edges: Edges, rows: Tensor, left: np.ndarray, right: np.ndarray) -> Tensor:
        out = torch.empty_like(rows)
        loops().aggregate(*edges, rows.numpy(), left, right, np.float32(weights.own), out.numpy())
        return out

    y = along(batch.incoming, x, weights.left, weights.right)
    return y, lambda derivatives: (along(batch.outgoing, derivatives, weights.right, weights.left),)


def gin_weights(batch: Batch) -> Weights:
    """A node and its neighbours."""
    ones = np.ones_like(batch.degrees)
    return Weights(ones, ones, 1.0)


def gcn_weights(batch: Batch) -> Weights:
    """The same, by the roots of both ends' degrees."""
    roots = 1 / np.sqrt(batch.degrees + 1)
    return Weights(roots, roots, 1.0)


def sage_weights(batch: Batch) -> Weights:
    """The neighbours' mean."""
    return Weights(1 / np.maximum(batch.degrees, 1), np.ones_like(batch.degrees), 0.0)


def embedded(batch: Batch, weight: Tensor, bias: Tensor, *, num_features: int | None = None) -> tuple[Tensor, Pull]:
    """The first `num_features` (None: all) of the nodes times weight^T + bias; a sum of rows where they are one-hot."""
    columns = batch.columns
    if columns is None:
        return dense(padded(batch.x[:, :num_features]), weight, bias, to_x=False)
    y = torch.empty(padded_rows(len(columns)), len(weight))
    loops().embed(columns, weight.T.contiguous().numpy(), bias.numpy(), y.numpy())

    def pull(derivatives: Tensor) -> tuple[Any, ...]:
        table, to_bias = torch.zeros(weight.shape[1], weight.shape[0]), torch.zeros(weight.shape[0])
        loops().embed_gradients(columns, derivatives.numpy(), table.numpy(), to_bias.numpy())
        return None, table.T, to_bias

    return y, pull


def pooled(x: Tensor, batch: Batch) -> tuple[Tensor, Pull]:
    """The sum of each graph's nodes, `[B, W]`. `pull` gives those of x."""
    y, graph_of = torch.zeros(len(batch), x.shape[1]), batch.graph_of.numpy()
    loops().pool(x.numpy(), graph_of, y.numpy())

    def pull(derivatives: Tensor) -> tuple[Any, ...]:
        out = torch.empty_like(x)
        loops().spread(derivatives.numpy(), graph_of, out.numpy())
        return (out,)

    return y, pull


def gin(x: Tensor, batch: Batch, dropped: Dropped, *parameters: Tensor) -> tuple[Tensor, Pull]:
    """`GINConv` over two linear layers (weight, bias of each), ReLU, dropout. `pull` gives those of x and the parameters."""
    first, first_bias, second, second_bias = parameters
    sums, pull_sums = neighbour_sum(x, batch, gin_weights(batch))
    hidden, pull_hidden = dense(sums, first, first_bias, relu=True)
    y, pull_y = dense(hidden, second, second_bias, relu=True, dropped=dropped)

    def pull(derivatives: Tensor) -> tuple[Any, ...]:
        to_hidden, *to_second = pull_y(derivatives)
        to_sums, *to_first = pull_hidden(to_hidden)
        return *pull_sums(to_sums), *to_first, *to_second

    return y, pull


def gcn(x: Tensor, batch: Batch, dropped: Dropped, *parameters: Tensor) -> tuple[Tensor, Pull]:
    """`GCNConv` (weight, bias), ReLU, dropout. `pull` as in `gin`."""
    weight, bias = parameters
    turned, pull_turned = dense(x, weight)
    sums, pull_sums = neighbour_sum(turned, batch, gcn_weights(batch))
    y, pull_y = activated(sums, bias, dropped)

    def pull(derivatives: Tensor) -> tuple[Any, ...]:
        to_sums, to_bias = pull_y(derivatives)
        to_x, to_weight, _ = pull_turned(*pull_sums(to_sums))
        return to_x, to_weight, to_bias

    return y, pull


def sage(x: Tensor, batch: Batch, dropped: Dropped, *parameters: Tensor) -> tuple[Tensor, Pull]:
    """`SAGEConv` with means (weight and bias of the neighbours, weight of the node), ReLU, dropout. `pull` as in `gin`."""
    weight, bias, own = parameters
    means, pull_means = neighbour_sum(x, batch, sage_weights(batch))
    turned, pull_turned = dense(means, weight)
    kept, pull_kept = dense(x, own)
    y, pull_y = activated(turned.add_(kept), bias, dropped)

    def pull(derivatives: Tensor) -> tuple[Any, ...]:
        to_both, to_bias = pull_y(derivatives)
        to_x, to_own, _ = pull_kept(to_both)
        to_means, to_weight, _ = pull_turned(to_both)
        (through_means,) = pull_means(to_means)
        return to_x + through_means, to_weight, to_bias, to_own

    return y, pull


class _Convolution(NamedTuple):
    """A convolution, and where a layer of torch_geometric has its parameters."""

    run: Callable[..., tuple[Tensor, Pull]]
    parameters: Callable[[Any], Group]


CONVOLUTIONS: Mapping[str, _Convolution] = {
    "gin": _Convolution(
        gin, lambda layer: (layer.nn[0].weight, layer.nn[0].bias, layer.nn[2].weight, layer.nn[2].bias)
    ),
    "gcn": _Convolution(gcn, lambda layer: (layer.lin.weight, layer.bias)),
    "sage": _Convolution(sage, lambda layer: (layer.lin_l.weight, layer.lin_l.bias, layer.lin_r.weight)),
}


def tanh_gcn(x: Tensor, batch: Batch, weight: Tensor, bias: Tensor) -> tuple[Tensor, Pull]:
    """`GCNConv`, tanh. `pull` as in `gin`."""
    turned, pull_turned = dense(x, weight)
    sums, pull_sums = neighbour_sum(turned, batch, gcn_weights(batch))
    y = sums.add_(bias).tanh_()

    def pull(derivatives: Tensor) -> tuple[Any, ...]:
        to_sums = derivatives * (1 - y * y)
        to_x, to_weight, _ = pull_turned(*pull_sums(to_sums))
        return to_x, to_weight, to_sums.sum(dim=0)

    return y, pull


def classify(model: Any, batch: Batch, share: float, rng: np.random.Generator | None) -> Tensor:
    """The logits of a `GraphClassifier` with one of these convolutions and a sum as its readout; `share` is dropped."""
    convolution = CONVOLUTIONS[model.architecture.model]

    def run(first: Group, *rest: Group) -> tuple[Tensor, Pull]:
        *own, post, head = rest
        x, pull_first = embedded(batch, *first)
        pulls = [pull_first]
        for parameters in own:
            x, pull_layer = convolution.run(x, batch, of_nodes(batch, x, share, rng), *parameters)
            pulls.append(pull_layer)
        y, pull_end = end(x, batch, post, head, share, rng)

        def pull(derivatives: Tensor) -> tuple[Any, ...]:
            to_x, *found = pull_end(derivatives)
            for pull_one in reversed(pulls):
                to_x, *to_parameters = pull_one(to_x)
                found = [*to_parameters, *found]
            return tuple(found)

        return y, pull

    groups = [pair(model.pre), *map(convolution.parameters, model.convs), pair(model.post), pair(model.head)]
    return through_autograd(run, groups)


def of_nodes(batch: Batch, x: Tensor, share: float, rng: np.random.Generator | None) -> Dropped:
    """Dropout of the nodes' rows of `x`, without those beyond them."""
    return Dropped.drawn(len(batch.graph_of) * x.shape[1], share, rng)


def end(
    x: Tensor, batch: Batch, post: Group, head: Group, share: float, rng: np.random.Generator | None
) -> tuple[Tensor, Pull]:
    """Sum of the nodes, a layer with ReLU and dropout, a layer. `pull` gives those of x and of both layers."""
    sums, pull_sums = pooled(x, batch)
    hidden, pull_hidden = dense(sums, *post, relu=True, dropped=Dropped.drawn(sums.numel(), share, rng))
    y, pull_y = dense(hidden, *head)

    def pull(derivatives: Tensor) -> tuple[Any, ...]:
        to_hidden, *to_head = pull_y(derivatives)
        to_sums, *to_post = pull_hidden(to_hidden)
        return *pull_sums(to_sums), *to_post, *to_head

    return y, pull


def pair(layer: Any) -> Group:
    """Weight and bias."""
    return layer.weight, layer.bias


class _Network(Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[..., tuple[Tensor, Pull]], *parameters: Tensor) -> Tensor:
        y, ctx.pull = run(*(one.detach() for one in parameters))
        return y.detach()  # the tensor itself would hold, by its node in the graph, what goes back through it: a circle

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, derivatives: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *ctx.pull(derivatives.contiguous())


def through_autograd(run: Callable[..., tuple[Tensor, Pull]], groups: Sequence[Group]) -> Tensor:
    """What `run` makes of groups of parameters, for autograd; its `pull` gives those of all parameters in their order."""

    def flat(*parameters: Tensor) -> tuple[Tensor, Pull]:
        left = iter(parameters)
        return run(*(tuple(itertools.islice(left, len(group))) for group in groups))

    return _Network.apply(flat, *itertools.chain(*groups))  # type: ignore[no-any-return]
