"""Markdown tables of utility and leakage from record files: `python -m experiments.summary experiments/results/*.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attacks.view import ALL
from experiments.record import Record, read_record
from fkgsec.estimate import Estimate


def utility_lines(records: dict[str, Record]) -> list[str]:
    """A row for each record: test MRR with its interval, apart for leaked and clean triples, rounds and seconds."""
    lines = [
        "| record | test MRR | leaked triples | clean triples | Hits@10 | kept round | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, record in records.items():
        leaked, clean = record.utility_by_leak["leaked"]["mrr"], record.utility_by_leak["clean"]["mrr"]
        apart = [f"{part.value:.4f} (n = {part.n})" if part.n else "none" for part in (leaked, clean)]
        seconds = sum(entry.seconds for entry in record.rounds)
        lines.append(
            f"| {name} | {_interval(record.utility['mrr'])} | {apart[0]} | {apart[1]} "
            f"| {record.utility['hits@10'].value:.4f} | {record.best_round} of {len(record.rounds) - 1} | {seconds:.0f} |"
        )
    return lines


def leakage_lines(records: dict[str, Record]) -> list[str]:
    """A row for each victim, threat model and leak ratio of the attacked records."""
    lines = [
        "| record | threat model | leak | victim | ERR | base | TRR | majority | prior | unlinked precision | recall | AP |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, record in records.items():
        for row in record.leakage:
            if row.reason or row.victim == ALL:
                continue
            parts = row.unlinked
            honest = [parts.precision, parts.recall, parts.average_precision] if parts else []
            cells = [
                name,
                row.threat_model,
                f"{row.leak:g}",
                row.victim,
                _interval(row.err),
                f"{row.err_baseline.value:.4f}",
                _interval(row.trr),
                f"{row.trr_baseline.value:.4f}",
                f"{row.trr_prior.value:.4f}",
                *(f"{part.value:.4f}" for part in honest),
                *([""] * (3 - len(honest))),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _interval(figure: Estimate) -> str:
    return f"{figure.value:.4f} [{figure.low:.4f}, {figure.high:.4f}]"


def main(files: Annotated[list[Path], typer.Argument(help="record files")]) -> None:
    """Print the tables of these records."""
    records = {path.stem if path.stem != "record" else path.parent.name: read_record(path) for path in files}
    typer.echo("\n".join(utility_lines(records)))
    if any(record.leakage for record in records.values()):
        typer.echo("\n" + "\n".join(leakage_lines(records)))


if __name__ == "__main__":
    typer.run(main)
