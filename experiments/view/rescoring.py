"""Scoring a finished run again from its page: `fkgsec attack --run` or `fkgsec verify-run --recompute`, in a process of its own.

    jobs = Jobs()
    job = jobs.start(attack_command(run, {"inference": "score"}))
    job.state, job.output()

The commands are those of the command line, so what they write is what they always write: a further attack gets a folder beside
the run's record, and nothing is written over. One job runs at a time; the viewer's end ends it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from experiments.view.pages import RESCORED, rescored_options
from experiments.view.summaries import Viewed
from fkgsec.errors import RunError, SpecError
from fkgsec.text import shown

MOST_LETTERS = 200  # of one option
MOST_OUTPUT = 20_000  # bytes that are shown, the last ones
_PROGRAM = "import sys; sys.argv[0] = 'fkgsec'; from experiments.cli.start import main; main()"


def attack_command(run: Viewed, given: Mapping[str, str]) -> list[str]:
    """The words of `fkgsec attack --run` with these options; several values of one stand with commas in between.

    Raises:
        SpecError: an option that the page does not offer, or one too long. Values are checked by the command.
    """
    options = {one.name: one for one in rescored_options()}
    words = ["attack", "--run", str(run.trained.absolute()), "--quiet"]
    for name, value in given.items():
        if name not in options:
            raise SpecError(f"{shown(name)} is no option of an attack here; there are {', '.join(RESCORED)}")
        if len(value) > MOST_LETTERS:
            raise SpecError(f"{name}: at most {MOST_LETTERS} characters; got {len(value)}")
        values = re.split(r",", value) if options[name].many else [value]
        words += [f"{options[name].flags[0]}={one.strip()}" for one in values if one.strip()]
    return words


def evaluate_command(run: Viewed) -> list[str]:
    """The words of `fkgsec verify-run --recompute`, which writes nothing."""
    return ["verify-run", str(run.file.parent.absolute()), "--recompute"]


class Job:
    """A command of fkgsec that runs, or ran."""

    def __init__(self, words: Sequence[str], about: str) -> None:
        self.command, self.about = ["fkgsec", *words], about
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (read until the viewer ends)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *words],
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def state(self) -> str:
        """One line on how it goes."""
        status = self._process.poll()
        if status is None:
            return "Running. The page may be left; the command goes on until it is done or the viewer ends."
        if status == 0:
            return "Done. What it wrote is in the list of runs."
        return f"Ended with exit status {status}; what it said stands below."

    def output(self) -> str:
        """The end of what it printed so far."""
        size = self._said.seek(0, 2)
        self._said.seek(max(0, size - MOST_OUTPUT))
        return self._said.read().decode(errors="replace")

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._said.close()


class Busy(RunError):
    """A run is scored already, and one at a time is."""


class Jobs:
    """All of a viewer, by number from 1."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._lock = threading.Lock()

    def start(self, words: Sequence[str], about: str) -> int:
        """Start a command. Raises `Busy` while another runs."""
        with self._lock:
            if self._jobs and self._jobs[-1].running:
                raise Busy(f"another run is scored right now ({self._jobs[-1].about}); wait until that is done")
            self._jobs.append(Job(words, about))
            return len(self._jobs)

    def said(self, number: int) -> tuple[Job, str]:
        """A job, and what it printed. Raises `RunError`."""
        with self._lock:
            if not 1 <= number <= len(self._jobs):
                raise RunError(f"there is no job {number}")
            job = self._jobs[number - 1]
            return job, job.output()

    def close(self) -> None:
        """End what runs."""
        with self._lock:
            for job in self._jobs:
                job.stop()
