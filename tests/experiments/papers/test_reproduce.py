"""`fkgsec experiment reproduce`: a record beside a training of its spec, to the last bit or within intervals."""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from fkgsec.errors import RunError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.integrity.origin import seal_of
from fkgsec.experiments.papers.reproduce import again, compared, compared_rounds, find_record
from fkgsec.experiments.papers.spec import read_experiment
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import RECORD_FILE, execute

TABLE = """
title: Tiny
paper: Nobody 2026
table: Table 1
paper_settings: {clients: 2, size: 600, dim: 4, rounds: 3, num_negatives: 4, local_epochs: 1, eval_every: 2, patience: 0}
seeds: [0]
columns:
  - {name: R2, paper_settings: {data: consortium}}
rows:
  - name: TransE FedE
    paper_settings: {model: transe, algorithm: fede}
    figures: {R2: {mrr: 0.1}}
  - name: TransE FedR
    paper_settings: {model: transe, algorithm: fedr}
    figures: {R2: {mrr: 0.1}}
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "tiny.yaml"
    path.write_text(TABLE)
    return path


@pytest.fixture(scope="module")
def made(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "fede"
    spec = read_experiment(table).cells[0].candidates[0].replace(device="cpu")
    execute(spec, spec.load_graph(), folder, attack=False)
    return folder / RECORD_FILE


@pytest.fixture(scope="module")
def record(made: Path) -> Record:
    return read_record(made)


def reproduce(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["experiment", "reproduce", *map(str, arguments)], catch_exceptions=False)
    return done.exit_code, done.stdout


def with_loss(record: Record, loss: float, number: int = 1) -> Record:
    rounds = [msgspec.structs.replace(one, loss=loss) if one.round == number else one for one in record.rounds]
    return msgspec.structs.replace(record, rounds=rounds)


def with_figure(record: Record, value: float) -> Record:
    figure = msgspec.structs.replace(record.utility["mrr"], value=value)
    return msgspec.structs.replace(record, utility=record.utility | {"mrr": figure})


def test_a_cell_is_reproduced_to_the_last_bit(table: Path, made: Path) -> None:
    code, said = reproduce(table, "FedE", "--records", made, "--quiet")
    assert code == 0
    assert "equal to the last bit: rounds 1 to 3" in said
    code, said = reproduce(table, "TransE FedE R2", "--records", made.parent, "--rounds", "2", "--quiet")
    assert code == 0
    assert "equal to the last bit: rounds 1 to 2" in said


def test_a_record_that_does_not_follow_from_its_spec_differs(table: Path, made: Path, tmp_path: Path) -> None:
    document = json.loads(made.read_bytes())
    document["rounds"][2]["loss"] *= 1.0000001
    document["origin"]["record"] = seal_of(document)
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document))
    assert reproduce(table, "FedE", "--records", changed, "--rounds", "1", "--quiet")[0] == 0
    code, said = reproduce(table, "FedE", "--records", changed, "--rounds", "2", "--quiet")
    assert code == 1
    assert "differs in round 2: loss" in said


def test_elsewhere_intervals_decide(record: Record) -> None:
    figure = record.utility["mrr"]
    near = with_figure(record, (figure.value + figure.high) / 2)
    assert compared(record, record)[0]
    assert not compared(record, near)[0]
    assert compared(record, near, ["vector_level"])[0]
    assert not compared(record, with_figure(record, figure.high + 0.01), ["vector_level"])[0]


def test_elsewhere_losses_are_near(record: Record) -> None:
    loss = record.rounds[1].loss
    assert loss is not None
    near, far = with_loss(record, loss * 1.001), with_loss(record, loss * 1.1)
    assert not compared_rounds(record, near.rounds, [])[0]
    assert compared_rounds(record, near.rounds, ["versions"])[0]
    assert not compared_rounds(record, far.rounds, ["versions"])[0]


def test_more_rounds_than_the_record_has_differ(record: Record) -> None:
    longer = [*record.rounds, msgspec.structs.replace(record.rounds[-1], round=4)]
    assert not compared_rounds(record, longer, [])[0]


def test_what_cannot_be_reproduced_is_said(table: Path, made: Path, record: Record) -> None:
    code, _ = reproduce(table, "TransE", "--records", made)
    assert code == 2, "two cells have this word"
    cell = read_experiment(table).cells[1]
    with pytest.raises(RunError, match="no record of TransE FedR R2"):
        find_record(cell, made)
    with pytest.raises(RunError, match="is the record of a finished run"):
        again(record, out=made.parent)
    other = msgspec.structs.replace(record, data=msgspec.structs.replace(record.data, hash="0" * 64))
    with pytest.raises(RunError, match="the record 000000000000"):
        again(other)
