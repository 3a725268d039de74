"""`--dry-run` of a table and `fkgsec experiment run --all`: what would run, in which order, how long and in how much memory.

    print_plan(console, experiment, cells, seeds, results, costs, out=Path("runs/table"))
    run_everything(Path("runs/all"), hours=8, threads=1, nice=True, dry_run=False, only="", num_seeds=1, reuse=[], ...)

Nothing is trained or written by a plan but timings. Seconds (`fkgsec.experiments.papers.estimates`) and memory
(`fkgsec.experiments.tasks.memory`) are no bounds.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from fkgsec.errors import FkgsecError, RunError, SpecError
from fkgsec.experiments.cli.console import make_console, print_tables, say
from fkgsec.experiments.cli.progress import observe_on
from fkgsec.experiments.papers.estimates import ESTIMATOR, Costs
from fkgsec.experiments.papers.judging.claims import Judged, judge_claims, printed_pairs, read_claims
from fkgsec.experiments.papers.judging.scoreboard import all_records, make_scoreboard, read_experiments, total_line
from fkgsec.experiments.papers.power import MOST_SEEDS, cheapest_needs, order_by_claims, power_sheet
from fkgsec.experiments.papers.queue import Entry, State, Wanted, entries_of, entry_of, papers_rounds, wanted_runs
from fkgsec.experiments.papers.runner import Results, run_name, unfinished
from fkgsec.experiments.papers.spec import Cell, Experiment
from fkgsec.experiments.papers.table import Made, settings_sheet
from fkgsec.experiments.papers.workers import CutOff, Job, data_of, run_jobs
from fkgsec.experiments.reporting.sheets import NONE, Column, Sheet, terminal_table
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.writing import locked
from fkgsec.experiments.tasks.memory import GIB, available, needed
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.trainings import lasting

COMMITTED = Path(__file__).resolve().parents[2] / "results"
HOUR_S = 3600.0
_MOST_ROWS = 40
_LOWEST = 19


def costs_of(records: Iterable[Made], experiments: Sequence[Experiment]) -> Costs:
    """Estimates by these records and this machine's timings."""
    runs = [one for one in records if isinstance(one, Record)]
    return Costs(runs, papers_rounds=papers_rounds(experiments))


def take_timings(costs: Costs, specs: Iterable[RunSpec], *, quiet: bool = False) -> None:
    """Make the timings that these runs need and that are not there yet, and say so."""
    missing = costs.timings.missing(specs)
    if missing and not quiet:
        say(f"Timing training steps of {len(missing)} settings on this machine, once; data are read for it.")
    for number, spec in enumerate(missing, 1):
        if not quiet:
            say(f"  {number} of {len(missing)}: {spec.data}, {spec.algorithm}, {spec.model}")
        with contextlib.suppress(FkgsecError):  # said of each run
            costs.timings.of(spec)


class Planned(NamedTuple):
    """A run of a table's plan. `num_bytes`: that it needs; 0 where it is finished or cannot be made."""

    cell: Cell
    entry: Entry
    num_bytes: float


def print_plan(
    console: Console,
    experiment: Experiment,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    results: Results,
    costs: Costs,
    *,
    out: Path,
    jobs: int = 1,
) -> None:
    """Settings, runs, seconds and memory of a table. Args: as for `run_experiment`; results: what is finished."""
    take_timings(costs, [spec for cell in cells for spec in cell.candidates])
    plan = plan_of(experiment, cells, seeds, results, costs, out=out)
    console.print("Nothing is trained (--dry-run).", highlight=False)
    places = {"all cells", "all cells, unlearning", "all cells, above all"}
    for cell in cells:
        places |= {cell.row, f"{cell.row}, unlearning", cell.column, cell.name, cell.trained}
    settings = settings_sheet(one for one in experiment.settings if one.where in places)
    print_tables(console, [terminal_table(sheet) for sheet in (settings, runs_sheet(plan))])
    for line in plan_lines(plan, cells, jobs):
        console.print(line, highlight=False, soft_wrap=True)


def plan_of(
    experiment: Experiment, cells: Sequence[Cell], seeds: Sequence[int], results: Results, costs: Costs, *, out: Path
) -> list[Planned]:
    """Every run of these cells, once, in the order in which they are made. Data are read for memory, one set at a time."""
    plan, bases, graphs = list[Planned](), set[Path](), dict[tuple[Any, ...], Any]()
    for cell, spec in unfinished(cells, seeds, Results(attack=experiment.attack)):
        wanted = Wanted(spec, experiment.attack, (cell.name,), "", cell.asked)
        base = out / "bases" / wanted.base if wanted.base else None
        entry = entry_of(wanted, out / run_name(cell, spec), costs, base=base, base_done=base in bases)
        size = 0.0
        if spec.seed in results.of_spec(spec, cell.asked):
            entry = entry._replace(state="finished")
        elif entry.state != "cannot be made":
            if (data := data_of(spec)) not in graphs:
                graphs = {data: spec.load_graph()}
            size = sum(needed(spec, graphs[data]).values())
            bases |= {base} if base else set()
        plan.append(Planned(cell, entry, size))
    return plan


def runs_sheet(plan: Iterable[Planned]) -> Sheet:
    """A row for each run."""
    rows = []
    for one in plan:
        spec, estimate = one.entry.wanted.spec, one.entry.estimate
        chosen = f" {one.cell.chosen} {one.cell.choice(spec)}" if one.cell.chosen else ""
        figures: tuple[str, ...] = (NONE, NONE, NONE)
        if one.num_bytes:
            figures = str(estimate.rounds), lasting(one.entry.left_s), f"{one.num_bytes / GIB:.2f}"
        says = estimate.says if one.num_bytes else one.entry.error
        rows.append((f"{one.cell.name}{chosen}", str(spec.seed), *figures, one.entry.state, says))
    heads = ("run", "seed", "rounds", "expected", "GiB", "state", "by")
    return Sheet("Runs", tuple(map(Column, heads)), tuple(rows))


def plan_lines(plan: Sequence[Planned], cells: Sequence[Cell], jobs: int) -> list[str]:
    """In all, and why cells have no run."""
    counts = Counter[State](one.entry.state for one in plan)
    order: tuple[State, ...] = ("finished", "begun", "to make", "cannot be made")
    states = ", ".join(f"{counts[state]} {state}" for state in order if counts[state])
    lost = dict.fromkeys(f"Not at hand: {cell.missing}" for cell in cells if cell.missing)
    most, free = jobs * max((one.num_bytes for one in plan), default=0.0), available()
    seconds = sum(one.entry.left_s for one in plan)
    return [
        f"Cells: {len(cells)}. Runs: {states or 'none'}. About {lasting(seconds)} of one thread in all, {most / GIB:.2f} GiB at "
        f"once; {free.says} leaves {free.num_bytes / GIB:.1f} GiB.",
        ESTIMATOR,
        *lost,
    ]


def run_everything(
    out: Path, *, hours: float | None, threads: int, nice: bool, dry_run: bool, only: str, num_seeds: int,
    reuse: Sequence[Path], force: bool, quiet: bool,
) -> int:  # fmt: skip
    """Make, or with `dry_run` show, the runs that all tables are missing, until time is up; returns how many failed.

    A run that time cuts off goes on from its checkpoint at the next start.

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
    places = [place for place in (COMMITTED, out, *reuse) if place in reuse or place.exists()]
    with contextlib.nullcontext() if dry_run else _held(out):
        plan = _plan_everything(out, places, only, num_seeds, quiet=quiet)
        if not quiet:
            _print_everything(plan, hours)
        if dry_run:
            return 0
        failed = _work(plan, out, until, threads, at_once=0 if force else 1, quiet=quiet)
    if not quiet:
        board = make_scoreboard(read_experiments(), all_records([*places, out])[0])
        line = f"{total_line(board)}; `fkgsec experiment status {out}`"
        make_console().print(line, highlight=False, soft_wrap=True)
    return failed


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Be the one writer of a folder. Raises `RunError` where another process is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
    with locked(folder):
        yield


def _plan_everything(out: Path, places: Sequence[Path], only: str, num_seeds: int, *, quiet: bool) -> list[Entry]:
    """The missing runs, in the order in which they decide claims, and after them cells."""
    records, unreadable = all_records(places)
    for line in unreadable if not quiet else ():
        say(f"warning: {line}")
    experiments = read_experiments()
    wanted = wanted_runs(experiments, _results(records), num_seeds=num_seeds, only=only)
    costs = costs_of(records, experiments)
    take_timings(costs, [one.spec for one in wanted], quiet=quiet)
    judged = judge_claims(read_claims(), experiments, records)
    return order_by_claims(judged, experiments, entries_of(wanted, out, costs), costs, num_seeds)


def _results(records: Iterable[Made]) -> dict[bool, Results]:
    """By whether attacks count."""
    results = {attack: Results(attack=attack) for attack in (False, True)}
    for record in records:
        for found in results.values():
            found.add(record)
    return results


def plan_claims(judged: Sequence[Judged], records: Sequence[Made]) -> Sheet:
    """For each claim the runs and CPU hours that decide it, if the paper's own figures are true."""
    experiments, results = read_experiments(), _results(records)
    needed_cells = {cell for one in judged for part in printed_pairs(one.claim, experiments) for cell in part.cells}
    wanted = {
        seeds: [
            one for one in wanted_runs(experiments, results, num_seeds=seeds) if needed_cells.intersection(one.cells)
        ]
        for seeds in range(1, MOST_SEEDS + 1)
    }
    costs = costs_of(records, experiments)
    take_timings(costs, [one.spec for one in wanted[MOST_SEEDS]])
    entries = {seeds: entries_of(runs, Path("runs/all"), costs) for seeds, runs in wanted.items()}
    return power_sheet(cheapest_needs(judged, experiments, entries, costs))


def _work(plan: Sequence[Entry], out: Path, until: float, threads: int, *, at_once: int, quiet: bool) -> int:
    """Run until time is up, and say what failed or is cut off; returns how many failed."""
    jobs = [
        Job(
            ", ".join(one.wanted.cells[:3]), one.wanted.spec, one.folder, one.wanted.attack, one.wanted.command,
            one.wanted.asked, out / one.wanted.base,
        )
        for one in plan if one.state != "cannot be made"
    ]  # fmt: skip
    failed, observe = 0, observe_on(make_console(stderr=True), enabled=not quiet)
    for job, error in run_jobs(jobs, count=1, observe=observe, at_once=at_once, threads=threads, until=until):
        if isinstance(error, CutOff):
            if not quiet:
                say(f"{error}; what is not finished goes on with the next start")
            break
        if error is not None:
            failed += 1
            say(f"fkgsec: {job.name}: {' '.join(str(error).split())}")
    return failed


def everything_sheet(plan: Sequence[Entry]) -> Sheet:
    """The runs in their order: which cells each serves, what it is expected to take, and by what."""
    heads = ("", "run", "cells", "rounds", "expected", "in all", "by")
    rows, whole = [], 0.0
    for number, one in enumerate(plan, 1):
        whole += one.left_s
        cells = one.wanted.cells
        name = cells[0] + (f" and {len(cells) - 1} more" if len(cells) > 1 else "")
        rounds = f"{one.rounds_done} of {one.estimate.rounds}" if one.rounds_done else str(one.estimate.rounds)
        rows.append(
            (str(number), name, str(len(cells)), rounds, lasting(one.left_s), lasting(whole), one.estimate.says)
        )
    title = (
        "Runs that cells are missing: those that decide claims in the fewest hours first, then the most cells per hour"
    )
    return Sheet(title, tuple(map(Column, heads)), tuple(rows))


def _print_everything(plan: Sequence[Entry], hours: float | None) -> None:
    console, possible = make_console(), [one for one in plan if one.state != "cannot be made"]
    print_tables(console, [terminal_table(everything_sheet(possible[:_MOST_ROWS]))])
    if len(possible) > _MOST_ROWS:
        console.print(f"... and {len(possible) - _MOST_ROWS} more")
    whole = sum(one.left_s for one in possible)
    cells = len({cell for one in possible for cell in one.wanted.cells})
    line = f"{len(possible)} runs, {cells} cells, about {lasting(whole)} of one thread in all"
    if hours is not None:
        fitting = sum(end <= hours * HOUR_S for end in itertools.accumulate(one.left_s for one in possible))
        line += f"; {fitting} runs are expected to end within {lasting(hours * HOUR_S)}"
    console.print(line, highlight=False, soft_wrap=True)
    for error, number in Counter(one.error for one in plan if one.error).items():
        console.print(f"{number} runs cannot be made: {error}", highlight=False, soft_wrap=True)
    console.print(ESTIMATOR, highlight=False, soft_wrap=True)
