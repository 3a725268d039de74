"""Structure features: by hand on a path, against torch_geometric's on generated graphs, and what subsets keep."""

import numpy as np
import pytest
import torch

from fkgsec.gnn.geometric import layers
from fkgsec.graphs import structure
from fkgsec.graphs.features import feature_width, node_features
from fkgsec.graphs.generate import generate_motifs
from fkgsec.graphs.sets import GraphSet
from fkgsec.graphs.structure import with_structure


def graph_of(edges: list[tuple[int, int]], sizes: list[int], classes: list[int]) -> GraphSet:
    both = [*edges, *((b, a) for a, b in edges)]
    return GraphSet.from_edges("test", np.array(sizes), np.array(both), np.array(classes), max_degree=5)


def test_a_path_of_three_nodes_and_one_alone_by_hand() -> None:
    """From an end of a - b - c a walk is at b after odd numbers of steps, and at either end after even ones, evenly."""
    graphs = with_structure(graph_of([(0, 1), (1, 2)], [3, 1], [0, 1]), num_walks=4, num_degrees=3)
    assert graphs.structure is not None
    assert graphs.structure.values.tolist() == [
        [0, 0.5, 0, 0.5, 1, 0, 0],
        [0, 1, 0, 1, 0, 1, 0],
        [0, 0.5, 0, 0.5, 1, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
    ]


def test_return_probabilities_are_those_of_torch_geometric(monkeypatch: pytest.MonkeyPatch) -> None:
    layers()  # which imports torch_geometric without a word about torch's parts
    from torch_geometric.data import Data
    from torch_geometric.transforms import AddRandomWalkPE

    monkeypatch.setattr(structure, "_MOST_ENTRIES", 2_000)  # a few graphs at a time
    for graphs in generate_motifs(1, clients=3, size=120):
        found = with_structure(graphs, num_walks=16, num_degrees=16).structure
        assert found is not None
        walks, degrees = found.values[:, :16], found.values[:, 16:]
        for place in range(0, len(graphs), 7):
            low, high = graphs.node_ptr[place : place + 2]
            data = Data(edge_index=torch.from_numpy(graphs.edges(place).T.copy()), num_nodes=int(high - low))
            expected = AddRandomWalkPE(16, "walks")(data)["walks"].numpy()
            assert np.allclose(walks[low:high], expected, atol=1e-6)
        assert np.array_equal(degrees.argmax(axis=1) + 1, np.clip(graphs.degrees, 1, 16))
        assert (degrees.sum(axis=1) == 1).all()


def test_subsets_keep_them_beside_the_features() -> None:
    graphs = generate_motifs(1, clients=1, size=60)[0]
    both = with_structure(graphs, num_walks=3, num_degrees=2)
    assert with_structure(both, num_walks=3, num_degrees=2) is both
    chosen = both.subset([5, 2])
    width = feature_width(graphs)
    assert feature_width(chosen) == width
    assert np.array_equal(node_features(chosen)[:, :width], node_features(graphs.subset([5, 2])))
    alone = with_structure(graphs.subset([5, 2]), num_walks=3, num_degrees=2).structure
    assert alone is not None
    assert np.array_equal(node_features(chosen)[:, width:], alone.values)
    again = with_structure(both, num_walks=1, num_degrees=0).structure
    assert again is not None
    assert again.values.shape[1] == 1
