"""What is said and written of a federation of graph classifiers: not a word about triples."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.experiments.cli.main import app

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
