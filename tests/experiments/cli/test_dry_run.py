"""`--dry-run` says what would be done, with whose settings, how long and in how much memory, and does nothing."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.experiments.cli.main import app
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.tasks.memory import GIB, needed

SMALL = ["--size", "600", "--dim", "8", "--batch-size", "64", "--num-negatives", "8", "--device", "cpu"]


def call(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run below `runs`, by which others are estimated."""
    folder = tmp_path_factory.mktemp("place")
    assert call("train", *SMALL, "--rounds", "3", "--out", str(folder / "runs/one"))[0] == 0
    return folder


def test_settings_runs_seconds_and_memory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    status, out, err = call(
        "attack", *SMALL, "--preset", "fedr", "--patience", "0", "--leak", "0.7", "--rounds", "6", "--dry-run"
    )
    assert (status, err) == (0, "")
    assert sorted(place.rglob("*")) == before
    assert re.search(r"^dim +8 +given$", out, re.M)
    assert re.search(r"^learning_rate +0\.001 +preset fedr: Zhang et al\. 2022$", out, re.M)
    assert re.search(r"^init_epsilon +2 +preset fedr: the paper names none; its code has 2$", out, re.M)
    assert "Defaults: " in out
    assert re.search(r"leak 0\.7\.$", out, re.M)
    spec = make_spec(
        None, {"size": 600, "dim": 8, "batch_size": 64, "num_negatives": 8, "algorithm": "fedr", "temperature": 1}
    )
    size = sum(needed(spec, spec.load_graph()).values()) / GIB
    (row,) = re.findall(r"^fedr +(\d+) +([\d,]+) +([\d.]+) +runs/\S+$", out, re.M)
    assert (row[0], row[2]) == ("6", f"{size:.2f}")


def test_seconds_are_those_of_the_records_below_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    out = call("train", *SMALL, "--rounds", "3", "--out", "runs/two", "--dry-run")[1]
    assert re.search(r"^Each run: \S+ s per round, 3 rounds \(records of the same run\)\.$", out, re.M), out
    assert re.search(
        r"^fede +3 +\d+ +[\d.]+ +finished +runs/one$",
        call("train", *SMALL, "--rounds", "3", "--out", "runs/one", "--dry-run")[1],
        re.M,
    )


def test_each_case_and_seed_is_a_run_and_what_makes_no_sense_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    cases = call("compare", *SMALL, "--rounds", "3", "--case", "none", "--case", "secagg", "--dry-run")[1]
    assert re.search(r"^secagg .* runs/compare-consortium-3-\w+/secagg$", cases, re.M)
    seeds = call("train", *SMALL, "--rounds", "3", "--seeds", "2", "--dry-run")[1]
    assert re.search(r"^seed 1 .*-seeds/seed-1$", seeds, re.M)
    assert call("train", *SMALL, "--defense", "psu", "--dry-run")[0] == 2
    status, _, err = call("attack", "--run", "runs/one", "--dry-run")
    assert (status, "leave out --dry-run" in err) == (2, True)
    assert not (place / "runs/two").exists()
