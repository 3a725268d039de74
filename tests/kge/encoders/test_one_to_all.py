"""The loss against dense labels and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy

from fkgsec.kge.encoders import one_to_all
from fkgsec.kge.encoders.one_to_all import one_to_all_loss


@pytest.mark.parametrize("label_smoothing", [0.1, 0.0])
@pytest.mark.parametrize("block_bytes", [4 * 2**20, 8 * 11 * 2])  # all queries at once; two at a time
def test_equals_cross_entropy_of_dense_labels(
    label_smoothing: float, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries with no, one and several positives."""
    monkeypatch.setattr(one_to_all, "BLOCK_BYTES", block_bytes)
    rng = np.random.default_rng(1)
    queries, entities = (torch.from_numpy(rng.normal(size=(n, 6))).requires_grad_() for n in (5, 11))
    position, member = np.array([0, 0, 2, 3, 3, 3]), np.array([4, 9, 0, 1, 2, 10])
    labels = torch.zeros(5, 11, dtype=torch.float64)
    labels[position, member] = 1
    if label_smoothing:
        labels = (1 - label_smoothing) * labels + 1 / 11  # as NoGE's code
    expected = binary_cross_entropy(torch.sigmoid(queries @ entities.T), labels)
    expected.backward()

    loss, query_gradient, entity_gradient = one_to_all_loss(
        queries, entities, position, member, label_smoothing=label_smoothing
    )

    assert loss == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(query_gradient, queries.grad)
    torch.testing.assert_close(entity_gradient, entities.grad)
