"""What `fkgsec train`, `attack` and `compare` print of what is finished: the verdict first, then tables, then where it lies."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from fkgsec.attacks.options import UPDATE_RECOVERY
from fkgsec.experiments.cli.console import make_console, say
from fkgsec.experiments.runs.writing import write_new

if TYPE_CHECKING:
    from fkgsec.experiments.runs.compare import Comparison
    from fkgsec.experiments.runs.record import Record
    from fkgsec.experiments.runs.run import Finished
    from fkgsec.experiments.runs.seeds import SeedsRecord


class Output(NamedTuple):
    """Where a record goes beside its folder (`-`: standard output), whether anything is printed, and what may be written over."""

    json: str | None
    quiet: bool
    overwrite: bool


def not_asked(record: Record) -> list[str]:
    """The threat models of named attacks that a record has no figure of, a line for each attack."""
    from fkgsec.attacks.registry import ATTACKS

    lines = []
    for name in record.spec.attack:
        asked = {one.threat_model for one in record.figures if one.attack == name}
        others = [model for model in ATTACKS[name].threat_models if model not in asked] if asked else []
        if others:
            lines.append(f"{name}: not run under {', '.join(others)}. Use `--threat`.")
    return lines


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def print_comparison(comparison: Comparison, folder: Path, remarks: Iterable[str] = ()) -> None:
    """The verdict by case; the table of all adversaries, or where there are few one for each kind of figure; what they mean.

    Args:
        remarks: lines about how it was trained.
    """
    from fkgsec.experiments.reporting import tables, words
    from fkgsec.experiments.reporting.matrix import has_matrix, matrix, sheet
    from fkgsec.experiments.reporting.sheets import print_sheets
    from fkgsec.experiments.reporting.verdict import comparison_lines
    from fkgsec.experiments.runs.recovery import AID as UPDATE_AID

    console = make_console()
    records = {case.name: case.record for case in comparison.cases}
    _print_lines(console, [*comparison_lines(records), *remarks, ""])
    unlearned = {case.name: case.unlearned for case in comparison.cases}
    many = has_matrix(records) and not any(unlearned.values())
    attacks = [] if many else tables.comparison_sheets(records, unlearned)
    if many:
        print_sheets(console, [sheet(matrix(records))])
    print_sheets(console, [*attacks, *tables.runs_sheets(records)], once=3)
    remark = words.temperature_remark(records)
    updates = any(
        one.attack == UPDATE_RECOVERY for case in comparison.cases for one in (*case.record.figures, *case.unlearned)
    )
    lines = [
        *([UPDATE_AID] if updates else []),
        *([f"{remark} Give --temperature 0 to train all cases so."] if remark else []),
    ]
    lines += words.protection_by_case(records)
    if not many:
        lines += dict.fromkeys(line for record in records.values() for line in words.figure_aid(record.figures))
    _print_lines(console, lines)
    pictures = f"comparison.json, comparison.png{', matrix.png' if has_matrix(records) else ''}"
    console.print(f"In {folder}: {pictures}; fkgsec report {folder} has every figure", highlight=False, soft_wrap=True)


def print_several(
    several: SeedsRecord, records: Sequence[Record], folder: Path, output: Output, remarks: Iterable[str] = ()
) -> None:
    """The verdict over the seeds, their figures, and where they lie."""
    from fkgsec.experiments.reporting import tables
    from fkgsec.experiments.reporting.sheets import print_sheets
    from fkgsec.experiments.reporting.verdict import SURE_OVER, verdict_lines, verdict_over
    from fkgsec.experiments.runs.seeds import SEEDS_FILE
    from fkgsec.experiments.runs.stored import encode_stored

    if not output.quiet:
        console = make_console(stderr=output.json == "-")
        title = f"Verdict over {len(records)} trainings"
        _print_lines(console, [*verdict_lines(verdict_over(records), SURE_OVER, title), *remarks, ""])
        print_sheets(console, [tables.seeds_sheet(several)])
        for names, one in several.guarantees.items():
            line = f"dp, {names}, all seeds together: {one.describe()}."
            console.print(line, soft_wrap=True, highlight=False, markup=False)
        console.print(f"Written to {folder}: {SEEDS_FILE}, {', '.join(several.runs)}", highlight=False, soft_wrap=True)
    _give(encode_stored(several), output)


def _give(content: bytes, output: Output) -> None:
    """Write a record where `--json` says, if anywhere."""
    if output.json == "-":
        sys.stdout.write(content.decode())
    elif output.json is not None:
        write_new(Path(output.json), content, overwrite=output.overwrite)


def print_finished(
    finished: Finished, output: Output, *, warnings: Iterable[str] = (), remarks: Iterable[str] = ()
) -> None:
    """A run: verdict, tables, what they mean, where the files lie.

    Args:
        warnings: on standard error. remarks: lines about how it was trained.
    """
    from fkgsec.experiments.reporting import tables, words
    from fkgsec.experiments.reporting.sheets import print_sheets
    from fkgsec.experiments.reporting.verdict import SURE, verdict_lines, verdict_of
    from fkgsec.experiments.runs.record import encode_record

    for warning in warnings:
        say(f"warning: {warning}")
    if not output.quiet:
        # Standard output belongs to the record when it was asked for there.
        console = make_console(stderr=output.json == "-")
        verdict = verdict_lines(verdict_of(finished.record.figures), SURE)
        _print_lines(console, [*verdict, *not_asked(finished.record), *remarks, ""])
        print_sheets(console, tables.run_sheets(finished.record))
        _print_lines(console, words.reading_aid(finished.record))
        where = "Finished before, and read from" if finished.reused else "Written to"
        console.print(f"{where} {finished.folder}: record.json, picture.png", end="", highlight=False, soft_wrap=True)
        console.print(", scores.parquet" if len(finished.scores) else "")
        if finished.reused:
            console.print("--overwrite makes it anew (what is trained stays).", highlight=False, soft_wrap=True)
    _give(encode_record(finished.record), output)
