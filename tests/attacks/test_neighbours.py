"""Nearest neighbours by cosine against a naive loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fkgsec.attacks.reconstruction.inference import nearest


def naive_cosine(a: np.ndarray, b: np.ndarray) -> float:
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norms) if norms else 0.0


@pytest.mark.parametrize("block_bytes", [1, 4 * 13 * 3, 2**20])  # one query a block, three, all
def test_agrees_with_a_naive_loop(block_bytes: int) -> None:
    rng = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(20, 6, generator=rng), torch.randn(13, 6, generator=rng)
    places, cosines = nearest(queries, keys, block_bytes)
    for query, place, cosine in zip(queries.double().numpy(), places, cosines, strict=True):
        similar = [naive_cosine(query, key) for key in keys.double().numpy()]
        assert place == np.argmax(similar)
        assert cosine == pytest.approx(max(similar), abs=1e-6)


def test_a_zero_row_has_cosine_zero_to_everything() -> None:
    places, cosines = nearest(torch.zeros(1, 3), torch.tensor([[-1.0, 0, 0], [1, 0, 0]]))
    assert (places.tolist(), cosines.tolist()) == ([0], [0])
    opposite = torch.tensor([[-1.0, 0, 0], [0, 0, 0]])
    places, cosines = nearest(torch.tensor([[1.0, 0, 0]]), opposite)
    assert (places.tolist(), cosines.tolist()) == ([1], [0])


@pytest.mark.parametrize("num_queries", [1, 3, 16, 65])
def test_ties_go_to_the_first_key(num_queries: int) -> None:
    """Equal keys at every place, so that a kernel that treats the last columns otherwise would show."""
    rng = torch.Generator().manual_seed(1)
    distinct = torch.randn(7, 16, generator=rng)
    for copies in range(2, 12):
        places, _ = nearest(torch.randn(num_queries, 16, generator=rng), distinct.repeat(copies, 1))
        assert places.max() < len(distinct)


def test_no_queries_give_no_answers() -> None:
    places, cosines = nearest(torch.zeros(0, 4), torch.ones(2, 4))
    assert (places.dtype, places.shape, cosines.shape) == (torch.int64, (0,), (0,))


def test_no_keys_are_an_error() -> None:
    with pytest.raises(ValueError, match="no keys"):
        nearest(torch.ones(2, 4), torch.zeros(0, 4))
