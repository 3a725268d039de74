"""`--engine ray`: refused in a line without Ray; with it, the record of one process."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.deploy.ray import RayWorkers

HAS_RAY = importlib.util.find_spec("ray") is not None
SETTINGS = {"clients": 4, "size": 300, "dim": 16, "rounds": 2, "eval-every": 1, "num-negatives": 8, "device": "cpu"}
SMALL = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_it_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["train", *SMALL, "--engine", "ray", "--workers", "2", "--out", str(tmp_path / "run")]
    )
    assert done.exit_code != 0
    assert done.output.splitlines()[-1] == (
        "fkgsec: engine: Ray is not installed; pip install 'fkgsec[ray]', or leave --engine out"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("count", [0, -1, 5000])
def test_numbers_of_workers_that_nobody_has(count: int) -> None:
    with pytest.raises(SpecError, match=f"workers must lie in 1..4,096; got {count:,}"):
        RayWorkers(count)


def told(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text())
    del record["environment"]
    del record["origin"]["record"]  # of all the rest, the seconds included
    for entry in record["rounds"]:
        del entry["seconds"]
    return record


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (extra ray)")
@pytest.mark.parametrize("command", [["train", "--algorithm", "fedlu"], ["attack"]])
def test_the_record_is_that_of_one_process(command: list[str], tmp_path: Path) -> None:
    for name, engine in (("one", []), ("ray", ["--engine", "ray", "--workers", "2"])):
        done = CliRunner().invoke(app, [*command, *SMALL, *engine, "--out", str(tmp_path / name)])
        assert done.exit_code == 0, done.output
        assert "round 2: loss" in done.output
    assert told(tmp_path / "ray" / "record.json") == told(tmp_path / "one" / "record.json")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (extra ray)")
def test_a_worker_that_is_killed_ends_the_run_in_a_line() -> None:
    with RayWorkers(2) as workers:
        os.kill(workers.call("process", {1: ()})[1], signal.SIGKILL)
        with pytest.raises(RunError, match="a worker of Ray ended"):
            workers.call("version", {0: (), 1: ()})


STRANGER = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False)
    print("connected")
except ConnectionError:
    print("refused")
"""


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (extra ray)")
def test_somebody_without_the_token_reaches_no_worker() -> None:
    with RayWorkers(1) as workers:
        address = workers._ray.get_runtime_context().gcs_address
        without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        for environment, said in (
            (without, "refused"),
            ({**without, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "00" * 32}, "refused"),
            (dict(os.environ), "connected"),
        ):
            words = [sys.executable, "-W", "ignore", "-c", STRANGER, address]
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)
            assert done.stdout.strip() == said
