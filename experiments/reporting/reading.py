"""Finished runs, read from folders and files for tables, pictures and pages.

find_records([Path("runs")]).records          # every record below a folder by the run's name, damaged ones left out
read_runs([Path("runs/mine")])                # runs with their per-item scores; a damaged one is refused
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fkgsec.errors import FkgsecError, RunError
from fkgsec.experiments.integrity.checks import check_shares, require_whole
from fkgsec.experiments.reporting.items import Run
from fkgsec.experiments.reporting.membership import candidates_of
from fkgsec.experiments.runs.alone import find_alone
from fkgsec.experiments.runs.compare import COMPARISON_FILE, Case, folder_name, read_comparison
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import ATTACKS, RECORD_FILE, SCORES_FILE, read_scores

_COLUMNS = (
    "item", "victim", "threat_model", "leak", "head", "relation", "tail",
    "guessed_head", "guessed_relation", "guessed_tail", "score", "right",
)  # fmt: skip


class Found(NamedTuple):
    """Records by the name of their run, and a line for each file that cannot be read."""

    records: dict[str, Record]
    damaged: list[str]


def _cases(file: Path) -> list[Case]:
    """Read the cases of a comparison, or a record as one case without a name."""
    comparison = None if file.name == RECORD_FILE else read_comparison(file)
    return comparison.cases if comparison else [Case("", read_record(file))]


def find_records(paths: Sequence[Path]) -> Found:
    """Read the record of every finished run.

    Args:
        paths: folders, searched for record.json at any depth, and files of any name that are records or comparisons. A run
            is called by its folder's path below the one that was searched, or by its file's name (and the case).

    Raises:
        RunError: a path does not exist, or there is no record at all.
    """
    records: dict[str, Record] = {}
    damaged: list[str] = []
    for root in paths:
        if not root.exists():
            raise RunError(f"{root}: no such file or folder")
        for file in sorted(root.rglob(RECORD_FILE)) if root.is_dir() else [root]:
            try:
                cases = _cases(file)
            except FkgsecError as error:  # that of a value which this version does not allow names no file
                damaged.append(str(error) if str(error).startswith(str(file)) else f"{file}: {error}")
                continue
            name = name_of(file) if file.parent == root or root == file else file.parent.relative_to(root).as_posix()
            name = file.as_posix() if any(f"{name} {case.name}".strip() in records for case in cases) else name
            records |= {f"{name} {case.name}".strip(): case.record for case in cases}
    if not records and not damaged:
        raise RunError(
            f"{', '.join(map(str, paths))}: no {RECORD_FILE} at any depth; fkgsec train and attack write them"
        )
    return Found(records, damaged)


def name_of(path: Path) -> str:
    """Return the folder's name, or the file's where files of their own stand side by side."""
    if path.is_file() and path.name not in (RECORD_FILE, COMPARISON_FILE):
        return path.stem
    return (path.parent if path.is_file() else path).resolve().name


def places_of(path: Path) -> list[Path]:
    """Return the file of a run or comparison; of another folder all below it, the cases of a comparison by the comparison.

    Raises `RunError` where there are none.
    """
    if not path.is_dir():
        return [path]
    for name in (RECORD_FILE, COMPARISON_FILE):
        if (path / name).exists():
            return [path / name]
    compared = sorted(path.rglob(COMPARISON_FILE))
    folders = {file.parent for file in compared}
    single = [
        file
        for file in sorted(path.rglob(RECORD_FILE))
        if not folders.intersection(file.parents) and "attacks" not in file.parts
    ]
    if not single and not compared:
        raise RunError(
            f"{path}: no {RECORD_FILE} or {COMPARISON_FILE} in it or below; give a run folder or one of these"
        )
    return [*single, *compared]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs in these folders, records and comparisons with their scores, each under a name of its own.

    Raises:
        RunError: something is missing, damaged, or scores that are not those of their record.
    """
    runs: list[Run] = []
    seen: Counter[str] = Counter()
    files = [file for path in paths for file in places_of(path)]
    for file in files:
        cases = _cases(file)
        folders = [file.parent / folder_name(case.name) if case.name else file.parent for case in cases]
        is_folder = file.name == RECORD_FILE or cases[0].name
        for folder in folders:
            if is_folder and (folder / RECORD_FILE).exists():
                require_whole(folder)
        for case, folder in zip(cases, folders, strict=True):
            name = case.name if case.name and len(files) == 1 else ": ".join(filter(None, (name_of(file), case.name)))
            seen[name] += 1
            name = f"{name} ({seen[name]})" if seen[name] > 1 else name
            beside = is_folder and folder.exists()  # a copied comparison has no runs beside it
            scores = _read_scores(folder / SCORES_FILE, case.record) if beside else (None, None)
            runs.append(Run(name, case.record, *scores, _read_alone(case.record, folder) if beside else None))
    return runs


def _read_alone(record: Record, folder: Path) -> Record | None:
    """Read the run of the same clients alone beside a run, or beside the run that a further attack is on; None without one."""
    of_attack = folder.absolute().parent
    found = find_alone(record, of_attack.parent if of_attack.name == ATTACKS else folder)
    return None if found is None else read_record(found / RECORD_FILE)


def _read_scores(path: Path, record: Record) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Read the per-item scores of reconstruction, and those of membership; None where there are none.

    Raises:
        RunError: the file is damaged, is not the record's, or gives other figures than it.
    """
    scores = read_scores(path, record)
    if scores is None or not len(scores):
        return None, None
    try:
        candidates = candidates_of(scores)
    except (KeyError, ValueError) as error:
        raise RunError(f"{path}: not the scores of an attack ({error})") from error
    if not record.rebuilt:  # nothing to attack, counts only, or nothing rebuilt
        return None, candidates
    if missing := [name for name in _COLUMNS if name not in scores]:
        raise RunError(f"{path}: not the scores of an attack; columns that are not there: {', '.join(missing)}")
    check_shares(path, record, scores)
    return scores, candidates
