"""Markdown tables from files: of records (utility, leakage), comparisons (defenses side by side) and verifications (forgetting).

`python -m experiments.reporting.summary experiments/results/*.json`, `... experiments/results/defended/*.json`
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attacks.reconstruction.leakage import Leakage, inference_label
from attacks.view import ALL
from experiments.cli.console import expected_errors
from experiments.reporting.comparison import mixed_temperatures, over_all, pooled
from experiments.reporting.convergence import convergence, relative_cost
from experiments.runs.compare import Comparison, read_comparison
from experiments.runs.record import Record, read_record
from experiments.unlearning.summary import audit_lines, quality_lines, read_verification
from fkgsec.estimate import Estimate


def utility_lines(records: dict[str, Record]) -> list[str]:
    """A row for each record: test MRR with its interval, apart for leaked and clean triples, rounds and seconds.

    The temperature of negatives has a column where it is not the same in all.
    """
    mixed = mixed_temperatures(records.values())
    lines = [
        f"| record |{' temperature |' * mixed} test MRR | leaked triples | clean triples | Hits@10 | kept round | seconds |",
        "|---|---|---|---|---|---|---|" + "---|" * mixed,
    ]
    for name, record in records.items():
        leaked, clean = record.utility_by_leak["leaked"]["mrr"], record.utility_by_leak["clean"]["mrr"]
        apart = [f"{part.value:.4f} (n = {part.n})" if part.n else "none" for part in (leaked, clean)]
        seconds = sum(entry.seconds for entry in record.rounds)
        lines.append(
            f"| {name} {_temperature(record, mixed)}| {_interval(record.utility['mrr'])} | {apart[0]} | {apart[1]} "
            f"| {record.utility['hits@10'].value:.4f} | {record.best_round} of {len(record.rounds) - 1} | {seconds:.0f} |"
        )
    return lines


def leakage_lines(records: dict[str, Record]) -> list[str]:
    """A row for each victim, threat model and leak ratio of the attacked records."""
    lines = [
        "| record | threat model | leak | victim | inference | ERR | base | max | TRR | max | majority | prior "
        "| unlinked precision | recall | AP |",
        f"|{'---|' * 15}",
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
                _inference(row),
                _interval(row.err),
                f"{row.err_baseline.value:.4f}",
                _attainable(row.err_attainable),
                _interval(row.trr),
                _attainable(row.trr_attainable),
                f"{row.trr_baseline.value:.4f}",
                f"{row.trr_prior.value:.4f}",
                *(f"{part.value:.4f}" for part in honest),
                *([""] * (3 - len(honest))),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def comparison_lines(comparisons: dict[str, Comparison]) -> list[str]:
    """A row for each case and threat model of each comparison, over all victims; the temperature as in `utility_lines`."""
    mixed = mixed_temperatures(case.record for comparison in comparisons.values() for case in comparison.cases)
    lines = [
        f"| federation | case |{' temperature |' * mixed} test MRR | MiB | threat model | inference | ERR | base | max | TRR "
        "| base | max | right entities by source |",
        f"|{'---|' * (13 + mixed)}",
    ]
    for name, comparison in comparisons.items():
        for case in comparison.cases:
            record = case.record
            size = (record.bytes.up + record.bytes.down) / 2**20
            for row in over_all(record.leakage):
                if row.reason and row not in pooled(record):
                    continue
                case_cell = f"{case.name} {_temperature(record, mixed)}".strip()
                cells = [name, case_cell, f"{record.utility['mrr'].value:.4f}", f"{size:.1f}", row.threat_model]
                if row.reason:
                    cells += [row.inference, "nothing to attack", *[""] * 6]
                else:
                    cells += [
                        _inference(row),
                        _interval(row.err),
                        f"{row.err.value - row.err_advantage:.4f}",
                        _attainable(row.err_attainable),
                        _interval(row.trr),
                        f"{row.trr.value - row.trr_advantage:.4f}",
                        _attainable(row.trr_attainable),
                        ", ".join(f"{source} {count:,}" for source, count in row.sources.items()),
                    ]
                lines.append("| " + " | ".join(cells) + " |")
    return lines


def convergence_lines(comparisons: dict[str, Comparison]) -> list[str]:
    """A row for each case: R@CG, MRR@CG, P@CG, and P@98 and P@99 of the first case's; the temperature as in `utility_lines`."""
    mixed = mixed_temperatures(case.record for comparison in comparisons.values() for case in comparison.cases)
    lines = [
        f"| federation | case |{' temperature |' * mixed} R@CG | validation MRR@CG | P@CG MiB | P@98 | P@99 | seconds |",
        "|---|---|---|---|---|---|---|---|" + "---|" * mixed,
    ]
    for name, comparison in comparisons.items():
        for case in comparison.cases:
            found = convergence(case.record)
            costs = [relative_cost(case.record, comparison.cases[0].record, share) for share in (0.98, 0.99)]
            cells = [
                name,
                f"{case.name} {_temperature(case.record, mixed)}".strip(),
                f"{found.round} of {len(case.record.rounds) - 1}",
                "none" if found.mrr is None else f"{found.mrr:.4f}",
                f"{found.num_bytes / 2**20:.1f}",
                *("not reached" if cost is None else f"{cost:.3f}x" for cost in costs),
                f"{sum(entry.seconds for entry in case.record.rounds):.0f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _temperature(record: Record, shown: bool) -> str:
    return f"| {record.spec.sampling_temperature:g} " if shown else ""


def _attainable(share: float | None) -> str:
    return "" if share is None else f"{share:.4f}"


def _inference(row: Leakage) -> str:
    return f"{row.inference}: {row.trr_by}" if row.trr_by else inference_label(row.inference)


def _interval(figure: Estimate) -> str:
    return f"{figure.value:.4f} [{figure.low:.4f}, {figure.high:.4f}]"


def main(files: Annotated[list[Path], typer.Argument(help="record, comparison or verification files")]) -> None:
    """Print the tables of these files."""
    comparisons = {_name(path): made for path in files if (made := read_comparison(path)) is not None}
    verifications = {_name(path): made for path in files if (made := read_verification(path)) is not None}
    others = comparisons.keys() | verifications.keys()
    records = {_name(path): read_record(path) for path in files if _name(path) not in others}
    tables = []
    if records:
        tables.append(utility_lines(records))
    if any(record.leakage for record in records.values()):
        tables.append(leakage_lines(records))
    if comparisons:
        tables += [comparison_lines(comparisons), convergence_lines(comparisons)]
    if verifications:
        tables += [quality_lines(verifications), audit_lines(verifications)]
    typer.echo("\n\n".join("\n".join(lines) for lines in tables))


def _name(path: Path) -> str:
    return path.parent.name if path.stem in ("record", "comparison", "verification") else path.stem


if __name__ == "__main__":
    typer.run(expected_errors(main))
