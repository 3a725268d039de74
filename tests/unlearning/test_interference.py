"""Losses of unlearning: worked by hand from fedlu.txt 4.2 (Eq. 12-14, and Eq. 7-11 for decay) on a graph of four entities.

Legend: `B` triples to forget, `K` candidates of each, the first of them the triple itself. `log(1 + e^x)`, which is
-log sigma(-x), is written softplus(x) below.

The client's relations are (1, -1) and (-1, 1); both its models share them. It forgets (A, r, C) and (B, s, D), and keeps
(A, r, B), which is therefore no negative of (A, r, C). TransE's score is 4 - |h + r - t|_1, DistMult's h * r * t summed.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fkgsec.kge.models import KgeModel, ModelName
from fkgsec.unlearning.interference import decay_loss, interference, soft_confusion

Matrix = Sequence[Sequence[float]]

A, B, C, D = range(4)
LOCAL: Matrix = [[1, 0], [0, 2], [3, 2], [-2, -2]]
GLOBAL: Matrix = [[0, 1], [3, 1], [4, 3], [-1, -1]]
RELATIONS: Matrix = [[1, -1], [-1, 1]]
HEADS = [A, B]
TAILS = [[C, B, D, A], [D, A, B, C]]
COUNTS = [[True, False, True, True], [True, True, True, True]]
MU_SOFT, MU_DISTILL = 0.1, 2.0


class Case(NamedTuple):
    """What one model's table is worth as the one that forgets, beside the other model, which teaches."""

    model: ModelName
    own: Matrix
    other: Matrix
    scores: Matrix
    hard: Sequence[float]
    hard_gradient: Matrix
    soft: Sequence[float]
    soft_gradient: Matrix
    divergence: Sequence[float]
    divergence_gradient: Matrix


TRANSE_LOCAL = Case(
    "transe",
    LOCAL,
    GLOBAL,
    # A + r = (2, -1), at distance 4 from C, 5 from B, 5 from D, 2 from A; B + s = (-1, 3), at 6 from D, 5, 2, 5.
    scores=[[0, -1, -1, 2], [-2, -1, 2, -1]],
    # softplus(0) + (softplus(-1) + softplus(2)) / 2 = 0.69314718 + (0.31326169 + 2.12692801) / 2
    # softplus(-2) + (softplus(-1) + softplus(2) + softplus(-1)) / 3 = 0.12692801 + 2.75345139 / 3
    hard=[1.91324203, 1.04474514],
    # sigma(s_0), then sigma(s_k) / n: sigma(-2, -1, 0, 2) = 0.11920292, 0.26894142, 0.5, 0.88079708
    hard_gradient=[[0.5, 0, 0.13447071, 0.44039854], [0.11920292, 0.08964714, 0.29359903, 0.08964714]],
    soft=[1.5, 2.0],  # (1 + 2) / 2, (1 + 4 + 1) / 3
    # sign(s_k - s_0) / n for a negative, minus the sum of these for the triple
    soft_gradient=[[0, 0, -1 / 2, 1 / 2], [-1, 1 / 3, 1 / 3, 1 / 3]],
    # P = (1, e^-1, e^2) / 8.75693554 and Q = (e^-2, e, e^2) / 10.24267321:
    # (2 x 1 - 2 x 0.36787944 + 0) / 8.75693554 + log(10.24267321 / 8.75693554) = 0.14437027 + 0.15671662
    # P = (e^-2, e^-1, e^2, e^-1) / 8.26015026, Q = (e^-2, e, e^2, e) / 12.96095504:
    # -4 x 0.36787944 / 8.26015026 + log(12.96095504 / 8.26015026) = -0.17814660 + 0.45049859
    divergence=[0.30108689, 0.27235199],
    # p_i (log(p_i / q_i) - KL), p = (0.11419520, 0.04201007, 0.84379473), (0.01638412, 0.04453665, 0.89454258, 0.04453665)
    divergence_gradient=[
        [0.21190401, 0, -0.09008514, -0.12181887],
        [0.00291878, -0.08113925, 0.15935973, -0.08113925],
    ],
)
TRANSE_GLOBAL = Case(
    "transe",
    GLOBAL,
    LOCAL,
    # A + r = (1, 0), at distance 6 from C, 3 from B, 3 from D, 2 from A; B + s = (2, 2), at 6 from D, 3, 2, 3.
    scores=[[-2, 1, 1, 2], [-2, 1, 2, 1]],
    hard=[1.84702286, 1.71141181],  # 0.12692801 + (1.31326169 + 2.12692801) / 2, 0.12692801 + 4.75345139 / 3
    hard_gradient=[[0.11920292, 0, 0.36552929, 0.44039854], [0.11920292, 0.24368619, 0.29359903, 0.24368619]],
    soft=[3.5, 10 / 3],
    soft_gradient=[[-1, 0, 1 / 2, 1 / 2], [-1, 1 / 3, 1 / 3, 1 / 3]],
    # The distillation reversed: (-2 x 0.13533528 + 2 x 2.71828183) / 10.24267321 - 0.15671662,
    # 4 x 2.71828183 / 12.96095504 - 0.45049859
    divergence=[0.34763346, 0.38841545],
    divergence_gradient=[
        [-0.03308969, 0, 0.39692743, -0.36383774],
        [-0.00875975, 0.24351283, -0.47826591, 0.24351283],
    ],
)
DISTMULT_LOCAL = Case(
    "distmult",
    LOCAL,
    GLOBAL,
    scores=[[3, 0, -2, 1], [-4, 0, 4, 4]],  # A * r = (1, 0), B * s = (0, 2)
    # softplus(3) + (softplus(-2) + softplus(1)) / 2 = 3.04858735 + (0.12692801 + 1.31326169) / 2
    # softplus(-4) + (softplus(0) + 2 softplus(4)) / 3 = 0.01814993 + (0.69314718 + 8.03629986) / 3
    hard=[3.76868220, 2.92796561],
    hard_gradient=[[0.95257413, 0, 0.05960146, 0.36552929], [0.01798621, 0.16666667, 0.32733793, 0.32733793]],
    soft=[3.5, 20 / 3],  # (5 + 2) / 2, (4 + 8 + 8) / 3
    soft_gradient=[[1, 0, -1 / 2, -1 / 2], [-1, 1 / 3, 1 / 3, 1 / 3]],
    # P = (e^3, e^-2, e) / 22.93915405, Q = (e^-3, e, e^-1) / 3.13594833;
    # P = (e^-4, 1, e^4, e^4) / 110.21461571, Q = (e^2, e, e^-8, e^-9) / 10.10779680
    divergence=[3.48299002, 9.98531492],
    divergence_gradient=[
        [0.46152590, 0, -0.04998802, -0.41153788],
        [-0.00305349, -0.12134904, -0.18548889, 0.30989142],
    ],
)
DISTMULT_GLOBAL = Case(
    "distmult",
    GLOBAL,
    LOCAL,
    scores=[[-3, -1, 1, -1], [2, 1, -8, -9]],  # A * r = (0, -1), B * s = (-3, 1)
    # softplus(-3) + (softplus(1) + softplus(-1)) / 2 = 0.04858735 + (1.31326169 + 0.31326169) / 2
    # softplus(2) + (softplus(1) + softplus(-8) + softplus(-9)) / 3 = 2.12692801 + (1.31326169 + 0.00033541 + 0.00012340) / 3
    hard=[0.86184904, 2.56483484],
    hard_gradient=[[0.04742587, 0, 0.36552929, 0.13447071], [0.88079708, 0.24368619, 0.00011178, 0.00004113]],
    soft=[3.0, 22 / 3],  # (4 + 2) / 2, (1 + 10 + 11) / 3
    soft_gradient=[[-1, 0, 1 / 2, 1 / 2], [1, -1 / 3, -1 / 3, -1 / 3]],
    divergence=[4.26047531, 7.04364700],
    divergence_gradient=[
        [-0.13130542, 0, 0.63228684, -0.50098142],
        [0.98357670, -0.98280841, -0.00055274, -0.00021555],
    ],
)
CASES = pytest.mark.parametrize(
    "case",
    [TRANSE_LOCAL, TRANSE_GLOBAL, DISTMULT_LOCAL, DISTMULT_GLOBAL],
    ids=["TransE local", "TransE global", "DistMult local", "DistMult global"],
)


def doubles(values: Matrix) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def scored(model: ModelName, entities: Tensor) -> Tensor:
    """Scores `[B, K]` of the triples to forget and of the candidates for their tails, Eq. 5 and 6."""
    kge = KgeModel(model, dim=2, gamma=4.0)
    relations = torch.tensor(RELATIONS, dtype=torch.float64)
    return kge.pair_scores(kge.query(entities[HEADS], relations, "tail")[:, None], entities[torch.tensor(TAILS)])


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), of)[0]


def close(actual: Tensor, expected: Tensor | Matrix | Sequence[float]) -> None:
    torch.testing.assert_close(
        actual.detach(), torch.as_tensor(expected, dtype=actual.dtype).detach(), atol=2e-7, rtol=0
    )


def combined(case: Case, hard: float, soft: float, distill: float) -> tuple[Tensor, Tensor]:
    """The case's value and gradient with its three terms weighed so: sums of what was worked by hand."""
    values = [torch.tensor(part, dtype=torch.float64) for part in (case.hard, case.soft, case.divergence)]
    gradients = [
        torch.tensor(part, dtype=torch.float64)
        for part in (case.hard_gradient, case.soft_gradient, case.divergence_gradient)
    ]
    value, slope = (hard * parts[0] + soft * parts[1] + distill * parts[2] for parts in (values, gradients))
    return value, slope


class TestSoftConfusion:
    def test_a_negative_that_scores_alike_does_not_pull(self) -> None:
        # The distance has a kink at 0, where a norm's gradient may be 0 / 0.
        scores = doubles([[1.0, 1.0, 3.0]])
        losses = soft_confusion(scores, torch.ones(1, 3, dtype=torch.bool))
        close(losses, [1.0])
        close(gradient(losses, scores), [[-0.5, 0, 0.5]])

    def test_as_the_published_code_has_it(self) -> None:
        # The norm of all differences at once: sqrt(1 + 4), sqrt(1 + 16 + 1), and none where all scores agree.
        scores = doubles([*TRANSE_LOCAL.scores, [1, 1, 1, 1]])
        losses = soft_confusion(scores, torch.tensor([*COUNTS, COUNTS[1]]), variant="published")
        close(losses, [2.23606798, 4.24264069, 0])
        # d_k / |d|, and minus their sum for the triple
        close(
            gradient(losses, scores),
            [
                [-0.44721360, 0, -0.44721360, 0.89442719],
                [-1.41421356, 0.23570226, 0.94280904, 0.23570226],
                [0, 0, 0, 0],
            ],
        )


class TestInterference:
    @CASES
    @pytest.mark.parametrize(("hard", "soft"), [(True, True), (False, True), (True, False), (False, False)])
    def test_by_hand_with_and_without_each_confusion(self, case: Case, hard: bool, soft: bool) -> None:
        """Eq. 14, and its ablations of Table 3; the global model's is the same with the tables exchanged."""
        own = doubles(case.scores)
        other = scored(case.model, doubles(case.other))
        losses = interference(
            own, other, torch.tensor(COUNTS), hard=hard, soft=soft, mu_soft=MU_SOFT, mu_distill=MU_DISTILL
        )
        value, slope = combined(case, float(hard), MU_SOFT * soft, MU_DISTILL)
        close(losses, value)
        close(gradient(losses, own), slope)

    @pytest.mark.parametrize("variant", ["paper", "published"])
    @pytest.mark.parametrize("far", [-60.0, 60.0])
    def test_a_candidate_that_does_not_count_is_not_seen(self, variant: str, far: float) -> None:
        def losses(masked: float) -> tuple[Tensor, Tensor]:
            own, other = doubles(TRANSE_LOCAL.scores), doubles(TRANSE_GLOBAL.scores)
            with torch.no_grad():
                own[0, 1], other[0, 1] = masked, -masked
            values = interference(
                own,
                other,
                torch.tensor(COUNTS),
                hard=True,
                soft=True,
                mu_soft=MU_SOFT,
                mu_distill=MU_DISTILL,
                variant=variant,
            )
            return values, gradient(values, own)

        (near_values, near_gradient), (far_values, far_gradient) = losses(0.0), losses(far)
        close(far_values, near_values)
        close(far_gradient, near_gradient)
        assert far_gradient[0, 1].item() == 0

    def test_as_the_published_code_has_it(self) -> None:
        """`unlearn_propagate` of FedLU's code.

        Half of ten times the triple and once its negatives, the L2 norm over all differences, and
        KLDivLoss(student, teacher) = KL(teacher || student).
        """
        own, other = doubles(TRANSE_LOCAL.scores), doubles(TRANSE_GLOBAL.scores)
        losses = interference(
            own,
            other,
            torch.tensor(COUNTS),
            hard=True,
            soft=True,
            mu_soft=MU_SOFT,
            mu_distill=MU_DISTILL,
            variant="published",
        )
        # (10 x 0.69314718 + 1.22009485) / 2 + 0.1 sqrt(1 + 4) + 2 x 0.34763346
        # (10 x 0.12692801 + 0.91781713) / 2 + 0.1 sqrt(1 + 16 + 1) + 2 x 0.38841545
        close(losses, [4.99465704, 2.29464364])
        # 5 sigma(s_0) - 0.1 sum(d) / |d| + 2 (p_0 - q_0); sigma(s_k) / 2 n + 0.1 d_k / |d| + 2 (p_k - q_k)
        close(
            gradient(losses, own),
            [
                # d = (-1, 2): 2.5 - 0.04472136 + 0.20196462, 0.06723536 - 0.04472136 - 0.44675572,
                # 0.22019927 + 0.08944272 + 0.24479110
                [2.65724326, 0, -0.42424172, 0.55443309],
                # d = (1, 4, 1): 0.59601460 - 0.14142136 + 0.01188470, 0.04482357 + 0.02357023 - 0.33038372,
                # 0.14679951 + 0.09428090 + 0.64888274
                [0.46647794, -0.26198992, 0.88996315, -0.26198992],
            ],
        )

    @pytest.mark.parametrize("variant", ["paper", "published"])
    def test_importance_weighs_hard_confusion_and_prediction_alone(self, variant: str) -> None:
        """`unlearn_step` and `train_step` of FedLU's code weigh triples by frequency there, and neither norms nor divergences."""
        own, other, counts = doubles(TRANSE_LOCAL.scores), doubles(TRANSE_GLOBAL.scores), torch.tensor(COUNTS)
        importance = torch.tensor([0.25, 1.75], dtype=torch.float64)

        def of(**given: Any) -> Tensor:
            whole: dict[str, Any] = {
                "hard": True,
                "soft": True,
                "mu_soft": MU_SOFT,
                "mu_distill": MU_DISTILL,
                "variant": variant,
            }
            return interference(own, other, counts, **(whole | given)).detach()

        rest = of(hard=False)
        close(of(importance=importance), (rest + importance * (of() - rest)).tolist())
        decay = functools.partial(decay_loss, own, other, counts, variant=variant)
        alone, both = decay(mu_distill=0.0).detach(), decay(mu_distill=MU_DISTILL).detach()
        weighed = decay(mu_distill=MU_DISTILL, importance=importance).detach()
        close(weighed, (importance * alone + both - alone).tolist())

    @pytest.mark.parametrize(("variant", "expected"), [("paper", 2.73406048), ("published", 4.48619257)])
    def test_weighs_the_negatives_of_the_hard_confusion(self, variant: str, expected: float) -> None:
        # 0.69314718 + 2.04091329, see TestHardConfusion; (10 x 0.69314718 + 2.04091329) / 2
        own = doubles(TRANSE_LOCAL.scores[:1])
        losses = interference(
            own,
            own,
            torch.tensor(COUNTS[:1]),
            hard=True,
            soft=False,
            mu_soft=MU_SOFT,
            mu_distill=0.0,
            variant=variant,
            temperature=1.0,
        )
        close(losses, [expected])

    def test_alike_models_without_a_negative_do_not_pull_on_each_other(self) -> None:
        # Only the triple itself counts: each distribution is (1), so softplus(1) is left.
        own, other = doubles([[1.0, 3.0]]), doubles([[-2.0, 0.0]])
        losses = interference(
            own, other, torch.tensor([[True, False]]), hard=True, soft=True, mu_soft=MU_SOFT, mu_distill=MU_DISTILL
        )
        close(losses, [1.31326169])
        close(gradient(losses, own), [[0.73105858, 0]])


class TestDecayLoss:
    """Passive decay learns, so the triple of column 0 is a positive again."""

    @pytest.mark.parametrize(
        ("variant", "expected"),
        [
            # softplus(0) + 1.22009485 + 2 x 0.30108689, softplus(2) + 0.91781713 + 2 x 0.27235199
            ("paper", [2.51541581, 3.58944912]),
            # Half of 0.69314718 + 1.22009485, of 2.12692801 + 0.91781713; 2 x 0.34763346, 2 x 0.38841545
            ("published", [1.65188794, 2.29920347]),
        ],
    )
    def test_by_hand(self, variant: str, expected: Sequence[float]) -> None:
        own, other = doubles(TRANSE_LOCAL.scores), doubles(TRANSE_GLOBAL.scores)
        losses = decay_loss(own, other, torch.tensor(COUNTS), mu_distill=MU_DISTILL, variant=variant)
        close(losses, expected)
        (pull,) = torch.autograd.grad(losses.sum(), other, allow_unused=True, retain_graph=True)
        assert pull is None or not pull.any()
        # The paper's: sigma(s_0) - 1 where hard confusion has sigma(s_0).
        if variant == "paper":
            _, slope = combined(TRANSE_LOCAL, 1.0, 0.0, MU_DISTILL)
            slope[:, 0] -= 1
            close(gradient(losses, own), slope)
