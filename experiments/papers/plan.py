"""`fkgsec experiment run SPEC --dry-run`: what a table would run, with whose settings, how long and in how much memory.

    print_plan(console, experiment, cells, seeds, results, costs, out=Path("runs/table"))

Nothing is trained or written. Seconds (`experiments.papers.estimates`) and memory (`experiments.tasks.memory`) are no bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from experiments.cli.console import print_tables
from experiments.papers.estimates import ESTIMATOR, Costs
from experiments.papers.queue import Entry, Wanted, estimated
from experiments.papers.runner import Results, run_name, unfinished
from experiments.papers.spec import Cell, Experiment
from experiments.papers.table import settings_sheet
from experiments.papers.workers import data_of
from experiments.reporting.sheets import NONE, Column, Sheet, terminal_table
from experiments.tasks.memory import GIB, available, needed
from experiments.tasks.spec import RunSpec
from experiments.tasks.trainings import lasting
from fkgsec.federation.loop import CHECKPOINT


class Planned(NamedTuple):
    """A run of a plan. `num_bytes`: that it needs; 0 where it is finished or cannot be made, as `entry.error` says."""

    cell: Cell
    spec: RunSpec
    state: str
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
    """Settings, runs, seconds and memory as tables. Args: as for `run_experiment`; results: what is finished."""
    plan = plan_of(experiment, cells, seeds, results, costs, out=out)
    console.print("Nothing is trained or written (--dry-run).", highlight=False)
    print_tables(console, [terminal_table(sheet) for sheet in (_settings(experiment, cells), runs_sheet(plan))])
    for line in plan_lines(plan, cells, jobs):
        console.print(line, highlight=False, soft_wrap=True)


def plan_of(
    experiment: Experiment, cells: Sequence[Cell], seeds: Sequence[int], results: Results, costs: Costs, *, out: Path
) -> list[Planned]:
    """Every run of these cells, once, in the order in which they are made. Data are read for memory, one set at a time."""
    plan, bases, graphs = list[Planned](), set[str](), dict[tuple[Any, ...], Any]()
    for cell, spec in unfinished(cells, seeds, Results(attack=experiment.attack)):
        wanted = Wanted(spec, experiment.attack, (cell.name,), "", cell.asked)
        entry = estimated(
            Entry(name=cell.name, cells=(cell.name,), command=""), wanted, costs, base_done=wanted.base in bases
        )
        if spec.seed in results.of_spec(spec, cell.asked):
            plan.append(Planned(cell, spec, "finished", entry, 0.0))
        elif entry.error:
            plan.append(Planned(cell, spec, "cannot be made", entry, 0.0))
        else:
            if (data := data_of(spec)) not in graphs:
                graphs = {data: spec.load_graph()}
            begun = (out / run_name(cell, spec) / CHECKPOINT).exists()
            size = sum(needed(spec, graphs[data]).values())
            plan.append(Planned(cell, spec, "begun" if begun else "to make", entry, size))
            bases.add(wanted.base)
    return plan


def _settings(experiment: Experiment, cells: Iterable[Cell]) -> Sheet:
    """What the file states for these cells, and whose it is."""
    places = {"all cells", "all cells, unlearning", "all cells, above all"}
    for cell in cells:
        places |= {cell.row, f"{cell.row}, unlearning", cell.column, cell.name, cell.trained}
    return settings_sheet(one for one in experiment.settings if one.where in places)


def runs_sheet(plan: Iterable[Planned]) -> Sheet:
    """A row for each run."""
    rows = []
    for one in plan:
        chosen = f" {one.cell.chosen} {one.cell.choice(one.spec)}" if one.cell.chosen else ""
        known = one.num_bytes > 0
        rows.append(
            (
                f"{one.cell.name}{chosen}", str(one.spec.seed), str(one.entry.rounds) if known else NONE,
                lasting(one.entry.left_s) if known else NONE, f"{one.num_bytes / GIB:.2f}" if known else NONE, one.state,
                one.entry.says if known else one.entry.error,
            )
        )  # fmt: skip
    heads = ("run", "seed", "rounds", "expected", "GiB", "state", "by")
    return Sheet("Runs", tuple(map(Column, heads)), tuple(rows))


def plan_lines(plan: Sequence[Planned], cells: Sequence[Cell], jobs: int) -> list[str]:
    """In all, and why cells have no run."""
    left = [one for one in plan if one.state in ("begun", "to make")]
    states = ", ".join(
        f"{number} {state}"
        for state in ("finished", "begun", "to make", "cannot be made")
        if (number := sum(one.state == state for one in plan))
    )
    lost = dict.fromkeys(f"Not at hand: {cell.missing}" for cell in cells if cell.missing)
    most, free = jobs * max((one.num_bytes for one in left), default=0.0), available()
    seconds = sum(one.entry.left_s for one in left)
    return [
        f"Cells: {len(cells)}. Runs: {states or 'none'}. About {lasting(seconds)} of one thread in all, {most / GIB:.2f} GiB at "
        f"once; {free.says} leaves {free.num_bytes / GIB:.1f} GiB.",
        ESTIMATOR,
        *lost,
    ]
