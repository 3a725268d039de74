"""A limit on all clients does not pass where some of them were not measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.formats.folders import write_client_folders
from fkgsec.experiments.cli.main import app

POLICY = """\
federations:
  f: {data: data, dim: 8, batch_size: 64, num_negatives: 8, rounds: 1, eval_every: 1, unlinked_heads: 0}
limits:
  membership.auc: {max: 0.99}
"""


def test_membership_of_all_takes_every_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three hospitals have no test triples, so that nothing is known of theirs; it passed by the third alone."""
    graph = generate_consortium(clients=3, size=600, seed=0)
    clients = [
        client if place == 0 else replace(client, test=client.test[:0]) for place, client in enumerate(graph.clients)
    ]
    write_client_folders(replace(graph, clients=tuple(clients)), tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)
    done = CliRunner().invoke(app, ["check", "--json", "-"], catch_exceptions=False)
    assert done.exit_code == 1, done.stderr
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert verdict["status"] == "fail"
    assert verdict["message"].startswith(
        "not measured, so it cannot pass: 2 of 3 clients have too few training triples"
    )
    assert "(hospital-2, hospital-3)" in verdict["message"]
    Path("policy.yaml").write_text(POLICY.replace("max: 0.99", "max: 0.99, victim: hospital-1"))
    done = CliRunner().invoke(app, ["check", "--json", "-"], catch_exceptions=False)
    assert json.loads(done.stdout)["verdicts"][0]["measured"] is not None


def test_what_a_client_says_of_others_triples_measures_none_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All hold the same names, so that each model can be asked of the first client's triples; that was taken for its own."""
    graph = generate_consortium(clients=2, size=900, seed=0)
    client = graph.clients[0]
    lines = [
        f"{graph.entities[h]}\t{graph.relations[r]}\t{graph.entities[t]}\n"
        for h, r, t in client.to_global(client.train)
    ]
    for place, name in enumerate("abc"):
        (tmp_path / "data" / name).mkdir(parents=True)
        parts = {"train": lines[place::3][10:], "valid": [], "test": lines[place::3][:10] if place == 0 else []}
        for split, part in parts.items():
            (tmp_path / "data" / name / f"{split}.txt").write_text("".join(part))
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)
    done = CliRunner().invoke(app, ["check", "--json", "-"], catch_exceptions=False)
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert (done.exit_code, verdict["status"]) == (1, "fail"), verdict["message"]
