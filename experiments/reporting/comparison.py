"""Runs on the same federation side by side, in the terminal and as a picture. Each function takes the records by name of the run.

records = {case.name: case.record for case in comparison.cases}
print_tables(console, [*leakage_tables(records), convergence_table(records)])
Path("comparison.png").write_bytes(draw_comparison(records))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from rich.table import Table

from attacks.figure import Figure, over_victims
from attacks.view import THREAT_MODELS
from experiments.reporting.frames import (
    by_inference,
    figure_frame,
    mixed_temperatures,
    others,
    over_all,
    pooled,
    reconstruction,
    rows_of,
    run_frame,
    side_by_side,
)
from experiments.reporting.picture import BLUE, GREEN, GREY, ORANGE, draw_bars, draw_rates, png
from experiments.reporting.sheets import NARROW, Column, Sheet, terminal_table
from experiments.reporting.tables import FIGURE, INFERENCE_TITLE, RATES, inference_columns, protection_lines
from experiments.runs.record import Record
from experiments.tasks.task import task_of

COLOURS = (ORANGE, GREEN, BLUE, GREY)


def leakage_tables(records: Mapping[str, Record]) -> list[Table]:
    """What reconstruction found in each run of all victims together, and by which inference.

    base is the best guess without what crossed, max the most that the adversary's names and relations can give.
    """
    figures = figure_frame(records, over_all)
    leaks = {row["leak"] for row in rows_of(figures)} - {None}
    at = f" (leak {min(leaks):g})" if len(leaks) == 1 else ""
    case = {"run": "case", "threat": "threat"}
    inferred, names = by_inference(figure_frame(records, over_victims))
    by_name = {
        name: head for name, head in inference_columns(names).items() if name not in ("majority", "strongest_by")
    }
    leakage = _threats(side_by_side(reconstruction(figures)), leak=not at)
    sheets = [
        Sheet.of(f"Leakage of all victims together{at}", leakage, case | RATES),
        Sheet.of(
            f"{INFERENCE_TITLE}{at.replace(' (', ', ').rstrip(')')}", _threats(inferred, leak=not at), case | by_name
        ),
    ]
    return [terminal_table(sheet, NARROW, once=1) for sheet in sheets if sheet.rows]


def other_attacks(records: Mapping[str, Record], unlearned: Mapping[str, list[Figure]]) -> list[Table]:
    """What the other attacks found in the attacked round of each run, and after clients unlearnt where they did; a table each.

    Args:
        unlearned: by run the figures of that round; empty where nothing was unlearnt.
    """
    frames = [
        others(figure_frame({name: _Round(found)}, over_all)).assign(kind=kind)
        for name, record in records.items()
        for kind, found in (("training", record.figures), ("unlearning", unlearned[name]))
    ]
    frame = _threats(pd.concat(frames), leak=True)
    trained = not any(unlearned.values())
    frame["kind"] = [f"{row['round']}" if trained else f"{row['kind']}\n{row['round']}" for row in rows_of(frame)]
    frame["threat"] = [f"{row['threat']}\n{row['victim']}" for row in rows_of(frame)]
    frame["label"] = frame["label"].str.replace("_", " ")  # which may be broken between words
    heads = {"run": "case", "kind": "round", "threat": "threat\nvictim"} | FIGURE
    sheets = [
        Sheet.of(f"{attack}: all victims together, or the one that gives most away", rows, heads)
        for attack, rows in frame.groupby("attack", sort=False)
    ]
    return [terminal_table(sheet, NARROW, once=3) for sheet in sheets]


class _Round(NamedTuple):
    figures: list[Figure]


def _threats(frame: pd.DataFrame, *, leak: bool) -> pd.DataFrame:
    """With a column that names the threat model, and the leak ratio where asked for; broken where it is long."""
    names = [
        f"{row['threat_model']} {row['leak']:g}" if leak and row["leak"] is not None else row["threat_model"]
        for row in rows_of(frame)
    ]
    return frame.assign(threat=[name.replace("+", "+\n") for name in names])


def convergence_table(records: Mapping[str, Record]) -> Table:
    """Test MRR, bytes and seconds; rounds and bytes to convergence, and bytes to 98 % and 99 % of the first case's MRR over
    those that it took."""
    first = next(iter(records))
    title = f"Utility, cost, convergence by validation MRR (P@98, P@99: bytes to that share of {first}'s, over its own)"
    heads = {
        "run": "case", "mrr": Column("MRR", "share"), "bytes": "MiB", "seconds": "s", "kept": "R@CG",
        "valid": "MRR@CG", "bytes_kept": "P@CG MiB", "p98": "P@98", "p99": "P@99",
    }  # fmt: skip
    return terminal_table(Sheet.of(title, run_frame(records), heads), once=1)


def temperature_remark(records: Mapping[str, Record]) -> str | None:
    """A sentence that parts runs by the temperature of their negatives; None where it is the same in all.

    Args:
        records: by the name of the run.
    """
    if not mixed_temperatures(records.values()):
        return None
    names: dict[float, list[str]] = {}
    for name, record in records.items():
        names.setdefault(task_of(record.spec).columns(record.spec)["temperature"], []).append(name)
    parts = "; ".join(f"{temperature:g} in {', '.join(which)}" for temperature, which in sorted(names.items()))
    return f"Not trained alike: the temperature of negatives is {parts} (0 weighs all alike)."


def protection_by_case(records: Mapping[str, Record]) -> list[str]:
    """What the defenses protect, each sentence once; behind the case's name where it is of one case alone."""
    owners: dict[str, list[str]] = {}
    for case, record in records.items():
        for line in protection_lines(record):
            owners.setdefault(line, []).append(case)
    return [line if len(names) > 1 else f"{names[0]}: {line}" for line, names in owners.items()]


def draw_comparison(records: Mapping[str, Record]) -> bytes:
    """A PNG: MRR, ERR and TRR by threat model beside their baselines, bytes and seconds; a row for each case."""
    cases = list(records.values())
    figure = Picture(figsize=(14, 1.8 + 0.7 * len(cases)), layout="constrained")
    utility, err, trr, size, seconds = figure.subplots(1, 5, sharey=True, width_ratios=[2, 3, 3, 1.5, 1.5])
    places = list(range(len(cases)))[::-1]
    draw_bars(utility, places, [case.utility["mrr"] for case in cases], 0.6, across=True, color=GREY)
    utility.set(xlabel="test MRR (filtered)", title="Utility")
    _draw_leakage(err, places, cases, "err")
    _draw_leakage(trr, places, cases, "trr")
    num_bytes = [(case.bytes.up + case.bytes.down) / 2**20 for case in cases]
    size.barh(places, num_bytes, height=0.6, color=GREY)
    size.set(xlabel="MiB in all", title="Bytes")
    seconds.barh(places, [sum(entry.seconds for entry in case.rounds) for case in cases], height=0.6, color=GREY)
    seconds.set(xlabel="s", title="Time")
    utility.set_yticks(places, [name.replace(",dp:", ",\ndp:") for name in records], fontsize=8)
    figure.legend(*err.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    first = cases[0]
    figure.suptitle(f"{first.data.name} · {first.spec.model} · {len(first.data.clients)} clients", fontsize=11)
    return png(figure)


def _draw_leakage(axes: Axes, places: list[int], cases: Sequence[Record], name: str) -> None:
    """Bars of one rate, a colour for each threat model (its highest leak ratio), a black line at the baseline."""
    rows = [
        {row.threat_model: row for row in sorted(pooled(case), key=lambda row: row.leak) if not row.reason}
        for case in cases
    ]
    threats = [threat for threat in THREAT_MODELS if any(threat in found for found in rows)]
    height = 0.8 / max(1, len(threats))
    for number, threat in enumerate(threats):
        shown = [(place, found[threat]) for place, found in zip(places, rows, strict=True) if threat in found]
        at = [place + 0.4 - height * (number + 0.5) for place, _ in shown]
        attacked = [row for _, row in shown]
        style = {"color": COLOURS[number], "label": threat, "note": number == 0}
        draw_rates(axes, at, attacked, name, 0.9 * height, across=True, **style)
    for place, found in zip(places, rows, strict=True):
        if not found:
            axes.text(0.01, place, "nothing to attack", va="center", fontsize=7, color=GREY)
    axes.set(xlim=(0, 1.02), xlabel="share reconstructed", title=name.upper())
