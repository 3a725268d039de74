"""Arguments of the Python API: refused in one line, in the words that files and the command line have for them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import typer

from fkgsec import KgeModel, KgeOptions, KgeResult, generate_consortium, partition, run_federation
from fkgsec.attacks import GraphAttackOptions, KgeAttackOptions
from fkgsec.errors import DataError, RunError, SpecError
from fkgsec.experiments.cli.console import usage_line
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.runs.spec import make_spec
from fkgsec.federation.options import replace, run_identity
from fkgsec.gnn.options import GnnOptions
from fkgsec.unlearning.options import UnlearnOptions

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (KgeOptions, {"rounds": 2.5}, "rounds must be a whole number; got 2.5"),
        (KgeOptions, {"rounds": None}, "rounds must be a whole number; got None"),
        (KgeOptions, {"rounds": True}, "rounds must be a whole number; got True"),
        (KgeOptions, {"dim": "64"}, "dim must be a whole number; got '64'"),
        (KgeOptions, {"dim": np.array(64.0)}, "dim must be a whole number; got array(64.)"),
        (KgeOptions, {"learning_rate": "fast"}, "learning_rate must be a number; got 'fast'"),
        (KgeOptions, {"gamma": 10**400}, "gamma must be a number; got a number of 1,329 bits"),
        (KgeOptions, {"protocol_seed": "0"}, "protocol_seed must be a whole number; got '0'"),
        (KgeOptions, {"model": 3}, "model must be text; got 3"),
        (KgeOptions, {"algorithm": ["fede"]}, "algorithm must be text; got ['fede']"),
        (KgeOptions, {"negative_sides": "heads"}, "negative_sides must be one of tail, both, each; got 'heads'"),
        (KgeOptions, {"eval_sides": ["tail"]}, "eval_sides must be one of tail, both; got ['tail']"),
        (KgeOptions, {"algorithm": "feds", "settings": {"sparsity": "a"}}, "sparsity must be a number; got 'a'"),
        (GnnOptions, {"layers": 1.0}, "layers must be a whole number; got 1.0"),
        (GnnOptions, {"optimizer": "rmsprop"}, "optimizer must be one of adam, sgd; got 'rmsprop'"),
        (KgeAttackOptions, {"leak": 0.5}, "leak must be a list of numbers; got 0.5"),
        (KgeAttackOptions, {"leak": ("half",)}, "leak must be a number; got 'half'"),
        (KgeAttackOptions, {"attack": "membership"}, "attack must be a list of names; got 'membership'"),
        (KgeAttackOptions, {"colluder": 1}, "colluder must be text; got 1"),
        (KgeAttackOptions, {"inference": ("guess",)},
         "inference must be one of score, names, cosine, learned, combined, mlp; got 'guess'"),
        (GraphAttackOptions, {"threat": "server"}, "threat must be a list of names; got 'server'"),
        (UnlearnOptions, {"epochs": "10"}, "epochs must be a whole number; got '10'"),
        (UnlearnOptions, {"hard": 1}, "hard must be true or false; got 1"),
        (KgeModel, {"dim": "64"}, "dim must be a whole number; got '64'"),
        (generate_consortium, {"clients": 2.5}, "clients must be a whole number; got 2.5"),
    ],
)  # fmt: skip
def test_what_is_refused(make: Make, given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        make(**given)
    said = str(refused.value)
    assert sorted(said) == sorted(message) if "inference" in given else said == message


@pytest.mark.parametrize(
    "given", [{"rounds": 2.5}, {"dim": "64"}, {"leak": 0.5}, {"learning_rate": "fast"}, {"attack": "membership"}]
)
def test_files_and_python_say_the_same(given: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(msgspec.yaml.encode(given))
    with pytest.raises(SpecError) as of_file:
        make_spec(path, {})
    struct: Make = KgeAttackOptions if set(given) & {"leak", "attack"} else KgeOptions
    with pytest.raises(SpecError) as of_python:
        struct(**given)
    assert str(of_file.value) == f"{path}:1: {of_python.value}"


def test_numbers_of_numpy_and_lists_are_as_plain_ones() -> None:
    options = KgeOptions(rounds=np.int64(3), learning_rate=np.float32(0.5), gamma=np.float64(4), settings={})
    assert [type(one) for one in (options.rounds, options.learning_rate, options.gamma)] == [int, float, float]
    graph = generate_consortium(clients=2, size=400, seed=0)
    plain = KgeOptions(rounds=3, learning_rate=0.5, gamma=4)
    assert run_identity(graph, options) == run_identity(graph, plain)
    asked = KgeAttackOptions(leak=np.array([0.5, 1.0]), attack=["reconstruction"])  # type: ignore[arg-type]
    assert asked == KgeAttackOptions(leak=(0.5, 1.0), attack=("reconstruction",))
    assert replace(KgeOptions(algorithm="feds"), sparsity=np.float64(0.25)).settings.sparsity == 0.25


@pytest.mark.parametrize(
    ("option", "given", "kind"), [("--rounds", "2.5", "a whole number"), ("--gamma", "x", "a number")]
)
def test_the_command_line_says_it_too(option: str, given: str, kind: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        app(["train", option, given], standalone_mode=False)
    said = usage_line(refused.value)
    assert re.fullmatch(rf"{option} must be {kind}(; got '{given}')?\. See .*train --help", said)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (KgeOptions, {"roundz": 3}, "roundz is no option of KgeOptions; did you mean rounds?"),
        (
            KgeOptions,
            {"sparsity": 0.3},
            "sparsity is no option of KgeOptions; those of an algorithm alone stand in settings=",
        ),
        (GnnOptions, {"layrs": 3}, "layrs is no option of GnnOptions; did you mean layers?"),
        (KgeAttackOptions, {"leek": 1.0}, "leek is no option of KgeAttackOptions; did you mean leak?"),
        (UnlearnOptions, {"metod": "finetune"}, "metod is no option of UnlearnOptions; did you mean method?"),
    ],
)
def test_a_name_that_is_no_option_is_one_line_with_the_nearest(
    kind: type[Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(message)}"):
        kind(**given)


def test_changes_and_positions_are_refused_in_the_same_words() -> None:
    with pytest.raises(SpecError, match=r"^dimm is no option of KgeOptions; did you mean dim"):
        replace(KgeOptions(), dimm=3)
    with pytest.raises(SpecError, match=r"^KgeOptions takes options by their names, as in algorithm=...; got 'fede'"):
        KgeOptions("fede")  # type: ignore[misc]


def test_a_folder_that_shadows_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read is the embedded data; that there is a folder of the name is said, and how it is meant."""
    monkeypatch.chdir(tmp_path)
    assert make_spec(None, {"size": 300, "clients": 2}).load_graph().warnings == ()
    Path("consortium").mkdir()
    [said] = make_spec(None, {"size": 300, "clients": 2}).load_graph().warnings
    assert (
        said
        == "consortium is the embedded data, not the folder of that name here; give --data ./consortium for the folder"
    )
    with pytest.raises(DataError, match="consortium"):  # the folder, which is empty
        make_spec(None, {"data": "./consortium"}).load_graph()


def test_a_folder_is_made_before_training(tmp_path: Path) -> None:
    graph = generate_consortium(clients=2, size=400, seed=0)
    options = KgeOptions(dim=8, rounds=1, local_epochs=1, num_negatives=4)
    result = run_federation(graph, options, str(tmp_path / "new" / "run"))
    assert (tmp_path / "new" / "run" / "checkpoint.safetensors").exists()
    result.save(str(tmp_path / "run.safetensors"))
    assert KgeResult.load(str(tmp_path / "run.safetensors"), graph, options).best_round == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file/run: cannot be made"):
        run_federation(graph, options, tmp_path / "file" / "run")


def test_what_functions_refuse() -> None:
    graph = generate_consortium(clients=2, size=400, seed=0)
    with pytest.raises(DataError, match=r"^graph must .*got FederatedGraph; it is divided already"):
        partition(graph, "triples", 2, 0)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"^options must .*got dict"):
        run_federation(graph, {"rounds": 3})  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"pass make_transport=fkgsec.defenses.make_transport$"):
        run_federation(graph, KgeOptions(defense="secagg", rounds=1))
