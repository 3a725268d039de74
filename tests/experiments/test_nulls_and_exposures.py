"""What commands say of federations whose answer is known: everything is exposed, nothing was learned, or noise protects it."""

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fkgsec.data.catalogue import DATA_VARIABLE
from fkgsec.data.consortium import generate_consortium
from fkgsec.data.formats.folders import write_client_folders
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.run import RECORD_FILE

needs_data = pytest.mark.skipif(DATA_VARIABLE not in os.environ, reason=f"{DATA_VARIABLE} names no folder of data sets")
DATA = ["consortium", pytest.param("Nations", marks=[needs_data, pytest.mark.slow])]
SMALL = {
    "dim": 8,
    "rounds": 3,
    "eval_every": 1,
    "num_negatives": 8,
    "batch_size": 64,
    "unlinked_heads": 0,
    "clients": 3,
}
LIMITS = "limits:\n  update-recovery.cosine: {max: 0.3, threat: server}\n"


def options(data: str) -> dict[str, object]:
    return SMALL | {"data": data} | ({"size": 600} if data == "consortium" else {})


def fkgsec(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def flags(settings: dict[str, object]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def check(folder: Path, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.chdir(folder)
    federation = ", ".join(
        f"{name}: '{value}'" if isinstance(value, str) else f"{name}: {value}" for name, value in settings.items()
    )
    (folder / "policy.yaml").write_text(f"federations:\n  small: {{{federation}}}\n{LIMITS}")
    return fkgsec("check", "policy.yaml")


@pytest.fixture
def disjoint(tmp_path: Path) -> dict[str, object]:
    """Three clients that share no entity."""
    write_client_folders(generate_consortium(clients=3, size=600, seed=2), tmp_path / "apart")
    for vocabulary in (tmp_path / "apart").glob("*.dict"):
        vocabulary.unlink()
    for folder in (tmp_path / "apart").iterdir():
        for file in folder.glob("*.txt"):
            rows = [line.split("\t") for line in file.read_text().splitlines()]
            named = (
                "\t".join((f"{folder.name} {head}", relation, f"{folder.name} {tail}")) for head, relation, tail in rows
            )
            file.write_text("".join(f"{line}\n" for line in named))
    return {name: value for name, value in SMALL.items() if name != "clients"} | {"data": str(tmp_path / "apart")}


def test_plaintext_uploads_of_clients_that_share_no_entity_are_exposed(
    disjoint: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = flags(disjoint)
    attacked = fkgsec("attack", *words, "--out", tmp_path / "run")
    assert attacked.exit_code == 0, attacked.output
    assert re.search(r"What did a client send\? +EXPOSED", attacked.stdout)
    assert not re.search(r"\? +LEAKS", attacked.stdout)
    compared = fkgsec("compare", *words, "--case", "none", "--case", "secagg", "--out", tmp_path / "compared")
    assert "What did a client send?" in compared.stdout
    assert "lower by" in compared.stdout
    assert fkgsec("report", tmp_path / "run", "--out", tmp_path / "report.html").exit_code == 0
    page = (tmp_path / "report.html").read_text()
    assert "EXPOSED" in page
    assert "NO EVIDENCE:" not in page.split("What this does not say")[0]
    assert check(tmp_path, disjoint, monkeypatch).exit_code == 1


@pytest.mark.parametrize("data", DATA)
def test_an_honest_policy_of_noise_passes(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = options(data) | {"defense": "dp:clip=0.5,epsilon=10"}
    assert check(tmp_path, noisy, monkeypatch).exit_code == 0
    assert check(tmp_path, options(data), monkeypatch).exit_code == 1


@pytest.mark.parametrize("data", DATA)
def test_a_federation_that_learned_nothing_is_not_headed_leaks(data: str, tmp_path: Path) -> None:
    attacked = fkgsec("attack", *flags(options(data) | {"learning_rate": 1e-12}), "--out", tmp_path / "run")
    assert attacked.exit_code == 0, attacked.output
    assert not attacked.stdout.startswith("Verdict: leaks")
    figures = read_record(tmp_path / "run" / RECORD_FILE).figures
    assert figures
    assert [figure.key for figure in figures if figure.status == "LEAKS" and figure.attack == "reconstruction"] == []
