"""Federations that attacks train, such as shadow federations: with progress, and resumed after an interruption.

    trainings = Trainings(run_federation, folder / TRAININGS, observer, count=4, seconds=38.0)
    run_attacks(result, options, train=trainings)
    trainings.clear()                                   # once the results are written

Each training has a folder below the run's, named after its options and data, and is read back if the attack is repeated.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fkgsec.federation.loop import Observer, run_identity

TRAININGS = "shadows"


class Trainings:
    """The `train` function of attacks. Calls with an adversary or a transcript's options always train from the start.

    Args:
        train: a function like `run_federation`, with the run's defense.
        folder: folder for checkpoints.
        observer: progress of each training.
        count: expected number of trainings.
        seconds: expected time of each.
    """

    def __init__(
        self, train: Callable[..., Any], folder: Path, observer: Observer | None, *, count: int, seconds: float
    ) -> None:
        self._train, self._folder, self._observer = train, folder, observer or Observer()
        self._count, self._seconds, self._number = count, seconds, 0

    def __call__(self, graph: Any, options: Any, **how: Any) -> Any:
        """Train a federation, or continue one from its checkpoint."""
        # Such a training depends on more than graph and options, so its folder could not be named by them.
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

    Args:
        seconds: any positive number.

    >>> lasting(0.2), lasting(41), lasting(500), lasting(9000)
    ('1 s', '41 s', '8 min', '2.5 h')
    """
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
