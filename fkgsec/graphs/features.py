"""Node features: labels as one-hot vectors, attributes, or the degree as a one-hot vector.

    kind, width = feature_kind(graphs), feature_width(graphs)
    x = node_features(graphs, nodes)                # float32 [n, width]

As in the code of GCFL and FedStar: labels if a set has any, else attributes (coordinates of the Letter sets), else degrees up to
a public maximum. The maxima of the sets without labels are those of that code, 491, 135 and 88.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from fkgsec.errors import DataError
from fkgsec.graphs.sets import GraphSet

FeatureKind = Literal["labels", "attributes", "degrees"]
PUBLIC_DEGREES = {"COLLAB": 491, "IMDB-BINARY": 135, "IMDB-MULTI": 88}


def feature_kind(graphs: GraphSet) -> FeatureKind:
    """Return which kind of features a set has.

    Args:
        graphs: the set.
    """
    if graphs.num_labels:
        return "labels"
    return "attributes" if graphs.attributes.shape[1] else "degrees"


def feature_width(graphs: GraphSet) -> int:
    """Return the number of values per node.

    Args:
        graphs: the set.

    Raises:
        DataError: degrees without a maximum.
    """
    kind = feature_kind(graphs)
    if kind == "labels":
        return sum(graphs.num_labels)
    if kind == "attributes":
        return graphs.attributes.shape[1]
    if graphs.max_degree is None:
        raise DataError(f"{graphs.name}: nodes have no labels, and no largest degree is known to all; give max_degree")
    return graphs.max_degree + 1


def node_features(graphs: GraphSet, nodes: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Compute the features of nodes, float32 `[n, width]`, followed by structure features if the set has any.

    Args:
        graphs: the set.
        nodes: int64 `[n]`, node numbers, or a slice.

    Raises:
        DataError: the degree of a node exceeds the maximum.
    """
    features = _own_features(graphs, nodes)
    if graphs.structure is None:
        return features
    return np.concatenate([features, graphs.structure.values[nodes]], axis=1)


def _own_features(graphs: GraphSet, nodes: np.ndarray | slice) -> np.ndarray:
    width = feature_width(graphs)
    columns = one_hot_columns(graphs, nodes)
    if columns is None:
        return graphs.attributes[nodes]
    rows = np.zeros((len(columns), width), dtype=np.float32)
    np.put_along_axis(rows, columns, 1.0, axis=1)
    return rows


def one_hot_columns(graphs: GraphSet, nodes: np.ndarray | slice = slice(None)) -> np.ndarray | None:
    """Return the columns of the features that are 1, int64 `[n, k]`; None for attributes.

    Args:
        graphs: the set.
        nodes: int64 `[n]`, node numbers, or a slice.

    Raises:
        DataError: the degree of a node exceeds the maximum.
    """
    match feature_kind(graphs):
        case "attributes":
            return None
        case "labels":
            # Each of the k labels has its own block of columns.
            return graphs.labels[nodes] + np.cumsum([0, *graphs.num_labels[:-1]])
        case "degrees":
            degrees, width = graphs.degrees[nodes], feature_width(graphs)
            if len(degrees) and degrees.max() >= width:
                raise DataError(
                    f"{graphs.name}: a node has {degrees.max()} edges; the maximum known to all is {width - 1}"
                )
            return degrees[:, None]


def with_max_degree(graphs: GraphSet, max_degree: int | None = None) -> GraphSet:
    """Return the set with a public maximum degree. Sets with labels or attributes stay as they are.

    Args:
        graphs: the set.
        max_degree: None takes that of `PUBLIC_DEGREES`, or the set's own maximum with a warning.

    Raises:
        DataError: the degree of a node exceeds the maximum.
    """
    if feature_kind(graphs) != "degrees" or graphs.max_degree is not None:
        return graphs
    max_degree = PUBLIC_DEGREES.get(graphs.name) if max_degree is None else max_degree
    # The maximum degree determines the input width, which all clients must share.
    largest = int(graphs.degrees.max())
    if max_degree is not None:
        if largest > max_degree:
            raise DataError(f"{graphs.name}: a node has {largest} edges; max_degree is {max_degree}")
        return replace(graphs, max_degree=max_degree)
    warning = (
        f"{graphs.name}: no largest degree is public; its own, {largest}, sets the input width, so others learn it"
    )
    return replace(graphs, max_degree=largest, warnings=(*graphs.warnings, warning))
