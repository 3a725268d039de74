"""One table, three outputs: what is missing, what was not attacked, and what is text are told apart in each."""

import io

import pandas as pd
from rich.console import Console

from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.estimate import exact, proportion
from fkgsec.experiments.reporting.frames import figure_frame, over_all
from fkgsec.experiments.reporting.sheets import (
    Column,
    Sheet,
    cell_order,
    cell_text,
    fitted,
    interval,
    json_rows,
    markdown_lines,
    print_sheets,
    short,
    terminal_table,
    total_width,
)

FIGURES = (
    Figure("a", "err", "collusion", "x", proportion(30, 100), exact(0.1, 100), 0.9, 0.5, 4),
    Figure("a", "err", "collusion", "all", NOT_ATTACKED, exact(0.2, 100), None, 0.5, 4, reason="nothing crossed"),
    Figure("b", "auc", "server", "x", proportion(60, 100)),
    Figure("b", "auc", "server", "y", proportion(80, 100)),
)
HEADS = {"run": "run", "place": "attack", "value": "figure", "baseline": "base", "attainable": "max"}


def sheet() -> Sheet:
    return Sheet.of("T", figure_frame({"run|1": FIGURES, "run,2": FIGURES}), HEADS)


def test_a_frame_has_a_row_for_each_figure_and_no_value_where_nothing_was_attacked() -> None:
    frame = figure_frame({"run": FIGURES})
    assert frame["place"].tolist() == ["collusion, leak 0.5"] * 2 + ["server"] * 2
    assert frame["value"].isna().tolist() == [False, True, False, False]
    assert frame["baseline"].fillna(-1).tolist() == [0.1, 0.2, -1, -1]
    assert frame["status"].tolist() == ["LEAKS", "NOT APPLICABLE", "LEAKS", "LEAKS"]
    worst = figure_frame({"run": FIGURES}, over_all)
    assert worst[["metric", "victim"]].to_numpy().tolist() == [["err", "x"], ["auc", "y"]]


def test_markdown_escapes_what_would_be_a_column() -> None:
    head, rule, first, second, *_ = markdown_lines(sheet())
    assert (head, rule) == ("| run | attack | figure | base | max |", "|---|---|---|---|---|")
    assert first == r"| run\|1 | collusion, leak 0.5 | .300 [.219, .396] | .100 | .900 |"
    assert second == r"| run\|1 | collusion, leak 0.5 | n/a | .200 | n/a |"


def test_a_terminal_names_a_run_once_and_a_page_sorts_what_is_missing_last() -> None:
    table = terminal_table(sheet(), once=2)
    columns = [list(column.cells) for column in table.columns]
    assert columns[0] == ["run|1", "", "", "", "run,\n2", "", "", ""]
    assert columns[1][:4] == ["collusion, leak 0.5", "", "server", ""]
    assert columns[2][:3] == [".300 [.219, .396]", "n/a", ".600 [.502, .691]"]
    shown = sheet()
    orders = [cell_order(value, column) for value, column in zip(shown.rows[1], shown.columns, strict=True)]
    assert orders == [None, None, -1.0, 0.2, -1.0]
    assert cell_text(shown.rows[2][3], shown.columns[3]) == "–"


def test_json_has_plain_values() -> None:
    first, second, *_ = json_rows(sheet())
    assert (first["figure"]["value"], first["base"]) == (0.3, 0.1)
    assert first["figure"]["low"] == proportion(30, 100).low
    assert second["figure"] == "n/a"


def test_one_notation_of_numbers() -> None:
    assert [short(value) for value in (0.3628, 1.0, 0.0, 2e-5, -0.25)] == [".363", "1.000", ".000", "<.001", "-.250"]
    assert interval(proportion(30, 100)) == ".300 [.219, .396]"
    assert cell_text(2**21, Column("bytes", "MiB")) == "2.00"


def test_no_rows_are_a_head_alone() -> None:
    empty = Sheet.of("T", pd.DataFrame(), {"run": "run"})
    assert markdown_lines(empty) == ["| run |", "|---|"]
    assert terminal_table(empty).row_count == 0


def test_columns_are_dropped_by_priority_and_nothing_is_wrapped() -> None:
    columns = (Column("run"), Column("figure", "figure"), Column("why", drop=2), Column("seeds", drop=1))
    wide = Sheet("T" * 70, columns, (("r" * 70, proportion(30, 100), "w" * 60, "0, 1, 2"), ("short", None, "why", "0")))
    assert fitted(wide, 200) == (wide, [])
    shown, left_out = fitted(wide, 102)
    assert (left_out, total_width(shown)) == (["why"], 98)
    narrow, left_out = fitted(wide, 80)
    assert (left_out, total_width(narrow)) == (["why", "seeds"], 80)
    assert narrow.rows[1] == ("short", None)
    console = Console(file=io.StringIO(), width=80, markup=False)
    print_sheets(console, [wide])
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 7
    assert max(map(len, lines)) <= 80
    assert lines[0] == "T" * 70
    assert lines[3].startswith("rrr")
    assert "Too wide to show: why, seeds." in lines
