"""The reader against torch_geometric's, and what it refuses."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fkgsec.errors import DataError
from fkgsec.gnn.geometric import layers
from fkgsec.graphs.features import node_features
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import GraphSet
from fkgsec.graphs.tu import read_tu_folder

DATA = Path(os.environ.get("FKGSEC_DATA", "")) / "TUDataset"
SETS = ("MUTAG", "PTC_MR", "BZR", "COX2", "AIDS", "NCI1", "PROTEINS", "IMDB-BINARY", "IMDB-MULTI", "DHFR-cleaned")


def assert_as_torch_geometric(folder: Path, prefix: str) -> GraphSet:
    """Edges, features and classes of every graph."""
    layers()  # which says nothing of deprecated parts
    from torch_geometric.io.tu import read_tu_data

    ours = read_tu_folder(folder)
    data, slices, _ = read_tu_data(str(folder / "raw" if (folder / "raw").exists() else folder), prefix)
    assert data.y is not None
    assert data.edge_index is not None
    assert ours.classes.tolist() == data.y.tolist()
    starts, edge_starts = ours.node_ptr, slices["edge_index"]
    for graph in range(len(ours)):
        theirs = data.edge_index[:, edge_starts[graph] : edge_starts[graph + 1]].T
        edges = ours.edges(graph)
        assert torch.equal(torch.from_numpy(edges[np.lexsort(edges.T[::-1])]), theirs)
    if data.x is not None:
        labels = node_features(ours) if ours.num_labels else np.zeros((ours.num_nodes, 0), dtype=np.float32)
        assert np.array_equal(data.x.numpy(), np.concatenate([ours.attributes, labels], axis=1))
        assert slices["x"].tolist() == starts.tolist()
    return ours


@pytest.mark.parametrize("place", [0, 2])
def test_reads_what_torch_geometric_reads(place: int, write_tu: Callable[[GraphSet], Path]) -> None:
    graphs = generate_motifs(0, clients=3, size=120)[place]
    folder = write_tu(graphs)
    read = assert_as_torch_geometric(folder, graphs.name)
    assert [len(read), read.num_nodes] == [len(graphs), graphs.num_nodes]
    assert np.array_equal(read.edges(), graphs.edges())
    assert read.warnings == ()


@pytest.mark.skipif(not DATA.is_dir(), reason="FKGSEC_DATA has no TUDataset")
@pytest.mark.parametrize("name", [*SETS[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in SETS[2:])])
def test_reads_published_sets_as_torch_geometric_does(name: str) -> None:
    assert_as_torch_geometric(DATA / name, name.removesuffix("-cleaned"))


@pytest.fixture
def folder(write_tu: Callable[[GraphSet], Path]) -> Path:
    """Three graphs of 2, 3 and 2 nodes."""
    edges = np.array([[0, 1], [1, 0], [2, 3], [3, 2], [3, 4], [4, 3], [5, 6], [6, 5]])
    points = np.array([[0.5, 1], [2, 3], [1, 1], [0, 0], [4, 4], [5, 5], [6, 1.5]], dtype=np.float32)
    labels = np.array([0, 1, 2, 0, 1, 1, 0])
    return write_tu(GraphSet.from_edges("SMALL", np.array([2, 3, 2]), edges, np.array([0, 1, 0]), labels, points))


def test_the_files_may_lie_in_raw(folder: Path) -> None:
    expected = read_tu_folder(folder)
    raw = folder / "raw"
    raw.mkdir()
    for file in folder.glob("*.txt"):
        shutil.move(file, raw / file.name)
    assert read_tu_folder(folder).sources.tolist() == expected.sources.tolist()


def test_loops_repeats_and_one_way_edges_are_counted(folder: Path) -> None:
    with (folder / "SMALL_A.txt").open("a") as file:
        file.write("1, 1\n1, 2\n3, 5\n")
    graphs = read_tu_folder(folder)
    assert len(graphs.sources) == 9
    assert graphs.warnings == (
        "SMALL_A.txt: 1 edges of a node to itself were dropped",
        "SMALL_A.txt: 1 repeated edges were dropped",
        "SMALL_A.txt: 1 edges stand in one direction only",
    )


@pytest.mark.parametrize(
    ("file", "line", "text", "fault"),
    [
        ("A", 2, "1; 2", ":2: 1 values; 2 expected"),
        ("A", 2, "1, 2, 3", ":2: 3 values; 2 expected"),
        ("A", 2, "1, 2.5", ":2: '2.5' is not a whole number"),
        ("A", 2, "1, x", ":2: 'x' is not a whole number"),
        ("A", 3, "1, 8", ":3: edge 1, 8; allowed: nodes 1..7"),
        ("A", 3, "0, 1", ":3: edge 0, 1; allowed: nodes 1..7"),
        ("A", 4, "2, 3", ":4: an edge between graphs 1 and 2"),
        ("A", 4, "", ":4: 1 values; 2 expected"),
        ("A", 4, "1, 99999999999999999999", ":4: '99999999999999999999' is not a whole number"),
        ("graph_indicator", 1, "2", ":1: graph 2; the first graph is number 1"),
        ("graph_indicator", 5, "1", ":5: graph 1 after graph 2; expected 2 or 3"),
        ("graph_indicator", 6, "4", ":6: graph 4 after graph 2; expected 2 or 3"),
        ("graph_indicator", 7, "4", ":7: nodes of 4 graphs; SMALL_graph_labels.txt has the classes of 3"),
        ("graph_labels", 2, "1.5", ":2: '1.5' is not a whole number"),
        ("node_labels", 3, "", ":3: '' is not a whole number"),
        ("node_labels", 7, None, ": 6 lines; 7 nodes, a line each"),
        ("node_attributes", 3, "1.0, nan", ":3: 'nan' is not a number"),
        ("node_attributes", 3, "1.0, 1e60", ":3: a number beyond what 32 bits hold"),
        ("node_attributes", 3, "1.0", ":3: 1 values; 2 expected"),
    ],
)
def test_a_damaged_folder_is_refused_with_file_and_line(
    folder: Path, file: str, line: int, text: str | None, fault: str
) -> None:
    path = folder / f"SMALL_{file}.txt"
    lines = path.read_text().splitlines()
    lines[line - 1 : line] = [] if text is None else [text]
    path.write_text("".join(f"{one}\n" for one in lines))
    with pytest.raises(DataError) as refused:
        read_tu_folder(folder)
    assert str(refused.value) == f"{path}{fault}"


def test_files_that_are_missing_empty_or_not_text(folder: Path) -> None:
    labels = folder / "SMALL_graph_labels.txt"
    labels.write_bytes(b"")
    with pytest.raises(DataError, match=r"SMALL_graph_labels\.txt: empty"):
        read_tu_folder(folder)
    labels.write_bytes(b"1\n\xff\n")
    with pytest.raises(DataError, match=r"SMALL_graph_labels\.txt:2: not text"):
        read_tu_folder(folder)
    labels.unlink()
    with pytest.raises(DataError, match=r"SMALL_graph_labels\.txt: cannot be read \(No such file"):
        read_tu_folder(folder)
    with pytest.raises(DataError, match=r"needs one file \*_A\.txt"):
        read_tu_folder(folder / "nowhere")
