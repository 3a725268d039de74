"""How much of the papers' tables stands at full settings, and how it stands beside the papers' figures.

    board = make_scoreboard(read_experiments(), records)
    print("\\n".join(scoreboard_lines(board)))

A cell is judged by the first metric that the paper gives for it: inside where the paper's figure lies in our interval, else
outside. An interval that is too wide to tell judges nothing.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Literal, NamedTuple

import msgspec

from fkgsec.errors import RunError
from fkgsec.estimate import Estimate
from fkgsec.experiments.integrity.origin import seal_of
from fkgsec.experiments.papers.document import SIZES
from fkgsec.experiments.papers.forgetting import read_forgotten
from fkgsec.experiments.papers.judging.admission import LIMITS, PROSE, admit, left_out_lines
from fkgsec.experiments.papers.runner import Results, table_of
from fkgsec.experiments.papers.spec import Cell, Experiment, read_experiment, shipped_experiments
from fkgsec.experiments.papers.table import STYLES, Figure, Made, TableCell
from fkgsec.experiments.reporting.sheets import NONE, Column, Sheet, markdown_lines
from fkgsec.experiments.runs.record import Record, is_record, read_record

Standing = Literal["inside", "outside", "undecided", "no figure", "other data", "not at hand", "not run"]
JUDGED: tuple[Standing, ...] = ("inside", "outside", "undecided")
WIDEST = 0.1
"""How far an interval may reach to either side and still judge a cell, as a share of the paper's figure."""


class CellStanding(NamedTuple):
    """A cell of a table at the paper's settings.

    `figure` is what it is judged by, `why` what is missing, `printed` whether the paper prints a figure for it. A cell of "other
    data" repeats a figure of another cell, and is run, if at all, on data that are not the paper's: it counts nowhere. `made_at`:
    the commits of its records.
    """

    name: str
    standing: Standing
    figure: Figure | None
    seeds: tuple[int, ...]
    why: str
    printed: bool
    made_at: tuple[str, ...] = ()


class TableStanding(NamedTuple):
    """A paper's table: its cells, and by name of each reduced file how many of its cells are done, of how many."""

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
        """Cells that count and stand so."""
        return sum(cell.standing in standings for cell in self.printed)


@functools.cache
def read_experiments() -> tuple[Experiment, ...]:
    """All shipped files."""
    return tuple(read_experiment(path) for path in shipped_experiments().values())


def all_records(places: Iterable[Path]) -> tuple[list[Made], list[str]]:
    """The records of runs and of unlearning in these JSON files, and in all below these folders, whatever they are called.

    Returns:
        What was found, and a line for each record that cannot be read; files of other kinds count for nothing.

    Raises:
        RunError: a place that is not there.
    """
    records, unreadable = list[Made](), list[str]()
    for place in places:
        if not place.exists():
            raise RunError(f"{place}: is not there")
        for path in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
            try:
                found = _unchanged(path) if is_record(path) else read_forgotten(path)
                records += [found] if found else []
            except RunError as error:
                unreadable.append(str(error))
    return records, unreadable


def _unchanged(path: Path) -> Record:
    """A record whose words are those that it was written with, where it has a digest of them."""
    record = read_record(path)
    if record.environment.vector_level and not (
        record.origin and record.origin.record
    ):  # which came later than digests
        raise RunError(f"{path}: has no digest of its words, which records of its version have")
    if record.origin and record.origin.record not in ("", seal_of(msgspec.json.decode(path.read_bytes()))):
        raise RunError(f"{path}: was changed since it was written: its words have another digest")
    return record


def make_scoreboard(experiments: Sequence[Experiment], records: Sequence[Made]) -> list[TableStanding]:
    """The standing of every table at its paper's settings, with the reduced files that change them.

    Of a cell whose paper leaves a setting to validation only the seeds count for which every value was tried.
    """
    results = {attack: Results(attack=attack) for attack in (False, True)}
    for record in admit(records).records:
        for found in results.values():
            found.add(record)
    tables = {one.name: table_of(one, results[one.attack], whole=True) for one in experiments}
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
            tuple(
                _stand(shown, cell, results[one.attack])
                for shown, cell in zip(tables[one.name].cells, one.cells, strict=True)
            ),
            {other.name: reduced[other.name] for other in experiments if other.base == one.name},
        )
        for one in experiments
        if not one.base
    ]


def _stand(shown: TableCell, cell: Cell, results: Results) -> CellStanding:
    seeds = tuple(shown.seeds)
    figure = next((one for one in shown.figures if one.paper is not None), None)
    printed = figure is not None
    if cell.other_data:
        return CellStanding(shown.name, "other data", figure, seeds, shown.reason, printed)
    if shown.status != "done":
        standing: Standing = "not at hand" if shown.status == "not at hand" else "not run"
        return CellStanding(shown.name, standing, None, seeds, shown.reason, printed)
    of_seeds = results.of(cell, whole=True).values()
    made_at = tuple(dict.fromkeys((record.environment.commit or "")[:7] or "no checkout" for record in of_seeds))

    def stand(standing: Standing, why: str = "") -> CellStanding:
        return CellStanding(shown.name, standing, figure, seeds, why, printed, made_at)

    if figure is None or figure.paper is None or figure.ours is None:
        return stand("no figure", figure.reason if figure else "the paper prints none")
    if figure.metric in SIZES and figure.ours.method == "exact":  # of the data: no draw has a part in it
        inside = round(figure.ours.value, 2) == round(figure.paper, 2)
    elif why := _cannot_judge(figure.ours, figure.paper):
        return stand("undecided", why)
    else:
        inside = figure.ours.low <= figure.paper <= figure.ours.high
    return stand("inside" if inside else "outside")


def _cannot_judge(ours: Estimate, paper: float) -> str:
    """Why an interval tells nothing about the paper's figure; empty where it does."""
    if ours.method == "exact":
        return "a cost of one run has no interval; further seeds give it one"
    reach = max(ours.value - ours.low, ours.high - ours.value)
    return (
        f"its interval reaches further than {WIDEST:.0%} of the paper's figure" if reach > WIDEST * abs(paper) else ""
    )


def tables_sheet(board: Sequence[TableStanding]) -> Sheet:
    """A line for each table, and one for all."""
    heads = ("paper", "table", "cells", "at full settings", *JUDGED, "not at hand", "reduced")
    rows = []
    for one in (one for one in board if one.printed):
        reduced = "; ".join(f"{done} of {cells} in {name}" for name, (done, cells) in one.reduced.items())
        shares = [one.count(standing) for standing in (*JUDGED, "not at hand")]
        rows.append((_short(one.paper), one.table, len(one.printed), one.count(*JUDGED, "no figure"), *shares, reduced))
    totals = [sum(row[place] for row in rows) for place in range(2, len(heads) - 1)]
    foot = (("all", f"{len(rows)} tables and figures", *totals, ""),)
    return Sheet("The papers' tables", tuple(map(Column, heads)), tuple(rows), foot)


def cells_sheet(board: Sequence[TableStanding]) -> Sheet:
    """Every cell that is done at full settings, and that the paper prints a figure for."""
    rows = []
    for one in board:
        for cell in one.printed:
            if cell.standing not in (*JUDGED, "no figure"):
                continue
            paper = ours = NONE
            if cell.figure and cell.figure.ours and cell.figure.paper is not None:
                write, found = STYLES[cell.figure.metric].format, cell.figure.ours
                paper = f"{STYLES[cell.figure.metric].title.split(',')[0]} {write(cell.figure.paper)}"
                ours = write(found.value)
                ours += "" if found.method == "exact" else f" [{write(found.low)}, {write(found.high)}]"
            seeds = ", ".join(map(str, cell.seeds))
            made_at = ", ".join(cell.made_at)
            rows.append((_short(one.paper), one.table, cell.name, paper, ours, seeds, made_at, cell.standing, cell.why))
    heads = ("paper", "table", "cell", "the paper's", "ours", "seeds", "made at", "standing", "why")
    return Sheet("Cells at full settings", tuple(map(Column, heads)), tuple(rows))


def total_line(board: Sequence[TableStanding]) -> str:
    """The scoreboard in a sentence, of cells that the paper prints a figure for: what it only draws judges nothing."""
    counts = Counter(cell.standing for one in board for cell in one.printed)
    done, tables = sum(counts[standing] for standing in (*JUDGED, "no figure")), sum(bool(one.printed) for one in board)
    parts = [f"{counts[standing]} {standing}" for standing in JUDGED]
    line = (
        f"{done} of {sum(counts.values())} cells that the papers print a figure for, in {tables} tables and figures, "
        f"are run at the papers' own settings: {', '.join(parts)}"
    )
    lost = counts["not at hand"]
    return line + (f"; {lost} cannot be run, for the reasons in their files" if lost else "")


def scoreboard_lines(board: Sequence[TableStanding], left_out: Sequence[str] = ()) -> list[str]:
    """The scoreboard in Markdown. Args: left_out: of `admit`."""
    lines = ["# The papers' tables", "", f"{total_line(board)}.", ""]
    rule = (
        "A cell is judged by the first metric that the paper gives for it: inside where the paper's figure lies in our "
        "95 % interval (over seeds where there are several, else over the test items of the one run). An interval that "
        f"reaches further than {WIDEST:.0%} of the paper's figure to either side, as one over two seeds mostly does, "
        "leaves the cell undecided, and so does a cost of one run, which has none; sizes of data are to agree in the "
        "second decimal. Of a cell whose paper leaves a setting to validation only the seeds count for which "
        "every value was tried. Files that reduce a table to two cores are counted apart. Each printed figure counts once: "
        "cells on data that are not the paper's count nowhere. Figures that a paper draws without numbers count nowhere either."
    )
    lines += [*wrap(rule, PROSE), "", *wrap(LIMITS, PROSE), ""]
    return [
        *lines,
        *left_out_lines(left_out),
        *markdown_lines(tables_sheet(board)),
        "",
        "## Cells at full settings",
        "",
        *markdown_lines(cells_sheet(board)),
        *_other_data_lines(board),
    ]


def _other_data_lines(board: Sequence[TableStanding]) -> list[str]:
    """The cells on data that are not the paper's, which count nowhere."""
    number = sum(cell.standing == "other data" and cell.printed for one in board for cell in one.cells)
    run = list[str]()
    for one in board:
        for cell in (cell for cell in one.cells if cell.standing == "other data" and cell.figure):
            if cell.figure and cell.figure.ours and cell.figure.paper is not None:
                ours, paper = map(STYLES[cell.figure.metric].format, (cell.figure.ours.value, cell.figure.paper))
                run.append(f"* {_short(one.paper)}, {one.table}: {cell.name}, {ours} beside the paper's {paper}")
    lines = [
        f"{number} cells repeat printed figures beside data that stand in for the paper's; {len(run)} of them are run."
    ]
    return ["", "## Cells on other data", "", *lines, *([""] if run else []), *run] if number else []


def _short(paper: str) -> str:
    """`Zhang et al. 2022` of a paper's full title."""
    return paper.partition(",")[0]
