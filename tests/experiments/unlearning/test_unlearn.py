"""Unlearning on disk, the rule of the verdict, and the certificate."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import time
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import typer
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.stats import norm
from typer.testing import CliRunner

from fkgsec.attacks.forgetting.evaluation import OTHERS, Membership
from fkgsec.attacks.forgetting.evidence import Evidence, ModelEvidence, PairedTest, PlantedShare, UtilityChange
from fkgsec.attacks.forgetting.paired import Sensitivity
from fkgsec.attacks.membership.audits import Attack, to_local
from fkgsec.attacks.membership.figures import compare_auc, measure_membership
from fkgsec.data.escrow import Escrow
from fkgsec.errors import DataError, RunError, SpecError
from fkgsec.estimate import Estimate
from fkgsec.experiments.cli.console import expected_errors
from fkgsec.experiments.runs.run import execute, load_run
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.unlearning import unlearn as storage
from fkgsec.experiments.unlearning.certificate import sheets, to_html, to_markdown
from fkgsec.experiments.unlearning.cli import unlearn, verify
from fkgsec.experiments.unlearning.options import AuditOptions, Thresholds
from fkgsec.experiments.unlearning.power import forecast_lines, forecast_verdict
from fkgsec.experiments.unlearning.unlearn import (
    UNLEARNED_FILE,
    UNLEARNING_FILE,
    read_unlearned,
    unlearn_run,
)
from fkgsec.experiments.unlearning.verdict import judge, widened
from fkgsec.experiments.unlearning.verification import (
    Auditor,
    Verification,
    audit_seed_of,
    copies_elsewhere,
    request_digest,
)
from fkgsec.experiments.unlearning.verification import verify as verify_run
from fkgsec.federation import checkpoint
from fkgsec.federation import result as results
from fkgsec.federation.loop import CHECKPOINT, run_identity
from fkgsec.federation.messages import Rows, Transcript, encode
from fkgsec.kge.models import ClientTables
from fkgsec.kge.result import KgeResult
from fkgsec.unlearning.forget_sets import read_forget
from fkgsec.unlearning.unlearning import UnlearnOptions
from fkgsec.unlearning.unlearning import unlearn as unlearn_result

SPEC = Spec(
    algorithm="fedlu", size=600, seed=1, dim=8, gamma=4.0, rounds=4, local_epochs=2, eval_every=4, batch_size=64,
    num_negatives=8, learning_rate=0.02, device="cpu",
)  # fmt: skip
app = typer.Typer()
app.command()(expected_errors(unlearn))
app.command()(expected_errors(verify))


# The rule.


def measure(
    unlearned: float,
    retrained: float = 0.0,
    *,
    raw: float | None = 2.0,
    attack: Attack = "loss",
    n: int = 1500,
    client: str = "a",
    asked: bool = True,
    decisive: bool = True,
    seed: int = 0,
) -> Membership:
    """A measure whose forgotten triples score so many deviations above the controls, in each model."""
    rng = np.random.default_rng(seed)
    forgotten = np.arange(2 * n) < n
    noise = rng.normal(size=2 * n)
    statistics = {"unlearned": noise + unlearned * forgotten, "retrained": noise + retrained * forgotten}
    if raw is not None:
        statistics["raw"] = noise + raw * forgotten
    figures = {
        role: measure_membership(values, forgotten, attack=attack, control="held_out", rng=np.random.default_rng(1))
        for role, values in statistics.items()
    }
    excess = compare_auc(statistics["unlearned"], statistics["retrained"], forgotten)
    return Membership(client, asked, "local", attack, figures, excess, decisive=decisive)  # type: ignore[arg-type]


TELLS = Sensitivity(told_apart_from=0.05, honest_passes_from=0.08, rejected_from=0.1)


def clean(measures: list[Membership], **changes: object) -> Evidence:
    """Evidence of a perfect re-training, but for what is changed of the model that asked."""
    tests = [PairedTest("likelihood", Estimate(0.0, -0.1, 0.1, 600, "m"), 0.9)]
    model = ModelEvidence(
        "a", True, "local", tests, Estimate(0.01, -0.05, 0.07, 600, "m"), "likelihood",
        planted=[PlantedShare(0.2, Estimate(0.21, 0.15, 0.27, 600, "m"), 1e-5)],
        at_random=TELLS, hidden=Estimate(0.03, 0.01, 0.05, 600, "m"), hiding=TELLS,
    )  # fmt: skip
    change = UtilityChange("a", "local", Estimate(0.0, -0.01, 0.01, 400, "m"), 0.2, 0.8)
    return Evidence([msgspec.structs.replace(model, **changes)] if measures else [], [change], 4, 4)


TOLD = [PairedTest("relearned", Estimate(0.2, 0.1, 0.3, 600, "m"), 1e-6)]


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        (
            {},
            "forgotten",
            "remembers at most 7% of the forget set (95.0% interval). Kept at random: 5% or more is told apart from "
            "honest re-training, "
            "which passes from a tolerance of 8.0% on",
        ),
        ({"tests": TOLD}, "not forgotten", "differs from a re-trained model on the forgotten triples: relearned +0.2"),
        (
            {"tests": [msgspec.structs.replace(TOLD[0], p_value=p) for p in [0.5] * 30 + [0.003]]},
            "inconclusive",
            "may differ from a re-trained model on the forgotten triples: relearned +0.2 MRR (p 0.003)",
        ),
        (
            {"hidden": None},
            "inconclusive",
            "what a local remembers if all other triples were lowered to hide it cannot",
        ),
        (
            {},
            "forgotten",
            "if all others were lowered to compensate, a local remembers at most 5% in full (95.0% interval). Weaker memory "
            "that is hidden "
            "from means and distributions: 5% or more is told apart from honest re-training, which passes from a tolerance of "
            "8.0% on; smaller shares may pass",
        ),
        (
            {"hiding": msgspec.structs.replace(TELLS, rejected_from=0.15)},
            "inconclusive",
            "too weak for a local: it may miss shares of less than 15% hidden from means and distributions, and 10% is tolerated",
        ),
        ({"hiding": None}, "inconclusive", "it may miss any share hidden from means and distributions"),
        (
            {"hidden": Estimate(0.09, 0.05, 0.13, 600, "m")},
            "inconclusive",
            "may remember up to 13.0% of the forget set if all other triples were lowered to hide it",
        ),
        ({"share": Estimate(0.05, -0.02, 0.12, 9, "m")}, "inconclusive", "may remember up to 12.0% of the forget set"),
        ({"asked": False, "share": Estimate(0.1, 0.0, 0.2, 9, "m")}, "forgotten", "none is told apart"),
        (
            {"asked": False, "share": Estimate(0.2, 0.1, 0.3, 9, "m")},
            "inconclusive",
            "may remember up to 30% of what they can express of the forget set; 25% is tolerated of them",
        ),
        (
            {"asked": False, "share": Estimate(0.1, -0.1, 0.3, 9, "m")},
            "forgotten",
            "nothing bounds what other clients remember: the share that a local may remember cannot be measured",
        ),
        ({"share": None}, "inconclusive", "may remember cannot be measured: its interval has no upper end below 100%"),
        ({"share": None, "reading": ""}, "inconclusive", "cannot be measured: models that were trained on the triples"),
        ({"at_random": None}, "inconclusive", "too weak for a local: it may miss any share left in at random"),
        (
            {"at_random": msgspec.structs.replace(TELLS, told_apart_from=None)},
            "inconclusive",
            "too weak for a local: it tells no share left in at random apart from honest re-training",
        ),
        (
            {"at_random": msgspec.structs.replace(TELLS, rejected_from=0.15)},
            "inconclusive",
            "it may miss shares of less than 15% left in at random, and 10% is tolerated",
        ),
        (
            {"planted": [PlantedShare(0.2, Estimate(0.0, -0.1, 0.09, 9, "m"), 0.5)]},
            "inconclusive",
            "it accepted a run with 20% left in as forgotten",
        ),
    ],
)
def test_evidence_decides(changes: dict[str, object], outcome: str, reason: str) -> None:
    measures = [measure(0.0)]
    verdict = judge(measures, Thresholds(), clean(measures, **changes))
    assert verdict.outcome == outcome
    assert any(reason in line for line in verdict.reasons), verdict.reasons


@pytest.mark.parametrize(
    ("difference", "p_value", "outcome"),
    [(0.05, 1e-4, "inconclusive"), (0.05, 0.2, "forgotten"), (-0.05, 1e-4, "inconclusive"), (-0.01, 1e-4, "forgotten")],
)
def test_test_mrr_is_an_alarm_of_its_own(difference: float, p_value: float, outcome: str) -> None:
    measures = [measure(0.0)]
    change = UtilityChange(
        "a", "local", Estimate(difference, difference - 0.01, difference + 0.01, 400, "m"), 0.2, p_value
    )
    verdict = judge(measures, Thresholds(), msgspec.structs.replace(clean(measures), test=[change]))
    assert verdict.outcome == outcome
    assert ("test MRR of a local" in " ".join(verdict.reasons)) == (outcome == "inconclusive")


@pytest.mark.parametrize(("num_models", "outcome"), [(1, "inconclusive"), (2, "forgotten")])
def test_alarms_of_test_mrr_share_one_chance(num_models: int, outcome: str) -> None:
    """p = 0.6 of the error is an alarm of one model. Of two models, each has half of the error."""
    measures, thresholds = [measure(0.0)], Thresholds()
    high = UtilityChange("a", "local", Estimate(0.05, 0.04, 0.06, 400, "m"), 0.2, 0.6 * thresholds.error)
    changes = [high, msgspec.structs.replace(high, model="global", p_value=0.8)][:num_models]
    verdict = judge(measures, thresholds, msgspec.structs.replace(clean(measures), test=changes))
    assert verdict.outcome == outcome


def test_without_re_trainings_of_its_own_an_audit_never_says_forgotten() -> None:
    verdict = judge([measure(0.0), measure(0.1, seed=1)], Thresholds(), None)
    assert (verdict.outcome, verdict.exit_status) == ("inconclusive", 3)
    assert "the party that unlearned may have supplied the reference" in verdict.reasons[0]


UNMEASURED = Membership("b", True, "local", "loss", {}, None, "0 controls")


@pytest.mark.parametrize(
    ("measures", "outcome", "status"),
    [
        pytest.param([measure(0.0), measure(0.1, seed=1)], "forgotten", 0, id="all within"),
        pytest.param([measure(0.0), measure(1.0)], "not forgotten", 1, id="one remembers"),
        pytest.param([measure(0.0), measure(-1.0)], "not forgotten", 1, id="one over-forgets"),
        pytest.param([measure(0.0), measure(0.0, n=12)], "inconclusive", 3, id="too few triples"),
        pytest.param([measure(1.0, 1.0)], "inconclusive", 3, id="so does re-training"),
        pytest.param([measure(0.0, 1.0)], "inconclusive", 3, id="re-training alone is told apart"),
        pytest.param([measure(0.0), UNMEASURED], "inconclusive", 3, id="asked and not measured"),
        pytest.param(
            [measure(0.0), msgspec.structs.replace(UNMEASURED, asked=False)], "forgotten", 0, id="nothing to express"
        ),
        pytest.param(
            [measure(0.0), measure(0.0, n=12, asked=False, decisive=False)], "forgotten", 0, id="one neighbour of several"
        ),
        pytest.param(
            [measure(0.0), measure(0.0, n=12, asked=False, client=OTHERS)], "forgotten", 0, id="few of the neighbours'"
        ),
        pytest.param(
            [measure(0.0), measure(2.0, n=60, asked=False, decisive=False)], "not forgotten", 1, id="a neighbour remembers"
        ),
        pytest.param(
            [measure(0.0), measure(-1.0, n=200, asked=False, client=OTHERS)], "forgotten", 0, id="neighbours know less"
        ),
        pytest.param(
            [measure(0.0), measure(0.0, 0.6, n=200, asked=False, client=OTHERS)],
            "forgotten", 0, id="neighbours' controls are not like the triples",
        ),
        pytest.param(
            [measure(0.0), measure(1.0, n=200, asked=False, client=OTHERS)], "not forgotten", 1, id="neighbours learned it"
        ),
        pytest.param([], "inconclusive", 3, id="nothing"),
        pytest.param([measure(0.0, raw=None)], "forgotten", 0, id="no raw run, which no verdict rests on"),
        pytest.param([measure(1.0, raw=None)], "not forgotten", 1, id="a memory without a raw run"),
    ],
)  # fmt: skip
def test_outcomes(measures: list[Membership], outcome: str, status: int) -> None:
    verdict = judge(measures, Thresholds(), clean(measures))
    assert (verdict.outcome, verdict.exit_status) == (outcome, status), verdict.reasons
    assert verdict.reasons
    assert len(verdict.judgements) == len(measures)


def test_a_conspicuous_measure_among_many_is_not_taken_for_a_memory() -> None:
    """0.6 deviations on 40 triples: told apart when asked alone, within chance as one of two hundred."""
    one = measure(0.75, n=40, seed=4)
    assert judge([one], Thresholds(), None).outcome == "not forgotten"
    many = [one, *[measure(0.0, seed=1)] * 199]
    assert judge(many, Thresholds(), clean(many)).outcome == "inconclusive"


def test_widened_is_bonferronis_normal_interval() -> None:
    made = widened(Estimate(0.5, 0.5 - 1.96 * 0.01, 0.5 + 1.96 * 0.01, 9, "m"), 20, bounds=(0, 1))
    half = norm.ppf(1 - 0.05 / 40) * 0.01
    assert (made.low, made.high) == (pytest.approx(0.5 - half, abs=1e-5), pytest.approx(0.5 + half, abs=1e-5))
    assert widened(Estimate(0.9, 0.5, 1.0, 9, "m"), 1000, bounds=(0, 1)).high == 1
    assert widened(Estimate(-0.9, -1.0, 0.0, 9, "m"), 1000, bounds=(-1, 1)).low == -1


@pytest.mark.parametrize("field", ["distinguishability", "error", "share"])
def test_thresholds_out_of_range_are_named(field: str) -> None:
    with pytest.raises(SpecError, match=rf"{field} must lie in .*; got 1\.5"):
        Thresholds(**{field: 1.5})
    with pytest.raises(SpecError, match=rf"{field} must lie in .*; got 0"):
        Thresholds(**{field: 0})


# Folders.


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and a forget file of its first client."""
    home = tmp_path_factory.mktemp("runs")
    graph = SPEC.load_graph()
    execute(SPEC, graph, home / "run", attack=False)
    client = graph.clients[0]
    chosen = np.random.default_rng(0).permutation(np.unique(client.train, axis=0))[:60]
    (home / "forget.tsv").write_text(storage.triple_lines(graph, client.name, chosen))
    for method in ("retrain", "delete", "fedlu"):
        unlearn_run(
            home / "run",
            home / "forget.tsv",
            UnlearnOptions(method=method, epochs=2, decay_epochs=1),
            client=client.name,
        )
    return home / "run", home / "forget.tsv"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_read_is_what_was_made(finished: tuple[Path, Path], tmp_path: Path) -> None:
    run, forget = finished
    options = UnlearnOptions(epochs=2, decay_epochs=1)
    folder, unlearning = unlearn_run(run, forget, options, client="hospital-1", out=tmp_path / "out")
    read, raw = read_unlearned(folder), load_run(run)[1]
    assert read.unlearning == unlearning
    assert unlearning.asked == {"hospital-1": 60}
    assert read.result.graph.hash == unlearning.forget_hash
    made = unlearn_result(raw, read_forget(forget, raw.graph, "hospital-1"), options)
    assert made.transcript.frames == read.result.transcript.frames
    expected, tensors = made.tensors(), read.result.tensors()
    assert expected.keys() == tensors.keys()
    assert all(torch.equal(expected[name], tensors[name]) for name in expected)


def test_an_interrupted_unlearning_leaves_nothing_but_a_part(
    finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, forget = finished
    before, target = contents(run), tmp_path / "out"
    options = UnlearnOptions(method="delete")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(results, "save_tensors", killed)
        with pytest.raises(KeyboardInterrupt):
            unlearn_run(run, forget, options, client="hospital-1", out=target)
    assert not target.exists()
    assert contents(run) == before
    unlearn_run(run, forget, options, client="hospital-1", out=target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    before = contents(target)
    unlearn_run(run, forget, options, client="hospital-1", out=target)
    assert contents(target) == before
    other = UnlearnOptions(method="delete", epochs=3)
    with pytest.raises(RunError, match=r"out: exists and differs"):
        unlearn_run(run, forget, other, client="hospital-1", out=target)
    assert contents(target) == before
    unlearn_run(run, forget, other, client="hospital-1", out=target, overwrite=True)
    assert contents(target) != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("name", ["../../../x", "a/b", "..", "", "x" * 300])
def test_a_client_whose_name_cannot_be_a_files_is_refused_before_the_work(
    name: str, finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, forget = finished
    home = tmp_path / "one" / "two" / "three"
    home.mkdir(parents=True)

    def unexpected(*_: object, **__: object) -> None:
        raise AssertionError("it was unlearned")

    monkeypatch.setattr(storage, "read_forget", lambda *_: {name: np.zeros((1, 3), dtype=np.int64)})
    monkeypatch.setattr(storage, "unlearn", unexpected)
    with pytest.raises(DataError, match="cannot be a file's name"):
        unlearn_run(run, forget, UnlearnOptions(method="delete"), out=home / "out")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_clients_that_could_not_be_audited_are_named_by_a_certificate() -> None:
    """Else a small escrow hides neighbors that remember everything."""
    aside = msgspec.structs.replace(UNMEASURED, asked=False, client="b")
    measures = [measure(0.0), aside]
    reasons = judge(measures, Thresholds(), clean(measures)).reasons
    assert f"not audited: b: {aside.reason}" in reasons


def test_the_forget_set_of_the_audited_folder_is_no_request(finished: tuple[Path, Path], tmp_path: Path) -> None:
    run, forget = finished
    folder, _ = unlearn_run(run, forget, UnlearnOptions(method="delete"), client="hospital-1", out=tmp_path / "out")
    (tmp_path / "link").symlink_to(folder / "forget")
    for request in (folder / "forget", tmp_path / "link"):
        with pytest.raises(SpecError, match="lies in the audited folder"):
            verify_run(folder, Thresholds(), AuditOptions(), forget=request, folder=tmp_path / "audit", force=True)


def test_damage_and_changes_are_named(finished: tuple[Path, Path], tmp_path: Path) -> None:
    run, forget = finished
    with pytest.raises(RunError, match="not a folder of `fkgsec unlearn`, but of a run; unlearn it first"):
        read_unlearned(run)
    with pytest.raises(RunError, match="a folder of `fkgsec unlearn`; --power takes the run of `fkgsec train`"):
        forecast_verdict(run.with_name("run-delete"), Thresholds(), AuditOptions())
    folder, _ = unlearn_run(run, forget, UnlearnOptions(method="delete"), client="hospital-1", out=tmp_path / "out")
    asked = folder / "forget" / "hospital-1.txt"
    lines = asked.read_text().splitlines(keepends=True)
    asked.write_text("".join(lines[1:]))
    with pytest.raises(RunError, match="has changed since"):
        read_unlearned(folder)
    asked.write_text("".join(lines))
    record = json.loads((folder / UNLEARNING_FILE).read_text())
    for forged in ({"hospital-1": 5000}, {**record["asked"], "x\nVerdict: forgotten": 1}):
        (folder / UNLEARNING_FILE).write_text(json.dumps(record | {"asked": forged}))
        with pytest.raises(RunError, match="names other numbers of triples"):
            read_unlearned(folder)
    (folder / UNLEARNING_FILE).write_text(json.dumps(record))
    content = bytearray((folder / UNLEARNED_FILE).read_bytes())
    content[-1] ^= 1
    (folder / UNLEARNED_FILE).write_bytes(content)
    with pytest.raises(RunError, match="damaged: its content is not what was written"):
        read_unlearned(folder)


def test_embeddings_and_messages_that_do_not_fit_are_named(finished: tuple[Path, Path], tmp_path: Path) -> None:
    honest = read_unlearned(finished[0].with_name("run-retrain"))
    first, *rest = honest.result.tables
    longer = ClientTables(torch.cat([first.entities, first.entities[:1]]), first.relations)
    broken = ClientTables(first.entities.clone(), first.relations.clone())
    broken.relations[0, 0] = torch.nan
    frames = dict(honest.result.transcript.frames)
    last = honest.result.best_round
    upload = Rows.pack(last, "client/hospital-1", "server", "entities", torch.zeros(3, 8))
    frames[last] = [*frames[last], encode(upload)]
    wrong: dict[str, KgeResult] = {
        "tables has [0-9]+ x 8 numbers of hospital-1's entities; data and options say": dataclasses.replace(
            honest.result, tables=[longer, *rest]
        ),
        "tables has a value of hospital-1's relations that is not a finite number": dataclasses.replace(
            honest.result, tables=[broken, *rest]
        ),
        "has private of 0 clients; data and options say 3": dataclasses.replace(honest.result, private=[]),
        "client/hospital-1 sent 3 rows of entities in round": dataclasses.replace(
            honest.result, transcript=Transcript(honest.result.transcript.entries, frames)
        ),
    }
    for number, (message, result) in enumerate(wrong.items()):
        folder = tmp_path / f"{number}"
        storage.write_unlearned(folder, honest.spec, honest.graph, honest.forget, honest.unlearning, result)
        with pytest.raises(RunError, match=message):
            read_unlearned(folder)
        status, output = invoke("verify", "--run", folder, "--out", tmp_path / "out")
        assert (status, output.count("\n")) == (2, 1), output


@pytest.mark.parametrize("extra", ["private.9.entities", "models.0.entities"])
def test_a_tensor_that_nothing_reads_is_refused(finished: tuple[Path, Path], tmp_path: Path, extra: str) -> None:
    """What is not read is not audited: a model kept under another name would come with the certificate."""
    folder = tmp_path / "extra"
    shutil.copytree(finished[0].with_name("run-retrain"), folder)
    path = folder / storage.UNLEARNED_FILE
    with safe_open(path, framework="pt") as handle:
        metadata, tensors = handle.metadata(), {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    save_file({**tensors, extra: torch.zeros(3)}, path, metadata)
    said = folder / storage.UNLEARNING_FILE
    document = json.loads(said.read_text()) | {"tables_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    said.write_text(json.dumps(document))
    status, output = invoke("verify", "--run", folder, "--out", tmp_path / "out")
    assert (status, output.count("\n")) == (2, 1), output
    assert f"has {extra}, which" in output


def test_an_entity_without_a_triple_left_is_no_damage(finished: tuple[Path, Path], tmp_path: Path) -> None:
    """Its row crosses after `fedlu`, which knows it still; only re-training has one row less."""
    run, _ = finished
    client = SPEC.load_graph().clients[0]
    last = (client.train[:, [0, 2]] == client.num_trained_entities - 1).any(axis=1)
    chosen = np.unique(np.concatenate([client.train[last], client.train[~last][::5]]), axis=0)
    forget = tmp_path / "forget.tsv"
    forget.write_text(storage.triple_lines(SPEC.load_graph(), client.name, chosen))
    options = UnlearnOptions(epochs=1, decay_epochs=1)
    folder, _ = unlearn_run(run, forget, options, client=client.name, out=tmp_path / "out")
    retrained, _ = unlearn_run(
        run, forget, UnlearnOptions(method="retrain"), client=client.name, out=tmp_path / "retrained"
    )
    status, output = invoke(
        "verify", "--run", folder, "--against", retrained, "--references", 0, "--shadows", 0, "--relearn-steps", 0,
        "--details",
    )  # fmt: skip
    assert status in (1, 3), output
    assert "reconstruction" in output.lower()


# Replays.

QUICK = AuditOptions(references=3, budget=3, plants=0, relearn_steps=0)


def unlearned_by(method: str, finished: tuple[Path, Path], folder: Path, count: int) -> tuple[Path, Path]:
    """A folder of the run without `count` triples, and their file."""
    run, forget = finished
    request = folder / "request.tsv"
    request.write_text("".join(forget.read_text().splitlines(keepends=True)[:count]))
    options = UnlearnOptions(method=method, epochs=1)  # type: ignore[arg-type]
    return unlearn_run(run, request, options, client="hospital-1", out=folder / method)[0], request


@pytest.mark.parametrize("count", [1, 20])
def test_a_re_training_that_the_audit_repeats_is_forgotten_whatever_its_size(
    finished: tuple[Path, Path], tmp_path: Path, count: int
) -> None:
    folder, request = unlearned_by("retrain", finished, tmp_path, count)
    asked = {"forget": request, "client": "hospital-1", "folder": tmp_path / "audit"}
    made = verify_run(folder, Thresholds(), QUICK, **asked)
    assert (made.verdict.outcome, made.replayed) == ("forgotten", True)
    assert len(list((tmp_path / "audit" / "audit").iterdir())) == 1, "the replay alone was trained"
    assert "the same, bit by bit" in to_markdown(made)
    assert any("chosen among the results" in line for line in made.assumptions)
    made = verify_run(folder, Thresholds(), QUICK, folder=tmp_path / "audit")
    assert (made.verdict.outcome, made.replayed) == ("inconclusive", True), "the request was not given"


def test_one_number_that_differs_ends_the_replay(finished: tuple[Path, Path], tmp_path: Path) -> None:
    folder, request = unlearned_by("retrain", finished, tmp_path, 20)
    read = read_unlearned(folder)
    tables = [ClientTables(each.entities.clone(), each.relations, each.decoder) for each in read.result.tables]
    tables[-1].entities[0, 0] += 1e-6
    changed = dataclasses.replace(read.result, tables=tables)
    storage.write_unlearned(tmp_path / "changed", read.spec, read.graph, read.forget, read.unlearning, changed)
    asked = {"forget": request, "client": "hospital-1", "folder": tmp_path / "audit"}
    made = verify_run(tmp_path / "changed", Thresholds(), QUICK, **asked)
    assert made.replayed is False
    assert made.verdict.outcome != "forgotten"
    assert any(line.startswith("The replay gave other embeddings or messages") for line in made.remarks)


def test_copies_of_requested_triples_at_other_clients_are_named(finished: tuple[Path, Path], tmp_path: Path) -> None:
    folder, request = unlearned_by("retrain", finished, tmp_path, 20)
    candidate = read_unlearned(folder)
    assert copies_elsewhere(candidate) == 0
    retained = candidate.result.graph
    client = next(client for client in candidate.graph.clients if client.name == "hospital-1")
    wanted = client.to_global(np.asarray(candidate.forget["hospital-1"]))
    copies = {other.name: to_local(retained, other, wanted) for other in retained.clients if other.name != client.name}
    name, copied = max(copies.items(), key=lambda item: len(item[1]))
    assert len(copied), "another hospital can express some"
    clients = tuple(
        dataclasses.replace(other, train=np.concatenate([other.train, copied])) if other.name == name else other
        for other in retained.clients
    )
    result = dataclasses.replace(candidate.result, graph=dataclasses.replace(retained, clients=clients))
    assert copies_elsewhere(candidate._replace(result=result)) == len(copied)
    made = verify_run(folder, Thresholds(), QUICK, forget=request, client="hospital-1", folder=tmp_path / "audit")
    assert not any("Other clients still train" in line for line in made.remarks)


@pytest.mark.parametrize("kind", ["started", "transcript"])
def test_memory_beside_the_embeddings_ends_the_replay(finished: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    """The raw run's rows or messages in the folder of an honest re-training."""
    folder, _ = unlearned_by("retrain", finished, tmp_path, 20)
    read, (_, raw) = read_unlearned(folder), load_run(finished[0])
    changed = dataclasses.replace(read.result, **{kind: getattr(raw, kind)})
    storage.write_unlearned(tmp_path / "changed", read.spec, read.graph, read.forget, read.unlearning, changed)
    candidate = read_unlearned(tmp_path / "changed")
    auditor = Auditor(tmp_path / "audit", candidate, (), 0, 0, lambda *_: nullcontext())  # type: ignore[arg-type]
    assert not auditor.repeats(candidate.result)


def test_a_checkpoint_that_lies_ready_is_not_taken_for_the_replay(finished: tuple[Path, Path], tmp_path: Path) -> None:
    """Whoever unlearned knows seed and identity of the re-training, and may write beside the run that they hand over."""
    folder, request = unlearned_by("retrain", finished, tmp_path, 20)
    read, (_, raw) = read_unlearned(folder), load_run(finished[0])
    remembering = dataclasses.replace(raw, graph=read.result.graph)
    storage.write_unlearned(tmp_path / "fake", read.spec, read.graph, read.forget, read.unlearning, remembering)
    identity = run_identity(read.result.graph, read.result.options)
    tensors, progress = checkpoint.load(finished[0] / CHECKPOINT, run_identity(raw.graph, raw.options))
    planted = tmp_path / "fake-audit" / "audit" / identity[:16]
    planted.mkdir(parents=True)
    checkpoint.save(planted / CHECKPOINT, tensors, msgspec.structs.replace(progress, identity=identity))
    made = verify_run(tmp_path / "fake", Thresholds(), QUICK, forget=request, client="hospital-1")
    assert made.replayed is False
    assert made.verdict.outcome != "forgotten"


def test_a_method_that_is_no_re_training_is_not_replayed_and_a_single_triple_is_no_error(
    finished: tuple[Path, Path], tmp_path: Path
) -> None:
    """Of two shadows, one has the single triple to forget and the other none."""
    folder, request = unlearned_by("ascent", finished, tmp_path, 1)
    asked = {"forget": request, "client": "hospital-1", "folder": tmp_path / "audit"}
    made = verify_run(folder, Thresholds(), QUICK, **asked)
    assert made.replayed is None
    assert made.num_shadows == 4
    assert made.verdict.outcome != "forgotten"


def test_an_escrow_binds_the_audit_seed_to_what_is_audited() -> None:
    escrow = Escrow.seal(SPEC.load_graph(), {client.name: client.test[:2] for client in SPEC.load_graph().clients})
    audited = escrow, "digest of the embeddings", "hash of the request"
    seed = audit_seed_of(AuditOptions(), *audited)
    assert seed == audit_seed_of(AuditOptions(auditor="another"), *audited)
    others = [
        (escrow, "another", audited[2]),
        (escrow, audited[1], "another"),
        (msgspec.structs.replace(escrow, nonce="another"), *audited[1:]),
    ]
    assert len({seed, *(audit_seed_of(AuditOptions(), *other) for other in others)}) == 4
    assert audit_seed_of(AuditOptions(audit_seed=5), *audited) == 5
    assert audit_seed_of(AuditOptions()) != audit_seed_of(AuditOptions()), "without an escrow it is drawn"


def test_the_digest_of_a_request_is_that_of_its_sorted_lines(finished: tuple[Path, Path]) -> None:
    _, forget = finished
    graph = SPEC.load_graph()
    lines = sorted(forget.read_bytes().splitlines(keepends=True))
    triples = read_forget(forget, graph, "hospital-1")["hospital-1"]
    assert request_digest(graph, "hospital-1", triples[::-1]) == hashlib.sha256(b"".join(lines)).hexdigest()


def test_a_bound_is_named_with_the_confidence_of_the_look_that_decided() -> None:
    measures = [measure(0.0)]
    early = msgspec.structs.replace(clean(measures), level=0.05 / 16)
    reasons = " ".join(judge(measures, Thresholds(), early, spending=1 / 16).reasons)
    assert "(99.7% interval)" in reasons
    assert "95" not in reasons


# The commands.


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_verify_writes_record_and_certificate_and_keeps_its_shadows(
    finished: tuple[Path, Path], tmp_path: Path
) -> None:
    run, _ = finished
    candidate, reference = run.with_name("run-fedlu"), run.with_name("run-retrain")
    command = ["verify", "--run", candidate, "--against", reference, "--raw", run, "--out", tmp_path, "--audit-seed", 5]
    command += ["--budget", 4, "--relearn-steps", 5]
    status, output = invoke(*command)
    assert status in (0, 1, 3)
    made = msgspec.json.decode((tmp_path / "verification.json").read_bytes(), type=Verification)
    assert made.verdict.exit_status == status
    first = next(line for line in output.splitlines() if made.verdict.outcome in line)
    assert first == f"Verdict: {made.verdict.outcome}; exit status {status}"
    assert output.index("Request: forget") < output.index(first) < output.index(made.verdict.reasons[0])
    assert len(output[output.index("Request: forget") :].splitlines()) <= 20
    assert made.num_shadows == 4
    assert made.evidence is not None
    assert made.evidence.num_references == 4
    assert {row.model for row in made.evidence.models if row.asked} == {"local", "global"}
    assert [len(row.planted) for row in made.evidence.models if row.asked and row.reading] == [1] * sum(
        row.asked and row.reading != "" for row in made.evidence.models
    )
    attacks = {row.attack for row in made.forgetting.membership if not row.reason}
    assert attacks == {"loss", "calibrated", "lira", "u-lira"}
    assert len(list((tmp_path / "audit").iterdir())) == 4 + 4 + 1
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "audit").glob("*/*")}
    again = invoke(*command, "--quiet", "--json", tmp_path / "again.json")
    assert again == (status, "")
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "audit").glob("*/*")}
    repeated = msgspec.json.decode((tmp_path / "again.json").read_bytes(), type=Verification)
    assert (repeated.forgetting, repeated.evidence) == (made.forgetting, made.evidence)
    assert "The audit seed was given, not drawn" in " ".join(made.assumptions)
    assert "Without an escrow" in " ".join(made.assumptions)
    page, text = (tmp_path / "annex.html").read_text(), (tmp_path / "annex.md").read_text()
    for sheet in sheets(made):
        assert sheet.title.replace("'", "&#39;") in page
        assert sheet.title in text
        assert all(len(row) == len(sheet.columns) for row in sheet.rows)
    assert "<script" not in page
    first = (tmp_path / "verification.md").read_text()
    titles = [line[3:] for line in first.splitlines() if line.startswith("## ")]
    assert titles == ["Why", "Terms", "What was asked", "What would have been noticed", "What is not covered"]
    assert first.startswith(f"# Unlearning: {made.verdict.outcome}")
    assert len(first.splitlines()) <= 50, "one page"
    assert "\n|" not in first, "tables are in the annex"
    assert "<table" not in (tmp_path / "verification.html").read_text()


@pytest.mark.parametrize("seed", [[], ["--audit-seed", 5]], ids=["drawn", "given"])
@pytest.mark.parametrize("inside", ["", "audits", "forget/../audits"])
def test_no_audit_is_kept_in_the_audited_folder(finished: tuple[Path, Path], inside: str, seed: list[object]) -> None:
    """Whoever unlearned may have put trainings there, for a seed that its folder proposes."""
    candidate = finished[0].with_name("run-retrain")
    before = contents(candidate)
    status, output = invoke("verify", "--run", candidate, "--out", candidate / inside, *seed)
    assert (status, output.count("\n")) == (2, 1), output
    assert f"lies in the audited folder {candidate}" in output
    assert contents(candidate) == before


def test_without_a_folder_the_audit_is_kept_beside_the_audited_one(finished: tuple[Path, Path], tmp_path: Path) -> None:
    candidate = tmp_path / "handed-over"
    shutil.copytree(finished[0].with_name("run-retrain"), candidate)
    before = contents(candidate)
    quick = ["--references", 0, "--against", candidate, "--relearn-steps", 0]
    status, output = invoke("verify", "--run", candidate, "--audit-seed", 5, *quick)
    assert (status, output.count("\n")) == (2, 1), output
    assert "audit_seed 5 finds trainings again" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["handed-over"]
    status, _ = invoke("verify", "--run", candidate, *quick)
    assert status in (1, 3)
    assert contents(candidate) == before
    beside = tmp_path / "handed-over-audit"
    assert len(list((beside / "audit").iterdir())) == 4
    assert (beside / "verification.json").exists()
    kept = contents(beside)
    status, output = invoke("verify", "--run", candidate, *quick)
    assert (status, output.count("\n")) == (2, 1), output
    assert "is an earlier audit, which only a folder of your own repeats (--out)" in output
    assert (contents(candidate), contents(beside)) == (before, kept)


def test_the_reference_against_itself_exceeds_nothing(finished: tuple[Path, Path], tmp_path: Path) -> None:
    reference = finished[0].with_name("run-retrain")
    status, output = invoke(
        "verify", "--run", reference, "--against", reference, "--references", 0, "--shadows", 0, "--relearn-steps", 0,
        "--details",
        "--out", tmp_path,
    )  # fmt: skip
    assert status == 3
    assert "no raw run was given" in " ".join(output.split())
    assert "The audited run is the re-trained one itself" in output
    assert "the party that unlearned may have supplied the reference" in output
    assert "the weakest" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shadows", 2], "shadows must be 0 or an even number of at least 4; got 2"),
        (["--shadows", 5], "shadows must be 0 or an even number of at least 4; got 5"),
        (["--references", 2], "references must be 0 or at least 3; got 2"),
        (["--references", 8, "--budget", 4], "budget must be at least references, 8; got 4"),
        (["--plants", -1], "plants must be at least 0; got -1"),
        (["--share", 1], "share must lie in (0, 1); got 1.0"),
        (["--escrow", "nowhere.json"], "nowhere.json: cannot be read"),
        (["--distinguishability", 0.5], "distinguishability must lie in (0.5, 1]; got 0.5"),
        (["--against", "delete"], "was made by method delete; the reference must be made by retrain"),
        (["--json", "/nowhere/at/all.json"], "its folder does not exist"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(finished: tuple[Path, Path], options: list[object], message: str) -> None:
    run, _ = finished
    if options[0] == "--against":
        options = ["--against", run.with_name("run-delete")]
    given = ["--run", run.with_name("run-delete"), "--against", run.with_name("run-retrain"), *options]
    status, output = invoke("verify", *given)
    assert status == 2
    assert message in output
    assert output.count("\n") == 1


def test_another_forget_file_or_run_does_not_belong(finished: tuple[Path, Path], tmp_path: Path) -> None:
    run, forget = finished
    lines = forget.read_text().splitlines(keepends=True)
    (tmp_path / "less.tsv").write_text("".join(lines[1:]))
    status, output = invoke(
        "unlearn", "--run", run, "--forget", tmp_path / "less.tsv", "--client", "hospital-1", "--method", "delete",
        "--out", tmp_path / "less",
    )  # fmt: skip
    assert status == 0, output
    _, told, details = output.partition("No verdict yet. Audit the unlearning: fkgsec verify --run ")
    assert told
    assert "hospital-1 59 triples" in details
    status, output = invoke("verify", "--run", tmp_path / "less", "--against", run.with_name("run-retrain"))
    assert status == 2
    assert "was made with another forget file" in output
    # Easily forgotten triples beside those of the request would lower the share that is remembered.
    status, output = invoke(
        "verify", "--run", run.with_name("run-delete"), "--client", "hospital-1", "--forget", tmp_path / "less.tsv"
    )
    assert status == 2
    assert "0 of the 59 triples" in output
    assert "which has 1 others" in output
    status, output = invoke("unlearn", "--run", run, "--forget", forget, "--method", "none", "--out", tmp_path / "x")
    assert status == 2
    assert "method must be one of" in output
    assert not (tmp_path / "x").exists()


def test_names_are_escaped_in_both_certificates(finished: tuple[Path, Path], tmp_path: Path) -> None:
    reference = finished[0].with_name("run-retrain")
    quick = ["--references", 0, "--shadows", 0, "--relearn-steps", 0, "--quiet"]
    invoke("verify", "--run", reference, "--against", reference, *quick, "--out", tmp_path)
    made = msgspec.json.decode((tmp_path / "verification.json").read_bytes(), type=Verification)
    name = "a|b <img src=x onerror=alert(1)>"
    rows = [msgspec.structs.replace(row, client=name) for row in made.forgetting.membership]
    hostile = msgspec.structs.replace(
        made,
        forgetting=msgspec.structs.replace(made.forgetting, membership=rows),
        verdict=judge(rows, Thresholds(), None),
    )
    assert "<img" not in to_html(hostile) + to_html(hostile, annex=True) + to_markdown(hostile)
    markdown = to_markdown(hostile, annex=True)
    assert "<img" not in markdown
    table = [line for line in markdown.splitlines() if "onerror" in line and line.startswith("| ")]
    assert table
    assert all(line.count("|") - line.count("\\|") == 8 for line in table)


# Acceptance.


@pytest.mark.slow
def test_embedded_default_side_by_side(tmp_path: Path) -> None:
    """On the embedded consortium: deleting is caught, and re-training passes, as `--power` said before any unlearning."""
    started = time.perf_counter()
    spec = Spec(algorithm="fedlu", dim=32, rounds=40, num_negatives=32, learning_rate=0.01, eval_every=40, device="cpu")
    graph = spec.load_graph()
    execute(spec, graph, tmp_path / "run", attack=False)
    client = graph.clients[0]
    distinct = np.unique(client.train, axis=0)
    chosen = np.random.default_rng(0).permutation(distinct)[: len(distinct) // 5]
    (tmp_path / "forget.tsv").write_text(storage.triple_lines(graph, client.name, chosen))
    forecast = forecast_verdict(
        tmp_path / "run",
        Thresholds(),
        AuditOptions(audit_seed=7),
        forget=tmp_path / "forget.tsv",
        client=client.name,
        folder=tmp_path / "audit",
    )
    print(*forecast_lines(forecast, Thresholds()), sep="\n")
    for method in ("retrain", "delete", "fedlu"):
        unlearn_run(tmp_path / "run", tmp_path / "forget.tsv", UnlearnOptions(method=method), client=client.name)
    made = {}
    for method in ("retrain", "delete", "fedlu"):
        status, output = invoke(
            "verify",
            "--run",
            tmp_path / f"run-{method}",
            "--forget",
            tmp_path / "forget.tsv",
            "--client",
            client.name,
            "--raw",
            tmp_path / "run",
            "--out",
            tmp_path / "audit",
            "--audit-seed",
            7,
            "--budget",
            4,  # deleting is told apart at the first look, and nothing is asked of the outcome of fedlu
            "--overwrite",
        )
        print(output)
        record = (tmp_path / "audit" / "verification.json").read_bytes()
        made[method] = msgspec.json.decode(record, type=Verification)
        assert made[method].verdict.exit_status == status
    print(f"{time.perf_counter() - started:.0f} s")
    assert forecast.earned
    assert (made["retrain"].verdict.outcome, made["retrain"].replayed) == ("forgotten", True)
    assert made["delete"].verdict.outcome == "not forgotten"
    caught = [row for row in made["delete"].forgetting.membership if row.asked and row.attack == "calibrated"]
    assert len(caught) == 2
    assert all(row.figures["unlearned"].auc.low > 0.5 for row in caught)
    fedlu = [row.figures for row in made["fedlu"].forgetting.quality if row.asked and row.triples == "forget"]
    assert all(figures["unlearned"]["mrr"].value < figures["raw"]["mrr"].value for figures in fedlu)
