"""All shipped tables: what papers print counts once, and the committed pages are what the committed records say."""

from pathlib import Path

import pytest

from fkgsec.experiments.papers.judging.claims import judge_claims, read_claims
from fkgsec.experiments.papers.judging.claims_page import page_lines
from fkgsec.experiments.papers.judging.scoreboard import (
    make_scoreboard,
    read_experiments,
    scoreboard_lines,
    tables_sheet,
    total_line,
)
from fkgsec.experiments.papers.results import Made
from fkgsec.experiments.papers.spec import Experiment
from tests.experiments.commands import RESULTS, committed


@pytest.fixture(scope="module")
def experiments() -> tuple[Experiment, ...]:
    return read_experiments()


@pytest.fixture(scope="module")
def records() -> list[Made]:
    """All committed records."""
    return [record for path in sorted(RESULTS.rglob("*.json")) if (record := committed(path))]


def test_the_committed_scoreboard_is_what_the_records_say(
    experiments: tuple[Experiment, ...], records: list[Made]
) -> None:
    board = make_scoreboard(experiments, records)
    made = "\n".join([*scoreboard_lines(board), ""])
    command = "fkgsec experiment status results --markdown results/scoreboard.md --overwrite"
    assert (RESULTS / "scoreboard.md").read_text() == made, f"a record or a file changed: {command}"
    for page in (Path("README.md"), RESULTS / "README.md"):
        assert total_line(board) in " ".join(page.read_text().split()), page


def test_the_committed_claims_are_what_the_records_say(
    experiments: tuple[Experiment, ...], records: list[Made]
) -> None:
    judged = judge_claims(read_claims(), experiments, records)
    made = "\n".join([*page_lines(judged), ""])
    command = "fkgsec experiment claims results --markdown docs/reproduction.md --overwrite"
    assert Path("docs/reproduction.md").read_text() == made, f"a record or a claim changed: {command}"


def test_every_printed_figure_counts_once_and_in_every_place_alike(experiments: tuple[Experiment, ...]) -> None:
    """Defects 5 and 6: 81 cells of stand-in columns count nowhere, and the total of the table is that of the sentence."""
    board = make_scoreboard(experiments, [])
    assert total_line(board).startswith("0 of 934 cells that the papers print a figure for, in 26 tables and figures")
    assert tables_sheet(board).foot[0][1:4] == ("26 tables and figures", 934, 0)
    assert "81 cells repeat printed figures" in "\n".join(scoreboard_lines(board))


def test_the_papers_own_figures_are_counted_once_and_by_their_own_claims(
    experiments: tuple[Experiment, ...],
) -> None:
    """Defects 1, 4 and 5: FedR's claims are those of its text, P@CG of .7642 is no "fewer", stand-in columns are no tests."""
    judged = judge_claims(read_claims(), experiments, [])
    assert [(one.claim.claim.partition(",")[0], len(one.printed_for), len(one.printed)) for one in judged] == [
        ("FedR is above Local", 60, 60),
        ("FedR is within .03 of FedE", 12, 16),
        ("FedS is near FedEP with fewer bytes", 7, 8),
        ("FedEPL", 8, 8),
        ("PFedEG is above FedE", 12, 12),
        ("FedLU is above FedE", 17, 18),
        ("Unlearning brings forget scores below re-training's", 8, 9),
        ("CEFGL is above FedAvg", 18, 18),
        ("CEFGL is above FedAvg", 9, 9),
    ]
    page = "\n".join(page_lines(judged))
    assert "do not meet the claim in 1 of 8 tests: ComplEx FedEP R5" in page
