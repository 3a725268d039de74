"""Published datasets, a few rounds each: `FKGSEC_DATA=... pytest -m slow`."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.data.catalogue import DATA_VARIABLE
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.runs.record import read_record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get(DATA_VARIABLE), reason=f"{DATA_VARIABLE} names no data folder"),
]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ("FB15k-237", ["--clients", "3", "--partition", "triples"]),
        ("FB15k-237", ["--clients", "3", "--partition", "clusters"]),
        ("WN18RR", ["--clients", "3"]),
        ("DDB14", ["--clients", "3", "--partition", "relations"]),
        ("DDB14-Fed5", []),
        ("FB15k-237-R3", []),
        ("UMLS", ["--clients", "2"]),
    ],
)
@pytest.mark.parametrize("algorithm", ["fede", "fedr"])
def test_train_and_attack(data: str, options: list[str], algorithm: str, tmp_path: Path) -> None:
    command = ["attack", "--target", algorithm, "--data", data, *options, "--dim", "32", "--num-negatives", "32",
               "--local-epochs", "1", "--rounds", "2", "--unlinked-heads", "10", "--device", "cpu"]  # fmt: skip
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    record = read_record(tmp_path / "run" / "record.json")
    assert record.rounds[2].loss is not None
    assert record.rounds[1].loss is not None
    assert record.rounds[2].loss < record.rounds[1].loss
    assert record.utility["mrr"].n > 500
    if algorithm == "fede":
        found = [
            one for one in record.rebuilt if (one.metric, one.threat_model, one.victim) == ("err", "collusion", "all")
        ]
        assert all(one.baseline and one.estimate.low > one.baseline.value for one in found)


def test_the_leaked_test_triples_of_ddb14_fed5_are_found(tmp_path: Path) -> None:
    command = ["train", "--algorithm", "fedr", "--data", "DDB14-Fed5", "--rounds", "25", "--negative-sides", "tail",
               "--eval-sides", "tail", "--device", "cpu", "--out", str(tmp_path / "run")]  # fmt: skip
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    assert "40 % of test triples stand in their own client's train split" in result.stderr
    figures = read_record(tmp_path / "run" / "record.json").utility_by_leak
    assert figures["leaked"]["mrr"].n == 1772
    assert figures["leaked"]["mrr"].value == pytest.approx(0.9997, abs=0.02)
    assert (figures["elsewhere"]["mrr"].n, figures["new"]["mrr"].n) == (1468, 1220)  # of 2,688 not in own training
