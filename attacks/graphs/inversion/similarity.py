"""Similarity of two graphs: the share of nodes with equal surroundings.

    similarity(LabelledGraph.of(graphs, 3), guess)      # 1 for isomorphic graphs

Depth 0 compares labels, depth 1 also the neighbors' labels, and so on, as multisets over nodes.

Source: after GSM (Drencheva et al. 2025, section 5). Differs: there nodes are matched one to one, and features of networks are
compared. Here surroundings are equal or not, so that no matching and no network is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fkgsec.graphs.sets import GraphSet

DEPTHS = 3


class LabelledGraph(NamedTuple):
    """A graph with a label per node and undirected edges, each once."""

    labels: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, graphs: GraphSet, number: int) -> LabelledGraph:
        """Take a graph of a set.

        Several labels of a node become one; a node without labels has its degree. Edges have no direction.

        Args:
            graphs: set of graphs.
            number: index of the graph.
        """
        low, high = graphs.node_ptr[number : number + 2]
        edges = {(min(node, other), max(node, other)) for node, other in graphs.edges(number).tolist() if node != other}
        labels = graphs.degrees[low:high]
        if graphs.num_labels:
            labels = np.asarray(np.ravel_multi_index(tuple(graphs.labels[low:high].T), graphs.num_labels))
        return cls(tuple(labels.tolist()), tuple(sorted(edges)))

    def like(self, graphs: GraphSet) -> GraphSet:
        """Convert the graph to a set of one graph, of class 0.

        Args:
            graphs: set with the vocabulary to use, whose nodes have one label.
        """
        edges = np.array(self.edges, dtype=np.int64).reshape(-1, 2)
        return GraphSet.from_edges(
            graphs.name,
            np.array([len(self.labels)]),
            np.concatenate([edges, edges[:, ::-1]]),
            np.zeros(1, dtype=np.int64),
            np.array(self.labels, dtype=np.int64),
            np.zeros((len(self.labels), graphs.attributes.shape[1]), dtype=np.float32),
            num_classes=graphs.num_classes,
            num_labels=graphs.num_labels,
            max_degree=graphs.max_degree,
        )

    def neighbours(self) -> list[list[int]]:
        """Return the neighbors of each node."""
        around: list[list[int]] = [[] for _ in self.labels]
        for node, other in self.edges:
            around[node].append(other)
            around[other].append(node)
        return around

    def neighbourhoods(self) -> set[tuple[int, ...]]:
        """Return the sorted labels of a node and its neighbors, for each neighborhood that occurs."""
        return {
            tuple(sorted([self.labels[node], *(self.labels[other] for other in around)]))
            for node, around in enumerate(self.neighbours())
        }


def similarity(graph: LabelledGraph, other: LabelledGraph) -> float:
    """Return the mean over depths 0, 1, 2 of the nodes that both graphs have, as a share of the larger graph's nodes.

    Args:
        graph, other: graphs of one vocabulary.
    """
    numbers: dict[object, int] = {}
    colors: list[Sequence[int]] = [graph.labels, other.labels]
    around = [graph.neighbours(), other.neighbours()]
    shares = []
    for _ in range(DEPTHS):
        # Size of the multiset intersection.
        common = (Counter(colors[0]) & Counter(colors[1])).total()
        shares.append(common / max(len(graph.labels), len(other.labels)))
        colors = [
            [
                # Weisfeiler-Lehman refinement: a node's new color is its color and the multiset of its neighbors'
                # colors.
                numbers.setdefault((color[node], tuple(sorted(color[near] for near in nearby))), len(numbers))
                for node, nearby in enumerate(neighbours)
            ]
            for color, neighbours in zip(colors, around, strict=True)
        ]
    return float(np.mean(shares))
