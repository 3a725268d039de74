"""The clients of a run alone: what joining is worth on data made for it, one training for all runs, and the lines of `attack`."""

import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkgsec.attacks.view import ALL
from fkgsec.experiments.cli.progress import unobserved
from fkgsec.experiments.reporting.html.page import assemble, render
from fkgsec.experiments.reporting.reading import read_runs
from fkgsec.experiments.reporting.sheets import interval
from fkgsec.experiments.reporting.worth import counted, gain_sheet, gains, gains_over, worth_lines
from fkgsec.experiments.runs.alone import find_alone, train_alone
from fkgsec.experiments.runs.baseline import alone_spec
from fkgsec.experiments.runs.record import Record, read_record
from fkgsec.experiments.runs.run import execute
from fkgsec.experiments.runs.spec import make_spec
from tests.experiments.commands import fkgsec

OPTIONS = {
    "dim": 16, "batch_size": 32, "num_negatives": 8, "rounds": 30, "eval_every": 30, "learning_rate": 0.05, "device": "cpu",
}  # fmt: skip
SMALL = [
    "--size", "600", "--dim", "8", "--batch-size", "64", "--num-negatives", "8", "--rounds", "2", "--unlinked-heads", "10",
    "--device", "cpu", "--leak", "0.5", "--attack", "reconstruction",
]  # fmt: skip
CLIENTS, LENGTH, NUM_STEPS = 3, 60, 4


def write_lines(folder: Path, *, shared: bool) -> Path:
    """Give each client a third of the steps along one line, or along a line of its own with relations of its own."""
    rng = np.random.default_rng(0)
    steps = [(start, step, start + step) for step in range(1, NUM_STEPS + 1) for start in range(LENGTH - step)]
    for client in range(CLIENTS):
        line = "" if shared else f"{client}-"
        drawn = rng.permutation(len(steps))[: len(steps) // CLIENTS]
        lines = [f"{line}e{steps[i][0]}\t{line}r{steps[i][1]}\t{line}e{steps[i][2]}\n" for i in drawn]
        place, cut = folder / f"client-{client}", len(lines) * 2 // 3
        place.mkdir(parents=True)
        for name, part in (("train", lines[:cut]), ("valid", lines[cut : cut + 5]), ("test", lines[cut:])):
            (place / f"{name}.txt").write_text("".join(part))
    return folder


def joined_and_alone(folder: Path, *, shared: bool, **changes: Any) -> tuple[Record, Record]:
    spec = make_spec(None, {"data": str(write_lines(folder / "data", shared=shared)), **OPTIONS, **changes})
    graph = spec.load_graph()
    record = execute(spec, graph, folder / "joined", attack=False).record
    return record, train_alone(record, graph, folder / "joined", observe=unobserved).record


def test_clients_that_share_entities_gain(tmp_path: Path) -> None:
    pair = joined_and_alone(tmp_path, shared=True)
    gain = gains(*pair)[ALL]
    assert gain.low > 0
    assert gain.value == pytest.approx(pair[0].utility["mrr"].value - pair[1].utility["mrr"].value)
    lines = worth_lines([pair])
    assert lines[0].startswith("Worth joining? test MRR .")
    num_gaining = counted([pair])[0]
    counts = f"{num_gaining} gain, 0 lose, {3 - num_gaining} undecided"
    assert lines[1] == f"Joining pays overall in this training. Of 3 clients, {counts}."
    rows = gain_sheet({"joined": pair}).rows
    assert [row[1] for row in rows] == ["client-0", "client-1", "client-2", ALL]
    assert rows[-1][-1] == "gains"


@pytest.mark.parametrize("algorithm", ["fede", "fedr", "fedep"])
def test_clients_that_share_nothing_gain_nothing(tmp_path: Path, algorithm: str) -> None:
    """The clients alone start a new optimizer in each round, as those of the federation do."""
    pair = joined_and_alone(tmp_path, shared=False, algorithm=algorithm)
    assert {client: gain.value for client, gain in gains(*pair).items()} == dict.fromkeys(
        [*pair[0].data.clients, ALL], 0.0
    )
    assert not worth_lines([pair])[1].startswith("Joining pays")


def test_the_optimizer_alone_would_be_taken_for_a_gain(tmp_path: Path) -> None:
    """The papers' `single` keeps Adam's moments, which differs from FedE without any exchange."""
    record, alone = joined_and_alone(tmp_path, shared=False)
    kept = alone.spec.replace(baseline=None)
    papers = execute(kept, kept.load_graph(), tmp_path / "kept", attack=False).record
    assert alone.spec.settings.baseline == "entities"
    assert papers.utility["mrr"].value != alone.utility["mrr"].value == record.utility["mrr"].value


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"algorithm": "feds", "sparsity": 0.3, "defense": "secagg", "attack": ("edges",)}, {"baseline": "entities"}),
        (
            {"algorithm": "fede", "variant": "published", "rounds": 7, "seed": 5},
            {"variant": "published", "baseline": "entities"},
        ),
        ({"algorithm": "fedlu", "attack_seed": 3}, {}),
        ({"algorithm": "cefgl", "data": "MUTAG", "clients": 2}, {}),
    ],
)
def test_alone_they_train_as_before_without_exchange_defense_and_attacks(
    fields: dict[str, object], kept: dict[str, object]
) -> None:
    spec = make_spec(None, fields)
    alone = alone_spec(spec)
    assert alone.algorithm == {"kge": "single", "graph": "local-gc"}[spec.task]
    assert (alone.defense, alone.attack, alone.attack_seed, alone.settings.given()) == ("", (), None, kept)
    assert (alone.rounds, alone.seed, alone.data, alone.clients) == (spec.rounds, spec.seed, spec.data, spec.clients)
    assert getattr(alone, "temperature", None) == getattr(spec.settled(), "temperature", None)
    assert alone_spec(spec.settled()).federation_options() == alone.settled().federation_options()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("runs")
    status, out, err = fkgsec("attack", *SMALL, "--out", folder / "fede", "--json", folder / "fede.json")
    assert status == 0, err
    return folder, out


def places(folder: Path) -> list[Path]:
    """Folders of clients alone."""
    return sorted(folder.glob("consortium*-single-*"))


def test_an_attack_ends_with_what_joining_is_worth(attacked: tuple[Path, str]) -> None:
    folder, out = attacked
    lines = out.splitlines()
    assert len(lines) <= 20
    ((place, worth),) = [
        (number, line) for number, line in enumerate(lines) if line.startswith("Worth joining? test MRR")
    ]
    assert max(len(worth), len(lines[place + 1])) <= 80
    assert place >= len(lines) - 3
    (alone,) = places(folder)
    pair = read_record(folder / "fede" / "record.json"), read_record(alone / "record.json")
    assert lines[place : place + 2] == worth_lines([pair])
    copy = read_record(folder / "fede.json")
    assert copy.gains == gains(*pair)
    assert json.loads((folder / "fede.json").read_text())["gains"][ALL]["value"] == pytest.approx(
        pair[0].utility["mrr"].value - pair[1].utility["mrr"].value
    )
    shown = fkgsec("show", folder / "fede")[1].splitlines()
    assert shown[-2:] == lines[place : place + 2]
    assert "What joining is worth" in [line.strip() for line in shown]


def test_the_clients_are_trained_alone_once_for_all_runs(attacked: tuple[Path, str]) -> None:
    """Another defense, the same command again, and another attack read the finished training."""
    folder, _ = attacked
    (alone,) = places(folder)
    before = [(file, file.stat().st_mtime_ns) for file in sorted(alone.iterdir())]
    for words in (
        [*SMALL, "--out", folder / "fede"],
        [*SMALL, "--defense", "secagg", "--out", folder / "secagg"],
        ["--run", folder / "fede", "--attack", "edges"],
    ):
        status, out, err = fkgsec("attack", *words)
        assert status == 0, err
        assert "Worth joining? test MRR" in out
        assert "alone" not in err
    assert places(folder) == [alone]
    assert [(file, file.stat().st_mtime_ns) for file in sorted(alone.iterdir())] == before


def test_a_run_alone_has_no_such_line_and_an_option_leaves_it_out(attacked: tuple[Path, str], tmp_path: Path) -> None:
    status, out, err = fkgsec("attack", *SMALL, "--no-single", "--out", tmp_path / "fede")
    assert status == 0, err
    assert "Worth joining" not in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fede"]
    folder, _ = attacked
    (alone,) = places(folder)
    status, out, err = fkgsec("attack", "--run", alone, "--attack", "edges")
    assert status == 0, err
    assert "Worth joining" not in out
    assert find_alone(read_record(alone / "record.json"), alone) is None


def test_a_training_that_cannot_be_written_leaves_the_verdict(
    attacked: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fkgsec.errors import RunError
    from fkgsec.experiments.runs import alone

    def locked(*_: object, **__: object) -> None:
        raise RunError("another process is writing here")

    monkeypatch.setattr(alone, "train_alone", locked)
    status, out, err = fkgsec("attack", *SMALL, "--out", attacked[0] / "fede")
    assert status == 0, err
    assert "Verdict: fede" in out
    assert "Worth joining" not in out
    assert "warning: the clients were not trained alone: another process" in err


def test_a_report_shows_the_gain_of_each_client_or_how_to_get_it(attacked: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = attacked
    (run,) = read_runs([folder / "fede"])
    assert run.alone is not None
    page = render(assemble([run])).replace("\N{NO-BREAK SPACE}", " ")
    for _, client, _, _, gain, words in gain_sheet({"fede": (run.record, run.alone)}).rows:
        assert client in page
        assert escape(interval(gain)) in page
        assert words in page
    assert worth_lines([(run.record, run.alone)])[0].partition(": ")[0] in page
    (tmp_path / "apart").mkdir()
    (folder / "fede").rename(tmp_path / "apart" / "fede")
    try:
        (apart,) = read_runs([tmp_path / "apart" / "fede"])
        assert apart.alone is None
        missing = "trains the same clients alone beside the run"
        assert missing in render(assemble([apart]))
        both = render(assemble(read_runs([tmp_path / "apart" / "fede", *places(folder)])))
        assert missing not in both
        assert worth_lines([(run.record, run.alone)])[1] in both
    finally:
        (tmp_path / "apart" / "fede").rename(folder / "fede")


def test_the_gain_over_seeds_covers_trainings(attacked: tuple[Path, str], tmp_path: Path) -> None:
    status, out, err = fkgsec(
        "attack", *SMALL, "--seeds", "2", "--out", tmp_path / "two", "--json", tmp_path / "two.json"
    )
    assert status == 0, err
    assert len(places(tmp_path / "two")) == 2
    trained = [line for line in err.splitlines() if line.startswith("train the same clients alone")]
    assert trained == [f"train the same clients alone, seed {seed}" for seed in range(2)]
    runs = [read_runs([tmp_path / "two" / f"seed-{seed}"])[0] for seed in range(2)]
    pairs = [(run.record, run.alone) for run in runs if run.alone is not None]
    assert [alone.seed for _, alone in pairs] == [0, 1]
    assert worth_lines(pairs)[0] in out
    overall = gains_over(pairs)[ALL]
    assert overall.value == pytest.approx(np.mean([gains(*pair)[ALL].value for pair in pairs]))
    assert json.loads((tmp_path / "two.json").read_text())["gains"][ALL]["value"] == pytest.approx(overall.value)
