"""`fkgsec experiment run SPEC --dry-run`: the plan of a table, which runs nothing."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.experiments.cli.main import app
from fkgsec.experiments.cli.progress import unobserved
from fkgsec.experiments.papers.estimates import Costs, Timed, Timings
from fkgsec.experiments.papers.plan import plan_lines, plan_of, runs_sheet
from fkgsec.experiments.papers.results import Results, read_records
from fkgsec.experiments.papers.runner import run_experiment
from fkgsec.experiments.papers.spec import read_experiment

TABLE = """
title: A table
paper: Nobody 2024, Nothing
table: Table 1
paper_settings: {size: 300, dim: 4, batch_size: 64, num_negatives: 4, rounds: 2, patience: 0, eval_every: 1, clients: 2}
our_settings: {learning_rate: {value: 0.01, why: small data}}
columns: [{name: two}, {name: lost, paper_settings: {data: ./nowhere, size: null}}, {name: gone, missing: nobody has them}]
rows:
  - {name: FedE, paper_settings: {algorithm: fede}, figures: {two: {mrr: 0.5}}}
  - {name: Twice, same_as: FedE, why: the same here, figures: {two: {mrr: 0.5}}}
  - name: FedR
    paper_settings: {algorithm: fedr}
    choose: {option: gamma, values: [8, 10], why: tried}
    figures: {two: {mrr: 0.4}}
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "tiny.yaml"
    path.write_text(TABLE)
    return path


@pytest.fixture(scope="module")
def out(path: Path) -> Path:
    """With FedE's run finished."""
    folder = path.with_name("out")
    run_experiment(path, out=folder, observe=unobserved, only="FedE two")
    return folder


def test_every_run_stands_once_with_its_state_seconds_and_memory(path: Path, out: Path) -> None:
    experiment = read_experiment(path)
    results = Results(read_records([out])[0])
    timings = Timings(
        path.with_name("cache"), lambda spec, graph: Timed(float(spec.algorithm == "fedr"), 0.0, 300, 60, "")
    )
    costs = Costs([], timings=timings)
    plan = plan_of(experiment.cells, [0, 1], results, costs, out=out)
    found = [
        (*one.job.cells, one.job.spec.seed, one.job.spec.document()["gamma"], one.state)
        for one in plan
        if one.job.spec.data == "consortium"
    ]
    assert sorted(found) == [
        ("FedE two", 0, 10, "finished"),
        ("FedE two", 1, 10, "to make"),
        *(("FedR two", seed, gamma, "to make") for seed in (0, 1) for gamma in (8, 10)),
    ]
    assert {one.state for one in plan if one.job.spec.data != "consortium"} == {"cannot be made"}
    made = [one for one in plan if one.state == "to make"]
    assert all(one.num_bytes > 0 for one in made)
    expected = sum(2 * costs.of(one.job.spec).round_s for one in made)
    assert sum(one.left_s for one in made) == pytest.approx(expected)
    whole, _, lost = plan_lines(plan, experiment.cells, jobs=1)
    assert "Cells: 9. Runs: 1 finished, 5 to make, 6 cannot be made." in whole
    assert lost == "Not at hand: nobody has them"
    assert "FedR two gamma 8, seed 0" in [row[0] for row in runs_sheet(plan).rows]
    most = max(one.num_bytes for one in made)
    assert f"{2 * most / 2**30:.2f} GiB at once" in plan_lines(plan, experiment.cells, jobs=2)[0]


def test_the_command_shows_it_and_writes_nothing(
    path: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("fkgsec.experiments.papers.plan.COMMITTED", path.with_name("none"))
    before = {file: file.stat().st_mtime_ns for file in path.parent.rglob("*")}
    given = ["experiment", "run", str(path), "--dry-run", "--only", "two"]
    result = CliRunner().invoke(app, [*given, "--out", str(out)])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    for said in ("Dry run: nothing is trained", "small data", "FedR gamma 8 or 10, by validation MRR ours tried"):
        assert said in words
    assert "1 finished, 2 to make" in words
    assert "FedE two, seed 0 1 – – – – finished" in words
    assert "training steps and one validation batch are timed" in words
    assert "lost" not in words  # --only
    assert {file: file.stat().st_mtime_ns for file in path.parent.rglob("*")} == before
    nowhere = CliRunner().invoke(app, [*given, "--out", str(path.with_name("other"))])
    assert nowhere.exit_code == 0
    assert "3 to make" in nowhere.output
    assert not path.with_name("other").exists()
