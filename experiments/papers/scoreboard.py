"""How much of the papers' tables stands at full settings, and how it stands beside the papers' figures.

    board = make_scoreboard(read_experiments(), records)
    print("\\n".join(scoreboard_lines(board)))

A cell is judged by the first metric that the paper gives for it: inside where the paper's figure lies in our interval, else
outside, explained where its file names a cause and records that show it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from experiments.papers.runner import Results, table_of
from experiments.papers.spec import Experiment, read_experiment, shipped_experiments
from experiments.papers.table import STYLES, Figure, TableCell
from experiments.reporting.sheets import NONE, Column, Sheet, markdown_lines
from experiments.runs.record import Record, is_record, read_record
from fkgsec.errors import RunError

Standing = Literal["inside", "outside, explained", "outside, unexplained", "no figure", "not at hand", "not run"]
JUDGED: tuple[Standing, ...] = ("inside", "outside, explained", "outside, unexplained")


class CellStanding(NamedTuple):
    """A cell of a table at the paper's settings.

    `figure` is what it is judged by, `why` a cause or what is missing, `printed` whether the paper prints a figure for it.
    """

    name: str
    standing: Standing
    figure: Figure | None
    seeds: tuple[int, ...]
    why: str
    printed: bool


class TableStanding(NamedTuple):
    """A paper's table: its cells, and by name of each reduced file how many of its cells are done, of how many."""

    name: str
    paper: str
    table: str
    cells: tuple[CellStanding, ...]
    reduced: Mapping[str, tuple[int, int]]

    def count(self, *standings: Standing) -> int:
        """Cells that stand so."""
        return sum(cell.standing in standings for cell in self.cells)


@functools.cache
def read_experiments() -> tuple[Experiment, ...]:
    """All shipped files."""
    return tuple(read_experiment(path) for path in shipped_experiments().values())


def all_records(places: Iterable[Path]) -> tuple[list[Record], list[str]]:
    """The records of runs in these JSON files, and in all below these folders, whatever they are called.

    Returns:
        What was found, and a line for each record that cannot be read; files of other kinds count for nothing.

    Raises:
        RunError: a place that is not there.
    """
    records, unreadable = [], []
    for place in places:
        if not place.exists():
            raise RunError(f"{place}: is not there")
        for path in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
            try:
                records += [read_record(path)] if is_record(path) else []
            except RunError as error:
                unreadable.append(str(error))
    return records, unreadable


def make_scoreboard(experiments: Sequence[Experiment], records: Sequence[Record]) -> list[TableStanding]:
    """The standing of every table at its paper's settings, with the reduced files that change them."""
    results = {attack: Results(attack=attack) for attack in (False, True)}
    for record in records:
        for found in results.values():
            found.add(record)
    tables = {one.name: table_of(one, results[one.attack]) for one in experiments}
    reduced = {
        one.name: (sum(cell.status == "done" for cell in tables[one.name].cells), len(one.cells))
        for one in experiments
        if one.base
    }
    return [
        TableStanding(
            one.name,
            one.paper,
            one.table,
            tuple(_stand(cell, one) for cell in tables[one.name].cells),
            {other.name: reduced[other.name] for other in experiments if other.base == one.name},
        )
        for one in experiments
        if not one.base
    ]


def _stand(cell: TableCell, experiment: Experiment) -> CellStanding:
    seeds = tuple(cell.seeds)
    figure = next((one for one in cell.figures if one.paper is not None), None)
    printed = figure is not None
    if cell.status != "done":
        standing: Standing = "not at hand" if cell.status == "not at hand" else "not run"
        return CellStanding(cell.name, standing, None, seeds, cell.reason, printed)
    if figure is None or figure.paper is None or figure.ours is None:
        why = figure.reason if figure else "the paper prints none"
        return CellStanding(cell.name, "no figure", figure, seeds, why, printed)
    if figure.ours.low <= figure.paper <= figure.ours.high:
        return CellStanding(cell.name, "inside", figure, seeds, "", printed)
    cause = experiment.causes.get(cell.name)
    why = f"{cause.why} ({', '.join(cause.records)})" if cause else ""
    return CellStanding(
        cell.name, "outside, explained" if cause else "outside, unexplained", figure, seeds, why, printed
    )


def tables_sheet(board: Sequence[TableStanding]) -> Sheet:
    """A line for each table, and one for all."""
    heads = ("paper", "table", "cells", "at full settings", *JUDGED, "not at hand", "reduced")
    rows = []
    for one in board:
        reduced = "; ".join(f"{done} of {cells} in {name}" for name, (done, cells) in one.reduced.items())
        shares = [one.count(standing) for standing in (*JUDGED, "not at hand")]
        rows.append((_short(one.paper), one.table, len(one.cells), one.count(*JUDGED, "no figure"), *shares, reduced))
    totals = [sum(row[place] for row in rows) for place in range(2, 8)]
    foot = (("all", f"{len(board)} tables and figures", *totals, ""),)
    return Sheet("The papers' tables", tuple(map(Column, heads)), tuple(rows), foot)


def cells_sheet(board: Sequence[TableStanding]) -> Sheet:
    """Every cell that is done at full settings, and that the paper prints a figure for."""
    rows = []
    for one in board:
        for cell in one.cells:
            if cell.standing not in (*JUDGED, "no figure") or not cell.printed:
                continue
            paper = ours = NONE
            if cell.figure and cell.figure.ours and cell.figure.paper is not None:
                write, found = STYLES[cell.figure.metric].format, cell.figure.ours
                paper = f"{STYLES[cell.figure.metric].title.split(',')[0]} {write(cell.figure.paper)}"
                ours = write(found.value)
                ours += "" if found.method == "exact" else f" [{write(found.low)}, {write(found.high)}]"
            seeds = ", ".join(map(str, cell.seeds))
            rows.append((_short(one.paper), one.table, cell.name, paper, ours, seeds, cell.standing, cell.why))
    heads = ("paper", "table", "cell", "the paper's", "ours", "seeds", "standing", "why")
    return Sheet("Cells at full settings", tuple(map(Column, heads)), tuple(rows))


def total_line(board: Sequence[TableStanding]) -> str:
    """The scoreboard in a sentence, of cells that the paper prints a figure for: what it only draws judges nothing."""
    counts = Counter(cell.standing for one in board for cell in one.cells if cell.printed)
    done = sum(counts[standing] for standing in (*JUDGED, "no figure"))
    parts = [f"{counts[standing]} {standing.replace(', ', ' and ')}" for standing in JUDGED]
    return (
        f"{done} of {sum(counts.values())} cells that the papers print a figure for, in {len(board)} tables and figures, are run "
        f"at the papers' own settings: {', '.join(parts)}; {counts['not at hand']} cannot be run, for the reasons in their files"
    )


def scoreboard_lines(board: Sequence[TableStanding]) -> list[str]:
    """The scoreboard in Markdown."""
    lines = ["# The papers' tables", "", f"{total_line(board)}.", ""]
    lines += [
        "A cell is judged by the first metric that the paper gives for it: inside where the paper's figure lies in our 95 %"
    ]
    lines += [
        'interval (over seeds where there are several, else over the test items of the one run). "Explained": a record shows the'
    ]
    lines += ["cause, which stands in the table's file. Files that reduce a table to two cores are counted apart.", ""]
    return [
        *lines,
        *markdown_lines(tables_sheet(board)),
        "",
        "## Cells at full settings",
        "",
        *markdown_lines(cells_sheet(board)),
    ]


def _short(paper: str) -> str:
    """`Zhang et al. 2022` of a paper's full title."""
    return paper.partition(",")[0]
