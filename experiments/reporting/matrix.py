"""Configurations by adversaries: each attack's leading figure in every case.

    table = matrix({"none": record, "psu,secagg": other})
    console.print(terminal_table(sheet(table)))
    Path("matrix.png").write_bytes(saved(matrix_figure(table)))         # of `pictures`

    python -m fkgsec.experiments.reporting.summary --matrix runs/compare-*/comparison.json  # Markdown

A row is an attack's leading metric (`Attack.leading`) under one threat model and leak ratio: over all victims together, or
for the worst victim if the attack has no figure over all. The rows follow from the records; no attack is named here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fkgsec.attacks.figure import Figure, Place
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.reporting.frames import attack_name, in_order, leading_by_place
from fkgsec.experiments.reporting.sheets import NONE, NOT_ATTACKED, Column, Sheet, interval, short
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import task_of

# A figure, or the reason why it is missing.
Cell = Figure | str


@dataclass(frozen=True)
class Matrix:
    """Adversaries by case.

    Attributes:
        cases: names of the cases.
        metric: label of the utility metric.
        utility: utility of each case.
        bytes: bytes in both directions of each case.
        rows: cells by the adversary's label, in the order of registration of attacks.
    """

    cases: tuple[str, ...]
    metric: str
    utility: tuple[Estimate, ...]
    bytes: tuple[int, ...]
    rows: dict[str, tuple[Cell, ...]]

    @property
    def reasons(self) -> list[str]:
        """Distinct reasons in the order of the cells, which refer to a reason by its number, from 1."""
        return list(dict.fromkeys(cell for cells in self.rows.values() for cell in cells if isinstance(cell, str)))


def matrix(records: Mapping[str, Record]) -> Matrix:
    """Return the matrix of these runs.

    Args:
        records: at least one run, by the name of its case; all of one task.
    """
    task = task_of(next(iter(records.values())).spec)
    by_case = [leading_by_place(record.figures) for record in records.values()]
    rows = {}
    for place in in_order(place for figures in by_case for place in figures):
        attack, metric, threat, leak, variant = place
        label = f"{attack}.{metric}\n{', '.join(filter(None, (attack_name(threat, leak), variant)))}"
        # Every case gets a cell, also if it did not run the attack: the gap is a result, too.
        rows[label] = tuple(_cell(place, figures) for figures in by_case)
    return Matrix(
        tuple(records),
        task.label(task.metric),
        tuple(record.utility[task.metric] for record in records.values()),
        tuple(record.bytes.up + record.bytes.down for record in records.values()),
        rows,
    )


def _cell(place: Place, figures: Mapping[Place, Figure]) -> Cell:
    """Return the figure at a place; if a case has none, the reason, or what its attack measures there instead."""
    if place in figures:
        return figures[place].reason or figures[place]
    attack, metric = place[:2]
    others = [other for other in figures if other[0] == attack]
    if not others:
        return f"{attack} was not run"
    if threats := dict.fromkeys(attack_name(other[2], other[3]) for other in others if other[1] == metric):
        return f"{attack}.{metric} was measured under {' and '.join(threats)} instead"
    return f"{attack} measures {' and '.join(dict.fromkeys(other[1] for other in others))} in this case"


def has_matrix(records: Mapping[str, Record]) -> bool:
    """Return True if more than two attacks were run, for which one table each would be hard to compare."""
    return any(len({figure.attack for figure in record.figures}) > 2 for record in records.values())


def level(figure: Figure) -> float:
    """Return the position of a figure between its baseline (0) and its upper bound (1); 0 if both are equal.

    Args:
        figure: a measured figure. Without a known bound, the best value of its metric counts.
    """
    base = 0.0 if figure.baseline is None else figure.baseline.value
    # The best value for the adversary is 0 for a figure of which less is worse for the victims.
    bound = figure.attainable if figure.attainable is not None else float(not figure.less_is_worse)
    span = bound - base
    return 0.0 if abs(span) < 1e-9 else min(1.0, max(0.0, (figure.estimate.value - base) / span))


def written(cell: Cell, reasons: Sequence[str]) -> str:
    """Write the figure and in brackets its baseline; for a cell that was not attacked, the number of its reason.

    Args:
        reasons: numbered reasons, as in `Matrix.reasons`.
    """
    if isinstance(cell, str):
        return f"{NOT_ATTACKED} {reasons.index(cell) + 1}"
    return short(cell.estimate) + ("" if cell.baseline is None else f" ({short(cell.baseline)})")


def _sheet(title: str, table: Matrix, rows: Iterable[tuple[str, ...]], reasons: Sequence[str], *notes: str) -> Sheet:
    size = ("MiB", *(f"{num_bytes / 2**20:,.1f}" for num_bytes in table.bytes))
    utility, *others = rows
    numbered = (f"{NOT_ATTACKED} {number}: {reason}" for number, reason in enumerate(reasons, start=1))
    heads = tuple(map(Column, ("adversary", *table.cases)))
    return Sheet(title, heads, (utility, size, *others), notes=(*notes, *numbered))


def sheet(table: Matrix) -> Sheet:
    """Return a table with a column for each case; utility and bytes first. A star marks a figure beyond its baseline."""
    reasons = table.reasons
    utility = (interval(figure) if figure.n else NONE for figure in table.utility)
    rows = [(f"test {table.metric}", *utility)]
    for label, cells in table.rows.items():
        stars = (" *" if isinstance(cell, Figure) and cell.beyond else "" for cell in cells)
        rows.append((label, *(f"{written(cell, reasons)}{star}" for cell, star in zip(cells, stars, strict=True))))
    note = (
        "In brackets: the baseline, the same adversary without access to the training messages, or without its attack. "
        "Star: the 95% interval lies beyond the baseline."
    )
    return _sheet("What each adversary gets, by configuration", table, rows, reasons, note)


def over_seeds(tables: Sequence[Matrix]) -> Sheet:
    """Return one table for runs of the same cases with different seeds: the mean of each figure (least–largest).

    Args:
        tables: one matrix per seed.

    Raises:
        RunError: cases or adversaries differ.
    """
    first = tables[0]
    if any((other.cases, list(other.rows)) != (first.cases, list(first.rows)) for other in tables):
        raise RunError("the comparisons have different cases or attacks; every file must have those of the first")
    reasons = list(dict.fromkeys(reason for table in tables for reason in table.reasons))
    utility = (_spread([figure.value for figure in seeds]) for seeds in zip(*(t.utility for t in tables), strict=True))
    rows = [(f"test {first.metric}", *utility)]
    for label in first.rows:
        cells = zip(*(table.rows[label] for table in tables), strict=True)
        rows.append((label.replace("\n", ", "), *(_of_seeds(seeds, reasons) for seeds in cells)))
    return _sheet(f"Mean of {len(tables)} seeds (least–largest)", first, rows, reasons)


def _spread(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def _of_seeds(cells: Sequence[Cell], reasons: Sequence[str]) -> str:
    """Write one cell over all seeds, with the number of seeds where some could not be attacked."""
    figures = [cell for cell in cells if isinstance(cell, Figure)]
    if not figures:
        return written(cells[0], reasons)
    bases = [figure.baseline.value for figure in figures if figure.baseline]
    base = f"; base {sum(bases) / len(bases):.3f}" if bases else ""
    fewer = f"; {len(figures)} of {len(cells)} seeds" if len(figures) < len(cells) else ""
    return f"{_spread([figure.estimate.value for figure in figures])}{base}{fewer}"
