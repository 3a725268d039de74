"""Configurations beside adversaries: for each attack the figure that stands for it, in every case, as a table and a heat map.

    made = matrix({"none": record, "psu,secagg": other})
    console.print(terminal_table(sheet(made)))
    Path("matrix.png").write_bytes(draw_matrix(made))

    python -m fkgsec.experiments.reporting.summary --matrix runs/compare-*/comparison.json  # Markdown

A row is an attack's leading metric (`Attack.leading`) under one threat model and leak ratio: over all victims together, or the
worst one where the attack gives none over all. Nothing lists attacks: whatever stands in the records is shown. What a figure is
worth tells its place between the baseline, what the same adversary gets without what crossed, and the most that it can be;
that place is the colour (`Cell.level`).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle

from fkgsec.attacks.figure import Figure, Place, leading
from fkgsec.attacks.registry import ATTACKS
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.frames import attack_name
from fkgsec.experiments.reporting.picture import GREY, ORANGE, png
from fkgsec.experiments.reporting.sheets import NONE, NOT_ATTACKED, Column, Sheet, interval, short
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import task_of

STEPS, GIVEN = 5, "#b9d9ec"
LEGEND = (
    "Colour: how far a figure lies from its base (white: no better than the same adversary without what crossed, or than its "
    "false triples that nobody planted) to the most that it can be (orange). Bold: the 95 % interval lies beyond the base. "
    "Blue: the base is the most already, so that the attack can add nothing. Grey: not attacked, for the reason of that number."
)


class Cell(NamedTuple):
    """One adversary in one case.

    Attributes:
        figure: None where the attack asks something else in this case. reason: why nothing was attacked.
    """

    figure: Figure | None = None
    reason: str = ""

    @property
    def measured(self) -> bool:
        return self.figure is not None and not self.reason

    @property
    def given(self) -> bool:
        """Whether the base is the most already."""
        return self.measured and self.figure is not None and self.figure.given

    @property
    def level(self) -> float:
        """Where the figure lies between its baseline (0) and the worst that it can be (1); 0 where nothing lies between."""
        if self.figure is None or self.reason:
            return 0.0
        one, base = self.figure, 0.0 if self.figure.baseline is None else self.figure.baseline.value
        most = one.attainable if one.attainable is not None else float(not one.less_is_worse)
        span = most - base
        return 0.0 if abs(span) < 1e-9 else min(1.0, max(0.0, (one.estimate.value - base) / span))

    @property
    def step(self) -> int:
        """The level in `STEPS` steps of colour, 0 where there is none; a level above 0 has one."""
        return math.ceil(self.level * STEPS - 1e-9) if self.measured else 0

    @property
    def beyond(self) -> bool:
        """Whether the interval lies on the victim's worse side of the baseline."""
        return self.measured and self.figure is not None and self.figure.beyond


class Row(NamedTuple):
    """One adversary in all cases."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Matrix:
    """All of them.

    Attributes:
        cases: their names. rows: adversaries, in the order in which attacks are registered.
        metric: of utility. utility, bytes: of each case.
    """

    cases: tuple[str, ...]
    rows: tuple[Row, ...]
    metric: str
    utility: tuple[Estimate, ...]
    bytes: tuple[int, ...]

    @property
    def reasons(self) -> list[str]:
        """Each once, in the order of the cells; a cell names its own by number, from 1."""
        return list(dict.fromkeys(cell.reason for row in self.rows for cell in row.cells if cell.reason))


def matrix(records: Mapping[str, Record]) -> Matrix:
    """The matrix of these runs by the name of the case, at least one."""
    first = next(iter(records.values()))
    task = task_of(first.spec)
    return Matrix(
        tuple(records),
        figure_rows({case: record.figures for case, record in records.items()}),
        task.label(task.metric),
        tuple(record.utility[task.metric] for record in records.values()),
        tuple(record.bytes.up + record.bytes.down for record in records.values()),
    )


def figure_rows(figures: Mapping[str, Sequence[Figure]]) -> tuple[Row, ...]:
    """The matrix's rows of these figures by the name of the case."""
    found = {case: _leading(listed) for case, listed in figures.items()}
    known = {place for cells in found.values() for place in cells}
    order = {name: number for number, name in enumerate(ATTACKS)}
    places = sorted(known, key=lambda one: (order.get(one[0], len(order)), *map(str, one)))
    return tuple(
        Row(_label(place), tuple(cells.get(place) or _other(place, cells) for cells in found.values()))
        for place in places
    )


def has_matrix(records: Mapping[str, Record]) -> bool:
    """Whether so many attacks were run that a table for each would hide what matters."""
    return any(len({one.attack for one in record.figures}) > 2 for record in records.values())


def _leading(figures: Sequence[Figure]) -> dict[Place, Cell]:
    """By place the cell of one run."""
    leads = {name: attack.leading for name, attack in ATTACKS.items()}
    return {place: Cell(one, one.reason or "") for place, one in leading(figures, leads).items()}


def _other(place: Place, cells: Mapping[Place, Cell]) -> Cell:
    """In the place of a figure that a case does not have: what its attack asks there instead."""
    attack, metric = place[:2]
    own = [one for one in cells if one[0] == attack]
    if not own:
        return Cell(None, f"{attack} was not run")
    threats = dict.fromkeys(attack_name(one[2], one[3]) for one in own if one[1] == metric)
    if threats:
        return Cell(None, f"{attack}.{metric} is asked under {' and '.join(threats)} there")
    return Cell(None, f"{attack} gives {' and '.join(dict.fromkeys(one[1] for one in own))} there")


def _label(place: Place) -> str:
    attack, metric, threat, leak, variant = place
    parts = (attack_name(threat, leak), variant)
    return f"{attack}.{metric}\n{', '.join(part for part in parts if part)}"


def written(cell: Cell, reasons: Sequence[str]) -> str:
    """The figure and in brackets its base; the number of the reason where nothing was attacked."""
    if cell.figure is None or cell.reason:
        return f"{NOT_ATTACKED} {reasons.index(cell.reason) + 1}"
    base = cell.figure.baseline
    return short(cell.figure.estimate) + ("" if base is None else f" ({short(base)})")


def sheet(made: Matrix) -> Sheet:
    """A column for each case; utility and bytes first. A star marks what lies beyond its base."""
    reasons = made.reasons
    head = [
        (f"test {made.metric}", *(interval(one) if one.n else NONE for one in made.utility)),
        ("MiB", *(f"{size / 2**20:,.1f}" for size in made.bytes)),
    ]
    rows = [
        (row.label, *(f"{written(cell, reasons)}{' *' if cell.beyond else ''}" for cell in row.cells))
        for row in made.rows
    ]
    notes = (
        "In brackets the base: what the same adversary gets without what crossed, or without its attack. A star: the 95 % "
        "interval lies beyond it.",
        *(f"{NOT_ATTACKED} {number}: {reason}" for number, reason in enumerate(reasons, start=1)),
    )
    heads = (Column("adversary"), *(Column(case) for case in made.cases))
    return Sheet("What each adversary gets, by configuration", heads, (*head, *rows), notes=notes)


def draw_matrix(made: Matrix, title: str = "") -> bytes:
    """`matrix_figure` as a PNG."""
    return png(matrix_figure(made, title))


def matrix_figure(made: Matrix, title: str = "") -> Picture:
    """Adversaries below each other, cases beside each other, the raw figure in each cell; see `LEGEND`."""
    reasons, columns = made.reasons, len(made.cases)
    said = [f"Figure, and in brackets its base. {LEGEND}"]
    said += [f"{number}: {reason}" for number, reason in enumerate(reasons, start=1)]
    text = [line for one in said for line in _wrapped(one, 2 + int(26 * columns))]
    height = 0.42 * (len(made.rows) + 2)
    below = 0.17 * (len(text) + 2)
    figure = Picture(figsize=(4.2 + 1.7 * columns, height + below + 1.3), layout=None)
    whole = figure.get_figheight()
    axes = figure.add_axes(
        (3.9 / figure.get_figwidth(), below / whole, 1.7 * columns / figure.get_figwidth(), height / whole)
    )
    colours = LinearSegmentedColormap.from_list("level", ["#ffffff", ORANGE])
    for place, (case, utility, size) in enumerate(zip(made.cases, made.utility, made.bytes, strict=True)):
        axes.text(place + 0.5, -0.15, _broken(case), ha="center", va="bottom", fontsize=8, fontweight="bold")
        axes.text(place + 0.5, 0.5, interval(utility) if utility.n else NONE, ha="center", va="center", fontsize=8)
        axes.text(place + 0.5, 1.5, f"{size / 2**20:,.1f}", ha="center", va="center", fontsize=8)
    labels = [f"test {made.metric}", "MiB", *(row.label.replace("\n", " · ") for row in made.rows)]
    for down, label in enumerate(labels):
        axes.text(-0.08, down + 0.5, label, ha="right", va="center", fontsize=8)
    for down, row in enumerate(made.rows, start=2):
        for place, cell in enumerate(row.cells):
            face = GIVEN if cell.given else colours(cell.level) if cell.measured else "#e4e4e4"
            axes.add_patch(Rectangle((place, down), 1, 1, facecolor=face, edgecolor="white", lw=2))
            axes.text(
                place + 0.5, down + 0.5, written(cell, reasons), ha="center", va="center", fontsize=8,
                fontweight="bold" if cell.beyond else "normal", color="black" if cell.measured else GREY,
            )  # fmt: skip
    axes.set(xlim=(0, columns), ylim=(len(labels), 0))
    axes.set_axis_off()
    figure.text(0.02, 1 - 0.25 / whole, title or "What each adversary gets, by configuration", fontsize=11, va="center")
    figure.text(0.02, (below - 0.2) / whole, "\n".join(text), fontsize=7, va="top", linespacing=1.4)
    return figure


def _broken(case: str) -> str:
    return case.replace(",", ",\n").replace("/", "/\n")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(60, width + 60))


def over_seeds(made: Sequence[Matrix]) -> Sheet:
    """A matrix of several runs of the same cases with other seeds: of each figure the mean (least–largest).

    Raises `RunError` for other cases or adversaries.
    """
    first, reasons = made[0], list(dict.fromkeys(reason for one in made for reason in one.reasons))
    for other in made[1:]:
        if (other.cases, [row.label for row in other.rows]) != (first.cases, [row.label for row in first.rows]):
            raise RunError("comparisons of other cases or attacks than the first one's")
    utility = [_spread([one.utility[place].value for one in made]) for place in range(len(first.cases))]
    rows = [(f"test {first.metric}", *utility), ("MiB", *(f"{size / 2**20:,.1f}" for size in first.bytes))]
    for number, row in enumerate(first.rows):
        columns = zip(*(one.rows[number].cells for one in made), strict=True)
        rows.append((row.label.replace("\n", ", "), *(_of_seeds(cells, reasons) for cells in columns)))
    heads = (Column("adversary"), *(Column(case) for case in first.cases))
    notes = [f"{NOT_ATTACKED} {number}: {reason}" for number, reason in enumerate(reasons, start=1)]
    return Sheet(f"Mean of {len(made)} seeds (least–largest)", heads, tuple(rows), notes=tuple(notes))


def _spread(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def _of_seeds(cells: Sequence[Cell], reasons: Sequence[str]) -> str:
    """One cell in all seeds; where some could not be attacked, of how many it is."""
    found = [cell.figure for cell in cells if cell.figure is not None and not cell.reason]
    if not found:
        return written(cells[0], reasons)
    bases = [one.baseline.value for one in found if one.baseline]
    base = f"; base {sum(bases) / len(bases):.3f}" if bases else ""
    fewer = f"; {len(found)} of {len(cells)} seeds" if len(found) < len(cells) else ""
    return f"{_spread([one.estimate.value for one in found])}{base}{fewer}"
