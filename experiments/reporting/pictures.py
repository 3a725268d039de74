"""Pictures of runs: of one run, of a comparison, for `fkgsec plot` and for the report page.

    Path("picture.png").write_bytes(draw_picture(record))
    Path("bytes.svg").write_bytes(saved(bytes_by_run(read_runs([Path("runs/mine")])), "svg"))

Runs differ in color and in marker or dash, so that color-blind readers and prints in gray can tell them apart.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.questions import QUESTIONS
from fkgsec.attacks.view import ALL
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate, exact
from fkgsec.experiments.reporting.frames import attack_name, over_all
from fkgsec.experiments.reporting.items import Run, relations_sheet
from fkgsec.experiments.reporting.matrix import Matrix, level, matrix, written
from fkgsec.experiments.reporting.membership import Curve, curves
from fkgsec.experiments.reporting.sheets import NONE, interval, mebibytes, short
from fkgsec.experiments.reporting.verdict import followed, same_figure
from fkgsec.experiments.runs.baseline import trains_alone
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import task_of
from fkgsec.text import printable

# Letters of a name in a picture; longer names would squeeze the axes.
MOST_LETTERS = 40
# Okabe and Ito's colors, which differ for color-blind readers and in gray.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#5c5c5c"
COLOURS = (BLUE, ORANGE, GREEN, "#D55E00", "#56B4E9", "#CC79A7", GREY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
# Color and alpha: a dark page shows through.
ADDS_NOTHING, NOT_ATTACKED = (BLUE, 0.3), (GREY, 0.15)
MOST_RUNS = len(COLOURS) * len(DASHES)
# The picture of a comparison must be legible at a width of 600 pixels.
MOST_CASES, MOST_COLUMNS = 6, 5
MATRIX_FILE = "matrix.png"
MOST_PANELS, MOST_RELATIONS, MOST_VICTIMS, MOST_GROUPS = 3, 15, 8, 14
LEGEND = (
    "Each cell: figure (baseline). Color: from the baseline (white) to the upper bound (orange). The baseline is the same "
    "adversary without the training messages; for planted triples, the same triples without planting. Bold: the 95% interval "
    "lies beyond the baseline. Blue: the baseline is already at the upper bound. Gray: not attacked; the number refers to the "
    "reason."
)


def saved(figure: Picture, form: str = "png", *, salt: str = "fkgsec") -> bytes:
    """Return the content of a picture's file; the same figure gives the same bytes.

    Args:
        form: one of the formats of `fkgsec plot`.
        salt: seed of the IDs in an SVG; IDs of several SVGs in one page must differ.
    """
    # Names come from users' data: a `$` in them must not be read as a formula.
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_parse_math(False)
            text.set_text(printable(text.get_text(), lines=True))
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": salt}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(buffer, format=form, dpi=120, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()


def draw_bars(
    axes: Axes,
    places: Sequence[float],
    figures: Sequence[Estimate],
    size: float,
    bases: Sequence[Any] = (),
    **style: Any,
) -> None:
    """Draw horizontal bars with their intervals, and a black line at each known baseline.

    Args:
        places: vertical positions.
        size: height of a bar.
        bases: baselines; None entries are left out.
        style: passed to `Axes.barh`.
    """
    errors = [[figure.value - figure.low for figure in figures], [figure.high - figure.value for figure in figures]]
    values = [figure.value for figure in figures]
    axes.barh(places, values, size, xerr=errors, error_kw={"lw": 1, "capsize": 2}, **style)
    for place, base in zip(places, bases, strict=False):
        if base is not None:
            axes.vlines(float(base), place - size / 2, place + size / 2, color="black", lw=2)


def named(records: Mapping[str, Record]) -> dict[str, Record]:
    """Return records by names that fit and differ: long names are cut, and numbered if they coincide."""
    names: dict[str, Record] = {}
    for number, (whole, record) in enumerate(records.items(), start=1):
        # The defense's noise parameters go to a second line.
        name = printable(whole, 2 * MOST_LETTERS).replace(",dp:", ",\ndp:")
        # matplotlib hides labels that start with an underscore.
        name = f"\u200b{name}" if name.startswith("_") else name
        names[f"{name} ({number})" if name in names else name] = record
    return names


def _records(runs: Sequence[Run]) -> dict[str, Record]:
    return named({run.name: run.record for run in runs})


def _style(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def legend(figure: Picture) -> None:
    """Draw one legend of all labeled lines below all axes."""
    # A label that occurs in several axes is listed once.
    shown = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if shown:
        ncols = min(4, len(shown)) if figure.get_figwidth() > 8 else 1
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=ncols, fontsize=8)


def draw_picture(record: Record) -> bytes:
    """Draw loss and validation by round, next to the results of attacks on all victims, as PNG.

    Args:
        record: a finished run; without attacks, only the training is drawn.
    """
    shown = [figure for figure in over_all(record.figures) if not figure.reason][:MOST_GROUPS]
    # One more row of bars needs more height; without attacks only one panel is drawn.
    figure = Picture(figsize=(12, max(4.6, 1 + 0.45 * len(shown))) if shown else (7, 4.6), layout="constrained")
    axes = figure.subplots(1, 2 if shown else 1, squeeze=False)[0]
    _draw_training(axes[0], record)
    if shown:
        # matplotlib counts positions from the bottom; the first figure belongs on top.
        places = list(range(len(shown)))[::-1]
        labels = [
            f"{listed.attack} {listed.label}\n{attack_name(listed.threat_model, listed.leak)}" for listed in shown
        ]
        bases = [listed.baseline and listed.baseline.value for listed in shown]
        draw_bars(axes[1], places, [listed.estimate for listed in shown], 0.6, bases, color=ORANGE)
        axes[1].set_yticks(places, labels, fontsize=8 if len(shown) <= 4 else 6)
        axes[1].set_title(
            "Attacks, all victims or the worst one (bars: 95% intervals; thick line: baseline)", fontsize=10
        )
    task = task_of(record.spec)
    reached = record.utility[task.metric]
    defense = f" · {record.spec.defense}" if record.spec.defense else ""
    utility = f"test {task.label(task.metric)} {interval(reached)}" if reached.n else f"no test {task.items}"
    trained = record.rounds[1:]
    # Rounds in which too many clients dropped out for a secure sum.
    void = sum(entry.num_survivors == 0 for entry in trained) if record.protection else 0
    opened = f" · {void} of {len(trained)} rounds opened nothing" if void else ""
    figure.suptitle(
        f"{record.spec.algorithm}{defense} · {record.spec.model} · {printable(record.data.name, MOST_LETTERS)} · {utility} "
        f"· {(record.bytes.up + record.bytes.down) / 2**20:.1f} MiB exchanged{opened}",
        fontsize=11,
    )
    return saved(figure)


def _draw_training(axes: Axes, record: Record) -> None:
    losses = {entry.round: entry.loss for entry in record.rounds if entry.loss is not None}
    axes.plot(list(losses), list(losses.values()), color=GREY, label="training loss")
    axes.set(xlabel="round", ylabel="loss", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    # Loss and validation have different scales, so validation gets its own axis.
    second = axes.twinx()
    checked = {entry.round: entry.valid for entry in record.rounds if entry.valid is not None}
    task = task_of(record.spec)
    metric = task.label(task.metric)
    second.plot(list(checked), list(checked.values()), color=BLUE, marker="o", ms=3, label=f"validation {metric}")
    second.axvline(record.best_round, color=BLUE, lw=0.8, ls=":")
    second.set_ylabel(metric, color=BLUE)
    second.set_ylim(bottom=0)
    lines = [*axes.get_lines(), second.get_lines()[0]]
    axes.legend(lines, [str(line.get_label()) for line in lines], loc="center right", fontsize=8)
    axes.set_title(f"Training (kept: round {record.best_round})", fontsize=10)


def panels(records: Mapping[str, Record], num_attacks: int) -> dict[str, Callable[[Axes], None]]:
    """Return by title the function that draws a row for each run: utility, figures of attacks, bytes and seconds.

    Args:
        records: runs of one task by name.
        num_attacks: most figures of attacks to draw.
    """
    cases = list(records.values())
    task = task_of(cases[0].spec)
    places = list(range(len(cases)))[::-1]
    figures = [[figure for figure in over_all(case.figures) if not figure.reason] for case in cases]
    groups = list(dict.fromkeys((figure.threat_model, figure.variant) for listed in figures for figure in listed))

    def _draw_amounts(axes: Axes, amounts: Sequence[float], unit: str) -> None:
        axes.barh(places, amounts, 0.6, color=GREY)
        axes.set_xlabel(unit)

    def _draw_utility(axes: Axes) -> None:
        draw_bars(axes, places, [case.utility[task.metric] for case in cases], 0.6, color=GREY)
        axes.set_xlabel(f"test {task.label(task.metric)}, higher is better")

    def _draw_figures(axes: Axes, key: str) -> None:
        by_group = {
            group: {place: figure for place, listed in zip(places, figures, strict=True) for figure in listed
                    if figure.key == key and (figure.threat_model, figure.variant) == group}
            for group in groups
        }  # fmt: skip
        shown = {group: cells for group, cells in by_group.items() if cells}
        # The bars of all adversaries share a run's row.
        height = 0.8 / max(1, len(shown))
        for number, (group, cells) in enumerate(shown.items()):
            at = [place + 0.4 - height * (number + 0.5) for place in cells]
            bases = [cell.baseline and cell.baseline.value for cell in cells.values()]
            style = {"color": COLOURS[groups.index(group) % len(COLOURS)], "label": ", ".join(filter(None, group))}
            draw_bars(axes, at, [cell.estimate for cell in cells.values()], 0.9 * height, bases, **style)
        for place in places:
            if not any(place in cells for cells in shown.values()):
                axes.text(0.01, place, "nothing measured", va="center", fontsize=7, color=GREY)
        axes.set_xlabel(f"{key.rpartition('.')[2]} (thick line: baseline)")

    drawn: dict[str, Callable[[Axes], None]] = {"Utility": _draw_utility}
    for key in list(dict.fromkeys(figure.key for listed in figures for figure in listed))[:num_attacks]:
        drawn[key] = partial(_draw_figures, key=key)
    sizes = [(case.bytes.up + case.bytes.down) / 2**20 for case in cases]
    seconds = [sum(entry.seconds for entry in case.rounds) for case in cases]
    return drawn | {
        "MiB exchanged": partial(_draw_amounts, amounts=sizes, unit="MiB both ways, an exact count"),
        "Time": partial(_draw_amounts, amounts=seconds, unit="seconds"),
    }


def draw_comparison(records: Mapping[str, Record]) -> bytes:
    """Draw `comparison_figure` as PNG."""
    return saved(comparison_figure(records))


def comparison_figure(records: Mapping[str, Record]) -> Picture:
    """Draw utility, the leading figure of the first questions, and bytes for the first cases, for a width of 600 pixels.

    Args:
        records: cases by name. Each case that exchanges something gets a row; training alone becomes a dashed line. The title
            counts cases beyond `MOST_CASES`; the matrix shows all.
    """
    names = named(records)
    joined = {name: record for name, record in names.items() if not trains_alone(record.spec)} or names
    shown = dict(list(joined.items())[:MOST_CASES])
    alone = next(
        (record for record in names.values() if trains_alone(record.spec) and record not in joined.values()), None
    )
    # Utility and bytes take two of the columns.
    followed_figures = dict(list(followed(shown).items())[: MOST_COLUMNS - 2])
    task = task_of(next(iter(shown.values())).spec)
    utilities = [record.utility[task.metric] for record in shown.values()]
    sizes = [exact((record.bytes.up + record.bytes.down) / 2**20, 1) for record in shown.values()]
    cells: dict[str, list[Estimate | None]] = {f"test {task.label(task.metric)}": [*utilities]}
    bases: dict[str, list[float | None]] = {}
    for question, figure in followed_figures.items():
        same = [same_figure(record, figure) for record in shown.values()]
        title = f"{QUESTIONS[question]} {figure.label}"
        cells[title] = [None if cell is None or cell.reason else cell.estimate for cell in same]
        bases[title] = [cell.baseline.value if cell and cell.baseline and not cell.reason else None for cell in same]
    cells["MiB"] = [*sizes]

    labels = ["\n".join(textwrap.wrap(name.replace(",", ", "), 15)).replace(", ", ",") for name in shown]
    # A row is as high as its label has lines.
    heights = [0.34 + 0.17 * label.count("\n") for label in labels]
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    picture = Picture(figsize=(8.4, 1.9 + 1.25 * sum(heights)), layout="constrained")
    ends = np.cumsum(heights)
    places = [float(end - height / 2) for end, height in zip(ends, heights, strict=True)]
    for axes, (title, column) in zip(
        picture.subplots(1, len(cells), sharey=True, squeeze=False)[0], cells.items(), strict=True
    ):
        # All bars of a column share a scale, with room for a baseline above all of them.
        most = max([1e-9, *(cell.high for cell in column if cell), *(base for base in bases.get(title, ()) if base)])
        for place, cell, base in zip(places, column, bases.get(title, [None] * len(column)), strict=True):
            if cell is None:
                axes.text(0, place, " n/a", va="center", fontsize=9, color=GREY)
                continue
            color = ORANGE if title in bases else GREY
            draw_bars(axes, [place], [cell], 0.2, [base], color=color)
            written_value = mebibytes(cell.value * 2**20) if title == "MiB" else short(cell)
            axes.text(
                max(cell.high, base or 0) + 0.06 * most, place, written_value, va="center", fontsize=10, bbox=paper
            )
        if alone is not None and column == utilities:
            axes.axvline(alone.utility[task.metric].value, color="black", lw=1.2, ls="--")
            axes.set_xlabel("dashed: alone", fontsize=9)
        elif title in bases:
            axes.set_xlabel("thick line: baseline", fontsize=9)
        # Leave room for the number right of the bar; the first row is on top.
        axes.set(xlim=(0, 1.75 * most), ylim=(float(ends[-1]), 0))
        axes.set_title("\n".join(textwrap.wrap(title, 16)), fontsize=10, va="bottom")
        axes.xaxis.set_major_locator(MaxNLocator(2))
        axes.tick_params(labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    picture.axes[0].set_yticks(places, labels, fontsize=10)
    first = next(iter(names.values()))
    missing = len(joined) - len(shown)
    more = f" · {missing} more in {MATRIX_FILE}" if missing else ""
    data = printable(first.data.name, MOST_LETTERS)
    picture.suptitle(f"{data} · {first.spec.model} · {len(first.data.clients)} clients{more}", fontsize=10)
    return picture


def _matrix(runs: Sequence[Run]) -> Matrix:
    """Return the matrix of runs of one task, whose utilities can stand on one axis. Raises `RunError`."""
    if len({run.record.spec.task for run in runs}) > 1:
        raise RunError(
            "plot: runs of knowledge graphs and of graph classification have no figure in common; draw them apart"
        )
    return matrix(_records(runs))


def utility_leakage(runs: Sequence[Run]) -> Picture | None:
    """Draw utility over leakage for the leading metrics that most runs have; a dotted line starts at the baseline.

    Args:
        runs: runs of one task.

    Returns:
        None if nothing was attacked.

    Raises:
        RunError: runs of several tasks.
    """
    table = _matrix(runs)
    rows = {label: cells for label, cells in table.rows.items() if any(isinstance(cell, Figure) for cell in cells)}
    if not rows:
        return None

    def _order(label: str) -> tuple[int, float]:
        measured = [cell for cell in rows[label] if isinstance(cell, Figure)]
        return -len(measured), -max(figure.advantage for figure in measured)

    # A label starts with the metric, then names the adversary. Take the best adversary of each metric.
    by_metric: dict[str, str] = {}
    for label in sorted(rows, key=_order):
        by_metric.setdefault(label.partition("\n")[0], label)
    shown = list(by_metric.values())[:MOST_PANELS]
    figure = Picture(figsize=(1.2 + 4.2 * len(shown), 4.8), layout="constrained")
    for axes, label in zip(figure.subplots(1, len(shown), sharey=True, squeeze=False)[0], shown, strict=True):
        missing = []
        for number, (name, cell, utility) in enumerate(zip(table.cases, rows[label], table.utility, strict=True)):
            if isinstance(cell, Figure):
                _point(axes, cell, utility, name, number)
            else:
                missing.append(name)
        if missing:
            axes.set_title(f"not attacked so: {', '.join(missing)[: 2 * MOST_LETTERS]}", fontsize=8, color=GREY)
        axes.set_xlabel(label, fontsize=9)
        axes.grid(alpha=0.25)
    first = figure.axes[0]
    first.set_ylabel(f"test {table.metric}")
    first.set_ylim(bottom=-0.04 * first.get_ylim()[1])
    legend(figure)
    figure.suptitle(
        "Utility against leakage (bars: 95% intervals; dotted: from the baseline, a tick, to the figure)", fontsize=11
    )
    return figure


def _point(axes: Axes, figure: Figure, utility: Estimate, name: str, number: int) -> None:
    draw_point(axes, figure.estimate, utility, name, number)
    at, style = figure.estimate.value, _style(number)
    if figure.baseline is not None:
        ends = [figure.baseline.value, at]
        axes.plot(ends, [utility.value] * 2, ls=":", lw=1.2, marker="|", ms=10, markevery=[0], color=style["color"])


def draw_point(axes: Axes, across: Estimate, up: Estimate, name: str, number: int) -> None:
    """Draw a point with both of its intervals.

    Args:
        across: horizontal value.
        up: vertical value.
        name: label of the legend.
        number: position of the run, which selects color and marker.
    """
    errors = [[[max(0.0, end.value - end.low)], [max(0.0, end.high - end.value)]] for end in (across, up)]
    style = _style(number)
    axes.errorbar(
        across.value, up.value, xerr=errors[0], yerr=errors[1], ls="", ms=7, capsize=2, lw=1, label=name, **style
    )


def validations(records: Mapping[str, Record]) -> pd.DataFrame:
    """Return a row for each validation.

    Returns:
        Columns run, round, bytes (exchanged until then), valid, and best (True in the best round).
    """
    return pd.DataFrame(
        [
            (name, entry.round, num_bytes, entry.valid, entry.round == record.best_round)
            for name, record in records.items()
            for entry, num_bytes in zip(
                record.rounds, np.cumsum([entry.bytes_up + entry.bytes_down for entry in record.rounds]), strict=True
            )
            if entry.valid is not None
        ],
        columns=["run", "round", "bytes", "valid", "best"],
    )


def convergence(runs: Sequence[Run], *, narrow: bool = False) -> Picture | None:
    """Draw validation by round and by bytes exchanged until then, with a marker at the best round.

    Args:
        runs: runs of one task.
        narrow: draw one chart below the other, for a page.

    Returns:
        None if no run was validated.
    """
    checked = validations(_records(runs))
    if not len(checked):
        return None
    by_run = checked.assign(mib=checked["bytes"] / 2**20).groupby("run", sort=False)
    figure = Picture(figsize=(5.6, 6 + 0.2 * len(by_run)) if narrow else (11, 4.6), layout="constrained")
    both = by_round, by_bytes = figure.subplots(*((2, 1) if narrow else (1, 2)), sharey=True)
    for number, (name, rows) in enumerate(by_run):
        style = _style(number) | {"ls": DASHES[number // len(COLOURS) % len(DASHES)]}
        for axes, column in zip(both, ("round", "mib"), strict=True):
            axes.plot(rows[column], rows["valid"], lw=1.6, **(style | {"marker": ""}))
            best = rows.loc[rows["best"]]
            axes.plot(best[column], best["valid"], ms=7, label=name, **style)
            axes.grid(alpha=0.25)
    task = task_of(runs[0].record.spec)
    by_round.set(xlabel="round", ylabel=f"validation {task.label(task.metric)}", xlim=(0, None), ylim=(0, None))
    by_round.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_bytes.set(xlabel="MiB exchanged until then, alignment included", xlim=(0, None))
    legend(figure)
    figure.suptitle("Convergence (marker: the best round)", fontsize=11)
    return figure


def bytes_by_run(runs: Sequence[Run]) -> Picture | None:
    """Draw the MiB of each run by direction.

    Args:
        runs: any runs.
    """
    records = _records(runs)
    # Entry 0 holds the bytes of entity alignment.
    first = [record.rounds[0] for record in records.values()]
    parts = {
        "alignment": [entry.bytes_up + entry.bytes_down for entry in first],
        "to the server": [run.bytes.up - entry.bytes_up for run, entry in zip(records.values(), first, strict=True)],
        "to the clients": [
            run.bytes.down - entry.bytes_down for run, entry in zip(records.values(), first, strict=True)
        ],
    }
    figure = Picture(figsize=(9, 1.6 + 0.5 * len(records)), layout="constrained")
    axes = figure.subplots()
    places, whole = list(range(len(records)))[::-1], np.zeros(len(records))
    for (label, sizes), colour in zip(parts.items(), (GREY, BLUE, ORANGE), strict=True):
        axes.barh(places, np.divide(sizes, 2**20), 0.6, left=whole, color=colour, edgecolor="white", label=label)
        whole += np.divide(sizes, 2**20)
    for place, size in zip(places, whole, strict=True):
        axes.text(size, place, f" {size:,.1f}", va="center", fontsize=8)
    axes.set_yticks(places, list(records), fontsize=8)
    axes.set(xlabel="MiB, serialised", xlim=(0, 1.12 * max([*whole, 1e-6])), title="Bytes exchanged")
    axes.legend(fontsize=8)
    return figure


def heat_map(runs: Sequence[Run]) -> Picture | None:
    """Draw configurations by adversaries; see `fkgsec.experiments.reporting.matrix`.

    Args:
        runs: runs of one task.
    """
    table = _matrix(runs)
    return matrix_figure(table) if table.rows else None


def matrix_figure(table: Matrix, title: str = "What each adversary gets, by configuration") -> Picture:
    """Draw a matrix with adversaries as rows, cases as columns, and the figure in each cell; see `LEGEND`.

    Args:
        table: cases by adversaries.
        title: printed above.
    """
    reasons, columns = table.reasons, len(table.cases)
    notes = [LEGEND, *(f"{number}: {reason}" for number, reason in enumerate(reasons, start=1))]
    # Sizes in inches: the axes cover exactly the cells, so that one cell is one unit of both axes.
    text = [line for note in notes for line in textwrap.wrap(note, 62 + 26 * columns)]
    height, below = 0.42 * (len(table.rows) + 2), 0.17 * (len(text) + 2)
    width, whole = 4.2 + 1.7 * columns, height + below + 1.3
    figure = Picture(figsize=(width, whole), layout=None)
    axes = figure.add_axes((3.9 / width, below / whole, 1.7 * columns / width, height / whole))
    write = partial(axes.text, ha="center", va="center", fontsize=8)
    for place, (case, utility, size) in enumerate(zip(table.cases, table.utility, table.bytes, strict=True)):
        name = case.replace(",", ",\n").replace("/", "/\n")
        write(place + 0.5, -0.15, name, va="bottom", fontweight="bold")
        write(place + 0.5, 0.5, interval(utility) if utility.n else NONE)
        write(place + 0.5, 1.5, f"{size / 2**20:,.1f}")
    labels = [f"test {table.metric}", "MiB", *(label.replace("\n", " · ") for label in table.rows)]
    for down, label in enumerate(labels):
        write(-0.08, down + 0.5, label, ha="right")
    for down, cells in enumerate(table.rows.values(), start=2):
        for place, cell in enumerate(cells):
            face, color, weight = NOT_ATTACKED, GREY, "normal"
            if isinstance(cell, Figure):
                # The cell gets darker from the baseline to the upper bound.
                face = ADDS_NOTHING if cell.baseline_at_bound else (ORANGE, level(cell))
                color, weight = "black", "bold" if cell.beyond else "normal"
            axes.add_patch(Rectangle((place, down), 1, 1, facecolor=face, edgecolor="white", lw=2))
            write(place + 0.5, down + 0.5, written(cell, reasons), color=color, fontweight=weight)
    axes.set(xlim=(0, columns), ylim=(len(labels), 0))
    axes.set_axis_off()
    figure.text(0.02, 1 - 0.25 / whole, title, fontsize=11, va="center")
    figure.text(0.02, (below - 0.2) / whole, "\n".join(text), fontsize=7, va="top", linespacing=1.4)
    return figure


def roc(runs: Sequence[Run], *, narrow: bool = False) -> Picture | None:
    """Draw `roc_figure` of one run; None without candidates.

    Args:
        runs: the run, alone in a sequence as for the other pictures.
        narrow: see `roc_figure`.
    """
    candidates = runs[0].candidates
    return None if candidates is None or not len(candidates) else roc_figure(candidates, narrow=narrow)


def roc_figure(candidates: pd.DataFrame, *, narrow: bool = False) -> Picture:
    """Draw for each threat model the curves of its victims and, in bold, of all; chance is dotted.

    Both axes are logarithmic: low false alarm rates matter most (Carlini et al. 2022).

    Args:
        candidates: rows of `membership.candidates_of`.
        narrow: draw one threat model below the other, for a page.
    """
    by_threat: dict[str, list[Curve]] = {}
    for curve in curves(candidates):
        by_threat.setdefault(curve.place, []).append(curve)
    count = len(by_threat)
    size, shape = ((5.6, 5.9 * count), (count, 1)) if narrow else ((0.6 + 4.6 * count, 5.9), (1, count))
    figure = Picture(figsize=size, layout="constrained")
    for axes, (place, listed) in zip(np.ravel(figure.subplots(*shape, squeeze=False)), by_threat.items(), strict=True):
        # A logarithmic axis has no zero: draw zero below the smallest rate that a curve can have.
        least = min(0.5 / curve.num_controls for curve in listed)
        victims = [curve for curve in listed if curve.victim != ALL][:MOST_VICTIMS]
        for number, curve in enumerate((*victims, *(curve for curve in listed if curve.victim == ALL))):
            style = {"lw": 2.4, "color": BLUE}
            if curve.victim != ALL:
                style = {
                    "lw": 1.2,
                    "color": (ORANGE, GREEN, GREY)[number % 3],
                    "ls": ("-", "--", "-.")[number // 3 % 3],
                }
            alarms, detected = np.maximum(curve.false_alarms, least), np.maximum(curve.detected, least)
            axes.plot(
                alarms,
                detected,
                label=f"{printable(curve.victim, MOST_LETTERS)}: {curve.auc:.3f} ({curve.by})",
                **style,
            )
        axes.plot([least, 1], [least, 1], color="black", lw=0.8, ls=":")
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="false alarms (share of never-seen triples)", ylabel="found (share of training triples)")
        axes.set_title(place, fontsize=10)
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), title="AUC (way)", title_fontsize=7)
    figure.suptitle("Membership: training triples found, by the strongest way of each victim", fontsize=11)
    return figure


def risk_by_relation(runs: Sequence[Run]) -> Picture | None:
    """Draw the share of rebuilt triples by relation and threat model, with the baseline; sensitive relations first.

    Args:
        runs: one run with scores.

    Returns:
        None without scores or reconstruction.
    """
    sheet = relations_sheet(runs[0])
    if sheet is None or not sheet.rows:
        return None
    rows = sheet.rows[:MOST_RELATIONS]
    threats = [place for place, column in enumerate(sheet.columns) if column.kind == "figure"]
    has_base = any(column.head == "base" for column in sheet.columns)
    figure = Picture(figsize=(9, 1.8 + 0.3 * len(threats) * len(rows)), layout="constrained")
    axes = figure.subplots()
    size = 0.8 / len(threats)
    for number, place in enumerate(threats):
        at = [len(rows) - down - 1 + 0.4 - size * (number + 0.5) for down in range(len(rows))]
        # In this sheet, each figure's baseline is the next column.
        bases = [row[place + 1] for row in rows] if has_base else []
        style = {"color": COLOURS[number], "label": sheet.columns[place].head}
        draw_bars(axes, at, [row[place] for row in rows], 0.9 * size, bases, **style)
    names = [f"{printable(str(row[0]), MOST_LETTERS)}{' (sensitive)' if row[1] else ''}" for row in rows]
    axes.set_yticks(range(len(rows))[::-1], names, fontsize=8)
    more = f", {len(rows)} of {len(sheet.rows)} relations" if len(sheet.rows) > len(rows) else ""
    about = "share of the victims' triples that the adversary rebuilds (bars: 95% intervals; thick line: baseline)"
    axes.set(xlim=(0, 1.02), xlabel=about)
    axes.set_title(f"Risk by relation: {printable(runs[0].name, MOST_LETTERS)}{more}", fontsize=11)
    axes.legend(fontsize=8, loc="lower right")
    return figure
