"""Markdown tables from files: of records (utility, leakage), comparisons (defenses side by side) and verifications (forgetting).

python -m experiments.reporting.summary experiments/results/*.json
python -m experiments.reporting.summary experiments/results/defended/*.json
python -m experiments.reporting.summary --matrix experiments/results/attacks/matrix/hospitals-*.json
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from attacks.figure import over_victims
from attacks.reconstruction.leakage import PAPER, PUBLISHED, UNLINKED, inference_label
from attacks.view import ALL
from experiments.cli.console import expected_errors
from experiments.reporting.frames import (
    figure_frame,
    mixed_temperatures,
    others,
    over_all,
    reconstruction,
    rows_of,
    run_frame,
    side_by_side,
    without_links,
)
from experiments.reporting.matrix import matrix, over_seeds, sheet
from experiments.reporting.sheets import Column, Sheet, markdown_lines
from experiments.reporting.tables import FIGURE, RATES
from experiments.runs.compare import Comparison, read_comparison
from experiments.runs.record import Record, read_record
from experiments.tasks.task import task_of
from experiments.unlearning.summary import audit_lines, quality_lines, read_verification
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.text import printable


def utility_sheet(records: Mapping[str, Record]) -> Sheet:
    """A row for each record of one task: test utility with its interval, apart for leaked and clean items, rounds and seconds.

    The temperature of negatives has a column where it is not the same in all.
    """
    frame, task = run_frame(records), task_of(next(iter(records.values())).spec)
    kinds = [kind for kind in task.leaked if kind in frame]
    for kind in kinds:
        frame[kind] = [
            "none" if not isinstance(part, Estimate) else f"{part.value:.4f} (n = {part.n})" for part in frame[kind]
        ]
    more = {"hits@10": "Hits@10"} if "hits@10" in task.metrics else {}
    heads = {
        "run": "record", **_temperature(records.values()), task.metric: Column(f"test {task.label(task.metric)}", "score"),
        **{kind: task.leaked[kind] for kind in kinds}, **more, "of_rounds": "kept round", "seconds": "seconds",
    }  # fmt: skip
    return Sheet.of("Utility", frame, heads)


def leakage_sheet(records: Mapping[str, Record]) -> Sheet:
    """A row for each victim, threat model, leak ratio and inference of the attacked records."""
    figures = figure_frame(records)
    figures = figures.loc[(figures["victim"] != ALL) & figures["reason"].isna()]
    rows = rows_of(side_by_side(reconstruction(figures)))
    place = itemgetter("run", "threat_model", "leak", "victim")
    honest_ones = without_links(figures.loc[figures["headline"].astype(bool)])
    unlinked = {place(row): row for row in rows_of(side_by_side(honest_ones))}
    for row in rows:
        honest = unlinked.get(place(row), {}) if row["headline"] else {}
        row |= {name: honest.get(name) for name in UNLINKED} | {"inference": _inference(row)}
    unlinked_heads = ("unlinked precision", "recall", "AP")
    heads = {
        "run": "record", "threat_model": "threat model", "leak": "leak", "victim": "victim", "inference": "inference",
        **{name: head for name, head in RATES.items() if name != "trr_base"}, "majority": "majority", "prior": "prior",
        **{name: Column(head, "mean") for name, head in zip(UNLINKED, unlinked_heads, strict=True)},
    }  # fmt: skip
    return Sheet.of("Reconstruction", pd.DataFrame(rows), heads)


def other_attacks_sheet(records: Mapping[str, Record]) -> Sheet:
    """A row for each figure of every other attack, of all victims or the worst one, and why there is none."""
    heads = {
        "run": "record", "attack": "attack", "threat_model": "threat model", "leak": "leak", "victim": "victim", **FIGURE,
        "reason": "not attacked",
    }  # fmt: skip
    return Sheet.of("Other attacks", others(figure_frame(records, over_all)), heads)


def comparison_sheet(comparisons: Mapping[str, Comparison]) -> Sheet:
    """A row for each case and threat model of each comparison, over all victims, of what reconstruction found."""
    rows = []
    for federation, records in _cases(comparisons):
        runs = {row["run"]: row for row in rows_of(run_frame(records))}
        for row in rows_of(side_by_side(reconstruction(figure_frame(records, over_victims)))):
            if row["reason"] and not row["headline"]:
                continue
            run = runs[row["run"]]
            row |= {name: run[name] for name in ("mrr", "bytes", "temperature")} | {"federation": federation}
            row["sources"] = ", ".join(f"{source} {count:,}" for source, count in (row["sources"] or {}).items())
            row["inference"] = row["variant"] if row["reason"] else _inference(row)
            rows.append(row | (dict.fromkeys(RATES, "") | {"err": "nothing to attack"} if row["reason"] else {}))
    heads = {
        **_case_heads(comparisons), "mrr": Column("test MRR", "mean"), "bytes": "MiB", "threat_model": "threat model",
        "inference": "inference", **RATES, "sources": "right entities by source",
    }  # fmt: skip
    return Sheet.of("Comparison", pd.DataFrame(rows), heads)


def convergence_sheet(comparisons: Mapping[str, Comparison]) -> Sheet:
    """A row for each case: R@CG, the validation there, P@CG, and P@98 and P@99 of the first case's."""
    frames = [run_frame(records).assign(federation=federation) for federation, records in _cases(comparisons)]
    frame = pd.concat(frames, ignore_index=True)
    frame["valid"] = frame["valid"].fillna("none")
    tasks = [task_of(record.spec) for _, cases in _cases(comparisons) for record in cases.values()]
    labels = dict.fromkeys(task.label(task.metric) for task in tasks)
    heads = {
        **_case_heads(comparisons), "of_rounds": "R@CG", "valid": f"validation {' or '.join(labels)}@CG",
        "bytes_kept": "P@CG MiB", "p98": "P@98", "p99": "P@99", "seconds": "seconds",
    }  # fmt: skip
    return Sheet.of("Convergence", frame.fillna({"p98": "not reached", "p99": "not reached"}), heads)


def matrix_lines(files: Sequence[Path]) -> list[str]:
    """The matrix of a comparison, or of the means of several, in Markdown. Raises `RunError` for a file of anything else."""
    made = []
    for path in files:
        if (found := read_comparison(path)) is None:
            raise RunError(f"{path}: not a comparison")
        made.append(matrix({case.name: case.record for case in found.cases}))
    shown = sheet(made[0]) if len(made) == 1 else over_seeds(made)
    return [*markdown_lines(shown), "", *(f"* {' '.join(note.split())}" for note in shown.notes)]


def _cases(comparisons: Mapping[str, Comparison]) -> list[tuple[str, dict[str, Record]]]:
    return [(name, {case.name: case.record for case in one.cases}) for name, one in comparisons.items()]


def _case_heads(comparisons: Mapping[str, Comparison]) -> dict[str, str]:
    records = [record for _, one in _cases(comparisons) for record in one.values()]
    return {"federation": "federation", "run": "case", **_temperature(records)}


def _temperature(records: Iterable[Record]) -> dict[str, str]:
    return {"temperature": "temperature"} if mixed_temperatures(records) else {}


def _inference(row: Mapping[str, Any]) -> str:
    variant = PAPER if row["variant"] == PUBLISHED else row["variant"]
    return f"{variant}: {row['trr_by']}" if row["trr_by"] else inference_label(variant)


def main(
    files: Annotated[list[Path], typer.Argument(help="record, comparison or verification files")],
    as_matrix: Annotated[
        bool, typer.Option("--matrix", help="of comparisons alone: adversaries by case; several are seeds of one")
    ] = False,
) -> None:
    """Print the tables of these files."""
    comparisons = {_name(path): made for path in files if (made := read_comparison(path)) is not None}
    if as_matrix:
        typer.echo(printable("\n".join(matrix_lines(files)), lines=True))
        return
    verifications = {_name(path): made for path in files if (made := read_verification(path)) is not None}
    others = comparisons.keys() | verifications.keys()
    records = {_name(path): read_record(path) for path in files if _name(path) not in others}
    everything = {
        **records,
        **{f"{name} {case}": one for name, cases in _cases(comparisons) for case, one in cases.items()},
    }
    sheets = [
        *(utility_sheet(of_task) for of_task in _by_task(records)),
        *([leakage_sheet(records)] if records else []),
        *([comparison_sheet(comparisons), convergence_sheet(comparisons)] if comparisons else []),
        *([other_attacks_sheet(everything)] if everything else []),
    ]
    tables = [markdown_lines(sheet) for sheet in sheets if sheet.rows]
    if verifications:
        tables += [quality_lines(verifications), audit_lines(verifications)]
    typer.echo(printable("\n\n".join("\n".join(lines) for lines in tables), lines=True))


def _by_task(records: Mapping[str, Record]) -> list[dict[str, Record]]:
    found: dict[str, dict[str, Record]] = {}
    for name, record in records.items():
        found.setdefault(record.spec.task, {})[name] = record
    return list(found.values())


def _name(path: Path) -> str:
    return path.parent.name if path.stem in ("record", "comparison", "verification") else path.stem


if __name__ == "__main__":
    typer.run(expected_errors(main))
