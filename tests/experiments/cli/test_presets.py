"""A paper's values in one word: those of its table, what is given wins, and the record says whose each is."""

import functools
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.cli.options import SOURCES
from fkgsec.experiments.cli.presets import TABLES, choose, longer
from fkgsec.experiments.papers.spec import Experiment, find_experiment, read_experiment
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.tasks.task import task_named

SMALL = ["--size", "600", "--dim", "8", "--rounds", "1", "--num-negatives", "4", "--device", "cpu", "--quiet"]


@pytest.mark.parametrize("preset", TABLES)
def test_a_preset_is_the_row_of_its_paper_without_the_data(preset: str) -> None:
    chosen = choose(None, {}, preset)
    cell = next(cell for cell in table(preset).cells if cell.spec is not None and cell.spec.algorithm == preset)
    assert cell.spec is not None
    of_data = {"data", "clients", "partition", "size"}
    theirs, ours = cell.spec.document(), chosen.spec.document()
    assert {name for name in theirs if theirs[name] != ours[name]} <= of_data
    assert set(cell.stated) - of_data <= set(chosen.whose)
    paper = [name for name, why in cell.stated.items() if why is None and name not in {*of_data, "algorithm"}]
    assert paper
    assert all(chosen.whose[name] == f"preset {preset}: {_authors(preset)}" for name in paper)
    assert all(why in chosen.whose[name] for name, why in cell.stated.items() if why and name not in of_data)


@functools.cache
def table(preset: str) -> Experiment:
    return read_experiment(find_experiment(TABLES[preset]))


def _authors(preset: str) -> str:
    return table(preset).paper.partition(",")[0]


def test_what_is_given_wins_over_a_file_and_that_over_the_paper(tmp_path: Path) -> None:
    config = tmp_path / "own.yaml"
    config.write_text("dim: 32\nrounds: 7\n")
    spec, whose = choose(config, {"rounds": 3}, "FedR")
    assert (spec.rounds, spec.dim, spec.learning_rate) == (3, 32, 0.001)
    assert (whose["rounds"], whose["dim"]) == ("given", str(config))
    assert whose["learning_rate"] == "preset fedr: Zhang et al. 2022"


def test_another_algorithm_and_model_take_their_own_row() -> None:
    spec, whose = choose(None, {"algorithm": "fede", "model": "rotate"}, "fedr")
    assert (spec.algorithm, spec.model, whose["algorithm"]) == ("fede", "rotate", "given")
    assert whose["evaluate"].startswith("preset fedr: ")  # which FedR's own row does not say
    noge, _ = choose(None, {"model": "noge"}, "fedr")
    assert (noge.learning_rate, noge.batch_size) == (0.01, 1024)
    spread, whose = choose(None, {"algorithm": "fedprox"}, "fedr")  # no row of the paper's: what holds for all of them
    assert (spread.algorithm, spread.learning_rate) == ("fedprox", 0.001)


def test_a_preset_that_there_is_not() -> None:
    with pytest.raises(SpecError, match=r"preset must .*got 'fedx'; did you"):
        choose(None, {}, "fedx")


def test_embedded_data_get_few_rounds_where_nothing_is_said_and_it_is_said_how_to_go_on(tmp_path: Path) -> None:
    chosen = choose(None, {})
    assert (chosen.spec.rounds, chosen.whose) == (40, {"rounds": "the embedded consortium's"})
    (line,) = longer(chosen)
    assert "40 rounds" in line
    assert f"--rounds {type(chosen.spec)().rounds}" in line
    config = tmp_path / "own.yaml"
    config.write_text("dim: 32\n")
    for other in (choose(config, {}), choose(None, {}, "feds"), choose(None, {"data": "UMLS"})):
        assert other.spec.rounds >= 300
        assert not longer(other)
    assert choose(None, {"rounds": 300}).spec.rounds == 300
    assert choose(None, {"algorithm": "fedstar"}).whose == {"algorithm": "given", "rounds": "the embedded motifs's"}


@pytest.mark.parametrize(("task", "preset"), [("kge", "fedr"), ("graph", "cefgl")])
def test_the_defaults_have_the_source_that_the_help_names(task: str, preset: str) -> None:
    stated = {one.option: one for one in table(preset).settings if one.where == "all cells"}
    defaults = msgspec.structs.asdict(task_named(task).spec())
    for source, names in SOURCES[task].items():
        for name in names:
            assert stated[name].value == defaults[name], name
            whose, kind = source.split("'s ")
            assert (stated[name].why is None) == (kind == "paper"), name
            assert (
                kind == "paper" or f"{whose}'s code" in str(stated[name].why) or "its code" in str(stated[name].why)
            ), name
    shown = CliRunner().invoke(app, ["train", "--help-all"], env={"COLUMNS": "400"}).stdout
    assert "(default: 128, FedR's paper)" in shown
    assert "(default: 300, FedR's paper; graphs: 200, CEFGL's paper)" in shown


def test_the_record_says_whose_each_value_is(tmp_path: Path) -> None:
    words = ["train", "--preset", "feds", *SMALL, "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    record = read_record(tmp_path / "run" / "record.json")
    assert (record.whose["dim"], record.whose["batch_size"]) == ("given", "preset feds: Zhang et al. 2024")
    assert record.spec.batch_size == 512
    refused = CliRunner().invoke(app, ["attack", "--run", str(tmp_path / "run"), "--preset", "feds"])
    assert (refused.exit_code, "leave out --preset" in refused.stderr) == (2, True)
