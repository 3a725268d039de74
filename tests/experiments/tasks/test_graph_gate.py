"""`fkgsec check` on federations of graph classifiers: their measures, and limits that are of the other task."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.gate.measures import MEASURES
from fkgsec.experiments.gate.policy import read_policy

SMALL = "{data: motifs, size: 120, clients: 3, algorithm: cefgl, width: 8, rounds: 2}"


def policy(folder: Path, limits: str, federations: str = f"  graphs: {SMALL}") -> Path:
    path = folder / "policy.yaml"
    path.write_text(f"federations:\n{federations}\nlimits:\n{limits}\n")
    return path


def test_a_policy_limits_accuracy_bytes_and_attacks_on_graphs(tmp_path: Path) -> None:
    path = policy(
        tmp_path,
        "  utility.accuracy: {min: 0.0001}\n  bytes.total: {max: 100 kB}\n"
        "  graph-membership.auc: {max: 0.99, threat: models}\n  no_worse_than: {baseline: BASE, by: 0.5}".replace(
            "BASE", str(tmp_path / "baseline.json")
        ),
    )
    command = ["check", str(path), "--runs", str(tmp_path / "runs"), "--update-baseline", "--inconclusive", "pass"]
    result = CliRunner().invoke(app, [*command, "--markdown", str(tmp_path / "check.md")])
    assert result.exit_code in (0, 3), result.output
    assert "utility.accuracy" in result.output
    assert "graph-membership.auc" in result.output
    assert "accuracy by client: molecules-1" in (tmp_path / "check.md").read_text()
    assert "graphs/graph-membership.auc/models/all" in (tmp_path / "baseline.json").read_text()


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        (
            "utility.mrr: {min: 0.1}",
            "is a measure of knowledge-graph embedding, but the algorithm of graphs, cefgl, class",
        ),
        ("membership.auc: {max: 0.9}", "is a measure of knowledge-graph embedding"),
        ("reconstruction.trr: {max: 0.9}", "is a measure of knowledge-graph embedding"),
        ("graph-membership.auc: {max: 0.9, leak: 0.5}", "unknown key"),
        ("graph-membership.auc: {max: 0.9, threat: identifiers}", "'identifiers' is unknown"),
        ("epsilon: {max: 8, forget: triples.txt}", "applies to triples; cefgl classifies graphs"),
    ],
)
def test_limits_of_the_other_task_are_refused_with_line_and_key(limits: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"policy.yaml:4: limits\.") as caught:
        read_policy(policy(tmp_path, f"  {limits}"))
    assert fault in str(caught.value)


def test_a_limit_without_a_federation_holds_for_those_of_its_task(tmp_path: Path) -> None:
    both = f"  graphs: {SMALL}\n  hospitals: {{rounds: 3}}"
    found = read_policy(policy(tmp_path, "  utility.mrr: {min: 0.1}\n  utility.accuracy: {min: 0.1}", both))
    assert [limit.id for limit in found.limits] == ["hospitals/utility.mrr", "graphs/utility.accuracy"]
    assert found.federations["graphs"].attack == ()
    assert MEASURES["utility.accuracy"].items == "test graphs"


@pytest.mark.slow
def test_a_first_policy_of_graphs_is_kept_by_the_runs_that_it_was_proposed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    init = CliRunner().invoke(app, ["check", "--init", "--data", "motifs", "--clients", "3", "--quiet"])
    assert init.exit_code == 0, init.output
    text = (tmp_path / "policy.yaml").read_text()
    assert "utility.accuracy: {min: 0." in text
    assert "graph-membership.auc" in text
    assert CliRunner().invoke(app, ["check", "--quiet"]).exit_code == 0
