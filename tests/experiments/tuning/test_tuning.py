"""Tuning: what is searched, that the test split is not there, the same trials killed or not, pruning, privacy, files."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.cli.progress import Trained, unobserved
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.runs.stored import decode_stored
from fkgsec.experiments.tuning.search import read_searches
from fkgsec.experiments.tuning.shown import best_document, ordered, write_tuning
from fkgsec.experiments.tuning.study import Trial, Tuning, tune, without_test
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer

pytest.importorskip("optuna")
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
SMALL: dict[str, Any] = {
    "size": 300, "clients": 2, "dim": 8, "rounds": 2, "eval_every": 1, "batch_size": 64, "num_negatives": 4,
    "local_epochs": 1, "device": "cpu",
}  # fmt: skip


def spec_of(**changes: Any) -> Any:
    return make_spec(None, SMALL | changes)


def tuned(folder: Path, searches: list[str], trials: int = 4, graph: Any = None, **changes: Any) -> Tuning:
    given = {name: changes.pop(name) for name in ("observe", "prune", "overwrite") if name in changes}
    how: dict[str, Any] = {"observe": unobserved} | given
    spec = spec_of(**changes)
    searched = read_searches(searches, spec)
    data = spec.load_graph() if graph is None else graph
    return tune(spec, data, searched, folder, trials=trials, **how)


def reached(tuning: Tuning) -> list[tuple[Any, ...]]:
    """Everything of the trials but how long they took."""
    return [(one.number, one.values, one.valid, one.round, one.rounds, one.state, one.reason) for one in tuning.trials]


@pytest.mark.parametrize(
    ("searches", "said"),
    [
        ([], "no option is searched"),
        (["gamma"], "'gamma' is not NAME=VALUES"),
        (["gama=1,2"], "'gama' is not an option that can be tuned; did you mean gamma?"),
        (["seed=1,2"], "'seed' is not an option that can be tuned: the best of several seeds is luck"),
        (
            ["defense=secagg,psu"],
            "'defense' is not an option that can be tuned: validation does not measure protection",
        ),
        (["leak=0.1,0.5"], "'leak' is not an option that can be tuned"),
        (["gamma=1,2", "gamma=3,4"], "gamma is given twice"),
        (["gamma=1,1"], "gamma: a value is given twice"),
        (["gamma=x,y"], "gamma must be a number; got 'x'"),
        (["dim=8.5,9"], "dim must be a whole number; got 8.5"),
        (["dim=8:9.5"], "dim takes whole numbers"),
        (["gamma=log:0:3"], "LOW must lie below HIGH, above 0"),
        (["gamma=3:1"], "LOW must lie below HIGH"),
        (["learning_rate=log:a:b"], "is not LOW:HIGH, two numbers"),
        (["learning_rate=-1:1"], "learning_rate must be a positive number"),
        (["model=transe,nonsense"], "model must be one of"),
    ],
)
def test_what_cannot_be_searched_is_one_line(searches: list[str], said: str) -> None:
    with pytest.raises(SpecError, match=f"^search: .*{re.escape(said)}"):
        read_searches(searches, spec_of())


def test_what_is_searched() -> None:
    found = read_searches(
        ["learning-rate=log:1e-4:1e-2", "gamma=5, 9,12", "dim=8:64", "model=transe,rotate"], spec_of()
    )
    assert found["learning_rate"][1:] == ((), 1e-4, 1e-2, True, False)
    assert found["gamma"].values == (5, 9, 12)
    assert found["dim"][1:] == ((), 8.0, 64.0, False, True)
    assert found["model"].values == ("transe", "rotate")
    assert read_searches(["sparsity=0.2:0.8"], spec_of(algorithm="feds"))["sparsity"].high == 0.8


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuning]:
    """Four trials."""
    folder = tmp_path_factory.mktemp("tuning")
    return folder, tuned(folder, ["learning_rate=log:1e-3:1e-1", "gamma=4,8"])


def other_tests(graph: FederatedGraph) -> FederatedGraph:
    """The same clients with quite other test triples, of the same entities and relations."""
    rng = np.random.default_rng(0)
    clients = []
    for one in graph.clients:
        test = one.to_global(one.test)
        drawn = np.stack([rng.permutation(test[:, column]) for column in range(3)], axis=1)[: len(test) // 2]
        clients.append(ClientGraph.from_global(one.name, one.to_global(one.train), one.to_global(one.valid), drawn))
    return FederatedGraph(graph.name, graph.entities, graph.relations, tuple(clients))


def test_the_test_split_is_not_looked_at(first: tuple[Path, Tuning], tmp_path: Path) -> None:
    """With other test triples every validation of every trial is the same; the data that are trained on have none."""
    graph = spec_of().load_graph()
    others = other_tests(graph)
    assert others.hash != graph.hash
    again = tuned(tmp_path, ["learning_rate=log:1e-3:1e-1", "gamma=4,8"], trials=2, graph=others)
    assert reached(again) == reached(first[1])[:2]
    assert again.data_hash == first[1].data_hash == without_test(graph).hash
    assert [len(one.test) for one in without_test(graph).clients] == [0, 0]


def test_the_same_of_graphs_to_classify() -> None:
    graph = make_spec(None, {"algorithm": "fedavg", "data": "motifs", "size": 80, "clients": 2}).load_graph()
    blind = without_test(graph)
    for one, other in zip(blind.clients, graph.clients, strict=True):
        assert (len(one.test), len(one.train), len(one.valid)) == (0, len(other.train), len(other.valid))
        assert len(one.graphs) == len(other.graphs) - len(other.test)
        for split in ("train", "valid"):
            ours, theirs = one.graphs.subset(getattr(one, split)), other.graphs.subset(getattr(other, split))
            assert all(np.array_equal(a, b) for a, b in zip(ours.arrays(), theirs.arrays(), strict=True))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trials_and_another_others(first: tuple[Path, Tuning], tmp_path: Path) -> None:
    searches = ["learning_rate=log:1e-3:1e-1", "gamma=4,8"]
    assert reached(tuned(tmp_path / "a", searches, trials=2)) == reached(first[1])[:2]
    other = tuned(tmp_path / "b", searches, trials=1, seed=1)
    assert other.trials[0].values != first[1].trials[0].values
    assert first[1].best.valid == max(one.valid or 0.0 for one in first[1].trials)


class Stopped(Observer):
    """Ends the process's work in the second trial's first round, as a kill would."""

    def __init__(self, name: str) -> None:
        self._second = name.startswith("2 of")

    def round_done(self, entry: RoundEntry) -> None:
        if self._second and entry.round == 1:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_tuning_that_was_stopped_goes_on_with_the_same_trials(first: tuple[Path, Tuning], tmp_path: Path) -> None:
    searches = ["learning_rate=log:1e-3:1e-1", "gamma=4,8"]

    def observe(options: Trained, name: str) -> Any:
        return contextlib.nullcontext(Stopped(name))

    with pytest.raises(KeyboardInterrupt):
        tuned(tmp_path, searches, observe=observe)
    again = tuned(tmp_path, searches)
    assert reached(again) == reached(first[1])
    assert again.trials[0].seconds > 0
    seen: list[str] = []

    def count(options: Trained, name: str) -> Any:
        seen.append(name)
        return contextlib.nullcontext(Observer())

    assert reached(tuned(tmp_path, searches, observe=count)) == reached(first[1])
    assert seen == []  # everything was there
    with pytest.raises(RunError, match="has a tuning of other options, values or data"):
        tuned(tmp_path, searches, dim=16)
    with pytest.raises(RunError, match="has a tuning of other options, values or data"):
        tuned(tmp_path, ["gamma=4,8"])
    assert len(tuned(tmp_path, ["gamma=4,8"], trials=1, overwrite=True).trials) == 1


@pytest.mark.slow
def test_kill_nine_in_the_midst_loses_nothing(first: tuple[Path, Tuning], tmp_path: Path) -> None:
    """The command itself, killed after a second each time until it ends; trials as of one that was not killed."""
    given = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    searches = ["--search", "learning_rate=log:1e-3:1e-1", "--search", "gamma=4,8"]
    command = [
        sys.executable,
        "-m",
        "fkgsec.experiments.cli.main",
        "tune",
        *given,
        *searches,
        "--trials",
        "4",
        "--out",
        "t",
        "-q",
    ]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    kills = 0
    while True:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
        study = tmp_path / "t" / "study.db"
        try:
            while process.poll() is None and (kills >= 4 or not study.exists()):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.05)
            if process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2 + 0.4 * kills)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        _, said = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, said.decode()
        kills += 1
    assert kills
    found = decode_stored((tmp_path / "t" / "tuning.json").read_bytes(), Tuning)
    assert reached(found) == reached(first[1])


@pytest.mark.slow
def test_hopeless_trials_end_early(tmp_path: Path) -> None:
    """A learning rate at which nothing is learnt lies below the median once there is one; not under dp."""
    searches = ["learning_rate=1e-7,0.05", "gamma=4:8"]
    made = tuned(tmp_path / "a", searches, trials=14, rounds=6)
    pruned = [one for one in made.trials if one.state == "pruned"]
    assert pruned
    assert all(one.rounds < 6 for one in pruned)
    finished = [one.valid for one in made.trials if one.state == "finished" and one.valid is not None]
    assert all(one.valid is not None and one.valid < max(finished) for one in pruned)
    assert not any(one.state == "pruned" for one in made.trials[:5])
    assert made.best.state == "finished"
    kept = tuned(tmp_path / "b", searches, trials=3, rounds=6, prune=False)
    assert {one.rounds for one in kept.trials} == {6}


@pytest.mark.slow
def test_a_trial_that_fails_is_the_worst_and_says_why(tmp_path: Path) -> None:
    made = tuned(tmp_path, ["learning_rate=0.01,1e38", "gamma=4:8"], trials=6)
    failed = [one for one in made.trials if one.state == "failed"]
    assert failed
    assert "learning_rate" in failed[0].reason
    assert failed[0].valid is None
    assert ordered(made)[-1].state == "failed"
    assert made.best.values["learning_rate"] == 0.01
    with pytest.raises(RunError, match=r"no trial finished; the first: .*learning_rate"):
        tuned(tmp_path / "all", ["learning_rate=1e37,1e38"], trials=2)


@pytest.mark.slow
def test_privacy_of_all_trials_is_composed(tmp_path: Path) -> None:
    made = tuned(tmp_path, ["learning_rate=0.01:0.02"], trials=2, defense="dp:epsilon=8,clip=1")
    [spent] = made.guarantees.values()
    assert spent.rounds == 2 * SMALL["rounds"]
    assert spent.epsilon > 8
    write_tuning(made, tmp_path)


def test_a_failed_trial_counts_with_all_of_its_rounds(tmp_path: Path) -> None:
    """It may have sent updates in more rounds than any other trial; a repeated one sends none."""
    searches = ["learning_rate=1e-9,1e38", "rounds=2,6"]
    made = tuned(tmp_path, searches, trials=8, defense="dp:noise_multiplier=1,clip=1")
    distinct = {(one.values["learning_rate"], one.values["rounds"], one.state) for one in made.trials}
    assert (1e38, 6, "failed") in distinct
    [spent] = made.guarantees.values()
    assert spent.rounds == sum(rounds for _, rounds, _ in distinct)


@pytest.mark.slow
def test_what_is_written_trains(first: tuple[Path, Tuning]) -> None:
    folder, made = first
    runner = CliRunner()
    write_tuning(made, folder)
    assert (folder / "trials.png").read_bytes().startswith(b"\x89PNG")
    lines = (folder / "trials.csv").read_text().splitlines()
    assert lines[0] == "trial,learning_rate,gamma,valid,round,rounds,seconds,state,reason"
    assert len(lines) == 5
    best = make_spec(folder / "best.yaml", {})
    assert best == spec_of(**made.best.values)
    assert best_document(made).startswith("# The best of 4 trials by fkgsec tune, trial ")
    said = runner.invoke(app, ["train", "--config", str(folder / "best.yaml"), "--out", str(folder / "best"), "-q"])
    assert said.exit_code == 0, said.output
    assert read_record(folder / "best" / "record.json").spec.settled() == best.settled()


def test_the_command(tmp_path: Path) -> None:
    """In words: best options, what they do not say, a table, where it lies."""
    given = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    arguments = ["tune", *given, "--search", "gamma=4,8", "--trials", "2", "--out", str(tmp_path / "t")]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    assert re.search(r"Best of 2 trials: gamma [48]; validation MRR 0\.\d{4} in round \d\.", said.output)
    assert "No trial saw the test split." in said.output
    assert (tmp_path / "t" / "best.yaml").exists()
    assert not (tmp_path / "t" / "trials").exists()  # no checkpoints are left behind
    refused = CliRunner().invoke(app, ["tune", "--search", "gama=1,2"])
    assert refused.exit_code == 2
    assert refused.output.startswith("fkgsec: search: 'gama' is not an option that can be tuned; did you mean gamma?")
    refused = CliRunner().invoke(app, ["tune", "--search", "gamma=1,2", "--track", "tensorboard"])
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1)
    assert refused.output.startswith("fkgsec: track applies to train, attack and compare")


def test_the_first_of_equals_is_best() -> None:
    equal = [Trial(number, {}, 0.5, 1, 1, 0.0, "finished") for number in (1, 2)]
    made = Tuning("", spec_of(), {}, "", "mrr", [*equal, Trial(3, {}, 0.9, 1, 1, 0.0, "pruned")], None)  # type: ignore[arg-type]
    assert made.best.number == 1
