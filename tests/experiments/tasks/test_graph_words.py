"""What is said and written of a federation of graph classifiers: not a word about triples; and a kill that loses nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import SafetensorError, safe_open
from typer.testing import CliRunner

from fkgsec.experiments.cli.main import app
from fkgsec.federation.loop import CHECKPOINT

SMALL = ["--size", "120", "--clients", "3", "--width", "8", "--rounds", "2", "--device", "cpu"]
OF_KNOWLEDGE_GRAPHS = re.compile(
    r"triple|entit(?:y|ies)|relation|\bmrr|\berr\b|\btrr\b|hits@|leak ratio|embedding", re.IGNORECASE
)
POLICY = """
federations: {graphs: {data: motifs, size: 120, clients: 3, algorithm: cefgl, width: 8, rounds: 2}}
limits:
  utility.accuracy: {min: 0.01}
  graph-membership.auc: {max: 0.9}
  bytes.total: {max: 1 MB}
"""


def call(*arguments: str | Path, statuses: tuple[int, ...] = (0,)) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "120"})
    assert result.exit_code in statuses, result.output
    return result.output


def found_words(said: dict[str, str], folder: Path) -> dict[str, str]:
    """Where words of knowledge graphs stand in what was said and in every file that can be read."""
    files = [path for path in folder.rglob("*") if path.suffix in (".json", ".md", ".html", ".csv")]
    said = said | {str(path.relative_to(folder)): path.read_text() for path in files}
    return {
        name: text[max(0, word.start() - 60) : word.end() + 60]
        for name, text in said.items()
        if (word := OF_KNOWLEDGE_GRAPHS.search(text))
    }


def test_a_run_and_its_report_say_nothing_of_triples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = {
        "attack": call("attack", "--target", "fedavg", *SMALL, "--threat", "models", "--out", "run"),
        "report": call("report", "run", "--out", "report.html"),
        "results": call("results", "run", "--csv", "runs.csv"),
    }
    assert found_words(said, tmp_path) == {}
    assert "test accuracy" in said["attack"]
    page = Path("report.html").read_text()
    assert "federated graph classification" in page
    assert "Risk by relation" not in page
    assert all(name in page for name in ("fedavg", "molecules-1", "graph-membership"))
    assert (tmp_path / "run" / "record.json").exists()


@pytest.mark.slow
def test_comparisons_and_verdicts_say_nothing_of_triples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)
    said = {
        "attack": call("attack", "--target", "cefgl", *SMALL, "--out", "runs/cefgl"),
        "attack --run": call("attack", "--run", "runs/cefgl", "--threat", "models"),
        "compare": call(
            "compare", "--case", "fedavg", "--case", "fedstar", "--case", "secagg", *SMALL, "--out", "runs/all"
        ),
        "check": call("check", "--runs", "runs/check", "--markdown", "check.md", "--json", "-", statuses=(0, 1, 3)),
        "report": call("report", "runs/cefgl", "runs/all", "--out", "report.html"),
        "stats": call("data", "stats", "--data", "motifs", "--size", "120", "--clients", "3"),
    }
    assert found_words(said, tmp_path) == {}
    assert "graph-membership" in said["compare"]
    page = Path("report.html").read_text()
    assert all(
        name in page for name in ("cefgl", "fedstar", "molecules-1", "graph-membership", "Was a graph trained on?")
    )


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fkgsec.experiments.cli.main", "attack", "--target", "cefgl", "--size", "300", "--width",
               "16", "--rounds", "40", "--checkpoint-every", "0", "--device", "cpu", "--out", str(folder), "--quiet"]  # fmt: skip
    root = Path(__file__).parents[3]
    return subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})


def without_clock(folder: Path) -> dict[str, object]:
    record = json.loads((folder / "record.json").read_text())
    record.pop("environment")
    record["origin"].pop("record")  # a digest of all words, seconds too; those of checkpoint and scores must be equal
    for entry in record["rounds"]:
        entry.pop("seconds")
    return record


def rounds_done(folder: Path) -> int:
    try:
        # framework "pt" opens the file twice, and the run may put a new one in its place in between.
        with safe_open(folder / CHECKPOINT, framework="numpy") as handle:
            return len(json.loads(handle.metadata()["progress"])["rounds"]) - 1
    except (OSError, SafetensorError):
        return 0


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_record(tmp_path: Path) -> None:
    """kill -9 in the middle of a round, early and late; then the same command again."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait() == 0
    kills = 0
    for wanted in (1, 9, 25):
        process = start(killed)
        while process.poll() is None and rounds_done(killed) < wanted:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        assert wanted <= rounds_done(killed) <= 40
    assert kills >= 2  # the last may have come too late
    assert start(killed).wait() == 0
    assert without_clock(killed) == without_clock(whole)
    assert not list(killed.glob("*.part"))
