"""Truncation against numpy, and by tensors of a table in any order."""

import numpy as np
import pytest
import torch

from fkgsec.exchange import AGGREGATIONS, SharedTable, Upload
from fkgsec.exchange.parts import Delivered
from fkgsec.exchange.tensors.truncated_svd import CORRECTION, truncated
from fkgsec.gnn.options import GnnOptions
from fkgsec.randomness import generator


def made(values: list[float], shape: tuple[int, int] = (6, 4)) -> np.ndarray:
    """A matrix with these singular values."""
    rng = generator(0, "test")
    left, right = (np.linalg.qr(rng.normal(size=(side, 4)))[0] for side in shape)
    return (left * values) @ right.T


def test_small_singular_values_are_dropped_or_all_made_smaller() -> None:
    matrix = torch.from_numpy(made([3.0, 1.0, 0.2, 0.05])).float()
    assert torch.allclose(truncated(matrix, threshold=0.1), torch.from_numpy(made([3, 1, 0.2, 0])).float(), atol=1e-6)
    soft = torch.from_numpy(made([2.9, 0.9, 0.1, 0])).float()
    assert torch.allclose(truncated(matrix, threshold=0.1, shrink="soft"), soft, atol=1e-6)
    assert torch.equal(truncated(matrix, threshold=0.0), matrix)
    assert not truncated(matrix, threshold=9.0).any()


@pytest.mark.parametrize(("correction", "left"), [("dual", 3.5 - 0.525 / 0.5), ("printed", 3.5 - 0.1 * 0.525)])
def test_the_mean_of_corrections_is_taken_off_by_hand(correction: str, left: float) -> None:
    """Weights 1 and 3: of W 2 and 4 the mean is 3.5, of h .3 and .6 it is .525; alpha is .5, the learning rate .1."""
    settings = {"correction": correction, "alpha": 0.5, "upload": "both"}
    options = GnnOptions(algorithm="cefgl", learning_rate=0.1, settings=settings)
    table = SharedTable("parameters", names=["b/0", f"{CORRECTION}b/0"])
    uploads = {
        party: Upload(torch.arange(2), torch.tensor([[value], [h]]), weight)
        for party, value, h, weight in (("a", 2.0, 0.3, 1), ("b", 4.0, 0.6, 3))
    }
    found = AGGREGATIONS["truncated-svd"](table, options).aggregate(1, torch.zeros(2, 1), Delivered((2, 1), uploads))
    assert found[:, 0].tolist() == pytest.approx([left, 0.0])


@pytest.mark.parametrize(("shrink", "threshold"), [("hard", 0.1), ("soft", 0.06)])
def test_the_weighted_mean_is_truncated_tensor_by_tensor(shrink: str, threshold: float) -> None:
    """Weights 1 and 3; rows of the matrix lie in another order and a bias between them. soft: 0.06 / alpha is 0.1."""
    first, second, bias = made([3.0, 1.0, 0.2, 0.05]), made([3.0, 1.0, 0.2, 0.09]), np.array([[4.0, 4.0, 4.0, 0.01]])
    names = ["w/3", "w/0", "b/0", "w/1", "w/5", "w/2", "w/4"]
    order = [3, 0, None, 1, 5, 2, 4]

    def rows(matrix: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.stack([bias[0] if row is None else matrix[row] for row in order])).float()

    options = GnnOptions(algorithm="cefgl", settings={"singular_threshold": threshold, "shrink": shrink, "alpha": 0.6})
    aggregation = AGGREGATIONS["truncated-svd"](SharedTable("parameters", names=names), options)
    uploads = {
        party: Upload(torch.arange(7), rows(matrix), weight)
        for party, matrix, weight in (("a", first, 1), ("b", second, 3))
    }
    found = aggregation.aggregate(1, torch.zeros(7, 4), Delivered((7, 4), uploads))
    left = made([3.0, 1.0, 0.2, 0.0] if shrink == "hard" else [2.9, 0.9, 0.1, 0.0])
    assert torch.allclose(found, rows(left), atol=1e-5)
