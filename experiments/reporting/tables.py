r"""All tables of runs and figures, built from `frames` and written by `sheets`.

print_sheets(console, run_sheets(record))
print("\n".join(markdown_lines(figure_sheet(figures(records, each_victim), "Attacks"))))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.view import ALL
from fkgsec.experiments.reporting.frames import (
    each_victim,
    every_variant,
    figure_frame,
    mixed_temperatures,
    run_frame,
    where_measured,
)
from fkgsec.experiments.reporting.sheets import Column, Kind, Sheet
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.runs.seeds import SeedsRecord
from fkgsec.experiments.tasks.task import task_of

FIGURE = {"label": "metric", "value": "figure", "baseline": "base", "attainable": "max"}
MOST_VICTIMS = 8  # in the terminal
RUNS_TITLE = "Utility, cost and convergence"


def run_sheets(record: Record) -> list[Sheet]:
    """Return the results of attacks, the utility and the cost of one run."""
    return [*attack_sheets(record.figures), utility_sheet(record), cost_sheet(record)]


def attack_sheets(listed: Sequence[Figure]) -> list[Sheet]:
    """Return a table for each attack: the headline figures of each victim, and every variant over all victims.

    Args:
        listed: figures of one run. Of many victims, those that lose most are shown.
    """
    frame = figure_frame({"": listed}, each_victim)
    # Shortened to fit in 80 columns; the heading says which number is the leak.
    frame = frame.assign(place=frame["place"].str.replace(", leak", ""))
    heads = {"victim": "victim", "place": "threat, leak"} | FIGURE
    sheets = []
    for attack, rows in frame.groupby("attack", sort=False):
        title, notes = f"{attack}, round {rows['round'].iloc[0]}", []
        lost = rows.loc[rows["victim"] != ALL].groupby("victim")["advantage"].max().sort_values(ascending=False)
        if len(lost) > MOST_VICTIMS:
            rows = rows.loc[rows["victim"].isin([ALL, *lost.index[:MOST_VICTIMS]])]
            notes.append(f"The {MOST_VICTIMS} of {len(lost)} victims that lose most. Use `fkgsec report RUN` for all.")
        sheets.append(Sheet.of(title, where_measured(rows), heads, notes=notes))
    return sheets


def optional(rows: pd.DataFrame) -> dict[str, str]:
    """Return headings of the columns that only some attacks fill.

    Args:
        rows: rows of `figure_frame`.
    """
    heads = {"by": "strongest", "baselines": "baselines", "sources": "right claims by source"}
    return {name: head for name, head in heads.items() if len(rows[name].dropna())}


def comparison_sheets(records: Mapping[str, Record], unlearned: Mapping[str, list[Figure]]) -> list[Sheet]:
    """Return a table for each attack: every variant over all victims, in each run.

    Args:
        records: runs by the name of the case.
        unlearned: figures of the unlearning round by case; empty lists without unlearning.
    """
    stages = {"training": {name: record.figures for name, record in records.items()}, "unlearning": unlearned}
    # Attacks on training and on unlearning share a table, told apart by the column `stage`.
    frame = pd.concat(
        [
            figure_frame(listed, every_variant).assign(stage=stage)
            for stage, listed in stages.items()
            if any(listed.values())
        ]
        # `pd.concat` needs at least one frame.
        or [figure_frame({})],
        ignore_index=True,
    )
    frame = frame.assign(
        place=frame["place"].str.replace(", leak", "").str.replace("+", "+\n") + "\n" + frame["victim"]
    )
    stage = {"stage": "after"} if any(unlearned.values()) else {}
    return [
        Sheet.of(str(attack), where_measured(rows), {"run": "case", **stage, "place": "threat\nvictim"} | FIGURE)
        for attack, rows in frame.groupby("attack", sort=False)
    ]


def figure_sheet(frame: pd.DataFrame, title: str, notes: Iterable[str] = ()) -> Sheet:
    """Return one table with a row for each figure, and the reason if a figure is missing.

    Args:
        frame: rows of `figure_frame`.
        title: printed above.
        notes: lines printed below.
    """
    heads = {"run": "run", "attack": "attack", "place": "threat model", "victim": "victim"} | FIGURE
    reason = {"reason": "not attacked"} if len(frame["reason"].dropna()) else {}
    return Sheet.of(title, frame, heads | {"status": "status"} | optional(frame) | reason, notes=notes)


def utility_sheet(record: Record) -> Sheet:
    """Return the utility of each client, of leaked and other test items, of the shared model, and of all clients."""
    task, total = task_of(record.spec), record.utility
    rows = dict(record.utility_by_client)
    # Leaked test items also occur in some client's training data.
    if record.utility_by_leak["leaked"][task.metric].n:
        rows |= {task.leaked[part]: figures for part, figures in record.utility_by_leak.items()}
    if record.utility_shared:
        rows["shared model, all"] = record.utility_shared
    # The row of all clients comes last, below the parts.
    rows[ALL] = total
    cells = [(client, figures[task.metric].n, *(figures[name] for name in total)) for client, figures in rows.items()]
    metrics = (Column(task.label(name), "figure" if name == task.metric else "value") for name in total)
    return Sheet(
        task.utility_title(record.spec), (Column("client"), Column(task.items, "count"), *metrics), tuple(cells)
    )


def runs_sheet(records: Mapping[str, Record]) -> Sheet:
    """Return a row for each run: settings that differ, utility, bytes, seconds and convergence.

    Args:
        records: runs of one task by name.
    """
    frame, groups, note = _runs(records)
    heads = {name: head for group in groups for name, head in group.items()}
    return Sheet.of(RUNS_TITLE, frame, {"run": "run"} | heads, notes=[note])


def runs_sheets(records: Mapping[str, Record]) -> list[Sheet]:
    """Return `runs_sheet` in parts that fit in 80 columns if names of cases have at most 40 characters."""
    frame, groups, note = _runs(records)
    sheets = [Sheet.of(RUNS_TITLE, frame, {"run": "run"} | group) for group in groups]
    return [*sheets[:-1], replace(sheets[-1], notes=(note,))]


def _runs(records: Mapping[str, Record]) -> tuple[pd.DataFrame, list[dict[str, str | Column]], str]:
    """Return the runs, the headings of each part of their table, and its note."""
    frame, (name, first) = run_frame(records), next(iter(records.items()))
    task = task_of(first.spec)
    label = task.label(task.metric)
    parts = [part for part in task.leaked if part in frame and len(frame[part].dropna())]
    groups: list[dict[str, str | Column]] = [
        {task.metric: f"test {label}"},
        *({part: Column(task.leaked[part], "figure")} for part in parts),
        {"bytes": "MiB", "seconds": "s"},
        {"kept": "R@CG", "valid": f"{label}@CG", "bytes_kept": "P@CG MiB", "p98": "P@98", "p99": "P@99"},
    ]
    if mixed_temperatures(records.values()):
        groups[0] = {"temperature": "temperature", **groups[0]}
    if "hits@10" in frame:
        groups[-2] = {"hits@10": "Hits@10", **groups[-2]}
    note = f"P@98, P@99: bytes to 98 % and 99 % of the validation {label} of {name}, relative to its own bytes."
    return frame.assign(kept=frame["kept"].astype(str) + " of " + frame["rounds"].astype(str)), groups, note


def cost_sheet(record: Record) -> Sheet:
    """Return rounds, bytes and seconds of one run."""
    # Entry 0 is entity alignment, before the first round.
    trained, first = record.rounds[1:], record.rounds[0]
    cells = {
        Column("rounds"): len(trained),
        Column("kept"): record.best_round,
        Column("bytes up", "count"): record.bytes.up,
        Column("bytes down", "count"): record.bytes.down,
        Column("alignment", "count"): first.bytes_up + first.bytes_down,
        Column("a round up", "count"): max((entry.bytes_up for entry in trained), default=0),
        Column("s", "s"): sum(entry.seconds for entry in record.rounds),
        Column("device"): record.environment.device,
    }
    return Sheet("Cost", tuple(cells), (tuple(cells.values()),))


def seeds_sheet(several: SeedsRecord) -> Sheet:
    """Return figures over several seeds, with the smallest and the largest value."""
    rows = []
    for name, figure in several.figures.items():
        # Bytes are counted, so they have no interval.
        exact, ends = figure.over.method == "exact", (min(figure.values), max(figure.values))
        cells = (f"{value:,.0f}" for value in (figure.over.value, *ends)) if exact else (figure.over, *ends)
        rows.append((name.replace("/", "\n  ", 1), *cells))
    kinds: tuple[tuple[str, Kind], ...] = (("mean", "figure"), ("least", "value"), ("most", "value"))
    note = (
        "Each seed is a training of its own on the same data and division. The interval covers the items of one training and the "
        "spread between trainings; of bytes the largest is shown."
    )
    columns = (Column("figure"), *(Column(*kind) for kind in kinds))
    return Sheet(f"Over seeds {', '.join(map(str, several.seeds))}", columns, tuple(rows), notes=(note,))


def clients_sheet(record: Record) -> Sheet:
    """Return the sizes of the clients' data."""
    task, sensitive = task_of(record.spec), record.data.sensitive
    unmarked = f"No {task.marked} is marked as sensitive." if task.marked else ""
    marked = f"Marked as sensitive: {', '.join(sensitive)}." if sensitive else unmarked
    columns = (Column("client"), *(Column(size, "count") for size in task.sizes))
    rows = tuple((name, *(sizes[size] for size in task.sizes)) for name, sizes in record.data.clients.items())
    return Sheet(f"Clients of {record.data.name}: {task.sizes_title}", columns, rows, notes=(marked,) if marked else ())
