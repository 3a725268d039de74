"""Finished records, grouped by run.

records, unreadable = read_records([Path("results")])
Results(records).of(cell)                     # {0: the record of seed 0}
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.options import ATTACK_FIELDS
from fkgsec.experiments.integrity.origin import seal_of
from fkgsec.experiments.papers.document import Asked
from fkgsec.experiments.papers.forgetting import Forgotten, read_forgotten
from fkgsec.experiments.papers.spec import Cell
from fkgsec.experiments.runs.record import Record, is_record, read_record
from fkgsec.experiments.runs.run import RECORD_FILE
from fkgsec.experiments.runs.spec import RunSpec

Made = Record | Forgotten


class Results:
    """Finished records by run. Seeds, device and spelled-out defaults do not distinguish runs.

    Among several records of one run and seed, the first with outcomes by test item counts, else the first.
    """

    def __init__(self, records: Iterable[Made] = ()) -> None:
        self._records: dict[tuple[bool, RunSpec, Asked | None], dict[int, Made]] = {}
        for record in records:
            self.add(record)

    def add(self, record: Made) -> None:
        """Add a record. Cells that are attacked need an attacked one.

        Args:
            record: a finished run, or an unlearned model.
        """
        unlearned = record.asked if isinstance(record, Forgotten) else None
        # An attacked run also serves cells that need no attack.
        for attack in (False, True) if unlearned is None and run_of(record).rebuilt else (False,):
            seeds = self._records.setdefault((attack, run_key(record.spec, attack=attack), unlearned), {})
            # Outcomes by test item allow paired comparisons, so they are preferred.
            earlier = seeds.setdefault(record.seed, record)
            if run_of(earlier).items is None and run_of(record).items is not None:
                seeds[record.seed] = record

    def of(self, cell: Cell, *, whole: bool = False) -> dict[int, Made]:
        """Return a cell's record for each seed: among its candidates, the first with the best validation.

        Args:
            whole: leave out seeds for which a candidate is missing.

        Raises:
            RunError: several candidates, and data without a validation split.
        """
        # A choice by validation is fair only if every value was tried.
        least = len(cell.candidates) if whole else 1
        return {seed: _best(cell, records) for seed, records in self.tried(cell).items() if len(records) >= least}

    def tried(self, cell: Cell) -> dict[int, list[Made]]:
        """Return the records of a cell's candidates, by seed."""
        by_candidate = [self.of_spec(cell, spec) for spec in cell.candidates]
        seeds = sorted({seed for records in by_candidate for seed in records})
        return {seed: [records[seed] for records in by_candidate if seed in records] for seed in seeds}

    def of_spec(self, cell: Cell, spec: RunSpec) -> dict[int, Made]:
        """Return the records of one of a cell's candidates, by seed.

        Args:
            spec: one of its candidates.
        """
        return self._records.get((cell.attack, run_key(spec, attack=cell.attack), cell.asked), {})


def _best(cell: Cell, records: Sequence[Made]) -> Made:
    """Return the record with the best validation; for unlearned models, that of their base runs."""
    best, *others = records
    for record in others:
        reached, to_beat = (run.rounds[run.best_round].valid for run in (run_of(record), run_of(best)))
        if reached is None or to_beat is None:
            data = best.spec.data
            raise RunError(f"{cell.name}: {cell.chosen} cannot be chosen on validation, {data} has no valid split")
        best = record if reached > to_beat else best
    return best


def run_of(record: Made) -> Record:
    """Return the record of the run itself; for an unlearned model, that of its base run."""
    return record.run if isinstance(record, Forgotten) else record


@functools.cache
def run_key(spec: RunSpec, *, attack: bool) -> RunSpec:
    """Return the spec without settings in which the runs of a cell may differ: seeds, device and options of attacks.

    Args:
        spec: the run.
        attack: keep the options of attacks.
    """
    # A division with any seed counts.
    changes: dict[str, Any] = {"seed": 0, "split_seed": 0}
    if not attack:
        plain = type(spec)()
        # Without an attack, its options do not distinguish runs.
        changes |= {name: getattr(plain, name) for name in ATTACK_FIELDS if hasattr(plain, name)}
    return spec.settled().replace(**changes)


def read_made(path: Path) -> Made | None:
    """Read a record of either kind; None for JSON of another kind.

    Args:
        path: a JSON file.

    Raises:
        RunError: it is damaged, or has changed since it was written.
    """
    if path.name != RECORD_FILE and not is_record(path):
        return read_forgotten(path)
    record = read_record(path)
    seal = record.origin.record if record.origin else ""
    # Fields of versions with digests.
    if not seal and (record.origin or record.environment.vector_level):
        raise RunError(f"{path}: has no digest, which records of its version have")
    if seal and seal != seal_of(msgspec.json.decode(path.read_bytes())):
        raise RunError(f"{path}: has changed since it was written: its digest differs")
    return record


def read_records(places: Iterable[Path]) -> tuple[list[Made], list[str]]:
    """Read JSON files of records, and all JSON files below folders.

    Args:
        places: files and folders.

    Returns:
        The records, and a line for each unreadable file below a folder. Files of other kinds are ignored.

    Raises:
        RunError: a place does not exist, or a named file cannot be read.
    """
    records, unreadable = list[Made](), list[str]()
    for place in places:
        if not place.exists():
            raise RunError(f"{place}: is not there")
        for path in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
            try:
                record = read_made(path)
            except (RunError, SpecError) as error:
                if path == place:
                    raise
                unreadable.append(str(error))
            else:
                records += [record] if record else []
    return records, unreadable
