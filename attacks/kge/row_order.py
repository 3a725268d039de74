"""Shuffle the rows of views, with truth in the same order, so that the index of a row reveals nothing.

    order = RowOrder(graph, seed=0)
    view = order.shuffled(view)
    view.victims[0].entities[3]              # row of local ID 3 of order.clients()["victim a"], whichever entity that is

All views of one order have a client's rows in the same order, so that they can be compared over rounds. Clients number their
rows along the vocabulary (`ClientGraph.from_global`), and messages keep that order. The index alone would therefore name
entities that a threat model hides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.kge.view import TABLES, KgeView, VictimView
from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator


class RowOrder:
    """A random order of each client's rows.

    Rows of a secure sum keep the server's order. Rows that no training triple names stay behind the others.
    """

    def __init__(self, graph: FederatedGraph, seed: int) -> None:
        self._graph, self._seed = graph, seed
        self._orders: dict[tuple[str, Table], np.ndarray] = {}

    def shuffled(self, view: KgeView) -> KgeView:
        """Return the view with each victim's rows in this order.

        Args:
            view: view of any run of the same clients.
        """
        victims = []
        for victim in view.victims:
            client = next(client for client in self._graph.clients if client.name == victim.name)
            counts = {"entities": client.num_trained_entities, "relations": client.num_trained_relations}
            orders: dict[Table, np.ndarray] = {
                table: self._order(victim.name, table, rows, counts[table])
                for table in TABLES
                if table not in victim.claims and (rows := victim.rows(table)) is not None
            }
            victims.append(_rearranged(victim, orders))
        return replace(view, victims=tuple(victims))

    def clients(self) -> dict[str, ClientGraph]:
        """Return the clients whose rows were shuffled, by name, with local IDs that follow the order."""
        seen = {name for name, _ in self._orders}
        return {
            client.name: _renumbered(client, *(self._orders.get((client.name, table)) for table in TABLES))
            for client in self._graph.clients
            if client.name in seen
        }

    def _order(self, victim: str, table: Table, rows: Tensor, num_trained: int) -> np.ndarray:
        """Return the original row at each new index, int64 `[n]`."""
        # One order per client and table for all views, so that rows can be compared over rounds.
        if (victim, table) not in self._orders:
            # Only trained rows are uploaded, so they must stay in front.
            count, rng = min(num_trained, len(rows)), generator(self._seed, "row order", victim, table)
            self._orders[victim, table] = np.concatenate([rng.permutation(count), np.arange(count, len(rows))])
        return self._orders[victim, table]


def _rearranged(victim: VictimView, orders: Mapping[Table, np.ndarray]) -> VictimView:
    """Reorder the rows of these tables; other tables stay unchanged."""
    changes: dict[str, Any] = {
        table: rows[torch.from_numpy(order)]
        for table, order in orders.items()
        if (rows := victim.rows(table)) is not None
    }
    if (order := orders.get("entities")) is not None:
        changes["entity_names"] = None if victim.entity_names is None else victim.entity_names[order]
        changes["sent"] = None if victim.sent is None else victim.sent[:, order]
    received = {
        table: rows[torch.from_numpy(orders[table])] if table in orders else rows
        for table, rows in victim.received.items()
    }
    aligned = {
        table: rows[orders[table][: len(rows)]] if table in orders else rows for table, rows in victim.aligned.items()
    }
    return replace(victim, received=received, aligned=aligned, **changes)


def _renumbered(client: ClientGraph, entities: np.ndarray | None, relations: np.ndarray | None) -> ClientGraph:
    """Renumber a client's local IDs to match its shuffled rows."""
    ids, places = [], []
    for ids_of, order in ((client.entity_ids, entities), (client.relation_ids, relations)):
        whole = np.arange(len(ids_of))
        if order is not None:
            # After unlearning, more rows may have been transmitted than the client still has.
            count = min(len(order), len(ids_of))
            whole[:count] = order[:count]
        ids.append(ids_of[whole])
        # The inverse permutation: new local ID of each old one.
        places.append(np.argsort(whole))
    splits = {
        split: np.stack([places[1 if column == 1 else 0][triples[:, column]] for column in range(3)], axis=1)
        for split in SPLITS
        for triples in (getattr(client, split),)
    }
    return ClientGraph(client.name, *ids, **splits)
