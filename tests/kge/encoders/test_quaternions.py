"""QuatE's scores against a naive Hamilton product."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fkgsec.errors import SpecError
from fkgsec.kge.encoders.quaternions import conjugate, hamilton, unit
from fkgsec.kge.models import KgeModel

# i^2 = j^2 = k^2 = ijk = -1: the unit that row times column gives, and its sign.
PRODUCT = {
    (0, 0): (0, 1), (0, 1): (1, 1), (0, 2): (2, 1), (0, 3): (3, 1),
    (1, 0): (1, 1), (1, 1): (0, -1), (1, 2): (3, 1), (1, 3): (2, -1),
    (2, 0): (2, 1), (2, 1): (3, -1), (2, 2): (0, -1), (2, 3): (1, 1),
    (3, 0): (3, 1), (3, 1): (2, 1), (3, 2): (1, -1), (3, 3): (0, -1),
}  # fmt: skip


def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of rows of quaternions in the layout of the module, by the table of units."""
    size = len(x) // 4
    out = np.zeros(len(x))
    for n in range(size):
        for (row, column), (where, sign) in PRODUCT.items():
            out[where * size + n] += sign * x[row * size + n] * y[column * size + n]
    return out


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    heads, relations, tails = (torch.from_numpy(rng.normal(size=(n, 12))) for n in (5, 5, 7))
    return heads, relations, tails


def test_scores_of_all_entities_follow_the_paper(rows: tuple[torch.Tensor, ...]) -> None:
    """The head's quaternions, times the relation's as units, in a dot product with each tail's."""
    heads, relations, tails = rows
    model = KgeModel("noge", 12)
    units = relations.numpy().reshape(5, 4, 3)
    units = (units / np.sqrt((units**2).sum(1, keepdims=True))).reshape(5, 12)
    expected = [[product(h, r) @ t for t in tails.numpy()] for h, r in zip(heads.numpy(), units, strict=True)]
    np.testing.assert_allclose(model.score_all(model.query(heads, relations, "tail"), tails), expected, atol=1e-9)


def test_best_relation_is_a_unit_that_no_other_beats(rows: tuple[torch.Tensor, ...]) -> None:
    heads, relations, tails = rows
    model = KgeModel("noge", 12)
    best = model.best_relation(heads, tails[:5])
    torch.testing.assert_close(unit(best), best)
    assert (model.score(heads, best, tails[:5]) > model.score(heads, relations, tails[:5])).all()
    modulus = hamilton(conjugate(best), best)
    torch.testing.assert_close(modulus[:, :3], torch.ones(5, 3).double())


def test_a_dimension_that_is_no_number_of_quaternions_is_refused() -> None:
    with pytest.raises(SpecError, match=r"dim must .*got 10"):
        KgeModel("noge", 10)
