"""Names in one Unicode form.

    graph = normalised(read_path("export.csv"))     # "é" as one character and as e with an accent are one entity then

The same word can be spelled in several sequences of characters (Unicode Standard Annex 15); files from different systems mix
them. Readers take names as they stand, so an entity that two clients spell differently is two, and overlap and leakage come out
low. Readers warn of such names; this makes one of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph, KnowledgeGraph

Graph = KnowledgeGraph | FederatedGraph


def composed(name: str) -> str:
    """A name in Unicode's form NFC.

    >>> composed("Cafe\\u0301") == "Caf\\u00e9"
    True
    """
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def respelled(names: Iterable[str]) -> list[str]:
    """The names that are an earlier one in another form, in order.

    >>> respelled(["Caf\\u00e9", "Tea", "Cafe\\u0301"]) == ["Cafe\\u0301"]
    True
    """
    first: dict[str, str] = {}
    return [name for name in names if first.setdefault(composed(name), name) != name]


def normalised(graph: Graph) -> Graph:
    """The graph with names in form NFC, entities and relations of one name made one; the same object where nothing changes.

    Ids follow the first appearance of a name. Triples stay in their order; those that become equal stay, too. Clients' names
    and their local order (by global id, those of train first) are as in `ClientGraph.from_global`.
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
    """The names in form NFC, each once, and for each old id the new one."""
    places: dict[str, int] = {}
    ids = [places.setdefault(composed(name), len(places)) for name in names]
    return tuple(places), np.array(ids, dtype=np.int64)
