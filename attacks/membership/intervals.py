"""AUC, TPR and means of scores of triples, with intervals that count that triples which share an entity are scored alike.

    dyadic_auc(members, controls, ends)                    # ends int64 [m + c, 2]: heads and tails
    dyadic_tpr(members, controls, ends, 0.01)
    dyadic_mean(1 / ranks, ends)                           # ends int64 [n, 2]
    spearman(scores, values)                               # of rows, which are independent

A hub stands in many triples, and a model that knows it well scores all of them high: a thousand triples of one hub are no
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

LEAST = 4  # items of a correlation; below, the interval's variance has no degree of freedom


def dyadic_auc(members: np.ndarray, controls: np.ndarray, ends: np.ndarray, *, compared: int = 1) -> Estimate:
    """Chance that one of the former scores `[m]` lies above one of the latter `[c]`, ties half.

    Args:
        ends: int64 `[m + c, 2]`, heads and tails of both. compared: among how many figures this one was chosen (Bonferroni).

    Source: DeLong et al. 1988 for the influence of each triple.
    """
    placed = placements(members, controls)
    auc = placed.members.mean()
    influence = np.concatenate([(part - auc) / len(part) for part in (placed.members, placed.controls)])
    return estimate_auc(placed, _dyadic(influence, ends), "dyadic+newcombe", compared=compared)


def dyadic_tpr(
    members: np.ndarray, controls: np.ndarray, ends: np.ndarray, max_fpr: float, *, compared: int = 1
) -> Estimate:
    """The share of the former scores `[m]` above a threshold that at most `max_fpr` of the latter `[c]` exceed.

    Two errors, added as independent ones. Of the members: Wilson's interval of as many independent triples as tell as much, m
    over the design effect (`_design_effect`). Of the threshold: the shares that lie above the thresholds which as many controls
    exceed as a binomial sample of the controls' effective number would have, 2.5 % and 97.5 %.

    Args: as `dyadic_auc`.

    Raises:
        ValueError: too few controls.
    """
    reached = tpr_at_fpr(members, controls, max_fpr, "remembered").tpr
    if reached is None:
        raise ValueError(f"an FPR of {max_fpr:.1%} takes more than {len(controls)} controls")
    m, c = len(members), len(controls)
    placed = placements(members, controls)
    threshold = np.sort(controls)[-math.floor(max_fpr * c + 1e-9) - 1]
    effects = (
        _design_effect(members > threshold, placed.members, ends[:m]),
        _design_effect(controls > threshold, placed.controls, ends[m:]),
    )
    count, usable = (max(1, round(size / effect)) for size, effect in zip((m, c), effects, strict=True))
    wide = proportion(reached.value * count, count, compared=compared)
    tail = 0.025 / compared
    descending = np.sort(controls)[::-1]
    exceeding = [min(c - 1, round(quantile * c / usable)) for quantile in binom.ppf([tail, 1 - tail], usable, max_fpr)]
    least, most = (float((members > descending[number]).mean()) for number in exceeding)
    low = reached.value - math.hypot(reached.value - wide.low, max(0.0, reached.value - least))
    high = reached.value + math.hypot(wide.high - reached.value, max(0.0, most - reached.value))
    method = "dyadic wilson" if compared == 1 else f"dyadic wilson, best of {compared}"
    return Estimate(reached.value, min(reached.value, max(0.0, low)), max(reached.value, min(1.0, high)), m, method)


def dyadic_mean(values: np.ndarray, ends: np.ndarray, *, compared: int = 1) -> Estimate:
    """Mean of values in 0..1, float `[n]`, such as reciprocal ranks or hits.

    The interval is Wilson's of as many independent hits and misses as have the variance of the mean; of fewer, by the quantiles
    of Student's t, where a few heads or tails stand in most triples, whose variance is then known badly. Where all values are
    alike, as many as there are heads or tails.

    Args:
        ends: int64 `[n, 2]`, heads and tails. compared: among how many figures this one was chosen (Bonferroni).
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
    """Variance of a mean over that of as many independent triples: of what is found (bool `[k]`) or of their places among the
    others (float `[k]`), whichever is larger; at least 1."""
    effects = [1.0]
    for values in (exceeds.astype(np.float64), placed):
        influence = (values - values.mean()) / len(values)
        if (alone := float(influence @ influence)) > 0:
            effects.append(_dyadic(influence, ends) / alone)
    return max(effects)


def _dyadic(influence: np.ndarray, ends: np.ndarray) -> float:
    pairs, pair_of = np.unique(np.sort(ends, axis=1), axis=0, return_inverse=True)  # some stand in several triples
    summed = np.bincount(pair_of.ravel(), influence)
    return dyadic_variance(summed, pairs[:, 0], pairs[:, 1])


def spearman(scores: np.ndarray, values: np.ndarray, *, compared: int = 1) -> Estimate:
    """Spearman's correlation of scores `[n]` and values `[n]`, in [-1, 1], ties at their mean rank; 0 where either is constant.

    >>> str(spearman(np.array([1.0, 2, 3, 4]), np.array([1, 2, 4, 3])))
    '0.8000 [-0.8188, 0.9975]'

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
    ranks = [rankdata(column) - (len(scores) + 1) / 2 for column in (scores, values)]
    size = math.sqrt(float((ranks[0] ** 2).sum()) * float((ranks[1] ** 2).sum()))
    correlation = float(ranks[0] @ ranks[1]) / size if size > 0 else 0.0
    half = critical_value(compared) * math.sqrt((1 + correlation**2 / 2) / (len(scores) - 3))
    centre = math.atanh(min(max(correlation, -1 + 1e-12), 1 - 1e-12))
    low, high = (math.tanh(centre + sign * half) for sign in (-1, 1))
    method = "bonett-wright" if compared == 1 else f"bonett-wright, best of {compared}"
    return Estimate(correlation, min(low, correlation), max(high, correlation), len(scores), method)
