"""Learner of one model for all clients of a stack: gradients of its tables, and Adam steps.

    learner = Learner(stack, ("entities", "relations"), learning_rate=0.001)
    queries = learner.queries(triples, "tail")      # compared with candidates
    learner.step(learner.gradients(queries, triples, "tail", to_queries), clients=[0, 2])

Legend: `B` positives of a step (all clients together), `W`, `V` widths of entity and relation rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fkgsec.adam import Adam, load_packed_state, packed_state
from fkgsec.federation.recipes import Table
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.models import Side


class Learner:
    """Model of all clients with the Adam optimizer that trains it.

    One Adam serves all clients. The rows of each client are separate parameters with a separate step count, so a client with
    fewer batches takes fewer steps. Gradients are dense (rows without a gradient still move by their momentum), as in the
    published code.

    Args:
        stack: the tables, trained in place.
        tables: names of the tables that this learner trains.
        learning_rate: of Adam.
    """

    def __init__(self, stack: ClientStack, tables: Collection[Table], learning_rate: float) -> None:
        self.stack = stack
        self.tables = tuple(tables)
        self._learning_rate = learning_rate
        self._relation_gradients = torch.zeros_like(stack.tables["relations"])
        self.entity_gradients = torch.empty_like(stack.tables["entities"])  # of each client's last step
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Reset Adam's moments and step counts."""
        self._parameters: list[dict[Table, Tensor]] = [
            {table: self.stack.rows(table, client).requires_grad_() for table in self.tables}
            for client in range(len(self.stack.graphs))
        ]
        # One tensor per client and table: Adam counts the steps of each separately.
        flat = [parameters[table] for parameters in self._parameters for table in self.tables]
        self._adam = Adam(flat, lr=self._learning_rate)

    def queries(self, triples: Tensor, side: Side) -> Queries:
        """Compute the queries of a batch.

        Args:
            triples: int64 `[B, 3]`, in stacked rows.
            side: the side to replace.
        """
        with torch.enable_grad():
            anchors = self.stack.tables["entities"].detach()[triples[:, 0 if side == "tail" else 2]].requires_grad_()
            relations = self.stack.tables["relations"].detach()[triples[:, 1]].requires_grad_()
            return Queries(anchors, relations, self.stack.model.query(anchors, relations, side))

    def gradients(self, queries: Queries, triples: Tensor, side: Side, to_queries: Tensor) -> dict[Table, Tensor]:
        """Carry gradients from queries back to the tables. Gradients to candidates are in `entity_gradients` already.

        Rows of inactive clients keep stale values, which `step` ignores.

        Args:
            triples: int64 `[B, 3]`, in stacked rows.
            side: the side to replace.
            to_queries: float `[B, W]`, derivative of the loss by the queries.

        Returns:
            Gradient of each table.
        """
        # Autograd only crosses the query function; all else has explicit gradients.
        to_anchors, to_relations = torch.autograd.grad(queries.rows, [queries.anchors, queries.relations], to_queries)
        return {
            "entities": self.entity_gradients.index_add_(0, triples[:, 0 if side == "tail" else 2], to_anchors),
            "relations": self._relation_gradients.zero_().index_add_(0, triples[:, 1], to_relations),
        }

    def step(self, gradients: dict[Table, Tensor], clients: Collection[int]) -> None:
        """Take an Adam step for the active clients.

        Args:
            gradients: of each stacked table.
            clients: places of the active clients.
        """
        for client, parameters in enumerate(self._parameters):
            for table, rows in parameters.items():
                # Adam skips a parameter whose gradient is None: its moments and step count stay.
                is_active = client in clients and table in gradients
                rows.grad = gradients[table][self.stack.span(table, client)] if is_active else None
        self._adam.step()

    def tensors(self) -> dict[str, Tensor]:
        """Return Adam's state by name, for a checkpoint."""
        return packed_state(self._adam)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the state that `tensors` returned."""
        load_packed_state(self._adam, tensors)


class Queries(NamedTuple):
    """Anchors `[B, W]`, relations `[B, V]`, and the queries `[B, W]` that they make, with their graph."""

    anchors: Tensor
    relations: Tensor
    rows: Tensor
