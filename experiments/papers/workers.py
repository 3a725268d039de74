"""Runs in separate processes: several at a time, each with one thread. A killed run does not affect the others.

    for job, error in run_jobs(jobs, count=2, observe=unobserved):
        print(job.name, error or read_record(job.record_file).valid)

A run whose process ends early has failed. When the same job starts again, it resumes from its checkpoint.
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
from typing import Any

import msgspec

from fkgsec.errors import FkgsecError, RunError
from fkgsec.experiments.cli.console import say
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.papers.forgetting import make_forgotten
from fkgsec.experiments.papers.queue import Job, data_of
from fkgsec.experiments.runs.run import RECORD_FILE, execute
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer
from fkgsec.protocols.core.errors import ProtocolError

_POLL_S = 0.2


class CutOff(RunError):
    """The time was up before a run ended."""


def make(job: Job, graph: Any, *, observer: Observer, overwrite: bool = False, at_once: int = 1) -> None:
    """Make a run in this process.

    An incomplete or empty record is moved aside first, and written again from the run's checkpoint.

    Args:
        job: the run.
        graph: its data.
        observer: progress of the run.
        overwrite: as for `execute`.
        at_once: as for `execute`.
    """
    for path in (job.record_file, *((job.base / RECORD_FILE,) if job.base else ())):
        move_aside(path)
    if job.asked:
        make_forgotten(job.spec, job.asked, job.folder, base=job.base, observer=observer, at_once=at_once)
        return
    execute(job.spec, graph, job.folder, attack=job.attack, observer=observer, overwrite=overwrite, at_once=at_once)


def move_aside(path: Path) -> None:
    """Rename a file without complete JSON, which a stopped machine leaves behind, with a warning. Other files stay.

    Args:
        path: a JSON file, which may not exist.
    """
    if not path.is_file():
        return
    try:
        msgspec.json.decode(path.read_bytes(), type=msgspec.Raw)
    except msgspec.DecodeError:
        names = (path.with_name(f"{path.name}.damaged{number or ''}") for number in itertools.count())
        aside = next(name for name in names if not name.exists())
        path.rename(aside)
        say(f"warning: {path}: is incomplete or empty; moved to {aside.name}, and written again")


def run_here(
    jobs: Sequence[Job], *, observe: Observe, overwrite: bool, at_once: int
) -> Iterator[tuple[Job, Exception | None]]:
    """Make all runs in this process.

    Args:
        jobs: runs in their order.
        observe: gives each run its observer.
        overwrite: as for `execute`.
        at_once: as for `execute`.

    Yields:
        Each run, with the error if it failed.
    """
    graphs: dict[tuple[Any, ...], Any] = {}
    for job in jobs:
        error, data = None, data_of(job.spec)
        try:
            if data not in graphs:
                # Keep one data set; successive cells mostly share it.
                graphs = {data: job.spec.load_graph()}
            with observe(job.spec, job.name) as observer:
                make(job, graphs[data], observer=observer, overwrite=overwrite, at_once=at_once)
        except Exception as caught:  # even an unexpected error must not stop a week of runs
            error = caught
        yield job, error


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
    """Make all runs in processes, in their order.

    Args:
        jobs: runs in their order.
        count: runs at a time.
        observe: gives each run its observer, in this process.
        overwrite: as for `execute`.
        at_once: as for `execute`.
        threads: threads of each process.
        until: time to stop, by `time.monotonic`; unfinished runs are then `CutOff`.

    Yields:
        Each run at its end, with the error if it failed.
    """
    stop = threading.Event()

    def _run(job: Job) -> None:
        options = {"overwrite": overwrite, "at_once": at_once}
        _run_beside(job, observe, threads, lambda: stop.is_set() or time.monotonic() >= until, options)

    pool = ThreadPoolExecutor(count)
    try:
        futures = {pool.submit(_run, job): job for job in jobs}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield futures[future], error
    finally:
        # Also after an interrupt: the children end within a poll.
        stop.set()
        pool.shutdown(cancel_futures=True)


def _run_beside(job: Job, observe: Observe, threads: int, is_over: Callable[[], bool], options: dict[str, Any]) -> None:
    """Make a run in a process, which is killed when the time is up. Raises the error that ended it."""
    if is_over():
        raise CutOff(f"{job.name}: time is up")
    # A fork would copy torch's and numba's thread pools without threads.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    # daemon: the process must not outlive this one.
    process = context.Process(target=_work, args=(job, theirs, threads, options), daemon=True)
    process.start()
    theirs.close()
    try:
        with observe(job.spec, job.name) as observer:
            while True:
                if is_over():
                    raise CutOff(f"{job.name}: time is up")
                # Poll, to notice in time that the time is up.
                if ours.poll(_POLL_S):
                    message = ours.recv()
                    if not isinstance(message, RoundEntry):
                        break
                    observer.round_done(message)
    except (EOFError, ConnectionResetError):
        process.join()
        raise RunError(
            f"its process ended with status {process.exitcode}; repeat the command to resume the run"
        ) from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if message is not None:
        raise message


def run_with_bases(
    jobs: Sequence[Job], *, count: int, observe: Observe, overwrite: bool = False, at_once: int = 1
) -> Iterator[tuple[Job, Exception | None]]:
    """Make all runs as `run_jobs` does; base runs that jobs share are made first, once.

    Args:
        jobs: runs in their order.
        count: runs at a time.
        observe: gives each run its observer.
        overwrite: as for `execute`.
        at_once: as for `execute`.

    Yields:
        Each run at its end, with the error if it failed.
    """
    options: dict[str, Any] = {"count": count, "observe": observe, "overwrite": overwrite, "at_once": at_once}
    bases = {
        job.base: Job(f"{job.name}, the run before", job.spec, job.base)
        for job in jobs
        if job.base and not (job.base / RECORD_FILE).exists()
    }
    # A failed base run fails all cells that need it.
    lost = {job.folder: error for job, error in run_jobs(list(bases.values()), **options) if error}
    yield from ((job, lost[job.base]) for job in jobs if job.base in lost)
    yield from run_jobs([job for job in jobs if job.base not in lost], **options)


class _Sender(Observer):
    """Observer that sends each round to the parent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def round_done(self, entry: RoundEntry) -> None:
        """Send the round."""
        self._connection.send(entry)


def _end_with_parent() -> None:
    """End this process when its parent ends, even during a round, so that others can use the folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(job: Job, connection: Connection, threads: int, options: dict[str, Any]) -> None:
    """Make the run; send each round, and at the end None or the error, with the traceback of an unexpected one."""
    import numba
    import torch

    # The parent handles interrupts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # `daemon` alone does not help if the parent is killed.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    numba.set_num_threads(threads)
    # Records read the command from here.
    if job.command:
        sys.argv = shlex.split(job.command)
    failure: Exception | None = None
    try:
        make(job, job.spec.load_graph(), observer=_Sender(connection), **options)
    except (FkgsecError, ProtocolError) as error:
        failure = RunError(str(error))
    except Exception as error:
        failure = RuntimeError(f"{type(error).__name__}: {error}")
        # A traceback does not survive pickling; a note does.
        failure.add_note(traceback.format_exc())
    connection.send(failure)
