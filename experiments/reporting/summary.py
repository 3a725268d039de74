"""Tables of records, comparisons and verifications in Markdown or JSON.

python -m fkgsec.experiments.reporting.summary results/*.json
python -m fkgsec.experiments.reporting.summary --matrix results/attacks/matrix/hospitals-*.json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fkgsec.errors import RunError
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.experiments.reporting.frames import every_variant, figure_frame
from fkgsec.experiments.reporting.matrix import matrix, over_seeds, sheet
from fkgsec.experiments.reporting.sheets import Sheet, json_rows, markdown_lines
from fkgsec.experiments.reporting.tables import figure_sheet, runs_sheet
from fkgsec.experiments.runs.compare import read_comparison
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.unlearning.certificate import audit_sheet, quality_sheet
from fkgsec.experiments.unlearning.verification import Verification, read_verification
from fkgsec.text import printable


def matrix_lines(files: Sequence[Path]) -> list[str]:
    """Write the matrix of a comparison, or of the means over several seeds, in Markdown.

    Args:
        files: comparisons of the same cases, one per seed.

    Raises:
        RunError: a file is not a comparison, or the cases differ.
    """
    matrices = []
    for path in files:
        if (comparison := read_comparison(path)) is None:
            raise RunError(f"{path}: not a comparison")
        matrices.append(matrix({case.name: case.record for case in comparison.cases}))
    # Several comparisons are seeds of one experiment.
    shown = sheet(matrices[0]) if len(matrices) == 1 else over_seeds(matrices)
    return [*markdown_lines(shown), "", *(f"* {' '.join(note.split())}" for note in shown.notes)]


def summary_sheets(files: Sequence[Path]) -> list[Sheet]:
    """Return the tables of files: runs (a table for each task and comparison), figures, and verifications.

    Args:
        files: records, comparisons and verifications, in any order.
    """
    groups: dict[str, dict[str, Record]] = {}
    verifications: dict[str, Verification] = {}
    for path in files:
        # Files with a standard name are told apart by their folders.
        name = path.parent.name if path.stem in ("record", "comparison", "verification") else path.stem
        if (comparison := read_comparison(path)) is not None:
            groups[name] = {f"{name} {case.name}": case.record for case in comparison.cases}
        elif (verification := read_verification(path)) is not None:
            verifications[name] = verification
        else:
            record = read_record(path)
            groups.setdefault(f"task {record.spec.task}", {})[name] = record
    figures = figure_frame(
        {run: record.figures for group in groups.values() for run, record in group.items()}, every_variant
    )
    return [
        *map(runs_sheet, groups.values()),
        *([figure_sheet(figures, "Figures of attacks")] if len(figures) else []),
        *([quality_sheet(verifications), audit_sheet(verifications)] if verifications else []),
    ]


def main(
    files: Annotated[list[Path], typer.Argument(help="record, comparison or verification files")],
    as_matrix: Annotated[
        bool,
        typer.Option(
            "--matrix", help="comparisons only: adversaries by case; several files count as seeds of one comparison"
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the tables as JSON")] = False,
) -> None:
    """Print the tables of these files."""
    if as_matrix:
        lines = matrix_lines(files)
    elif as_json:
        lines = [json.dumps({shown.title: json_rows(shown) for shown in summary_sheets(files)}, indent=2)]
    else:
        lines = "\n\n".join("\n".join(markdown_lines(shown)) for shown in summary_sheets(files)).split("\n")
    typer.echo(printable("\n".join(lines), lines=True))


if __name__ == "__main__":
    typer.run(expected_errors(main))
