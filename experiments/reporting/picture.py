"""Pictures as PNG or SVG: of a run, how it converged and what leaked.

Path("picture.png").write_bytes(draw_picture(record))
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from attacks.figure import Figure as Found
from attacks.reconstruction.leakage import Leakage, headline_rows
from attacks.view import ALL
from experiments.reporting.frames import attack_name, over_all
from experiments.runs.record import Record
from experiments.tasks.task import task_of
from fkgsec.estimate import Estimate
from fkgsec.text import printable

FORMATS = ("png", "svg")
# Okabe and Ito's colours: told apart by colour-blind readers, and by grey level in print.
MOST_GROUPS = 14
MOST_LETTERS = 40  # of a name in a picture; longer ones would leave no room for what is drawn
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#5c5c5c"


def draw_picture(record: Record) -> bytes:
    """A PNG: loss and validation by round; beside it ERR and TRR of each victim with intervals and baselines, or where nothing is
    reconstructed what other attacks found of all victims."""
    rows = _rows_to_draw(record)
    others = [] if record.leakage else [one for one in over_all(record.figures) if not one.reason][:MOST_GROUPS]
    figure = Figure(figsize=(12, 4.6) if rows or others else (7, 4.6), layout="constrained")
    if rows or others:
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.5])
        _draw_leakage(right, rows) if rows else _draw_figures(right, others)
    else:
        left = figure.subplots()
    _draw_training(left, record)
    task = task_of(record.spec)
    reached = record.utility[task.metric]
    defense = f" · {record.spec.defense}" if record.spec.defense else ""
    shown = f"test {task.label(task.metric)} {reached.value:.3f} [{reached.low:.3f}, {reached.high:.3f}]"
    shown = shown if reached.n else f"no test {task.items}"
    figure.suptitle(
        f"{record.spec.algorithm}{defense} · {record.spec.model} · {printable(record.data.name, MOST_LETTERS)} · {shown} "
        f"· {(record.bytes.up + record.bytes.down) / 2**20:.1f} MiB exchanged{_void_rounds(record)}",
        fontsize=11,
    )
    return png(figure)


def png(figure: Figure) -> bytes:
    """The figure as a PNG."""
    return saved(figure, "png")


def saved(figure: Figure, form: str) -> bytes:
    """The file in one of `FORMATS`; the same figure gives the same bytes.

    Texts stand as they are: names come from somebody's data, and a `$` in them would be read as a formula.
    """
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_parse_math(False)
            text.set_text(printable(text.get_text(), lines=True))
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "fkgsec"}):
        figure.savefig(buffer, format=form, dpi=120, metadata={"Date": None} if form == "svg" else None)
    return buffer.getvalue()


def _void_rounds(record: Record) -> str:
    """How many rounds opened nothing, where any did."""
    trained = record.rounds[1:]
    void = sum(entry.num_survivors == 0 for entry in trained) if record.protection else 0
    return f" · {void} of {len(trained)} rounds opened nothing" if void else ""


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


def _rows_to_draw(record: Record) -> list[Leakage]:
    """The victims that could be attacked; when they would not fit, all of them together."""
    measured = [row for row in headline_rows(record.leakage) if not row.reason]
    each = [row for row in measured if row.victim != ALL]
    return each if len(each) <= MOST_GROUPS else [row for row in measured if row.victim == ALL][:MOST_GROUPS]


def _draw_leakage(axes: Axes, rows: list[Leakage]) -> None:
    labels = [f"{printable(row.victim, MOST_LETTERS)}\n{attack_name(row.threat_model, row.leak)}" for row in rows]
    for offset, (name, colour) in enumerate((("err", ORANGE), ("trr", GREEN))):
        places = [place + (offset - 0.5) * 0.38 for place in range(len(rows))]
        draw_rates(axes, places, rows, name, 0.36, color=colour, label=name.upper(), note=offset == 1)
    small = len(rows) > 6
    axes.set_xticks(range(len(rows)), labels, fontsize=6 if small else 8, rotation=60 if small else 0)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("share reconstructed")
    axes.set_title("Reconstruction of each victim (bars: 95 % intervals)", fontsize=10)
    axes.legend(fontsize=8)


def _draw_figures(axes: Axes, figures: Sequence[Found]) -> None:
    labels = [f"{one.attack}\n{one.label}\n{attack_name(one.threat_model, one.leak)}" for one in figures]
    places = list(range(len(figures)))
    draw_bars(axes, places, [one.estimate for one in figures], 0.6, across=False, color=ORANGE)
    based = [(place, one.baseline.value) for place, one in zip(places, figures, strict=True) if one.baseline]
    for number, (place, base) in enumerate(based):
        label = "best guess without what crossed" if not number else "_"
        axes.hlines(base, place - 0.3, place + 0.3, color="black", lw=2, label=label)
    small = len(figures) > 4
    axes.set_xticks(places, labels, fontsize=6 if small else 8, rotation=60 if small else 0)
    axes.set_title("Attacks, all victims together or the worst one (bars: 95 % intervals)", fontsize=10)
    if based:
        axes.legend(fontsize=8)


def draw_rates(
    axes: Axes,
    places: Sequence[float],
    rows: Sequence[Leakage],
    rate: str,
    size: float,
    *,
    note: bool,
    across: bool = False,
    **style: Any,
) -> None:
    """Bars of ERR or TRR with their intervals, and a black line at each base.

    Args:
        size: of a bar. note: whether the legend names the base. across: bars from left to right.
    """  # fmt: skip
    figures = [getattr(row, rate) for row in rows]
    draw_bars(axes, places, figures, size, across=across, **style)
    bases = [figure.value - getattr(row, f"{rate}_advantage") for row, figure in zip(rows, figures, strict=True)]
    ends = [place - size / 2 for place in places], [place + size / 2 for place in places]
    label = "best guess without the rounds" if note else "_"
    (axes.vlines if across else axes.hlines)(bases, *ends, color="black", lw=2, label=label)


def draw_bars(
    axes: Axes, places: Sequence[float], figures: Sequence[Estimate], size: float, *, across: bool, **style: Any
) -> None:
    """Bars with their intervals."""
    errors = [[one.value - one.low for one in figures], [one.high - one.value for one in figures]]
    style |= {"error_kw": {"lw": 1, "capsize": 2}, "xerr" if across else "yerr": errors}
    (axes.barh if across else axes.bar)(places, [one.value for one in figures], size, **style)
