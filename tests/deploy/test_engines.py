"""`fkgsec train|attack --engine flower`: the federation that the parties agreed on, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fkgsec.experiments.cli import engines
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.deploy.consortium import Plan, make_consortium
from fkgsec.experiments.runs.spec import make_spec


def invoke(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output.splitlines()[-1] if done.output else ""


@pytest.fixture
def server(tmp_path: Path) -> str:
    plan = Plan(parties={"berlin": "/data/berlin", "paris": "/data/paris"})
    make_consortium(tmp_path / "consortium", make_spec(None, {"data": "parties", "dim": 16, "rounds": 5}), plan)
    return str(tmp_path / "consortium" / "server")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have been asked of Flower, which is tried in `test_page`."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(engines, "run_server", lambda *given, **more: found.append((*given, more)))
    return found


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--engine", "flower"), "--engine flower needs --superlink"),
        (("--superlink", "x"), "--superlink applies to --engine flower only; got --engine process"),
        (
            ("--engine", "ray", "--workers", "2", "--superlink", "x"),
            "--superlink applies to --engine flower only; got --engine ray",
        ),
        (("--engine", "ray"), "--engine ray needs --workers"),
        (("--workers", "3"), "--workers applies to --engine ray only; got --engine process"),
        (("--engine", "flow"), "engine must be one of process, ray, flower; got 'flow'; did you mean flower?"),
        (
            ("--engine", "flower", "--superlink", "nowhere"),
            "nowhere: not a run folder (spec.json: No such file or directory)",
        ),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...], error: str) -> None:
    for command in ("train", "attack"):
        status, line = invoke(command, *words)
        assert (status != 0, line) == (True, f"fkgsec: {error}")


def test_what_was_agreed_on_is_run(server: str, runs: list[tuple[Any, ...]], tmp_path: Path) -> None:
    config = tmp_path / "spec.yaml"
    config.write_text(
        "dim: 16\nrounds: 5\ndata: UMLS\nclients: 2\n"
    )  # the laboratory's: parties have data of their own
    for words in ((), ("--dim", "16", "--quiet"), ("--config", str(config)), ("--device", "cpu")):
        assert invoke("train", "--engine", "flower", "--superlink", server, *words)[0] == 0
    assert [run[0].path for run in runs] == [Path(server)] * 4
    assert [run[-1]["quiet"] for run in runs] == [False, True, False, False]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--dim", "32"), "dim: the parties agreed on 16; got 32."),
        (("--defense", "dp:epsilon=8,clip=0.1"), "defense: the parties agreed on ''; got 'dp:epsilon=8,clip=0.1'."),
        (("--out", "elsewhere"), "--out: not available with --engine flower"),
        (("--seeds", "3", "--overwrite"), "--seeds, --overwrite: not available with --engine flower"),
        (("--checkpoint-every", "0"), "--checkpoint-every: not available with --engine flower"),
    ],
)
def test_what_was_not_agreed_on_is_refused(
    words: tuple[str, ...], error: str, server: str, runs: list[tuple[Any, ...]]
) -> None:
    status, line = invoke("train", "--engine", "flower", "--superlink", server, *words)
    assert status != 0
    assert line.startswith(f"fkgsec: {error}")
    assert not runs


def test_a_spec_of_other_values_is_refused(server: str, runs: list[tuple[Any, ...]], tmp_path: Path) -> None:
    config = tmp_path / "spec.yaml"
    config.write_text("dim: 16\n")  # rounds are the default's
    status, line = invoke("train", "--engine", "flower", "--superlink", server, "--config", str(config))
    assert status != 0
    assert line.startswith("fkgsec: rounds: the parties agreed on 5; got ")
    assert not runs


def test_attacks_are_those_that_parties_agreed_to_score(
    server: str, runs: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    status, line = invoke("attack", "--engine", "flower", "--superlink", server)
    assert (status != 0, line.startswith("fkgsec: attack: the parties agreed on no attack")) == (True, True)
    plan = Plan(parties={"berlin": "/data/berlin", "paris": "/data/paris"})
    make_consortium(tmp_path / "audited", make_spec(None, {"data": "parties", "attack": ["membership"]}), plan)
    audited = str(tmp_path / "audited" / "server")
    for words in ((), ("--attack", "membership")):
        assert invoke("attack", "--engine", "flower", "--superlink", audited, *words)[0] == 0
    status, line = invoke("attack", "--engine", "flower", "--superlink", audited, "--attack", "edges")
    assert line.startswith("fkgsec: attack: the parties agreed on ")
    assert len(runs) == 2


def test_a_finished_run_is_attacked_here() -> None:
    status, line = invoke("attack", "--engine", "flower", "--superlink", "x", "--run", "runs/mine")
    assert status != 0
    assert line == "fkgsec: --engine flower applies to training, and --run takes a finished run; leave one of them out"
