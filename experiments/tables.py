"""Tables for the terminal, made from a record alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from attacks.evaluation import ALL, Leakage
from attacks.view import THREAT_MODELS
from experiments.record import Record
from fkgsec.data.catalogue import Dataset
from fkgsec.estimate import Estimate


def run_tables(record: Record) -> list[Table]:
    """Leakage (when the run was attacked), utility, and what it cost."""
    tables = [_leakage_table(record)] if record.leakage else []
    if any(row.unlinked for row in record.leakage):
        tables.append(_unlinked_table(record))
    return [*tables, _utility_table(record), _cost_table(record)]


def reading_aid(record: Record) -> list[str]:
    """What the figures mean, in sentences that hold for this run."""
    lines = [
        f"{name}: {THREAT_MODELS[name].about}." for name in dict.fromkeys(row.threat_model for row in record.leakage)
    ]
    if record.leakage:
        lines.append(
            "ERR: entities named right from their embeddings. TRR: training triples rebuilt when the linked pairs are given. "
            "'Without' is the same adversary without embeddings; only the difference is leakage of the embeddings."
        )
    for reason in dict.fromkeys(row.reason for row in record.leakage if row.reason):
        lines.append(f"Nothing to attack: {reason}.")
    return lines


def _leakage_table(record: Record) -> Table:
    table = Table(title=f"Reconstruction ({record.leakage[0].metric} definitions, round {record.best_round})")
    for name in ("threat model", "leak", "victim"):
        table.add_column(name)
    for name in ("entities", "ERR", "without", "triples", "TRR", "without"):
        table.add_column(name, justify="right")
    for row in record.leakage:
        table.add_row(
            row.threat_model,
            f"{row.leak:g}",
            row.victim,
            str(row.err.n),
            _share(row.err, row),
            f"{row.err_baseline.value:.4f}",
            str(row.trr.n),
            _share(row.trr, row),
            f"{row.trr_baseline.value:.4f}",
            style="bold" if row.victim == ALL else None,
            end_section=row.victim == ALL,
        )
    return table


def _share(figure: Estimate, row: Leakage) -> str:
    return "nothing to attack" if row.reason else str(figure)


def _unlinked_table(record: Record) -> Table:
    table = Table(title="Reconstruction without knowing which pairs are linked (sampled heads)")
    for name in ("threat model", "leak", "victim"):
        table.add_column(name)
    for name in ("precision", "without", "recall", "average precision", "without"):
        table.add_column(name, justify="right")
    for row in record.leakage:
        if row.unlinked:
            table.add_row(
                row.threat_model,
                f"{row.leak:g}",
                row.victim,
                str(row.unlinked.precision),
                f"{row.unlinked.precision_baseline.value:.1e}",
                str(row.unlinked.recall),
                str(row.unlinked.average_precision),
                f"{row.unlinked.average_precision_baseline.value:.1e}",
            )
    return table


def _utility_table(record: Record) -> Table:
    table = Table(title=f"Utility: filtered link prediction on test triples, sides {record.spec.eval_sides}")
    table.add_column("client")
    names = list(record.utility)
    for name in names:
        table.add_column(name.upper() if name == "mrr" else name, justify="right")
    rows: Mapping[str, dict[str, Estimate]] = dict(record.utility_by_client)
    for client, figures in rows.items():
        table.add_row(client, *(f"{figures[name].value:.4f}" for name in names))
    table.add_section()
    table.add_row("all", *(str(record.utility[name]) for name in names), style="bold")
    if record.utility_by_leak["leaked"]["mrr"].n:
        for kind, figures in record.utility_by_leak.items():
            table.add_row(f"{kind} (n={figures['mrr'].n})", *(f"{figures[name].value:.4f}" for name in names))
    return table


def _cost_table(record: Record) -> Table:
    table = Table(title="Cost")
    for name in ("rounds", "kept", "bytes up", "bytes down", "up per round", "seconds", "device"):
        table.add_column(name, justify="right")
    trained = record.rounds[1:]
    table.add_row(
        str(len(trained)),
        str(record.best_round),
        f"{record.bytes.up:,}",
        f"{record.bytes.down:,}",
        f"{trained[-1].bytes_up:,}" if trained else "0",
        f"{sum(entry.seconds for entry in record.rounds):.1f}",
        record.environment.device,
    )
    return table


def frame_table(frame: pd.DataFrame, title: str) -> Table:
    """Any data frame with its index; floats with four digits."""
    table = Table(title=title)
    shown = frame.reset_index()
    for name in shown.columns:
        table.add_column(str(name), justify="left" if shown[name].dtype.kind not in "iuf" else "right")
    for row in shown.itertuples(index=False):
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def catalogue_table(known: Iterable[Dataset]) -> Table:
    """The known datasets."""
    table = Table(title="Known datasets, beside the embedded default 'consortium'")
    for name in ("name", "layout", "licence", "what"):
        table.add_column(name)
    for dataset in known:
        table.add_row(dataset.name, dataset.layout, dataset.licence, dataset.description)
    return table
