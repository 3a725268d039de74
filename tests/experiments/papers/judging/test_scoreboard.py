"""The scoreboard of the papers' tables: from records alone, the committed page included."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fkgsec.errors import RunError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.papers.judging.scoreboard import (
    TableStanding,
    make_scoreboard,
    total_line,
)
from fkgsec.experiments.papers.results import read_records
from fkgsec.experiments.papers.spec import Experiment, find_experiment, read_experiment
from fkgsec.experiments.runs.record import Record

RESULTS = Path("results")
SINGLE, FEDE, FEDR = (RESULTS / f"ddb14-fed5-{name}.json" for name in ("single", "fede-published", "fedr"))
CELL = "TransE FedE DDB14 C5"


@pytest.fixture(scope="module")
def table() -> Experiment:
    return read_experiment(find_experiment("zhang2022_fedr_table2"))


def standings(board: list[TableStanding]) -> dict[str, str]:
    return {cell.name: cell.standing for one in board for cell in one.cells if cell.standing != "not run"}


def test_cells_are_inside_or_outside_the_interval(table: Experiment) -> None:
    records, _ = read_records([SINGLE, FEDE, FEDR])
    assert standings(make_scoreboard([table], records)) == {
        "TransE Local DDB14 C5": "outside",
        CELL: "inside",
        "TransE FedR DDB14 C5": "inside",
    }


def test_a_cell_without_the_papers_figure_is_not_judged(table: Experiment) -> None:
    cells = tuple(cell._replace(figures={}) if cell.name == CELL else cell for cell in table.cells)
    assert standings(make_scoreboard([table._replace(cells=cells)], read_records([FEDE])[0])) == {CELL: "no figure"}


def test_data_that_are_not_the_papers_are_never_at_full_settings(table: Experiment) -> None:
    own, other = (
        tuple(cell._replace(stated=cell.stated | {"data": why}) if cell.name == CELL else cell for cell in table.cells)
        for why in (None, "the file of this federation is not at hand")
    )
    for cells, standing in ((own, "inside"), (other, "other data")):
        board = make_scoreboard([table._replace(cells=cells)], read_records([FEDE])[0])
        assert next(cell.standing for cell in board[0].cells if cell.name == CELL) == standing
    assert "0 of 179 cells" in total_line(board)


def test_a_figure_is_judged_by_the_average_that_the_papers_code_uses(table: Experiment) -> None:
    (record,) = read_records([RESULTS / "tables/kge/fedr-table2-transe-local-ddb14-c10-seed0.json"])[0]
    assert isinstance(record, Record)
    plain = np.mean([figures["mrr"].value for figures in record.utility_by_client.values()])
    for average, value in (("clients", plain), ("items", record.utility["mrr"].value)):
        cells = tuple(cell._replace(average=average) for cell in table.cells)
        [board] = make_scoreboard([table._replace(cells=cells)], [record])
        cell = next(one for one in board.cells if one.figure and one.figure.ours)
        assert cell.figure
        assert cell.figure.ours
        assert cell.figure.ours.value == pytest.approx(value)
    assert abs(plain - record.utility["mrr"].value) > 1e-5


def test_a_reduced_file_counts_apart(table: Experiment) -> None:
    small = read_experiment(find_experiment("zhang2022_fedr_table2_small"))
    records, _ = read_records([RESULTS / "encoders"])
    [board] = make_scoreboard([table, small], records)
    assert standings([board]) == {}
    assert board.reduced == {"zhang2022_fedr_table2_small": (3, 3)}


def test_what_is_no_record_counts_for_nothing_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "other.json").write_text('{"schema": "fkgsec/comparison/1"}')
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "damaged.json").write_text('{"schema": "fkgsec/record/2", "seed": 1}')
    records, unreadable = read_records([tmp_path])
    assert not records
    assert [line.split(":")[0] for line in unreadable] == [str(tmp_path / "damaged.json"), str(tmp_path / "text.json")]
    with pytest.raises(RunError, match="is not there"):
        read_records([tmp_path / "none"])


@pytest.mark.slow
def test_status_on_the_command_line(tmp_path: Path) -> None:
    page = tmp_path / "board.md"
    asked = ["experiment", "status", str(FEDR), "--markdown", str(page)]
    done = CliRunner().invoke(app, asked, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    said = r"\b1 of \d+ cells that the papers print a figure for, in 26 tables and figures, are run at the papers' own settings"
    assert re.search(f"{said}: 1 inside", done.output)
    assert "TransE FedR DDB14 C5" in page.read_text()
    again = CliRunner().invoke(app, [*asked[:2], str(FEDE), *asked[3:]])
    assert again.exit_code == 2
    assert "--overwrite" in again.output
