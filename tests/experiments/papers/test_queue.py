"""`fkgsec experiment run --all`: which runs cells are missing, what they are expected to take, and a queue on disk."""

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.cli.progress import Trained
from experiments.papers import estimates
from experiments.papers.estimates import ASSUMED_ROUNDS, Costs, timed_attack_rate, timed_rate
from experiments.papers.queue import QUEUE_FILE, Entry, Queue, held, papers_rounds, read_queue, wanted_runs
from experiments.papers.runner import Results, find_results, run_key
from experiments.papers.spec import Experiment, find_experiment, read_experiment
from experiments.reporting.summary import __file__ as summary_file
from experiments.runs.record import Record, read_record
from experiments.runs.spec import GraphSpec, Spec
from experiments.tasks.task import task_of
from fkgsec.errors import RunError, SpecError
from fkgsec.federation.loop import Observer

RESULTS = Path(summary_file).parents[1] / "results"
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


def nothing() -> dict[bool, Results]:
    return {attack: Results(attack=attack) for attack in (False, True)}


def results_of(*records: Record) -> dict[bool, Results]:
    found = nothing()
    for record in records:
        for one in found.values():
            one.add(record)
    return found


def quiet(options: Trained, name: str) -> nullcontext[Observer]:
    return nullcontext(Observer())


@pytest.fixture(scope="module")
def fedr() -> Record:
    return read_record(FEDR)


# What is missing.


def test_cells_that_share_a_run_share_it_and_every_candidate_is_one(tmp_path: Path) -> None:
    wanted = wanted_runs([experiment_of(tmp_path)], nothing(), num_seeds=1, only="two")
    assert [(one.cells, one.spec.algorithm, one.spec.document()["gamma"], one.attack) for one in wanted] == [
        (("tiny: FedE two", "tiny: Twice two"), "fede", 10.0, False),
        (("tiny: FedR two",), "fedr", 8.0, False),
        (("tiny: FedR two",), "fedr", 10.0, False),
    ]
    assert wanted[0].command == "fkgsec experiment run tiny --only 'FedE two' --seeds 1"
    assert len({one.folder_name for one in wanted}) == 3
    with pytest.raises(SpecError, match="no cell has 'nothing'"):
        wanted_runs([experiment_of(tmp_path)], nothing(), num_seeds=1, only="nothing")


def test_an_attacked_run_serves_cells_that_need_no_attack(tmp_path: Path) -> None:
    attacked = TABLE.replace("title:", "attack: true\ntitle:").replace("clients: 2", "clients: 2, leak: [1.0]")
    plain, other = experiment_of(tmp_path), experiment_of(tmp_path, attacked, "attacked")
    wanted = wanted_runs([plain, other], nothing(), num_seeds=1, only="FedE two")
    (one,) = wanted
    assert one.attack
    assert one.cells == ("attacked: FedE two", "tiny: FedE two")


def test_finished_seeds_count_whichever_they_are_and_variants_are_left_out(fedr: Record) -> None:
    table = read_experiment(find_experiment("zhang2022_fedr_table2"))
    small = read_experiment(find_experiment("zhang2022_fedr_table2_small"))
    only = "TransE FedR DDB14 C5"
    assert not wanted_runs([table, small], results_of(fedr), num_seeds=1, only=only)
    (one,) = wanted_runs([table, small], results_of(fedr), num_seeds=2, only=only)
    assert one.spec.seed == 0  # 12345 is finished
    both = wanted_runs([table], nothing(), num_seeds=2, only=only)
    assert [run.spec.seed for run in both] == [0, 1]
    assert both[1].command.endswith("--seeds 2")


# Estimates.


def test_a_measured_run_is_estimated_by_its_own_rounds(fedr: Record) -> None:
    costs = Costs([fedr], papers_rounds={}, sizes={})
    found = costs.of(fedr.spec.replace(seed=7))
    mean = sum(entry.seconds for entry in fedr.rounds[1:]) / 65
    assert found.round_s == pytest.approx(mean)
    assert found.rounds == 65
    assert found.seconds == pytest.approx(65 * mean)
    assert found.left(60) == pytest.approx(5 * mean)
    assert found.left(90) == pytest.approx(mean)
    assert "measured; 65 rounds: measured" in found.says


def test_other_runs_are_scaled_by_their_work(fedr: Record) -> None:
    sizes = {"half": sum(client["train"] for client in fedr.data.clients.values()) // 2}
    costs = Costs([fedr], papers_rounds={}, sizes=sizes)
    same = costs.of(fedr.spec).round_s
    # Half of the triples, twice the dimension, a third of the epochs, 128 + 1 scores a triple where 256 + 1 were.
    spec = fedr.spec.replace(data="half", dim=2 * fedr.spec.document()["dim"], local_epochs=1, num_negatives=128)
    found = costs.of(spec)
    assert found.round_s == pytest.approx(same / 2 * 2 / 3 * 129 / 257, rel=1e-4)
    assert "scaled from transe fedr" in found.says
    assert "scaled from transe;" in costs.of(spec.replace(algorithm="fede")).says.replace(": scaled", ": scaled")


def test_rounds_are_the_papers_or_as_on_other_data_or_assumed(fedr: Record) -> None:
    spec = fedr.spec.replace(data="elsewhere")
    sizes = {"elsewhere": 1000}
    assert Costs([fedr], papers_rounds={}, sizes=sizes).of(spec).rounds == 65  # stopped by validation, before 300
    printed = {run_key(spec, attack=False): 105}
    assert Costs([fedr], papers_rounds=printed, sizes=sizes).of(spec).rounds == 105 + 5 * 5
    rotate = spec.replace(model="rotate")
    costs = Costs([fedr], papers_rounds={}, sizes=sizes, time_round=lambda spec: 1e-9)
    assert costs.of(rotate).rounds == ASSUMED_ROUNDS + 25
    assert "short timing" in costs.of(rotate).says
    assert costs.of(rotate.replace(patience=0, rounds=9)).rounds == 9


def test_rounds_are_scaled_from_those_that_are_nearest_in_work(fedr: Record) -> None:
    small = [
        msgspec.structs.replace(
            fedr,
            spec=fedr.spec.replace(data=f"small{number}"),
            data=msgspec.structs.replace(fedr.data, clients={"a": {"train": 100 + number}}),
        )
        for number in range(9)
    ]
    sizes = {"large": 3 * sum(client["train"] for client in fedr.data.clients.values())}
    large = fedr.spec.replace(data="large")
    alone = Costs([fedr], papers_rounds={}, sizes=dict(sizes)).of(large).round_s
    costs = Costs(
        [*small, *[fedr] * 3], papers_rounds={}, sizes=sizes
    )  # a round of the small ones takes as long all the same
    assert costs.of(large).round_s == pytest.approx(alone)


def test_attacks_count_by_recorded_seconds_or_a_timing(fedr: Record) -> None:
    spec = fedr.spec.replace(threat=["collusion"])
    sizes = {"twice": 2 * sum(client["train"] for client in fedr.data.clients.values())}
    environment = msgspec.structs.replace(fedr.environment, attack_s=30.0)
    attacked = msgspec.structs.replace(fedr, spec=spec, environment=environment)
    costs = Costs([attacked], papers_rounds={}, sizes=sizes, time_attacks=lambda spec: 0.5)
    plain, found = costs.of(spec.replace(data="twice")), costs.of(spec.replace(data="twice"), attack=True)
    assert found.attack_s == pytest.approx(60.0)
    assert found.seconds == pytest.approx(plain.seconds + 60.0)
    assert found.left(found.rounds) == pytest.approx(found.round_s + 60.0)
    assert "60 s of attacks: measured" in found.says
    other = costs.of(spec.replace(data="twice", threat=["server"]), attack=True)
    assert other.attack_s == pytest.approx(0.5 * sizes["twice"])
    assert "short timing" in other.says


def test_the_papers_own_rounds_are_read_from_its_cells() -> None:
    table = read_experiment(find_experiment("zhang2024_feds_table4"))
    cell = next(one for one in table.cells if one.name == "TransE FedS R3")
    assert cell.spec
    assert papers_rounds([table])[run_key(cell.spec, attack=False)] == 105


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [Spec(model="distmult", dim=8, num_negatives=4), GraphSpec(algorithm="fedavg", width=8)]
)
def test_a_short_timing_is_of_a_round(spec: Spec | GraphSpec) -> None:
    assert 0 < timed_rate(spec) < 1.0


@pytest.mark.slow
def test_a_short_timing_of_attacks_is_by_training_item() -> None:
    assert 0 < timed_attack_rate(Spec(dim=8, num_negatives=4, threat=("collusion",))) < 1.0


def test_a_short_timing_of_an_encoder_leaves_out_most_of_its_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec(model="kb-gat", dim=4, local_epochs=500, decoder_epochs=150)
    trained: list[Spec] = []
    monkeypatch.setattr(estimates, "run_federation", lambda graph, options: trained.append(options) or _one_second())
    work = task_of(spec).work
    assert timed_rate(spec) * work(spec.replace(local_epochs=1, decoder_epochs=1), 1210) == pytest.approx(1.0)
    assert (trained[0].local_epochs, trained[0].decoder_epochs) == (1, 1)
    assert work(spec, 10) > work(spec.replace(decoder_epochs=5), 10)


def _one_second() -> SimpleNamespace:
    return SimpleNamespace(rounds=[SimpleNamespace(seconds=1.0)])


# The queue.


def queue_of(folder: Path, only: str = "", **times: float) -> Queue:
    """Of the tiny table, with rounds of these seconds by algorithm."""
    wanted = wanted_runs([experiment_of(folder.parent)], nothing(), num_seeds=1, only=only)
    sizes = read_queue(folder).sizes | {"consortium": 300}
    seconds = {"fede": 1.0, "fedr": 2.0} | times
    costs = Costs([], papers_rounds={}, sizes=sizes, time_round=lambda spec: seconds[spec.algorithm])
    return Queue(folder, wanted, costs, sizes)


def test_the_cheapest_comes_first_and_data_that_are_not_there_are_said(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "all", fede=5.0)
    assert [entry.cells[0] for entry in queue.plan()] == ["tiny: FedE two", *["tiny: FedR two"] * 2]
    assert {entry.state for entry in queue.impossible()} == {"impossible"}
    assert all("nowhere" in entry.error for entry in queue.impossible())
    assert len(queue.impossible()) == 3


def test_the_file_survives_and_what_failed_comes_last(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "all", "two")
    with held(queue.folder):
        first, second, _ = queue.plan()
        queue._set(first.name, state="failed", error="no memory")
        queue._set(second.name, state="begun", rounds_done=1)
        with pytest.raises(RunError, match="another process is writing here"), held(queue.folder):
            pass
    again = queue_of(tmp_path / "all", "two")
    assert [entry.state for entry in again.plan()] == ["begun", "waiting", "failed"]
    assert again.plan()[0].rounds_done == 1
    assert again.plan()[0].left_s == again.plan()[0].round_s
    assert again.plan()[-1].error == "no memory"
    fewer = queue_of(tmp_path / "all", "FedE two")  # which leaves out the others for now
    with held(fewer.folder):
        fewer.save()
    assert {entry.name for entry in read_queue(tmp_path / "all").entries} == set(queue.entries)
    assert [entry.state for entry in queue_of(tmp_path / "all", "two").plan()] == ["begun", "waiting", "failed"]


@pytest.mark.parametrize("content", ["{", '{"schema": "x", "entries": [], "sizes": {}}'])
def test_a_file_that_is_no_queue_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / QUEUE_FILE).write_text(content)
    with pytest.raises(RunError, match=r"queue.json: not a queue of schema fkgsec/queue/1"):
        read_queue(tmp_path)


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    queue = queue_of(tmp_path / "all", "two")
    with held(queue.folder):
        assert not list(queue.work(until=time.monotonic(), observe=quiet))
    assert {entry.state for entry in read_queue(tmp_path / "all").entries} == {"waiting"}


@pytest.mark.slow
def test_a_run_is_made_in_a_process_of_its_own_and_is_finished_then(tmp_path: Path) -> None:
    plain = TABLE.replace("    choose: {option: gamma, values: [8, 10], why: tried}\n", "")
    table = experiment_of(tmp_path, plain)
    wanted = wanted_runs([table], nothing(), num_seeds=1, only="FedR two")
    queue = Queue(tmp_path / "all", wanted, costs_of_one_second(), {})
    with held(queue.folder):
        (done,) = queue.work(until=time.monotonic() + 300, observe=quiet)
    record = read_record(tmp_path / "all" / done.name / "record.json")
    assert (done.state, done.rounds_done) == ("done", 2)
    assert record.environment.command == done.command == "fkgsec experiment run tiny --only 'FedR two' --seeds 1"
    assert read_queue(tmp_path / "all").entries == [done]
    found, _ = find_results([tmp_path / "all"], attack=False)
    assert not wanted_runs([table], {False: found, True: found}, num_seeds=1, only="FedR two")


def costs_of_one_second() -> Costs:
    return Costs(
        [], papers_rounds={}, sizes={"consortium": 300}, time_round=lambda spec: 1.0 + (spec.algorithm == "fedr")
    )


@pytest.mark.slow
def test_a_failed_run_stops_no_other_and_is_said(tmp_path: Path) -> None:
    wanted = wanted_runs([experiment_of(tmp_path)], nothing(), num_seeds=1, only="two")
    queue = Queue(tmp_path / "all", wanted, costs_of_one_second(), {})
    first, second, third = queue.plan()
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / first.name).write_text("")  # something else stands where its folder is to be
    with held(queue.folder):
        ended = list(queue.work(until=time.monotonic() + 300, observe=quiet))
    assert [(entry.name, entry.state) for entry in ended] == [
        (first.name, "failed"), (second.name, "done"), (third.name, "done"),
    ]  # fmt: skip
    assert str(tmp_path / "all" / first.name) in ended[0].error
    assert {entry.name: entry for entry in read_queue(tmp_path / "all").entries} == {
        entry.name: entry for entry in ended
    }


@pytest.mark.slow
def test_time_cuts_a_run_off_which_goes_on_to_the_same_figures(tmp_path: Path) -> None:
    long = TABLE.replace("size: 300", "size: 4000").replace("rounds: 2", "rounds: 60").replace("dim: 4", "dim: 64")

    def queue(folder: Path) -> Queue:
        wanted = wanted_runs([experiment_of(tmp_path, long)], nothing(), num_seeds=1, only="FedE two")
        return Queue(folder, wanted, Costs([], papers_rounds={}, sizes={"consortium": 4000}), {"consortium": 4000})

    def work(folder: Path, seconds: float) -> Entry:
        one = queue(folder)
        with held(one.folder):
            (entry,) = one.work(until=time.monotonic() + seconds, observe=quiet)
        return entry

    whole, seconds = work(tmp_path / "whole", 600), 3.0
    began = time.monotonic()
    while (entry := work(tmp_path / "cut", seconds)).state == "begun":
        assert time.monotonic() - began < seconds + 3
        began, seconds = time.monotonic(), seconds * 2
        assert not (tmp_path / "cut" / entry.name / "record.json").exists()
    assert seconds > 3.0
    first, second = (read_record(tmp_path / name / entry.name / "record.json") for name in ("whole", "cut"))
    assert whole.name == entry.name
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
        ([], "SPEC: name an experiment"),
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
    asked = ["experiment", "run", "--all", "--dry-run", "--hours", "1", "--only", "TransE DDB14 C5", "--seeds", "3"]
    result = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "TransE Local DDB14 C5" in result.output
    assert "measured" in result.output
    assert "runs are expected to end within" in result.output
    assert not (tmp_path / "out").exists()
