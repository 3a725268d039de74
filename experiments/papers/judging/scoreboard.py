r"""Scoreboard of the papers' tables: cells at full settings, compared with the papers' figures.

    board = make_scoreboard(read_experiments(), records)
    print("\n".join(scoreboard_lines(board)))

A cell is judged by the first metric that the paper states: inside if the paper's figure lies in our interval, else outside. An
interval that is too wide decides nothing.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Literal, NamedTuple

from fkgsec.estimate import Estimate
from fkgsec.experiments.papers.document import SIZES
from fkgsec.experiments.papers.judging.admission import LIMITS, PROSE, admit, left_out_lines
from fkgsec.experiments.papers.results import Made, Results
from fkgsec.experiments.papers.spec import Cell, Experiment, read_experiment, shipped_experiments
from fkgsec.experiments.papers.table import STYLES, Figure, TableCell, table_of, written
from fkgsec.experiments.reporting.sheets import NONE, Column, Sheet, markdown_lines

Standing = Literal["inside", "outside", "undecided", "no figure", "other data", "not at hand", "not run"]
JUDGED: tuple[Standing, ...] = ("inside", "outside", "undecided")
DONE: tuple[Standing, ...] = (*JUDGED, "no figure")
# Largest half-width of an interval that judges a cell, as a share of the paper's figure.
WIDEST = 0.1


class CellStanding(NamedTuple):
    """Cell of a table at the paper's settings.

    A cell of "other data" repeats a figure of another cell on data that are not the paper's, and does not count.

    Attributes:
        figure: the figure that judges the cell.
        why: why it is not judged.
        printed: True if the paper prints a figure.
        made_at: commits of its records.
    """

    name: str
    standing: Standing
    figure: Figure | None
    seeds: tuple[int, ...]
    why: str
    printed: bool
    made_at: tuple[str, ...] = ()


class TableStanding(NamedTuple):
    """Paper's table: its cells, and for each reduced file the number of finished cells and of all cells."""

    name: str
    paper: str
    table: str
    cells: tuple[CellStanding, ...]
    reduced: Mapping[str, tuple[int, int]]

    @property
    def printed(self) -> list[CellStanding]:
        """The cells that count: those that the paper prints a figure for, each figure once."""
        return [cell for cell in self.cells if cell.printed and cell.standing != "other data"]

    def count(self, *standings: Standing) -> int:
        """Return the number of cells that count and have one of these standings.

        Args:
            standings: standings to count.
        """
        return sum(cell.standing in standings for cell in self.printed)

    @property
    def short(self) -> str:
        """`Zhang et al. 2022` of a paper's full title."""
        return self.paper.partition(",")[0]


@functools.cache
def read_experiments() -> tuple[Experiment, ...]:
    """Read all shipped files."""
    return tuple(read_experiment(path) for path in shipped_experiments().values())


def make_scoreboard(experiments: Sequence[Experiment], records: Iterable[Made]) -> list[TableStanding]:
    """Return the standing of every table at its paper's settings, with the reduced files derived from it.

    If a paper leaves a setting to validation, only seeds count for which every value was tried.

    Args:
        experiments: all tables.
        records: the finished runs.
    """
    results = Results(admit(records).records)
    tables = {table.name: table_of(table, results, whole=True) for table in experiments}
    # Smaller settings say little about the paper's figure, so they are counted apart.
    reduced = {
        name: (sum(cell.status == "done" for cell in table.cells), len(table.cells)) for name, table in tables.items()
    }
    return [
        TableStanding(
            table.name,
            table.paper,
            table.table,
            tuple(
                _stand(shown, cell, results) for shown, cell in zip(tables[table.name].cells, table.cells, strict=True)
            ),
            {other.name: reduced[other.name] for other in experiments if other.base == table.name},
        )
        for table in experiments
        if not table.base
    ]


def _stand(shown: TableCell, cell: Cell, results: Results) -> CellStanding:
    figure = next((candidate for candidate in shown.figures if candidate.paper is not None), None)
    stand = CellStanding(shown.name, "other data", figure, tuple(shown.seeds), shown.reason, figure is not None)
    if cell.other_data:
        return stand
    if shown.status != "done":
        missing = shown.status == "not at hand"
        return stand._replace(standing="not at hand" if missing else "not run", figure=None)
    commits = [(record.environment.commit or "")[:7] for record in results.of(cell, whole=True).values()]
    stand = stand._replace(made_at=tuple(dict.fromkeys(commit or "no checkout" for commit in commits)), why="")
    if figure is None or figure.paper is None or figure.ours is None:
        return stand._replace(standing="no figure", why=figure.reason if figure else "the paper prints none")
    ours, paper = figure.ours, figure.paper
    # A size of the data, which no draw changes.
    if figure.metric in SIZES and ours.method == "exact":
        return stand._replace(standing="inside" if round(ours.value, 2) == round(paper, 2) else "outside")
    if why := _cannot_judge(ours, paper):
        return stand._replace(standing="undecided", why=why)
    return stand._replace(standing="inside" if ours.low <= paper <= ours.high else "outside")


def _cannot_judge(ours: Estimate, paper: float) -> str:
    """Return why an interval decides nothing; empty if it decides."""
    if ours.method == "exact":
        return "a cost of one run has no interval; further seeds give it one"
    # A wide interval contains almost any figure and would count as agreement.
    wide = max(ours.value - ours.low, ours.high - ours.value) > WIDEST * abs(paper)
    return f"its interval reaches further than {WIDEST:.0%} of the paper's figure" if wide else ""


def tables_sheet(board: Sequence[TableStanding]) -> Sheet:
    """Return a line for each table, and one for all.

    Args:
        board: the scoreboard.
    """
    heads = ("paper", "table", "cells", "at full settings", *JUDGED, "not at hand", "reduced")
    rows = []
    for table in (table for table in board if table.printed):
        reduced = "; ".join(f"{done} of {cells} in {name}" for name, (done, cells) in table.reduced.items())
        shares = [table.count(standing) for standing in (*JUDGED, "not at hand")]
        rows.append((table.short, table.table, len(table.printed), table.count(*DONE), *shares, reduced))
    totals = [sum(row[column] for row in rows) for column in range(2, len(heads) - 1)]
    foot = (("all", f"{len(rows)} tables and figures", *totals, ""),)
    drops = {"reduced": 2, "not at hand": 1}
    return Sheet(
        "The papers' tables", tuple(Column(head, drop=drops.get(head, 0)) for head in heads), tuple(rows), foot
    )


def cells_sheet(board: Sequence[TableStanding]) -> Sheet:
    """Return the cells at full settings for which the paper prints a figure.

    Args:
        board: the scoreboard.
    """
    rows = []
    for table in board:
        for cell in (cell for cell in table.printed if cell.standing in DONE):
            paper = ours = NONE
            if (figure := cell.figure) and figure.ours and figure.paper is not None:
                paper = f"{STYLES[figure.metric][0].split(',')[0]} {written(figure.metric, figure.paper)}"
                ours = written(figure.metric, figure.ours)
            seeds, made_at = ", ".join(map(str, cell.seeds)), ", ".join(cell.made_at)
            rows.append((table.short, table.table, cell.name, paper, ours, seeds, made_at, cell.standing, cell.why))
    heads = ("paper", "table", "cell", "the paper's", "ours", "seeds", "made at", "standing", "why")
    drops = {"why": 3, "made at": 2, "seeds": 1}
    columns = tuple(Column(head, drop=drops.get(head, 0)) for head in heads)
    return Sheet("Cells at full settings", columns, tuple(rows))


def total_line(board: Sequence[TableStanding]) -> str:
    """State the scoreboard in a sentence. Cells that the paper only draws do not count.

    Args:
        board: the scoreboard.
    """
    counts = Counter(cell.standing for table in board for cell in table.printed)
    tables = sum(bool(table.printed) for table in board)
    parts = [f"{counts[standing]} {standing}" for standing in JUDGED]
    line = (
        f"{sum(counts[standing] for standing in DONE)} of {counts.total()} cells that the papers print a figure for, in {tables} "
        f"tables and figures, are run at the papers' own settings: {', '.join(parts)}"
    )
    lost = counts["not at hand"]
    return line + (f"; {lost} cannot be run, for the reasons in their files" if lost else "")


def scoreboard_lines(board: Sequence[TableStanding], left_out: Sequence[str] = ()) -> list[str]:
    """Return the scoreboard in Markdown.

    Args:
        board: the scoreboard.
        left_out: see `admit`.
    """
    rule = (
        "A cell is judged by the first metric that the paper gives for it: inside where the paper's figure lies in our "
        "95 % interval (over seeds where there are several, else over the test items of the one run). An interval that "
        f"reaches further than {WIDEST:.0%} of the paper's figure to either side, as one over two seeds mostly does, "
        "leaves the cell undecided, and so does a cost of one run, which has none; sizes of data are to agree in the "
        "second decimal. Of a cell whose paper leaves a setting to validation only the seeds count for which "
        "every value was tried. Files that reduce a table to two cores are counted apart. Each printed figure counts once: "
        "cells on data that are not the paper's count nowhere. Figures that a paper draws without numbers count nowhere either."
    )
    lines = ["# The papers' tables", "", f"{total_line(board)}.", "", *wrap(rule, PROSE), "", *wrap(LIMITS, PROSE), ""]
    lines += [*left_out_lines(left_out), *markdown_lines(tables_sheet(board))]
    lines += ["", "## Cells at full settings", "", *markdown_lines(cells_sheet(board))]
    others = [(table, cell) for table in board for cell in table.cells if cell.standing == "other data"]
    run = []
    for table, cell in others:
        if (figure := cell.figure) and figure.ours and figure.paper is not None:
            ours, paper = written(figure.metric, figure.ours.value), written(figure.metric, figure.paper)
            run.append(f"* {table.short}, {table.table}: {cell.name}, {ours} beside the paper's {paper}")
    if number := sum(cell.printed for _, cell in others):
        line = f"{number} cells repeat printed figures beside data that stand in for the paper's; {len(run)} of them are run."
        lines += ["", "## Cells on other data", "", line, *([""] if run else []), *run]
    return lines
