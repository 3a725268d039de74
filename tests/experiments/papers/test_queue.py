"""`fkgsec experiment run --all`: which runs cells are missing, what they are expected to take, and how they are made."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from typer.testing import CliRunner

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.cli.progress import unobserved
from fkgsec.experiments.papers.estimates import (
    TIMED_CLIENTS,
    Costs,
    Entry,
    Timed,
    Timings,
    entries_of,
    papers_rounds,
    time_spec,
    time_training,
)
from fkgsec.experiments.papers.queue import Job, wanted_runs
from fkgsec.experiments.papers.results import Results, run_key
from fkgsec.experiments.papers.spec import Experiment, find_experiment, read_experiment
from fkgsec.experiments.papers.workers import CutOff, run_jobs
from fkgsec.experiments.reporting.summary import __file__ as summary_file
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.spec import GraphSpec, RunSpec, Spec
from fkgsec.federation.task import TASKS

RESULTS = Path(summary_file).resolve().parents[2] / "results"
FEDR = RESULTS / "ddb14-fed5-fedr.json"
TABLE = """
title: A table
paper: Nobody 2024, Nothing
table: Table 1
paper_settings: {size: 300, dim: 4, batch_size: 64, num_negatives: 4, rounds: 2, patience: 0, eval_every: 1, clients: 2}
columns: [{name: two}, {name: lost, paper_settings: {data: ./nowhere, size: null}}]
rows:
  - {name: FedE, paper_settings: {algorithm: fede}, figures: {two: {mrr: 0.5, r@cg: 7}}}
  - {name: Twice, paper_settings: {algorithm: fede}, figures: {two: {mrr: 0.5}}}
  - name: FedR
    paper_settings: {algorithm: fedr}
    choose: {option: gamma, values: [8, 10], why: tried}
    figures: {two: {mrr: 0.4}}
"""


def experiment_of(folder: Path, text: str = TABLE, name: str = "tiny") -> Experiment:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return read_experiment(path)


ALL = Path("all")


@pytest.fixture(scope="module")
def fedr() -> Record:
    return read_record(FEDR)


# What is missing.


def test_cells_that_share_a_run_share_it_and_every_candidate_is_one(tmp_path: Path) -> None:
    wanted = wanted_runs([experiment_of(tmp_path)], Results(), ALL, num_seeds=1, only="two")
    assert [(one.cells, one.spec.algorithm, one.spec.document()["gamma"], one.attack) for one in wanted] == [
        (("tiny: FedE two", "tiny: Twice two"), "fede", 10.0, False),
        (("tiny: FedR two",), "fedr", 8.0, False),
        (("tiny: FedR two",), "fedr", 10.0, False),
    ]
    assert wanted[0].command == "fkgsec experiment run tiny --only 'FedE two' --seeds 1"
    assert len({one.folder for one in wanted}) == 3
    with pytest.raises(SpecError, match="no cell has 'nothing'"):
        wanted_runs([experiment_of(tmp_path)], Results(), ALL, num_seeds=1, only="nothing")


def test_each_seed_divides_the_data_anew_if_the_table_says_so(tmp_path: Path) -> None:
    for divisions, split_seeds in (("one", {0}), ("by seed", {0, 1, 2})):
        table = experiment_of(tmp_path, f"{TABLE}divisions: {divisions}\n")
        jobs = wanted_runs([table], Results(), tmp_path, num_seeds=3, only="FedE two")
        assert {job.spec.seed for job in jobs} == {0, 1, 2}
        assert {job.spec.split_seed for job in jobs} == split_seeds


def test_an_attacked_run_serves_cells_that_need_no_attack(tmp_path: Path) -> None:
    attacked = TABLE.replace("title:", "attack: true\ntitle:").replace("clients: 2", "clients: 2, leak: [1.0]")
    plain, other = experiment_of(tmp_path), experiment_of(tmp_path, attacked, "attacked")
    wanted = wanted_runs([plain, other], Results(), ALL, num_seeds=1, only="FedE two")
    (one,) = wanted
    assert one.attack
    assert one.cells == ("attacked: FedE two", "tiny: FedE two")


def test_finished_seeds_count_whichever_they_are_and_variants_are_left_out(fedr: Record) -> None:
    table = read_experiment(find_experiment("zhang2022_fedr_table2"))
    small = read_experiment(find_experiment("zhang2022_fedr_table2_small"))
    only = "TransE FedR DDB14 C5"
    assert not wanted_runs([table, small], Results([fedr]), ALL, num_seeds=1, only=only)
    (one,) = wanted_runs([table, small], Results([fedr]), ALL, num_seeds=2, only=only)
    assert one.spec.seed == 0  # 12345 is finished
    both = wanted_runs([table], Results(), ALL, num_seeds=2, only=only)
    assert [run.spec.seed for run in both] == [0, 1]
    assert both[1].command.endswith("--seeds 2")


# Estimates.


def timings_of(folder: Path, **seconds: float) -> Timings:
    """Of one second an epoch and half a second a validation; other seconds by algorithm."""

    def measure(spec: RunSpec, graph: Any) -> Timed:
        return Timed(seconds.get(spec.algorithm, 1.0), 0.5, 300, 60, spec.algorithm)

    return Timings(folder, measure)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        Spec(size=600, dim=8, num_negatives=4, clients=5, batch_size=32, local_epochs=2, patience=0),
        Spec(size=600, dim=8, algorithm="fedlu", num_negatives=4, batch_size=64, patience=0),
        GraphSpec(algorithm="fedavg", width=8, data="motifs", clients=3, size=150),
    ],
)
def test_a_timing_is_near_what_rounds_take(spec: Spec | GraphSpec) -> None:
    """Rounds are timed whole beside it, by CPU seconds; the machine may be shared."""
    graph = spec.load_graph()
    timed = time_spec(spec, graph)
    task = TASKS[spec.task](graph, spec.federation_options())
    places = list(range(len(task.names)))

    def rounds() -> None:
        for number in range(1, 6):
            task.begin_round()
            task.train(number, places, lambda: None)

    rounds()
    began = time.process_time()
    rounds()
    whole = (time.process_time() - began) / 5
    assert 1 / 3 < timed.epoch_s * spec.local_epochs / whole < 3
    assert timed.validation_s > 0
    assert timed.num_train == sum(len(client.train) for client in graph.clients)


def test_clients_between_those_that_are_timed_are_interpolated() -> None:
    """Ten clients, of whom four are timed; a step is 2 ms for each."""

    class Ten:
        names, sizes = [str(place) for place in range(10)], [100 * (place + 1) for place in range(10)]
        trained: ClassVar[set[int]] = set()

        def begin_round(self) -> None: ...

        def num_steps(self, places: list[int]) -> int:
            return sum(self.sizes[place] for place in places) // 10

        def train(self, number: int, places: list[int], on_step: Callable[[], None]) -> None:
            self.trained.update(places)
            for _ in range(self.num_steps(places)):
                until = time.process_time() + 0.002
                while time.process_time() < until:
                    pass
                on_step()

    task = Ten()
    assert time_training(task) == pytest.approx(0.002 * 550, rel=0.2)  # type: ignore[arg-type]
    assert len(task.trained) == TIMED_CLIENTS


def test_runs_that_differ_in_what_takes_no_time_share_a_timing(tmp_path: Path) -> None:
    timings = timings_of(tmp_path)
    spec = Spec(algorithm="fede", seed=0, learning_rate=0.1, rounds=9)
    same = [
        spec.replace(seed=4),
        spec.replace(rounds=3, learning_rate=0.2, local_epochs=1),
        spec.replace(algorithm="feds"),
    ]
    other = [
        spec.replace(dim=64),
        spec.replace(num_negatives=9),
        spec.replace(data="UMLS"),
        spec.replace(algorithm="fedlu"),
    ]
    assert len(timings.missing([spec, *same])) == 1
    assert len(timings.missing([spec, *same, *other])) == 5
    timings.of(spec, object())
    assert not Timings(tmp_path).missing([spec, *same])  # another process reads them
    assert len(Timings(tmp_path).missing(other)) == 4
    (tmp_path / "timings.json").write_text("{")
    assert Timings(tmp_path).missing([spec])


def test_an_estimate_is_rounds_times_what_was_timed(fedr: Record, tmp_path: Path) -> None:
    costs = Costs([fedr], timings=timings_of(tmp_path, fedr=2.0))
    found = costs.of(fedr.spec.replace(seed=7), graph=object())
    assert found.round_s == pytest.approx(3 * 2.0 + 0.5 / 5)  # three epochs, a validation every five rounds
    assert (found.rounds, found.seconds) == (65, pytest.approx(65 * found.round_s))
    assert found.left(60) == pytest.approx(5 * found.round_s)
    assert found.left(90) == pytest.approx(found.round_s)
    assert found.says == "6.1 s per round, 65 rounds (records of the same run)"


def test_rounds_are_the_papers_or_those_of_like_runs_or_the_bound(fedr: Record, tmp_path: Path) -> None:
    spec, timings = fedr.spec.replace(data="elsewhere"), timings_of(tmp_path)

    def rounds(records: list[Record], spec: RunSpec, printed: dict[RunSpec, int] | None = None) -> tuple[int, str]:
        found = Costs(records, printed, timings).of(spec, graph=object())
        return found.rounds, found.says.partition("(")[2].removesuffix(")")

    assert rounds([fedr], spec) == (65, "records of similar runs on other data")
    assert rounds([fedr], spec, {run_key(spec, attack=False): 105}) == (
        105 + 5 * 5,
        "the paper's best round plus patience",
    )
    rotate = spec.replace(model="rotate")
    assert rounds([fedr], rotate) == (65, "records of similar runs on other data and with other models")
    assert rounds([], rotate) == (300, "the most that the settings allow")
    assert rounds([fedr], rotate.replace(patience=0, rounds=9)) == (9, "all: early stopping is off")


def test_attacks_count_where_a_record_has_their_seconds(fedr: Record, tmp_path: Path) -> None:
    spec = fedr.spec.replace(threat=["collusion"])
    attacked = msgspec.structs.replace(
        fedr, spec=spec, environment=msgspec.structs.replace(fedr.environment, attack_s=30.0)
    )
    num_train = sum(client["train"] for client in fedr.data.clients.values())
    costs = Costs([attacked], timings=timings_of(tmp_path))
    found = costs.of(spec.replace(data="elsewhere"), attack=True, graph=object())
    assert found.attack_s == pytest.approx(30.0 * 300 / num_train)
    assert "of attacks (from records" in found.says
    other = costs.of(spec.replace(data="elsewhere", threat=["server"]), attack=True, graph=object())
    assert (other.attack_s, "without attacks" in other.says) == (0.0, True)


def test_the_papers_own_rounds_are_read_from_its_cells() -> None:
    table = read_experiment(find_experiment("zhang2024_feds_table4"))
    cell = next(one for one in table.cells if one.name == "TransE FedS R3")
    assert cell.spec
    assert papers_rounds([table])[run_key(cell.spec, attack=False)] == 105


# The runs.


def plan_in(folder: Path, only: str = "", text: str = TABLE) -> list[Entry]:
    """Of the tiny table."""
    wanted = wanted_runs([experiment_of(folder.parent, text)], Results(), folder, num_seeds=1, only=only)
    return entries_of(wanted, Costs([], timings=timings_of(folder.parent / "cache")))


def make_all(plan: list[Entry], **how: Any) -> list[tuple[Job, Exception | None]]:
    return list(run_jobs([one.job for one in plan], count=1, observe=unobserved, **how))


def test_data_that_are_not_there_are_said(tmp_path: Path) -> None:
    plan = plan_in(tmp_path / "all")
    assert [one.state for one in plan] == ["to make", "cannot be made", *["to make"] * 2, *["cannot be made"] * 2]
    assert all("nowhere" in one.error for one in plan if one.error)


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    ended = make_all(plan_in(tmp_path / "all", "two"), until=time.monotonic())
    assert all(isinstance(error, CutOff) for _, error in ended)
    assert not (tmp_path / "all").exists()


@pytest.mark.slow
def test_time_cuts_a_run_off_which_goes_on_to_the_same_figures(tmp_path: Path) -> None:
    long = TABLE.replace("size: 300", "size: 4000").replace("rounds: 2", "rounds: 60").replace("dim: 4", "dim: 64")

    def work(folder: Path, seconds: float) -> tuple[Job, Exception | None]:
        (found,) = make_all(plan_in(folder, "FedE two", long), until=time.monotonic() + seconds)
        return found

    (whole, error), seconds = work(tmp_path / "whole", 600), 4.0
    assert error is None
    while isinstance((ended := work(tmp_path / "cut", seconds))[1], CutOff):
        assert not ended[0].record_file.exists()
        seconds *= 2
    assert seconds > 4.0
    first, second = read_record(whole.record_file), read_record(ended[0].record_file)
    assert first.utility == second.utility
    assert [one.loss for one in first.rounds] == [one.loss for one in second.rounds]


# The command.


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--all"], "hours: --all needs --hours"),
        (["--all", "zhang2022_fedr_table2", "--hours", "1"], "SPEC does not apply to --all"),
        (["--all", "--hours", "1", "--jobs", "2"], "--jobs does not apply to --all"),
        (["--all", "--hours", "1", "--threads", "4096"], "threads must be at most the machine's"),
        (["zhang2022_fedr_table2", "--hours", "1"], "--hours does not apply to a table"),
        ([], "SPEC is missing: name an experiment"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, given: list[str], says: str) -> None:
    out = ["--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["experiment", "run", *given, *out])
    assert result.exit_code == 2
    assert says in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_plan_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = ["experiment", "run", "--all", "--dry-run", "--hours", "1", "--only", "TransE DDB14 C5", "--seeds", "3"]
    result = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "TransE Local DDB14 C5" in result.output
    assert "records of the same run" in result.output
    assert "Timing training steps of" in result.output
    assert "runs are expected to end within" in result.output
    assert not (tmp_path / "out").exists()
