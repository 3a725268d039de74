"""Finished runs, read from folders and files for tables, pictures and pages.

find_records([Path("runs")]).records          # all records below a folder by the run's name, without damaged ones
read_runs([Path("runs/mine")])                # runs with their per-item scores; damaged runs are refused
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


class FoundRecords(NamedTuple):
    """Records by the name of their run, and a line for each file that cannot be read."""

    records: dict[str, Record]
    damaged: list[str]


def _cases(file: Path) -> list[Case]:
    """Read the cases of a comparison, or a record as one case without a name."""
    # A record's standard name needs no look inside.
    comparison = None if file.name == RECORD_FILE else read_comparison(file)
    return comparison.cases if comparison else [Case("", read_record(file))]


def find_records(paths: Sequence[Path]) -> FoundRecords:
    """Read the record of every finished run.

    Args:
        paths: folders, searched for record.json at any depth, and record or comparison files with any name. A run is named
            after its folder's path below the searched folder, or after its file (and the case).

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
            except FkgsecError as error:
                # Errors about a value do not name the file.
                damaged.append(str(error) if str(error).startswith(str(file)) else f"{file}: {error}")
                continue
            name = name_of(file) if file.parent == root or root == file else file.parent.relative_to(root).as_posix()
            # Searched folders may contain runs of the same name; the whole path is unique.
            name = file.as_posix() if any(f"{name} {case.name}".strip() in records for case in cases) else name
            records |= {f"{name} {case.name}".strip(): case.record for case in cases}
    if not records and not damaged:
        raise RunError(
            f"{', '.join(map(str, paths))}: no {RECORD_FILE} at any depth; fkgsec train and attack write them"
        )
    return FoundRecords(records, damaged)


def name_of(path: Path) -> str:
    """Return the folder's name; for a renamed record or comparison, the file's name.

    Args:
        path: a folder or file of a run.
    """
    if path.is_file() and path.name not in (RECORD_FILE, COMPARISON_FILE):
        return path.stem
    return (path.parent if path.is_file() else path).resolve().name


def places_of(path: Path) -> list[Path]:
    """Return the files of runs and comparisons at a path.

    Args:
        path: a file; a folder of a run or comparison; or any other folder, which is searched. A comparison stands for the runs
            of its cases.

    Raises:
        RunError: the folder contains neither.
    """
    if not path.is_dir():
        return [path]
    for name in (RECORD_FILE, COMPARISON_FILE):
        if (path / name).exists():
            return [path / name]
    # The runs of a comparison's cases lie below it and must not be listed twice.
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
    """Read the runs in folders, records and comparisons, with their scores, each under a distinct name.

    Args:
        paths: see `places_of`.

    Raises:
        RunError: a file is missing or damaged, or scores do not belong to their record.
    """
    runs: list[Run] = []
    seen: Counter[str] = Counter()
    files = [file for path in paths for file in places_of(path)]
    for file in files:
        cases = _cases(file)
        folders = [file.parent / folder_name(case.name) if case.name else file.parent for case in cases]
        # A record that was copied out of its folder has no scores next to it.
        is_folder = file.name == RECORD_FILE or cases[0].name
        for folder in folders:
            # Refuse damaged runs before reading their large files of scores.
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
    """Read the run of the same clients alone, next to a run or to the run that a later attack used; None if there is none."""
    # A later attack lies in RUN/attacks/NAME, and the clients alone lie next to RUN.
    of_attack = folder.absolute().parent
    alone_folder = find_alone(record, of_attack.parent if of_attack.name == ATTACKS else folder)
    return None if alone_folder is None else read_record(alone_folder / RECORD_FILE)


def _read_scores(path: Path, record: Record) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Read the per-item scores of reconstruction, and those of membership; None if there are none.

    Raises:
        RunError: the file is damaged, does not belong to the record, or contradicts its figures.
    """
    scores = read_scores(path, record)
    if scores is None or not len(scores):
        return None, None
    try:
        candidates = candidates_of(scores)
    except (KeyError, ValueError) as error:
        raise RunError(f"{path}: not the scores of an attack ({error})") from error
    # Nothing to attack, only counts, or nothing rebuilt.
    if not record.rebuilt:
        return None, candidates
    if missing := [name for name in _COLUMNS if name not in scores]:
        raise RunError(f"{path}: not the scores of an attack; missing columns: {', '.join(missing)}")
    check_shares(path, record, scores)
    return scores, candidates
