"""The runs that the papers' tables are missing at their own settings, and what each is expected to take.

    wanted = wanted_runs(read_experiments(), results, num_seeds=1)
    entries = entries_of(wanted, Path("runs/all"), costs)
    print(entries[0].wanted.cells, entries[0].left_s)

Cells of several tables share a run. A run is finished where its record lies, and begun where its checkpoint does, so that a
machine may stop at any time.
"""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from fkgsec.errors import FkgsecError, RunError
from fkgsec.experiments.papers.document import Asked
from fkgsec.experiments.papers.estimates import Costs, Estimated
from fkgsec.experiments.papers.runner import Results, folder_name, run_key
from fkgsec.experiments.papers.spec import Cell, Experiment, select_names
from fkgsec.experiments.runs.run import RECORD_FILE
from fkgsec.experiments.runs.spec import RunSpec
from fkgsec.federation.checkpoint import stands_at
from fkgsec.federation.loop import CHECKPOINT

State = Literal["finished", "begun", "to make", "cannot be made"]
UNLEARNING_WORK = 1.2  # an epoch of decay over one of training, measured on FB15k-237-C3 (results/unlearning)


class Wanted(NamedTuple):
    """A run that cells are missing; `cells` says which, `attack` whether one of them needs it attacked."""

    spec: RunSpec
    attack: bool
    cells: tuple[str, ...]
    command: str
    asked: Asked | None = None

    @property
    def folder_name(self) -> str:
        """See `fkgsec.experiments.papers.runner.folder_name`."""
        return folder_name(self.spec, self.asked)

    @property
    def base(self) -> str:
        """The folder of the run that is unlearned; empty where nothing is, or nothing is needed for it."""
        return folder_name(self.spec) if self.asked and self.asked.role != "retrained" else ""


class Entry(NamedTuple):
    """A run of a plan. `folder`: of the run. `error`: why it cannot be made."""

    wanted: Wanted
    folder: Path
    state: State
    estimate: Estimated
    rounds_done: int = 0
    error: str = ""

    @property
    def left_s(self) -> float:
        """CPU seconds that it is expected to take yet."""
        return 0.0 if self.state in ("finished", "cannot be made") else self.estimate.left(self.rounds_done)


def entries_of(wanted: Iterable[Wanted], folder: Path, costs: Costs) -> list[Entry]:
    """Each run as it stands in a folder, where it has a folder of its own; a base run counts for the first that needs it."""
    bases, entries = set[Path](), list[Entry]()
    for one in wanted:
        base = folder / one.base if one.base else None
        base_done = base is not None and (base in bases or (base / RECORD_FILE).exists())
        entries.append(entry_of(one, folder / one.folder_name, costs, base=base, base_done=base_done))
        bases |= {base} if base else set()
    return entries


def entry_of(wanted: Wanted, folder: Path, costs: Costs, *, base: Path | None, base_done: bool) -> Entry:
    """A run as it stands in its folder. Args: base: the folder of the run that is unlearned. base_done: it is no cost."""
    done = 0
    with contextlib.suppress(RunError):  # no checkpoint, or a damaged one
        done = stands_at((base or folder) / CHECKPOINT)[1]
    try:
        found = costs.of(wanted.spec, attack=wanted.attack)
    except FkgsecError as error:  # its data cannot be read
        return Entry(wanted, folder, "cannot be made", Estimated(0.0, 0, ""), done, " ".join(str(error).split()))
    rounds, says = found.rounds, found.says
    if base:
        options, epochs = wanted.asked and wanted.asked.options, getattr(wanted.spec, "local_epochs", 1)
        further = 1 if options is None else 1 + math.ceil(UNLEARNING_WORK * options.decay_epochs / epochs)
        rounds, done = (further, 0) if base_done else (rounds + further, done)
        says += f"; {further} more to unlearn and measure" + ("; its run is there" if base_done else "")
    return Entry(wanted, folder, "begun" if done else "to make", found._replace(rounds=rounds, says=says), done)


def wanted_runs(
    experiments: Sequence[Experiment], results: Mapping[bool, Results], *, num_seeds: int, only: str = ""
) -> list[Wanted]:
    """The runs that the cells of all tables at the papers' own settings are missing; those that cells share, once.

    Args:
        results: of finished runs, by whether attacks count. only: as for `select_cells`, in `TABLE-FILE CELL`.

    Raises:
        SpecError: `only` leaves no cell.
    """
    tables = [one for one in experiments if not one.base]
    kept = select_names([f"{one.name} {cell.name}" for one in tables for cell in one.cells], only)
    found: dict[Hashable, Wanted] = {}
    attacked: dict[Hashable, Hashable] = {}  # a run that is attacked serves cells that need no attack
    for table in sorted(tables, key=lambda one: not one.attack):
        for cell in table.cells:
            if f"{table.name} {cell.name}" not in kept:
                continue
            for spec in _missing(cell, table, results[table.attack], num_seeds):
                name, plain = f"{table.name}: {cell.name}", (run_key(spec, attack=False), spec.seed, cell.asked)
                key = attacked.get(plain, (run_key(spec, attack=table.attack), spec.seed, cell.asked))
                if table.attack:
                    attacked.setdefault(plain, key)
                one = found.setdefault(
                    key, Wanted(spec, table.attack, (), _command(table, cell, spec.seed), cell.asked)
                )
                found[key] = one._replace(cells=(*one.cells, name))
    return list(found.values())


def _missing(cell: Cell, table: Experiment, results: Results, num_seeds: int) -> Iterator[RunSpec]:
    """What a cell lacks of so many seeds, each with all candidates; seeds that are finished count, whichever they are."""
    by_candidate = [results.of_spec(spec, cell.asked) for spec in cell.candidates]
    whole = set.intersection(*(set(found) for found in by_candidate)) if by_candidate else set()
    first = table.seeds[0]
    fresh = [seed for seed in range(first, first + num_seeds + len(whole)) if seed not in whole]
    for seed in fresh[: max(0, num_seeds - len(whole))]:
        for spec, found in zip(cell.candidates, by_candidate, strict=True):
            if seed not in found:
                yield spec.replace(seed=seed)


def _command(table: Experiment, cell: Cell, seed: int) -> str:
    """What makes this run by itself, among others of that cell."""
    count = seed - table.seeds[0] + 1
    return shlex.join(["fkgsec", "experiment", "run", table.name, "--only", cell.name, "--seeds", str(count)])


def papers_rounds(experiments: Iterable[Experiment]) -> dict[RunSpec, int]:
    """By run, the round at which the papers print that their own had converged (R@CG)."""
    found = {}
    for cell in (cell for one in experiments if not one.base for cell in one.cells):
        printed = cell.figures.get("r@cg")
        if printed is not None:
            found |= {run_key(spec, attack=False): round(printed) for spec in cell.candidates}
    return found
