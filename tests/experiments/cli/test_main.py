"""The command: what it prints, writes and returns, for good input and bad."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from safetensors import SafetensorError, safe_open
from typer.testing import CliRunner

from fkgsec.attacks.reconstruction.leakage import items_behind
from fkgsec.errors import RunError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.runs.record import SCHEMA, read_record
from tests.experiments.commands import fkgsec

SMALL = [
    "--size", "600", "--dim", "8", "--batch-size", "64", "--num-negatives", "8", "--rounds", "3", "--eval-every", "1",
    "--unlinked-heads", "10", "--device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "fede"
    status, _, _ = fkgsec("attack", "--target", "fede", "--leak", "0.5", "--leak", "1", *SMALL[:-4], "--out", folder)
    assert status == 0
    return folder


def test_the_folder_of_an_attack(run: Path) -> None:
    assert {path.name for path in run.iterdir()} == {
        "checkpoint.safetensors", "picture.png", "record.json", "scores.parquet", "spec.json",
    }  # fmt: skip
    assert (run / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_record_has_what_issue_and_readers_rely_on(run: Path) -> None:
    record = json.loads((run / "record.json").read_text())
    assert record["schema"] == SCHEMA
    assert record["seed"] == record["spec"]["seed"] == 0
    assert set(record["data"]) >= {"name", "hash"}
    assert set(record["environment"]) >= {"commit", "dirty", "versions", "device"}
    for name in ("mrr", "hits@1", "hits@3", "hits@5", "hits@10"):
        assert set(record["utility"][name]) >= {"value", "low", "high", "n"}
        assert record["utility"][name]["low"] <= record["utility"][name]["value"] <= record["utility"][name]["high"]
    for one in record["figures"]:
        assert set(one) >= {"attack", "metric", "threat_model", "victim", "estimate"}
        assert set(one["estimate"]) >= {"value", "low", "high", "n"}
    rates = [one for one in record["figures"] if one["metric"] in ("err", "trr")]
    victims = {(one["threat_model"], one["leak"], one["victim"]) for one in rates}
    assert victims == {
        (threat, leak, victim)
        for threat in ("collusion", "identifiers")
        for leak in (0.5, 1.0)
        for victim in ("hospital-2", "hospital-3", "all")
    }
    assert record["bytes"]["up"] == sum(record["bytes"]["up_by_round"]) == sum(r["bytes_up"] for r in record["rounds"])
    assert record["bytes"]["down"] == sum(r["bytes_down"] for r in record["rounds"])
    assert [r["round"] for r in record["rounds"]] == [0, 1, 2, 3]
    assert set(record["rounds"][1]) >= {"loss", "valid", "bytes_up", "bytes_down", "seconds"}


def test_scores_explain_the_figures(run: Path) -> None:
    scores = pd.read_parquet(run / "scores.parquet")
    for one in read_record(run / "record.json").rebuilt:
        if one.victim != "all" and one.by not in ("majority", "prior"):
            assert items_behind(one, scores).right.mean() == pytest.approx(one.estimate.value)


def test_a_finished_run_is_attacked_again_without_training(run: Path, tmp_path: Path) -> None:
    before = (run / "checkpoint.safetensors").stat().st_mtime_ns
    status, out, _ = fkgsec(
        "attack", "--run", run, "--threat", "identifiers", "--leak", "0.7", "--out", tmp_path / "again"
    )
    assert status == 0
    assert "by identifiers" in out
    assert "leak 0.7: share" in out
    found = read_record(tmp_path / "again" / "record.json").rebuilt
    assert {(one.threat_model, one.leak) for one in found} == {("identifiers", 0.7)}
    assert (run / "checkpoint.safetensors").stat().st_mtime_ns == before


def test_what_the_terminal_shows_fits_80_columns(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, _ = fkgsec("attack", "--run", run, "--details", "--out", tmp_path / "shown")
    assert status == 0
    rows = out[out.index("reconstruction, round") : out.index("reconstruction.err: ")].splitlines()
    assert all(len(line) <= 80 for line in rows)
    # Nothing is cut to fit: a wider terminal shows the same figures.
    monkeypatch.setenv("COLUMNS", "200")
    _, wide, _ = fkgsec("attack", "--run", run, "--details", "--out", tmp_path / "shown")
    figures = set(re.findall(r"[\d.]*\.\d+", " ".join(rows)))
    assert len(figures) > 20
    assert figures <= set(re.findall(r"[\d.]*\.\d+", wide))
    for word in ("reconstruction, round", "collusion 0.5", "hospital-2", "err", "trr", "Utility", "Cost", "bytes up"):
        assert word in out


def test_json_on_standard_output_is_nothing_but_the_record(tmp_path: Path) -> None:
    status, out, _ = fkgsec("train", "--algorithm", "fedr", *SMALL[:-4], "--json", "-", "--out", tmp_path / "run")
    assert status == 0
    assert json.loads(out)["spec"]["algorithm"] == "fedr"
    assert json.loads(out)["figures"] == []


def test_every_algorithm_of_this_version_and_nothing_to_attack_says_why(tmp_path: Path) -> None:
    for algorithm, reason in (
        ("single", "no embedding of this client was transmitted"),
        ("fedr", "only relation embeddings were transmitted"),
    ):
        status, out, _ = fkgsec("attack", "--target", algorithm, *SMALL, "--details", "--out", tmp_path / algorithm)
        assert status == 0
        assert reason in " ".join(out.split())
    status, _, err = fkgsec("attack", "--target", "collective", *SMALL, "--out", tmp_path / "collective")
    assert (status, err.splitlines()[-1]) == (
        2, "fkgsec: collective has no federation to attack: one party holds all triples",
    )  # fmt: skip


def test_own_files_end_to_end(tmp_path: Path) -> None:
    assert fkgsec("data", "generate", "--size", "400", "--clients", "2", "--out", tmp_path / "data")[0] == 0
    status, out, _ = fkgsec("data", "stats", "--data", tmp_path / "data")
    assert status == 0
    assert "hospital-1" in out
    status, _, err = fkgsec("train", "--data", tmp_path / "data", *SMALL[2:-4], "--out", tmp_path / "run", "--quiet")
    assert (status, err) == (0, "")


def test_data_list_names_the_catalogue() -> None:
    status, out, _ = fkgsec("data", "list")
    assert status == 0
    for name in ("FB15k-237", "WN18RR", "DDB14-Fed5", "FB15k-237-C3", "UMLS"):
        assert name in out


def test_data_stats_as_json() -> None:
    status, out, _ = fkgsec("data", "stats", "--size", "400", "--json", "-")
    assert status == 0
    assert {row["client"] for row in json.loads(out)["statistics"]} >= {"hospital-1", "union"}


COMMANDS = (
    "", "train", "attack", "compare", "unlearn", "verify", "check", "report", "results", "export", "audit", "data",
    "data list", "data stats", "data partition", "data generate", "data escrow",
    "experiment run", "experiment list", "experiment show",
)  # fmt: skip


@pytest.mark.parametrize("command", [command.split() for command in COMMANDS], ids=COMMANDS)
def test_every_command_has_help_with_an_example(command: list[str]) -> None:
    status, out, _ = fkgsec(*command, "--help")
    assert status == 0
    assert "Usage" in out
    if command not in ([], ["data"]):
        assert "Example" in out
        assert f"fkgsec {' '.join(command)}" in out


@pytest.mark.parametrize(
    ("command", "hidden"),
    [(command, "--num-negatives") for command in ("train", "attack", "compare", "tune")] + [("verify", "--shadows")],
)
def test_the_first_help_is_short_and_the_other_is_complete(command: str, hidden: str) -> None:
    """At 80 columns: at most 60 lines, 25 options and two examples; options outside of it stay usable."""
    short = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout
    full = CliRunner().invoke(app, [command, "--help-all"], env={"COLUMNS": "80"}).stdout
    assert len(short.splitlines()) <= 60
    assert max(map(len, short.splitlines())) <= 80
    names = [set(re.findall(r"^. [* ]*(--[a-z-]+)", short, flags=re.MULTILINE)), set(re.findall(r"--[a-z-]+", full))]
    assert len(names[0]) <= 25
    assert names[0] < names[1]
    assert hidden in names[1] - names[0]
    assert short.count(f"fkgsec {command} --") <= 2


def test_a_table_of_sites_is_understood_and_split(tmp_path: Path) -> None:
    """A user's CSV needs no option: its sites become clients, and each one's triples are divided for a test."""
    rows = [f"drug {n % 9},{('treats', 'causes')[n % 2]},gene {n % 31},{('north', 'south')[n % 2]}" for n in range(300)]
    (tmp_path / "own.csv").write_text("\n".join(["subject,predicate,object,site", *rows]))
    small = ["--dim", "4", "--rounds", "1", "--num-negatives", "2", "--device", "cpu", "--out", tmp_path / "run"]
    status, _, err = fkgsec("train", "--data", tmp_path / "own.csv", *small)
    assert status == 0
    lines = err.splitlines()
    assert lines[0].startswith("own: 2 clients (north ")
    assert "first triple: drug 0, treats, gene 0 (head, relation, tail)" in lines[2]
    assert "read subject as head, predicate as relation, object as tail, site as client" in err
    assert "each client's triples are split 8:1:1 at random" in err
    record = read_record(tmp_path / "run" / "record.json")
    assert record.data.clients.keys() == {"north", "south"}
    assert record.utility["mrr"].n > 0


def files(folder: Path, **contents: str | bytes) -> Path:
    for name in ("train", "valid", "test"):
        content = contents.get(name, "a\tr\tb\nb\tr\tc\nc\tr\ta\n")
        if content != "absent":
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


BAD_COMMANDS: list[tuple[list[str], str]] = [
    (["train", "--algorithm", "fedx"], "algorithm must be one of single, collective, fede, "),
    (["train", "--dim", "many"], "--dim must be a whole number"),
    (["train", "--dim", "1" * 22], "dim must lie in 1..1,000,000"),
    (["train", "--device", "cuda:7"], "device 'cuda:7' is not there"),
    (["train", "--data", "FB15k-238"], "FB15k-237"),
    (["train", "--clients", "1", "--size", "200"], "fede needs at least 2 clients"),
    (["train", "--partition", "triples"], "partition does not apply to the embedded consortium"),
    (["train", "--config", "/nonexistent/spec.yaml"], "cannot be read (No such file or directory)"),
    (["train", "--nonsense"], "No such option: --nonsense"),
    (["train", "--rouns", "3"], "No such option: --rouns; did you mean --rounds? See fkgsec train --help"),
    (["data", "stats", "--seed", "3"], "No such option: --seed; did you mean --split-seed?"),
    (["trian"], "No such command 'trian'; did you mean train? See fkgsec --help"),
    (["data", "lst"], "No such command 'lst'; did you mean list? See fkgsec data --help"),
    (["unlearn", "--run", "x"], "Missing option '--forget'. See fkgsec unlearn --help"),
    (["train", "--defense", "SecAg"], "one of psu, secagg, suppress, dp, robust; got 'SecAg'; did you mean secagg?"),
    (["train", "--seeds", "1"], "Invalid value for '--seeds'"),
    (["compare", "--case", "Fedd"], "case: 'Fedd' is not a defense either; algorithm must be one of single, "),
    (["compare", "--case", "fedavg+SecAgg"], "case: 'fedavg+SecAgg' is written fedavg/secagg: algorithm/defense,defense"),
    (["compare", "--case", "dp/fedr"], "case: 'dp/fedr' is written fedr/dp"),
    (["compare", "--case", "gcfl+ secagg"], "is written gcfl+/secagg"),
    (["compare", "--case", "psu+secagg"], "case: 'psu+secagg' is written psu,secagg"),
    (["compare", "--case", "fedr-psu+secagg:clip=8"], "is written fedr/psu,secagg:clip=8"),
    (["unlearn", "--run", "x", "--forget", "y", "--method", "fintune"], "got 'fintune'; did you mean finetune?"),
    (["attack", "--leak", "1.01"], "leak must lie in (0, 1]; got 1.01"),
    (["attack", "--run", "/nonexistent"], "not a run folder"),
    (["data", "generate", "--clients", "0", "--out", "/tmp/never"], "clients"),
    (["data", "partition", "--data", "Nations", "--partition", "halves", "--out", "/tmp/never"], "partition must be one of"),
    (["train", "--out", "/proc/none"], "cannot be made"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD_COMMANDS, ids=[" ".join(c[:3]) for c, _ in BAD_COMMANDS])
def test_bad_commands_say_so_in_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    status, _, err = fkgsec(*arguments)
    assert status == 2
    *before, line = err.splitlines()
    assert line.startswith("fkgsec: ")
    assert message in line
    assert all(one.startswith("warning: ") for one in before)


BAD_FILES: list[tuple[dict[str, str | bytes], str]] = [
    ({"train": "a\tr\n"}, "train.txt:1: expected 3 tab-separated fields, found 2"),
    ({"train": b"a\tr\tb\n\xff\xfe\tr\tb\n"}, "train.txt:2:"),
    ({"test": "absent"}, "test.txt"),
]


@pytest.mark.parametrize(("contents", "message"), BAD_FILES)
def test_bad_files_are_named_with_their_line(contents: dict[str, str | bytes], message: str, tmp_path: Path) -> None:
    status, _, err = fkgsec("train", "--data", files(tmp_path / "graph", **contents), "--out", tmp_path / "run")
    assert status == 2
    assert err.startswith("fkgsec: ")
    assert message in err
    assert not (tmp_path / "run").exists()


def test_an_unknown_colluder_names_those_there_are(run: Path) -> None:
    status, _, err = fkgsec("attack", "--run", run, "--colluder", "hospital-9")
    assert status == 2
    assert "colluder must be one of hospital-1, hospital-2, hospital-3; got 'hospital-9'" in err


def test_seeds_do_not_go_with_a_finished_run(run: Path) -> None:
    status, _, err = fkgsec("attack", "--run", run, "--seeds", "2")
    assert (status, err) == (2, "fkgsec: --run takes attack options only; leave out --seeds\n")


def test_papers_spellings_attack_a_finished_run(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    status, _, err = fkgsec(
        "attack",
        "--run",
        run,
        "--threat",
        "Identifiers",
        "--inference",
        "Cosine",
        "--unlinked-heads",
        "0",
        "--out",
        out,
    )
    assert (status, err) == (0, "")
    assert {one.threat_model for one in read_record(out / "record.json").rebuilt} == {"identifiers"}


def test_training_options_do_not_go_with_a_finished_run(run: Path) -> None:
    status, _, err = fkgsec("attack", "--run", run, "--dim", "4")
    assert (status, err) == (2, "fkgsec: --run takes attack options only; leave out dim\n")


def test_a_run_folder_of_other_options_is_left_alone(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    status, _, err = fkgsec("train", *SMALL[:-4], "--gamma", "3", "--out", run)
    assert status == 2
    assert "belongs to a run with other options or data" in err
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_damaged_record_and_missing_record(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        read_record(tmp_path / "record.json")
    (tmp_path / "record.json").write_text('{"schema": "fkgsec/record/1"')
    with pytest.raises(RunError, match="not a record of schema"):
        read_record(tmp_path / "record.json")


def test_internal_faults_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("fkgsec.experiments.cli.main.choose", broken)
    with pytest.raises(ZeroDivisionError):
        fkgsec("train")


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fkgsec.experiments.cli.main", "attack", "--target", "fede", "--size", "900", "--dim", "16",
               "--batch-size", "64", "--rounds", "12", "--eval-every", "3", "--checkpoint-every", "0", "--device", "cpu",
               "--unlinked-heads", "10", "--threat", "identifiers", "--out", str(folder), "--quiet"]  # fmt: skip
    root = Path(__file__).parents[3]
    return subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})


def rounds_done(folder: Path) -> int:
    try:
        # framework "pt" opens the file twice, and the run may put a new one in its place in between.
        with safe_open(folder / "checkpoint.safetensors", framework="numpy") as handle:
            return len(json.loads(handle.metadata()["progress"])["rounds"]) - 1
    except (OSError, SafetensorError):
        return 0


def without_clock(folder: Path) -> dict[str, object]:
    record = json.loads((folder / "record.json").read_text())
    record.pop("environment")
    record["origin"].pop("record")  # a digest of all words, seconds too; those of checkpoint and scores must be equal
    for entry in record["rounds"]:
        entry.pop("seconds")
    return record


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_record(tmp_path: Path) -> None:
    """kill -9 in the middle of a round, early and late; then the same command again. In process: `tests/contracts`."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait() == 0
    for wanted in (1, 4, 9):
        process = start(killed)
        while process.poll() is None and rounds_done(killed) < wanted:
            time.sleep(0.005)
        time.sleep(0.03)
        process.send_signal(signal.SIGKILL)
        status = process.wait()
        assert status in (-signal.SIGKILL, 0), f"exit status {status} on the way to round {wanted}"
        assert wanted <= rounds_done(killed) <= 12
    assert start(killed).wait() == 0
    assert without_clock(killed) == without_clock(whole)
    assert pd.read_parquet(killed / "scores.parquet").equals(pd.read_parquet(whole / "scores.parquet"))
    assert not list(killed.glob("*.part"))
