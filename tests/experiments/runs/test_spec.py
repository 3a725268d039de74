"""Specs: every field from the file or the command line, and errors that name the field."""

from pathlib import Path

import pytest

from fkgsec.errors import DataError, SpecError
from fkgsec.experiments.cli.options import ATTACK_FIELDS, FLAGS, TRAIN_FIELDS
from fkgsec.experiments.runs.spec import allowed_words, make_spec, option_names


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
        ("dim: many", r"spec.yaml:1: dim must be a whole number; got 'many'$"),
        ("leak: 0.5", r"spec.yaml:1: leak must be a list of numbers; got 0.5$"),
        ("seed: 1\n\ngammma: 3", r"spec.yaml:3: gammma: unknown key; did you mean gamma\?$"),
        ("quxx: 3", r"spec.yaml:1: quxx: unknown key; allowed: algorithm, "),
        ("model: transh", r"spec.yaml:1: model must be one of transe, .*; got 'transh'; did you mean pykeen:transh\?$"),
        ("- a\n- b", "spec.yaml:1: expected a mapping; got list"),
        ("dim: [", "not YAML"),
        ("", "spec.yaml:1: expected a mapping; got nothing"),
        ("leak: [0.5, 1.5]", r"leak must lie in \(0, 1\]; got 1.5"),
        ("leak: []", "leak needs at least one ratio"),
        ("threat: [nobody]", "threat must be one of server, collusion"),
        ("partition: evenly", "partition must be one of triples, relations, clusters; got 'evenly'"),
        ("split_seed: -1", "split_seed must be at least 0; got -1"),
        ("dim: 8\ndim: 9", "spec.yaml:2: dim: given twice"),
        ("defense: SecAg", "spec.yaml:1: defense must be one of psu, .*; got 'SecAg'; did you mean secagg\\?$"),
        ("defense: dp:epsilo=1,clip=1", "spec.yaml:1: defense: dp has no setting epsilo; did you mean epsilon\\?$"),
        ("clients: 0", "clients must be at least 1; got 0"),
        ("dim: 8\nsize: -5", "spec.yaml:2: size must be at least 1; got -5"),
        ("unlinked_heads: -1", "unlinked_heads must be at least 0; got -1"),
        ("attack_seed: -1", "spec.yaml:1: attack_seed must be at least 0; got -1$"),
        (
            "attack: [update-recovery]\ninference: [cosine]",
            "spec.yaml:2: inference applies to the attack reconstruction, which is not in attack",
        ),
        ("attack: [update-recovery]\nmetric: published", "spec.yaml:2: metric applies to the attack reconstruction"),
        ("a: " + "[" * 3000, "spec.yaml: YAML is nested too deeply"),
        ("metric: best", "metric must be one of paper, published; got 'best'$"),
    ],
)
def test_bad_files(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message):
        make_spec(path, {})


def test_papers_spellings_are_read_in_files_and_options(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("algorithm: FedS\nmodel: ComplEx\ndefense: SecAgg,Suppress:t=2\n")
    spec = make_spec(path, {"threat": ["Identifiers"], "inference": ["Cosine"], "eval_sides": "Tail"})
    assert (spec.algorithm, spec.model, spec.defense) == ("feds", "complex", "secagg,suppress:t=2")
    assert (spec.threat, spec.inference, spec.eval_sides) == (("identifiers",), ("cosine",), "tail")
    for word, algorithm in (
        ("Local", "single"),
        ("Independent", "single"),
        ("Centralized", "collective"),
        ("FedE-SVD+", "fede-svd+"),
    ):
        assert make_spec(None, {"algorithm": word} | ({"dim": 128})).algorithm == algorithm


def test_a_wrong_option_is_not_put_on_a_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("dim: 8\n")
    with pytest.raises(SpecError, match=r"^dim must .*got 0"):
        make_spec(path, {"dim": 0})


@pytest.mark.parametrize(
    "name",
    [
        "algorithm",
        "model",
        "partition",
        "threat",
        "inference",
        "metric",
        "negative_sides",
        "eval_sides",
        "negative_scope",
        "rank_scope",
    ],
)
def test_options_that_are_words_say_which(name: str) -> None:
    """An option whose words moved to a registry must not lose them: help, completion and errors live on them."""
    assert len(allowed_words(name)) >= 2


def test_settings_of_algorithms_are_options_with_their_words() -> None:
    assert allowed_words("proximal") == ("distance", "squared")
    assert make_spec(None, {"algorithm": "FedProx", "proximal": "Distance"}).settings.proximal == "distance"
    with pytest.raises(SpecError, match=r"^variant must .*got 'publishd'; did you mean published\?"):
        make_spec(None, {"algorithm": "fedlu", "variant": "publishd"})


def test_the_seed_leaves_the_data_and_split_seed_leaves_the_training(tmp_path: Path) -> None:
    lines = [f"e{place % 17}\tr{place % 3}\te{(7 * place + 1) % 17}" for place in range(120)]
    (tmp_path / "graph").mkdir()
    for split, part in (("train", lines[:100]), ("valid", lines[100:110]), ("test", lines[110:])):
        (tmp_path / "graph" / f"{split}.txt").write_text("\n".join(dict.fromkeys(part)))
    for given in ({"data": str(tmp_path / "graph"), "clients": 2, "partition": "triples"}, {"size": 200, "clients": 2}):
        hashes = [
            make_spec(None, {**given, **seeds}).load_graph().hash for seeds in ({}, {"seed": 5}, {"split_seed": 5})
        ]
        assert hashes[0] == hashes[1] != hashes[2]
    assert make_spec(None, {"split_seed": 5}).federation_options() == make_spec(None, {}).federation_options()


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none.yaml: cannot be read"):
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


def test_attacks_are_a_list_as_defenses_are() -> None:
    assert make_spec(None, {"attack": ["edges, degrees", "patterns"]}).attack == ("edges", "degrees", "patterns")
    with pytest.raises(SpecError, match="degrees has no settings of its own; got 'a=1,b=2'"):
        make_spec(None, {"attack": ["degrees:a=1,b=2,edges"]})
    with pytest.raises(SpecError, match="edgess"):
        make_spec(None, {"attack": ["edges,edgess"]})
