"""Pictures as PNG or SVG: of one run, of a comparison, and the kinds of `fkgsec plot`.

    Path("picture.png").write_bytes(draw_picture(record))
    Path("bytes.svg").write_bytes(saved(PICTURES["bytes"].draw(read_runs([Path("runs/mine")])), "svg"))

Runs differ in color and in marker or dash, so that color-blind readers and prints in gray tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fkgsec.attacks.figure import Figure as Found
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.frames import attack_name, over_all
from fkgsec.experiments.reporting.items import Run, relations_sheet
from fkgsec.experiments.reporting.matrix import Cell, Matrix, matrix, matrix_figure
from fkgsec.experiments.reporting.membership import roc_figure
from fkgsec.experiments.reporting.picture import BLUE, GREEN, GREY, MOST_LETTERS, ORANGE, png
from fkgsec.experiments.reporting.sheets import interval
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import task_of
from fkgsec.text import printable

COLOURS = (BLUE, ORANGE, GREEN, "#D55E00", "#56B4E9", "#CC79A7", GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
MOST_RUNS = len(COLOURS) * len(DASHES)
MOST_PANELS, MOST_RELATIONS = 3, 15
MIB = 2**20


MOST_GROUPS = 14


def draw_picture(record: Record) -> bytes:
    """Draw loss and validation by round, and beside them what attacks got of all victims."""
    shown = [figure for figure in over_all(record.figures) if not figure.reason][:MOST_GROUPS]
    figure = Figure(figsize=(12, 4.6) if shown else (7, 4.6), layout="constrained")
    if shown:
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.5])
        _draw_bars_of_attacks(right, shown)
    else:
        left = figure.subplots()
    _draw_training(left, record)
    task = task_of(record.spec)
    reached = record.utility[task.metric]
    defense = f" · {record.spec.defense}" if record.spec.defense else ""
    utility = f"test {task.label(task.metric)} {interval(reached)}" if reached.n else f"no test {task.items}"
    trained = record.rounds[1:]
    void = sum(entry.num_survivors == 0 for entry in trained) if record.protection else 0
    opened = f" · {void} of {len(trained)} rounds opened nothing" if void else ""
    figure.suptitle(
        f"{record.spec.algorithm}{defense} · {record.spec.model} · {printable(record.data.name, MOST_LETTERS)} · {utility} "
        f"· {(record.bytes.up + record.bytes.down) / MIB:.1f} MiB exchanged{opened}",
        fontsize=11,
    )
    return png(figure)


def _draw_training(axes: Axes, record: Record) -> None:
    trained = [entry for entry in record.rounds if entry.loss is not None]
    axes.plot(
        [entry.round for entry in trained], [entry.loss or 0 for entry in trained], color=GREY, label="training loss"
    )
    axes.set(xlabel="round", ylabel="loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    second = axes.twinx()
    checked = [(entry.round, entry.valid) for entry in record.rounds if entry.valid is not None]
    task = task_of(record.spec)
    metric = task.label(task.metric)
    second.plot(
        *zip(*checked, strict=True) if checked else ([], []), color=BLUE, marker="o", ms=3, label=f"validation {metric}"
    )
    second.axvline(record.best_round, color=BLUE, lw=0.8, ls=":")
    second.set_ylabel(metric, color=BLUE)
    second.set_ylim(bottom=0)
    lines = [*axes.get_lines(), second.get_lines()[0]]
    axes.legend(lines, [str(line.get_label()) for line in lines], loc="center right", fontsize=8)
    axes.set_title(f"Training (kept: round {record.best_round})", fontsize=10)


def _draw_bars_of_attacks(axes: Axes, figures: Sequence[Found]) -> None:
    labels = [f"{one.attack}\n{one.label}\n{attack_name(one.threat_model, one.leak)}" for one in figures]
    places = list(range(len(figures)))
    draw_bars(axes, places, [one.estimate for one in figures], 0.6, across=False, color=ORANGE)
    based = [(place, one.baseline.value) for place, one in zip(places, figures, strict=True) if one.baseline]
    for number, (place, base) in enumerate(based):
        label = "baseline" if not number else "_"
        axes.hlines(base, place - 0.3, place + 0.3, color="black", lw=2, label=label)
    small = len(figures) > 4
    axes.set_xticks(places, labels, fontsize=6 if small else 8, rotation=60 if small else 0)
    axes.set_title("Attacks, all victims together or the worst one (bars: 95 % intervals)", fontsize=10)
    if based:
        axes.legend(fontsize=8)


def draw_bars(
    axes: Axes, places: Sequence[float], figures: Sequence[Estimate], size: float, *, across: bool, **style: Any
) -> None:
    """Bars with their intervals."""
    errors = [[one.value - one.low for one in figures], [one.high - one.value for one in figures]]
    style |= {"error_kw": {"lw": 1, "capsize": 2}, "xerr" if across else "yerr": errors}
    (axes.barh if across else axes.bar)(places, [one.value for one in figures], size, **style)


def draw_comparison(records: Mapping[str, Record]) -> bytes:
    """Draw a row for each case: utility, the first two figures of attacks by threat model with baselines, bytes and seconds."""
    cases = list(records.values())
    task = task_of(cases[0].spec)
    figure = Figure(figsize=(14, 1.8 + 0.7 * len(cases)), layout="constrained")
    utility, one, other, size, seconds = figure.subplots(1, 5, sharey=True, width_ratios=[2, 3, 3, 1.5, 1.5])
    places = list(range(len(cases)))[::-1]
    draw_bars(utility, places, [case.utility[task.metric] for case in cases], 0.6, across=True, color=GREY)
    utility.set(xlabel=f"test {task.label(task.metric)}", title="Utility")
    keys = dict.fromkeys(found.key for case in cases for found in over_all(case.figures) if not found.reason)
    for axes, key in zip((one, other), [*keys, "", ""][:2], strict=True):
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


def _style(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def _records(runs: Sequence[Run]) -> dict[str, Record]:
    """By names that fit and differ: a long one is cut, and one that is another's then is numbered."""
    found: dict[str, Record] = {}
    for number, run in enumerate(runs, start=1):
        name = printable(run.name, 2 * MOST_LETTERS)
        found[f"{name} ({number})" if name in found else name] = run.record
    return found


def _matrix(runs: Sequence[Run]) -> Matrix:
    """Of runs of one task, whose utilities can stand on one axis. Raises `RunError`."""
    if len({run.record.spec.task for run in runs}) > 1:
        raise RunError(
            "plot: runs of knowledge graphs and of graph classification have no figure in common; draw them apart"
        )
    return matrix(_records(runs))


def utility_leakage(runs: Sequence[Run]) -> Figure | None:
    """Utility over the leading figures that most runs have, of each metric under one adversary; dotted: from the base."""
    made = _matrix(runs)
    rows = [row for row in made.rows if any(cell.measured for cell in row.cells)]
    rows.sort(key=lambda row: (-sum(cell.measured for cell in row.cells), -max(map(_advantage, row.cells))))
    if not rows:
        return None
    by_metric = {row.label.partition("\n")[0]: row for row in reversed(rows)}
    shown = [row for row in rows if row in by_metric.values()][:MOST_PANELS]
    figure = Figure(figsize=(1.2 + 4.2 * len(shown), 4.8), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, row in zip(panels, shown, strict=True):
        for number, (name, cell, utility) in enumerate(zip(made.cases, row.cells, made.utility, strict=True)):
            _point(axes, cell, utility, name, number)
        missing = [name for name, cell in zip(made.cases, row.cells, strict=True) if not cell.measured]
        if missing:
            axes.set_title(f"not attacked so: {', '.join(missing)[: 2 * MOST_LETTERS]}", fontsize=8, color=GREY)
        axes.set_xlabel(row.label, fontsize=9)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel(f"test {made.metric}")
    panels[0].set_ylim(bottom=-0.04 * panels[0].get_ylim()[1])
    handles = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)), fontsize=8)
    figure.suptitle(
        "Utility against leakage (bars: 95 % intervals; dotted: from the base, a tick, to the figure)", fontsize=11
    )
    return figure


def _advantage(cell: Cell) -> float:
    return 0.0 if cell.figure is None else cell.figure.advantage


def _point(axes: Axes, cell: Cell, utility: Estimate, name: str, number: int) -> None:
    if cell.figure is None or not cell.measured:
        return
    one = cell.figure.estimate
    across = [[max(0.0, one.value - one.low)], [max(0.0, one.high - one.value)]]
    up = [[max(0.0, utility.value - utility.low)], [max(0.0, utility.high - utility.value)]]
    axes.errorbar(
        one.value, utility.value, xerr=across, yerr=up, ls="", ms=7, capsize=2, lw=1, label=name, **_style(number)
    )
    if cell.figure.baseline is not None:
        ends = [cell.figure.baseline.value, one.value]
        colour = _style(number)["color"]
        axes.plot(ends, [utility.value] * 2, ls=":", lw=1.2, marker="|", ms=10, markevery=[0], color=colour)


def convergence(runs: Sequence[Run]) -> Figure | None:
    """Validation by round, and by bytes exchanged until then; a dot where the models were kept."""
    shown = [run for run in runs if any(entry.valid is not None for entry in run.record.rounds)]
    if not shown:
        return None
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    by_round, by_bytes = figure.subplots(1, 2, sharey=True)
    for number, (name, record) in enumerate(_records(shown).items()):
        sent, points = 0, []
        for entry in record.rounds:
            sent += entry.bytes_up + entry.bytes_down
            if entry.valid is not None:
                points.append((entry.round, sent / MIB, entry.valid))
        dash = DASHES[number // len(COLOURS) % len(DASHES)]
        style = _style(number) | {"ls": dash}
        for axes, place in ((by_round, 0), (by_bytes, 1)):
            axes.plot(
                [point[place] for point in points], [point[2] for point in points], lw=1.6, **(style | {"marker": ""})
            )
            kept = [point for point in points if point[0] == record.best_round]
            axes.plot([point[place] for point in kept], [point[2] for point in kept], ms=7, label=name, **style)
            axes.grid(alpha=0.25)
    task = task_of(shown[0].record.spec)
    by_round.set(xlabel="round", ylabel=f"validation {task.label(task.metric)}", xlim=(0, None), ylim=(0, None))
    by_round.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_bytes.set(xlabel="MiB exchanged until then, alignment included", xlim=(0, None))
    figure.legend(*by_round.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle("Convergence (marker: the round that was kept)", fontsize=11)
    return figure


def bytes_by_run(runs: Sequence[Run]) -> Figure | None:
    """MiB to the server and back of each run, and what alignment took of it."""
    records = _records(runs)
    figure = Figure(figsize=(9, 1.6 + 0.5 * len(records)), layout="constrained")
    axes = figure.subplots()
    places = list(range(len(records)))[::-1]
    aligned = [(one.rounds[0].bytes_up + one.rounds[0].bytes_down) / MIB for one in records.values()]
    up = [(one.bytes.up - one.rounds[0].bytes_up) / MIB for one in records.values()]
    down = [(one.bytes.down - one.rounds[0].bytes_down) / MIB for one in records.values()]
    axes.barh(places, aligned, 0.6, color=GREY, label="alignment")
    axes.barh(places, up, 0.6, left=aligned, color=BLUE, label="to the server")
    below = [one + other for one, other in zip(aligned, up, strict=True)]
    axes.barh(places, down, 0.6, left=below, color=ORANGE, hatch="//", edgecolor="white", label="to the clients")
    whole = [one + other for one, other in zip(below, down, strict=True)]
    for place, size in zip(places, whole, strict=True):
        axes.text(size, place, f" {size:,.1f}", va="center", fontsize=8)
    axes.set_yticks(places, list(records), fontsize=8)
    axes.set(xlabel="MiB, serialised", xlim=(0, 1.12 * max([*whole, 1e-6])), title="Bytes exchanged")
    axes.legend(fontsize=8)
    return figure


def heat_map(runs: Sequence[Run]) -> Figure | None:
    """Configurations beside adversaries; see `fkgsec.experiments.reporting.matrix`."""
    made = _matrix(runs)
    return matrix_figure(made) if made.rows else None


def roc(runs: Sequence[Run]) -> Figure | None:
    """ROC curves of membership of one run."""
    candidates = runs[0].candidates
    return None if candidates is None or not len(candidates) else roc_figure(candidates)


def risk_by_relation(runs: Sequence[Run]) -> Figure | None:
    """Share of triples rebuilt by relation of one run, by threat model, with the base; sensitive relations first."""
    made = relations_sheet(runs[0])
    if made is None or not made.rows:
        return None
    rows = made.rows[:MOST_RELATIONS]
    threats = [place for place, column in enumerate(made.columns) if column.kind == "figure"]
    figure = Figure(figsize=(9, 1.8 + 0.3 * len(threats) * len(rows)), layout="constrained")
    axes = figure.subplots()
    size = 0.8 / len(threats)
    for number, place in enumerate(threats):
        has_base = place + 1 < len(made.columns) and made.columns[place + 1].kind == "value"
        for down, row in enumerate(rows):
            if not isinstance(row[place], Estimate):
                continue
            at = len(rows) - down - 1 + 0.4 - size * (number + 0.5)
            label = made.columns[place].head if not down else "_"
            draw_bars(axes, [at], [row[place]], 0.9 * size, across=True, color=COLOURS[number], label=label)
            if has_base and row[place + 1] is not None:
                base = "base" if not (down or number) else "_"
                axes.vlines(float(row[place + 1]), at - size / 2, at + size / 2, color="black", lw=2, label=base)
    names = [f"{printable(str(row[0]), MOST_LETTERS)}{' (sensitive)' if row[1] else ''}" for row in rows]
    axes.set_yticks(range(len(rows))[::-1], names, fontsize=8)
    more = f", {len(rows)} of {len(made.rows)} relations" if len(made.rows) > len(rows) else ""
    axes.set(xlim=(0, 1.02), xlabel="share of the victims' triples that the adversary rebuilds (bars: 95 % intervals)")
    axes.set_title(f"Risk by relation: {printable(runs[0].name, MOST_LETTERS)}{more}", fontsize=11)
    axes.legend(fontsize=8, loc="lower right")
    return figure
