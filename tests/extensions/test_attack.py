"""An attack from outside the packages: one file, public names, and it stands in record, table, listing, report and gate."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fkgsec import ATTACKS, read_record
from fkgsec.attacks.figure import over_victims
from fkgsec.errors import SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.reporting.frames import figure_frame, figures, over_all
from fkgsec.experiments.reporting.reading import find_records
from fkgsec.experiments.reporting.sheets import interval, json_rows, short
from fkgsec.experiments.reporting.tables import figure_sheet
from fkgsec.experiments.runs.compare import read_comparison
from fkgsec.experiments.tracking import final_figures
from tests.extensions.shapes_attack import SHAPES

TRAINED = [
    "--size",
    "300",
    "--dim",
    "8",
    "--batch-size",
    "64",
    "--num-negatives",
    "8",
    "--rounds",
    "8",
    "--eval-every",
    "4",
]
TRAINED += ["--learning-rate", "0.02"]
SMALL = [*TRAINED, "--unlinked-heads", "0", "--leak", "1", "--attack", "shapes", "--attack", "reconstruction"]
POLICY = """
federations:
  small: {{size: 300, dim: 8, batch_size: 64, num_negatives: 8, rounds: 8, eval_every: 4, learning_rate: 0.02, {defense}
          leak: [1.0], unlinked_heads: 0}}
limits:
  shapes.auc: {{max: {most}, threat: server}}
"""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package with the entry point were there, for one test."""
    shipped = dict(ATTACKS)
    point = SimpleNamespace(name="shapes", load=lambda: SHAPES)
    monkeypatch.setattr("fkgsec.registry.entry_points", lambda group: [point] if group == "fkgsec.attacks" else [])
    monkeypatch.setattr(ATTACKS, "_parts", shipped)
    monkeypatch.setattr(ATTACKS, "_loaded", False)


def fkgsec(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == status, done.output
    return " ".join(done.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attacked")


def test_it_fits_on_a_page() -> None:
    assert len(Path(__file__).with_name("shapes_attack.py").read_text().splitlines()) <= 40


def test_the_list_says_what_it_needs() -> None:
    shown = fkgsec("attack", "--attack", "list")
    assert "shapes" in shown
    assert "needs: each victim's entities threat models: server, collusion" in shown
    assert "shapes.auc: AUC of linked pairs" in shown
    assert "reconstruction: identifies the victims' entities" in shown
    assert "needs: clients' models; or a client alone; or " in shown
    assert "threat models: identifiers, models, server+triples, client membership.auc: AUC of membership" in shown


def test_an_unknown_attack_is_refused() -> None:
    with pytest.raises(SpecError, match=r"attack 'shape' is unknown; allowed: .*shapes"):
        ATTACKS["shape"]
    assert "got 'shape'; did you mean shapes?" in fkgsec("attack", "--attack", "shape", status=2)


def test_a_record_is_read_where_the_attack_is_not_installed(folder: Path) -> None:
    fkgsec("attack", *SMALL, "--out", str(folder / "elsewhere"))
    shapes = ATTACKS["shapes"]
    ATTACKS.remove("shapes")
    try:
        record = read_record(folder / "elsewhere/record.json")
        assert "got 'shapes'" in fkgsec("attack", *SMALL, status=2)
    finally:
        ATTACKS.register("shapes", shapes)
    assert "shapes" in {one.attack for one in record.figures}


def test_record_table_listing_and_report(folder: Path) -> None:
    shown = fkgsec("attack", *SMALL, "--out", str(folder / "run"))
    assert "What else is inferred?" in shown
    shown = fkgsec("show", str(folder / "run"))
    assert "shapes, round" in shown
    record = read_record(folder / "run/record.json")
    found = [one for one in record.figures if one.attack == "shapes"]
    assert [one.victim for one in found] == ["hospital-2", "hospital-3"]
    for one in found:
        assert (one.metric, one.threat_model, one.leak, one.reason) == ("auc", "server", None, None)
        assert one.baseline is not None
        assert one.estimate.low > one.baseline.value == 0.5
        assert interval(one.estimate) in shown
    assert record.rebuilt
    assert {one.attack for one in record.figures} == {"shapes", "reconstruction"}

    (worst,) = over_victims(found)
    assert (
        final_figures(record)["shapes_auc/server"] == worst.estimate.value == max(one.estimate.value for one in found)
    )
    frame = figures(find_records([folder / "run"]).records, over_victims)
    row = frame[frame["attack"] == "shapes"].iloc[0]
    measured = ("auc", "server", worst.estimate.value, 0.5)
    assert (row["metric"], row["threat_model"], row["value"], row["baseline"]) == measured
    assert set(frame["attack"]) == {"shapes", "reconstruction"}
    assert "shapes" in fkgsec("results", str(folder / "run"))

    made = json_rows(figure_sheet(figure_frame({"mine": record.figures}, over_all), "Figures"))
    (shown,) = (row for row in made if row["attack"] == "shapes")
    assert (shown["run"], shown["threat model"], shown["victim"], shown["base"]) == (
        "mine",
        "server",
        worst.victim,
        0.5,
    )
    assert shown["figure"]["value"] == worst.estimate.value

    fkgsec("report", str(folder / "run"), "--out", str(folder / "report.html"))
    page = (folder / "report.html").read_text()
    assert f">{interval(worst.estimate)}<" in page
    assert "shapes" in page
    again = fkgsec("attack", *SMALL, "--out", str(folder / "run"))
    assert "Reused an existing run" in again


def test_alone_on_a_finished_run_it_makes_a_record_beside_it(folder: Path) -> None:
    fkgsec("train", *TRAINED, "--out", str(folder / "trained"))
    shown = fkgsec(
        "attack", "--run", str(folder / "trained"), "--attack", "shapes", "--threat", "collusion", "--json", "-"
    )
    record = json.loads(shown[shown.index("{ ") :])
    assert {(one["attack"], one["threat_model"], one["leak"]) for one in record["figures"]} == {
        ("shapes", "collusion", 0.5)
    }


def test_compare_shows_it_of_each_case(folder: Path) -> None:
    cases = ("--case", "none", "--case", "psu,secagg")
    shown = fkgsec("compare", *TRAINED, "--attack", "shapes", *cases, "--out", str(folder / "compared"))
    comparison = read_comparison(folder / "compared/comparison.json")
    assert comparison is not None
    clear, summed = (case.record.figures for case in comparison.cases)
    (worst,) = over_victims(clear)
    assert "What else is inferred? shapes.auc by server" in shown
    assert f"none {interval(worst.estimate)} {short(worst.advantage)}" in shown
    assert {one.reason for one in summed} == {"its entities were transmitted only inside a sum"}
    assert "its entities were transmitted only inside a sum" in shown


@pytest.mark.parametrize(
    ("defense", "most", "status", "says"),
    [
        ("", 0.99, 0, "pass"),
        ("", 0.51, 1, "fail"),
        ("defense: 'psu,secagg',", 0.99, 1, "were transmitted only inside a sum"),
    ],
)
def test_as_a_limit_of_the_gate(tmp_path: Path, defense: str, most: float, status: int, says: str) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(defense=defense, most=most))
    verdict = tmp_path / "verdict.md"
    shown = fkgsec("check", f"{policy}", "--runs", f"{tmp_path / 'runs'}", "--markdown", f"{verdict}", status=status)
    shown += verdict.read_text()
    assert says in shown.lower()
    assert "shapes.auc" in shown


def test_on_an_attacked_run_a_named_attack_has_its_own_threat_models(folder: Path) -> None:
    """It once ran under those of the run alone: membership of models was neither asked nor named."""
    fkgsec("attack", *TRAINED, "--attack", "edges", "--threat", "server", "--out", str(folder / "by-server"))
    shown = fkgsec("attack", "--run", str(folder / "by-server"), "--attack", "membership", "--json", "-")
    record = json.loads(shown[shown.index("{ ") :])
    assert {one["threat_model"] for one in record["figures"]} == {"models", "client", "server+triples"}
    assert "membership: not run under identifiers. Use --threat NAME to run it." in shown
    alone = fkgsec("attack", "--run", str(folder / "by-server"), "--attack", "membership", "--threat", "models")
    assert "membership: not run under identifiers, server+triples, client." in alone
