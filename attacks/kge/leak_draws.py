"""Which entities leak is chance: figures under other draws of the colluder's leaked entities, for their intervals.

The evaluator holds the finished run, so it repeats the whole attack (the choice of the strongest variant included) with
other leaked entities of the same number. How much a figure differs between draws joins the interval of its items:

    figures = widen(figures, [attack(seed) for seed in other_seeds(options.seed, LEAK_DRAWS)])

The interval then covers the mean over draws, of the same training; the adversary's own coins are thrown anew in each draw. It
does not cover other trainings: several seeds do (`fkgsec.experiments.runs.intervals.over_seeds`). At a leak of 1 nothing is
drawn.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fkgsec.attacks.figure import Figure
from fkgsec.estimate import over_draws
from fkgsec.randomness import generator

LEAK_DRAWS = 5  # further ones, see `over_draws`


def other_seeds(seed: int, count: int) -> list[int]:
    """Seeds of further draws that depend on the attack's own seed and are no other's."""
    return [int(generator(seed, "other leaked entities", number).integers(2**62)) for number in range(count)]


def widen(figures: Sequence[Figure], others: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Return the figures with intervals, and upper bounds, that cover the draw of leaked entities.

    The upper bound of a figure differs between draws. An interval that covers them ends at the largest one.

    Args:
        others: for each further draw the figures of the same attack. A draw in which a victim could not be attacked says
            nothing of it and is left out.
    """
    drawn = [{(figure.question, figure.victim): figure for figure in again if not figure.reason} for again in others]

    def widened(figure: Figure) -> Figure:
        place = figure.question, figure.victim
        same = [again[place] for again in drawn if place in again]
        bounds = [each.attainable for each in (figure, *same) if each.attainable is not None]
        bound = None if figure.attainable is None or figure.less_is_worse else max(bounds)
        values = [each.estimate.value for each in same]
        estimate = over_draws(figure.estimate, values, "leaks", 1.0 if bound is None else bound)
        return msgspec.structs.replace(
            figure, estimate=estimate, attainable=figure.attainable if bound is None else bound
        )

    return [figure if figure.reason else widened(figure) for figure in figures]
