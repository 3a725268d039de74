"""Scoring functions against Python loops over complex numbers, and against PyKEEN where it has the same function."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fkgsec.errors import SpecError
from fkgsec.kge.models import MODELS, KgeModel, ModelName

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

    def test_rotate_relations_are_unit_numbers_and_the_range_is_one_turn(self) -> None:
        model = KgeModel("rotate", dim=4)
        quarter = model.initial_range / 2
        phases = torch.tensor([[0.0, quarter, 2 * quarter, -quarter]], dtype=torch.float64)
        expected = torch.tensor([[1.0, 0, -1, 0, 0, 1, 0, -1]], dtype=torch.float64)
        torch.testing.assert_close(model.relation_vectors(phases), expected, atol=1e-12, rtol=0)


class TestBestRelation:
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


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"name": "transh"}, r"^model must .*got 'transh'"),
        ({"dim": 0}, r"^dim must .*got 0"),
        ({"gamma": -2.0, "init_epsilon": 2.0}, r"^gamma \+ init_epsilon must be positive and finite; got -2.0 \+ 2.0"),
        ({"gamma": math.nan}, r"^gamma \+ init_epsilon must be positive and finite"),
        ({"init_epsilon": math.inf}, r"^gamma \+ init_epsilon must be positive and finite"),
        ({"gamma": 1e308}, r"^gamma and init_epsilon must lie within"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], fault: str) -> None:
    with pytest.raises(SpecError, match=fault):
        KgeModel(**arguments)
