"""The `fkgsec report` command: read runs, write one page.

fkgsec report runs/fede runs/secagg --out report.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.experiments.runs.writing import Overwrite, write_new

if TYPE_CHECKING:
    import pandas as pd

    from fkgsec.experiments.reporting.items import Run
    from fkgsec.experiments.runs.record import Record

EPILOG = (
    "Examples:\n\n  fkgsec report runs/mine\n\n  fkgsec report runs/defenses/comparison.json --out defenses.html\n\n"
    "  fkgsec report runs/mine check.json runs/mine-fedlu-audit"
)
_COLUMNS = (
    "item", "victim", "threat_model", "leak", "head", "relation", "tail",
    "guessed_head", "guessed_relation", "guessed_tail", "score", "right",
)  # fmt: skip


@expected_errors
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="run folders, records, comparisons (all cases of each), and folders of verify or what check --json wrote; the "
            "verdict that check left beside a run is found by itself"
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="the page to write")] = Path("report.html"),
    examples: Annotated[bool, typer.Option(help="show triples of the victims that the adversary claims")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Write one HTML page on finished runs: what leaked to whom, what the defense promises, utility, bytes, provenance."""
    from fkgsec.experiments.reporting.html.page import assemble, render
    from fkgsec.experiments.reporting.html.verdicts import judged_beside, read_judged
    from fkgsec.experiments.reporting.sheets import count

    if out.suffix not in (".html", ".htm"):
        raise SpecError(f"out must end with .html, so that no record is written over; got {out}")
    given = {path: made for path in runs if (made := read_judged(path)) is not None}
    places = [path for path in runs if path not in given]
    found = read_runs(places)
    if not found:
        raise RunError("a policy's verdict or an audit stands beside runs; give a run folder, too")
    judged = judged_beside(places, found) | {path.resolve(): made for path, made in given.items()}
    page = render(
        assemble(found, examples=examples, judged=[(_name(path), made) for path, made in judged.items()])
    ).encode()
    write_new(out, page, overwrite=overwrite)
    typer.echo(f"Written to {out}: {count(len(found), 'run')}, {len(page) / 1024:,.0f} KiB")


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in these folders, records and comparisons, each under a name of its own.

    Raises:
        RunError: something is missing, damaged, or scores that are not those of their record.
    """
    from fkgsec.experiments.reporting.items import Run

    runs: list[Run] = []
    seen: Counter[str] = Counter()
    for path in paths:
        for case, record, scores, candidates in _read(path):
            name = case if case and len(paths) == 1 else ": ".join(part for part in (_name(path), case) if part)
            seen[name] += 1
            runs.append(Run(f"{name} ({seen[name]})" if seen[name] > 1 else name, record, scores, candidates))
    return runs


def _name(path: Path) -> str:
    """The folder's name, or the file's where files of their own stand side by side."""
    from fkgsec.experiments.runs.compare import COMPARISON_FILE
    from fkgsec.experiments.runs.run import RECORD_FILE

    if path.is_file() and path.name not in (RECORD_FILE, COMPARISON_FILE):
        return path.stem
    return (path.parent if path.is_file() else path).resolve().name


Read: TypeAlias = "tuple[str, Record, pd.DataFrame | None, pd.DataFrame | None]"


def _read(path: Path) -> list[Read]:
    """The records at one place, with the case's name where it is a comparison's, and the scores that stand beside them."""
    from fkgsec.experiments.integrity.checks import require_whole
    from fkgsec.experiments.runs.compare import COMPARISON_FILE, folder_name, read_comparison
    from fkgsec.experiments.runs.record import read_record
    from fkgsec.experiments.runs.run import RECORD_FILE, SCORES_FILE

    if path.is_dir():
        inside = next((path / name for name in (RECORD_FILE, COMPARISON_FILE) if (path / name).exists()), None)
        if inside is None:
            raise RunError(
                f"{path}: has neither {RECORD_FILE} nor {COMPARISON_FILE}; give a run folder or one of these files"
            )
        path = inside
    comparison = read_comparison(path)
    if comparison is None:
        record = read_record(path)
        if path.name != RECORD_FILE:
            return [("", record, None, None)]
        require_whole(path.parent)
        return [("", record, *_read_scores(path.parent / SCORES_FILE, record))]
    for case in comparison.cases:
        if (folder := path.parent / folder_name(case.name)).joinpath(RECORD_FILE).exists():
            require_whole(folder)
    return [
        (case.name, case.record, *_read_scores(path.parent / folder_name(case.name) / SCORES_FILE, case.record))
        for case in comparison.cases
    ]


def _read_scores(path: Path, record: Record) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """The per-item scores of reconstruction, and those of membership; None where there are none.

    Raises:
        RunError: the file is damaged, is not the record's, or gives other figures than it.
    """
    from fkgsec.experiments.integrity.checks import check_shares
    from fkgsec.experiments.reporting.membership import candidates_of
    from fkgsec.experiments.runs.run import read_scores

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
