"""Division of graphs among clients, and into train, valid and test.

    federation = by_dataset([mutag, bzr, cox2], seed=0)                 # one client for each data set
    federation = by_chunks(nci1, clients=10, seed=0)                    # one data set over clients, as GCFL's code does
    federation = by_chunks(nci1, clients=10, seed=0, clean=True)        # no test graph is also in train

A clean division puts isomorphic graphs (`fkgsec.graphs.twins`) into the same split, at every client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fkgsec.errors import DataError, SpecError
from fkgsec.graphs.features import with_max_degree
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs, GraphSet
from fkgsec.graphs.twins import twin_groups
from fkgsec.randomness import generator

RATIO = (8, 1, 1)
FIRST_GRAPHS = 50


def stratified(classes: np.ndarray, rng: np.random.Generator, ratio: tuple[int, int, int] = RATIO) -> np.ndarray:
    """Assign each graph to a split, int64 `[G]`: 0 train, 1 valid, 2 test.

    Graphs are shuffled within their class and dealt to the splits in the ratio; each class continues where the previous
    one stopped. Each class, and all graphs together, then have their share of each split up to one graph.

    Args:
        classes: int64 `[G]`.
        rng: source of randomness.
        ratio: of train, valid and test.

    Source: 80/10/10 by class, as in the code of GCFL and FedStar. Differs: they call scikit-learn twice.
    """
    # Shuffle, then sort by class: random order within each class.
    shuffled = rng.permutation(len(classes))
    order = shuffled[np.argsort(classes[shuffled], kind="stable")]
    split = np.empty(len(classes), dtype=np.int64)
    once = rng.permutation(np.repeat(np.arange(3), ratio))  # the splits in the ratio, in a random order
    split[order] = np.resize(once, len(classes))
    return split


def stratified_by_group(
    classes: np.ndarray, groups: np.ndarray, rng: np.random.Generator, ratio: tuple[int, int, int] = RATIO
) -> np.ndarray:
    """Assign each graph to a split like `stratified`, with all graphs of a group in one split.

    Groups are assigned from the largest to the smallest (equal ones in random order), each to the split that lacks the
    largest share of its classes. A group that is larger than valid or test should be goes to train.

    Args:
        classes, groups: int64 `[G]`.
        rng: source of randomness.
        ratio: of train, valid and test.
    """
    # Number of graphs per group and class.
    members = np.zeros((groups.max() + 1, classes.max() + 1))
    np.add.at(members, (groups, classes), 1)
    wanted = np.outer(ratio, members.sum(axis=0)) / sum(ratio)
    lacking = wanted.copy()
    order = rng.permutation(len(members))
    # Large groups first: small ones can still fill gaps later.
    order = order[np.argsort(-members[order].sum(axis=1), kind="stable")]
    split = np.zeros(len(members), dtype=np.int64)
    for group in order:
        group_members = members[group]
        # Lack of each split, relative to its target, weighted by the group's classes.
        need = (group_members * lacking / np.maximum(wanted, 1e-9)).sum(axis=1)
        need[(group_members[None] > np.ceil(wanted)).any(axis=1)] = -np.inf
        split[group] = int(np.argmax(need)) if np.isfinite(need).any() else 0
        # The chosen split now lacks less of these classes.
        lacking[split[group]] -= group_members
    return split[groups]


def by_dataset(sets: Sequence[GraphSet], seed: int, *, clean: bool = False, name: str = "") -> FederatedGraphs:
    """Make each data set a client of the same name.

    Args:
        sets: data sets.
        seed: of the splits.
        clean: keep isomorphic graphs in one split.
        name: of the federation; empty: the names of the sets.

    Source: cross-dataset settings of GCFL, FedStar and CEFGL.
    """
    if not sets:
        raise DataError("a federation needs at least one data set")
    clients, warnings = [], []
    for graphs in map(with_max_degree, sets):
        split = _splits(graphs, generator(seed, "graph split", graphs.name), clean)
        clients.append(_client(graphs.name, graphs, split))
        warnings += graphs.warnings
    whole = name or "+".join(graphs.name for graphs in sets)
    return FederatedGraphs(f"{whole}{'-clean' if clean else ''}", tuple(clients), tuple(warnings))


def by_chunks(graphs: GraphSet, clients: int, seed: int, *, clean: bool = False) -> FederatedGraphs:
    """Divide a data set into consecutive chunks and random rests.

    The first min(50, G / clients) graphs in file order go to the first client, as many to the next, and so on. Each of
    the others goes to a random client.

    Args:
        graphs: the data set.
        seed: of the division and the splits.
        clean: keep isomorphic graphs in one split.

    Source: GCFL's code (`_randChunk`). If a file is sorted by class, as NCI1 and PROTEINS are, a client's first graphs
    are of one class, and labels are skewed.
    """
    first = min(FIRST_GRAPHS, len(graphs) // max(clients, 1))
    client_of = generator(seed, "graph chunks").integers(clients, size=len(graphs)) if clients > 0 else np.empty(0)
    # Consecutive chunks for every client, as in `_randChunk`.
    client_of[: clients * first] = np.repeat(np.arange(max(clients, 0)), first)
    return _divided(graphs, clients, client_of, seed, clean, "chunks")


def by_chance(graphs: GraphSet, clients: int, seed: int, *, clean: bool = False) -> FederatedGraphs:
    """Divide one data set at random, in parts that differ by at most one graph.

    Args:
        graphs, clients, seed, clean: as in `by_chunks`.
    """
    shuffled = generator(seed, "graph parts").permutation(len(graphs)) if clients > 0 else np.empty(0, dtype=np.int64)
    return _divided(graphs, clients, shuffled % max(clients, 1), seed, clean, "random")


GRAPH_PARTITIONS: dict[str, Callable[..., FederatedGraphs]] = {"chunks": by_chunks, "random": by_chance}


def side_by_side(parts: Sequence[FederatedGraphs]) -> FederatedGraphs:
    """Join the clients of several divided data sets, each named after its set: AIDS-1, AIDS-2, NCI1-1, ...

    Args:
        parts: one federation per data set.
    """
    clients = [
        replace(client, name=f"{client.vocabulary}-{number}")
        for part in parts
        for number, client in enumerate(part.clients, 1)
    ]
    warnings = [warning for part in parts for warning in part.warnings]
    return FederatedGraphs("+".join(part.name for part in parts), tuple(clients), tuple(warnings))


def _divided(
    graphs: GraphSet,
    clients: int,
    client_of: np.ndarray,
    seed: int,
    clean: bool,
    how: str,
) -> FederatedGraphs:
    """Build clients client-1, client-2, ... of one data set, each split separately; clean ones by a split of the whole
    set.
    """
    if clients < 1:
        raise SpecError(f"clients is {clients}, allowed: 1 or more")
    if len(graphs) < clients * sum(RATIO):
        raise DataError(f"{graphs.name}: {len(graphs)} graphs over {clients} clients are fewer than {sum(RATIO)} each")
    graphs = with_max_degree(graphs)
    # Isomorphic graphs at different clients must be in the same split, too.
    whole = _splits(graphs, generator(seed, "graph split", graphs.name), clean) if clean else None
    parts = []
    for client in range(clients):
        client_members = np.flatnonzero(client_of == client)
        part = graphs.subset(client_members)
        split = (
            stratified(part.classes, generator(seed, "graph split", client)) if whole is None else whole[client_members]
        )
        parts.append(_client(f"client-{client + 1}", part, split))
    name = f"{graphs.name}-{how}-{clients}{'-clean' if clean else ''}"
    return FederatedGraphs(name, tuple(parts), graphs.warnings)


def _splits(graphs: GraphSet, rng: np.random.Generator, clean: bool) -> np.ndarray:
    if clean:
        return stratified_by_group(graphs.classes, twin_groups(graphs), rng)
    return stratified(graphs.classes, rng)


def _client(name: str, graphs: GraphSet, split: np.ndarray) -> ClientGraphs:
    train, valid, test = (np.flatnonzero(split == number) for number in range(3))
    return ClientGraphs(name, graphs, train, valid, test)
