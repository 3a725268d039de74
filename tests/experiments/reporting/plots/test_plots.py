"""`fkgsec plot`: every picture from records alone, as PNG and SVG; what cannot be drawn is said."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from typer.testing import CliRunner

from fkgsec.experiments.cli.main import app
from fkgsec.experiments.reporting.items import Run
from fkgsec.experiments.reporting.pictures import (
    COLOURS,
    bytes_by_run,
    convergence,
    risk_by_relation,
    roc,
    saved,
    utility_leakage,
)
from fkgsec.experiments.reporting.reading import places_of, read_runs
from fkgsec.experiments.runs.record import read_record

pytestmark = pytest.mark.usefixtures("rendered")

RESULTS = Path(__file__).parents[4] / "results"
FEDE, FEDR = RESULTS / "fb15k237-c3-fede.json", RESULTS / "fb15k237-c3-fedr.json"


def plot(*arguments: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["plot", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_writes_what_the_runs_have_as_png_and_svg_and_twice_the_same(tmp_path: Path) -> None:
    status, out, err = plot(FEDE, FEDR, "--out", tmp_path)
    assert (status, err) == (0, "")
    names = ("bytes", "convergence", "heat-map", "utility-leakage")  # these records lie without their scores
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{name}.{end}" for name in names for end in ("png", "svg")
    ]
    assert "8 files" in out
    for path in tmp_path.glob("*.svg"):
        assert ET.parse(path).getroot().tag.endswith("svg")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert plot(FEDE, FEDR, "--out", tmp_path)[0] == 0
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert plot(FEDE, "--out", tmp_path, "--kind", "bytes")[0] == 2  # other bytes: nothing is written over


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    assert "kind must be one of utility-leakage, " in plot(FEDE, "--kind", "byte")[2]
    status, _, err = plot(FEDE, "--kind", "roc", "--out", tmp_path)
    assert status == 2
    assert "left out: roc: fb15k237-c3-fede has nothing to draw" in err
    assert "no record.json or comparison.json in it or below" in plot(tmp_path)[2]


def test_points_and_lines_are_the_records_figures() -> None:
    runs = read_runs([FEDE, FEDR])
    shown = utility_leakage(runs)
    assert shown is not None
    err, trr = shown.axes[:2]
    assert err.get_xlabel().startswith("reconstruction.")
    record = read_record(FEDE)
    figure = next(
        one
        for one in record.figures
        if (one.metric, one.threat_model, one.leak, one.victim) == ("err", "collusion", 1.0, "all")
    )
    points = [
        tuple(map(float, line.get_xydata()[0]))
        for axes in (err, trr)
        for line in axes.get_lines()
        if len(line.get_xdata()) == 1
    ]  # type: ignore[index]
    assert (figure.estimate.value, record.utility["mrr"].value) in points
    drawn = convergence(runs)
    assert drawn is not None
    line = drawn.axes[0].get_lines()[0]
    assert list(map(float, line.get_ydata())) == [one.valid for one in record.rounds if one.valid is not None]  # type: ignore[arg-type]
    bars = bytes_by_run(runs)
    assert bars is not None
    widths = [patch.get_width() for patch in bars.axes[0].patches]  # type: ignore[attr-defined]
    assert sum(widths[::2]) == pytest.approx((record.bytes.up + record.bytes.down) / 2**20)


def test_names_that_are_alike_once_cut_stay_two_runs() -> None:
    record = read_record(FEDE)
    shown = bytes_by_run([Run("x" * 100 + "a", record), Run("x" * 100 + "b", record)])
    assert shown is not None
    assert len({label.get_text() for label in shown.axes[0].get_yticklabels()}) == 2


def test_roc_and_risk_take_the_scores() -> None:
    place = {"threat_model": "models", "leak": None, "relation": "r", "tail": "t", "by": "loss", "false_alarms": 0.0}
    rows = [
        place | {"victim": victim, "head": f"h{n}", "trained": n % 2 == 0, "statistic": float(n % 2 == 0) + n / 100}
        for victim in ("hospital-1", "all")
        for n in range(20)
    ]
    run = Run("one", read_record(FEDE), None, pd.DataFrame(rows))
    drawn = roc([run])
    assert drawn is not None
    assert saved(drawn, "svg").startswith(b"<?xml")
    assert roc([Run("one", read_record(FEDE))]) is None
    assert risk_by_relation([run]) is None


def test_a_folder_of_runs_is_searched(tmp_path: Path) -> None:
    for name in ("one", "two", "two/attacks/score-1"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "record.json").write_bytes(b"{}")
    assert places_of(tmp_path) == [tmp_path / "one" / "record.json", tmp_path / "two" / "record.json"]
    assert places_of(tmp_path / "one") == [tmp_path / "one" / "record.json"]


def test_colours_differ_for_colour_blind_readers() -> None:
    """Simulated deuteranopia and protanopia (Vienot 1999, linear RGB): each pair that can stand together stays apart."""
    matrices = {
        "protan": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
        "deutan": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
    }
    for matrix in matrices.values():
        seen = [
            tuple(sum(w * c**2.2 for w, c in zip(row, to_rgb(colour), strict=True)) for row in matrix)
            for colour in COLOURS
        ]
        apart = [
            sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
            for k, one in enumerate(seen)
            for other in seen[:k]
        ]
        assert min(apart) > 0.05
    assert len(set(COLOURS)) == len(COLOURS)


def test_runs_of_two_tasks_have_no_figure_in_common() -> None:
    graph = RESULTS / "tables/cefgl/table1-gin-fedavg-chem-seed3.json"
    assert read_record(graph).spec.task == "graph"
    status, _, err = plot(FEDE, graph)
    assert (status, "have no figure in common" in err) == (2, True)
