"""AUC, TPR and means of scores of triples, with intervals that account for triples that share an entity.

    dyadic_auc(members, controls, ends)                    # ends int64 [m + c, 2]: heads and tails
    dyadic_tpr(members, controls, ends, 0.01)
    dyadic_mean(1 / ranks, ends)                           # ends int64 [n, 2]
    spearman(scores, values)                               # of rows, which are independent

A hub occurs in many triples, and a model that knows it well scores all of them high: a thousand triples of one hub are not a
thousand observations. The variance is that of dyadic data (`fkgsec.attacks.uploads.pairs.dyadic_variance`).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom, rankdata
from scipy.stats import t as student

from fkgsec.attacks.membership.figures import estimate_auc, placements, tpr_at_fpr
from fkgsec.attacks.uploads.pairs import dyadic_variance
from fkgsec.estimate import Estimate, critical_value, proportion

# Fewest items of a correlation; with fewer, the variance of Fisher's z is undefined.
LEAST = 4


def dyadic_auc(members: np.ndarray, controls: np.ndarray, ends: np.ndarray, *, compared: int = 1) -> Estimate:
    """Return the probability that a member's score exceeds a control's, ties half.

    Args:
        members: float `[m]`.
        controls: float `[c]`.
        ends: heads and tails of members, then of controls, int64 `[m + c, 2]`.
        compared: number of figures among which this one was chosen (Bonferroni).

    Source: DeLong et al. 1988 for the influence of each triple.
    """
    placed = placements(members, controls)
    auc = placed.members.mean()
    influence = np.concatenate([(part - auc) / len(part) for part in (placed.members, placed.controls)])
    return estimate_auc(placed, _dyadic(influence, ends), "dyadic+newcombe", compared=compared)


def dyadic_tpr(
    members: np.ndarray, controls: np.ndarray, ends: np.ndarray, max_fpr: float, *, compared: int = 1
) -> Estimate:
    """Return the share of members above a threshold that at most `max_fpr` of the controls exceed.

    Two errors are added as if independent. Members: Wilson's interval for the effective number of independent triples, m over
    the design effect (`_design_effect`). Threshold: the shares above the thresholds at the 2.5 % and 97.5 % points of a
    binomial number of exceeding controls, for the effective number of controls.

    Args:
        members: float `[m]`.
        controls: float `[c]`.
        ends: heads and tails of members, then of controls, int64 `[m + c, 2]`.
        max_fpr: largest false-positive rate.
        compared: number of figures among which this one was chosen (Bonferroni).

    Raises:
        ValueError: too few controls.
    """
    reached = tpr_at_fpr(members, controls, max_fpr, "remembered").tpr
    if reached is None:
        raise ValueError(f"an FPR of {max_fpr:.1%} takes more than {len(controls)} controls")
    m, c = len(members), len(controls)
    placed = placements(members, controls)
    threshold = np.sort(controls)[-math.floor(max_fpr * c + 1e-9) - 1]
    # Effective sample sizes: dependent triples count as fewer.
    effects = (
        _design_effect(members > threshold, placed.members, ends[:m]),
        _design_effect(controls > threshold, placed.controls, ends[m:]),
    )
    count, usable = (max(1, round(size / effect)) for size, effect in zip((m, c), effects, strict=True))
    wide = proportion(reached.value * count, count, compared=compared)
    tail = 0.025 / compared
    descending = np.sort(controls)[::-1]
    # Rank of the threshold if the sample of controls had come out differently.
    exceeding = [min(c - 1, round(quantile * c / usable)) for quantile in binom.ppf([tail, 1 - tail], usable, max_fpr)]
    least, most = (float((members > descending[number]).mean()) for number in exceeding)
    # Add both errors as independent ones.
    low = reached.value - math.hypot(reached.value - wide.low, max(0.0, reached.value - least))
    high = reached.value + math.hypot(wide.high - reached.value, max(0.0, most - reached.value))
    method = "dyadic wilson" if compared == 1 else f"dyadic wilson, best of {compared}"
    return Estimate(reached.value, min(reached.value, max(0.0, low)), max(reached.value, min(1.0, high)), m, method)


def dyadic_mean(values: np.ndarray, ends: np.ndarray, *, compared: int = 1) -> Estimate:
    """Return the mean of values in 0..1, such as reciprocal ranks or hits.

    The interval is Wilson's for the number of independent hits and misses with the same variance. That number is smaller where
    a few heads or tails occur in most triples: the variance is then uncertain, and quantiles of Student's t apply. If all
    values are equal, it is the effective number of heads or of tails.

    Args:
        values: float `[n]`.
        ends: heads and tails, int64 `[n, 2]`.
        compared: number of figures among which this one was chosen (Bonferroni).
    """
    n, share = len(values), float(values.mean())
    influence = (values - share) / n
    variance = _dyadic(influence, ends)
    # 1 over the sum of squared shares: the number of different ones where each stands equally often.
    repeats = [np.unique(column, return_counts=True)[1] for column in ends.T]
    usable = min(float(counts.sum() ** 2 / (counts**2).sum()) for counts in repeats)
    count = usable
    if variance > 0:
        wider = float(student.ppf(0.975, max(1.0, usable - 1))) / critical_value()
        count = share * (1 - share) / variance * (1 - 1 / max(2.0, usable)) / wider**2
    whole = max(1, round(count))
    wide = proportion(share * whole, whole, compared=compared)
    method = "dyadic wilson" if compared == 1 else f"dyadic wilson, best of {compared}"
    return Estimate(share, min(share, wide.low), max(share, wide.high), n, method)


def _design_effect(exceeds: np.ndarray, placed: np.ndarray, ends: np.ndarray) -> float:
    """Return the variance of a mean relative to that of independent triples, at least 1.

    It is the larger one of two: for exceeding the threshold (bool `[k]`), and for placements among the others (float `[k]`).
    """
    effects = [1.0]
    for values in (exceeds.astype(np.float64), placed):
        influence = (values - values.mean()) / len(values)
        if (alone := float(influence @ influence)) > 0:
            effects.append(_dyadic(influence, ends) / alone)
    return max(effects)


def _dyadic(influence: np.ndarray, ends: np.ndarray) -> float:
    # Several triples may have the same two ends: sum their influence first.
    pairs, pair_of = np.unique(np.sort(ends, axis=1), axis=0, return_inverse=True)
    summed = np.bincount(pair_of.ravel(), influence)
    return dyadic_variance(summed, pairs[:, 0], pairs[:, 1])


def spearman(scores: np.ndarray, values: np.ndarray, *, compared: int = 1) -> Estimate:
    """Return Spearman's correlation in [-1, 1], ties at their mean rank; 0 if either is constant.

    >>> str(spearman(np.array([1.0, 2, 3, 4]), np.array([1, 2, 4, 3])))
    '0.8000 [-0.8188, 0.9975]'

    Args:
        scores: float `[n]`.
        values: float `[n]`.
        compared: number of figures among which this one was chosen; the level is 1 - 0.05 / compared.

    The interval is that of Fisher's z with the variance (1 + r^2 / 2) / (n - 3). Source: Bonett and Wright 2000.

    Raises:
        ValueError: fewer than `LEAST` items.
    """
    if len(scores) < LEAST or len(values) != len(scores):
        raise ValueError(
            f"scores and values need the same items, at least {LEAST}; got {len(scores)} and {len(values)}"
        )
    ranks = [rankdata(column) - (len(scores) + 1) / 2 for column in (scores, values)]
    size = math.sqrt(float((ranks[0] ** 2).sum()) * float((ranks[1] ** 2).sum()))
    correlation = float(ranks[0] @ ranks[1]) / size if size > 0 else 0.0
    # Bonett and Wright 2000: var(z) = (1 + r^2 / 2) / (n - 3).
    half = critical_value(compared) * math.sqrt((1 + correlation**2 / 2) / (len(scores) - 3))
    center = math.atanh(min(max(correlation, -1 + 1e-12), 1 - 1e-12))
    low, high = (math.tanh(center + sign * half) for sign in (-1, 1))
    method = "bonett-wright" if compared == 1 else f"bonett-wright, best of {compared}"
    return Estimate(correlation, min(low, correlation), max(high, correlation), len(scores), method)
