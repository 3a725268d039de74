"""Whether what was put together from several runs says what their records say: a comparison, and a training of several seeds.

for check in check_comparison(Path("runs/compared/comparison.json")):
    print(check.what, check.outcome)                         # case fedr holds
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from experiments.integrity.checks import Check
from experiments.runs.compare import folder_name, read_comparison
from experiments.runs.record import Record, read_if_of, read_record
from experiments.runs.run import RECORD_FILE
from experiments.runs.seeds import SCHEMA, SeedsRecord, record_of
from fkgsec.errors import FkgsecError, RunError


def check_comparison(path: Path) -> Iterator[Check]:
    """Each case beside the records in its folder, one of which it must be."""
    try:
        comparison = read_comparison(path)
        if comparison is None:
            raise RunError(f"{path}: no comparison of this version")
    except FkgsecError as error:
        yield Check("comparison", "broken", str(error))
        return
    for case in comparison.cases:
        yield _check_case(f"case {case.name}", case.record, path.parent / folder_name(case.name))


def _check_case(what: str, record: Record, folder: Path) -> Check:
    files = sorted(folder.rglob(RECORD_FILE))
    if not files:
        return Check(what, "unverifiable", f"{folder}: has no {RECORD_FILE}")
    try:
        same = any(read_record(file) == record for file in files)
    except FkgsecError as error:
        return Check(what, "broken", str(error))
    return Check(what, "holds") if same else Check(what, "broken", f"{folder}: no record in it is the case's")


def check_seeds(path: Path) -> Iterator[Check]:
    """The figures over all seeds, computed anew from the records of each."""
    try:
        several = read_if_of(path, SCHEMA, SeedsRecord)
        if several is None:
            raise RunError(f"{path}: no record of several seeds of this version")
        records = [read_record(path.parent / run / RECORD_FILE) for run in several.runs]
        again = record_of(records) if records else None
        if again is None or again.figures != several.figures:
            raise RunError(f"{path}: its figures are not those of {', '.join(several.runs) or 'any run'}")
        again = msgspec.structs.replace(again, spec=again.spec.settled())
        said = msgspec.structs.replace(several, spec=several.spec.settled())
        if wrong := [name for name in said.__struct_fields__ if getattr(again, name) != getattr(said, name)]:
            raise RunError(f"{path}: {', '.join(wrong)} not as in the records of its runs")
    except FkgsecError as error:
        yield Check("seeds", "broken", str(error))
        return
    yield Check("seeds", "holds")
