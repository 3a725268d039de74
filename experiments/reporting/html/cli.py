"""The `fkgsec report` command: read runs, write one page.

fkgsec report runs/fede runs/secagg --out report.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from pyarrow import ArrowException

from attacks.reconstruction.leakage import Item
from attacks.view import ALL
from experiments.cli.console import expected_errors
from experiments.reporting.frames import attack_name
from experiments.reporting.html.model import Run
from experiments.reporting.html.page import assemble, render
from experiments.reporting.html.tables import attacked_items
from experiments.reporting.html.words import count
from experiments.runs.compare import COMPARISON_FILE, folder_name, read_comparison
from experiments.runs.record import Record, read_record
from experiments.runs.run import RECORD_FILE, SCORES_FILE
from experiments.runs.writing import Overwrite, write_new
from fkgsec.errors import RunError, SpecError
from fkgsec.estimate import Estimate

EPILOG = "Examples:\n\n  fkgsec report runs/mine\n\n  fkgsec report runs/defenses/comparison.json --out defenses.html"
_COLUMNS = (
    "item", "victim", "threat_model", "leak", "head", "relation", "tail",
    "guessed_head", "guessed_relation", "guessed_tail", "score", "right",
)  # fmt: skip


@expected_errors
def report(
    runs: Annotated[list[Path], typer.Argument(help="run folders, records, or comparisons (all cases of each)")],
    out: Annotated[Path, typer.Option("--out", help="the page to write")] = Path("report.html"),
    examples: Annotated[bool, typer.Option(help="show triples of the victims that the adversary claims")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Write one HTML page on finished runs: what leaked to whom, what the defense promises, utility, bytes, provenance."""
    if out.suffix not in (".html", ".htm"):
        raise SpecError(f"out must end with .html, so that no record is written over; got {out}")
    found = read_runs(runs)
    page = render(assemble(found, examples=examples)).encode()
    write_new(out, page, overwrite=overwrite)
    typer.echo(f"Written to {out}: {count(len(found), 'run')}, {len(page) / 1024:,.0f} KiB")


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in these folders, records and comparisons, each under a name of its own.

    Raises:
        RunError: something is missing, damaged, or scores that are not those of their record.
    """
    runs: list[Run] = []
    seen: Counter[str] = Counter()
    for path in paths:
        for case, record, scores in _read(path):
            name = case if case and len(paths) == 1 else ": ".join(part for part in (_name(path), case) if part)
            seen[name] += 1
            runs.append(Run(f"{name} ({seen[name]})" if seen[name] > 1 else name, record, scores))
    return runs


def _name(path: Path) -> str:
    """The folder's name, or the file's where files of their own stand side by side."""
    if path.is_file() and path.name not in (RECORD_FILE, COMPARISON_FILE):
        return path.stem
    return (path.parent if path.is_file() else path).resolve().name


def _read(path: Path) -> list[tuple[str, Record, pd.DataFrame | None]]:
    """The records at one place, with the case's name where it is a comparison's, and the scores that stand beside them."""
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
        return [("", record, _read_scores(path.parent / SCORES_FILE, record) if path.name == RECORD_FILE else None)]
    return [
        (case.name, case.record, _read_scores(path.parent / folder_name(case.name) / SCORES_FILE, case.record))
        for case in comparison.cases
    ]


def _read_scores(path: Path, record: Record) -> pd.DataFrame | None:
    """The per-item scores of a record; None when there are none.

    Raises:
        RunError: the file is damaged, or gives other figures than the record.
    """
    if not path.exists():
        return None
    try:
        scores = pd.read_parquet(path)
    except (OSError, ArrowException) as error:
        raise RunError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    if not len(scores) or not record.leakage:  # attacks that found nothing to attack, count only, or rebuild nothing
        return None
    missing = [name for name in _COLUMNS if name not in scores]
    if missing:
        raise RunError(f"{path}: not the scores of an attack; columns that are not there: {', '.join(missing)}")
    for row in record.leakage:
        if row.reason or row.victim == ALL:
            continue
        figures: tuple[tuple[Item, Estimate, bool], ...] = (
            ("entity", row.err, row.err_by == "baseline"),
            ("triple", row.trr, row.trr_by in ("majority", "prior")),
        )
        for item, figure, expected in figures:  # a baseline's figure is an expectation, of which no item tells
            if expected:
                continue
            right = attacked_items(scores, row, item)["right"]
            if not len(right) or abs(right.mean() - figure.value) > 1e-9:
                raise RunError(
                    f"{path}: not the scores of its record: {attack_name(row.threat_model, row.leak)}, {row.victim}, {item}: "
                    f"{right.sum():,} of {len(right):,} right, the record says {figure.value:.6f} of {figure.n:,}"
                )
    return scores
