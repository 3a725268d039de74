"""Federations that attacks on a run train, such as shadow federations: watched, and continued after a kill.

    trainings = Trainings(run_federation, folder / TRAININGS, observer, count=4, seconds=38.0)
    run_attacks(result, options, train=trainings)
    trainings.clear()                                   # once what they gave is written

Each lies in a folder of its own below the run's, by its options and data, and is read back when the same attack is given again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fkgsec.federation.loop import Observer, run_identity

TRAININGS = "shadows"


class Trainings:
    """How attacks train. Calls that name an adversary, or what a transcript is to keep, are trained from the start each time.

    Args:
        train: as `run_federation`, under the run's defense. folder: where checkpoints go. observer: of each.
        count: how many are expected. seconds: what each is expected to take.
    """

    def __init__(
        self, train: Callable[..., Any], folder: Path, observer: Observer | None, *, count: int, seconds: float
    ) -> None:
        self._train, self._folder, self._observer = train, folder, observer or Observer()
        self._count, self._seconds, self._number = count, seconds, 0

    def __call__(self, graph: Any, options: Any, **how: Any) -> Any:
        """As `train`."""
        if how:
            return self._train(graph, options, **how)
        self._number += 1
        whole = f"; all {self._count} take about {lasting(self._count * self._seconds)}" if self._number == 1 else ""
        self._observer.run_started(f"shadow federation {self._number} of {self._count}{whole}", options.rounds)
        place = self._folder / run_identity(graph, options)[:16]
        place.mkdir(parents=True, exist_ok=True)
        return self._train(graph, options, place, self._observer)

    def clear(self) -> None:
        """Remove their checkpoints."""
        shutil.rmtree(self._folder, ignore_errors=True)


def lasting(seconds: float) -> str:
    """A duration in words.

    >>> lasting(0.2), lasting(41), lasting(500), lasting(9000)
    ('1 s', '41 s', '8 min', '2.5 h')
    """
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
