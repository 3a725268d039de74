"""A picture of what a figure is read beside: its interval, its base and its maximum, of four figures of a committed record.

Path("beside.svg").write_text(draw(examples(cells_of(comparison))))
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from html import escape

from experiments.docs.measured import RESULTS
from experiments.docs.pictures import ADVERSARY, HONEST, LINE, STYLE, TEXT
from experiments.reporting.matrix import Cell, matrix
from experiments.runs.compare import read_comparison

WIDTH, LANE, LEFT, SPAN = 800, 74, 30, 740
FILE = RESULTS / "matrix/hospitals-seed0.json"
KINDS = {
    "leaked": "beyond its base, below its maximum: so much leaked, and more can",
    "all": "at its maximum: all that this adversary could get, it got",
    "base": "at its base: what crossed told nothing more, whatever the figure is",
    "none": "no figure: nothing crossed that it could be asked of, which is no zero",
}


@functools.cache
def cells_of_record() -> list[tuple[str, Cell]]:
    """Adversary and case of every cell of the committed matrix, with the cell; none where there is no such record."""
    if not FILE.exists() or (found := read_comparison(FILE)) is None:
        return []
    made = matrix({case.name: case.record for case in found.cases})
    return [
        (", ".join([*row.label.split("\n"), "in clear" if case == "none" else f"under {case}"]), cell)
        for row in made.rows
        for case, cell in zip(made.cases, row.cells, strict=True)
        if "relative" not in row.label
    ]


def kind_of(cell: Cell) -> str:
    """Which of the `KINDS` a cell is an example of; empty where of none clearly."""
    one = cell.figure
    if cell.reason:
        return "none"
    if one is None or one.baseline is None or one.less_is_worse:
        return ""
    most = 1.0 if one.attainable is None else one.attainable
    if not cell.beyond:
        return "base" if one.baseline.value == most else ""
    return "all" if one.estimate.value >= most - 0.01 else "leaked" if cell.level < 0.9 else ""


def examples(cells: Iterable[tuple[str, Cell]]) -> dict[str, tuple[str, Cell]]:
    """The first cell of each kind, in the order of the `KINDS`."""
    found: dict[str, tuple[str, Cell]] = {}
    for name, cell in cells:
        found.setdefault(kind_of(cell), (name, cell))
    return {kind: found[kind] for kind in KINDS if kind in found}


def picture() -> str:
    """The picture of the committed record; empty where there is none."""
    return draw(examples(cells_of_record())) if FILE.exists() else ""


def draw(chosen: dict[str, tuple[str, Cell]]) -> str:
    """A lane for each: from 0 to 1 its base (upright), its maximum (dashed), the figure (dot) and its interval."""
    lanes = "".join(
        f'<g transform="translate(0 {LANE * place})">{_lane(kind, name, cell)}</g>'
        for place, (kind, (name, cell)) in enumerate(chosen.items())
    )
    height = LANE * len(chosen) + 30
    ends = "".join(
        f'<text x="{LEFT + SPAN * share}" y="{height - 8}" text-anchor="middle" fill="{LINE}">{share}</text>'
        for share in (0, 0.5, 1)
    )
    title = "Figures beside their base, their maximum and their interval"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" style="{STYLE}">'
        f"<title>{escape(title)}</title>{lanes}{ends}</svg>"
    )


def _lane(kind: str, name: str, cell: Cell) -> str:
    head = (
        f'<text x="{LEFT}" y="20" fill="{TEXT}" font-weight="600">{escape(name)}</text>'
        f'<text x="{LEFT}" y="38" fill="{TEXT}">{escape(KINDS[kind])}</text>'
        f'<line x1="{LEFT}" y1="54" x2="{LEFT + SPAN}" y2="54" stroke="{LINE}" stroke-width="0.8"/>'
    )
    one = cell.figure
    if cell.reason or one is None or one.baseline is None:
        words = escape(f"n/a: {cell.reason}")
        return head + f'<text x="{LEFT + SPAN / 2}" y="67" text-anchor="middle" fill="{LINE}">{words}</text>'

    def x(value: float) -> float:
        return round(LEFT + SPAN * value, 1)

    base, most = x(one.baseline.value), x(1.0 if one.attainable is None else one.attainable)
    low, value, high = x(one.estimate.low), x(one.estimate.value), x(one.estimate.high)
    return (
        f'{head}<line x1="{most}" y1="44" x2="{most}" y2="64" stroke="{TEXT}" stroke-width="2" stroke-dasharray="3 2"/>'
        f'<line x1="{base}" y1="44" x2="{base}" y2="64" stroke="{HONEST}" stroke-width="4"/>'
        f'<line x1="{low}" y1="54" x2="{high}" y2="54" stroke="{ADVERSARY}" stroke-width="4"/>'
        f'<circle cx="{value}" cy="54" r="6" fill="{ADVERSARY}"/>'
    )
