"""`fkgsec check --init`: limits that the defended federation keeps and that break when its defense is taken out."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate, exact, proportion
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.gate import first_policy, measures
from fkgsec.experiments.gate.first_policy import _gain_line, _membership_line, _summary, limit_between, separate
from fkgsec.experiments.gate.measures import Question
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.run import Finished
from fkgsec.experiments.tasks.task import task_named

DEFENSE = "    defense: psu,secagg"


class Proposed(NamedTuple):
    """A proposed policy, and its verdicts with the line `defense:` and without it."""

    text: str
    limits: dict[str, Any]
    statuses: tuple[int, int]
    kept: list[dict[str, Any]]
    bare: list[dict[str, Any]]


def propose(folder: Path, *arguments: str) -> Proposed:
    """Run `fkgsec check --init` in a folder, then the policy as it is and without its defense."""

    def check(*words: str) -> tuple[int, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            result = CliRunner().invoke(app, ["check", *words], catch_exceptions=False)
        return result.exit_code, result.stdout

    status, out = check("--init", "--quiet", *arguments)
    assert (status, out) == (0, "Written to policy.yaml. Next: fkgsec check policy.yaml\n")
    text = (folder / "policy.yaml").read_text()
    lines = text.splitlines(keepends=True)
    assert sum(line.startswith(DEFENSE) for line in lines) == 1
    (folder / "bare.yaml").write_text("".join(line for line in lines if not line.startswith(DEFENSE)))

    def made() -> set[Path]:
        return {one for one in (folder / "runs" / "check").iterdir() if one.is_dir()}

    runs = made()
    (kept, kept_out), (bare, bare_out) = (check(name, "--json", "-") for name in ("policy.yaml", "bare.yaml"))
    assert made() == runs  # both runs are there already
    verdicts = [json.loads(out)["verdicts"] for out in (kept_out, bare_out)]
    return Proposed(text, yaml.safe_load(text)["limits"], (kept, bare), *verdicts)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_named("kge")
    first = task.first_policy._replace(settings={**task.first_policy.settings, "rounds": 2, "dim": 8})
    monkeypatch.setattr("fkgsec.experiments.tasks.kge.TASK", replace(task, first_policy=first))


def write_triples(folder: Path) -> None:
    """A dense graph: every client holds every entity, as in UMLS and Nations."""
    rng = np.random.default_rng(0)
    rows = {f"e{head}\tr{relation}\te{tail}" for head, relation, tail in rng.integers(0, [60, 6, 60], size=(1200, 3))}
    (folder / "our triples.tsv").write_text("\n".join(["head\trelation\ttail", *sorted(rows)]) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["triples", "relations"])
def test_the_proposed_policy_fails_without_the_defense(partition: str, tmp_path: Path, quick: None) -> None:
    write_triples(tmp_path)
    found = propose(tmp_path, "--data", "our triples.tsv", "--partition", partition)
    assert found.statuses == (0, 1)
    broken = {one["id"].partition("/")[2] for one in found.bare if one["status"] == "fail"}
    limited = {one["id"].partition("/")[2] for one in found.bare if one["rule"].startswith("reconstruction.")}
    assert broken == limited != set()
    for name in broken:
        measure, threat, leak, _ = name.split("/")
        assert f"{measure} under {threat}, leak {leak}" in found.text  # the head says which notice
    assert f"partition: {partition}" in found.text
    for one in found.kept:
        assert one["attainable"] is None or one["allowed"] < one["attainable"]


def run_of(figures: dict[str, Estimate], guess: float = 0.1) -> Finished:
    """A run with these figures of ERR and TRR under collusion."""
    record = read_record(Path(__file__).parents[3] / "results/fb15k237-c3-fede.json")
    made = []
    for one in [one for one in record.rebuilt if one.victim == ALL][:2]:
        found = figures.get(one.metric, one.estimate)
        changes = {"estimate": found, "baseline": exact(guess, found.n), "guesses": {}}
        made.append(
            msgspec.structs.replace(one, threat_model="collusion", leak=0.5, colluder="a", variant="cosine", **changes)
        )
    return Finished(msgspec.structs.replace(record, figures=made), pd.DataFrame(), Path())


CANDIDATES = [(f"reconstruction.{name}", Question("collusion", 0.5)) for name in ("trr", "err")]


def test_only_what_differs_gets_a_limit() -> None:
    defended = run_of({"trr": proportion(100, 1000), "err": proportion(500, 1000)})
    bare = run_of({"trr": proportion(400, 1000), "err": proportion(500, 1000)})
    trr, err = separate(defended, bare, CANDIDATES)
    assert trr.limit is not None
    assert proportion(100, 1000).high < trr.limit < proportion(400, 1000).low
    assert err.limit is None
    assert "does not separate the runs: 0.5000 [" in err.why
    assert "reconstruction.trr under collusion, leak 0.5" in _summary([trr, err])


def test_a_policy_in_which_nothing_notices_says_so() -> None:
    same = run_of({"trr": proportion(400, 1000), "err": proportion(500, 1000)})
    found = separate(same, same, CANDIDATES)
    assert all(one.limit is None for one in found)
    assert "NO LEAKAGE LIMIT SEPARATES" in _summary(found)
    missing = separate(same, same._replace(record=msgspec.structs.replace(same.record, figures=[])), CANDIDATES)
    assert "not measured without it: no attack that measures" in missing[0].why


@pytest.mark.parametrize(
    ("passes", "fails", "expected"), [(0.12, 0.5, 0.18), (0.12, 0.2, 0.16), (0.12, 0.125, None), (0.5, 0.2, None)]
)
def test_where_a_limit_lies(passes: float, fails: float, expected: float | None) -> None:
    assert limit_between(Estimate(0.1, 0.08, 0.12, 100, "wilson"), passes, fails) == expected


def test_a_guess_that_passes_the_limit_is_no_room() -> None:
    """A limit below what the same adversary guesses would fail with the defense too."""
    defended = run_of({"trr": proportion(10, 1000), "err": proportion(10, 1000)}, guess=0.5)
    bare = run_of({"trr": proportion(400, 1000), "err": proportion(400, 1000)}, guess=0.5)
    assert all(one.limit is None for one in separate(defended, bare, CANDIDATES))


@pytest.mark.parametrize(("right", "limited"), [(500, True), (700, False)])
def test_no_membership_limit_endorses_what_leaks(right: int, limited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = proportion(right, 1000)
    known = first_policy.MEASURES["membership.auc"]
    monkeypatch.setitem(measures._OWN, "membership.auc", replace(known, read=lambda run, question: figure))
    line = _membership_line(run_of({}))
    assert line.lstrip().startswith("#") is not limited
    assert f"measured {figure}, where 0.5 is chance" in line


@pytest.mark.parametrize(
    ("gain", "line"),
    [
        (Estimate(0.08, 0.07, 0.09, 500, "normal, paired"), "  gain_over_single: {min: 0.04}  # measured 0.0800"),
        (Estimate(0.02, 0.01, 0.03, 500, "normal, paired"), "  gain_over_single: {min: 0}  # measured 0.0200"),
        (
            Estimate(0.02, -0.01, 0.05, 500, "normal, paired"),
            "  # gain_over_single: measured 0.0200 [-0.0100, 0.0500]: no",
        ),
        (Estimate(-0.02, -0.03, -0.01, 500, "normal, paired"), "  # gain_over_single: measured -0.0200 "),
    ],
)
def test_a_gain_gets_a_limit_only_where_joining_pays(
    gain: Estimate, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = first_policy.MEASURES["gain_over_single"]
    monkeypatch.setitem(measures._OWN, "gain_over_single", replace(known, read=lambda run, question: gain))
    assert _gain_line(run_of({})).startswith(line)


REAL = {  # the embedded hospitals: `test_ci_examples.py`
    "UMLS by relations": ["--data", "UMLS", "--partition", "relations"],
    "Nations by triples": ["--data", "Nations", "--partition", "triples"],
}


@pytest.mark.slow
@pytest.mark.parametrize("arguments", REAL.values(), ids=REAL)
def test_published_graphs(arguments: list[str], tmp_path: Path) -> None:
    """The command as it is; `-s` prints the verdicts."""
    if not (Path(os.environ.get("FKGSEC_DATA", "/nowhere")) / arguments[1]).exists():
        pytest.skip(f"{arguments[1]} is not there; set FKGSEC_DATA")
    found = propose(tmp_path, *arguments)
    for one in found.bare:
        figure = one["measured"]
        print(
            one["id"], one["status"], one["allowed"], figure["low"], figure["value"], figure["high"], one["attainable"]
        )
    assert found.statuses == (0, 1)
    assert all(one["status"] == "fail" for one in found.bare if one["rule"].startswith("reconstruction."))
    assert "membership.auc" not in found.limits
