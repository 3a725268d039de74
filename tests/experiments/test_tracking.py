"""Live trackers: what is logged while a training runs and at its end, trackers that fail, secrets."""

from __future__ import annotations

import http.server
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments import tracking
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import execute
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.tracking import Tracked, Trackers, check_trackers, track, without_passwords
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer

SMALL: dict[str, Any] = {
    "size": 300, "clients": 2, "dim": 8, "rounds": 3, "eval_every": 2, "batch_size": 64, "num_negatives": 4,
    "local_epochs": 1, "device": "cpu",
}  # fmt: skip
WORDS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="the extra tensorboard is not installed"
)
needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="the extra mlflow is not installed"
)


def events(folder: Path) -> dict[str, dict[int, float]]:
    """By name the value of each step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {name: {one.step: one.value for one in read.Scalars(name)} for name in read.Tags()["scalars"]}


@needs_tensorboard
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_each_round_while_it_runs_and_final_figures(tmp_path: Path) -> None:
    spec, folder = make_spec(None, SMALL), tmp_path / "run"
    seen: list[set[int]] = []

    class Looks(Observer):
        def round_done(self, entry: RoundEntry) -> None:
            if entry.round:
                seen.append(set(events(folder / "tensorboard")["round/loss"]))

    trackers = track(["tensorboard"], spec, folder, pytest.fail)
    with Tracked(nullcontext(Looks()), trackers) as observer:
        record = execute(spec, spec.load_graph(), folder, attack=False, observer=observer).record
    assert seen == [{1}, {1, 2}, {1, 2, 3}]
    found = events(folder / "tensorboard")
    assert found["round/loss"] == pytest.approx({one.round: one.loss for one in record.rounds if one.round})
    assert set(found["round/valid_mrr"]) == {2, 3}
    assert found["round/bytes_up"][3] == record.rounds[3].bytes_up
    mrr = record.utility["mrr"]
    final = [next(iter(found[name].values())) for name in ("mrr", "mrr_low", "mrr_high")]
    assert final == pytest.approx([mrr.value, mrr.low, mrr.high])


@needs_tensorboard
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_that_is_gone_on_with_has_each_round_once(tmp_path: Path) -> None:
    """Rounds before the kill are told again; and of a run that was finished before, all of them."""
    spec, folder = make_spec(None, SMALL), tmp_path / "run"

    class Killed(Observer):
        def round_done(self, entry: RoundEntry) -> None:
            if entry.round == 2:
                raise KeyboardInterrupt

    def train(inner: Observer, name: str) -> Record:
        with Tracked(nullcontext(inner), track([name], spec, folder, pytest.fail)) as observer:
            return execute(
                spec, spec.load_graph(), folder, attack=False, observer=observer, checkpoint_every_s=0
            ).record  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        train(Killed(), "tensorboard")
    assert "mrr" not in events(folder / "tensorboard")
    train(Observer(), "tensorboard")
    train(Observer(), f"tensorboard:{tmp_path / 'events'}")
    for place in (folder / "tensorboard", tmp_path / "events" / "run"):
        found = events(place)
        assert set(found["round/loss"]) == {1, 2, 3}
        assert "mrr_high" in found


class Recorded:
    """Keeps what it is told."""

    def __init__(self, *, fails_in: int | None = None) -> None:
        self.rounds: list[int] = []
        self.closed: list[Record | None] = []
        self._fails_in = fails_in

    def log(self, round: int, values: Any) -> None:
        if round == self._fails_in:
            raise ConnectionError("https://me:secret@host refused")
        self.rounds.append(round)

    def close(self, record: Record | None) -> None:
        self.closed.append(record)


def test_a_tracker_that_fails_ends_no_training_and_is_said_once(tmp_path: Path) -> None:
    spec, said = make_spec(None, SMALL), []
    good, bad = Recorded(), Recorded(fails_in=1)

    def broken() -> Recorded:
        raise OSError("no such host")

    makers = {"good": lambda: good, "bad": lambda: bad, "broken": broken}
    with Tracked(nullcontext(Observer()), Trackers(makers, tmp_path / "run", "mrr", said.append)) as observer:
        record = execute(spec, spec.load_graph(), tmp_path / "run", attack=False, observer=observer).record
    assert said == [
        "warning: broken: no such host; the training goes on without it",
        "warning: bad: https://host refused; the training goes on without it",
    ]
    assert (good.rounds, good.closed) == ([0, 1, 2, 3], [record])
    assert (bad.rounds, bad.closed) == ([0], [])


@needs_tensorboard
def test_a_run_that_is_refused_writes_no_events(tmp_path: Path) -> None:
    """Curves of the run that lies in the folder stay as they are."""
    spec = make_spec(None, SMALL)
    execute(spec, spec.load_graph(), tmp_path, attack=False)
    other = spec.replace(dim=9)
    with (
        pytest.raises(RunError, match=r"another run|other options"),
        Tracked(nullcontext(Observer()), track(["tensorboard"], other, tmp_path, pytest.fail)) as observer,
    ):
        execute(other, other.load_graph(), tmp_path, attack=False, observer=observer)
    assert not (tmp_path / "tensorboard").exists()


def test_shadow_federations_are_not_logged(tmp_path: Path) -> None:
    spec, one = make_spec(None, SMALL), Recorded()
    with Tracked(
        nullcontext(Observer()), Trackers({"one": lambda: one}, tmp_path / "run", "mrr", pytest.fail)
    ) as observer:
        execute(spec, spec.load_graph(), tmp_path / "run", attack=False, observer=observer)
        observer.run_started("shadow 1", 3)
        observer.round_done(RoundEntry(1, 0.5, None, 1, 1, 0.1))
    assert one.rounds == [0, 1, 2, 3]


def test_nothing_that_opens_a_run_is_logged(tmp_path: Path) -> None:
    spec = make_spec(None, SMALL | {"defense": "secagg", "protocol_seed": 12345})
    record = execute(spec, spec.load_graph(), tmp_path / "run", attack=False).record
    assert "protocol_seed" not in tracking.public_settings(record)
    assert "12345" not in str(tracking.public_settings(record))
    assert without_passwords("mlflow:http://u:p@h:5000 x@y") == "mlflow:http://h:5000 x@y"


@pytest.mark.parametrize("named", ["wandb", "tensorboard:", "mlflow:", ""])
def test_a_tracker_that_there_is_not(named: str) -> None:
    with pytest.raises(
        SpecError, match=r"^track must be tensorboard, tensorboard:FOLDER, mlflow or mlflow:ADDRESS; got"
    ):
        check_trackers([named])


@needs_tensorboard
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_commands_with_seeds_and_without_the_extra(tmp_path: Path) -> None:
    """Each seed has its own curve; MLflow, which is not there, costs one line for each run."""
    given = ["--track", f"tensorboard:{tmp_path / 'events'}", "--track", "mlflow:http://u:secret@127.0.0.1:9"]
    runner = CliRunner()
    said = runner.invoke(app, ["train", *WORDS, "--seeds", "2", "--out", str(tmp_path / "runs"), "-q", *given])
    assert said.exit_code == 0, said.output
    assert {path.name for path in (tmp_path / "events").iterdir()} == {"seed-0", "seed-1"}
    assert set(events(tmp_path / "events" / "seed-1")["round/loss"]) == {1, 2, 3}
    assert said.output.count("the training goes on without it") == 2
    assert "secret" not in said.output
    refused = runner.invoke(app, ["train", "--track", "wandb"])
    assert (refused.exit_code, refused.output[:33]) == (2, "fkgsec: track must be tensorboard")
    wrong = runner.invoke(app, ["attack", "--run", str(tmp_path / "runs" / "seed-0"), "--track", "tensorboard"])
    assert wrong.exit_code == 2
    assert "leave out --track" in wrong.output


@needs_tensorboard
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_case_of_a_comparison_has_its_curve(tmp_path: Path) -> None:
    """Of its training alone: the round in which clients unlearn afterwards is none of it."""
    frame = make_spec(None, SMALL).load_graph().to_frame()
    triple = frame.loc[frame["split"] == "train", ["head", "relation", "tail"]].iloc[0]
    (tmp_path / "forget.tsv").write_text("\t".join(triple) + "\n")
    given = ["--case", "none", "--case", "fedr", "--unlinked-heads", "0", "--method", "finetune"]
    given += ["--forget", str(tmp_path / "forget.tsv")]
    out, words = tmp_path / "compare", [*WORDS, *given, "--track", f"tensorboard:{tmp_path / 'events'}"]
    said = CliRunner().invoke(app, ["compare", *words, "--out", str(out), "-q"])
    assert said.exit_code == 0, said.output
    for case in ("none", "fedr"):
        logged = events(tmp_path / "events" / case)
        record = read_record(out / case / "record.json")
        assert logged["round/loss"] == {
            entry.round: pytest.approx(entry.loss) for entry in record.rounds if entry.loss is not None
        }


@pytest.fixture
def server() -> Iterator[str]:
    """A server that answers nothing but errors."""

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_error(403)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{one.server_port}"
        one.shutdown()


@needs_mlflow
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow(tmp_path: Path, server: str) -> None:
    """A store in a file gets rounds and final figures, gone on with after a kill; a server that refuses ends nothing."""
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

    spec, store = make_spec(None, SMALL), f"sqlite:///{tmp_path / 'mlflow.db'}"

    class Killed(Observer):
        def round_done(self, entry: RoundEntry) -> None:
            if entry.round == 2:
                raise KeyboardInterrupt

    def train(inner: Observer, where: str, warn: Any) -> None:
        with Tracked(nullcontext(inner), track([f"mlflow:{where}"], spec, tmp_path / "run", warn)) as observer:
            execute(spec, spec.load_graph(), tmp_path / "run", attack=False, observer=observer, checkpoint_every_s=0)

    with pytest.raises(KeyboardInterrupt):
        train(Killed(), store, pytest.fail)
    train(Observer(), store, pytest.fail)
    client = MlflowClient(tracking_uri=store)
    [run] = client.search_runs([client.get_experiment_by_name("fkgsec").experiment_id])
    assert run.info.status == "FINISHED"
    assert {one.step for one in client.get_metric_history(run.info.run_id, "round/loss")} == {1, 2, 3}
    mrr = read_record(tmp_path / "run" / "record.json").utility["mrr"]
    assert run.data.metrics["mrr_low"] == pytest.approx(mrr.low)
    said: list[str] = []
    train(Observer(), server, said.append)
    assert len(said) == 1
