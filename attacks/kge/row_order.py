"""Views whose rows stand in a random order, with truth that goes by the same order, so that the place of a row says nothing.

    view, clients = shuffled(view, graph, rng)
    view.victims[0].entities[3]                       # the row of local id 3 of clients["victim a"], whichever entity that is now

Clients number their rows along the vocabulary (`ClientGraph.from_global`), and messages keep that order: a place alone would name
entities that a threat model hides.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attacks.kge.view import KgeView, VictimView
from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph


def shuffled(view: KgeView, graph: FederatedGraph, rng: np.random.Generator) -> tuple[KgeView, dict[str, ClientGraph]]:
    """The view with each victim's rows in another order, and by victim its graph with local ids that follow it.

    Rows of a secure sum stay where the server has them, and rows that no training triple names behind the others.
    """
    victims, clients = [], {}
    for victim in view.victims:
        client = next(one for one in graph.clients if one.name == victim.name)
        entities, relations = (
            _order(rows, count, rng)
            for rows, count in (
                (None if "entities" in victim.claims else victim.entities, client.num_trained_entities),
                (None if "relations" in victim.claims else victim.relations, client.num_trained_relations),
            )
        )
        victims.append(_rearranged(victim, entities, relations))
        clients[victim.name] = _renumbered(client, entities, relations)
    return replace(view, victims=tuple(victims)), clients


def _order(rows: Tensor | None, num_trained: int, rng: np.random.Generator) -> np.ndarray | None:
    """Which row comes at each place, int64 `[n]`; None: all stay."""
    if rows is None:
        return None
    count = min(num_trained, len(rows))
    return np.concatenate([rng.permutation(count), np.arange(count, len(rows))])


def _rearranged(victim: VictimView, entities: np.ndarray | None, relations: np.ndarray | None) -> VictimView:
    if entities is not None and victim.entities is not None:
        names = victim.entity_names
        victim = replace(
            victim,
            entities=victim.entities[torch.from_numpy(entities)],
            entity_names=None if names is None else names[entities],
            sent=None if victim.sent is None else victim.sent[:, entities],
        )
    if relations is not None and victim.relations is not None:
        victim = replace(victim, relations=victim.relations[torch.from_numpy(relations)])
    orders = {"entities": entities, "relations": relations}
    received = {
        table: rows if (order := orders[table]) is None else rows[torch.from_numpy(order)]
        for table, rows in victim.received.items()
    }
    return replace(victim, received=received)


def _renumbered(client: ClientGraph, entities: np.ndarray | None, relations: np.ndarray | None) -> ClientGraph:
    """The client with the local ids that its rows now have."""
    ids, places = [], []
    for own, order in ((client.entity_ids, entities), (client.relation_ids, relations)):
        whole = np.arange(len(own))
        if order is not None:
            count = min(len(order), len(own))  # after unlearning more rows may have crossed than are left
            whole[:count] = order[:count]
        ids.append(own[whole])
        places.append(np.argsort(whole))
    splits = {
        split: np.stack([places[1 if column == 1 else 0][triples[:, column]] for column in range(3)], axis=1)
        for split in SPLITS
        for triples in (getattr(client, split),)
    }
    return ClientGraph(client.name, *ids, **splits)
