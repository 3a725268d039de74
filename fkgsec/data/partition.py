"""Division of one graph among clients, and of a client's triples into train, valid and test.

Legend: `n` triples, `R` relations of the graph, `C` clients.
"""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from fkgsec.arguments import checked
from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph, KnowledgeGraph
from fkgsec.errors import DataError, SpecError
from fkgsec.randomness import generator

RATIO = (8, 1, 1)


class TripleSplit(NamedTuple):
    """Splits of triples, each `[*, 3]`, and warnings, one line each."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    warnings: tuple[str, ...]


def split_triples(
    triples: np.ndarray,
    ratio: tuple[int, int, int] = RATIO,
    *,
    rng: np.random.Generator,
    train_only: np.ndarray | None = None,
) -> TripleSplit:
    """Split triples at random in a ratio, such that train has every entity and relation.

    Valid and test have `floor(n * part / sum)` triples. A triple that train needs for an entity or a relation is never
    drawn for
    them: first those with an entity that occurs nowhere else, then the first triple of each other entity and relation in a
    random order. If too few others remain, as in sparse graphs, valid and test shrink in proportion and a warning counts it.
    An untrained entity would have a random embedding, so its rank says nothing about the model.

    Args:
        triples: int64 `[n, 3]`.
        ratio: parts of train, valid, test; train above 0, the others 0 or more.
        rng: the only source of randomness.
        train_only: bool `[n]`, triples that must stay in train (such as those whose inverse would leak).

    Raises:
        SpecError: the ratio is not three such integers.
        DataError: there are no triples, or `train_only` has another length.

    Source: 8:1:1 as in FedR B.1, FedLU section 5.2 and FedS section IV.A. Differs: the papers draw without regard to
    coverage; their published federations cover all but a handful of entities.
    """
    if len(ratio) != 3 or not all(isinstance(part, int) for part in ratio) or ratio[0] <= 0 or min(ratio) < 0:
        raise SpecError(f"ratio is {tuple(ratio)}, allowed: three integers, train above 0, valid and test 0 or more")
    num_triples = len(triples)
    if not num_triples:
        raise DataError("there are no triples to split")
    in_train = np.zeros(num_triples, dtype=bool) if train_only is None else np.asarray(train_only, dtype=bool)
    if in_train.shape != (num_triples,):
        raise DataError(f"train_only has shape {list(in_train.shape)}, allowed: [{num_triples}], one per triple")
    # Round valid and test down: train gets the rest.
    wanted = [num_triples * part // sum(ratio) for part in ratio[1:]]
    order = rng.permutation(num_triples)
    # In random order, so that the first ones are a random sample.
    free = order[~_needed_in_train(triples[order], in_train[order])]

    warnings = []
    num_valid, num_test = wanted
    if len(free) < sum(wanted):
        num_valid, num_test = (len(free) * size // sum(wanted) for size in wanted)
        warnings.append(
            f"valid and test have {num_valid} and {num_test} triples, not {wanted[0]} and {wanted[1]} of {num_triples}: "
            f"only {len(free)} can leave train without losing an entity or relation"
        )
    in_split = np.zeros(num_triples, dtype=np.int8)
    in_split[free[:num_valid]] = 1
    in_split[free[num_valid : num_valid + num_test]] = 2
    train, valid, test = (triples[in_split == split] for split in range(3))
    return TripleSplit(train, valid, test, tuple(warnings))


def _needed_in_train(triples: np.ndarray, in_train: np.ndarray) -> np.ndarray:
    """Return triples that together cover every entity and relation, bool `[n]`; those forced into train come first."""
    entities, relations = triples[:, [0, 2]], triples[:, 1]
    # Triples that must be in train in any case already cover entities, so that fewer others are needed.
    forced = (
        in_train | (np.bincount(entities.ravel())[entities] == 1).any(axis=1) | (np.bincount(relations)[relations] == 1)
    )
    order = np.argsort(~forced, kind="stable")
    needed = forced.copy()
    for columns in (entities[order], relations[order][:, None]):
        _, first = np.unique(columns.ravel(), return_index=True)
        needed[order[first // columns.shape[1]]] = True
    return needed


Assignment: TypeAlias = tuple[np.ndarray, tuple[str, ...]]
"""Client of each triple, int64 `[n]`, and warnings, one line each."""


def assign_triples(triples: np.ndarray, clients: int, rng: np.random.Generator) -> Assignment:
    """Assign triples at random without replacement; counts per client differ by at most one.

    Args:
        triples: int64 `[n, 3]`.
        rng: source of randomness.

    Source: FedR B.1. Differs: none.
    """
    return rng.permutation(np.arange(len(triples)) % clients), ()


def assign_relations(triples: np.ndarray, clients: int, rng: np.random.Generator) -> Assignment:
    """Assign relations at random, with counts per client that differ by at most one; triples follow their relation.

    Args:
        triples, clients, rng: as in `assign_triples`.

    Source: FedS section IV.A, of FB15k-237-R3, R5 and R10. Differs: none.
    """
    relations, relation_of = _occurring_relations(triples, clients)
    return rng.permutation(np.arange(len(relations)) % clients)[relation_of], ()


def assign_clusters(triples: np.ndarray, clients: int, rng: np.random.Generator) -> Assignment:
    """Cluster relations by the entities that they share; triples follow their relation.

    Clusters are numbered by their first relation, so that another seed only matters if it changes a cluster.

    Args:
        triples, clients, rng: as in `assign_triples`.

    Source: FedLU Algorithm 2. On FB15k-237 it gives the relations of the released C3 and C5 exactly, for every seed
    tried.
    Differs: the Laplacian is scikit-learn's normalized one; the paper does not say which.
    """
    relations, relation_of = _occurring_relations(triples, clients)
    if clients in (1, len(relations)):  # only one clustering exists, and the eigensolver would fail
        return (np.arange(len(relations)) % clients)[relation_of], ()
    # Lines 3 to 10: M[r, r'] = number of entities that both relations link, zero on the diagonal.
    co_occurrence = count_co_occurrence(triples[:, 0], relation_of, triples[:, 2])
    from sklearn.cluster import SpectralClustering  # a second to import, and no other partition needs it

    clustering = SpectralClustering(
        n_clusters=clients,
        affinity="precomputed",
        random_state=int(rng.integers(2**31)),
    )
    # Line 11.
    with python_warnings.catch_warnings(record=True) as caught:
        python_warnings.simplefilter("always")
        cluster_of = clustering.fit_predict(co_occurrence)
    _, first, cluster_of = np.unique(cluster_of, return_index=True, return_inverse=True)
    if len(first) < clients:
        raise DataError(
            f"{len(relations)} relations form {len(first)} clusters by co-occurrence, allowed: {clients}, one per client"
        )
    # Number clusters by their first relation: labels of spectral clustering are arbitrary.
    client_of_cluster = np.argsort(np.argsort(first))
    warnings = [f"spectral clustering: {str(warning.message).splitlines()[0]}" for warning in caught]
    return client_of_cluster[cluster_of][relation_of], tuple(warnings)  # Line 12.


def count_co_occurrence(heads: np.ndarray, relations: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """Count, for two relations, the entities in triples of both, float64 `[R, R]`; zero on the diagonal.

    Args:
        heads, relations, tails: int64 `[n]`.

    Source: FedLU Algorithm 2, lines 3 to 10. Differs: one sparse product.
    """
    from scipy import sparse  # optional on machines that only train

    ends, repeated = np.concatenate([heads, tails]), np.concatenate([relations, relations])
    # linked[e, r] = 1 if relation r occurs at entity e; its Gram matrix counts shared entities.
    linked = sparse.csr_array((np.ones(len(ends)), (ends, repeated)))
    linked.sum_duplicates()
    linked.data[:] = 1.0
    counts = (linked.T @ linked).toarray()
    np.fill_diagonal(counts, 0.0)
    return counts


def _occurring_relations(triples: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the IDs of the relations that occur, and each triple's position `[n]` among them."""
    relations, relation_of = np.unique(triples[:, 1], return_inverse=True)
    if len(relations) < clients:
        raise DataError(f"{len(relations)} relations cannot be divided among {clients} clients, one each at least")
    return relations, relation_of


PARTITIONS: dict[str, Callable[[np.ndarray, int, np.random.Generator], Assignment]] = {
    "triples": assign_triples,
    "relations": assign_relations,
    "clusters": assign_clusters,
}


def partition(
    graph: KnowledgeGraph,
    how: str,
    clients: int,
    seed: int,
    ratio: tuple[int, int, int] = RATIO,
) -> FederatedGraph:
    """Divide a graph among clients, and each client's triples into train, valid and test by `split_triples`.

    The graph's own splits are pooled first: a client's test triples are drawn from its own triples, as in the papers.
    Figures therefore do not compare with those on the graph's published test split. Exact duplicates are dropped with a
    warning that counts them, so no triple occurs twice in the federation.

    Args:
        graph: to divide.
        how: a key of `PARTITIONS`.
        clients: 1 or more; they are named client-1, client-2 and so on.
        seed: the same arguments give the same federation.
        ratio: see `split_triples`.

    Raises:
        SpecError: `how` is unknown, there is less than one client, or the ratio is invalid.
        DataError: there are fewer triples than clients, or fewer relations if these are divided.

    Source: see the function in `PARTITIONS`. Differs: see there, and `split_triples` on coverage.
    """
    if not isinstance(graph, KnowledgeGraph):
        divided = "; it is divided already" if isinstance(graph, FederatedGraph) else ""
        raise DataError(f"graph must be a KnowledgeGraph; got {type(graph).__name__}{divided}")
    if how not in PARTITIONS:
        raise SpecError(f"partition is {how!r}, allowed: {', '.join(PARTITIONS)}")
    if checked("seed", int, seed) < 0:
        raise SpecError(f"seed must be at least 0; got {seed}")
    if checked("clients", int, clients) < 1:
        raise SpecError(f"clients is {clients}, allowed: 1 or more")
    pooled = graph.triples
    # A duplicate could be in two splits, or at two clients.
    triples = np.unique(pooled, axis=0)
    if len(triples) < clients:
        raise DataError(
            f"{graph.name}: {len(triples)} triples cannot be divided among {clients} clients, one each at least"
        )
    client_of, notes = PARTITIONS[how](triples, clients, generator(seed, "partition", how))
    # The reader's warnings about single splits ("test: 97 entities that train lacks") do not hold for the new splits.
    of_old_splits = tuple(f"{split}:" for split in SPLITS)
    warnings = [*(warning for warning in graph.warnings if not warning.startswith(of_old_splits)), *notes]
    if len(triples) < len(pooled):
        warnings.append(f"{len(pooled) - len(triples)} of {len(pooled)} triples were exact duplicates and were dropped")
    if len(graph.test) or len(graph.valid):
        warnings.append(
            f"{graph.name}: its own train, valid and test were pooled and divided anew, {':'.join(map(str, ratio))} for each "
            "client; figures do not compare with those on its published test split"
        )
    parts = []
    for client in range(clients):
        name = f"client-{client + 1}"
        split = split_triples(triples[client_of == client], ratio, rng=generator(seed, "split", client))
        parts.append(ClientGraph.from_global(name, split.train, split.valid, split.test))
        warnings.extend(f"{name}: {warning}" for warning in split.warnings)
    return FederatedGraph(
        name=f"{graph.name}-{how}-{clients}",
        entities=graph.entities,
        relations=graph.relations,
        clients=tuple(parts),
        sensitive=graph.sensitive,
        warnings=tuple(warnings),
    )
