"""Tables of graph classification: their metrics, rows that share their runs, and runs in processes of their own."""

import multiprocessing
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from fkgsec.errors import RunError, SpecError
from fkgsec.estimate import proportion
from fkgsec.experiments.cli.progress import RunLines, observe_on, unobserved
from fkgsec.experiments.papers.queue import Job
from fkgsec.experiments.papers.results import Results
from fkgsec.experiments.papers.runner import run_experiment
from fkgsec.experiments.papers.spec import read_experiment
from fkgsec.experiments.papers.table import PaperTable, table_lines, table_of
from fkgsec.experiments.papers.workers import run_jobs
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.tasks.graph import GraphSpec
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Observer

TINY = """
title: Molecules and circles
paper: Nobody 2024, Nothing
table: Table 9
paper_settings: {data: motifs, size: 120, width: 8, batch_size: 32, rounds: 3}
seeds: [0, 1]
also: [clean, bytes]
columns:
  - {name: three, paper_settings: {clients: 3}}
rows:
  - name: GIN FedAvg
    paper_settings: {algorithm: fedavg, model: gin}
    figures: {three: {accuracy: 0.5}}
  - name: GIN FedPer
    same_as: GIN FedAvg
    why: first and last layers stay a client's own
    figures: {three: {accuracy: 0.6}}
  - name: GIN Local
    paper_settings: {algorithm: local-gc, model: gin}
    figures: {three: {accuracy: null}}
"""


def write(folder: Path, text: str = TINY) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny table, finished."""
    folder = tmp_path_factory.mktemp("graphs")
    outcome = run_experiment(write(folder), out=folder / "out", observe=unobserved)
    assert not outcome.failures
    return folder


def records(folder: Path) -> dict[str, Record]:
    return {path.parent.name: read_record(path) for path in sorted(folder.glob("*/record.json"))}


def test_a_row_of_anothers_runs_is_trained_once(ran: Path) -> None:
    found = records(ran / "out")
    assert list(found) == [f"GIN-{name}-three-seed{seed}" for name in ("FedAvg", "Local") for seed in (0, 1)]
    table = msgspec.json.decode((ran / "out" / "table.json").read_bytes(), type=PaperTable)
    fedavg, fedper, local = table.cells
    assert fedper.remarks[0] == "trained as GIN FedAvg: first and last layers stay a client's own"
    assert [figure.ours for figure in fedper.figures] == [figure.ours for figure in fedavg.figures]
    assert fedper.figures[0].difference == pytest.approx(fedavg.figures[0].difference - 0.1)  # type: ignore[operator]
    assert local.figures[0].difference is None


def test_figures_and_their_intervals(ran: Path) -> None:
    """Over the seeds by Student; for the test graphs the mean of the seeds' own ends; those with a twin apart."""
    table = msgspec.json.decode((ran / "out" / "table.json").read_bytes(), type=PaperTable)
    found = [read_record(ran / "out" / f"GIN-FedAvg-three-seed{seed}" / "record.json") for seed in (0, 1)]
    accuracy, clean, sent = table.cells[0].figures
    assert (accuracy.metric, clean.metric, sent.metric) == ("accuracy", "clean", "bytes")
    for figure, own in (
        (accuracy, [one.utility["accuracy"] for one in found]),
        (clean, [one.utility_by_leak["clean"]["accuracy"] for one in found]),
    ):
        assert figure.ours
        assert figure.sampled
        assert figure.ours.value == pytest.approx((own[0].value + own[1].value) / 2)
        assert figure.sampled == pytest.approx([sum(one.low for one in own) / 2, sum(one.high for one in own) / 2])
    assert sent.sampled is None
    assert sent.ours
    assert sent.ours.value == (found[0].bytes.up + found[0].bytes.down) / 2**20
    text = "\n".join(table_lines(table))
    assert "Test accuracy, on graphs without a twin in train" in text
    assert "the last column is the interval for the draw of these" in text
    assert "triples" not in text


@pytest.mark.slow
def test_processes_train_to_the_same_bits_as_this_one(ran: Path, tmp_path: Path) -> None:
    outcome = run_experiment(write(tmp_path), out=tmp_path / "out", observe=unobserved, jobs=2)
    assert not outcome.failures
    here, there = records(ran / "out"), records(tmp_path / "out")
    assert here.keys() == there.keys()
    for name, record in there.items():
        assert record.utility == here[name].utility
        assert [one.loss for one in record.rounds] == [one.loss for one in here[name].rounds]
        assert record.environment.threads == 1


@pytest.mark.slow
def test_a_process_that_is_killed_takes_no_other_run_along(tmp_path: Path) -> None:
    """Of three runs the first is killed; given again, it goes on."""
    specs = [
        GraphSpec(data="motifs", size=120, clients=3, width=8, batch_size=32, rounds=40, seed=seed) for seed in range(3)
    ]
    jobs = [Job(f"run {spec.seed}", spec, tmp_path / str(spec.seed)) for spec in specs]
    killed: list[bool] = []

    class Kill(Observer):
        def round_done(self, entry: RoundEntry) -> None:
            if not killed:
                killed.append(True)
                multiprocessing.active_children()[0].kill()

    def observe(spec: Any, name: str) -> AbstractContextManager[Observer]:
        return nullcontext(Kill())

    ended = list(run_jobs(jobs, count=1, observe=observe))
    assert [(job.name, error is None) for job, error in ended] == [("run 0", False), ("run 1", True), ("run 2", True)]
    assert "its process ended with status -9" in str(ended[0][1])
    assert not (tmp_path / "0" / "record.json").exists()
    assert [error for _, error in run_jobs(jobs[:1], count=1, observe=unobserved)] == [None]
    assert read_record(tmp_path / "0" / "record.json").rounds[-1].round == 40


@pytest.mark.slow
def test_what_goes_wrong_in_a_process_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    job = Job("run", GraphSpec(data="motifs", size=120, clients=3, rounds=1, width=8), tmp_path / "file")
    ((_, error),) = run_jobs([job], count=2, observe=unobserved)
    assert isinstance(error, RunError)
    assert "cannot be made" in str(error)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "same_as: GIN FedAvg",
            "same_as: GIN FedAgv",
            "same_as: no row 'GIN FedAgv' with runs of its own; allowed: GIN FedAvg",
        ),
        ("same_as: GIN FedAvg", "same_as: GIN FedPer", "same_as: no row 'GIN FedPer' with runs of its own"),
        (
            "    why: first and last layers stay a client's own\n",
            "",
            "why: must state why its runs are those of GIN FedAvg",
        ),
        (
            "    why: first",
            "    paper_settings: {model: gcn}\n    why: first",
            "which has the settings; leave them out",
        ),
        ("also: [clean, bytes]", "also: [clear]", "Invalid enum value 'clear'"),
    ],
)
def test_wrong_rows_are_refused(old: str, new: str, says: str, tmp_path: Path) -> None:
    assert old in TINY
    with pytest.raises(SpecError, match=r"tiny\.yaml") as refused:
        read_experiment(write(tmp_path, TINY.replace(old, new)))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_client_whose_test_graphs_all_have_a_twin_gives_a_reason(ran: Path) -> None:
    experiment = read_experiment(ran / "tiny.yaml")
    one = read_record(ran / "out" / "GIN-FedAvg-three-seed0" / "record.json")
    results = Results()
    results.add(
        msgspec.structs.replace(one, utility_by_leak=one.utility_by_leak | {"clean": {"accuracy": proportion(0, 0)}})
    )
    figures = {figure.metric: figure for figure in table_of(experiment, results).cells[0].figures}
    assert figures["clean"].reason == "no test graphs"
    assert figures["accuracy"].ours == one.utility["accuracy"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands until it is set."""
    now = [0.0]
    monkeypatch.setattr("fkgsec.experiments.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_runs_at_a_time_tell_of_themselves_now_and_then(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    observe = observe_on(Console(width=200), enabled=True, together=True)
    with observe(GraphSpec(rounds=9), "GIN FedAvg, seed 0") as lines:
        assert isinstance(lines, RunLines)
        for number, now in enumerate((1.0, 16.0, 17.0, 20.0), 1):
            clock[0] = now
            lines.round_done(RoundEntry(number, 0.5, 0.25, 0, 0, 1.0))
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "GIN FedAvg, seed 0: round 2 of 9, accuracy 0.2500 (16 s)",
        "GIN FedAvg, seed 0: round 4 of 9, accuracy 0.2500 (20 s)",
    ]
