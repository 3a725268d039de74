"""Twins: isomorphic graphs, with the same labels on their nodes, on both sides of a split.

    groups = twin_groups(graphs)                    # int64 [G]: graphs with one number are isomorphic
    leaks = find_twins(federation)                  # evaluation graphs that this or another client also trains on
    print(leaks.table)

A graph with a twin in train is classified from memory (or against it, if the twin has another class). Figures on the other graphs
are clean. Graphs of different data sets are never compared, since their labels have different meanings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx
import numpy as np
import pandas as pd

from fkgsec.data.split_leaks import EVALUATION_SPLITS
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs, GraphSet

TWINS = ("twin_own", "twin_other", "other_class")


@dataclass(frozen=True, eq=False)
class Twins:
    """Result of `find_twins`.

    Attributes:
        table: one row per client and evaluation split: number of `graphs`, and how many of them have a twin in the client's own
            train split (`twin_own`), in another client's (`twin_other`), and in either with another class (`other_class`).
        masks: bool `[n]` per (client index, split, one of `TWINS`), in the order of the split.
    """

    table: pd.DataFrame
    masks: Mapping[tuple[int, str, str], np.ndarray]

    def warning(self) -> str:
        """Return a warning if test graphs have twins in train, else an empty string."""
        of_test = {key: mask for key, mask in self.masks.items() if key[1] == "test"}
        places = sorted({place for place, _, _ in of_test})
        own_twins, other, differing = (
            np.concatenate([of_test[place, "test", kind] for place in places]).astype(bool) for kind in TWINS
        )
        if not (own_twins | other).any():
            return ""
        return (
            f"{int((own_twins | other).sum())} of {len(own_twins)} test graphs are isomorphic to a training graph (of "
            f"another class for {int(differing.sum())}): figures on them say what was remembered; a clean division keeps "
            "them together"
        )


def find_twins(federation: FederatedGraphs) -> Twins:
    """Count the graphs of valid and test that are isomorphic to a training graph, within each client and across
    clients.

    Args:
        federation: clients and their splits.
    """
    groups, clients = _groups(federation.clients), federation.clients
    shape = (max(int(kinds.max()) for kinds in groups) + 1, max(client.graphs.num_classes for client in clients))
    # trained[client, group, class]: whether the client trains on such a graph.
    trained = np.zeros((len(clients), *shape), dtype=bool)
    for place, client in enumerate(clients):
        trained[place, groups[place][client.train], client.graphs.classes[client.train]] = True
    rows, masks = [], {}
    for place, client in enumerate(clients):
        in_own = trained[place]
        other = np.logical_or.reduce(np.delete(trained, place, axis=0), axis=0)
        for split in EVALUATION_SPLITS:
            ids = getattr(client, split)
            tested, classes = groups[place][ids], client.graphs.classes[ids]
            differing = (in_own | other)[tested]
            # Of the twins in train, only those of another class.
            differing[np.arange(len(ids)), classes] = False
            kinds = dict(
                zip(TWINS, [hits.any(axis=1) for hits in (in_own[tested], other[tested], differing)], strict=True)
            )
            masks |= {(place, split, kind): mask for kind, mask in kinds.items()}
            counts = {kind: int(mask.sum()) for kind, mask in kinds.items()}
            rows.append({"client": client.name, "split": split, "graphs": len(ids), **counts})
    return Twins(pd.DataFrame(rows), masks)


def _groups(clients: tuple[ClientGraphs, ...]) -> list[np.ndarray]:
    """Return the group of each client's graphs; only clients of one vocabulary share groups."""
    groups: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(clients)
    first = 0
    # Only graphs of one data set are compared; group numbers continue between sets.
    for vocabulary in dict.fromkeys(client.vocabulary for client in clients):
        places = [place for place, client in enumerate(clients) if client.vocabulary == vocabulary]
        grouped = twin_groups(*(clients[place].graphs for place in places)) + first
        sizes = np.cumsum([len(clients[place].graphs) for place in places])[:-1]
        for place, part in zip(places, np.split(grouped, sizes), strict=True):
            groups[place] = part
        first = int(grouped.max()) + 1
    return groups


def twin_groups(*sets: GraphSet) -> np.ndarray:
    """Number graphs, int64 `[G]`, such that two graphs have the same number if they are isomorphic with their labels.

    Attributes are ignored. Color refinement (Weisfeiler and Leman) finds candidates, since isomorphic graphs always
    have the same colors. If colors leave a choice, an isomorphism is searched for.

    Args:
        sets: graphs with one vocabulary.
    """
    candidates = [
        (graphs, number, node_colors)
        for graphs, colours in zip(sets, refined_colours(*sets), strict=True)
        for number, node_colors in enumerate(np.split(colours, graphs.node_ptr[1:-1]))
    ]
    alike: dict[bytes, list[int]] = {}
    for place, (_, _, node_colors) in enumerate(candidates):
        # Isomorphic graphs have the same multiset of colors.
        alike.setdefault(np.sort(node_colors).tobytes(), []).append(place)
    groups = np.arange(len(candidates))
    for places in alike.values():
        if len(places) == 1:
            continue
        first = candidates[places[0]][2]
        if len(np.unique(first)) == len(first):  # distinct colors determine the isomorphism
            groups[places] = places[0]
            continue
        representatives: dict[int, nx.DiGraph] = {}
        for place in places:
            graphs, number, node_colors = candidates[place]
            built = nx.DiGraph()  # for VF2++ (Jüttner and Madarasz 2018)
            built.add_nodes_from((node, {"colour": int(colour)}) for node, colour in enumerate(node_colors))
            built.add_edges_from(graphs.edges(number).tolist())
            # At most one representative per class of isomorphic graphs is compared.
            twins = (
                index
                for index, other in representatives.items()
                if nx.vf2pp_is_isomorphic(other, built, node_label="colour")
            )
            groups[place] = next(twins, place)
            representatives |= {place: built} if groups[place] == place else {}
    return np.unique(groups, return_inverse=True)[1]


def refined_colours(*sets: GraphSet) -> list[np.ndarray]:
    """Compute stable colors of the nodes of each set, uint64 `[N]`: equal if refinement cannot distinguish two nodes.

    Colors are 64-bit hashes of a node's labels, then of its color and those of its predecessors and successors, until a
    round makes no new ones.

    Args:
        sets: graphs with one vocabulary.
    """
    colors, after, num_colours = [_mixed_labels(graphs) for graphs in sets], [], 0
    # Compressed rows of the successors of each node.
    for graphs in sets:
        edges = graphs.edges()
        # Edges by source: the successors of each node are consecutive.
        order = np.argsort(edges[:, 0], kind="stable")
        after.append((np.concatenate([[0], np.cumsum(graphs.degrees)]), edges[order, 1]))
    while (num_refined := int((np.diff(np.sort(np.concatenate(colors))) != 0).sum()) + 1) > num_colours:
        num_colours = num_refined
        for place, (graphs, (after_ptr, targets)) in enumerate(zip(sets, after, strict=True)):
            # Sums of hashes do not depend on the order of neighbors; + 1 separates successors from predecessors.
            before = _sums(graphs.indptr, _mixed(colors[place])[graphs.sources])
            behind = _sums(after_ptr, _mixed(colors[place] + np.uint64(1))[targets])
            colors[place] = _mixed(_mixed(_mixed(colors[place]) + before) + behind)
    return colors


def _mixed_labels(graphs: GraphSet) -> np.ndarray:
    colours = np.zeros(graphs.num_nodes, dtype=np.uint64)
    for column in graphs.labels.T:
        colours = _mixed(colours + column.astype(np.uint64))
    return colours


def _sums(indptr: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sum compressed rows modulo 2^64."""
    # Differences of running sums modulo 2^64 are exact, whatever overflows between.
    running = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(values)])
    return running[indptr[1:]] - running[indptr[:-1]]


def _mixed(values: np.ndarray) -> np.ndarray:
    """Apply the output function of SplitMix64, which spreads any change over all 64 bits. Source: Steele et al.
    2014."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
