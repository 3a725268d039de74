"""Whether joining a federation pays: each client's utility with it against training alone, test item by test item.

gains(record, alone)["all"]                      # Estimate: gain in test MRR, or accuracy, with its interval
print_sheets(console, [worth_sheet(records)])    # a row for each case, with utility, gain and bytes
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate, critical_value
from fkgsec.experiments.reporting.sheets import Column, Sheet
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.items import Average, paired_variance, scores_of
from fkgsec.experiments.tasks.task import task_of
from fkgsec.federation.recipes import RECIPES


def trains_alone(record: Record) -> bool:
    """True if the clients of a run exchange nothing."""
    recipe = RECIPES[record.spec.algorithm]
    return not recipe.shared and not recipe.pooled


def gains(record: Record, alone: Record, compared: int = 1) -> dict[str, Estimate]:
    """Return the gain of each client, and of all, in the task's metric; empty where records have no outcomes by item.

    Intervals cover test items, paired, but not other trainings.

    Args:
        record, alone: runs on the same data; the second one of clients that exchange nothing.
        compared: number of gains that are looked at together (Bonferroni).
    """
    task = task_of(record.spec)
    if record.items is None or alone.items is None or record.data.hash != alone.data.hash:
        return {}
    outcomes = [scores_of(run.items, task.metric) for run in (record, alone) if run.items is not None]
    average: Average = "clients" if task.metric == "accuracy" else "items"
    whole = record.utility[task.metric].value - alone.utility[task.metric].value
    variance = paired_variance([(record.items, alone.items)], task.metric, average=average)
    z, differences = critical_value(compared), outcomes[0] - outcomes[1]
    made = {}
    for client, rows in zip(record.data.clients, record.items.client_slices(), strict=True):
        own = differences[rows]
        if len(own) > 1:
            made[client] = _interval(own.mean(), own.var(ddof=1) / len(own), z, len(own))
    return made | {ALL: _interval(whole, variance, z, len(differences))}


def _interval(value: float, variance: float, z: float, n: int) -> Estimate:
    half = z * math.sqrt(variance)
    return Estimate(float(value), float(value) - half, float(value) + half, n, "normal, paired")


def worth_sheet(records: Mapping[str, Record]) -> Sheet:
    """Return utility, gain over training alone, and bytes of each case."""
    task = task_of(next(iter(records.values())).spec)
    label = f"test {task.label(task.metric)}"
    alone = next(((name, record) for name, record in records.items() if trains_alone(record)), None)
    others = sum(not trains_alone(record) for record in records.values())
    columns = [Column("case"), Column(label, "figure")]
    notes = []
    if alone is not None and others:
        columns += [Column("gain over alone", "figure"), Column("gain / lose")]
        notes.append(
            f"Gain over alone: {label} less that of {alone[0]}, test item by test item. Gain / lose: clients whose own interval"
            " excludes 0, corrected for all clients and cases."
        )
    rows = []
    for name, record in records.items():
        cells = [name, record.utility[task.metric]]
        if alone is not None and others:
            cells += [None, None]
            if record is not alone[1]:
                each = gains(record, alone[1], others * max(1, len(record.data.clients)))
                clients = [gain for client, gain in each.items() if client != ALL]
                counts = sum(gain.low > 0 for gain in clients), sum(gain.high < 0 for gain in clients)
                cells[2:] = [
                    gains(record, alone[1], others).get(ALL),
                    f"{counts[0]} / {counts[1]} of {len(clients)}" if clients else None,
                ]
        rows.append((*cells, record.bytes.up + record.bytes.down))
    columns.append(Column("MiB", "MiB"))
    return Sheet("Utility and cost", tuple(columns), tuple(rows), notes=tuple(notes))
