"""Missing runs of papers' tables, as jobs.

    jobs = wanted_runs(read_experiments(), results, Path("runs/all"), num_seeds=1)
    print(jobs[0].cells, jobs[0].folder)

Cells of several tables share a run. A run is finished if its record exists, and started if its checkpoint exists, so that the
machine may stop at any time.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shlex
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fkgsec.experiments.cli.options import DATA_FIELDS
from fkgsec.experiments.papers.document import Asked
from fkgsec.experiments.papers.forgetting import FORGOTTEN_FILE
from fkgsec.experiments.papers.results import Results, run_key
from fkgsec.experiments.papers.spec import Cell, Experiment, select_names
from fkgsec.experiments.runs.run import RECORD_FILE
from fkgsec.experiments.runs.spec import RunSpec


class Job(NamedTuple):
    """Run to make.

    Attributes:
        attack: True if the run is attacked.
        command: the command for its record; empty for this process's.
        asked: in an unlearning table, the model to make from the run in the folder `base`; re-trained models have no base.
        cells: names of the cells that the run serves.
    """

    name: str
    spec: RunSpec
    folder: Path
    attack: bool = False
    command: str = ""
    asked: Asked | None = None
    base: Path | None = None
    cells: tuple[str, ...] = ()

    @property
    def record_file(self) -> Path:
        """File of its record."""
        return self.folder / (FORGOTTEN_FILE if self.asked else RECORD_FILE)


def data_of(spec: RunSpec) -> tuple[Any, ...]:
    """Return the key of a run's data."""
    return tuple(getattr(spec, name, None) for name in DATA_FIELDS)


def unfinished(cells: Sequence[Cell], seeds: Sequence[int], results: Results) -> list[tuple[Cell, RunSpec]]:
    """Return the missing runs of cells, each once: seed by seed and column by column, which mostly share their data.

    Args:
        cells: cells to run.
        seeds: seeds to run.
        results: the finished runs.
    """
    # Columns are data sets: consecutive runs then load their data once.
    columns = list(dict.fromkeys(cell.column for cell in cells))
    left: dict[tuple[RunSpec, Asked | None], Cell] = {}
    for seed in seeds:
        for cell in sorted(cells, key=lambda cell: columns.index(cell.column)):
            for spec in cell.candidates:
                if seed not in results.of_spec(cell, spec):
                    left.setdefault((cell.with_seed(spec, seed), cell.asked), cell)
    return [(cell, spec) for (spec, _), cell in left.items()]


def table_jobs(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    results: Results,
    out: Path,
    bases: Mapping[tuple[RunSpec, int], Path] | None = None,
) -> list[Job]:
    """Return the unfinished runs of a table.

    Args:
        cells: cells to run.
        seeds: seeds to run.
        results: the finished runs.
        out: folder with a subfolder for each run.
        bases: folders of finished base runs by `run_key` and seed.
    """
    jobs = []
    for cell, spec in unfinished(cells, seeds, results):
        base = None
        if cell.asked and cell.asked.role != "retrained":
            there = (bases or {}).get((run_key(spec, attack=False), spec.seed))
            base = there or out / "bases" / folder_name(spec)
        chosen = f" {cell.chosen} {cell.choice(spec)}" if cell.chosen else ""
        name = f"{cell.name}{chosen}, seed {spec.seed}"
        jobs.append(Job(name, spec, out / run_name(cell, spec), cell.attack, "", cell.asked, base, (cell.name,)))
    return jobs


def wanted_runs(
    experiments: Sequence[Experiment], results: Results, out: Path, *, num_seeds: int, only: str = ""
) -> list[Job]:
    """Return the missing runs of all tables at the papers' own settings; cells share runs.

    Args:
        experiments: tables.
        results: the finished runs.
        out: folder with a subfolder for each run.
        num_seeds: seeds of each cell.
        only: words of `TABLE-FILE CELL`, as for `select_cells`.

    Raises:
        SpecError: `only` matches no cell.
    """
    tables = [table for table in experiments if not table.base]
    names = select_names([f"{table.name} {cell.name}" for table in tables for cell in table.cells], only)
    jobs: dict[Hashable, Job] = {}
    # An attacked run also serves cells that need no attack.
    attacked: dict[Hashable, Hashable] = {}
    # Tables with attacks come first: their runs also serve the others.
    for table in sorted(tables, key=lambda table: not table.attack):
        for cell in (cell for cell in table.cells if f"{table.name} {cell.name}" in names):
            for spec in _missing(cell, table.seeds[0], results, num_seeds):
                plain = (run_key(spec, attack=False), spec.seed, cell.asked)
                key = attacked.get(plain, (run_key(spec, attack=table.attack), spec.seed, cell.asked))
                if table.attack:
                    attacked.setdefault(plain, key)
                if key not in jobs:
                    seeds = str(spec.seed - table.seeds[0] + 1)
                    command = ["fkgsec", "experiment", "run", table.name, "--only", cell.name, "--seeds", seeds]
                    base = out / folder_name(spec) if cell.asked and cell.asked.role != "retrained" else None
                    folder = out / folder_name(spec, cell.asked)
                    jobs[key] = Job("", spec, folder, table.attack, shlex.join(command), cell.asked, base)
                cells = (*jobs[key].cells, f"{table.name}: {cell.name}")
                jobs[key] = jobs[key]._replace(name=", ".join(cells[:3]), cells=cells)
    return list(jobs.values())


def _missing(cell: Cell, first: int, results: Results, num_seeds: int) -> Iterator[RunSpec]:
    """Yield the runs that a cell lacks for this many seeds with all candidates; any finished seed counts."""
    by_candidate = [results.of_spec(cell, spec) for spec in cell.candidates]
    whole = set.intersection(*map(set, by_candidate)) if by_candidate else set()
    # Seeds that are finished count, whichever they are.
    fresh = [seed for seed in range(first, first + num_seeds) if seed not in whole]
    for seed in fresh[: max(0, num_seeds - len(whole))]:
        for spec, records in zip(cell.candidates, by_candidate, strict=True):
            if seed not in records:
                yield cell.with_seed(spec, seed)


def folder_name(spec: RunSpec, asked: Asked | None = None) -> str:
    """Return the folder of a run by its settings without defaults, so that later versions of the tables find it again.

    If a default changes, its checkpoint is rejected, because checkpoints name their options (`run_identity`).

    Args:
        spec: the run.
        asked: in an unlearning table, the model to make from it.
    """
    plain, options = _defaults(type(spec)), spec.document()
    # Only differences from defaults, so that a new option keeps the folder's name.
    changed = {name: value for name, value in options.items() if value != plain.get(name)}
    changed |= {"asked": asked} if asked else {}
    # The words are for people; the digest identifies the settings.
    digest = hashlib.sha256(msgspec.json.encode(changed, order="sorted")).hexdigest()
    words = f"{spec.data} {spec.algorithm} {spec.model} {asked.role if asked else ''}"
    return re.sub(r"[^\w.]+", "-", words)[:80].strip("-.") + f"-seed{spec.seed}-{digest[:8]}"


@functools.cache
def _defaults(kind: type[RunSpec]) -> dict[str, Any]:
    return kind().document()


def run_name(cell: Cell, spec: RunSpec) -> str:
    """Return the folder of a cell's run with one of its candidates.

    >>> from fkgsec.experiments.tasks.kge import Spec
    >>> run_name(Cell("TransE FedE-SVD+ R3", "", "", (), {}, {}, "", ""), Spec())
    'TransE-FedE-SVD-plus-R3-seed0'
    >>> run_name(Cell("TransE FedLU (local) C3", "", "", (), {}, {}, "", "", chosen="gamma"), Spec(gamma=20, seed=1))
    'TransE-FedLU-local-C3-gamma20-seed1'
    """
    plain = cell.name.replace("+", "-plus").replace("*", "-star")
    plain += f" {cell.chosen}{cell.choice(spec)}" if cell.chosen else ""
    return re.sub(r"[^\w.]+", "-", plain).strip("-") + f"-seed{spec.seed}"
