"""Checks of the arrays that attacks are given, with an error that names the array; and scores in deviations."""

from __future__ import annotations

import numpy as np


def finite(name: str, values: np.ndarray, dimensions: int) -> np.ndarray:
    """Convert to float64. Raises `ValueError` on another number of dimensions, NaN or infinity."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != dimensions:
        raise ValueError(f"{name} must have {dimensions} dimension(s); got shape {list(array.shape)}")
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).sum())
        raise ValueError(f"{name} must be finite; {bad} of {array.size} are NaN or infinite")
    return array


def mask(name: str, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the mask unchanged. Raises `ValueError` unless it is bool and has that shape."""
    array = np.asarray(values)
    if array.dtype != np.bool_ or array.shape != shape:
        raise ValueError(f"{name} must be bool of shape {list(shape)}; got {array.dtype} of {list(array.shape)}")
    return array


def in_deviations(scores: np.ndarray) -> np.ndarray:
    """Less their mean, over their deviation: so that scores of several kinds can be added."""
    return (scores - scores.mean()) / max(float(scores.std()), 1e-9)
