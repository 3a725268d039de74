"""The negative-sampling loss by hand, and its two forms, compiled and in torch, against each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.kge import kernels
from fkgsec.kge.loss import negative_sampling_loss
from fkgsec.kge.models import MODELS, KgeModel, ModelName, Side

Matrix = Sequence[Sequence[float]]
ROOT = Path(__file__).parents[2]


def doubles(values: Matrix) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def gradients(loss: Tensor, *scores: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss.sum(), scores))


def close(actual: Tensor, expected: object) -> None:
    torch.testing.assert_close(actual.detach(), torch.tensor(expected, dtype=actual.dtype), atol=2e-8, rtol=0)


class TestByHand:
    # Positive 2, negatives 0 and -1: -log sigma(2) = log(1 + e^-2) = 0.12692801, -log sigma(-0) = log 2 = 0.69314718,
    # -log sigma(1) = log(1 + e^-1) = 0.31326169. The 9 does not count.
    SCORES: Matrix = ((2.0, 0.0, 9.0, -1.0),)
    COUNTS: Sequence[Sequence[bool]] = ((True, True, False, True),)

    @pytest.mark.parametrize(
        ("temperature", "loss", "weights"),
        [
            (0.0, 0.63013245, (0.5, 0.5)),  # 0.12692801 + (0.69314718 + 0.31326169) / 2, Eq. 7 as it stands
            # weights 1 / (1 + e^-1) and e^-1 / (1 + e^-1):
            # 0.12692801 + 0.73105858 x 0.69314718 + 0.26894142 x 0.31326169
            (1.0, 0.71790825, (0.73105858, 0.26894142)),
            # weights 1 / (1 + e^-2) and e^-2 / (1 + e^-2):
            # 0.12692801 + 0.88079708 x 0.69314718 + 0.11920292 x 0.31326169
            (2.0, 0.77479173, (0.88079708, 0.11920292)),
        ],
    )
    def test_by_hand(self, temperature: float, loss: float, weights: tuple[float, float]) -> None:
        scores = doubles(self.SCORES)
        losses = negative_sampling_loss(scores, torch.tensor(self.COUNTS), temperature=temperature)
        close(losses, [loss])
        # The weights are constants, so d/ds_0 = -sigma(-2) = -0.11920292 and d/ds_k = w_k sigma(s_k): sigma(0) = 0.5,
        # sigma(-1) = 0.26894142.
        close(gradients(losses, scores)[0], [[-0.11920292, weights[0] * 0.5, 0.0, weights[1] * 0.26894142]])

    def test_far_scores_stay_finite(self) -> None:
        # -log sigma(-1000) = 1000 and -log sigma(-2000) = 2000, where sigma itself is 0 in floating point.
        scores = torch.tensor([[-1000.0, 2000.0, 0.0]], requires_grad=True)
        losses = negative_sampling_loss(scores, torch.ones(1, 3, dtype=torch.bool), temperature=1.0)
        assert losses.tolist() == [3000.0]
        assert gradients(losses, scores)[0].tolist() == [[-1.0, 1.0, 0.0]]

    def test_the_weight_is_the_positives_alone_and_candidates_count_unless_it_is_said(self) -> None:
        # 3 x 0.12692801 + (0.69314718 + 0.31326169) / 2
        scores = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
        close(negative_sampling_loss(scores, temperature=0.0, positive_weight=3.0), [0.88398846])


@pytest.mark.parametrize("side", ["tail", "head"])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("name", MODELS)
def test_compiled_and_torch_form_agree(name: ModelName, temperature: float, side: Side) -> None:
    """Losses and gradients of a batch with masked, repeated and far candidates; the torch form by autograd in float64."""
    rng, model = np.random.default_rng(7), KgeModel(name, dim=9, gamma=4.0)
    anchors, table = (torch.from_numpy(rng.normal(size=(n, model.entity_width))).float() for n in (6, 15))
    relations = torch.from_numpy(rng.normal(scale=0.3, size=(6, model.relation_width))).float()
    table[3] *= 30
    candidates = torch.from_numpy(rng.integers(0, 15, size=(6, 9)).astype(np.int32))
    candidates[:, 4] = 3
    candidates[0, 1:] = candidates[1, 2:5] = candidates[2, 0] = -1
    weights = torch.from_numpy(rng.uniform(0.1, 1, size=6)).float()

    queries = model.query(anchors, relations, side)
    compiled = kernels.candidate_loss(
        model.similarity, queries, table, candidates, weights, margin=model.margin, temperature=temperature
    )
    loose_queries, loose_table = queries.double().requires_grad_(), table.double().requires_grad_()
    scores = model.pair_scores(loose_queries[:, None], loose_table[candidates.clamp_min(0).long()])
    losses = negative_sampling_loss(scores, candidates >= 0, temperature=temperature)
    expected = (losses.detach(), *torch.autograd.grad((losses * weights).sum(), [loose_queries, loose_table]))
    for field, actual, wanted in zip(compiled._fields, compiled, expected, strict=True):
        np.testing.assert_allclose(actual.double(), wanted, rtol=2e-5, atol=2e-5, err_msg=field)


def test_the_torch_form_is_written_once() -> None:
    """Weights by softmax and log sigma (or softplus) in one file are this loss."""
    packages = ("fkgsec", "attacks", "defenses", "protocols", "experiments")
    sources = {path: path.read_text() for name in packages for path in (ROOT / name).rglob("*.py")}
    written = [
        path.relative_to(ROOT).as_posix()
        for path, text in sources.items()
        if re.search(r"\b(logsigmoid|softplus)\(", text) and re.search(r"\bsoftmax\(", text)
    ]
    # KB-GAT's softmax is over neighbours, its softplus ConvKB's loss.
    assert sorted(written) == ["fkgsec/kge/encoders/kb_gat.py", "fkgsec/kge/loss.py"]
