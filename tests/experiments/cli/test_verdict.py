"""The verdict: first, in words, with each figure beside its base; and one notation of intervals wherever figures are written."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.estimate import Estimate, exact
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.reporting.sheets import rows_of
from fkgsec.experiments.reporting.verdict import SURE, comparison_lines, figure_text, verdict_of, verdict_over
from fkgsec.experiments.reporting.verdict import verdict_lines as lines_of
from fkgsec.experiments.runs.record import Record, read_record

RECORD = Path(__file__).parents[3] / "results/fb15k237-c3-fede.json"
SMALL = [
    "--size", "600", "--dim", "8", "--batch-size", "64", "--num-negatives", "8", "--rounds", "2", "--unlinked-heads", "10",
    "--device", "cpu",
]  # fmt: skip
INTERVAL = re.compile(r"(?:\d*\.\d+|[01]) \[(?:\d*\.\d+|[01]), (?:\d*\.\d+|[01])\]")
OTHER = re.compile(r"±|\d[–-]\.?\d*\.\d|\(\d*\.\d+[–,] ?\d*\.\d+\)")  # `.343–.383`, `.363 ±.020`, `(0.34–0.38)`


def figure(low: float, value: float, high: float, base: float | None, **more: Any) -> Figure:
    fields: dict[str, Any] = {
        "attack": "edges",
        "metric": "auc",
        "threat_model": "server",
        "victim": "all",
        "attainable": 1.0,
    } | more
    return Figure(
        estimate=Estimate(value, low, high, 50, "wilson"), baseline=None if base is None else exact(base, 50), **fields
    )


def of(*figures: Figure) -> Record:
    return msgspec.structs.replace(read_record(RECORD), figures=list(figures))


def verdict_lines(record: Record) -> list[str]:
    return lines_of(verdict_of(record.figures), SURE)


@pytest.mark.parametrize(
    ("one", "status"),
    [
        (figure(0.6, 0.7, 0.8, 0.5), "LEAKS"),
        (figure(0.6, 0.7, 0.8, 0.5, exposed=exact(0.7, 50)), "EXPOSED"),
        (figure(0.72, 0.75, 0.8, 0.5, exposed=exact(0.7, 50)), "LEAKS"),
        (figure(0.4, 0.55, 0.7, 0.5, exposed=exact(0.6, 50)), "not shown"),
        (figure(0.4, 0.55, 0.7, 0.5), "not shown"),
        (figure(0.2, 0.3, 0.4, 0.5), "no leak"),
        (figure(0.9, 1.0, 1.0, 1.0), "base is max"),
        (figure(0.1, 0.2, 0.3, 0.5, attack="x", metric="error", less_is_worse=True, attainable=0.0), "LEAKS"),
        (figure(0.6, 0.7, 0.8, 0.5, attack="x", metric="error", less_is_worse=True, attainable=0.0), "no leak"),
        (figure(0, 0, 1, None, reason="nothing crossed"), "not attacked"),
    ],
)
def test_a_figure_leaks_where_its_whole_interval_beats_the_baseline_and_what_the_protocol_exposes(
    one: Figure, status: str
) -> None:
    assert verdict_of([one]).figures["status"].tolist() == [status]


def test_the_lines_name_what_leaks_how_sure_and_the_base() -> None:
    weak = figure(0.4, 0.55, 0.7, 0.5, attack="degrees", metric="degree")
    lines = verdict_lines(
        of(weak, figure(0.6, 0.7, 0.8, 0.5), figure(0, 0, 1, None, attack="patterns", metric="degree", reason="x"))
    )
    assert lines[0] == (
        "Verdict: leaks. 1 of 2 figures beats its baseline by inference (95 % CI excludes it). 1 is inconclusive (95 % CI "
        "includes the baseline). 1 not attacked (reasons below)."
    )
    assert lines[1].split() == [
        "LEAKS", ".700", "[.600,", ".800],", "base", ".500,", "max", "1.000:", "AUC", "of", "linked", "pairs", "among", "all",
        "pairs", "of", "a", "victim's", "rows",
    ]  # fmt: skip
    assert "(edges.auc under server; all victims)" in lines[2]
    assert lines[3].startswith("  not shown   .550 [.400, .700], base .500")
    assert verdict_lines(of(weak))[0].startswith("Verdict: no leak is shown. 0 of 1 figures")
    assert "No attack was run" in verdict_lines(of())[0]
    nothing = Figure("edges", "auc", "server", "all", NOT_ATTACKED, reason="x")
    assert verdict_lines(of(nothing)) == [
        "Verdict: nothing to attack: the adversaries have nothing to work on (reasons below)."
    ]


def test_what_the_protocol_shows_is_headed_exposed() -> None:
    shown = figure(0.6, 0.7, 0.8, 0.5, exposed=exact(0.7, 50))
    assert verdict_lines(of(shown))[0] == (
        "Verdict: exposed. 1 of 1 is exposed: the protocol shows as much, whatever was trained."
    )
    both = of(shown, figure(0.6, 0.7, 0.8, 0.5, attack="degrees", metric="degree"))
    assert verdict_lines(both)[0] == (
        "Verdict: leaks. 1 of 2 figures beats its baseline by inference (95 % CI excludes it). 1 of 2 is exposed: the protocol "
        "shows as much, whatever was trained."
    )
    assert verdict_over([of(shown), of(shown)]).figures["status"].tolist() == ["EXPOSED"]
    assert "EXPOSED in 1 of 1" in comparison_lines({"none": of(shown)})[1]


def test_over_several_trainings_the_interval_and_the_worst_base_count() -> None:
    """What lies beyond the base in each training may not do so over all of them."""
    steady = [of(figure(0.6, 0.7, 0.8, 0.5)), of(figure(0.602, 0.702, 0.802, 0.55, by="cosine"))]
    (found,) = rows_of(verdict_over(steady).figures)
    assert found["status"] == "LEAKS"
    assert figure_text(found).endswith("], base .550, max 1.000")
    apart = [of(figure(0.6, 0.65, 0.7, 0.5)), of(figure(0.85, 0.9, 0.95, 0.5))]
    assert [verdict_of(record.figures).label for record in apart] == ["leaks", "leaks"]
    assert verdict_over(apart).figures["status"].tolist() == ["not shown"]
    error = {"attack": "x", "metric": "error", "less_is_worse": True, "attainable": 0.0}
    errors = [of(figure(0.1, 0.2, 0.3, base, **error)) for base in (0.5, 0.25)]
    assert "base .250" in figure_text(rows_of(verdict_over(errors).figures)[0])
    missing = [of(figure(0.6, 0.7, 0.8, 0.5)), of(figure(0, 0, 1, None, reason="nothing crossed"))]
    assert verdict_over(missing).figures["status"].tolist() == ["not attacked"]
    assert verdict_over([of(), of()]).label == "none"


def test_a_comparison_names_each_case_its_worst_figure_and_its_utility() -> None:
    record = read_record(RECORD)
    safe = msgspec.structs.replace(record, figures=[figure(0.4, 0.5, 0.6, 0.5)])
    lines = comparison_lines({"none": record, "psu,secagg": safe})
    assert lines[1].startswith("  none: LEAKS in 9 of 12; test MRR .293 [")
    assert ".969 [.967, .971], base 7e-05" in lines[2]
    assert lines[3].startswith("  psu,secagg: no leak shown in 1; test MRR .293 [")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("runs") / "fede"
    done = CliRunner().invoke(app, ["attack", *SMALL, "--leak", "0.5", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder, done.stdout


def test_the_verdict_stands_first(run: tuple[Path, str]) -> None:
    lines = run[1].splitlines()
    assert lines[0].startswith("Verdict: ")
    assert lines.index("") < next(place for place, line in enumerate(lines) if line.startswith("reconstruction, round"))


def test_every_output_writes_intervals_in_one_way(run: tuple[Path, str], tmp_path: Path) -> None:
    folder, shown = run
    outputs = {"attack": shown}
    for name, words in {
        "results": ["results", str(folder)],
        "compare": [
            "compare",
            *SMALL,
            "--case",
            "none",
            "--case",
            "fedr",
            "--out",
            str(tmp_path / "compare"),
            "--attack",
            "edges",
        ],
        "seeds": ["train", *SMALL[:-4], "--device", "cpu", "--seeds", "2", "--out", str(tmp_path / "seeds")],
    }.items():
        done = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
        assert done.exit_code == 0, done.output
        outputs[name] = done.stdout
    for name, text in outputs.items():
        assert INTERVAL.search(text), name
        assert not OTHER.search(text), (name, OTHER.search(text))
