"""Scoring functions against Python loops over complex numbers, and against PyKEEN where it has the same function."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fkgsec.errors import SpecError
from fkgsec.kge.models import MODELS, KgeModel, ModelName, Side

SIDES: tuple[Side, ...] = ("tail", "head")
every_model = pytest.mark.parametrize("name", MODELS)
sizes = given(dim=st.integers(1, 9), count=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))


def complex_numbers(row: Tensor) -> list[complex]:
    numbers = row.tolist()
    half = len(numbers) // 2
    return [complex(real, imaginary) for real, imaginary in zip(numbers[:half], numbers[half:], strict=True)]


def published_score(model: KgeModel, head: Tensor, relation: Tensor, tail: Tensor) -> float:
    """The score of one triple as the papers write it; the distances are subtracted from gamma as in the published codes."""
    if model.name == "transe":
        rows = zip(head.tolist(), relation.tolist(), tail.tolist(), strict=True)
        return model.gamma - sum(abs(h + r - t) for h, r, t in rows)
    if model.name == "distmult":
        return sum(h * r * t for h, r, t in zip(head.tolist(), relation.tolist(), tail.tolist(), strict=True))
    if model.name == "complex":
        rows = zip(complex_numbers(head), complex_numbers(relation), complex_numbers(tail), strict=True)
        return sum(h * r * t.conjugate() for h, r, t in rows).real
    half_width = (model.gamma + model.init_epsilon) / model.dim  # a phase of +-half_width is a turn by +-pi
    rotations = [cmath.exp(1j * math.pi * phase / half_width) for phase in relation.tolist()]
    rows = zip(complex_numbers(head), rotations, complex_numbers(tail), strict=True)
    return model.gamma - sum(abs(h * r - t) for h, r, t in rows)


def random_triples(model: KgeModel, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of heads, relations and tails in float64."""
    rng = np.random.default_rng(seed)
    widths = model.entity_width, model.relation_width, model.entity_width
    head, relation, tail = (model.initial_rows(count, width, rng).double() for width in widths)
    return head, relation, tail


class TestScore:
    @every_model
    @settings(max_examples=25, deadline=None)
    @sizes
    def test_equals_the_published_formula(self, name: ModelName, dim: int, count: int, seed: int) -> None:
        model = KgeModel(name, dim, gamma=7.0, init_epsilon=1.5)
        heads, relations, tails = random_triples(model, count, seed)
        expected = [published_score(model, *rows) for rows in zip(heads, relations, tails, strict=True)]
        np.testing.assert_allclose(model.score(heads, relations, tails), expected, rtol=1e-9, atol=1e-9)

    @every_model
    @pytest.mark.parametrize("side", SIDES)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("count", [1, 5])
    def test_score_all_equals_pair_by_pair(self, name: ModelName, side: Side, dtype: torch.dtype, count: int) -> None:
        model = KgeModel(name, dim=6)
        anchors, relations, _ = random_triples(model, count, seed=1)
        entities = random_triples(model, 9, seed=2)[0]
        expected = [
            [
                published_score(model, anchor, relation, entity)
                if side == "tail"
                else published_score(model, entity, relation, anchor)
                for entity in entities
            ]
            for anchor, relation in zip(anchors, relations, strict=True)
        ]
        scores = model.score_all(model.query(anchors.to(dtype), relations.to(dtype), side), entities.to(dtype))
        assert scores.dtype == dtype
        np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)

    def test_direction_matters_except_to_distmult(self) -> None:
        for name in MODELS:
            model = KgeModel(name, dim=5)
            heads, relations, tails = random_triples(model, 4, seed=3)
            same = torch.isclose(model.score(heads, relations, tails), model.score(tails, relations, heads))
            assert bool(same.all()) == (name == "distmult")


class TestPykeen:
    """PyKEEN's interaction functions on the same float32 rows; its distances lack gamma."""

    @every_model
    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
    def test_same_scores(self, name: ModelName) -> None:
        interactions = pytest.importorskip("pykeen.nn.modules")
        interaction = {
            "transe": lambda: interactions.TransEInteraction(p=1),
            "rotate": interactions.RotatEInteraction,
            "distmult": interactions.DistMultInteraction,
            "complex": interactions.ComplExInteraction,
        }[name]()
        model = KgeModel(name, dim=16)
        heads, relations, tails = (rows.float() for rows in random_triples(model, 50, seed=6))
        theirs = [heads, model.relation_vectors(relations), tails]
        if name in ("rotate", "complex"):
            theirs = [torch.complex(*rows.chunk(2, dim=-1)) for rows in theirs]
        if name == "rotate":
            # PyKEEN takes the L2 norm of the moduli whatever its p, so that only one number at a time gives their sum.
            theirs = [rows[..., None] for rows in theirs]
        scores = interaction(*theirs).reshape(50, -1).sum(1)
        gamma = model.gamma if name in ("transe", "rotate") else 0.0
        torch.testing.assert_close(model.score(heads, relations, tails) - gamma, scores, rtol=1e-5, atol=1e-5)


class TestSizesAndInitialValues:
    @pytest.mark.parametrize(
        ("name", "entity_width", "relation_width"),
        [("transe", 128, 128), ("rotate", 256, 128), ("distmult", 128, 128), ("complex", 256, 256)],
    )
    def test_published_widths_and_range(self, name: ModelName, entity_width: int, relation_width: int) -> None:
        model = KgeModel(name)
        assert (model.entity_width, model.relation_width) == (entity_width, relation_width)
        assert model.initial_range == pytest.approx((10 + 2) / 128)  # not divided by the doubled dimension

    def test_initial_rows_fill_the_range_uniformly(self) -> None:
        model = KgeModel("transe", dim=24)
        rows = model.initial_rows(500, 7, np.random.default_rng(0))
        assert rows.shape == (500, 7)
        assert rows.dtype == torch.float32
        values = rows.double().flatten().numpy()
        assert np.abs(values).max() <= 0.5 * (1 + 1e-6)
        assert stats.kstest(values, stats.uniform(-0.5, 1.0).cdf).pvalue > 0.01

    def test_initial_rows_depend_on_the_generator_only(self) -> None:
        model = KgeModel()
        first, again = (model.initial_rows(3, 4, np.random.default_rng(5)) for _ in range(2))
        other = model.initial_rows(3, 4, np.random.default_rng(6))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_rotate_relations_are_unit_numbers_and_the_range_is_one_turn(self) -> None:
        model = KgeModel("rotate", dim=4)
        quarter = model.initial_range / 2
        phases = torch.tensor([[0.0, quarter, 2 * quarter, -quarter]], dtype=torch.float64)
        expected = torch.tensor([[1.0, 0, -1, 0, 0, 1, 0, -1]], dtype=torch.float64)
        torch.testing.assert_close(model.relation_vectors(phases), expected, atol=1e-12, rtol=0)

    @pytest.mark.parametrize("name", ["transe", "distmult", "complex"])
    def test_other_relations_act_as_they_are(self, name: ModelName) -> None:
        model = KgeModel(name, dim=3)
        relations = random_triples(model, 2, seed=0)[1]
        assert torch.equal(model.relation_vectors(relations), relations)


class TestBestRelation:
    def test_transe_leaves_no_distance(self) -> None:
        model = KgeModel("transe", dim=8)
        heads, _, tails = random_triples(model, 20, seed=0)
        score = model.score(heads, model.best_relation(heads, tails), tails)
        torch.testing.assert_close(score, torch.full_like(score, model.gamma))

    @pytest.mark.parametrize("name", ["distmult", "complex"])
    def test_products_are_steepest_along_it(self, name: ModelName) -> None:
        model = KgeModel(name, dim=8)
        heads, relations, tails = random_triples(model, 20, seed=1)
        relations.requires_grad_()
        (gradient,) = torch.autograd.grad(model.score(heads, relations, tails).sum(), relations)
        torch.testing.assert_close(model.best_relation(heads, tails), gradient)

    def test_rotate_reaches_the_least_possible_distance(self) -> None:
        model = KgeModel("rotate", dim=8)
        heads, _, tails = random_triples(model, 20, seed=2)
        best = torch.complex(*model.best_relation(heads, tails).chunk(2, dim=-1))
        score = model.score(heads, best.angle() * model.initial_range / math.pi, tails)
        moduli = [torch.tensor([[abs(z) for z in complex_numbers(row)] for row in rows]) for rows in (heads, tails)]
        torch.testing.assert_close(best.abs(), torch.ones_like(best.abs()))
        torch.testing.assert_close(score, model.gamma - (moduli[0] - moduli[1]).abs().sum(1), check_dtype=False)

    @every_model
    def test_no_other_relation_of_that_length_scores_higher(self, name: ModelName) -> None:
        model = KgeModel(name, dim=4)
        heads, _, tails = random_triples(model, 1, seed=3)
        best = model.best_relation(heads, tails)
        if name == "rotate":
            best = torch.complex(*best.chunk(2, dim=-1)).angle() * model.initial_range / math.pi
        others = best + best.abs().mean() * torch.from_numpy(np.random.default_rng(4).normal(size=(500, best.shape[1])))
        if name in ("distmult", "complex"):
            others *= best.norm() / others.norm(dim=1, keepdim=True)
        assert (model.score(heads, others, tails) < model.score(heads, best, tails)).all()

    def test_rotate_with_a_zero_component_stays_finite(self) -> None:
        zero = torch.zeros(1, 4)
        assert torch.isfinite(KgeModel("rotate", dim=2).best_relation(zero, zero)).all()


class TestBadArguments:
    def test_unknown_model(self) -> None:
        with pytest.raises(SpecError, match=r"^model must .*got 'transh'"):
            KgeModel("transh")  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("dim", [0, -3])
    def test_no_dimension(self, dim: int) -> None:
        with pytest.raises(SpecError, match=rf"^dim must .*got {dim}"):
            KgeModel(dim=dim)

    @pytest.mark.parametrize(
        ("gamma", "init_epsilon"), [(-2.0, 2.0), (1.0, -5.0), (math.nan, 2.0), (10.0, math.inf), (-math.inf, math.inf)]
    )
    def test_no_initial_range(self, gamma: float, init_epsilon: float) -> None:
        with pytest.raises(SpecError, match=r"^gamma \+ init_epsilon must be positive and finite; got ") as error:
            KgeModel(gamma=gamma, init_epsilon=init_epsilon)
        assert str(error.value).endswith(f"got {gamma} + {init_epsilon}")

    @pytest.mark.parametrize(("gamma", "init_epsilon"), [(1e308, 2.0), (10.0, 1e300)])
    def test_no_value_of_a_row_would_be_finite(self, gamma: float, init_epsilon: float) -> None:
        with pytest.raises(SpecError, match=r"^gamma and init_epsilon must lie within \+-1,000,000; got "):
            KgeModel(gamma=gamma, init_epsilon=init_epsilon)

    @pytest.mark.parametrize("name", ["transe", "distmult", "complex"])
    def test_relations_of_another_width(self, name: ModelName) -> None:
        model = KgeModel(name, dim=4)
        rows = torch.zeros(2, model.entity_width)
        with pytest.raises(ValueError, match=f"width 1, allowed: {model.relation_width}"):
            model.score_relations(rows, rows, torch.zeros(3, 1))
