"""`fkgsec experiment run --all`: the queue of all missing cells, as a plan, and worked off until time is up.

fkgsec experiment run --all --hours 8 --nice --dry-run
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.cli.console import make_console, print_tables, say
from experiments.cli.progress import observe_on
from experiments.papers.estimates import ESTIMATOR, Costs
from experiments.papers.judging.scoreboard import all_records, make_scoreboard, read_experiments, total_line
from experiments.papers.queue import QUEUE_FILE, Entry, Queue, held, papers_rounds, read_queue, wanted_runs
from experiments.papers.runner import Results
from experiments.papers.spec import Experiment
from experiments.papers.table import Made
from experiments.reporting.sheets import Column, Sheet, terminal_table
from experiments.runs.record import Record
from experiments.tasks.trainings import lasting
from fkgsec.errors import SpecError

COMMITTED = Path(__file__).parents[1] / "results"
HOUR_S = 3600.0
_MOST_ROWS = 40
_LOWEST = 19


def run_everything(
    out: Path, *, hours: float | None, threads: int, nice: bool, dry_run: bool, only: str, num_seeds: int,
    reuse: Sequence[Path], force: bool, quiet: bool,
) -> int:  # fmt: skip
    """Work off, or with `dry_run` show, what all tables are missing; returns how many runs failed.

    Raises:
        SpecError: an option that does not fit. RunError: the folder is another process's, or cannot be written.
    """
    if hours is None and not dry_run:
        raise SpecError("hours: --all needs --hours, after which it ends, or --dry-run")
    if threads > (os.cpu_count() or 1):
        raise SpecError(f"threads must be at most the machine's {os.cpu_count()}; got {threads}")
    until = time.monotonic() + (hours or 0.0) * HOUR_S
    if nice:
        os.nice(_LOWEST)
    with contextlib.nullcontext() if dry_run else held(out):
        queue = _queue(out, only, num_seeds, reuse, quiet=quiet)
        if not quiet:
            _print_plan(queue, queue.plan(), hours)
        if dry_run:
            return 0
        failed = _work(queue, until, threads, force=force, quiet=quiet)
    if not quiet:
        _print_outcome(queue, out, reuse)
    return failed


def _work(queue: Queue, until: float, threads: int, *, force: bool, quiet: bool) -> int:
    """Run until time is up, and say what failed or is cut off; returns how many failed."""
    failed = 0
    observe = observe_on(make_console(stderr=True), enabled=not quiet)
    for entry in queue.work(until=until, observe=observe, threads=threads, force=force):
        if entry.state == "failed":
            failed += 1
            say(f"fkgsec: {entry.cells[0]}: {entry.error}")
        elif entry.state == "begun" and not quiet:
            say(f"time is up; {entry.cells[0]} is kept at round {entry.rounds_done}, and goes on with the next start")
    return failed


def _queue(out: Path, only: str, num_seeds: int, reuse: Sequence[Path], *, quiet: bool) -> Queue:
    places = [place for place in (COMMITTED, out, *reuse) if place in reuse or place.exists()]
    records, unreadable = all_records(places)
    for line in unreadable if not quiet else ():
        say(f"warning: {line}")
    results = {attack: Results(attack=attack) for attack in (False, True)}
    for record in records:
        for found in results.values():
            found.add(record)
    experiments = read_experiments()
    wanted = wanted_runs(experiments, results, num_seeds=num_seeds, only=only)
    sizes = read_queue(out).sizes
    return Queue(out, wanted, _costs(records, experiments, sizes), sizes)


def costs_of(places: Sequence[Path], experiments: Sequence[Experiment]) -> Costs:
    """Estimates by all records at these places, so far as they are there."""
    return _costs(all_records([place for place in places if place.exists()])[0], experiments, {})


def _costs(records: Sequence[Made], experiments: Sequence[Experiment], sizes: dict[str, int]) -> Costs:
    runs = [one for one in records if isinstance(one, Record)]
    return Costs(runs, papers_rounds=papers_rounds(experiments), sizes=sizes)


def plan_sheet(plan: Sequence[Entry]) -> Sheet:
    """The runs in their order: which cells each serves, what it is expected to take, and by what."""
    heads = ("", "run", "cells", "rounds", "expected", "in all", "by")
    rows, whole = [], 0.0
    for number, entry in enumerate(plan, 1):
        whole += entry.left_s
        cells = entry.cells[0] + (f" and {len(entry.cells) - 1} more" if len(entry.cells) > 1 else "")
        done = f"{entry.rounds_done} of {entry.rounds}" if entry.rounds_done else str(entry.rounds)
        rows.append(
            (str(number), cells, str(len(entry.cells)), done, lasting(entry.left_s), lasting(whole), entry.says)
        )
    return Sheet("Runs that cells are missing, the cheapest first", tuple(map(Column, heads)), tuple(rows))


def _print_plan(queue: Queue, plan: Sequence[Entry], hours: float | None) -> None:
    console = make_console()
    print_tables(console, [terminal_table(plan_sheet(plan[:_MOST_ROWS]))])
    if len(plan) > _MOST_ROWS:
        console.print(f"... and {len(plan) - _MOST_ROWS} more")
    whole = sum(entry.left_s for entry in plan)
    cells = len({cell for entry in plan for cell in entry.cells})
    line = f"{len(plan)} runs, {cells} cells, about {lasting(whole)} of one thread in all"
    if hours is not None:
        line += f"; {_fitting(plan, hours * HOUR_S)} runs are expected to end within {lasting(hours * HOUR_S)}"
    console.print(line, highlight=False, soft_wrap=True)
    for error, number in Counter(entry.error for entry in queue.impossible()).items():
        console.print(f"{number} runs cannot be made: {error}", highlight=False, soft_wrap=True)
    console.print(ESTIMATOR, highlight=False, soft_wrap=True)


def _fitting(plan: Sequence[Entry], seconds: float) -> int:
    number = 0
    for entry in plan:
        seconds -= entry.left_s
        if seconds < 0:
            break
        number += 1
    return number


def _print_outcome(queue: Queue, out: Path, reuse: Sequence[Path]) -> None:
    console = make_console()
    states = Counter(entry.state for entry in queue.entries.values())
    said = ", ".join(f"{number} {state}" for state, number in states.items())
    console.print(f"{out / QUEUE_FILE}: {said}", highlight=False, soft_wrap=True)
    places = [place for place in (COMMITTED, out, *reuse) if place.exists()]
    board = make_scoreboard(read_experiments(), all_records(places)[0])
    console.print(f"{total_line(board)}; `fkgsec experiment status {out}`", highlight=False, soft_wrap=True)
