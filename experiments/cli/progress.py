"""Terminal progress of a run: rounds, steps, loss, validation, bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import task_named
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer
from fkgsec.federation.options import RunOptions

Trained = RunOptions[Any] | RunSpec
Observe = Callable[[Trained, str], AbstractContextManager[Observer]]
# Seconds between two lines of one run among several that train at once: their lines interleave.
LINE_EVERY_S = 15.0


def observe_on(console: Console, *, enabled: bool, what: str = "", together: bool = False) -> Observe:
    """Return a function that observes each run of a command, after a line with its kind and name.

    Args:
        console: the console to draw on, usually standard error.
        enabled: False prints nothing.
        what: kind of the runs, such as `case`, printed before each name.
        together: the runs train at the same time; each prints a line now and then instead of moving a bar.
    """

    def observe(options: Trained, name: str) -> RunProgress | RunLines:
        """Return the observer of one run."""
        if together:
            return RunLines(options, name, console if enabled else None)
        if enabled:
            console.print(f"{what} {name}".strip(), style="bold", highlight=False)
        return RunProgress(options, console, enabled=enabled)

    return observe


def unobserved(options: Trained, name: str) -> AbstractContextManager[Observer]:
    """Observe a run without output."""
    return nullcontext(Observer())


def _label(options: Trained) -> str:
    task = task_named(options.task)
    return task.label(task.metric)


class RunLines(Observer):
    """Observer that prints a line of a run at its end, and at most every `LINE_EVERY_S` seconds, with its name."""

    def __init__(self, options: Trained, name: str, console: Console | None) -> None:
        self._rounds, self._name, self._console, self._metric = options.rounds, name, console, _label(options)
        self._began = self._last = time.monotonic()
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The last round's line may still wait for its turn.
        if self._line:
            self._print()

    def run_started(self, name: str, num_rounds: int) -> None:
        """Name the following lines after this run.

        Args:
            name: name of a run within the observed one, such as a shadow model.
            num_rounds: most rounds of that run.
        """
        self._name, self._rounds = f"{self._name.partition(', shadow')[0]}, {name}", num_rounds

    def round_done(self, entry: RoundEntry) -> None:
        """Print a line if the last one is old.

        Args:
            entry: the finished round.
        """
        reached = "" if entry.valid is None else f", {self._metric} {entry.valid:.4f}"
        self._line = f"{self._name}: round {entry.round} of {self._rounds}{reached}"
        if time.monotonic() - self._last >= LINE_EVERY_S:
            self._print()

    def _print(self) -> None:
        if self._console is not None:
            seconds = f" ({time.monotonic() - self._began:.0f} s)"
            self._console.print(self._line + seconds, highlight=False, soft_wrap=True)
        self._last, self._line = time.monotonic(), ""


class RunProgress(Observer):
    """Observer with two bars, rounds and steps of the current round. A file or pipe gets one line per validation
    instead.
    """

    def __init__(self, options: Trained, console: Console, *, enabled: bool) -> None:
        self._console = console
        self._metric = _label(options)
        self._enabled = enabled
        self._lines = enabled and not console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not (enabled and console.is_terminal),
        )
        self._rounds = self._progress.add_task(f"{options.algorithm} rounds", total=options.rounds, figures="")
        self._steps = self._progress.add_task("steps", total=None, figures="")
        self._valid: float | None = None
        self._num_bytes = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def run_started(self, name: str, num_rounds: int) -> None:
        """Print the name and restart the bars below it.

        Args:
            name: name of a run within the observed one, such as a shadow model.
            num_rounds: most rounds of that run.
        """
        if self._enabled:
            self._console.print(name, style="bold", highlight=False, soft_wrap=True, markup=False)
        self._progress.reset(self._rounds, total=num_rounds, figures="")
        self._valid, self._num_bytes = None, 0

    def round_started(self, round: int, num_steps: int) -> None:
        """Restart the bar of steps.

        Args:
            num_steps: number of steps of the round; one step advances every busy client.
        """
        self._progress.reset(self._steps, total=num_steps)

    def step_done(self) -> None:
        """Move the bar of steps."""
        self._progress.advance(self._steps)

    def round_done(self, entry: RoundEntry) -> None:
        """Move the bar of rounds; in a pipe, print a line after each validation.

        Args:
            entry: the finished round.
        """
        self._num_bytes += entry.bytes_up + entry.bytes_down
        # Rounds between validations show the last validation.
        if entry.valid is not None:
            self._valid = entry.valid
        parts = [
            f"loss {entry.loss:.4f}" if entry.loss is not None else "",
            f"{self._metric} {self._valid:.4f}" if self._valid is not None else "",
            f"{self._num_bytes / 2**20:.1f} MiB",
            "" if entry.changed_levels is None else f"{entry.changed_levels:.2%} of quantized weight levels changed",
        ]
        figures = "  ".join(part for part in parts if part)
        self._progress.update(self._rounds, completed=entry.round, figures=figures)
        if self._lines and entry.valid is not None:
            self._console.print(f"round {entry.round}: {figures}  ({entry.seconds:.1f} s)", highlight=False)
