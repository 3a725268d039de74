"""`fkgsec verify-run`, and what the gate and the report refuse: anything in a run's folder that is not as it was written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, safe_open
from typer.testing import CliRunner

from fkgsec.errors import RunError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.integrity.checks import check_folder, require_whole
from fkgsec.experiments.integrity.groups import check_seeds
from fkgsec.experiments.integrity.origin import seal_of
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.run import execute, reuse
from fkgsec.experiments.runs.seeds import record_of
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.federation import checkpoint
from fkgsec.federation.loop import CHECKPOINT
from fkgsec.protocols.noise.guarantee import Guarantee

TINY = {"size": 600, "clients": 2, "dim": 4, "rounds": 2, "num_negatives": 4, "unlinked_heads": 0, "device": "cpu"}
GRAPHS = {"algorithm": "cefgl", "clients": 2, "size": 80, "rounds": 2, "layers": 2, "width": 8, "device": "cpu"}
RESULTS = Path(__file__).parents[3] / "results"


def fkgsec(*arguments: str | Path) -> tuple[int, list[str], str]:
    done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    return done.exit_code, done.stdout.splitlines(), done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a further attack, beside another seed's."""
    home = tmp_path_factory.mktemp("made")
    for seed in (0, 1):
        spec = make_spec(None, TINY | {"seed": seed})
        execute(spec, spec.load_graph(), home / str(seed), attack=True)
    reuse(home / "0", {"threat": ("identifiers",)}, None)
    return home


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "0", tmp_path / "run")


def outcomes(folder: Path) -> dict[str, str]:
    return {check.what: check.outcome for check in check_folder(folder)}


WHOLE = dict.fromkeys(("record", "spec", "checkpoint", "rounds", "bytes", "scores", "files"), "holds")


def test_what_was_written_holds(run: Path) -> None:
    assert outcomes(run) == WHOLE
    (attack,) = (run / "attacks").iterdir()
    assert outcomes(attack) == WHOLE
    status, lines, errors = fkgsec("verify-run", run)
    assert (status, len(lines), errors) == (0, 2 * len(WHOLE), "")
    (run / "attacks").rename(run.parent / "attacks")
    status, lines, _ = fkgsec("verify-run", run, "--recompute")
    assert (status, lines[len(WHOLE) :]) == (0, [f"{run}: utility holds", f"{run}: attacks holds"])


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedlu",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedr", "feds", "pfedeg", "fede-kd")),
    ],
)
def test_what_is_left_to_the_algorithm_holds_too(algorithm: str, tmp_path: Path) -> None:
    """A record spells out what the run was not given, such as a temperature."""
    spec = make_spec(None, TINY | {"algorithm": algorithm})
    execute(spec, spec.load_graph(), tmp_path / "run", attack=False)
    assert set(outcomes(tmp_path / "run").values()) == {"holds"}


@pytest.mark.slow
def test_graphs_hold_too(tmp_path: Path) -> None:
    spec = make_spec(None, GRAPHS)
    execute(spec, spec.load_graph(), tmp_path / "run", attack=True)
    assert outcomes(tmp_path / "run") == WHOLE
    assert fkgsec("verify-run", tmp_path / "run", "--recompute", "--quiet") == (0, [], "")


def edited(path: Path, change: Callable[[dict[str, object]], None], *, sealed: bool = False) -> None:
    """A record changed by hand; `sealed`: by one who knows about its digest."""
    document = json.loads(path.read_text())
    change(document)
    if sealed:
        document["origin"]["record"] = seal_of(document)
    path.write_text(json.dumps(document))


def better(document: dict[str, object]) -> None:
    document["utility"]["mrr"] |= {"value": 0.9, "high": 0.95}  # type: ignore[index]


def no_leak(document: dict[str, object]) -> None:
    for figure in document["figures"]:  # type: ignore[attr-defined]
        if figure["metric"] == "err":
            figure["estimate"] |= {"value": 0.0, "low": 0.0}


def fewer_bytes(document: dict[str, object]) -> None:
    document["bytes"]["up"] -= 1  # type: ignore[index]
    document["bytes"]["up_by_round"][1] -= 1  # type: ignore[index]
    document["rounds"][1]["bytes_up"] -= 1  # type: ignore[index]


def other_round(document: dict[str, object]) -> None:
    document["rounds"][1]["loss"] = 0.5  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "sealed", "broken"),
    [
        (better, False, {"record"}),
        (no_leak, False, {"record", "scores"}),
        (no_leak, True, {"scores"}),
        (fewer_bytes, True, {"rounds", "bytes"}),
        (other_round, True, {"rounds"}),
    ],
)
def test_edited_records(change: Callable[[dict[str, object]], None], sealed: bool, broken: set[str], run: Path) -> None:
    edited(run / "record.json", change, sealed=sealed)
    assert {what for what, outcome in outcomes(run).items() if outcome == "broken"} == broken
    with pytest.raises(RunError):
        require_whole(run)


def test_another_machine_excuses_last_digits_alone(run: Path) -> None:
    """Who makes figures up can also say that he made them elsewhere; the cheap part does not see it."""

    def last_digits(document: dict[str, object]) -> None:
        document["environment"]["vector_level"] = "AVX512, sapphirerapids"  # type: ignore[index]
        document["utility"]["mrr"]["value"] += 1e-6  # type: ignore[index]

    shutil.rmtree(run / "attacks")
    edited(run / "record.json", last_digits, sealed=True)
    status, lines, _ = fkgsec("verify-run", run, "--recompute", "--quiet")
    assert (status, len(lines), "utility unverifiable" in lines[0]) == (3, 1, True)
    edited(run / "record.json", better, sealed=True)
    assert outcomes(run) == WHOLE
    status, lines, _ = fkgsec("verify-run", run, "--recompute", "--quiet")
    assert (status, len(lines), "utility broken" in lines[0]) == (1, 1, True)


def test_a_checkpoint_of_another_run_in_the_place_of_the_right_one(made: Path, run: Path) -> None:
    shutil.copy(made / "1" / CHECKPOINT, run / CHECKPOINT)
    assert outcomes(run)["checkpoint"] == "broken"


def test_a_checkpoint_with_other_tables_and_a_right_digest(run: Path) -> None:
    """What a vendor would put there to have no leakage: noise, written as checkpoints are."""
    with safe_open(run / CHECKPOINT, framework="pt") as handle:
        progress = msgspec.json.decode(handle.metadata()["progress"], type=checkpoint.Progress)
    noisy = {
        name: torch.randn_like(one) if one.is_floating_point() else one
        for name, one in load_file(run / CHECKPOINT).items()
    }
    checkpoint.save(run / CHECKPOINT, noisy, progress)
    assert outcomes(run)["checkpoint"] == "broken"
    spec = make_spec(None, TINY)
    with pytest.raises(RunError, match="was not computed from the checkpoint in its folder"):
        execute(spec, spec.load_graph(), run, attack=True)
    with pytest.raises(RunError, match="was not computed from the checkpoint in its folder"):
        reuse(run, {}, None)
    status, _, errors = fkgsec("report", run, "--out", run / "page.html")
    assert (status, "was not computed from" in errors) == (2, True)


def test_scores(run: Path) -> None:
    path = run / "scores.parquet"
    scores = pd.read_parquet(path)
    scores.assign(score=scores["score"] + 1).to_parquet(path, index=False)
    assert outcomes(run)["scores"] == "broken"
    path.unlink()
    assert outcomes(run)["scores"] == "broken"


MEMBERSHIP = TINY | {"attack": ("membership",), "threat": ("models",)}


def test_pictures_and_tables_of_another_run(made: Path, run: Path, tmp_path: Path) -> None:
    """The picture shows the figures, and the table the triples at risk: both are read by people."""
    shutil.copy(made / "1" / "picture.png", run / "picture.png")
    assert outcomes(run) == WHOLE | {"files": "broken"}
    with pytest.raises(RunError, match=r"picture\.png: was not written with its record"):
        require_whole(run)
    spec = make_spec(None, MEMBERSHIP)
    execute(spec, spec.load_graph(), tmp_path / "asked", attack=True)
    assert outcomes(tmp_path / "asked") == WHOLE
    for name in ("membership-risk.csv", "membership-roc.png"):
        path = tmp_path / "asked" / name
        whole = path.read_bytes()
        flipped(path)
        assert outcomes(tmp_path / "asked")["files"] == "broken"
        path.unlink()
        assert outcomes(tmp_path / "asked") == WHOLE | {"picture": "broken"}
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ('"err"', '"ers"'),
        ('"variant": "strongest"', '"6ariant": "strongest"'),
    ],
)
def test_a_damaged_word_of_a_figure_is_one_line(word: str, other: str, run: Path) -> None:
    content = (run / "record.json").read_text()
    assert word in content
    (run / "record.json").write_text(content.replace(word, other))
    status, _, errors = fkgsec("verify-run", run, "--quiet")
    assert (status, "Traceback" in errors) == (1, False)


def test_records_of_before_are_unverifiable_not_broken(run: Path, tmp_path: Path) -> None:
    edited(run / "record.json", lambda document: document.pop("origin"))
    unknown = dict.fromkeys(("record", "checkpoint", "files"), "unverifiable")
    assert outcomes(run) == WHOLE | unknown
    assert fkgsec("verify-run", run, "--quiet")[0] == 3
    require_whole(run)
    (tmp_path / "old").mkdir()
    shutil.copy(RESULTS / "ddb14-fed5-fedr.json", tmp_path / "old" / "record.json")
    assert "broken" not in {check.outcome for check in check_folder(tmp_path / "old") if check.what != "picture"}


def test_a_missing_picture_or_run(run: Path, tmp_path: Path) -> None:
    (run / "picture.png").unlink()
    assert outcomes(run)["picture"] == "broken"
    require_whole(run)
    (tmp_path / "empty").mkdir()
    for place, says in ((tmp_path / "empty", "contains no record.json"), (tmp_path / "none", "does not exist")):
        status, _, errors = fkgsec("verify-run", place)
        assert (status, says in errors) == (2, True)


@pytest.mark.parametrize("name", ["seeds", "runs", "environment", "guarantees", "data"])
def test_every_word_over_seeds_is_that_of_its_runs(name: str, tmp_path: Path, made: Path) -> None:
    for seed in (0, 1):
        shutil.copytree(made / str(seed), tmp_path / f"seed-{seed}")
    records = [read_record(tmp_path / f"seed-{seed}" / "record.json") for seed in (0, 1)]
    path = tmp_path / "seeds.json"
    path.write_bytes(encode_stored(record_of(records)))
    assert [one.outcome for one in check_seeds(path)] == ["holds"]
    document = json.loads(path.read_text())
    said: dict[str, object] = {"seeds": [0, 2], "runs": ["seed-0", "../" + tmp_path.name + "/seed-1"], "guarantees": {}}
    said["environment"] = document["environment"] | {"commit": "0" * 40}
    said["data"] = document["data"] | {"hash": "0" * 64}
    if name == "guarantees":
        one = Guarantee(1.0, 1e-5, "row", "one replaced", "none", 2, None, "rdp")
        said["guarantees"] = msgspec.to_builtins({"entities": one})
    path.write_text(json.dumps(document | {name: said[name]}))
    (found,) = check_seeds(path)
    assert (found.outcome, name in found.why) == ("broken", True)


def test_an_attack_over_seeds_is_that_of_its_attacks(tmp_path: Path, made: Path) -> None:
    for seed in (0, 1):
        shutil.copytree(made / str(seed), tmp_path / f"seed-{seed}")
        reuse(tmp_path / f"seed-{seed}", {"threat": ("identifiers",)}, None)
    attacks = [sorted(tmp_path.glob(f"seed-{seed}/attacks/*/record.json")) for seed in (0, 1)]
    assert [len(found) for found in attacks] == [1, 1]
    path = tmp_path / "seeds.json"
    path.write_bytes(encode_stored(record_of([read_record(found[0]) for found in attacks])))
    assert [one.why for one in check_seeds(path)] == [""]
    shutil.rmtree(attacks[1][0].parent)
    (found,) = check_seeds(path)
    assert (found.outcome, "figures" in found.why) == ("broken", True)
    for seed in (0, 1):
        (tmp_path / f"seed-{seed}" / "record.json").unlink()
    assert [one.outcome for one in check_seeds(path)] == ["broken"]


@pytest.mark.slow
def test_several_seeds_and_comparisons(tmp_path: Path) -> None:
    small = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items() if name != "unlinked_heads"]
    assert fkgsec("train", *small, "--seeds", "2", "--out", tmp_path / "seeds", "--quiet")[0] == 0
    cases = ["--case", "none", "--case", "secagg", "--unlinked-heads", "0"]
    assert fkgsec("compare", *small, *cases, "--out", tmp_path / "cases", "--quiet")[0] == 0
    status, lines, _ = fkgsec("verify-run", tmp_path)
    assert (status, len(lines)) == (0, 2 * len(WHOLE) * 2 + 2 + 1)
    edited(tmp_path / "seeds" / "seeds.json", lambda one: one["figures"]["utility.mrr"]["values"].__setitem__(0, 0.0))  # type: ignore[index]
    edited(tmp_path / "cases" / "comparison.json", lambda one: better(one["cases"][1]["record"]))  # type: ignore[index]
    status, lines, _ = fkgsec("verify-run", tmp_path, "--quiet")
    assert (status, len(lines)) == (1, 2)


def test_a_run_that_was_made_again_has_the_same_fingerprint(made: Path, tmp_path: Path) -> None:
    spec = make_spec(None, TINY)
    execute(spec, spec.load_graph(), tmp_path, attack=False)
    origins = [read_record(folder / "record.json").origin for folder in (made / "0", tmp_path)]
    assert origins[0].checkpoint == origins[1].checkpoint  # type: ignore[union-attr]


INCONCLUSIVE = 3
POLICY = """
federations:
  one: {data: consortium, size: 600, clients: 2, dim: 4, rounds: 2, num_negatives: 4, unlinked_heads: 0, device: cpu}
limits:
  reconstruction.err: {max: 0.99, threat: collusion, leak: 0.5}
"""


def flipped(path: Path) -> None:
    content = path.read_bytes()
    place = len(content) // 2
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


@pytest.mark.parametrize("other", ["gate", "report"])
def test_the_gate_and_the_report_refuse_a_run_that_was_tampered_with(other: str, tmp_path: Path, made: Path) -> None:
    """Whatever was changed in a run that either reads: its tables or messages, its figures, its scores."""
    if other == "gate":
        (tmp_path / "policy.yaml").write_text(POLICY)
        command = ["check", tmp_path / "policy.yaml", "--runs", tmp_path / "runs", "--quiet"]
        assert fkgsec(*command)[0] == INCONCLUSIVE
        (folder,) = (one for one in (tmp_path / "runs").iterdir() if one.is_dir())
    else:
        folder = shutil.copytree(made / "0", tmp_path / "run")
        command = ["report", folder, "--out", tmp_path / "page.html", "--overwrite"]
        assert fkgsec(*command)[0] == (INCONCLUSIVE if other == "gate" else 0)
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def scores_swapped() -> None:
        """Right and wrong exchanged, so that the share is another."""
        scores = pd.read_parquet(folder / "scores.parquet")
        scores.assign(right=~scores["right"]).to_parquet(folder / "scores.parquet", index=False)

    def no_leak_sealed() -> None:
        edited(folder / "record.json", no_leak, sealed=True)

    changes: tuple[tuple[Callable[[], None], str], ...] = (
        (lambda: flipped(folder / CHECKPOINT), "damaged: its content is not what was written"),
        (lambda: edited(folder / "record.json", no_leak), "its content has changed since it was written"),
        (no_leak_sealed, "not the scores of its record"),
        (scores_swapped, "not the scores of its record, or damaged"),
        (lambda: (folder / "scores.parquet").unlink(), "missing"),
        (
            lambda: shutil.copy(made / "1" / CHECKPOINT, folder / CHECKPOINT),
            "belongs to a run with other options or data",
        ),
    )
    for change, says in changes:
        change()
        status, _, errors = fkgsec(*command)
        assert (status, says in errors, "verify-run" in errors) == (2, True, True), errors
        for path, content in whole.items():
            path.write_bytes(content)
    assert fkgsec(*command)[0] == (INCONCLUSIVE if other == "gate" else 0)
