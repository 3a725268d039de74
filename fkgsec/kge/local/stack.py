"""Clients stacked: the tables of all of them in one tensor each, so that one step trains a minibatch of every client.

    stack = ClientStack(graph.clients, range(3), KgeModel("transe", 64, 10.0, 2.0), seed=0, device=torch.device("cpu"))
    stack.rows("entities", 1)                       # the second client's rows, a view `[n, W]`

Legend: `W`, `V` widths of entity and relation rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import ClientGraph
from fkgsec.federation.recipes import Table
from fkgsec.kge.kernels import Segments, in_large_pages
from fkgsec.kge.models import KgeModel
from fkgsec.randomness import generator


class ClientStack:
    """Entity and relation tables of several clients.

    Clients are laid out by the size of their train split, largest first. Those still active at step s of an epoch are then a
    prefix of the rows. Callers refer to a client by its index in `graphs`, never by its slot in this layout.

    Args:
        graphs: one per client.
        keys: one per client, for its random draws; a client draws the same numbers in any stack.
        model: determines widths and initial values.
        seed: see `generator`.
        device: where the tables live.
        purpose: name of the draw of initial rows, so that two models of the same clients start differently.
        relations: table of relations to share with another stack of the same clients; None draws one.
    """

    def __init__(
        self,
        graphs: Sequence[ClientGraph],
        keys: Sequence[int],
        model: KgeModel,
        seed: int,
        device: torch.device,
        *,
        purpose: str = "initial rows",
        relations: Tensor | None = None,
    ) -> None:
        self.graphs = tuple(graphs)
        self.keys = tuple(keys)
        self.model = model
        # Ties by index, so that the layout is the same in every run.
        self.order = sorted(range(len(graphs)), key=lambda client: (-len(graphs[client].train), client))
        self._slots = {client: slot for slot, client in enumerate(self.order)}
        sizes = {
            "entities": [graphs[client].num_entities for client in self.order],
            "relations": [graphs[client].num_relations for client in self.order],
        }
        # Prefix sums: the first row of each slot.
        starts = {table: np.concatenate([[0], np.cumsum(counts)]) for table, counts in sizes.items()}
        self._spans: dict[Table, dict[int, slice]] = {
            table: {
                client: slice(int(starts[table][slot]), int(starts[table][slot + 1]))
                for slot, client in enumerate(self.order)
            }
            for table in ("entities", "relations")
        }

        def initial(table: Table, width: int) -> Tensor:
            """Draw a stacked table, client by client."""
            parts = [
                model.initial_rows(count, width, generator(seed, purpose, table, keys[client]), table=table)
                for client, count in zip(self.order, sizes[table], strict=True)
            ]
            if device.type != "cpu":
                return torch.cat(parts).to(device)
            # Large tables are touched in every step; large pages save address lookups.
            return torch.cat(parts, out=in_large_pages((sum(map(len, parts)), width)))

        self.tables: dict[Table, Tensor] = {
            "entities": initial("entities", model.entity_width),
            "relations": initial("relations", model.relation_width) if relations is None else relations,
        }

    def span(self, table: Table, client: int) -> slice:
        """Return the slice of a stacked table that holds the client's rows.

        Args:
            client: index in `graphs`.
        """
        return self._spans[table][client]

    def rows(self, table: Table, client: int) -> Tensor:
        """Return the client's rows, a view: `[entities of the client, W]` or `[relations of the client, V]`.

        Args:
            client: index in `graphs`.
        """
        return self.tables[table][self._spans[table][client]]

    def window(self, table: Table, clients: Collection[int]) -> slice:
        """Return the slice of a stacked table from the first to the last of these clients.

        Args:
            clients: indices in `graphs`.
        """
        spans = [self._spans[table][client] for client in clients]
        return slice(min(span.start for span in spans), max(span.stop for span in spans))

    def segments(self, num_queries: Mapping[int, int]) -> Segments:
        """Return the starts of each client's queries and entities, from the first to the last client with queries.

        Args:
            num_queries: of each client, in stacked order.
        """
        slots = [self._slots[client] for client in num_queries]
        clients = self.order[min(slots) : max(slots) + 1]
        first = self.span("entities", clients[0]).start
        queries = np.cumsum([0, *(num_queries.get(client, 0) for client in clients)], dtype=np.int64)
        rows = np.array([first, *(self.span("entities", client).stop for client in clients)], dtype=np.int64)
        return Segments(queries, rows - first, first)

    @property
    def device(self) -> torch.device:
        """Device of the tables."""
        return self.tables["entities"].device
