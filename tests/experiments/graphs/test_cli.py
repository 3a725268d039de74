"""`fkgsec graphs` as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.graphs.record import RECORD_FILE, read_graph_record
from experiments.graphs.spec import GraphSpec
from fkgsec.errors import RunError, SpecError

SMALL = ["graphs", "train", "--size", "120", "--clients", "3", "--width", "8", "--rounds", "2", "--device", "cpu"]


def call(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.parametrize("algorithm", [["fedavg"], ["cefgl", "--bits", "8", "--exchange", "1"]])
def test_a_run_leaves_its_record_and_is_not_trained_twice(algorithm: list[str], tmp_path: Path) -> None:
    command = [*SMALL, "--algorithm", *algorithm, "--out", str(tmp_path / "run")]
    shown = call(*command)
    assert "test accuracy, mean over clients: 0." in shown
    path = tmp_path / "run" / RECORD_FILE
    record, written = read_graph_record(path), path.stat().st_mtime_ns
    assert record.spec["algorithm"] == algorithm[0]
    assert [len(record.rounds), record.metric] == [3, "accuracy"]
    assert {name: counts["test"] for name, counts in record.clients.items()} == dict.fromkeys(
        ("molecules-1", "molecules-2", "circles-3"), 4
    )
    assert record.bytes_up > 0
    assert record.accuracy is not None
    assert record.accuracy.n == 12
    call(*command)
    assert path.stat().st_mtime_ns == written
    assert "other options or data" in call(*command, "--seed", "1", status=2)
    call(*command, "--seed", "1", "--overwrite")
    assert read_graph_record(path).spec["seed"] == 1
    if algorithm[0] == "cefgl":
        assert record.spec["bits"] == 8


def test_records_go_to_standard_output_and_say_what_protects(tmp_path: Path) -> None:
    done = call(*SMALL, "--out", str(tmp_path / "run"), "--defense", "secagg", "--quiet", "--json", "-")
    record = json.loads(done)
    assert any("sum of the weights" in line for line in record["protection"])
    assert record["spec"]["defense"] == "secagg"


def test_stats_count_twins() -> None:
    shown = call("graphs", "stats", "--size", "120", "--clients", "3")
    assert "motifs: 3 clients" in shown
    assert "41 degrees" in shown
    assert "twins: test graphs that are isomorphic" in shown


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--algorithm", "fede"], "algorithm 'fede' is one of the task 'kge'"),
        (["--share", "half"], "share must be one of all, encoder"),
        (["--mu", "1"], "mu does not apply to fedavg"),
        (["--width", "0"], "width must be at least 1"),
        (["--model", "gan"], "model must be gin, gcn, sage"),
        (["--size", "50"], "size must be at least 40 graphs for each of 3"),
        (["--partition", "random"], "partition does not apply to generated graphs"),
        (["--defense", "secag"], "secag"),
        (["--split-seed", "-1"], "split_seed must be at least 0"),
        (["--data", "nosuch"], "no graph data set or group 'nosuch'"),
        (["--out", "/dev/null/run"], "cannot be made"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], fault: str, tmp_path: Path) -> None:
    given = [*SMALL, "--out", str(tmp_path / "run"), *arguments]
    if "--data" in arguments:  # size and clients are of generated data
        given = ["graphs", "train", "--out", str(tmp_path / "run"), *arguments]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert fault in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / RECORD_FILE).write_text("{}")
    with pytest.raises(RunError, match="not a record of graph classification"):
        read_graph_record(tmp_path / RECORD_FILE)
    with pytest.raises(SpecError, match="options: Object contains unknown field `dim`"):
        GraphSpec.of({"dim": 3})


def test_other_commands_do_not_wait_for_what_graphs_need() -> None:
    code = "import experiments.cli.main, sys; print({'torch_geometric', 'networkx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
