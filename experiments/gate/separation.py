"""Which limits tell a defended federation from the same one without its defense, and where between the two a limit should lie.

    found = separate(defended, bare, candidates)
    [one.limit for one in found if one.limit is not None]

A limit that lies above both figures endorses what leaks today, and goes on passing when the defense is taken out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from fkgsec.estimate import Estimate
from fkgsec.experiments.gate.measures import MEASURES, NotMeasured, Question
from fkgsec.experiments.runs.run import Finished

ROOM = 0.01  # between the intervals with and without the defense; less would be lost by the next training
WIDTHS = 2  # of its interval that a limit lies away from what was measured, where there is room


class Separation(NamedTuple):
    """One figure with and without the defense.

    Attributes:
        defended, bare: the figures; None where one was not measured, for the reason in `why`.
        limit: what the defended federation keeps and the bare one breaks; None where there is no such limit, or `why` not.
    """

    measure: str
    question: Question
    defended: Estimate | None
    bare: Estimate | None
    limit: float | None
    why: str


def separate(defended: Finished, bare: Finished, candidates: Iterable[tuple[str, Question]]) -> list[Separation]:
    """Each candidate measured on both runs; all are shares of which less is better."""
    return [_separate(defended, bare, measure, question) for measure, question in candidates]


def _separate(defended: Finished, bare: Finished, measure: str, question: Question) -> Separation:
    figures: list[Estimate | None] = []
    reasons = []
    for run, which in ((defended, "with the defense"), (bare, "without it")):
        try:
            figures.append(MEASURES[measure].read(run, question))
        except NotMeasured as reason:
            figures.append(None)
            reasons.append(f"not measured {which}: {reason}")
    kept, broken = figures
    if kept is None or broken is None:
        return Separation(measure, question, kept, broken, None, "; ".join(reasons))
    reach = MEASURES[measure].reach
    least_kept, least_broken = (reach(run, question).least if reach else -math.inf for run in (defended, bare))
    most = reach(defended, question).most if reach else None  # at or above it a limit would be vacuous
    fails = min(max(broken.low, least_broken), math.inf if most is None else most)
    limit = limit_between(kept, max(kept.high, least_kept), fails)
    why = "" if limit is not None else f"does not notice the defense: {kept} with it, {broken} without"
    return Separation(measure, question, kept, broken, limit, why)


def limit_between(kept: Estimate, passes: float, fails: float) -> float | None:
    """A limit in three decimals above `passes`, the smallest that is kept, and below `fails`, the smallest that is not broken.

    Two widths of the interval above the figure that keeps it, but not beyond the middle; None where there is no room (`ROOM`).

    >>> limit_between(Estimate(0.34, 0.32, 0.36, 100, "wilson"), 0.36, 0.60)
    0.42
    >>> limit_between(Estimate(0.34, 0.32, 0.36, 100, "wilson"), 0.36, 0.40)
    0.38
    """
    if fails - passes < ROOM:
        return None
    away = kept.value + WIDTHS * (kept.high - kept.low)
    limit = outward(min(max(away, passes), (passes + fails) / 2), up=True)
    return limit if passes < limit < min(fails, 1.0) and limit > 0 else None


def outward(share: float, *, up: bool) -> float:
    """Three decimals, away from what was measured."""
    scaled = round(share * 1000, 9)  # 0.38 * 1000 is 380.00000000000006
    return (math.ceil(scaled) if up else math.floor(scaled)) / 1000
