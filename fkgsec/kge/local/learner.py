"""Learner of one model for all clients of a stack: gradients of its tables, and Adam steps.

    learner = Learner(stack, ("entities", "relations"), learning_rate=0.001)
    queries = learner.queries(triples, "tail")      # what candidates are compared with
    learner.step(learner.gradients(queries, triples, "tail", to_queries), clients=[0, 2])

Legend: `B` positives of a step (all clients together), `W`, `V` widths of entity and relation rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fkgsec.adam import Adam
from fkgsec.federation.recipes import Table
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.models import Side


class Learner:
    """Model of all clients with the Adam optimizer that trains it.

    One Adam serves all clients: each client's rows are parameters of their own with their own step count, so a client that
    has fewer batches takes fewer steps. Gradients are dense (rows without a gradient still move by their
    momentum), as in the published codes.

    Args:
        stack: the tables, trained in place. tables: those that this learner trains.
    """

    def __init__(self, stack: ClientStack, tables: Collection[Table], learning_rate: float) -> None:
        self.stack = stack
        self.tables = tuple(tables)
        self._learning_rate = learning_rate
        self._relation_gradients = torch.zeros_like(stack.tables["relations"])
        self.entity_gradients = torch.empty_like(stack.tables["entities"])  # of each client's last step
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Forget Adam's moments and step counts."""
        self._parameters: list[dict[Table, Tensor]] = [
            {table: self.stack.rows(table, client).requires_grad_() for table in self.tables}
            for client in range(len(self.stack.graphs))
        ]
        flat = [parameters[table] for parameters in self._parameters for table in self.tables]
        self._adam = Adam(flat, lr=self._learning_rate)

    def queries(self, triples: Tensor, side: Side) -> Queries:
        """Return what the candidates of these triples, int64 `[B, 3]` in stacked rows, are compared with."""
        with torch.enable_grad():
            anchors = self.stack.tables["entities"].detach()[triples[:, 0 if side == "tail" else 2]].requires_grad_()
            relations = self.stack.tables["relations"].detach()[triples[:, 1]].requires_grad_()
            return Queries(anchors, relations, self.stack.model.query(anchors, relations, side))

    def gradients(self, queries: Queries, triples: Tensor, side: Side, to_queries: Tensor) -> dict[Table, Tensor]:
        """Gradients to the tables from those to queries and from those to candidates, which are in `entity_gradients`.

        Rows of clients that are not at it hold what they held.
        """
        to_anchors, to_relations = torch.autograd.grad(queries.rows, [queries.anchors, queries.relations], to_queries)
        return {
            "entities": self.entity_gradients.index_add_(0, triples[:, 0 if side == "tail" else 2], to_anchors),
            "relations": self._relation_gradients.zero_().index_add_(0, triples[:, 1], to_relations),
        }

    def step(self, gradients: dict[Table, Tensor], clients: Collection[int]) -> None:
        """Take an Adam step for the active clients."""
        for client, parameters in enumerate(self._parameters):
            for table, rows in parameters.items():
                at_it = client in clients and table in gradients
                rows.grad = gradients[table][self.stack.span(table, client)] if at_it else None
        self._adam.step()

    def tensors(self) -> dict[str, Tensor]:
        """Adam's state by name, for a checkpoint."""
        state = self._adam.state_dict()["state"]
        return {f"{place}.{name}": tensor for place, values in state.items() for name, tensor in values.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            place, name = key.split(".", 1)
            state.setdefault(int(place), {})[name] = tensor
        whole = self._adam.state_dict()
        whole["state"] = state
        self._adam.load_state_dict(whole)


class Queries(NamedTuple):
    """Anchors `[B, W]`, relations `[B, V]`, and the queries `[B, W]` that they make, with their graph."""

    anchors: Tensor
    relations: Tensor
    rows: Tensor
