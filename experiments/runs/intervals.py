"""Intervals of differences between runs on paired items that share entities, and over seeds.

An attack's interval comes with its figure (`fkgsec.attacks.reconstruction.leak_draws`). This module compares two runs item by
item. An adversary who knows an entity rebuilds many of its triples at once; the design effect accounts for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fkgsec.estimate import Estimate, student_value

# two-sided 95 % point of the normal distribution.
Z95 = 1.959963984540054


def design_effect(values: np.ndarray, ends: np.ndarray) -> float:
    """Return the ratio of a mean's variance to its variance if items that share an entity were independent; at least 1.

    Args:
        values: float `[n]`; if all are equal, the ratio is 1.
        ends: int `[n, 1]` or `[n, 2]`, the entity of each item, or the head and the tail of each triple.

    Source: Fafchamps and Gubert 2007; Aronow, Samii and Assenova 2015: the sum of products over all pairs of items that share
    an entity. Differs: computed by entity, each pair that shares both ends counted once.
    """
    centred = np.asarray(values, dtype=np.float64) - np.mean(values)
    independent = float(centred @ centred)
    if not independent:
        return 1.0
    # Sum over entities of the squared sum of their items covers all pairs that share an entity.
    first, last, count = ends[:, 0], ends[:, -1], int(ends.max()) + 1
    single = first == last
    by_entity = np.bincount(first, centred, count) + np.bincount(last[~single], centred[~single], count)
    # Pairs of items that share both ends are in the sum twice; subtract them once.
    _, pair = np.unique(np.sort(ends[~single], axis=1), axis=0, return_inverse=True)
    by_pair = np.bincount(pair.ravel(), centred[~single])
    return max(1.0, float(by_entity @ by_entity - by_pair @ by_pair) / independent)


def paired_difference(now: np.ndarray, then: np.ndarray, ends: np.ndarray) -> Estimate:
    """Return the difference between two shares of correct items, on the same items, which may share entities.

    Args:
        now: bool `[n]`, correct items of the run.
        then: bool `[n]`, correct items of the run to compare with.
        ends: see `design_effect`.

    Source: Agresti and Min 2005: Wald's interval after adding half an item to each of the four cells, times the root of the
    design effect.

    >>> right = np.arange(100) < 50
    >>> str(paired_difference(right, right, np.arange(100)[:, None]))
    '0.0000 [-0.0192, 0.0192]'
    """
    n = len(now)
    gained, lost = int((now & ~then).sum()), int((then & ~now).sum())
    # Four cells with half an item each add two items in all.
    value, wide = (gained - lost) / n, n + 2
    centre = (gained - lost) / wide
    variance = gained + lost + 1 - (gained - lost) ** 2 / wide
    half = Z95 * math.sqrt(variance * design_effect(now.astype(float) - then, ends)) / wide
    return Estimate(value, min(value, centre - half), max(value, centre + half), n, "paired, linked")


def width(figures: Sequence[Estimate], compared: int = 1) -> tuple[float, float, float]:
    """Return half-widths of the interval of `over_seeds`.

    Args:
        figures: one figure per seed.
        compared: number of figures judged together (Bonferroni).

    Returns:
        The average half-width below and above a seed's figure, and Student's half-width of the mean over seeds.
    """
    items_low = float(np.mean([figure.value - figure.low for figure in figures]))
    items_high = float(np.mean([figure.high - figure.value for figure in figures]))
    count = len(figures)
    if count == 1:
        return items_low, items_high, 0.0
    spread = float(np.std([figure.value for figure in figures], ddof=1))
    return items_low, items_high, student_value(count, compared) * spread / math.sqrt(count)


def over_seeds(figures: Sequence[Estimate], compared: int = 1) -> Estimate:
    """Combine the figures of several seeds: the largest of exact figures, the mean of others.

    The mean's interval adds, in quadrature, the average interval of a seed and Student's interval of the mean. The seeds share
    their items, so more seeds never shrink the first part, and equal figures do not make it vanish.

    Args:
        figures: one figure per seed, at least one.
        compared: number of figures judged together (Bonferroni). The intervals of `figures` are at that level already.

    >>> from fkgsec.estimate import proportion
    >>> str(over_seeds([proportion(50, 100), proportion(50, 100)]))
    '0.5000 [0.4038, 0.5962]'
    """
    # Counts have no sampling error. Report the worst seed.
    if all(figure.method == "exact" for figure in figures):
        return max(figures, key=lambda figure: figure.value)
    if len(figures) == 1:
        return figures[0]
    mean = float(np.mean([figure.value for figure in figures]))
    # Items and seeds are independent sources of error: half-widths add in quadrature.
    items_low, items_high, seeds = width(figures, compared)
    low, high = mean - math.hypot(items_low, seeds), mean + math.hypot(items_high, seeds)
    # Differences can be negative.
    if all(figure.low >= 0 for figure in figures) and "paired" not in figures[0].method:
        low = max(low, 0.0)
    if all(figure.high <= 1 for figure in figures):
        high = min(high, 1.0)
    num_items = sum(figure.n for figure in figures)
    return Estimate(mean, low, high, num_items, f"{figures[0].method}, {len(figures)} seeds", len(figures), seeds)
