"""The command line on federations of graph classifiers: the same commands, records and tables as for knowledge graphs."""

import itertools
import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.main import app
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.run import RECORD_FILE, SPEC_FILE, load_run
from fkgsec.experiments.runs.spec import GraphSpec, make_spec
from fkgsec.experiments.runs.stored import decode_stored, encode_stored
from fkgsec.experiments.tasks.graph import TASK, is_graph_data, twins_of
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.graphs.split import GRAPH_PARTITIONS

SMALL = ["--data", "motifs", "--size", "120", "--clients", "3", "--width", "8", "--rounds", "2", "--device", "cpu"]


def call(*arguments: str | Path, status: int = 0) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "120"})
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.parametrize(
    "algorithm",
    [["cefgl", "--bits", "8", "--exchange", "1"], pytest.param(["fedavg"], marks=pytest.mark.slow)],
)
def test_a_run_leaves_its_record_and_is_not_trained_twice(algorithm: list[str], tmp_path: Path) -> None:
    command = ["train", *SMALL, "--algorithm", *algorithm, "--out", str(tmp_path / "run")]
    shown = call(*command)
    assert "Utility: test accuracy" in shown
    path = tmp_path / "run" / RECORD_FILE
    record, written = read_record(path), path.stat().st_mtime_ns
    assert isinstance(record.spec, GraphSpec)
    assert (record.spec.algorithm, record.metric, len(record.rounds)) == (algorithm[0], "accuracy", 3)
    assert {name: sizes["test"] for name, sizes in record.data.clients.items()} == dict.fromkeys(
        ("molecules-1", "molecules-2", "circles-3"), 4
    )
    shares = [figures["accuracy"] for figures in record.utility_by_client.values()]
    assert record.utility["accuracy"].n == 12
    assert record.utility["accuracy"].value == pytest.approx(sum(one.value for one in shares) / 3)
    assert record.bytes.up > 0
    assert "Reused" in call(*command)
    assert path.stat().st_mtime_ns == written
    assert "other options or data" in call(*command, "--seed", "1", status=2)
    call(*command, "--seed", "1", "--overwrite")
    assert read_record(path).seed == 1
    if algorithm[0] == "cefgl":
        assert record.spec.settings.bits == 8


def test_a_record_and_its_folder_are_read_as_they_were_written(tmp_path: Path) -> None:
    call("train", *SMALL, "--defense", "secagg", "--out", tmp_path / "run", "--quiet")
    content = (tmp_path / "run" / RECORD_FILE).read_bytes()
    record = read_record(tmp_path / "run" / RECORD_FILE)
    assert encode_stored(record) == content
    assert any("sum of the weights" in line for line in record.protection)
    spec, result = load_run(tmp_path / "run")
    assert spec == decode_stored((tmp_path / "run" / SPEC_FILE).read_bytes(), RunSpec) == record.spec
    assert TASK.reached(result).of_all == record.utility


def write_paths(folder: Path, count: int) -> None:
    """Paths of 3 to 12 nodes and as many rings, over and over, as a TU folder: most graphs stand in it several times."""
    edges, graph_of, first = [], [], 1
    for number in range(count):
        size, ring = 3 + number % 10, number % 2
        nodes = range(first, first + size)
        pairs = [*itertools.pairwise(nodes), *([(nodes[-1], nodes[0])] if ring else [])]
        edges += [f"{one}, {other}" for pair in pairs for one, other in (pair, pair[::-1])]
        graph_of += [str(number + 1)] * size
        first += size
    folder.mkdir()
    for kind, lines in (("A", edges), ("graph_indicator", graph_of), ("node_labels", ["0"] * len(graph_of))):
        (folder / f"{folder.name}_{kind}.txt").write_text("\n".join(lines) + "\n")
    (folder / f"{folder.name}_graph_labels.txt").write_text("\n".join(str(n % 2) for n in range(count)) + "\n")


def test_utility_stands_apart_for_graphs_with_a_twin_in_train(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_paths(tmp_path / "PATHS", 80)
    data = ["--data", tmp_path / "PATHS", "--clients", "2", "--width", "4", "--rounds", "1"]
    shown = call("train", *data, "--out", folder)
    assert "with a twin in train" in shown
    _, result = load_run(folder)
    masks = twins_of(result.graph).masks
    twins = [masks[place, "test", "twin_own"] | masks[place, "test", "twin_other"] for place in range(2)]
    parts = read_record(folder / RECORD_FILE).utility_by_leak
    assert sum(mask.sum() for mask in twins) > 0
    for name, chosen in (("leaked", twins), ("clean", [~mask for mask in twins])):
        counted = [(one.correct[mask], int(mask.sum())) for one, mask in zip(result.test, chosen, strict=True)]
        shares = [right.mean() for right, count in counted if count]
        assert parts[name]["accuracy"].n == sum(count for _, count in counted)
        assert parts[name]["accuracy"].value == pytest.approx(sum(shares) / len(shares) if shares else 0)


def test_stats_count_twins() -> None:
    shown = call("data", "stats", "--data", "motifs", "--size", "120", "--clients", "3")
    assert "motifs: 3 clients" in shown
    assert "41 degrees" in shown
    document = json.loads(call("data", "stats", "--data", "motifs", "--size", "120", "--clients", "3", "--json", "-"))
    assert {row["client"]: row["test"] for row in document["statistics"]}["circles-3"] == 4
    assert len(document["split_leaks"]) == 6


def test_several_seeds_have_an_interval_over_them(tmp_path: Path) -> None:
    shown = call("train", *SMALL, "--seeds", "2", "--out", tmp_path / "runs")
    assert "utility.accuracy" in shown


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"layers": 3}, "layers applies to graph classification; fede, the default for these data, embeds knowledge"),
        ({"algorithm": "fede", "layers": 3}, "layers applies to graph classification; fede embeds knowledge graphs"),
        ({"algorithm": "cefgl", "dim": 3}, "dim applies to knowledge-graph embedding; cefgl classifies graphs"),
        ({"data": "CHEM", "dim": 3}, "dim applies to knowledge-graph embedding; fedavg, the default for these data,"),
        ({"algorithm": "fede", "bits": 3}, "bits applies to graph classification; fede embeds knowledge graphs"),
        ({"algorithm": "fede", "data": "MUTAG"}, "data: MUTAG has graphs to classify, but fede embeds"),
        ({"algorithm": "cefgl", "data": "UMLS"}, "data: UMLS is a knowledge graph, but cefgl classifies graphs"),
        ({"algorithm": "fedavg", "share": "half"}, "share must be one of all, encoder; got 'half'"),
        ({"algorithm": "fedavg", "mu": 1.0}, "mu does not apply to fedavg"),
        ({"algorithm": "fedavg", "model": "gan"}, "model must be one of gin, gcn, sage; got 'gan'; did you mean gin?"),
        ({"algorithm": "fedavg", "partition": "triples"}, "partition must be one of random, chunks; got 'triples'"),
        ({"algorithm": "fedavg", "width": 0}, "width must be at least 1"),
        ({"algorithm": "fedavg", "defense": "secag"}, "defense must be one of"),
        ({"algorithm": "fedavg", "split_seed": -1}, "split_seed must be at least 0"),
    ],
)
def test_options_that_do_not_fit_name_the_task_that_they_are_of(given: dict[str, object], fault: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_spec(None, given)
    assert str(caught.value).startswith(fault)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--size", "50"], "size must be at least 40 graphs for each of 3"),
        (["--partition", "random"], "partition does not apply to generated graphs"),
        (["--out", "/dev/null/run"], "cannot be made"),
    ],
)
def test_what_does_not_fit_the_data_is_said_in_one_line(arguments: list[str], fault: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", *SMALL, "--out", str(tmp_path / "run"), *arguments])
    assert result.exit_code == 2
    assert fault in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_the_algorithm_decides_what_is_trained_and_without_one_the_data(tmp_path: Path) -> None:
    assert type(make_spec(None, {"algorithm": "CEFGL"})) is GraphSpec
    assert make_spec(None, {"data": "MUTAG,BZR"}).algorithm == "fedavg"
    assert make_spec(None, {"data": "UMLS"}).algorithm == make_spec(None, {}).algorithm == "fede"
    assert make_spec(None, {"algorithm": "fedavg", "model": "torch_geometric.nn.GATConv"}).layers == 2
    assert not is_graph_data(str(tmp_path))
    (tmp_path / "spec.yaml").write_text("algorithm: cefgl\nlayers: 3\n")
    assert make_spec(tmp_path / "spec.yaml", {"width": 16}).document()["layers"] == 3


def test_words_that_are_known_without_loading_what_has_them_are_all_of_them() -> None:
    partition = next(field for field in msgspec.structs.fields(GraphSpec) if field.name == "partition")
    for name in GRAPH_PARTITIONS:
        assert msgspec.convert(name, partition.type) == name
        assert name in str(partition.type)


def test_commands_on_triples_say_that_they_are(tmp_path: Path) -> None:
    for command in (["partition"], ["escrow", "--escrow", str(tmp_path / "escrow.json")]):
        shown = call("data", *command, "--data", "motifs", "--out", tmp_path / "out", status=2)
        assert f"fkgsec data {command[0]} is for knowledge-graph embedding, but fedavg classifies graphs" in shown
