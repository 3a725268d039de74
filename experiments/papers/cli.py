"""`fkgsec experiment`: run papers' tables cell by cell, and compare the papers' figures with ours.

fkgsec experiment list zhang2024_feds_table2
fkgsec experiment run zhang2024_feds_table2 --only 'TransE R3' --seeds 3
fkgsec experiment run --all --hours 8 --nice
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fkgsec.errors import FkgsecError, SpecError
from fkgsec.experiments.cli.console import Quiet, expected_errors, make_console, say
from fkgsec.experiments.cli.printed import DryRun
from fkgsec.experiments.runs.writing import Force, Overwrite, write_new
from fkgsec.experiments.tasks.spec import MOST_SEEDS
from fkgsec.protocols.core.errors import ProtocolError

if TYPE_CHECKING:
    from fkgsec.experiments.papers.results import Made
    from fkgsec.experiments.papers.spec import Cell, Experiment
    from fkgsec.experiments.papers.table import PaperTable

RUNS = Path("runs")
A_CELL_FAILED = 1

experiment_app = typer.Typer(
    help="Run the cells of papers' tables, and compare the papers' figures with ours.", no_args_is_help=True
)

SPEC_HELP = "a shipped experiment (see `fkgsec experiment list`) or a file"
SpecName = Annotated[str, typer.Argument(metavar="SPEC", help=SPEC_HELP)]
Only = Annotated[
    str,
    typer.Option(
        "--only", help="cells whose name has these words: a space means and, a comma or; 'TransE R3, RotatE R3 FedS'"
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="folder with a subfolder for each cell (default: runs/<SPEC>)")]
Seeds = Annotated[
    int | None, typer.Option("--seeds", help="number of seeds, starting at the file's first", min=1, max=MOST_SEEDS)
]
Reuse = Annotated[list[Path] | None, typer.Option("--reuse", help="also use finished runs in this folder; repeatable")]
Jobs = Annotated[int, typer.Option("--jobs", help="number of runs at a time, each in a process with one thread", min=1)]
Everything = Annotated[
    bool,
    typer.Option(
        "--all",
        help="every missing run of all shipped tables at full settings, first those that decide claims in the fewest hours",
    ),
]
Hours = Annotated[
    float | None,
    typer.Option("--hours", help="with --all: stop after this time; the next start resumes the interrupted run", min=0),
]
Threads = Annotated[int, typer.Option("--threads", help="with --all: threads of each run", min=1)]
Nice = Annotated[bool, typer.Option("--nice", help="with --all: run at the lowest priority")]


@experiment_app.command(
    "reproduce",
    epilog=(
        "Examples:\n\n  fkgsec experiment reproduce zhang2022_fedr_table2 'TransE Local DDB14 C20'\n\n"
        "  fkgsec experiment reproduce zhang2022_fedr_table2 'TransE FedE DDB14 C5' --rounds 5"
    ),
)
@expected_errors
def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help=SPEC_HELP)],
    name: Annotated[str, typer.Argument(metavar="CELL", help="name of the cell, or words that only this cell has")],
    *,
    records: Annotated[
        Path | None, typer.Option("--records", help="a record, or a folder with records (default: the committed ones)")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="seed of the record (default: the lowest)")] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="compare only this many first rounds: loss, validation, bytes", min=1)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="run folder, to resume an interrupted training (default: a temporary one)"),
    ] = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Train a cell again from its committed record and compare. Exits 0 if the two agree, 1 if they differ, 2 for wrong input."""
    from fkgsec.experiments.papers.plan import COMMITTED
    from fkgsec.experiments.papers.reproduce import DIFFERS, again, find_record
    from fkgsec.experiments.papers.spec import find_experiment, read_experiment

    if rounds is not None and out is not None:
        raise SpecError("--out does not apply with --rounds, which stores no run; leave it out")
    experiment = read_experiment(find_experiment(table))
    path, record = find_record(_cell(experiment, name), records or COMMITTED, seed)
    if not quiet:
        seconds = sum(entry.seconds for entry in record.rounds)
        say(
            f"{path}: {len(record.rounds) - 1} rounds in {seconds:.0f} s, commit {(record.environment.commit or '?')[:7]}"
        )
    began = time.perf_counter()
    agrees, says = again(record, rounds=rounds, out=out, force=force, quiet=quiet)
    make_console().print(f"{path.stem}: {says} ({time.perf_counter() - began:.0f} s)", highlight=False, soft_wrap=True)
    if not agrees:
        raise typer.Exit(DIFFERS)


def _cell(experiment: Experiment, name: str) -> Cell:
    """Return the cell of this name, else the only one with these words. Raises `SpecError` if several have them."""
    from fkgsec.experiments.papers.spec import select_cells

    # A full name wins, even if it occurs within other names.
    cells = [cell for cell in experiment.cells if cell.name.casefold() == name.casefold()]
    cells = cells or select_cells(experiment.cells, name)
    if len(cells) > 1:
        named = ", ".join(repr(cell.name) for cell in cells[:5])
        raise SpecError(f"CELL: {len(cells)} cells match {name!r}: {named}; use a full name")
    if cells[0].asked:
        raise SpecError(f"CELL: {cells[0].name} is a cell of unlearning; use `fkgsec experiment run` and `show`")
    return cells[0]


Places = Annotated[list[Path], typer.Argument(metavar="RESULTS...", help="record files, or folders that contain some")]


@experiment_app.command(
    "run",
    epilog="Examples:\n\n  fkgsec experiment run zhang2024_feds_table2_cpu\n\n"
    "  fkgsec experiment run zhang2024_feds_table2 --only 'TransE R3' --seeds 3\n\n"
    "  fkgsec experiment run zhang2024_feds_table2 --only 'TransE R3' --dry-run\n\n"
    "  fkgsec experiment run zhang2024_feds_table3 --reuse runs/zhang2024_feds_table2\n\n"
    "  fkgsec experiment run liu2024_cefgl_table1_cpu --jobs 2\n\n"
    "  fkgsec experiment run my-table.yaml --out runs/mine\n\n"
    "  fkgsec experiment run --all --hours 8 --nice",
)
@expected_errors
def run(
    spec: Annotated[str | None, typer.Argument(metavar="[SPEC]", help=SPEC_HELP)] = None,
    *,
    only: Only = "",
    out: Out = None,
    seeds: Seeds = None,
    reuse: Reuse = None,
    jobs: Jobs = 1,
    everything: Everything = False,
    hours: Hours = None,
    threads: Threads = 1,
    nice: Nice = False,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Run the unfinished cells, and resume interrupted ones. Exit status 1 if a cell failed."""
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.papers.estimates import Costs, papers_rounds
    from fkgsec.experiments.papers.plan import COMMITTED, print_plan, run_everything
    from fkgsec.experiments.papers.queue import unfinished
    from fkgsec.experiments.papers.results import Results, read_records
    from fkgsec.experiments.papers.runner import run_experiment
    from fkgsec.experiments.papers.spec import find_experiment, read_experiment, select_cells

    if everything:
        _check_fits("--all", {"SPEC": spec is not None, "--jobs": jobs > 1, "--overwrite": overwrite})
        failed = run_everything(
            out or RUNS / "all", hours=hours, threads=threads, nice=nice, dry_run=dry_run, only=only, num_seeds=seeds or 1,
            reuse=reuse or [], force=force, quiet=quiet,
        )  # fmt: skip
        raise typer.Exit(A_CELL_FAILED if failed else 0)
    if spec is None:
        raise SpecError("SPEC is missing: name an experiment (see `fkgsec experiment list`), or use --all")
    _check_fits("a table", {"--hours": hours is not None, "--threads": threads > 1, "--nice": nice})
    path = find_experiment(spec)
    experiment = read_experiment(path)
    cells = select_cells(experiment.cells, only)
    target = out or RUNS / experiment.name
    first = experiment.seeds[0]
    wanted = experiment.seeds if seeds is None else range(first, first + seeds)
    # The folder does not exist before the first run.
    places = [*([target] if target.exists() else []), *(reuse or [])]
    records, unreadable = read_records(places)
    results, errors = Results(records), make_console(stderr=True)
    left = len(unfinished(cells, wanted, results))
    if not quiet:
        for line in unreadable:
            errors.print(f"warning: {line}", style="yellow", highlight=False, soft_wrap=True)
        numbers = f"{len(cells)} cell{'s' * (len(cells) != 1)} of {len(experiment.cells)}"
        errors.print(f"{experiment.name}: {numbers}, {left} run{'s' * (left != 1)} to make", highlight=False)
    if dry_run:
        # Committed records improve the estimates; an installed package has none.
        committed = read_records([COMMITTED] if COMMITTED.exists() else [])[0]
        costs = Costs([*records, *committed], papers_rounds([experiment]))
        print_plan(make_console(), experiment, cells, wanted, results, costs, out=target, jobs=jobs)
        return

    observe = observe_on(errors, enabled=not quiet, together=jobs > 1)
    outcome = run_experiment(
        path, out=target, observe=observe, only=only, seeds=wanted, reuse=reuse or [], overwrite=overwrite, jobs=jobs,
        force=force,
    )  # fmt: skip
    if not quiet:
        _print(outcome.table, cells, target)
    for job, error in outcome.failures:
        # Unexpected errors are bugs; show where they come from.
        if not isinstance(error, (FkgsecError, ProtocolError)):
            typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        say(f"fkgsec: {job.name}: {error}")
    if outcome.failures:
        raise typer.Exit(A_CELL_FAILED)


@experiment_app.command(
    "list",
    epilog="Examples:\n\n  fkgsec experiment list\n\n  fkgsec experiment list zhang2024_feds_table2 --runs runs",
)
@expected_errors
def list_experiments(
    spec: Annotated[str | None, typer.Argument(metavar="[SPEC]", help="show the cells of this experiment")] = None,
    *,
    runs: Annotated[Path, typer.Option("--runs", help="folder with finished runs")] = RUNS,
) -> None:
    """List the shipped experiments, or the cells of one, with the number of finished runs."""
    from fkgsec.experiments.papers.results import Results, read_records
    from fkgsec.experiments.papers.spec import find_experiment, read_experiment, shipped_experiments
    from fkgsec.experiments.reporting.sheets import Column, Sheet, print_sheets

    paths = [find_experiment(spec)] if spec else list(shipped_experiments().values())
    experiments = [read_experiment(path) for path in paths]
    results = Results(read_records([runs] if runs.exists() else [])[0])
    if spec:
        title, rows = f"{experiments[0].table} of {experiments[0].paper}", []
        heads = ("cell", "algorithm", "model", "data", "finished seeds")
        for cell in experiments[0].cells:
            of = [cell.spec.algorithm, cell.spec.model, cell.spec.data] if cell.spec else ["–", "–", cell.missing]
            # A cell whose option validation selects needs a run for each value.
            number = len(cell.candidates)
            seeds = [
                str(seed) if len(records) == number else f"{seed} ({len(records)} of {number})"
                for seed, records in results.tried(cell).items()
            ]
            rows.append((cell.name, *of, ", ".join(seeds)))
    else:
        title, rows = "Shipped experiments", []
        heads = ("name", "table", "cells", "not at hand", "finished")
        for table in experiments:
            missing = sum(cell.spec is None for cell in table.cells)
            finished = sum(bool(results.of(cell)) for cell in table.cells)
            rows.append((table.name, table.table, str(len(table.cells)), str(missing or ""), str(finished or "")))
    print_sheets(make_console(), [Sheet(title, tuple(map(Column, heads)), tuple(rows))])


@experiment_app.command(
    "show",
    epilog="Examples:\n\n  fkgsec experiment show zhang2024_feds_table3 runs/zhang2024_feds_table2\n\n"
    "  fkgsec experiment show zhang2024_feds_table2 runs --only 'TransE' --out table",
)
@expected_errors
def show(
    spec: SpecName,
    places: Annotated[
        list[Path], typer.Argument(metavar="RESULTS...", help="record files, or folders with finished runs")
    ],
    *,
    only: Only = "",
    out: Annotated[Path | None, typer.Option("--out", help="also write the table into this folder")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Show the table from finished records; nothing is trained."""
    from fkgsec.experiments.papers.results import Results, read_records
    from fkgsec.experiments.papers.runner import check_table, write_table
    from fkgsec.experiments.papers.spec import find_experiment, read_experiment, select_cells
    from fkgsec.experiments.papers.table import table_of

    experiment = read_experiment(find_experiment(spec))
    cells = select_cells(experiment.cells, only)
    records, unreadable = read_records(places)
    for line in unreadable:
        say(f"warning: {line}")
    table = table_of(experiment, Results(records))
    if out:
        check_table(table, out, overwrite=overwrite, growing=False)
        write_table(table, out)
    _print(table, cells, out)


@experiment_app.command(
    "status",
    epilog="Examples:\n\n  fkgsec experiment status runs\n\n"
    "  fkgsec experiment status results --markdown results/scoreboard.md --overwrite",
)
@expected_errors
def status(
    places: Places,
    *,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="also write the scoreboard here")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Count the cells that were run at the papers' settings, and compare them with the papers' figures."""
    from fkgsec.experiments.papers.judging.scoreboard import (
        cells_sheet,
        make_scoreboard,
        read_experiments,
        scoreboard_lines,
        tables_sheet,
        total_line,
    )
    from fkgsec.experiments.reporting.sheets import print_sheets

    records, left_out = _admitted(places)
    # Records that contradict each other are left out before anything is counted.
    board = make_scoreboard(read_experiments(), records)
    console = make_console()
    print_sheets(console, [tables_sheet(board), cells_sheet(board)])
    console.print(total_line(board), highlight=False, soft_wrap=True)
    if markdown:
        write_new(markdown, "\n".join([*scoreboard_lines(board, left_out), ""]).encode(), overwrite=overwrite)


@experiment_app.command(
    "claims",
    epilog="Examples:\n\n  fkgsec experiment claims runs\n\n"
    "  fkgsec experiment claims results --markdown docs/reproduction.md --overwrite\n\n"
    "  fkgsec experiment claims results --power",
)
@expected_errors
def claims(
    places: Places,
    *,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="also write the page here")] = None,
    power: Annotated[
        bool,
        typer.Option("--power", help="show which runs and CPU hours decide each claim if the papers' figures are true"),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Judge by one rule whether the papers' headline claims hold, do not hold, or are open."""
    from fkgsec.experiments.papers.judging.claims import judge_claims, read_claims
    from fkgsec.experiments.papers.judging.claims_page import page_lines, summary_sheet
    from fkgsec.experiments.papers.judging.scoreboard import read_experiments
    from fkgsec.experiments.papers.plan import plan_claims
    from fkgsec.experiments.reporting.sheets import print_sheets

    records, left_out = _admitted(places)
    judged = judge_claims(read_claims(), read_experiments(), records)
    if power:
        print_sheets(make_console(), [plan_claims(judged, records)])
        return
    print_sheets(make_console(), [summary_sheet(judged)])
    if markdown:
        write_new(markdown, "\n".join([*page_lines(judged, left_out), ""]).encode(), overwrite=overwrite)


def _admitted(places: Sequence[Path]) -> tuple[list[Made], list[str]]:
    """Return the records that count, and a line for each other record, which is printed as a warning."""
    from fkgsec.experiments.papers.judging.admission import admit
    from fkgsec.experiments.papers.results import read_records

    records, unreadable = read_records(places)
    admitted = admit(records)
    for line in [*unreadable, *admitted.left_out]:
        say(f"warning: {line}")
    return admitted.records, [*unreadable, *admitted.left_out]


def _check_fits(what: str, options: dict[str, bool]) -> None:
    """Raise `SpecError` for the first of these options that is set."""
    for name, is_set in options.items():
        if is_set:
            raise SpecError(f"{name} does not apply to {what}; leave it out")


def _print(table: PaperTable, cells: Sequence[Cell], out: Path | None) -> None:
    from fkgsec.experiments.papers.runner import MARKDOWN_FILE, PICTURE_FILE, TABLE_FILE
    from fkgsec.experiments.papers.table import figure_sheets, reading_aid, remark_lines
    from fkgsec.experiments.reporting.sheets import print_sheets

    names, console = [cell.name for cell in cells], make_console()
    shown = [cell for cell in table.cells if cell.name in names]
    for line in (f"{table.title}. {table.table} of {table.paper}.", *table.notes, ""):
        console.print(line, highlight=False, soft_wrap=True)
    print_sheets(console, figure_sheets(table, shown))
    lines = [reading_aid(table), *remark_lines(shown)]
    lines += [f"Written to {out}: {TABLE_FILE}, {MARKDOWN_FILE}, {PICTURE_FILE}"] if out else []
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
