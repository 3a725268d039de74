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
    where_measured,
)
from experiments.reporting.picture import BLUE, GREEN, GREY, MOST_LETTERS, ORANGE, draw_bars, draw_rates, png
from experiments.reporting.sheets import Column, Sheet, terminal_table
from experiments.reporting.tables import FIGURE, INFERENCE_TITLE, RATES, inference_columns, protection_lines
from experiments.runs.record import Record
from experiments.tasks.task import task_of
from fkgsec.text import printable

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
    return [terminal_table(sheet, once=1) for sheet in sheets if sheet.rows]


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
        Sheet.of(f"{attack}: all victims together, or the one that gives most away", where_measured(rows), heads)
        for attack, rows in frame.groupby("attack", sort=False)
    ]
    return [terminal_table(sheet, once=3) for sheet in sheets]


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
    """Test utility, bytes and seconds; rounds and bytes to convergence, and bytes to 98 % and 99 % of the first case's validation
    over those that it took."""
    first = next(iter(records))
    task = task_of(records[first].spec)
    label = task.label(task.metric)
    title = (
        f"Utility, cost, convergence by validation {label} (P@98, P@99: bytes to that share of {first}'s, over its own)"
    )
    heads = {
        "run": "case", task.metric: Column(label, "share"), "bytes": "MiB", "seconds": "s", "kept": "R@CG",
        "valid": f"{label}@CG", "bytes_kept": "P@CG MiB", "p98": "P@98", "p99": "P@99",
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
    """A PNG: utility, what attacks found by threat model beside their baselines, bytes and seconds; a row for each case.

    Of attacks ERR and TRR are shown, or, where nothing is reconstructed, the two figures that stand first.
    """
    cases = list(records.values())
    task = task_of(cases[0].spec)
    figure = Picture(figsize=(14, 1.8 + 0.7 * len(cases)), layout="constrained")
    utility, one, other, size, seconds = figure.subplots(1, 5, sharey=True, width_ratios=[2, 3, 3, 1.5, 1.5])
    places = list(range(len(cases)))[::-1]
    draw_bars(utility, places, [case.utility[task.metric] for case in cases], 0.6, across=True, color=GREY)
    utility.set(xlabel=f"test {task.label(task.metric)}", title="Utility")
    if any(case.leakage for case in cases):
        _draw_leakage(one, places, cases, "err")
        _draw_leakage(other, places, cases, "trr")
    else:
        questions = dict.fromkeys(found.key for case in cases for found in over_all(case.figures) if not found.reason)
        for axes, key in zip((one, other), [*questions, "", ""][:2], strict=True):
            _draw_figures(axes, places, cases, key)
    num_bytes = [(case.bytes.up + case.bytes.down) / 2**20 for case in cases]
    size.barh(places, num_bytes, height=0.6, color=GREY)
    size.set(xlabel="MiB in all", title="Bytes")
    seconds.barh(places, [sum(entry.seconds for entry in case.rounds) for case in cases], height=0.6, color=GREY)
    seconds.set(xlabel="s", title="Time")
    names = [printable(name, 2 * MOST_LETTERS).replace(",dp:", ",\ndp:") for name in records]
    utility.set_yticks(places, names, fontsize=8)
    figure.legend(*one.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    first = cases[0]
    data = printable(first.data.name, MOST_LETTERS)
    figure.suptitle(f"{data} · {first.spec.model} · {len(first.data.clients)} clients", fontsize=11)
    return png(figure)


def _draw_figures(axes: Axes, places: list[int], cases: Sequence[Record], key: str) -> None:
    """Bars of one figure of an attack, a colour for each threat model and variant, a black line at the base."""
    rows = [
        {(one.threat_model, one.variant): one for one in over_all(case.figures) if one.key == key and not one.reason}
        for case in cases
    ]
    groups = list(dict.fromkeys(group for found in rows for group in found))
    height = 0.8 / max(1, len(groups))
    for number, group in enumerate(groups):
        shown = [(place, found[group]) for place, found in zip(places, rows, strict=True) if group in found]
        at = [place + 0.4 - height * (number + 0.5) for place, _ in shown]
        label = ", ".join(part for part in group if part)
        style = {"color": COLOURS[number % len(COLOURS)], "label": label}
        draw_bars(axes, at, [one.estimate for _, one in shown], 0.9 * height, across=True, **style)
        for place, (_, one) in zip(at, shown, strict=True):
            if one.baseline is not None:
                axes.vlines(one.baseline.value, place - height / 2, place + height / 2, color="black", lw=2)
    for place, found in zip(places, rows, strict=True):
        if not found:
            axes.text(0.01, place, "nothing measured", va="center", fontsize=7, color=GREY)
    axes.set(xlabel=key.rpartition(".")[2], title=key.partition(".")[0] or "Attacks")


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
