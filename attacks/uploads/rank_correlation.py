"""Spearman's correlation with its interval.

>>> import numpy as np
>>> str(spearman(np.array([1.0, 2, 3, 4]), np.array([1, 2, 4, 3])))
'0.8000 [-0.8188, 0.9975]'
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import rankdata

from fkgsec.estimate import Estimate, critical_value

LEAST = 4  # items; below, the interval's variance has no degree of freedom


def spearman(scores: np.ndarray, values: np.ndarray, *, compared: int = 1) -> Estimate:
    """Correlate scores `[n]` and values `[n]`, in [-1, 1], ties at their mean rank; 0 where either is constant.

    Args:
        compared: among how many figures this one was chosen; the level is then 1 - 0.05 / compared.

    The interval is that of Fisher's z with the variance (1 + r^2 / 2) / (n - 3). Source: Bonett and Wright 2000.

    Raises:
        ValueError: fewer than `LEAST` items.
    """
    if len(scores) < LEAST or len(values) != len(scores):
        raise ValueError(
            f"scores and values need the same items, at least {LEAST}; got {len(scores)} and {len(values)}"
        )
    ranks = [rankdata(one) - (len(scores) + 1) / 2 for one in (scores, values)]
    size = math.sqrt(float((ranks[0] ** 2).sum()) * float((ranks[1] ** 2).sum()))
    found = float(ranks[0] @ ranks[1]) / size if size > 0 else 0.0
    half = critical_value(compared) * math.sqrt((1 + found**2 / 2) / (len(scores) - 3))
    centre = math.atanh(min(max(found, -1 + 1e-12), 1 - 1e-12))
    low, high = (math.tanh(centre + sign * half) for sign in (-1, 1))
    method = "bonett-wright" if compared == 1 else f"bonett-wright, best of {compared}"
    return Estimate(found, min(low, found), max(high, found), len(scores), method)
