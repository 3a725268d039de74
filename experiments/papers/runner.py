"""Run the unfinished cells of a paper's table, and write the table.

outcome = run_experiment(path, out=Path("runs/table"), observe=unobserved, only="TransE R3", seeds=range(3))
write_table(outcome.table, Path("runs/table"))
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.papers.queue import Job, table_jobs
from fkgsec.experiments.papers.results import Results, read_made, read_records, run_key
from fkgsec.experiments.papers.spec import read_experiment, select_cells
from fkgsec.experiments.papers.table import PaperTable, draw_table, table_lines, table_of
from fkgsec.experiments.papers.workers import run_here, run_with_bases
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.run import RECORD_FILE
from fkgsec.experiments.runs.spec import RunSpec
from fkgsec.experiments.runs.writing import refused, write_atomically
from fkgsec.federation.loop import CHECKPOINT

TABLE_FILE, MARKDOWN_FILE, PICTURE_FILE = "table.json", "table.md", "table.png"


class Outcome(NamedTuple):
    """Table of all cells, and the failed runs."""

    table: PaperTable
    failures: list[tuple[Job, Exception]]


def run_experiment(
    path: Path,
    *,
    out: Path,
    observe: Observe,
    only: str = "",
    seeds: Sequence[int] = (),
    reuse: Sequence[Path] = (),
    overwrite: bool = False,
    jobs: int = 1,
    force: bool = False,
) -> Outcome:
    """Run the unfinished cells of a file, and write the paper's table with our figures into `out`.

    A cell is finished if a record of its spec and seed lies in `out` or in `reuse`. An interrupted run resumes from its
    checkpoint, and a failed one does not stop the others. The table is written again after every run.

    Args:
        path: the file, see `fkgsec.experiments.papers.spec`.
        out: folder with a subfolder for each run.
        observe: gives each run its observer.
        only: cells to run, as for `select_cells`; the table has all of them.
        seeds: replace the file's seeds.
        reuse: further folders with finished runs.
        overwrite: replace another experiment's table, and runs of other options in folders of these names.
        jobs: runs at a time; several run in processes of one thread each, see `fkgsec.experiments.papers.workers`.
        force: skip the check that they fit into memory together.

    Raises:
        SpecError: the file is wrong, or `only` matches no cell.
        RunError: `out` cannot be written, or has another table.
    """
    experiment = read_experiment(path)
    cells = select_cells(experiment.cells, only)
    places = [*([out] if out.exists() else []), *reuse]
    results = Results(read_records(places)[0])
    failures: list[tuple[Job, Exception]] = []
    table = table_of(experiment, results)
    check_table(table, out, overwrite=overwrite, growing=True)
    write_table(table, out)
    # Base runs are searched only for unlearning tables: reading all records takes time.
    bases = finished_runs(places) if any(cell.asked for cell in cells) else {}
    todo = table_jobs(cells, seeds or experiment.seeds, results, out, bases)
    run = run_here if jobs == 1 else functools.partial(run_with_bases, count=jobs)
    for job, error in run(todo, observe=observe, overwrite=overwrite, at_once=0 if force else min(jobs, len(todo))):
        if error is not None:
            failures.append((job, error))
        elif record := read_made(job.record_file):
            # The next table contains this run, and later cells may share it.
            results.add(record)
        # The table is rewritten after each run, so that a killed process leaves it complete.
        failed = {failed.cells[0]: f"seed {failed.spec.seed}: {why}" for failed, why in failures}
        table = table_of(experiment, results, failed)
        write_table(table, out)
    return Outcome(table, failures)


def finished_runs(places: Iterable[Path]) -> dict[tuple[RunSpec, int], Path]:
    """Return folders of finished runs with their checkpoints, by `run_key` and seed.

    Args:
        places: folders to search.
    """
    folders: dict[tuple[RunSpec, int], Path] = {}
    for path in (path for place in places if place.is_dir() for path in sorted(place.rglob(RECORD_FILE))):
        if (path.parent / CHECKPOINT).exists():
            # Reported where results are read.
            with contextlib.suppress(RunError, SpecError):
                record = read_record(path)
                folders.setdefault((run_key(record.spec, attack=False), record.seed), path.parent)
    return folders


def check_table(table: PaperTable, out: Path, *, overwrite: bool, growing: bool) -> None:
    """Check that no other table is overwritten.

    Args:
        table: the table to write.
        out: folder to write.
        overwrite: allow any other table.
        growing: allow other figures of the same experiment, whose table grows with every run.

    Raises:
        RunError: `out` has another table.
    """
    path = out / TABLE_FILE
    if overwrite or not path.exists():
        return
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        there = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        there = None
    names = ("title", "paper", "table")
    if not isinstance(there, dict) or any(there.get(name) != getattr(table, name) for name in names):
        raise refused(path, "is the table of another experiment")
    # `show --out` writes a table once; a different one there is the user's.
    if not growing and content != _encode(table):
        raise refused(path)


def _encode(table: PaperTable) -> bytes:
    return msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n"


def write_table(table: PaperTable, out: Path) -> None:
    """Write table.json, table.md and table.png into a folder.

    Args:
        out: folder to write.

    Raises:
        RunError: the folder cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out}: cannot be made ({error.strerror})") from error
    write_atomically(out / TABLE_FILE, _encode(table))
    write_atomically(out / MARKDOWN_FILE, "\n".join(table_lines(table)).encode() + b"\n")
    write_atomically(out / PICTURE_FILE, draw_table(table))
