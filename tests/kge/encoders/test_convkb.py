"""ConvKB against torch's convolution and linear layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fkgsec.kge.encoders.convkb import ConvKb, ConvKbModel

DIM, CHANNELS = 6, 5


@pytest.fixture
def decoder() -> ConvKb:
    return ConvKb(DIM, np.random.default_rng(0), CHANNELS)


def by_torch(decoder: ConvKb, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
    """Scores `[n]` by the layers that the code is made of."""
    convolution, linear = nn.Conv2d(1, CHANNELS, (1, 3)), nn.Linear(CHANNELS * DIM, 1)
    with torch.no_grad():
        convolution.weight.copy_(decoder.filters[:, None, None, :])
        convolution.bias.copy_(decoder.bias)  # type: ignore[union-attr]
        linear.weight.copy_(decoder.weights.reshape(1, -1))
        linear.bias.copy_(decoder.offset)
        rows = torch.stack([heads, relations, tails], dim=2)[:, None]  # [n, 1, D, 3]
        return linear(torch.relu(convolution(rows)).squeeze(-1).flatten(1))[:, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # the compiled loop; torch
def test_scores_equal_those_of_torchs_layers(decoder: ConvKb, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    heads, relations = (torch.from_numpy(rng.normal(size=(4, DIM))) for _ in range(2))
    entities = torch.from_numpy(rng.normal(size=(9, DIM)))
    state = {name: one.detach().to(dtype) for name, one in decoder.state_dict().items()}
    model = ConvKbModel("kb-gat", DIM, decoder=state)
    given = heads.to(dtype), relations.to(dtype), entities.to(dtype)
    for side in ("tail", "head"):
        found = model.score_all(model.query(given[0], given[1], side), given[2])
        assert found.dtype == dtype
        for place, (anchor, relation) in enumerate(zip(heads.float(), relations.float(), strict=True)):
            anchors, middle = anchor.expand(9, -1), relation.expand(9, -1)
            ends = (anchors, entities.float()) if side == "tail" else (entities.float(), anchors)
            expected = by_torch(decoder, ends[0], middle, ends[1])
            torch.testing.assert_close(found[place].float(), expected, atol=1e-6, rtol=1e-5)
