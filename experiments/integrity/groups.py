"""Check that a comparison, or a training with several seeds, agrees with the records of its runs.

for check in check_comparison(Path("runs/compared/comparison.json")):
    print(check.what, check.outcome)                         # case fedr holds
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from fkgsec.errors import FkgsecError, RunError
from fkgsec.experiments.integrity.checks import Check, checked
from fkgsec.experiments.runs.compare import folder_name, read_comparison
from fkgsec.experiments.runs.record import read_if_of, read_record
from fkgsec.experiments.runs.run import ATTACKS, RECORD_FILE
from fkgsec.experiments.runs.seeds import SCHEMA, SeedsRecord, record_of


def check_comparison(path: Path) -> Iterator[Check]:
    """Compare each case with the records in its folder; it must equal one of them.

    Args:
        path: file of the comparison.
    """
    try:
        comparison = read_comparison(path)
        if comparison is None:
            raise RunError(f"{path}: not a comparison of this version")
    except FkgsecError as error:
        yield Check("comparison", "broken", str(error))
        return
    for case in comparison.cases:
        folder = path.parent / folder_name(case.name)

        def _same(case=case, folder=folder) -> str | None:
            files = sorted(folder.rglob(RECORD_FILE))
            if files and not any(read_record(file) == case.record for file in files):
                raise RunError(f"{folder}: contains no record equal to the case")
            return None if files else f"{folder}: has no {RECORD_FILE}"

        yield checked(f"case {case.name}", _same)


def check_seeds(path: Path) -> Iterator[Check]:
    """Compare the figures over several seeds with each seed's record: of the run, or of an attack on it.

    Args:
        path: file of the figures over seeds.
    """
    yield checked("seeds", lambda: _check_seeds(path))


def _check_seeds(path: Path) -> None:
    several = read_if_of(path, SCHEMA, SeedsRecord)
    if several is None:
        raise RunError(f"{path}: not a record of several seeds of this version")
    if not several.runs:
        raise RunError(f"{path}: names no run")
    settled = msgspec.structs.replace(several, spec=several.spec.settled())
    runs = [path.parent / run for run in several.runs]
    # The figures may also be of a later attack on each run, with the same options except for the seed.
    attacks = [
        next(
            (
                file
                for file in sorted(run.glob(f"{ATTACKS}/*/{RECORD_FILE}"))
                if read_record(file).spec.settled().replace(seed=settled.spec.seed) == settled.spec
            ),
            run / ATTACKS / RECORD_FILE,  # does not exist
        )
        for run in runs
    ]
    wrong: list[list[str]] = []
    for files in ([run / RECORD_FILE for run in runs], attacks):
        if all(file.exists() for file in files):
            again = record_of([read_record(file) for file in files])
            again = msgspec.structs.replace(again, spec=again.spec.settled())
            wrong.append([name for name in settled.__struct_fields__ if getattr(again, name) != getattr(settled, name)])
    # Agreement with either the runs or the attacks is enough.
    if all(wrong):
        unlike = ", ".join(min(wrong, key=len, default=["no record"]))
        raise RunError(f"{path}: {unlike} differ from the records of {', '.join(several.runs)}")
