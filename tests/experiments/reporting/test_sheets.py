"""One table, three outputs: what is missing, what was not attacked, and what is text are told apart in each."""

import pandas as pd

from attacks.figure import NOT_ATTACKED, Figure
from experiments.reporting.frames import figure_frame, over_all, side_by_side
from experiments.reporting.html.words import cell_order, cell_text
from experiments.reporting.sheets import Column, Sheet, markdown_lines, rates, terminal_table
from fkgsec.estimate import exact, proportion


class Round:
    """What attacks found on two victims, the second of which gave nothing; and one attack in two variants."""

    figures = (
        Figure("a", "err", "collusion", "x", proportion(30, 100), exact(0.1, 100), 0.9, 0.5, 4),
        Figure("a", "err", "collusion", "all", NOT_ATTACKED, exact(0.2, 100), None, 0.5, 4, reason="nothing crossed"),
        Figure("b", "auc", "server", "x", proportion(60, 100)),
        Figure("b", "auc", "server", "y", proportion(80, 100)),
    )


def sheet() -> Sheet:
    frame = side_by_side(figure_frame({"run|1": Round(), "run,2": Round()}))  # type: ignore[arg-type]
    return Sheet.of("T", frame, {"run": "run", "place": "attack"} | rates(err="ERR") | {"auc": Column("AUC", "score")})


def test_a_frame_has_a_row_for_each_victim_and_attack_and_no_figure_where_there_is_none() -> None:
    frame = figure_frame({"run": Round()})  # type: ignore[arg-type]
    assert frame["place"].tolist() == ["collusion, leak 0.5"] * 2 + ["server"] * 2
    assert [one is None for one in frame["estimate"]] == [False, True, False, False]
    assert frame["baseline"].tolist() == [0.1, 0.2, None, None]
    worst = figure_frame({"run": Round()}, over_all)  # type: ignore[arg-type]
    assert worst[["metric", "victim"]].to_numpy().tolist() == [["err", "x"], ["auc", "y"]]


def test_markdown_has_the_whole_interval_and_escapes_what_would_be_a_column() -> None:
    head, rule, first, second, *_ = markdown_lines(sheet())
    assert (head, rule) == ("| run | attack | ERR | base | max | AUC |", "|---|---|---|---|---|---|")
    assert first == r"| run\|1 | collusion, leak 0.5 | 0.3000 [0.2189, 0.3958] | 0.1000 | 0.9000 |  |"
    assert second == r"| run\|1 | collusion, leak 0.5 | n/a | 0.2000 | n/a | n/a |"


def test_a_terminal_names_a_run_once_and_a_page_sorts_what_is_missing_last() -> None:
    table = terminal_table(sheet(), once=2)
    columns = [list(column.cells) for column in table.columns]
    assert columns[0] == ["run|1", "", "", "", "run,\n2", "", "", ""]
    assert columns[1][:4] == ["collusion, leak 0.5", "", "server", ""]
    assert columns[2][:3] == [".300 [.219, .396]", "n/a", "–"]
    shown = sheet()
    orders = [cell_order(value, column) for value, column in zip(shown.rows[1], shown.columns, strict=True)]
    assert orders == [None, None, -1.0, 0.2, -1.0, -1.0]
    assert cell_text(shown.rows[0][2], shown.columns[2]).replace("\N{NO-BREAK SPACE}", " ") == "30.0 % [21.9, 39.6]"


def test_no_rows_are_a_head_alone() -> None:
    empty = Sheet.of("T", pd.DataFrame(), {"run": "run"})
    assert markdown_lines(empty) == ["| run |", "|---|"]
    assert terminal_table(empty).row_count == 0
