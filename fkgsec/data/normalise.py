"""Names in one Unicode form.

    graph = normalised(read_path("export.csv"))     # "é" as one character and as e with an accent become one entity

Unicode can encode the same word as several sequences of characters (Standard Annex 15), and files from different
systems mix them. Readers do not change names, so an entity that two clients spell differently counts as two, and
overlap and leakage are underestimated. Readers warn of such names; this module merges them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph, KnowledgeGraph

Graph = KnowledgeGraph | FederatedGraph


def composed(name: str) -> str:
    """Return a name in Unicode's form NFC.

    Args:
        name: to convert.

    >>> composed("Cafe\\u0301") == "Caf\\u00e9"
    True
    """
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def respelled(names: Iterable[str]) -> list[str]:
    """Return the names that equal an earlier one except for their Unicode form, in order.

    Args:
        names: to compare.

    >>> respelled(["Caf\\u00e9", "Tea", "Cafe\\u0301"]) == ["Cafe\\u0301"]
    True
    """
    first: dict[str, str] = {}
    return [name for name in names if first.setdefault(composed(name), name) != name]


def normalised(graph: Graph) -> Graph:
    """Convert names to form NFC, and merge entities and relations of equal names; return the same object if nothing
    changes.

    IDs follow the first appearance of a name. Triples keep their order, also those that become equal. Clients' names and
    their local order (by global ID, those of train first) are as in `ClientGraph.from_global`.

    Args:
        graph: to convert.
    """
    entities, of_entity = _merged(graph.entities)
    relations, of_relation = _merged(graph.relations)
    if (entities, relations) == (graph.entities, graph.relations):
        return graph

    def renumbered(triples: np.ndarray) -> np.ndarray:
        return np.stack([of_entity[triples[:, 0]], of_relation[triples[:, 1]], of_entity[triples[:, 2]]], axis=1)

    counts = [f"{len(before) - len(after)} {what}" for before, after, what in (
        (graph.entities, entities, "entities"), (graph.relations, relations, "relations")
    ) if len(before) > len(after)]  # fmt: skip
    note = f"{' and '.join(counts)} became one with others of the same name in Unicode's form NFC" if counts else ""
    changed = {
        "entities": entities,
        "relations": relations,
        "sensitive": frozenset(map(composed, graph.sensitive)),
        "warnings": (*graph.warnings, *([note] if note else [])),
    }
    if isinstance(graph, KnowledgeGraph):
        return replace(graph, **changed, **{split: renumbered(getattr(graph, split)) for split in SPLITS})
    clients = tuple(
        ClientGraph.from_global(
            client.name, *(renumbered(client.to_global(getattr(client, split))) for split in SPLITS)
        )
        for client in graph.clients
    )
    return replace(graph, **changed, clients=clients)


def _merged(names: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names in form NFC, each once, and the new ID of each old one."""
    # A dict keeps the first appearance, and looks later spellings up.
    places: dict[str, int] = {}
    ids = [places.setdefault(composed(name), len(places)) for name in names]
    return tuple(places), np.array(ids, dtype=np.int64)
