"""Figures that describe a federation: sizes, overlap of vocabularies, degrees, clustering.

Legend: `N` entities, `C` clients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fkgsec.data.graph import SPLITS, FederatedGraph

UNION = "union"


def statistics_rows(federated: FederatedGraph) -> list[dict[str, Any]]:
    """Return one row per client, in order, and a last row for the union, named `union`.

    Columns, over all splits unless stated otherwise:
        client: its name.
        clients: 1; in the union, the number of clients.
        entities, relations: number that occur in a triple.
        train, valid, test: rows of the split; in the union, the clients' sums.
        distinct_triples: different triples; fewer than the rows if a file repeats triples.
        shared_entities: entities that at least one other client has; in the union, entities of two clients or more.
        mean_degree, max_degree: distinct triples per entity; a loop counts twice.
        clustering: mean over entities of `local_clustering` of the undirected simple graph.

    Args:
        federated: clients and their splits.

    Source: FedR Table 5 and FedLU Table 5 and Figure 6 (what papers report of federations). Differs: none.
    """
    holders = np.zeros(len(federated.entities), dtype=np.int64)
    for client in federated.clients:
        # Number of clients that have each entity.
        holders[client.entity_ids] += 1
    rows = [
        {"client": client.name, "clients": 1}
        | _describe(
            client.to_global(client.triples),
            sizes={split: len(getattr(client, split)) for split in SPLITS},
            num_shared=int((holders[client.entity_ids] > 1).sum()),
        )
        for client in federated.clients
    ]
    union = np.concatenate([client.to_global(client.triples) for client in federated.clients])
    sizes = {split: sum(row[split] for row in rows) for split in SPLITS}
    described = _describe(union, sizes=sizes, num_shared=int((holders > 1).sum()))
    return [*rows, {"client": UNION, "clients": len(federated.clients)} | described]


def _describe(triples: np.ndarray, *, sizes: dict[str, int], num_shared: int) -> dict[str, Any]:
    distinct = np.unique(triples, axis=0)
    entities, ends = np.unique(distinct[:, [0, 2]], return_inverse=True)
    ends = ends.reshape(-1, 2)
    degrees = np.bincount(ends.ravel())
    return {
        "entities": len(entities),
        "relations": len(np.unique(distinct[:, 1])),
        **sizes,
        "distinct_triples": len(distinct),
        "shared_entities": num_shared,
        "mean_degree": float(degrees.mean()),
        "max_degree": int(degrees.max()),
        "clustering": float(local_clustering(ends, len(entities)).mean()),
    }


def local_clustering(edges: np.ndarray, num_entities: int) -> np.ndarray:
    """Compute the local clustering coefficient of each entity, float64 `[N]` in 0..1; 0 below two neighbors.

    The mean is Watts and Strogatz's coefficient.

    Args:
        edges: int64 `[n, 2]`; direction, repetition and loops are ignored.
        num_entities: N.

    Source: Watts and Strogatz 1998. Differs: none; triangles are counted once, over edges directed toward the larger degree,
    so that hubs do not make the sparse products dense.
    """
    from scipy import sparse

    low, high = edges.min(axis=1), edges.max(axis=1)
    # Undirected, without loops and duplicates: one packed number per edge.
    simple = np.unique((low * num_entities + high)[low != high])
    low, high = simple // num_entities, simple % num_entities
    degree = np.bincount(np.concatenate([low, high]), minlength=num_entities)
    # Ties by ID, so that every edge has one direction and the graph has no cycle.
    turned = (degree[low] > degree[high]) | ((degree[low] == degree[high]) & (low > high))
    source, target = np.where(turned, high, low), np.where(turned, low, high)
    towards = sparse.csr_array((np.ones(len(source)), (source, target)), shape=(num_entities, num_entities))
    # A triangle a -> b -> c, a -> c is counted at its edge a -> c for a and c, and at its edge b -> c for b. Out-degrees
    # are small, in-degrees of hubs are not: no product may sum over the predecessors of a hub twice.
    over_middle = (towards @ towards) * towards
    over_first = (towards.T @ towards) * towards
    triangles = over_middle.sum(axis=1) + over_middle.sum(axis=0) + over_first.sum(axis=1)
    pairs = degree * (degree - 1) / 2
    return np.divide(triangles, pairs, out=np.zeros(num_entities), where=pairs > 0)
