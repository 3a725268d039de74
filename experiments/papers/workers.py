"""Runs in processes of their own: several of one thread each at a time, and one that is killed takes no other along.

    for job, error in run_jobs(jobs, count=2, observe=unobserved):
        print(job.name, error or read_record(job.folder / RECORD_FILE).valid)

A run whose process ends early has failed. Given again, it goes on from its checkpoint.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fkgsec.errors import FkgsecError, RunError
from fkgsec.experiments.cli.console import say
from fkgsec.experiments.cli.options import DATA_FIELDS
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.papers.document import Asked
from fkgsec.experiments.papers.forgetting import FORGOTTEN_FILE, make_forgotten
from fkgsec.experiments.runs.run import RECORD_FILE, execute
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer
from fkgsec.protocols.core.errors import ProtocolError

_POLL_S = 0.2


class Job(NamedTuple):
    """A run to make, what it is called, and where its folder is.

    Attributes:
        attack: whether the run is attacked.
        command: what its record is to name as the command that makes it; empty: this process's.
        asked: of a cell of unlearning what is made of the run, whose folder is then `base`.
    """

    name: str
    spec: RunSpec
    folder: Path
    attack: bool = False
    command: str = ""
    asked: Asked | None = None
    base: Path = Path()

    @property
    def record_file(self) -> Path:
        """The record that it leaves."""
        return self.folder / (FORGOTTEN_FILE if self.asked else RECORD_FILE)


class CutOff(RunError):
    """Time was up before a run ended."""


def make(job: Job, graph: Any, *, observer: Observer, overwrite: bool = False, at_once: int = 1) -> None:
    """Make a run, or what is asked of it, in this process. Args: overwrite, at_once: as for `execute`.

    A record that is cut off or empty is moved aside first, and made again from the run's checkpoint.
    """
    for path in (job.record_file, *((job.base / RECORD_FILE,) if job.asked else ())):
        move_aside(path)
    if job.asked:
        make_forgotten(job.spec, job.asked, job.folder, base=job.base, observer=observer, at_once=at_once)
        return
    execute(job.spec, graph, job.folder, attack=job.attack, observer=observer, overwrite=overwrite, at_once=at_once)


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


def data_of(spec: RunSpec) -> tuple[Any, ...]:
    """What tells the data of one run from those of another."""
    return tuple(getattr(spec, name, None) for name in DATA_FIELDS)


def run_jobs(
    jobs: Sequence[Job],
    *,
    count: int,
    observe: Observe,
    overwrite: bool = False,
    at_once: int = 1,
    threads: int = 1,
    until: float = math.inf,
) -> Iterator[tuple[Job, Exception | None]]:
    """Make all runs, `count` at a time, in their order; yields each when it ends, with the error where it failed.

    Args:
        observe: gives each run its observer, in this process. overwrite, at_once: as for `execute`.
        threads: of each process. until: when to end, by `time.monotonic`; runs that are not finished then are `CutOff`.
    """
    stop = threading.Event()

    def run(job: Job) -> None:
        _run_beside(job, observe, threads, lambda: stop.is_set() or time.monotonic() >= until, overwrite, at_once)

    pool = ThreadPoolExecutor(count)
    try:
        futures = {pool.submit(run, job): job for job in jobs}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield futures[future], error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _run_beside(
    job: Job, observe: Observe, threads: int, is_over: Callable[[], bool], overwrite: bool, at_once: int
) -> None:
    """Make a run in a process of its own, which is killed where time is up. Raises what ended it."""
    if is_over():
        raise CutOff(f"{job.name}: time is up")
    context = multiprocessing.get_context("spawn")  # a fork would take over torch's and numba's threads half made
    ours, theirs = context.Pipe(duplex=False)
    how = {"overwrite": overwrite, "at_once": at_once}
    process = context.Process(target=_work, args=(job, theirs, threads, how), daemon=True)
    process.start()
    theirs.close()
    try:
        with observe(job.spec, job.name) as observer:
            while True:
                if is_over():
                    raise CutOff(f"{job.name}: time is up")
                if not ours.poll(_POLL_S):
                    continue
                message = ours.recv()
                if not isinstance(message, RoundEntry):
                    break
                observer.round_done(message)
    except (EOFError, ConnectionResetError):
        process.join()
        status = process.exitcode
        raise RunError(f"its process ended with status {status}; given again, the run goes on") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if message is not None:
        text, trace = message
        if not trace:
            raise RunError(text)
        error = RuntimeError(text)
        error.add_note(trace)
        raise error


def run_with_bases(
    jobs: Sequence[Job], *, count: int, observe: Observe, overwrite: bool = False, at_once: int = 1
) -> Iterator[tuple[Job, Exception | None]]:
    """As `run_jobs`; of jobs that share a base run, that is made first, once, and they beside each other then."""
    how: dict[str, Any] = {"count": count, "observe": observe, "overwrite": overwrite, "at_once": at_once}
    bases = {
        job.base: Job(f"{job.name}, the run before", job.spec, job.base)
        for job in jobs
        if job.asked and job.asked.role != "retrained" and not (job.base / RECORD_FILE).exists()
    }
    lost = {job.folder: error for job, error in run_jobs(list(bases.values()), **how) if error}
    yield from ((job, lost[job.base]) for job in jobs if job.base in lost)
    yield from run_jobs([job for job in jobs if job.base not in lost], **how)


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


def _work(job: Job, connection: Connection, threads: int, how: dict[str, Any]) -> None:
    """Make the run; send each round, and at last None, or an error's message with the traceback of an unexpected error."""
    import numba
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    numba.set_num_threads(threads)
    if job.command:  # which records take from here
        sys.argv = shlex.split(job.command)
    try:
        make(job, job.spec.load_graph(), observer=_Sender(connection), **how)
    except (FkgsecError, ProtocolError) as error:
        connection.send((str(error), ""))
    except Exception as error:
        connection.send((f"{type(error).__name__}: {error}", traceback.format_exc()))
    else:
        connection.send(None)
