"""Specs: every field from the file or the command line, and errors that name the field."""

from pathlib import Path

import pytest

from experiments.cli.options import ATTACK_FIELDS, FLAGS, TRAIN_FIELDS
from experiments.runs.spec import make_spec, option_names
from fkgsec.errors import DataError, SpecError


def test_every_field_of_a_spec_is_an_option_and_the_other_way_round() -> None:
    assert set(FLAGS) == set(option_names())
    assert set(TRAIN_FIELDS) | set(ATTACK_FIELDS) == set(option_names())


def test_given_values_override_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("algorithm: fedr\ndim: 32\nleak: [0.3, 1.0]\n")
    spec = make_spec(path, {"dim": 64, "seed": None})
    assert (spec.algorithm, spec.dim, spec.leak, spec.seed, spec.rounds) == ("fedr", 64, (0.3, 1.0), 0, 300)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dim: many", r"spec.yaml: dim: Expected `int`, got `str`; got 'many'"),
        ("leak: 0.5", r"spec.yaml: leak: Expected a list, got `float`; got 0.5"),
        ("gammma: 3", r"spec.yaml: Object contains unknown field `gammma`"),
        ("model: transh", r"spec.yaml: model: Invalid enum value 'transh'"),
        ("- a\n- b", "a mapping of options is expected, found list"),
        ("dim: [", "not YAML"),
        ("", "a mapping of options is expected, found NoneType"),
        ("leak: [0.5, 1.5]", r"leak must lie in \(0, 1\]; got 1.5"),
        ("leak: []", "leak needs at least one ratio"),
        ("threat: [nobody]", "threat must be one of server, collusion"),
        ("partition: evenly", "partition must be one of triples, relations, clusters; got 'evenly'"),
        ("clients: 0", "clients must be at least 1; got 0"),
        ("size: -5", "size must be at least 1; got -5"),
        ("unlinked_heads: -1", "unlinked_heads must be at least 0; got -1"),
        ("metric: best", "metric: Invalid enum value 'best'"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        make_spec(path, {})


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none.yaml: cannot be read \(No such file or directory\)"):
        make_spec(tmp_path / "none.yaml", {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"partition": "triples"}, "partition does not apply to the embedded consortium"),
        ({"data": "Nations", "size": 5}, "size applies to the embedded consortium only"),
    ],
)
def test_options_that_do_not_fit_the_data(given: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_spec(None, given).load_graph()


def test_a_divided_federation_is_not_divided_again(tmp_path: Path) -> None:
    for client in ("0", "1"):
        folder = tmp_path / "fed" / client
        folder.mkdir(parents=True)
        for split in ("train", "valid", "test"):
            (folder / f"{split}.txt").write_text("a\tr\tb\n")
    data = str(tmp_path / "fed")
    with pytest.raises(SpecError, match="partition does not apply to fed, which is divided already"):
        make_spec(None, {"data": data, "partition": "triples"}).load_graph()
    with pytest.raises(SpecError, match="clients is 3, but fed has 2"):
        make_spec(None, {"data": data, "clients": 3}).load_graph()
    with pytest.raises(DataError):
        make_spec(None, {"data": str(tmp_path / "nothing")}).load_graph()
