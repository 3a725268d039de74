"""Run the cells of a paper's table, or find them finished, and set the paper's figures beside ours.

outcome = run_experiment(path, out=Path("runs/table"), observe=unobserved, only="TransE R3", seeds=range(3))
results, unreadable = find_results([Path("runs")], attack=False)
write_table(table_of(read_experiment(path), results), Path("runs/table"))
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.options import ATTACK_FIELDS
from fkgsec.experiments.cli.progress import Observe
from fkgsec.experiments.papers.document import Asked
from fkgsec.experiments.papers.forgetting import FORGOTTEN_FILE, Forgotten, read_forgotten
from fkgsec.experiments.papers.spec import Cell, Experiment, read_experiment, select_cells
from fkgsec.experiments.papers.table import Made, PaperTable, draw_table, make_paper_table, table_lines
from fkgsec.experiments.papers.workers import Job, data_of, make, run_with_bases
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import RECORD_FILE
from fkgsec.experiments.runs.spec import RunSpec
from fkgsec.experiments.runs.writing import refused, write_atomically
from fkgsec.federation.loop import CHECKPOINT

TABLE_FILE, MARKDOWN_FILE, PICTURE_FILE = "table.json", "table.md", "table.png"


class Failure(NamedTuple):
    """A cell that could not be run, for one seed."""

    cell: str
    seed: int
    error: Exception


class _Title(msgspec.Struct, frozen=True):
    """What tells one experiment's table from another's."""

    title: str
    paper: str
    table: str


class Outcome(NamedTuple):
    """The table of all cells, and what went wrong on the way."""

    table: PaperTable
    failures: list[Failure]


class Results:
    """Finished records by what was run, device and spelled-out defaults aside, and what it forgot.

    Of several records of one run and seed the first with outcomes by test item counts, else the first.
    """

    def __init__(self, *, attack: bool) -> None:
        self._attack = attack
        self._records: dict[tuple[RunSpec, Asked | None], dict[int, Made]] = {}

    def add(self, record: Made) -> None:
        """Take a record; one that was not attacked does not count where an attack is asked for."""
        if isinstance(record, Forgotten):
            key = (self._key(record.spec), record.asked)
        elif record.rebuilt or not self._attack:
            key = (self._key(record.spec), None)
        else:
            return
        seeds = self._records.setdefault(key, {})
        earlier = seeds.setdefault(record.seed, record)
        if run_of(earlier).items is None and run_of(record).items is not None:
            seeds[record.seed] = record

    def of(self, cell: Cell, *, whole: bool = False) -> dict[int, Made]:
        """The finished record of a cell for each seed; of several candidates the one with the best validation MRR.

        Args:
            whole: leave out seeds for which a candidate is missing.

        Raises:
            RunError: several candidates, and data without validation triples.
        """
        least = len(cell.candidates) if whole else 1
        return {seed: _best(cell, found) for seed, found in self.tried(cell).items() if len(found) >= least}

    def tried(self, cell: Cell) -> dict[int, list[Made]]:
        """The finished records of a cell's candidates, by seed."""
        found = [self.of_spec(spec, cell.asked) for spec in cell.candidates]
        seeds = sorted({seed for records in found for seed in records})
        return {seed: [records[seed] for records in found if seed in records] for seed in seeds}

    def of_spec(self, spec: RunSpec, asked: Asked | None = None) -> dict[int, Made]:
        """The finished records of this spec, and of what was asked of its run, by seed; its own seed does not count."""
        return self._records.get((self._key(spec), asked), {})

    def _key(self, spec: RunSpec) -> RunSpec:
        return run_key(spec, attack=self._attack)


def run_of(record: Made) -> Record:
    """The record of a run itself, or of the run that was unlearned."""
    return record.run if isinstance(record, Forgotten) else record


def read_made(path: Path) -> Made:
    """A record of either kind. Raises `RunError` where it is neither."""
    return read_forgotten(path) or read_record(path)


@functools.cache
def run_key(spec: RunSpec, *, attack: bool) -> RunSpec:
    """What runs of one cell have in common: options but seeds, draws and device, those of the attack where there is one."""
    changes: dict[str, Any] = {"seed": 0, "split_seed": 0}  # a division by any seed counts, as one by the run's did
    if hasattr(spec, "draws"):
        changes["draws"] = "numpy"  # and so do draws by counters, which differ as those of another seed do
    if not attack:
        plain = type(spec)()
        changes |= {name: getattr(plain, name) for name in ATTACK_FIELDS if hasattr(plain, name)}
    return spec.settled().replace(**changes)


def _best(cell: Cell, records: Sequence[Made]) -> Made:
    """The first record whose models were kept at the highest validation MRR of all; of unlearned ones, of their base runs."""
    best, *others = records
    for record in others:
        reached, to_beat = (one.rounds[one.best_round].valid for one in (run_of(record), run_of(best)))
        if reached is None or to_beat is None:
            raise RunError(
                f"{cell.name}: {cell.chosen} cannot be chosen on validation, {best.spec.data} has no valid split"
            )
        best = record if reached > to_beat else best
    return best


def find_results(places: Iterable[Path], *, attack: bool) -> tuple[Results, list[str]]:
    """The finished runs at these places: record files, or folders that are searched through.

    Returns:
        What was found, and a line for each file below a folder that is no record of this version.

    Raises:
        RunError: a place that is not there, or a file, named as such, that is no record.
    """
    results, unreadable = Results(attack=attack), []
    for place in places:
        if not place.exists():
            raise RunError(f"{place}: is not there")
        if place.is_file():
            results.add(read_made(place))
            continue
        for path in sorted([*place.rglob(RECORD_FILE), *place.rglob(FORGOTTEN_FILE)]):
            try:
                results.add(read_made(path))
            except (RunError, SpecError) as error:
                unreadable.append(str(error))
    return results, unreadable


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
    """Run the cells of a file that are not finished yet, and write the paper's table beside ours into `out`.

    A cell is finished when a record of the very same spec and seed lies in `out` or at a place of `reuse`; a killed one goes
    on from its checkpoint; a failed one does not stop the others. The table is written anew after every run.

    Args:
        path: the file, see `fkgsec.experiments.experiment_spec`. out: a folder; each run gets one of its own in it.
        observe: gives each run its observer.
        only: which cells to run, as for `select_cells`; the table has all of them.
        seeds: instead of the file's own.
        overwrite: write over another experiment's table, and over runs of other options in folders of these names.
        jobs: runs at a time; more than one are made in processes of one thread each, see `fkgsec.experiments.papers.workers`.
        force: do not ask whether so many at a time fit into memory.

    Raises:
        SpecError: the file is wrong, or `only` leaves nothing. RunError: `out` cannot be written, or has another table.
    """
    experiment = read_experiment(path)
    cells = select_cells(experiment.cells, only)
    results, _ = find_results([*([out] if out.exists() else []), *reuse], attack=experiment.attack)
    failures: list[Failure] = []
    first = table_of(experiment, results)
    check_table(first, out, overwrite=overwrite, growing=True)
    write_table(first, out)
    left = unfinished(cells, seeds or experiment.seeds, results)
    cell_of = {out / run_name(cell, spec): cell for cell, spec in left}
    bases = finished_runs([*([out] if out.exists() else []), *reuse]) if any(cell.asked for cell in cells) else {}
    todo = [
        Job(f"{cell.name}, seed {spec.seed}", spec, folder, experiment.attack, "", cell.asked, _base(spec, out, bases))
        for (folder, cell), (_, spec) in zip(cell_of.items(), left, strict=True)
    ]
    run = _run_here if jobs == 1 else functools.partial(run_with_bases, count=jobs)
    at_once = 0 if force else min(jobs, len(todo))
    for job, error in run(todo, observe=observe, overwrite=overwrite, at_once=at_once):
        if error is None:
            results.add(read_made(job.record_file))
        else:
            failures.append(Failure(cell_of[job.folder].name, job.spec.seed, error))
        write_table(table_of(experiment, results, failures), out)
    return Outcome(table_of(experiment, results, failures), failures)


def _run_here(
    todo: Sequence[Job], *, observe: Observe, overwrite: bool, at_once: int
) -> Iterator[tuple[Job, Exception | None]]:
    """Each run in this process, with the error where it failed."""
    graphs: dict[tuple[Any, ...], Any] = {}
    for job in todo:
        data = data_of(job.spec)
        try:
            if data not in graphs:
                graphs = {data: job.spec.load_graph()}  # one at a time: the cells of a column follow each other
            with observe(job.spec, job.name) as observer:
                make(job, graphs[data], observer=observer, overwrite=overwrite, at_once=at_once)
        except Exception as error:  # also an unexpected one: a week of runs does not end with one cell
            yield job, error
        else:
            yield job, None


def unfinished(cells: Sequence[Cell], seeds: Sequence[int], results: Results) -> list[tuple[Cell, RunSpec]]:
    """What is left to run, each run once: seed by seed, and column by column, whose cells mostly share their data."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    left: dict[tuple[RunSpec, Asked | None], Cell] = {}
    for seed in seeds:
        for cell in sorted(cells, key=lambda cell: columns.index(cell.column)):
            for spec in cell.candidates:
                if seed not in results.of_spec(spec, cell.asked):
                    left.setdefault((spec.replace(seed=seed), cell.asked), cell)
    return [(cell, spec) for (spec, _), cell in left.items()]


def finished_runs(places: Iterable[Path]) -> dict[tuple[RunSpec, int], Path]:
    """The folders of finished runs whose checkpoint is there, by what was run and seed."""
    found: dict[tuple[RunSpec, int], Path] = {}
    for path in (path for place in places if place.is_dir() for path in sorted(place.rglob(RECORD_FILE))):
        if (path.parent / CHECKPOINT).exists():
            with contextlib.suppress(RunError, SpecError):  # said where results are read
                record = read_record(path)
                found.setdefault((run_key(record.spec, attack=False), record.seed), path.parent)
    return found


def _base(spec: RunSpec, out: Path, bases: Mapping[tuple[RunSpec, int], Path]) -> Path:
    """Where the base run of a cell of unlearning lies, or is to be trained: once for all cells that need it."""
    return bases.get((run_key(spec, attack=False), spec.seed), out / "bases" / folder_name(spec))


def folder_name(spec: RunSpec, asked: Asked | None = None) -> str:
    """Of what is asked alone, spelled-out defaults aside: another version of the tables finds its checkpoint again.

    A default that changes must not find it, and does not: checkpoints name their options (`run_identity`).
    """
    plain, options = _defaults(type(spec)), spec.document()
    changed = {name: value for name, value in options.items() if value != plain.get(name)}
    changed |= {"asked": asked} if asked else {}
    digest = hashlib.sha256(msgspec.json.encode(changed, order="sorted")).hexdigest()
    words = f"{spec.data} {spec.algorithm} {spec.model} {asked.role if asked else ''}"
    return re.sub(r"[^\w.]+", "-", words)[:80].strip("-.") + f"-seed{spec.seed}-{digest[:8]}"


@functools.cache
def _defaults(kind: type[RunSpec]) -> dict[str, Any]:
    return kind().document()


def run_name(cell: Cell, spec: RunSpec) -> str:
    """The folder of a cell's run with one of its candidates.

    >>> from fkgsec.experiments.tasks.kge import Spec
    >>> run_name(Cell("TransE FedE-SVD+ R3", "", "", (), {}, {}, "", ""), Spec())
    'TransE-FedE-SVD-plus-R3-seed0'
    >>> run_name(Cell("TransE FedLU (local) C3", "", "", (), {}, {}, "", "", chosen="gamma"), Spec(gamma=20, seed=1))
    'TransE-FedLU-local-C3-gamma20-seed1'
    """
    plain = cell.name.replace("+", "-plus").replace("*", "-star")
    plain += f" {cell.chosen}{cell.choice(spec)}" if cell.chosen else ""
    return re.sub(r"[^\w.]+", "-", plain).strip("-") + f"-seed{spec.seed}"


def table_of(
    experiment: Experiment, results: Results, failures: Sequence[Failure] = (), *, whole: bool = False
) -> PaperTable:
    """The paper's table beside what is finished. Args: whole: see `Results.of`."""
    failed = {failure.cell: f"seed {failure.seed}: {failure.error}" for failure in failures}
    return make_paper_table(
        experiment,
        {cell.name: results.of(cell, whole=whole) for cell in experiment.cells},
        failed,
        {cell.name: results.tried(cell) for cell in experiment.cells if cell.chosen},
    )


def check_table(table: PaperTable, out: Path, *, overwrite: bool, growing: bool) -> None:
    """See that no other table is written over.

    Args:
        growing: the table of one experiment gets a figure with every run that finishes, which is no other table.

    Raises:
        RunError: `out` has the table of another experiment, or (unless `growing`) other figures of this one.
    """
    path = out / TABLE_FILE
    if overwrite or not path.exists():
        return
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        there = msgspec.json.decode(content, type=_Title)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        there = None
    if there != _Title(table.title, table.paper, table.table):
        raise refused(path, "is the table of another experiment")
    if not growing and content != _encode(table):
        raise refused(path)


def _encode(table: PaperTable) -> bytes:
    return msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n"


def write_table(table: PaperTable, out: Path) -> None:
    """Write table.json, table.md and table.png into a folder. Raises `RunError` when it cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out}: cannot be made ({error.strerror})") from error
    write_atomically(out / TABLE_FILE, _encode(table))
    write_atomically(out / MARKDOWN_FILE, "\n".join(table_lines(table)).encode() + b"\n")
    write_atomically(out / PICTURE_FILE, draw_table(table))
