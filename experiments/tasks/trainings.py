"""Federations that attacks train, such as shadow federations: with progress, and continued after a kill.

    trainings = Trainings(run_federation, folder / TRAININGS, observer, count=4, seconds=38.0)
    run_attacks(result, options, train=trainings)
    trainings.clear()                                   # once the results are written

Each has a folder below the run's, named by its options and data, and is read back when the same attack is given again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fkgsec.federation.loop import Observer, run_identity

TRAININGS = "shadows"


class Trainings:
    """The `train` function of attacks. Calls with an adversary or a transcript's options are trained from the start each time.

    Args:
        train: as `run_federation`, under the run's defense. folder: for checkpoints. observer: of each training.
        count: expected number of trainings. seconds: expected time of each.
    """

    def __init__(
        self, train: Callable[..., Any], folder: Path, observer: Observer | None, *, count: int, seconds: float
    ) -> None:
        self._train, self._folder, self._observer = train, folder, observer or Observer()
        self._count, self._seconds, self._number = count, seconds, 0

    def __call__(self, graph: Any, options: Any, **how: Any) -> Any:
        """Train a federation, or continue one from its checkpoint."""
        if how:
            return self._train(graph, options, **how)
        self._number += 1
        whole = f"; all {self._count} take about {lasting(self._count * self._seconds)}" if self._number == 1 else ""
        self._observer.run_started(f"shadow federation {self._number} of {self._count}{whole}", options.rounds)
        place = self._folder / run_identity(graph, options)[:16]
        place.mkdir(parents=True, exist_ok=True)
        return self._train(graph, options, place, self._observer)

    def clear(self) -> None:
        """Remove the checkpoints."""
        shutil.rmtree(self._folder, ignore_errors=True)


def lasting(seconds: float) -> str:
    """Format a duration.

    >>> lasting(0.2), lasting(41), lasting(500), lasting(9000)
    ('1 s', '41 s', '8 min', '2.5 h')
    """
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
