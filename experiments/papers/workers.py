"""Runs in processes of their own: several of one thread each at a time, and one that is killed takes no other along.

    for job, error in run_jobs(jobs, count=2, attack=False, observe=unobserved):
        print(job.name, error or read_record(job.folder / RECORD_FILE).valid)

A process takes one run after the other. One that ends before its run does is replaced, and that run has failed; given again, it
goes on from its checkpoint.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from experiments.cli.console import say
from experiments.cli.options import DATA_FIELDS
from experiments.cli.progress import Observe
from experiments.papers.document import Asked
from experiments.papers.forgetting import FORGOTTEN_FILE, make_forgotten
from experiments.runs.run import RECORD_FILE, execute
from experiments.tasks.spec import RunSpec
from fkgsec.errors import FkgsecError, RunError
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer
from protocols.core.errors import ProtocolError


class Job(NamedTuple):
    """A run to make, what it is called, and where its folder is.

    Attributes:
        command: what its record is to name as the command that makes it; empty: this process's.
        asked: of a cell of unlearning what is made of the run, whose folder is then `base`.
    """

    name: str
    spec: RunSpec
    folder: Path
    command: str = ""
    asked: Asked | None = None
    base: Path = Path()

    @property
    def record_file(self) -> Path:
        """The record that it leaves."""
        return self.folder / (FORGOTTEN_FILE if self.asked else RECORD_FILE)


def make(job: Job, graph: Any, *, observer: Observer, attack: bool, overwrite: bool = False, at_once: int = 1) -> None:
    """Make a run, or what is asked of it, in this process. Args: attack, overwrite, at_once: as for `execute`.

    A record that is cut off or empty is moved aside first, and made again from the run's checkpoint.
    """
    for path in (job.record_file, *((job.base / RECORD_FILE,) if job.asked else ())):
        move_aside(path)
    if job.asked:
        make_forgotten(job.spec, job.asked, job.folder, base=job.base, observer=observer, at_once=at_once)
        return
    execute(job.spec, graph, job.folder, attack=attack, observer=observer, overwrite=overwrite, at_once=at_once)


def move_aside(path: Path) -> None:
    """Rename a file that holds no whole JSON, which a machine that stopped leaves behind, and say so; any other stays."""
    if not path.is_file():
        return
    try:
        msgspec.json.decode(path.read_bytes(), type=msgspec.Raw)
    except msgspec.DecodeError:
        names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in itertools.count())
        aside = next(name for name in names if not name.exists())
        path.rename(aside)
        say(f"warning: {path}: is cut off or empty; moved to {aside.name}, and made again")


class _Failed(NamedTuple):
    """What went wrong in a process: the message, and the traceback where nobody expected it."""

    message: str
    trace: str


def data_of(spec: RunSpec) -> tuple[Any, ...]:
    """What tells the data of one run from those of another."""
    return tuple(getattr(spec, name, None) for name in DATA_FIELDS)


def run_jobs(
    jobs: Sequence[Job], *, count: int, attack: bool, observe: Observe, overwrite: bool = False, at_once: int = 1
) -> Iterator[tuple[Job, Exception | None]]:
    """Make all runs, `count` at a time, in their order; yields each when it ends, with the error where it failed.

    Args:
        attack, overwrite, at_once: as for `execute`. observe: gives each run its observer, in this process.
    """
    left, workers = list(jobs), list[Worker]()
    try:
        while left or workers:
            while left and len(workers) < count:
                workers.append(Worker(attack=attack, overwrite=overwrite, at_once=at_once))
                workers[-1].begin(left.pop(0), observe)
            for worker in [one for one in workers if one.connection in wait([one.connection for one in workers])]:
                ended = worker.read()
                if ended is None:
                    continue
                job, error, alive = ended
                if alive and left:
                    worker.begin(left.pop(0), observe)
                else:
                    worker.close()
                    workers.remove(worker)
                yield job, error
    finally:
        for worker in workers:
            worker.close(kill=True)


def run_beside(
    jobs: Sequence[Job], *, count: int, attack: bool, observe: Observe, overwrite: bool = False, at_once: int = 1
) -> Iterator[tuple[Job, Exception | None]]:
    """As `run_jobs`; of jobs that share a base run, that is made first, once, and they beside each other then."""
    how: dict[str, Any] = {"count": count, "observe": observe, "overwrite": overwrite, "at_once": at_once}
    bases = {
        job.base: Job(f"{job.name}, the run before", job.spec, job.base)
        for job in jobs
        if job.asked and job.asked.role != "retrained" and not (job.base / RECORD_FILE).exists()
    }
    lost = {job.folder: error for job, error in run_jobs(list(bases.values()), attack=False, **how) if error}
    yield from ((job, lost[job.base]) for job in jobs if job.base in lost)
    yield from run_jobs([job for job in jobs if job.base not in lost], attack=attack, **how)


class Worker:
    """A process and the run that it is at."""

    def __init__(self, threads: int = 1, **how: Any) -> None:
        """`how`: arguments of `make`."""
        context = multiprocessing.get_context("spawn")  # a fork would take over torch's and numba's threads half made
        self.connection, theirs = context.Pipe()
        arguments = (theirs, threads, how)
        self._process: BaseProcess = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._job: Job | None = None
        self._observed: AbstractContextManager[Observer] | None = None
        self._observer = Observer()

    def begin(self, job: Job, observe: Observe) -> None:
        """Hand it a run."""
        self._job, self._observed = job, observe(job.spec, job.name)
        self._observer = self._observed.__enter__()
        self.connection.send(job)

    def read(self) -> tuple[Job, Exception | None, bool] | None:
        """Take one message; where the run has ended by it, the run, its error, and whether the process can take another."""
        assert self._job is not None
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            self._end()
            status = self._process.exitcode
            return self._job, RunError(f"its process ended with status {status}; given again, the run goes on"), False
        if isinstance(message, RoundEntry):
            self._observer.round_done(message)
            return None
        self._end()
        return self._job, _as_error(message), True

    def _end(self) -> None:
        if self._observed is not None:
            self._observed.__exit__(None, None, None)
            self._observed = None

    def close(self, *, kill: bool = False) -> None:
        """Let the process end, or end it."""
        self._end()
        if kill:
            self._process.kill()
        self.connection.close()
        self._process.join()


def _as_error(failed: _Failed | None) -> Exception | None:
    if failed is None:
        return None
    if not failed.trace:
        return RunError(failed.message)
    error = RuntimeError(failed.message)
    error.add_note(failed.trace)
    return error


class _Sender(Observer):
    """Tells the parent of each round."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def round_done(self, entry: RoundEntry) -> None:
        self._connection.send(entry)


def _end_with_parent() -> None:
    """End this process when its parent does, in the middle of a round, so that nobody else finds the folder in use."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(connection: Connection, threads: int, how: dict[str, Any]) -> None:
    """What a process does: run after run, until the connection is closed."""
    import numba
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    numba.set_num_threads(threads)
    graphs: dict[tuple[Any, ...], Any] = {}
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        if job.command:  # which records take from here
            sys.argv = shlex.split(job.command)
        try:
            data = data_of(job.spec)
            if data not in graphs:
                graphs = {data: job.spec.load_graph()}
            make(job, graphs[data], observer=_Sender(connection), **how)
        except (FkgsecError, ProtocolError) as error:
            connection.send(_Failed(str(error), ""))
        except Exception as error:
            connection.send(_Failed(f"{type(error).__name__}: {error}", traceback.format_exc()))
        else:
            connection.send(None)
