"""Plans of a table (`--dry-run`) and of all tables (`fkgsec experiment run --all`): runs, their order, time and memory.

    print_plan(console, experiment, cells, seeds, results, costs, out=Path("runs/table"))
    run_everything(Path("runs/all"), hours=8, threads=1, nice=True, dry_run=False, only="", num_seeds=1, reuse=[], ...)

A plan trains nothing and writes only timings. Seconds (`fkgsec.experiments.papers.estimates`) and memory
(`fkgsec.experiments.tasks.memory`) are estimates, not bounds.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.console import make_console, say
from fkgsec.experiments.cli.progress import observe_on
from fkgsec.experiments.papers.estimates import ESTIMATOR, Costs, Entry, entries_of, papers_rounds
from fkgsec.experiments.papers.judging.claims import Judged, comparisons, judge_claims, read_claims
from fkgsec.experiments.papers.judging.scoreboard import make_scoreboard, read_experiments, total_line
from fkgsec.experiments.papers.power import MOST_SEEDS, need_of, order_by_claims, power_sheet
from fkgsec.experiments.papers.queue import data_of, table_jobs, wanted_runs
from fkgsec.experiments.papers.results import Made, Results, read_records
from fkgsec.experiments.papers.spec import Cell, Experiment
from fkgsec.experiments.papers.table import settings_sheet
from fkgsec.experiments.papers.workers import CutOff, run_jobs
from fkgsec.experiments.reporting.sheets import NONE, Column, Sheet, print_sheets
from fkgsec.experiments.runs.writing import locked
from fkgsec.experiments.tasks.memory import GIB, available, needed
from fkgsec.experiments.tasks.trainings import lasting

COMMITTED = Path(__file__).resolve().parents[2] / "results"
HOUR_S = 3600.0
_MOST_ROWS = 40
_LOWEST = 19


def print_plan(
    console: Console, experiment: Experiment, cells: Sequence[Cell], seeds: Sequence[int], results: Results, costs: Costs, *,
    out: Path, jobs: int = 1,
) -> None:  # fmt: skip
    """Print settings, runs, seconds and memory of a table.

    Args:
        console: the console to print on.
        experiment: the table.
        cells: cells to run.
        seeds: seeds to run.
        results: the finished runs.
        costs: estimates of runs.
        out: see `run_experiment`.
        jobs: number of runs at a time.
    """
    # Measure all missing timings first, with progress, before the table is printed.
    costs.timings.take(spec for cell in cells for spec in cell.candidates)
    plan = plan_of(cells, seeds, results, costs, out=out)
    console.print("Dry run: nothing is trained.", highlight=False)
    places = {"all cells", "all cells, unlearning", "all cells, above all"}
    for cell in cells:
        places |= {cell.row, f"{cell.row}, unlearning", cell.column, cell.name, cell.trained}
    settings = settings_sheet(stated for stated in experiment.settings if stated.where in places)
    print_sheets(console, [settings, runs_sheet(plan)])
    for line in plan_lines(plan, cells, jobs):
        console.print(line, highlight=False, soft_wrap=True)


def plan_of(cells: Sequence[Cell], seeds: Sequence[int], results: Results, costs: Costs, *, out: Path) -> list[Entry]:
    """Return every run of these cells once, in order. Data are loaded to estimate memory, one set at a time.

    Args:
        cells: cells to run.
        seeds: seeds to run.
        results: the finished runs.
        costs: estimates of runs.
        out: folder of the runs.
    """
    # Plan all runs, also finished ones, and mark those that are left.
    left = {job.record_file for job in table_jobs(cells, seeds, results, out)}
    plan, graphs = list[Entry](), dict[tuple[Any, ...], Any]()
    for entry in entries_of(table_jobs(cells, seeds, Results(), out), costs):
        if entry.job.record_file not in left:
            entry = entry._replace(state="finished")
        elif entry.state != "cannot be made":
            if (data := data_of(entry.job.spec)) not in graphs:
                graphs = {data: entry.job.spec.load_graph()}
            entry = entry._replace(num_bytes=sum(needed(entry.job.spec, graphs[data]).values()))
        plan.append(entry)
    return plan


def runs_sheet(plan: Sequence[Entry], title: str = "Runs") -> Sheet:
    """Return a row for each run, with the number of cells that it serves and the time until its end.

    Args:
        plan: runs in their order.
        title: printed above.
    """
    rows = []
    for entry, end_s in zip(plan, itertools.accumulate(entry.left_s for entry in plan), strict=True):
        first, *others = entry.job.cells
        name, says = f"{first} and {len(others)} more" if others else entry.job.name, entry.error
        # A finished run has no expected time.
        figures: tuple[str, ...] = (NONE, NONE, NONE, NONE)
        if entry.state in ("begun", "to make"):
            # A started run shows how far it is.
            rounds = f"{entry.rounds_done} of " * bool(entry.rounds_done) + str(entry.estimate.rounds)
            size = f"{entry.num_bytes / GIB:.2f}" if entry.num_bytes else NONE
            figures, says = (rounds, lasting(entry.left_s), lasting(end_s), size), entry.estimate.says
        rows.append((name, str(1 + len(others)), *figures, entry.state, says))
    heads = ("run", "cells", "rounds", "expected", "in all", "GiB", "state", "by")
    return Sheet(title, tuple(map(Column, heads)), tuple(rows))


def plan_lines(plan: Sequence[Entry], cells: Sequence[Cell], jobs: int) -> list[str]:
    """Return the totals, and the reasons for cells without runs.

    Args:
        plan: runs in their order.
        cells: cells to run.
        jobs: number of runs at a time.
    """
    counts = Counter(entry.state for entry in plan)
    order = ("finished", "begun", "to make", "cannot be made")
    states = ", ".join(f"{counts[state]} {state}" for state in order if counts[state])
    most, free = jobs * max((entry.num_bytes for entry in plan), default=0.0), available()
    seconds = sum(entry.left_s for entry in plan)
    return [
        f"Cells: {len(cells)}. Runs: {states or 'none'}. About {lasting(seconds)} of one thread in all, {most / GIB:.2f} GiB at "
        f"once; {free.says} leaves {free.num_bytes / GIB:.1f} GiB.",
        ESTIMATOR,
        *dict.fromkeys(f"Not at hand: {cell.missing}" for cell in cells if cell.missing),
    ]


def run_everything(
    out: Path, *, hours: float | None, threads: int, nice: bool, dry_run: bool, only: str, num_seeds: int,
    reuse: Sequence[Path], force: bool, quiet: bool,
) -> int:  # fmt: skip
    """Run, or with `dry_run` show, the missing runs of all tables until the time is up.

    The next start resumes an interrupted run from its checkpoint.

    Args:
        out: folder of the runs.
        hours: time to stop after.
        threads: threads of each run.
        nice: run at the lowest priority.
        dry_run: only show the plan.
        only: words of `TABLE-FILE CELL`, as for `select_cells`.
        num_seeds: seeds of each cell.
        reuse: further folders with finished runs.
        force: skip the check that runs fit into memory.
        quiet: print no progress.

    Returns:
        The number of failures.

    Raises:
        SpecError: options do not fit.
        RunError: another process uses the folder, or it cannot be written.
    """
    if hours is None and not dry_run:
        raise SpecError("hours: --all needs --hours, the time to stop after, or --dry-run")
    if threads > (os.cpu_count() or 1):
        raise SpecError(f"threads must be at most the machine's {os.cpu_count()}; got {threads}")
    # The clock of the machine may be changed during the night; this one is not.
    until = time.monotonic() + (hours or 0.0) * HOUR_S
    if nice:
        os.nice(_LOWEST)
    # Folders that the user names must exist, the others need not.
    places = [place for place in (COMMITTED, out, *reuse) if place in reuse or place.exists()]
    if not dry_run:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{out}: cannot be made ({error.strerror})") from error
    # Two processes must not train the same runs.
    with contextlib.nullcontext() if dry_run else locked(out):
        plan = _plan_everything(out, places, only, num_seeds, quiet=quiet)
        if not quiet:
            _print_everything(plan, hours)
        if dry_run:
            return 0
        failures, observe = 0, observe_on(make_console(stderr=True), enabled=not quiet)
        jobs = [entry.job for entry in plan if entry.state != "cannot be made"]
        at_once = 0 if force else 1
        for job, error in run_jobs(jobs, count=1, observe=observe, at_once=at_once, threads=threads, until=until):
            if isinstance(error, CutOff):
                if not quiet:
                    say(f"{error}; the next start resumes the interrupted run")
                break
            if error is not None:
                failures += 1
                say(f"fkgsec: {job.name}: {' '.join(str(error).split())}")
    if not quiet:
        board = make_scoreboard(read_experiments(), read_records([*places, out])[0])
        line = f"{total_line(board)}; `fkgsec experiment status {out}`"
        make_console().print(line, highlight=False, soft_wrap=True)
    return failures


def _plan_everything(out: Path, places: Sequence[Path], only: str, num_seeds: int, *, quiet: bool) -> list[Entry]:
    """Return the missing runs in the order in which they decide claims, then cells."""
    records, unreadable = read_records(places)
    for line in unreadable if not quiet else ():
        say(f"warning: {line}")
    experiments = read_experiments()
    wanted = wanted_runs(experiments, Results(records), out, num_seeds=num_seeds, only=only)
    costs = Costs(records, papers_rounds(experiments))
    costs.timings.take((job.spec for job in wanted), quiet=quiet)
    judged = judge_claims(read_claims(), experiments, records)
    return order_by_claims(judged, experiments, entries_of(wanted, costs), costs, num_seeds)


def plan_claims(judged: Sequence[Judged], records: Sequence[Made]) -> Sheet:
    """Return the runs and CPU hours that would decide each claim if the paper's own figures were true.

    Args:
        judged: the claims.
        records: the finished runs.
    """
    experiments, results = read_experiments(), Results(records)
    cells = {
        cell for claim in judged for part in comparisons(claim.claim, experiments) if part.full for cell in part.cells
    }
    costs, entries = Costs(records, papers_rounds(experiments)), dict[int, list[Entry]]()
    # More seeds narrow the interval but cost more runs; try each number.
    for seeds in range(MOST_SEEDS, 0, -1):
        jobs = wanted_runs(experiments, results, Path("runs/all"), num_seeds=seeds)
        jobs = [job for job in jobs if cells.intersection(job.cells)]
        # This number includes all settings.
        if seeds == MOST_SEEDS:
            costs.timings.take(job.spec for job in jobs)
        entries[seeds] = entries_of(jobs, costs)
    needs = []
    for claim in judged:
        by_seeds = [need_of(claim, experiments, entries[seeds], costs, seeds) for seeds in sorted(entries)]
        # The cheapest number of seeds that decides the claim, if any does.
        needs.append(min(by_seeds, key=lambda need: (need.outcome == "open", need.seconds)))
    return power_sheet(needs)


def _print_everything(plan: Sequence[Entry], hours: float | None) -> None:
    console, possible = make_console(), [entry for entry in plan if entry.state != "cannot be made"]
    title = (
        "Runs that cells are missing: those that decide claims in the fewest hours first, then the most cells per hour"
    )
    print_sheets(console, [runs_sheet(possible[:_MOST_ROWS], title)])
    if len(possible) > _MOST_ROWS:
        console.print(f"... and {len(possible) - _MOST_ROWS} more")
    ends, cells = (
        list(itertools.accumulate(entry.left_s for entry in possible)),
        {cell for entry in possible for cell in entry.job.cells},
    )
    line = f"{len(possible)} runs, {len(cells)} cells, about {lasting(ends[-1] if ends else 0.0)} of one thread in all"
    if hours is not None:
        fitting = sum(end <= hours * HOUR_S for end in ends)
        line += f"; {fitting} runs are expected to end within {lasting(hours * HOUR_S)}"
    console.print(line, highlight=False, soft_wrap=True)
    for error, number in Counter(entry.error for entry in plan if entry.error).items():
        console.print(f"{number} runs cannot be made: {error}", highlight=False, soft_wrap=True)
    console.print(ESTIMATOR, highlight=False, soft_wrap=True)
