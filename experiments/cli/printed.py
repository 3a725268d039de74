"""Terminal output of `fkgsec train`, `attack` and `compare`: the plan of a `--dry-run`, and results of finished runs.

A plan's time comes from `fkgsec.experiments.papers.estimates`, based on a short timing on the data. Its memory comes
from
`fkgsec.experiments.tasks.memory`. Both are estimates, not bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from rich.console import Console

from fkgsec.attacks.options import UPDATE_RECOVERY
from fkgsec.experiments.cli.console import make_console, print_lines, say
from fkgsec.experiments.cli.presets import Chosen
from fkgsec.experiments.reporting.sheets import Column, Sheet, print_sheets
from fkgsec.experiments.runs.writing import write_new
from fkgsec.experiments.tasks.memory import GIB, available, needed
from fkgsec.experiments.tasks.spec import RunSpec

if TYPE_CHECKING:
    from fkgsec.experiments.runs.compare import Comparison
    from fkgsec.experiments.runs.record import Record
    from fkgsec.experiments.runs.run import Finished
    from fkgsec.experiments.runs.seeds import SeedsRecord

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="print resolved settings, runs, memory and time; train nothing and write no run. The time is estimated by a short "
        "measurement, which is stored in the user's cache folder",
    ),
]


class Output(NamedTuple):
    """Options of a command's output.

    Attributes:
        json: path of a copy of the record; `-` for standard output.
        quiet: print errors only.
        overwrite: replace an existing copy.
        details: print all tables.
    """

    json: str | None
    quiet: bool
    overwrite: bool
    details: bool = False


def print_plan(
    console: Console,
    chosen: Chosen,
    graph: Any,
    runs: Mapping[str, tuple[RunSpec, Path]],
    *,
    attack: bool,
    records: Path = Path("runs"),
) -> None:
    """Print settings, runs, time and memory as tables.

    Args:
        chosen: the spec and the source of each option.
        graph: the clients' data, to estimate time and memory.
        runs: spec and folder of each run, by name.
        attack: whether the runs would be attacked.
        records: folder of finished runs, from which the number of rounds is predicted.
    """
    document = chosen.spec.document()
    rows = tuple((name, _written(document.get(name)), whose) for name, whose in chosen.whose.items())
    settings = Sheet("Resolved settings and their sources", (Column("option"), Column("value"), Column("source")), rows)
    defaults = {name: value for name, value in document.items() if name not in chosen.whose}
    shown = [f"{name} {_written(value)}" for name, value in defaults.items() if value not in (None, "", [], ())]
    print_lines(console, ["Dry run: nothing is trained or written."])
    print_sheets(console, [settings, _runs_sheet(graph, runs, records)])
    print_lines(console, [f"Defaults: {', '.join(shown)}."])
    if attack:
        spec, options = chosen.spec, msgspec.to_builtins(chosen.spec.attack_options())
        attacks = ", ".join(spec.attack) or "all that apply (list them with fkgsec attack --attack list)"
        threats = ", ".join(spec.threat) or "all that apply"
        leaks = f"; leak {_written(options['leak'])}" if "leak" in options else ""
        print_lines(console, [f"Attacks: {attacks}; threat models: {threats}{leaks}."])


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_written, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _runs_sheet(graph: Any, runs: Mapping[str, tuple[RunSpec, Path]], records: Path) -> Sheet:
    """Return a sheet with the estimates of each run."""
    from fkgsec.experiments.papers.estimates import Costs
    from fkgsec.experiments.reporting.reading import find_records
    from fkgsec.experiments.runs.run import RECORD_FILE

    # Similar finished runs tell when validation stops training.
    earlier = find_records([records]).records.values() if any(records.rglob(RECORD_FILE)) else ()
    costs = Costs(earlier)
    runs_of: dict[str, list[str]] = {}
    rows, seconds, most = [], 0.0, 0.0
    for name, (spec, folder) in runs.items():
        done = (folder / RECORD_FILE).exists()
        cost, size = costs.of(spec, graph=graph), sum(needed(spec, graph).values())
        # Runs are trained one after the other: seconds add up, memory does not.
        seconds, most = seconds + (0.0 if done else cost.seconds), max(most, size)
        figures = f"{cost.rounds}", f"{cost.seconds:,.0f}", f"{size / GIB:.2f}"
        rows.append((name, *figures, "finished" if done else "", str(folder)))
        runs_of.setdefault(cost.says, []).append(name)
    notes = [f"{'Each run' if len(runs_of) == 1 else '; '.join(names)}: {says}." for says, names in runs_of.items()]
    free = available()
    notes.append(
        f"Total: about {seconds:,.0f} s of training on one thread of this machine, without attacks. Peak memory: "
        f"{most / GIB:.2f} GiB; {free.says} leaves {free.num_bytes / GIB:.1f} GiB."
    )
    columns = (*map(Column, ("run", "rounds", "s", "GiB", "state")), Column("folder", drop=1))
    title = f"Runs on {graph.name}: {len(graph.clients)} clients"
    return Sheet(title, columns, tuple(rows), notes=tuple(notes))


def print_finished(
    finished: Finished,
    output: Output,
    *,
    warnings: Iterable[str] = (),
    remarks: Iterable[str] = (),
    alone: Sequence[Record] | None = None,
) -> None:
    """Print a run: its verdict, utility and files. All tables come first if requested or if nothing was attacked.

    Args:
        finished: the run and its folder.
        output: options of the output.
        warnings: lines for standard error.
        remarks: lines about the training.
        alone: the run of the same clients alone; its gains also go into the copy of the record.
    """
    from fkgsec.experiments.reporting.worth import gains_over
    from fkgsec.experiments.runs.record import with_gains
    from fkgsec.experiments.runs.stored import encode_stored

    for warning in warnings:
        say(f"warning: {warning}")
    record, folder = finished.record, finished.folder
    if not output.quiet:
        # With `--json -`, standard output holds nothing but the record.
        console = make_console(stderr=output.json == "-")
        print_record(console, record, details=output.details, remarks=remarks, alone=alone)
        names = ("record.json", "picture.png", "scores.parquet")
        files = ", ".join(name for name in names if (folder / name).exists())
        next_step = f"Details: fkgsec show {folder}" if record.figures else f"Next: fkgsec attack --run {folder}"
        # Verdicts of two runs name different adversaries, so reading them side by side misleads.
        defended = " What the defense changes: fkgsec compare." if record.figures and record.spec.defense else ""
        reused = " Reused an existing run; --overwrite retrains it." if finished.reused else ""
        print_lines(console, [f"{next_step} ({files}).{defended}{reused}"])
    if alone:
        record = with_gains(record, gains_over([(record, alone[0])]))
    _write_json(encode_stored(record), output)


def print_record(
    console: Console,
    record: Record,
    *,
    details: bool,
    remarks: Iterable[str] = (),
    alone: Sequence[Record] | None = None,
) -> None:
    """Print a run's verdict, utility and cost. All tables come first if requested or if nothing was attacked.

    Args:
        console: the console to print on.
        record: a finished run.
        details: print all tables.
        remarks: lines about the training.
        alone: the run of the same clients alone, to show each client's gain from joining.
    """
    from fkgsec.experiments.reporting import tables, words
    from fkgsec.experiments.reporting.verdict import verdict_of, verdict_sheet
    from fkgsec.experiments.reporting.worth import gain_sheet, worth_lines

    pairs = [(record, other) for other in alone or ()]
    if details or not record.figures:
        print_sheets(console, tables.run_sheets(record))
        print_lines(console, words.reading_aid(record))
    if details and worth_lines(pairs):
        print_sheets(console, [gain_sheet({record.spec.algorithm: pairs[0]})])
    # The reading aid above already states the guarantees.
    lines = [*remarks] if details or not record.figures else [*words.guarantee_lines(record), *remarks]
    if record.figures:
        print_sheets(console, [verdict_sheet(verdict_of(record.figures), _title(record))])
        lines = [*skipped_threats(record), *lines, _utility_line(record)]
    print_lines(console, [*lines, *worth_lines(pairs)])


def _title(record: Record) -> str:
    spec = record.spec
    defense = f"defense {spec.defense}" if spec.defense else "no defense"
    return (
        f"Verdict: {spec.algorithm} on {record.data.name}, {len(record.data.clients)} clients, {len(record.rounds) - 1} rounds, "
        f"{defense}"
    )


def _utility_line(record: Record) -> str:
    """State the test utility of all clients, and the bytes sent in both directions."""
    from fkgsec.experiments.reporting.sheets import interval, mebibytes
    from fkgsec.experiments.tasks.task import task_of

    task = task_of(record.spec)
    utility = record.utility[task.metric]
    reached = f"test {task.label(task.metric)} {interval(utility)}" if utility.n else f"no test {task.items}"
    # The first entry is the setup before round 1.
    size = mebibytes(record.bytes.up + record.bytes.down)
    return f"Utility: {reached}, all clients. Cost: {size} MiB in {len(record.rounds) - 1} rounds."


def skipped_threats(record: Record) -> list[str]:
    """Return a line for each attack that ran, but not under all of its threat models.

    Args:
        record: a run whose spec names attacks; attacks chosen automatically are not listed.
    """
    from fkgsec.attacks.registry import ATTACKS

    lines = []
    for name in record.spec.attack:
        attacked = {figure.threat_model for figure in record.figures if figure.attack == ATTACKS[name].name}
        others = [model for model in ATTACKS[name].threat_models if model not in attacked] if attacked else []
        if others:
            lines.append(f"{name}: not run under {', '.join(others)}. Use --threat NAME to run it.")
    return lines


def print_comparison(
    comparison: Comparison, folder: Path, remarks: Iterable[str] = (), *, details: bool = False
) -> None:
    """Print utility and cost, and a table for each question with all cases.

    Args:
        comparison: the finished cases.
        folder: folder of the comparison, with its files.
        remarks: lines about the training.
        details: first print every figure of every attack.
    """
    from fkgsec.experiments.reporting import tables, words
    from fkgsec.experiments.reporting.matrix import has_matrix, matrix, sheet
    from fkgsec.experiments.reporting.verdict import PAIRED, SURE_ONE, comparison_sheets
    from fkgsec.experiments.reporting.worth import worth_sheet
    from fkgsec.experiments.runs.compare import UPDATE_AID

    console = make_console()
    records = {case.name: case.record for case in comparison.cases}
    unlearned = {case.name: case.unlearned for case in comparison.cases}
    # The matrix has no place for figures of unlearning.
    if has_matrix(records) and not any(unlearned.values()):
        print_sheets(console, [sheet(matrix(records))])
    elif details or any(unlearned.values()):
        print_sheets(console, tables.comparison_sheets(records, unlearned), once=3)
    if details:
        lines = list(dict.fromkeys(line for record in records.values() for line in words.figure_aid(record.figures)))
        figures = (figure for case in comparison.cases for figure in (*case.record.figures, *case.unlearned))
        aid = [UPDATE_AID] if any(figure.attack == UPDATE_RECOVERY for figure in figures) else []
        print_lines(console, [*lines, *aid, *words.lines_by_case(records), ""])
    if details:
        print_sheets(console, tables.runs_sheets(records))
    # Three cases fit side by side in 80 columns.
    narrow = {_folded(name): record for name, record in records.items()}
    print_sheets(console, [worth_sheet(narrow), *comparison_sheets(narrow)])
    lines = [*words.lines_by_case(records, words.guarantee_lines), SURE_ONE, PAIRED, *remarks]
    if remark := words.temperature_remark(records):
        lines.append(f"{remark} Use --temperature 0 to train all cases this way.")
    files = [name for name in ("comparison.json", "comparison.png", "matrix.png") if (folder / name).exists()]
    print_lines(console, [*lines, f"Details: fkgsec show {folder} ({', '.join(files)})"])


def _folded(case: str, width: int = 18) -> str:
    """Break a case's name at its commas into lines of this width.

    >>> _folded("psu,secagg,dp:unit=row,clip=0.1").splitlines()
    ['psu,secagg,', 'dp:unit=row,', 'clip=0.1']
    """
    lines = [""]
    for part in case.replace(",", ",\n").splitlines():
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def print_several(
    several: SeedsRecord,
    records: Sequence[Record],
    folder: Path,
    output: Output,
    remarks: Iterable[str] = (),
    *,
    alone: Sequence[Record] | None = None,
) -> None:
    """Print the verdict over all seeds, their figures, the files, and what joining is worth.

    Args:
        several: summary over the seeds.
        records: the run of each seed.
        folder: folder with a run folder for each seed.
        output: options of the output.
        remarks: lines about the training.
        alone: for each seed the run of the same clients alone; None if there are none.
    """
    from fkgsec.experiments.reporting import tables
    from fkgsec.experiments.reporting.verdict import SURE_OVER, verdict_over, verdict_sheet
    from fkgsec.experiments.reporting.worth import gains_over, worth_lines
    from fkgsec.experiments.runs.seeds import SEEDS_FILE
    from fkgsec.experiments.runs.stored import encode_stored

    pairs = list(zip(records, alone, strict=True)) if alone else []
    if not output.quiet:
        console = make_console(stderr=output.json == "-")
        print_sheets(console, [tables.seeds_sheet(several)])
        if records[0].figures:
            title = f"Verdict over {len(records)} trainings"
            print_sheets(console, [verdict_sheet(verdict_over(records), title, SURE_OVER)])
        print_lines(console, remarks)
        # Privacy losses of several trainings on the same data compose.
        guarantees = several.guarantees.items()
        lines = [f"dp, {names}, all seeds together: {guarantee.describe()}." for names, guarantee in guarantees]
        written = f"Written to {folder}: {SEEDS_FILE}, {', '.join(several.runs)}"
        print_lines(console, [*lines, *worth_lines(pairs), written])
    if pairs:
        several = msgspec.structs.replace(several, gains=gains_over(pairs))
    _write_json(encode_stored(several), output)


def _write_json(content: bytes, output: Output) -> None:
    """Write a record to the destination of `--json`, if any."""
    if output.json == "-":
        sys.stdout.write(content.decode())
    elif output.json is not None:
        write_new(Path(output.json), content, overwrite=output.overwrite)
