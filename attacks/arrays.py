"""Validate the arrays that attacks receive, with an error that names the array; standardize scores."""

from __future__ import annotations

import numpy as np


def finite(name: str, values: np.ndarray, dimensions: int) -> np.ndarray:
    """Convert an array to float64.

    Args:
        name: name of the array in the error message.
        values: numbers of any shape with this many dimensions.
        dimensions: required number of dimensions.

    Raises:
        ValueError: another number of dimensions, NaN or infinity.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != dimensions:
        raise ValueError(f"{name} must have {dimensions} dimension(s); got shape {list(array.shape)}")
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array)).sum())
        raise ValueError(f"{name} must be finite; {bad} of {array.size} are NaN or infinite")
    return array


def mask(name: str, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a boolean mask unchanged.

    Args:
        name: name of the array in the error message.
        values: the mask.
        shape: required shape.

    Raises:
        ValueError: the mask is not bool or has another shape.
    """
    array = np.asarray(values)
    if array.dtype != np.bool_ or array.shape != shape:
        raise ValueError(f"{name} must be bool of shape {list(shape)}; got {array.dtype} of {list(array.shape)}")
    return array


def in_deviations(scores: np.ndarray) -> np.ndarray:
    """Standardize scores `[n]` to mean 0 and standard deviation 1, so that scores on different scales can be added."""
    # Constant scores become 0, not NaN.
    return (scores - scores.mean()) / max(float(scores.std()), 1e-9)
