"""Node features: labels as one-hot vectors, attributes, or the degree as a one-hot vector.

    kind, width = feature_kind(graphs), feature_width(graphs)
    x = node_features(graphs, nodes)                # float32 [n, width]

As the codes of GCFL and FedStar have it: labels where a set has any, else attributes (coordinates of the Letter sets), else
degrees up to a maximum that is known to all. The maxima of the sets without labels are those codes' own, 491, 135 and 88.
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
    """Return which of the three a set has."""
    if graphs.num_labels:
        return "labels"
    return "attributes" if graphs.attributes.shape[1] else "degrees"


def feature_width(graphs: GraphSet) -> int:
    """Numbers at each node. Raises `DataError` for degrees without a maximum."""
    kind = feature_kind(graphs)
    if kind == "labels":
        return sum(graphs.num_labels)
    if kind == "attributes":
        return graphs.attributes.shape[1]
    if graphs.max_degree is None:
        raise DataError(f"{graphs.name}: nodes have no labels, and no largest degree is known to all; give max_degree")
    return graphs.max_degree + 1


def node_features(graphs: GraphSet, nodes: np.ndarray | slice = slice(None)) -> np.ndarray:
    """The features of some nodes, float32 `[n, width]`, and beside them those of the structure around them, where a set has any.

    Raises:
        DataError: a node of a degree above the maximum.
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
    """The columns of the features that are 1, int64 `[n, k]`; None for attributes. Raises as `node_features`."""
    match feature_kind(graphs):
        case "attributes":
            return None
        case "labels":
            return graphs.labels[nodes] + np.cumsum([0, *graphs.num_labels[:-1]])
        case "degrees":
            degrees, width = graphs.degrees[nodes], feature_width(graphs)
            if len(degrees) and degrees.max() >= width:
                raise DataError(
                    f"{graphs.name}: a node has {degrees.max()} edges; the maximum known to all is {width - 1}"
                )
            return degrees[:, None]


def with_max_degree(graphs: GraphSet, max_degree: int | None = None) -> GraphSet:
    """The set with a largest degree known to all: the one given, that of `PUBLIC_DEGREES`, or the set's own with a warning.

    Sets that have labels or attributes stay as they are.
    """
    if feature_kind(graphs) != "degrees" or graphs.max_degree is not None:
        return graphs
    max_degree = PUBLIC_DEGREES.get(graphs.name) if max_degree is None else max_degree
    largest = int(graphs.degrees.max())
    if max_degree is not None:
        if largest > max_degree:
            raise DataError(f"{graphs.name}: a node has {largest} edges; max_degree is {max_degree}")
        return replace(graphs, max_degree=max_degree)
    warning = (
        f"{graphs.name}: no largest degree is public; its own, {largest}, sets the model's input width, and so is told"
    )
    return replace(graphs, max_degree=largest, warnings=(*graphs.warnings, warning))
