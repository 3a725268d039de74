"""Whether what was put together from several runs says what their records say: a comparison, and a training of several seeds.

for check in check_comparison(Path("runs/compared/comparison.json")):
    print(check.what, check.outcome)                         # case fedr holds
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fkgsec.errors import FkgsecError, RunError
from fkgsec.experiments.integrity.checks import Check
from fkgsec.experiments.runs.compare import folder_name, read_comparison
from fkgsec.experiments.runs.record import Record, read_if_of, read_record
from fkgsec.experiments.runs.run import ATTACKS, RECORD_FILE
from fkgsec.experiments.runs.seeds import SCHEMA, SeedsRecord, record_of
from fkgsec.experiments.tasks.spec import RunSpec


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
    """All that is said over several seeds, from the records of each: of the runs, or of an attack on all of them."""
    try:
        several = read_if_of(path, SCHEMA, SeedsRecord)
        if several is None:
            raise RunError(f"{path}: no record of several seeds of this version")
        if not several.runs:
            raise RunError(f"{path}: its figures are not those of any run")
        runs = [path.parent / run for run in several.runs]
        made = [[run / RECORD_FILE for run in runs], [_attack_of(several.spec, run) for run in runs]]
        wrong = [_unlike(several, records) for records in made if all(one.exists() for one in records)]
        if all(wrong):
            unlike = ", ".join(min(wrong, key=len, default=["no record"]))
            raise RunError(f"{path}: {unlike} not as in the records of {', '.join(several.runs)}")
    except FkgsecError as error:
        yield Check("seeds", "broken", str(error))
        return
    yield Check("seeds", "holds")


def _attack_of(spec: RunSpec, run: Path) -> Path:
    """Where a run's folder has the record of an attack of this spec, whatever its seed; without one a place where nothing is."""
    for path in sorted(run.glob(f"{ATTACKS}/*/{RECORD_FILE}")):
        if read_record(path).spec.settled().replace(seed=spec.seed) == spec.settled():
            return path
    return run / ATTACKS / RECORD_FILE


def _unlike(several: SeedsRecord, records: Sequence[Path]) -> list[str]:
    """The fields that these records give otherwise. Raises `RunError` for one that cannot be read."""
    again = record_of([read_record(path) for path in records])
    again, said = (msgspec.structs.replace(one, spec=one.spec.settled()) for one in (again, several))
    return [name for name in said.__struct_fields__ if getattr(again, name) != getattr(said, name)]
