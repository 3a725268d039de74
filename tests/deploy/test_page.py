"""Every command of docs/deployment.md, run as it is printed there, in an empty folder (but for those that install Flower)."""

import contextlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.errors import RunError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.deploy.flower.installed import VERSION, command
from fkgsec.experiments.runs.record import read_record

PAGE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
BLOCKS = ("install", "run", "show", "apart", "engine", "keys", "rotate", "install-ray", "ray")
PARTIES = ("hospital-1", "hospital-2", "hospital-3")
FKGSEC = f"#!{sys.executable}\nimport sys\nfrom fkgsec.experiments.cli.main import main\nsys.exit(main())\n"


def block(name: str) -> list[str]:
    found = re.search(rf"<!-- {name} -->\n```\n(.*?)```\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert found, f"the page has no block {name}"
    return found[1].splitlines()


def test_every_command_stands_in_a_block_that_is_tested() -> None:
    tested = [line for name in BLOCKS for line in block(name)]
    fenced = re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)
    printed = [line for one in fenced if "│" not in one for line in one.splitlines()]
    assert sorted(printed) == sorted(tested)
    installs = {*block("install"), *block("install-ray")}
    assert all(line.startswith(("fkgsec deploy ", "fkgsec train ")) for line in tested if line not in installs)
    assert f"pip install flwr=={VERSION}" in "\n".join(block("install"))


def test_the_commands_that_need_no_flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [*block("show"), "rm consortium", block("run")[0], *block("keys"), *block("rotate")]
    for line in lines:
        if line == "rm consortium":
            Path("consortium").rename("another")
            continue
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code == 0, f"{line}: {done.output}"
    for line in block("apart"):
        words = shlex.split(line)[1:]
        assert Path(words[2]).is_dir()
        assert CliRunner().invoke(app, [*words[:2], "--help"]).exit_code == 0


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has installed fkgsec and Flower."""
    try:
        command("flower-superlink")
    except RunError as error:
        pytest.skip(str(error))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "fkgsec").write_text(FKGSEC)
    (programs / "fkgsec").chmod(0o755)
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": root}


@pytest.mark.slow
def test_from_init_to_a_finished_run(tmp_path: Path, shell: dict[str, str]) -> None:
    place = tmp_path / "empty"
    place.mkdir()
    began = time.monotonic()
    for line in block("run"):
        subprocess.run(line, shell=True, cwd=place, env=shell, check=True)
    print(f"{time.monotonic() - began:.0f} s from init to a finished run")
    record = read_record(place / "consortium" / "server" / "run" / "record.json")
    assert len(record.rounds) == 4
    for name in PARTIES:
        assert (place / "consortium" / "parties" / name / "state" / "embeddings.safetensors").exists()


@contextlib.contextmanager
def background(line: str, place: Path, shell: dict[str, str]) -> Iterator[None]:
    with subprocess.Popen(shlex.split(line), cwd=place, env=shell) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.slow
def test_each_on_its_own(tmp_path: Path, shell: dict[str, str]) -> None:
    place = tmp_path / "empty"
    place.mkdir()
    subprocess.run(block("run")[0], shell=True, cwd=place, env=shell, check=True)
    *services, last = block("apart")
    with contextlib.ExitStack() as stack:
        for line in services:
            for name in PARTIES if PARTIES[0] in line else [PARTIES[0]]:
                stack.enter_context(background(line.replace(PARTIES[0], name), place, shell))
        subprocess.run(last, shell=True, cwd=place, env=shell, check=True)
        path = place / "consortium" / "server" / "run" / "record.json"
        record = read_record(path)
        path.unlink()
        for line in block("engine"):  # the parties give what they gave
            subprocess.run(line, shell=True, cwd=place, env=shell, check=True)
    again = read_record(path)
    assert (again.utility, again.bytes, again.best_round) == (record.utility, record.bytes, record.best_round)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (extra ray)")
def test_a_run_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in block("ray"):
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
    assert len(read_record(tmp_path / "runs" / "spread" / "record.json").rounds) == 4
