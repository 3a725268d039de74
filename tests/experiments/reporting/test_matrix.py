"""Adversaries beside configurations: levels by hand, reasons by number, seeds together, and the gate's limits on every cell."""

import re
from pathlib import Path

import msgspec
import pytest
from matplotlib.colors import to_rgba
from typer.testing import CliRunner

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.registry import ATTACKS, attacks_of
from fkgsec.errors import RunError, SpecError
from fkgsec.estimate import Estimate, exact
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.gate.measures import MEASURES
from fkgsec.experiments.reporting.html.page import assemble, render
from fkgsec.experiments.reporting.items import Run
from fkgsec.experiments.reporting.matrix import has_matrix, level, matrix, over_seeds, sheet
from fkgsec.experiments.reporting.pictures import ADDS_NOTHING, NOT_ATTACKED, matrix_figure, saved
from fkgsec.experiments.reporting.summary import matrix_lines
from fkgsec.experiments.runs.compare import SCHEMA, Case, Comparison
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.runs.stored import encode_stored

pytestmark = pytest.mark.usefixtures("rendered")

RECORD = read_record(Path(__file__).parents[3] / "results" / "attacks" / "hospitals-transe.json")


def figure(attack: str, metric: str, value: float, **details: object) -> Figure:
    estimate = Estimate(value, value - 0.05, value + 0.05, 50, "wilson")
    defaults = {"threat_model": "client", "victim": "all", "baseline": exact(0.1, 50), "attainable": 0.9}
    return Figure(attack, metric, estimate=estimate, **(defaults | details))


def record(*figures: Figure) -> Record:
    return msgspec.structs.replace(RECORD, figures=list(figures))


RUNS = {
    "none": record(
        figure("client-poison", "hits@10", 0.5),
        figure("client-poison", "mrr-drop", 0.4),
        figure("client-spoil", "mrr-drop", 0.12),
        figure("edges", "auc", 0.7, victim="a", threat_model="server"),
        figure("edges", "auc", 0.8, victim="b", threat_model="server"),
    ),
    "fedr": record(
        figure("client-poison", "hits@10", 0.2),
        figure("client-spoil", "mrr-drop", 0.0, reason="it broke"),
        figure("edges", "auc", 0.0, victim="a", threat_model="server", reason="no row <crossed>"),
    ),
}


def test_a_level_is_the_way_from_the_base_to_the_most() -> None:
    assert level(figure("x", "y", 0.5)) == pytest.approx(0.5)
    assert level(figure("x", "y", 0.05)) == 0.0
    assert level(figure("x", "y", 0.95)) == 1.0
    less = {"less_is_worse": True, "baseline": exact(0.9, 1), "attainable": 0.1}
    assert level(figure("x", "y", 0.3, **less)) == pytest.approx(0.75)
    assert level(figure("x", "y", 0.9, baseline=exact(0.9, 1))) == 0.0  # nothing lies between
    # Beyond the base: the whole interval.
    assert [figure("x", "y", value).beyond for value in (0.14, 0.16)] == [False, True]
    assert [figure("x", "y", value, **less).beyond for value in (0.86, 0.84)] == [False, True]


def test_a_row_is_an_attack_s_first_metric_under_a_threat_model_of_the_worst_victim() -> None:
    made = matrix(RUNS)
    rows = made.rows
    assert list(rows) == ["edges.auc\nserver", "client-poison.hits@10\nclient", "client-spoil.mrr-drop\nclient"]
    assert rows["edges.auc\nserver"][0].estimate.value == 0.8
    assert made.reasons == ["no row <crossed>", "it broke"]
    text = {row[0]: row[1:] for row in sheet(made).rows}
    assert text["client-poison.hits@10\nclient"] == (".500 (.100) *", ".200 (.100) *")
    assert text["edges.auc\nserver"] == (".800 (.100) *", "n/a 1")
    assert text["client-spoil.mrr-drop\nclient"] == (".120 (.100)", "n/a 2")
    assert "n/a 2: it broke" in sheet(made).notes
    assert saved(matrix_figure(made, "title")).startswith(b"\x89PNG")
    assert has_matrix(RUNS)
    assert not has_matrix({"fedr": record(*RUNS["fedr"].figures[:2])})


def test_reconstruction_stands_with_two_and_a_missing_row_says_what_is_asked_instead() -> None:
    made = matrix({"a": record(figure("reconstruction", "trr", 0.4), figure("reconstruction", "err", 0.3)),
                   "b": record(figure("edges", "auc", 0.4))})  # fmt: skip
    assert [label.partition("\n")[0] for label in made.rows] == [
        "reconstruction.err",
        "reconstruction.trr",
        "edges.auc",
    ]
    assert sheet(made).rows[2][1:] == (".300 (.100) *", "n/a 1")
    assert made.reasons == ["reconstruction was not run", "edges was not run"]
    made = matrix({name: record(*figures) for name, figures in {
        "a": (figure("edges", "auc", 0.4, threat_model="server"), figure("update-recovery", "cosine", 0.4)),
        "b": (figure("edges", "auc", 0.4), figure("update-recovery", "cosine_relations", 0.4)),
    }.items()})  # fmt: skip
    assert set(made.reasons) == {
        "edges.auc was measured under client instead",
        "edges.auc was measured under server instead",
        "update-recovery measures cosine_relations in this case",
        "update-recovery measures cosine in this case",
    }


def test_a_victim_that_could_not_be_attacked_does_not_hide_the_others() -> None:
    """In every order: `reason` has no variant, and so another question than the strongest of the others."""
    asked = [figure("edges", "auc", 0.7, victim=name, variant="strongest") for name in ("a", "all")]
    lacking = figure("edges", "auc", 0.0, victim="b", reason="nothing of it crossed")
    for figures in ([lacking, *asked], [asked[0], lacking, asked[1]], [*asked, lacking]):
        made = matrix({"none": record(*figures)})
        assert [cells[0].estimate.value for cells in made.rows.values()] == [0.7]
        assert not made.reasons
    assert matrix({"none": record(lacking)}).reasons == ["nothing of it crossed"]


def test_names_are_no_formulas_and_no_lines_of_their_own(tmp_path: Path) -> None:
    name = "a $x_{ b$\n# \x1b[31m<i>"
    runs = {"none": record(figure("edges", "auc", 0.0, reason=f"{name} took part in 0 rounds"))}
    assert saved(matrix_figure(matrix(runs), "data $\\frac$")).startswith(b"\x89PNG")
    (tmp_path / "comparison.json").write_bytes(
        encode_stored(Comparison(SCHEMA, [Case(case, one) for case, one in runs.items()]))
    )
    notes = [line for line in matrix_lines([tmp_path / "comparison.json"]) if line.startswith("* ")]
    assert notes[-1] == "* n/a 1: a $x_{ b$ # \x1b[31m<i> took part in 0 rounds"


def test_what_is_known_without_the_rounds_has_a_colour_of_its_own() -> None:
    known = figure("edges", "auc", 1.0, baseline=exact(1.0, 5), attainable=1.0)
    table = matrix({"one": record(known, *RUNS["none"].figures[:3])})
    faces = [patch.get_facecolor() for patch in matrix_figure(table).axes[0].patches]
    assert [face == to_rgba(ADDS_NOTHING) for face in faces] == [True, *[False] * (len(faces) - 1)]


def test_seeds_are_put_together() -> None:
    other = {"none": record(*(msgspec.structs.replace(one, estimate=exact(0.9, 5)) for one in RUNS["none"].figures)),
             "fedr": RUNS["fedr"]}  # fmt: skip
    shown = {row[0]: row[1:] for row in over_seeds([matrix(RUNS), matrix(other)]).rows}
    assert shown["client-poison.hits@10, client"] == (
        "0.700 (0.500–0.900); base 0.100",
        "0.200 (0.200–0.200); base 0.100",
    )
    assert shown["edges.auc, server"][1] == "n/a 1"
    third = {
        "none": other["none"],
        "fedr": record(*RUNS["fedr"].figures[:2], figure("edges", "auc", 0.6, threat_model="server")),
    }
    made = over_seeds([matrix(RUNS), matrix(third)])
    assert {row[0]: row[2] for row in made.rows}["edges.auc, server"] == "0.600 (0.600–0.600); base 0.100; 1 of 2 seeds"
    assert made.notes == ("n/a 1: no row <crossed>", "n/a 2: it broke")
    with pytest.raises(RunError, match="different cases"):
        over_seeds([matrix(RUNS), matrix({"none": RUNS["none"]})])


def test_the_report_colours_a_cell_and_says_why_another_is_none() -> None:
    page = render(assemble([Run(name, one) for name, one in RUNS.items()]))
    assert re.search(r"<td[^>]*>\.500 \(\.100\) \*</td>", page)
    assert re.search(r"<td[^>]*>n/a 1</td>", page)
    assert "n/a 1: no row &lt;crossed&gt;</p>" in page
    faces = [patch.get_facecolor() for patch in matrix_figure(matrix(RUNS)).axes[0].patches]
    assert [face == to_rgba(NOT_ATTACKED) for face in faces] == [False, True, False, False, False, True]
    assert "What each adversary gets" not in render(assemble([Run("one", record(*RUNS["fedr"].figures[:1]))]))


@pytest.mark.parametrize("task", ["kge", "graph"])
def test_the_gate_can_limit_every_cell(task: str) -> None:
    for name, attack in attacks_of(task).items():
        for metric in attack.leading:
            assert metric in attack.metrics
            assert f"{name}.{metric}" in MEASURES


def test_all_takes_every_attack_of_the_task() -> None:
    assert make_spec(None, {"attack": ["all"]}).attack == tuple(attacks_of("kge"))
    assert set(make_spec(None, {"algorithm": "fedavg", "attack": ["all"]}).attack) == set(attacks_of("graph"))
    assert {"client-poison", "client-spoil", "server-poison"} <= set(ATTACKS)
    with pytest.raises(SpecError, match="attack: all already selects every attack"):
        make_spec(None, {"attack": ["all", "edges"]})


@pytest.mark.slow
def test_all_attacks_on_two_configurations(tmp_path: Path) -> None:
    """One table, one picture, in the terminal, as Markdown, on the page; and a gate that limits a cell."""
    out, runner = tmp_path / "compare", CliRunner()
    small = ["--size", "700", "--rounds", "3", "--eval-every", "3", "--dim", "8", "--num-negatives", "8", "--batch-size", "64",
             "--unlinked-heads", "20", "--device", "cpu"]  # fmt: skip
    given = ["compare", "--attack", "all", *small, "--case", "none", "--case", "robust:rule=clip", "--out", str(out)]
    result = runner.invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "What each adversary gets, by configuration" in result.stdout
    for name in attacks_of("kge"):
        assert re.search(rf"(?m)^{name}\.", result.stdout)
    assert (out / "matrix.png").read_bytes().startswith(b"\x89PNG")
    assert any(line.startswith("| client-poison.hits@10") for line in matrix_lines([out / "comparison.json"]))
    with pytest.raises(RunError, match="not a comparison"):
        matrix_lines([out / "none" / "record.json"])
    page = tmp_path / "page.html"
    assert runner.invoke(app, ["report", str(out), "--out", str(page)]).exit_code == 0
    assert 'class="wide"' in page.read_text()
    federation = "size: 700, rounds: 3, eval_every: 3, dim: 8, num_negatives: 8, batch_size: 64, device: cpu"
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"federations: {{a: {{{federation}}}}}\nlimits: {{client-poison.hits@10: {{max: 0.01}}}}\n")
    assert runner.invoke(app, ["check", str(policy)]).exit_code == 1
