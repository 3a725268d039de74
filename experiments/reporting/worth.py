"""Gain from joining a federation: each client's utility compared with training alone, paired by test item.

gains(record, alone)["all"]                      # Estimate: gain in test MRR, or accuracy, with its interval
worth_lines([(record, alone)])                   # the answer to "Worth joining?", for the end of a verdict
print_sheets(console, [worth_sheet(records)])    # a row for each case, with utility, gain and bytes
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate, critical_value
from fkgsec.experiments.reporting.sheets import Column, Sheet, interval, short
from fkgsec.experiments.runs.baseline import alone_among, trains_alone
from fkgsec.experiments.runs.intervals import over_seeds
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.items import Average, paired_variance, scores_of
from fkgsec.experiments.tasks.task import task_of


def gains(record: Record, alone: Record, compared: int = 1) -> dict[str, Estimate]:
    """Return the gain of each client, and of all, in the task's metric.

    Intervals cover test items, paired, but not other trainings.

    Args:
        record: a run in which clients exchange.
        alone: a run of the same clients on the same data without exchange.
        compared: number of gains judged together (Bonferroni).

    Returns:
        Gains by client; empty if a record has no outcomes by item, or the data differ.
    """
    task = task_of(record.spec)
    if record.items is None or alone.items is None or record.data.hash != alone.data.hash:
        return {}
    outcomes = [scores_of(run.items, task.metric) for run in (record, alone) if run.items is not None]
    # Accuracy is the mean of the clients' means; MRR is the mean over all items.
    average: Average = "clients" if task.metric == "accuracy" else "items"
    whole = record.utility[task.metric].value - alone.utility[task.metric].value
    variance = paired_variance([(record.items, alone.items)], task.metric, average=average)
    z, differences = critical_value(compared), outcomes[0] - outcomes[1]
    gains_by_client = {}
    for client, rows in zip(record.data.clients, record.items.client_slices(), strict=True):
        paired = differences[rows]
        # One item gives no variance.
        if len(paired) > 1:
            gains_by_client[client] = _interval(paired.mean(), paired.var(ddof=1) / len(paired), z, len(paired))
    return gains_by_client | {ALL: _interval(whole, variance, z, len(differences))}


def _interval(value: float, variance: float, z: float, n: int) -> Estimate:
    half = z * math.sqrt(variance)
    return Estimate(float(value), float(value) - half, float(value) + half, n, "normal, paired")


def gains_over(pairs: Sequence[tuple[Record, Record]], compared: int = 1) -> dict[str, Estimate]:
    """Return the gains over several trainings; intervals cover items and trainings.

    Args:
        pairs: for each seed, a run and the run of its clients alone.
        compared: see `gains`.
    """
    by_seed = [gains(record, alone, compared) for record, alone in pairs]
    return {
        name: over_seeds([each[name] for each in by_seed], compared)
        for name in by_seed[0]
        # A client with too few items in some seed has no gain over all seeds.
        if all(name in each for each in by_seed)
    }


def counted(pairs: Sequence[tuple[Record, Record]]) -> tuple[int, int, int]:
    """Return how many clients gain, how many lose, and the number of clients.

    Args:
        pairs: see `gains_over`. Intervals hold for all clients together.
    """
    each = gains_over(pairs, max(1, len(pairs[0][0].data.clients)))
    clients = [gain for client, gain in each.items() if client != ALL]
    return sum(gain.low > 0 for gain in clients), sum(gain.high < 0 for gain in clients), len(clients)


def answer(gain: Estimate) -> str:
    """Describe the interval of a gain in words."""
    return "gains" if gain.low > 0 else "loses" if gain.high < 0 else "no gain shown"


def worth_lines(pairs: Sequence[tuple[Record, Record]]) -> list[str]:
    """State the utility with and without joining, the gain, and how many clients gain or lose.

    Args:
        pairs: see `gains_over`.

    Returns:
        No line without pairs, or without outcomes by item.
    """
    overall = gains_over(pairs).get(ALL) if pairs else None
    if overall is None:
        return []
    task = task_of(pairs[0][0].spec)
    joined, alone = (
        sum(record.utility[task.metric].value for record in runs) / len(runs) for runs in zip(*pairs, strict=True)
    )
    num_gain, num_lose, num_clients = counted(pairs)
    head = "Joining pays" if overall.low > 0 else "Joining costs" if overall.high < 0 else "No gain shown"
    undecided = num_clients - num_gain - num_lose
    trained = "in this training" if len(pairs) == 1 else f"over {len(pairs)} trainings"
    return [
        f"Worth joining? test {task.label(task.metric)} {short(joined)}, alone {short(alone)}: gain {interval(overall)}",
        f"{head} overall {trained}. Of {num_clients} clients, {num_gain} gain, {num_lose} lose, {undecided} undecided.",
    ]


def gain_sheet(pairs: Mapping[str, tuple[Record, Record]]) -> Sheet:
    """Return the gain of each client, and of all, over training alone.

    Args:
        pairs: by name, a run and the run of its clients alone.
    """
    task = task_of(next(iter(pairs.values()))[0].spec)
    label = f"test {task.label(task.metric)}"
    rows = []
    for name, (record, alone) in pairs.items():
        # Clients are judged together; the gain over all is one figure of its own.
        together = max(1, len(record.data.clients))
        for client, gain in (gains(record, alone, together) | {ALL: gains(record, alone).get(ALL)}).items():
            if gain is not None:
                reached = [
                    (run.utility if client == ALL else run.utility_by_client[client])[task.metric].value
                    for run in (record, alone)
                ]
                rows.append((name, client, *reached, gain, answer(gain)))
    columns = (
        Column("run"), Column("client"), Column(label, "value"), Column("alone", "value"), Column("gain", "figure"),
        Column("answer"),
    )  # fmt: skip
    note = (
        f"Gain: {label} minus that of the same clients alone, paired by test item. Intervals of clients hold simultaneously "
        "(Bonferroni over clients). They cover test items, but not other trainings."
    )
    return Sheet("What joining is worth", columns, tuple(rows), notes=(note,))


def worth_sheet(records: Mapping[str, Record]) -> Sheet:
    """Return utility, gain over training alone, and bytes of each case.

    Args:
        records: runs by the name of the case. Gains need one case that exchanges nothing.
    """
    task = task_of(next(iter(records.values())).spec)
    label = f"test {task.label(task.metric)}"
    by_name = {name: record for name, record in records.items() if trains_alone(record.spec)}
    others = len(records) - len(by_name)
    columns = [Column("case"), Column(label, "figure")]
    notes = []
    if by_name and others:
        # Gains need a reference: without a run of the clients alone, only utility is shown.
        columns += [Column("gain over alone", "figure"), Column("gain / lose")]
        notes.append(
            f"Gain over alone: {label} minus that of {' or '.join(by_name)}, paired by test item; empty if the clients alone "
            "were trained with another optimizer schedule (fkgsec attack trains them). Gain / lose: clients with an interval "
            "above / below 0, corrected for all clients and cases."
        )
    rows = []
    for name, record in records.items():
        cells = [name, record.utility[task.metric]]
        if by_name and others:
            cells += [None, None]
            if (alone := alone_among(record, by_name.values())) is not None:
                # Correct for all clients and cases: the table invites the reader to look at all of
                # them.
                each = gains(record, alone, others * max(1, len(record.data.clients)))
                clients = [gain for client, gain in each.items() if client != ALL]
                counts = sum(gain.low > 0 for gain in clients), sum(gain.high < 0 for gain in clients)
                cells[2:] = [
                    gains(record, alone, others).get(ALL),
                    f"{counts[0]} / {counts[1]} of {len(clients)}" if clients else None,
                ]
        rows.append((*cells, record.bytes.up + record.bytes.down))
    columns.append(Column("MiB", "MiB"))
    return Sheet("Utility and cost", tuple(columns), tuple(rows), notes=tuple(notes))
