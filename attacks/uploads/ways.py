"""One figure of an attack that infers in several ways: the best of these and of the guesses, corrected for the choice.

    ways = {"distance": lambda compared: estimate_auc(linked, others, compared=compared), "movement": ...}
    figures = by_ways(truth, "auc", "hospital-2", ways, {"chance": exact(0.5, n)})      # a figure of each way, and the strongest

An adversary does not know which way is best; the evaluator does, so that each interval is taken at the level 1 - 0.05 / m for
the m among which was chosen (Bonferroni).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fkgsec.attacks.figure import STRONGEST, Figure
from fkgsec.attacks.registry import Truth
from fkgsec.estimate import Estimate

Measure = Callable[[int], Estimate]
"""The estimate of one way, its interval at the level of one among so many that are compared."""


def by_ways(
    truth: Truth,
    metric: str,
    victim: str,
    ways: Mapping[str, Measure],
    guesses: Mapping[str, Estimate],
    **details: Any,
) -> list[Figure]:
    """A figure of each way (`Figure.variant`), and one of the strongest of the ways and guesses.

    Args:
        ways: at least one. guesses: adversaries without what crossed, by name; the best one is the baseline.
        details: further fields of `Figure`.
    """
    worse = -1 if metric in truth.attack.errors else 1
    baseline = max(guesses.values(), key=lambda one: worse * one.value)
    made = [
        truth.figure(metric, victim, measure(1), baseline=baseline, variant=way, guesses=dict(guesses), **details)
        for way, measure in ways.items()
    ]
    best = max(made, key=lambda one: worse * one.estimate.value)
    compared = len(ways) + sum(name != "chance" for name in guesses)  # chance needs no choosing
    found = ways[best.variant](compared)
    by = best.variant
    if worse * baseline.value > worse * found.value:
        by = next(name for name, one in guesses.items() if one is baseline)
        found = Estimate(
            baseline.value, min(found.low, baseline.value), max(found.high, baseline.value), found.n, found.method
        )
    return [*made, msgspec.structs.replace(best, variant=STRONGEST, estimate=found, by=by, compared=compared)]
