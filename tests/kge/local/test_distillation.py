"""Two models that teach one another: worked by hand from fedlu.txt 4.1 and feds.txt VI-A, and against plain loops.

Legend: `B` triples, `K` candidates of each, the first of them the triple itself.
"""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fkgsec.algorithms.fede_kd import co_distillation
from fkgsec.algorithms.fedlu import mutual
from fkgsec.kge.local.distillation import divergence

Matrix = Sequence[Sequence[float]]

# Softmaxes (1/4, 3/4) and (1/2, 1/2) over the first two candidates; the third does not count, whatever its score.
LEFT = [[0.0, math.log(3), 50.0]]
RIGHT = [[0.0, 0.0, -7.0]]
COUNTS = [[True, True, False]]


def doubles(values: Matrix) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def gradients(loss: Tensor, *scores: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss.sum(), scores))


def close(actual: Tensor, expected: object) -> None:
    torch.testing.assert_close(actual.detach(), torch.tensor(expected, dtype=actual.dtype), atol=2e-8, rtol=0)


class TestDivergence:
    def test_by_hand_in_both_directions(self) -> None:
        counts = torch.tensor(COUNTS)
        # 1/4 log((1/4) / (1/2)) + 3/4 log((3/4) / (1/2)) = -0.17328680 + 0.30409883
        close(divergence(doubles(LEFT), doubles(RIGHT), counts), [0.13081204])
        # 1/2 log((1/2) / (1/4)) + 1/2 log((1/2) / (3/4)) = 0.34657359 - 0.20273255
        close(divergence(doubles(RIGHT), doubles(LEFT), counts), [0.14384104])

    def test_gradients_by_hand(self) -> None:
        left, right = doubles(LEFT), doubles(RIGHT)
        by_left, by_right = gradients(divergence(left, right, torch.tensor(COUNTS)), left, right)
        # p_i (log(p_i / q_i) - KL): 1/4 (-0.69314718 - 0.13081204), 3/4 (0.40546511 - 0.13081204)
        close(by_left, [[-0.20598980, 0.20598980, 0.0]])
        close(by_right, [[0.25, -0.25, 0.0]])  # q_i - p_i

    def test_the_positive_is_one_of_the_candidates(self) -> None:
        # The negatives score alike in both, so only the positive tells them apart: (1/5, 2/5, 2/5) and (1/2, 1/4, 1/4).
        # 1/5 log(2/5) + 2 x 2/5 log(8/5) = -0.18325815 + 0.37600290
        p, q = doubles([[0.0, math.log(2), math.log(2)]]), doubles([[math.log(2), 0.0, 0.0]])
        close(divergence(p, q, torch.ones(1, 3, dtype=torch.bool)), [0.19274476])

    def test_far_scores_stay_finite(self) -> None:
        # p is (1, 0) and q (e^-2000, 1): KL = 1 log(1 / e^-2000) = 2000
        p, q = (
            torch.tensor([[1000.0, -1000.0]], requires_grad=True),
            torch.tensor([[-1000.0, 1000.0]], requires_grad=True),
        )
        loss = divergence(p, q, torch.ones(1, 2, dtype=torch.bool))
        assert loss.tolist() == [2000.0]
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(loss, p, q))


class TestMutual:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])  # one negative has the weight 1 at any temperature
    def test_by_hand(self, temperature: float) -> None:
        private, shared = doubles(LEFT), doubles(RIGHT)
        losses = mutual(private, shared, torch.tensor(COUNTS), temperature=temperature, mu=2.0)
        # Predictions: log 2 + log(1 + 3) = 2.07944154 of the private scores, log 2 + log 2 = 1.38629436 of the shared.
        # Both divergences together: log(3) / 4 = 0.27465307, times mu 2.
        close(losses, [2.07944154 + 1.38629436 + 0.54930614])
        by_private, by_shared = gradients(losses, private, shared)
        # Private: -sigma(0) and sigma(log 3) = 3/4, and mu times (-0.20598980, 0.20598980), KL(local || global) by local.
        # KL(global || local) would pull on it by (-0.25, 0.25), but there it teaches and stays as it is.
        close(by_private, [[-0.5 - 0.41197960, 0.75 + 0.41197960, 0.0]])
        # Shared: -sigma(0), sigma(0), and mu times 1/2 (log 2 - 0.14384104) = 0.27465307, and its negative.
        close(by_shared, [[-0.5 + 0.54930614, 0.5 - 0.54930614, 0.0]])

    def test_as_the_published_code_has_it(self) -> None:
        """`train_step` of FedLU's code: half the prediction loss, and KLDivLoss(student, teacher) = KL(teacher || student)."""
        private, shared = doubles(LEFT), doubles(RIGHT)
        losses = mutual(private, shared, torch.tensor(COUNTS), temperature=1.0, mu=2.0, variant="published")
        close(losses, [(2.07944154 + 1.38629436) / 2 + 0.54930614])
        by_private, by_shared = gradients(losses, private, shared)
        # Half of the predictions' (-0.5, 0.75) and (-0.5, 0.5), and mu (student - teacher): 2 (1/4 - 1/2, 3/4 - 1/2) and back
        close(by_private, [[-0.25 - 0.5, 0.375 + 0.5, 0.0]])
        close(by_shared, [[-0.25 + 0.5, 0.25 - 0.5, 0.0]])


class TestCoDistillation:
    def test_by_hand(self) -> None:
        low, high = doubles(LEFT), doubles(RIGHT)
        losses = co_distillation(low, high, torch.tensor(COUNTS), temperature=1.0)
        # Predictions 2.07944154 + 1.38629436 = 3.46573590; divergences 0.27465307; 0.27465307 / 3.46573590 = 0.07924813
        close(losses, [3.54498403])
        by_low, by_high = gradients(losses, low, high)
        # Of P + D / P: P' (1 - D / P^2) + D' / P, with 1 - 0.27465307 / 12.01132533 = 0.97713383.
        # Low: P' = (-0.5, 0.75); D' = (-0.20598980, 0.20598980) + (1/4 - 1/2, 3/4 - 1/2) = (-0.45598980, 0.45598980)
        close(by_low, [[-0.48856692 - 0.13157084, 0.73285038 + 0.13157084, 0.0]])
        # High: P' = (-0.5, 0.5); D' = (0.27465307, -0.27465307) + (1/2 - 1/4, 1/2 - 3/4) = (0.52465307, -0.52465307)
        close(by_high, [[-0.48856692 + 0.15138288, 0.48856692 - 0.15138288, 0.0]])
