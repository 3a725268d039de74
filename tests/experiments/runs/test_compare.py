"""`fkgsec compare`: every case is a run of its own, resumed and reused; one table and one picture."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.reporting.sheets import terminal_table
from fkgsec.experiments.reporting.tables import comparison_sheets
from fkgsec.experiments.runs.compare import (
    COMPARISON_FILE,
    Comparison,
    case_spec,
    folder_name,
)
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.runs.stored import decode_stored
from fkgsec.experiments.tasks.kge import TASK

SMALL = ["--size", "400", "--rounds", "2", "--dim", "8", "--num-negatives", "8", "--unlinked-heads", "20"]


def test_a_case_is_an_algorithm_a_defense_or_both() -> None:
    spec = Spec()
    cases = {
        "none": ("fede", ""),
        "fedr": ("fedr", ""),
        "psu,secagg": ("fede", "psu,secagg"),
        "fedr/psu,secagg": ("fedr", "psu,secagg"),
        "fedr/": ("fedr", ""),
    }
    made = {name: case_spec(spec, name) for name in cases}
    assert {name: (one.algorithm, one.defense) for name, one in made.items()} == cases
    for name in TASK.cases:
        case_spec(spec, name)
    assert len({folder_name(name) for name in TASK.cases}) == len(TASK.cases)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "'nothing' is unknown"),
        ("fedx/secagg", "'fedx' is not an algorithm"),
        ("single/secagg", "exchanges nothing"),
    ],
)
def test_a_case_that_makes_no_sense(name: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        case_spec(Spec(), name)


def test_cases_stand_side_by_side_and_are_not_trained_twice(tmp_path: Path) -> None:
    out = tmp_path / "compare"
    given = [*SMALL, "--case", "none", "--case", "fedr", "--case", "psu,secagg,dp:unit=row,clip=0.1,epsilon=10"]
    first = CliRunner().invoke(app, ["compare", *given, "--out", str(out)])
    assert first.exit_code == 0, first.output
    comparison = decode_stored((out / COMPARISON_FILE).read_bytes(), Comparison)
    assert [case.name for case in comparison.cases] == ["none", "fedr", "psu,secagg,dp:unit=row,clip=0.1,epsilon=10"]
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    clear, relations, defended = (case.record for case in comparison.cases)
    assert clear.data.hash == defended.data.hash == relations.data.hash
    assert clear.seed == defended.seed
    assert relations.bytes.up < clear.bytes.up < defended.bytes.up
    assert [line for line in defended.protection if line.startswith("dp, entities: (")]
    assert "epsilon=10: dp, entities: (" in first.stdout
    assert first.stdout.startswith("Utility and cost")
    assert "Which training triples? reconstruction.trr by " in first.stdout
    assert max(map(len, first.stdout.split("[low, high]")[0].splitlines()[:8])) <= 80
    records = {case.name: case.record for case in comparison.cases}
    (shown,) = (
        one for one in comparison_sheets(records, {name: [] for name in records}) if one.title == "reconstruction"
    )
    assert {row[0] for row in shown.rows} == set(records)
    assert list(terminal_table(shown, once=1).columns[0].cells)[1] == ""  # a case is named once

    written = {
        case: (out / folder_name(case) / "checkpoint.safetensors").stat().st_mtime_ns for case in ("none", "fedr")
    }
    second = CliRunner().invoke(app, ["compare", *given, "--out", str(out)])
    assert second.exit_code == 0, second.output
    assert written == {
        case: (out / folder_name(case) / "checkpoint.safetensors").stat().st_mtime_ns for case in written
    }
    again = decode_stored((out / COMPARISON_FILE).read_bytes(), Comparison)
    assert [case.record.figures for case in again.cases] == [case.record.figures for case in comparison.cases]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--case", "none", "--case", "fede"], "is the same run as 'none'"),
        (["--case", "psu"], "psu needs secagg"),
        (["--case", "none", "--case", ""], "the name is empty"),
        (["--case", "none", "--case", "psu,secagg:neighbours=3"], "neighbours"),
        (["--case", "none", "--case", "collective"], "no federation to attack"),
        (["--case", "none", "--case", "secagg,dp:clip=1,epsilon=1,colluders=3"], "lower colluders"),
        (["--case", "none", "--case", "secagg,suppress:t=4"], "t is 4, but 3 clients"),
        (["--clients", "1"], "has one client"),
    ],
)
def test_wrong_cases_end_before_training(given: list[str], says: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", *SMALL, *given, "--out", str(tmp_path / "compare")])
    assert result.exit_code == 2
    assert says in result.stderr
    assert not list(tmp_path.rglob("checkpoint.safetensors"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--defense", "secagg:dropout=0.5,threshold=9"], "defense: secagg: threshold: 9"),
        (
            ["--defense", "psu,secagg:threshold=2", "--clients", "2", "--participation", "0.4"],
            "at least 2 participants",
        ),
        (["--defense", "secagg", "--metric", "published"], "metric published counts plaintext uploads"),
        (["--defense", "secagg,dp:clip=0.1,epsilon=1,colluders=3"], "lower colluders"),
    ],
)
def test_wrong_defenses_are_one_line(given: list[str], says: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["attack", *SMALL, *given, "-q", "--out", str(tmp_path / "run")])
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()[-1:]
    assert line.startswith("fkgsec: ")
    assert says in line
