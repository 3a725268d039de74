"""ConvKB: a convolution over head, relation and tail, dimension by dimension, and a linear layer.

    decoder = ConvKb(dim=50, rng=generator(0, "decoder"))
    model = ConvKbModel("kb-gat", 50, decoder=decoder.state_dict())
    model.score_all(model.query(heads, relations, "tail"), entities)

Source: Nguyen et al. 2018; fedr.txt Table 6 and its published code, which has 50 channels and no dropout.

Legend: `C` channels, `D` dimension, `B` queries, `N` candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from fkgsec.kge import kernels
from fkgsec.kge.models import KgeModel, Side

CHANNELS = 50
HEAD, RELATION, TAIL = 0, 1, 2


class ConvKb(nn.Module):
    """Parameters: filters `[C, 3]` and their bias `[C]`, weights `[C, D]` and their bias.

    Filters and weights start Xavier uniform with gain 1.414, biases uniform in +-1 / sqrt(inputs), as in the published
    code.
    """

    def __init__(self, dim: int, rng: np.random.Generator, channels: int = CHANNELS) -> None:
        super().__init__()

        def uniform(half: float, *shape: int) -> nn.Parameter:
            """Draw a parameter, uniform in +-half."""
            return nn.Parameter(torch.from_numpy(rng.uniform(-half, half, size=shape).astype(np.float32)))

        # Xavier uniform: gain * sqrt(6 / (inputs + outputs)).
        self.filters = uniform(1.414 * (6 / (3 + 3 * channels)) ** 0.5, channels, 3)
        self.bias = uniform(3**-0.5, channels)
        self.weights = uniform(1.414 * (6 / (1 + channels * dim)) ** 0.5, channels, dim)
        self.offset = uniform((channels * dim) ** -0.5, 1)


@dataclass(frozen=True, eq=False)
class ConvKbModel(KgeModel):
    """Scores by a client's own ConvKB.

    A query is what the anchor and the relation add to the convolution `[C D]`, then the filters that a candidate meets `[C]`.

    Args (in addition to those of `KgeModel`):
        decoder: the tensors of a `ConvKb` by name.
    """

    decoder: Mapping[str, Tensor] = field(default_factory=dict)

    def query(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        # Return the part of the convolution that a query fixes.
        at_anchor, at_candidate = (HEAD, TAIL) if side == "tail" else (TAIL, HEAD)
        # Tails are scored in the place of the tail, heads in that of the head: the filters of the candidate differ.
        filters = self.decoder["filters"]
        # A filter is a weighted sum of head, relation and tail per dimension: all but the candidate's term is known
        # here.
        before = (
            filters[:, at_anchor, None] * anchors[..., None, :] + filters[:, RELATION, None] * relations[..., None, :]
        )
        before = before + self.decoder["bias"][:, None]
        return torch.cat([before.flatten(-2), filters[:, at_candidate].expand(*before.shape[:-2], -1)], dim=-1)

    def pair_scores(self, queries: Tensor, candidates: Tensor) -> Tensor:
        weights, offset = self.decoder["weights"], self.decoder["offset"]
        before, filters = queries.tensor_split([weights.numel()], dim=-1)
        # score = sum over channels and dimensions of weights * relu(filters * (h, r, t) + bias), plus an offset.
        convolved = before.unflatten(-1, weights.shape) + filters[..., :, None] * candidates[..., None, :]
        return (relu(convolved) * weights).sum((-2, -1)) + offset

    def score_all(self, queries: Tensor, candidates: Tensor) -> Tensor:
        # In torch operations, one query at a time: all at once would need memory of B x N x C x D.
        if not kernels.runs_compiled(queries):
            return torch.stack([self.pair_scores(query, candidates) for query in queries])
        weights = self.decoder["weights"]
        before, filters = queries.tensor_split([weights.numel()], dim=-1)
        scores = torch.empty(len(queries), len(candidates))
        arrays = (before.unflatten(-1, weights.shape), filters, candidates, weights)
        kernels.compiled_loops().convolution_scores(
            *(array.detach().contiguous().numpy() for array in arrays), scores.numpy()
        )
        return scores + self.decoder["offset"]

    def score_relations(self, heads: Tensor, tails: Tensor, relations: Tensor) -> Tensor:
        return torch.stack([self.score(heads, row.expand(len(heads), -1), tails) for row in relations], dim=1)
