"""Which entities leak is chance: leakage under other draws of the colluder's leaked entities, for the intervals of ERR and TRR.

The evaluator holds the finished run, so it repeats the whole attack (the choice of the strongest inference included) with
other leaked entities of the same number. How much ERR and TRR differ between draws joins Wilson's interval of the items:

    rows = widen(rows, [attack(seed) for seed in other_seeds(options.seed, LEAK_DRAWS)])

The interval then covers the mean over draws, of the same training; the adversary's own coins are thrown anew in each draw. It
does not cover other trainings: several seeds do (`experiments.runs.intervals.over_seeds`). At a leak of 1 nothing is drawn.

Source: ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from fkgsec.estimate import Estimate, over_draws
from fkgsec.randomness import generator

if TYPE_CHECKING:
    from attacks.reconstruction.leakage import Leakage

LEAK_DRAWS = 5  # further ones, see `over_draws`
_RATES: tuple[Literal["err", "trr"], ...] = ("err", "trr")


def other_seeds(seed: int, count: int) -> list[int]:
    """Seeds of further draws that depend on the attack's own seed and are no other's."""
    return [int(generator(seed, "other leaked entities", number).integers(2**62)) for number in range(count)]


def widen(rows: Sequence[Leakage], others: Sequence[Sequence[Leakage]]) -> list[Leakage]:
    """The rows with intervals that cover the draw of leaked entities.

    Args:
        others: for each further draw the rows of the same attack. A draw in which a victim could not be attacked says
            nothing of it and is left out.
    """
    drawn = [{(row.inference, row.victim): row for row in again if not row.reason} for again in others]

    def figure(row: Leakage, rate: Literal["err", "trr"]) -> Estimate:
        key = (row.inference, row.victim)
        same = [getattr(again[key], rate).value for again in drawn if key in again]
        return over_draws(getattr(row, rate), same, "leaks")

    return [
        row if row.reason else msgspec.structs.replace(row, **{rate: figure(row, rate) for rate in _RATES})
        for row in rows
    ]
