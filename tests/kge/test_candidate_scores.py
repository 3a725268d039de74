"""Scores of candidates and how a loss of them is carried back, against a Python loop and autograd in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.kge import kernels
from fkgsec.kge.kinds import DOT, L1, MODULUS

MARGIN = 3.0
every_kind = pytest.mark.parametrize("kind", [L1, MODULUS, DOT], ids=["l1", "modulus", "dot"])
# float32 on the CPU is compiled, float64 takes the path of other devices; a small bound makes that go in parts.
every_path = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "torch"])


def batch(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, table, candidates (some -1, many repeated) and derivatives."""
    rng = np.random.default_rng(0)
    candidates = rng.integers(0, 12, size=(6, 10)).astype(np.int32)
    candidates[:, 1:][rng.random((6, 9)) < 0.3] = -1
    floats = [rng.normal(size=shape).astype(np.float32) for shape in [(6, 8), (12, 8), (6, 10)]]
    queries, table, derivatives = (torch.from_numpy(values).to(dtype) for values in floats)
    return queries, table, torch.from_numpy(candidates), derivatives


def naive(kind: int, query: Tensor, row: Tensor) -> Tensor:
    if kind == DOT:
        return torch.dot(query, row)
    if kind == L1:
        return -(query - row).abs().sum()
    return -torch.complex(*(query - row).chunk(2)).abs().sum()


@every_kind
@every_path
def test_scores_and_gradients(kind: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "CHUNK_BYTES", 5000)
    queries, table, candidates, derivatives = batch(dtype)
    scored = kernels.candidate_scores(kind, queries, table, candidates, margin=MARGIN)
    to_queries, to_table = scored.vjp(derivatives)

    loose_queries, loose_table = queries.double().requires_grad_(), table.double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for b, row in enumerate(candidates.tolist()):
        for k, candidate in enumerate(row):
            if candidate < 0:
                assert scored.scores[b, k] == 0
                continue
            score = MARGIN + naive(kind, loose_queries[b], loose_table[candidate])
            assert scored.scores[b, k].item() == pytest.approx(score.item(), rel=1e-5, abs=1e-5)
            total = total + derivatives[b, k].double() * score
    expected = torch.autograd.grad(total, [loose_queries, loose_table])
    for actual, wanted in zip((to_queries, to_table), expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=1e-5)


@every_path
def test_carried_back_it_is_the_candidate_loss(dtype: torch.dtype) -> None:
    """`candidate_loss` is these scores under a loss of its own."""
    queries, table, candidates, _ = batch(dtype)
    weights = torch.linspace(0.1, 0.6, len(queries), dtype=dtype)
    whole = kernels.candidate_loss(L1, queries, table, candidates, weights, margin=MARGIN, temperature=0.7)
    scored = kernels.candidate_scores(L1, queries, table, candidates, margin=MARGIN)
    scores = scored.scores.requires_grad_()
    counts = candidates >= 0
    share = torch.softmax((0.7 * scores.detach()[:, 1:]).masked_fill(~counts[:, 1:], -torch.inf), dim=1)
    losses = -torch.nn.functional.logsigmoid(scores[:, 0])
    losses = losses - (torch.nan_to_num(share) * torch.nn.functional.logsigmoid(-scores[:, 1:])).sum(1)
    gradients = scored.vjp(torch.autograd.grad((losses * weights).sum(), scores)[0])
    for actual, wanted in zip((losses.detach(), *gradients), whole, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)
