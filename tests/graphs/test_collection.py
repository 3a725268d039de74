"""Names of data sets and groups, where they are looked for, and downloads."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import requests

from fkgsec.errors import DataError, SpecError
from fkgsec.graphs import collection
from fkgsec.graphs.collection import GROUPS, load_federation, load_graphs, sets_of
from fkgsec.graphs.features import feature_width, node_features, with_max_degree
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import GraphSet


@pytest.fixture
def at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_tu: Callable[[GraphSet], Path]
) -> Callable[[str, GraphSet], None]:
    """Puts a set into a data folder under a published name; nothing else is there, and there is no network."""
    monkeypatch.setenv("FKGSEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data" / "TUDataset").mkdir(parents=True)

    def refuse(*_: object, **__: object) -> None:
        raise requests.ConnectionError

    monkeypatch.setattr(requests, "get", refuse)

    def put(name: str, graphs: GraphSet) -> None:
        write_tu(graphs).rename(tmp_path / "data" / "TUDataset" / name)

    return put


@pytest.fixture
def sets() -> list[GraphSet]:
    return generate_motifs(0, clients=3, size=120)


def test_groups_are_those_of_the_paper() -> None:
    assert {name: len(sets) for name, sets in GROUPS.items()} == {
        "CHEM": 7,
        "BIO": 3,
        "SN": 3,
        "CV": 3,
        "SN_CV": 6,
        "CHEM_BIO": 10,
        "CHEM_BIO_SN": 13,
        "BIO_SN_CV": 9,
        "ALL": 16,
    }
    assert sets_of("chem") == GROUPS["CHEM"]
    assert sets_of("BZR, COX2") == ("BZR", "COX2")
    with pytest.raises(SpecError, match="twice"):
        sets_of("BZR,BZR")


def test_several_sets_have_a_client_each(at_hand: Callable[[str, GraphSet], None], sets: list[GraphSet]) -> None:
    at_hand("MUTAG", sets[0])
    at_hand("BZR", sets[1])
    assert [client.name for client in load_federation("MUTAG,BZR", seed=0).clients] == ["MUTAG", "BZR"]
    with pytest.raises(SpecError, match="clients is 3, allowed for the 2 sets of MUTAG,BZR: as many for each"):
        load_federation("MUTAG,BZR", seed=0, clients=3)
    with pytest.raises(SpecError, match="clients: over how many"):
        load_federation("MUTAG,BZR", seed=0, partition="chunks")


def test_several_sets_are_divided_over_as_many_each(
    at_hand: Callable[[str, GraphSet], None], sets: list[GraphSet]
) -> None:
    at_hand("MUTAG", sets[0])
    at_hand("BZR", sets[1])
    found, alone = load_federation("MUTAG,BZR", seed=0, clients=4), load_federation("BZR", seed=0, clients=2)
    assert [client.name for client in found.clients] == ["MUTAG-1", "MUTAG-2", "BZR-1", "BZR-2"]
    assert [client.vocabulary for client in found.clients] == ["MUTAG", "MUTAG", "BZR", "BZR"]
    for client, part in zip(found.clients[2:], alone.clients, strict=True):
        assert np.array_equal(client.graphs.sources, part.graphs.sources)
        assert np.array_equal(client.test, part.test)


def test_a_group_names_what_is_missing_and_the_rest(
    at_hand: Callable[[str, GraphSet], None], sets: list[GraphSet]
) -> None:
    at_hand("ENZYMES", sets[0])
    at_hand("PROTEINS", sets[1])
    with pytest.raises(DataError, match=r"^BIO: DD not at hand .*no connection.*; without: --data ENZYMES,PROTEINS$"):
        load_federation("BIO", seed=0)


def test_one_set_is_divided(at_hand: Callable[[str, GraphSet], None], sets: list[GraphSet]) -> None:
    at_hand("MUTAG", sets[0])
    assert load_federation("MUTAG", seed=0, clients=2).name == "MUTAG-random-2"
    assert load_federation("MUTAG", seed=0, clients=2, partition="chunks", clean=True).name == "MUTAG-chunks-2-clean"
    with pytest.raises(SpecError, match="over how many"):
        load_federation("MUTAG", seed=0)
    with pytest.raises(SpecError, match="partition is 'triples', allowed for graphs: chunks, random"):
        load_federation("MUTAG", seed=0, clients=2, partition="triples")
    with pytest.raises(SpecError, match="size applies to generated graphs"):
        load_federation("MUTAG", seed=0, clients=2, size=100)


def test_an_unknown_name_gives_the_closest(at_hand: Callable[[str, GraphSet], None]) -> None:
    with pytest.raises(DataError, match="no graph data set or group 'MUTG'; did you mean MUTAG"):
        load_graphs("MUTG")


def answering(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    class Response:
        def __init__(self) -> None:
            self.content = content

        def raise_for_status(self) -> None:
            return

    monkeypatch.setattr(requests, "get", lambda *_, **__: Response())


def zipped(folder: Path, name: str, **others: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for file in folder.glob("*.txt"):
            kind = file.name.split("_", 1)[1]
            archive.writestr(f"{name}/{name}_{kind}", file.read_text())
        for path, text in others.items():
            archive.writestr(path, text)
    return packed.getvalue()


def test_a_set_that_is_not_there_is_downloaded_once(
    at_hand: Callable[[str, GraphSet], None],
    sets: list[GraphSet],
    write_tu: Callable[[GraphSet], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    answering(monkeypatch, zipped(write_tu(sets[0]), "DD", **{"../../escaped.txt": "x", "DD/README.txt": "x"}))
    found = load_graphs("DD")
    assert np.array_equal(found.sources, sets[0].sources)
    kept = tmp_path / "cache" / "fkgsec" / "TUDataset" / "DD"
    assert sorted(file.name for file in kept.iterdir()) == [
        "DD_A.txt",
        "DD_graph_indicator.txt",
        "DD_graph_labels.txt",
        "DD_node_labels.txt",
    ]
    assert not list(tmp_path.rglob("escaped.txt"))
    answering(monkeypatch, b"")
    assert len(load_graphs("DD")) == len(found)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"<html>", r"cannot download .*DD\.zip \(not a zip archive\)"),
        ("broken", r"DD_A\.txt: cannot be read|no TU folder"),
    ],
)
def test_a_broken_download_leaves_nothing_behind(
    at_hand: Callable[[str, GraphSet], None],
    content: bytes | str,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    answering(monkeypatch, content if isinstance(content, bytes) else zipped(tmp_path / "none", "DD"))
    with pytest.raises(DataError, match=fault):
        load_graphs("DD")
    assert not list((tmp_path / "cache").rglob("DD*"))


def test_degrees_are_features_where_there_are_no_labels(sets: list[GraphSet]) -> None:
    circles = sets[2]
    assert feature_width(circles) == 41
    rows = node_features(circles)
    assert rows.sum(axis=1).tolist() == [1.0] * circles.num_nodes
    assert np.array_equal(rows.argmax(axis=1), circles.degrees)
    few = with_max_degree(GraphSet.from_edges("few", np.array([2] * 20), np.array([[0, 1], [1, 0]]), np.zeros(20)))
    assert few.max_degree == 1
    assert few.warnings[0].startswith("few: no largest degree is public; its own, 1,")
    named = with_max_degree(GraphSet.from_edges("IMDB-BINARY", np.array([2]), np.array([[0, 1]]), np.zeros(1)))
    assert (named.max_degree, named.warnings) == (135, ())
    with pytest.raises(DataError, match="a node has 1 edges; max_degree is 0"):
        with_max_degree(GraphSet.from_edges("few", np.array([2]), np.array([[0, 1]]), np.zeros(1)), 0)


def test_generated_data_are_a_function_of_the_seed() -> None:
    first, again, other = (load_federation("motifs", seed=seed, clients=2, size=80) for seed in (0, 0, 1))
    assert first.hash == again.hash != other.hash
    with pytest.raises(SpecError, match="size must be at least 40 graphs for each of 4"):
        generate_motifs(0, size=100)
    with pytest.raises(SpecError, match="partition does not apply"):
        load_federation("motifs", seed=0, partition="random")


def test_the_download_address_is_that_of_torch_geometric() -> None:
    from fkgsec.gnn.geometric import layers

    layers()
    from torch_geometric.datasets import TUDataset

    assert collection.ADDRESS == TUDataset.url
