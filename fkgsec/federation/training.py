"""Local training: the same steps that each client would take alone, taken for all of them at once.

Legend: `B` positives of a step (all clients together), `K` 1 + negatives, `W`, `V` widths of entity and relation rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import ClientGraph
from fkgsec.errors import TrainingError
from fkgsec.federation.objectives import OBJECTIVES
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.federation.stack import ClientStack
from fkgsec.kge import kernels
from fkgsec.kge.models import Side
from fkgsec.kge.negatives import NegativeSampler
from fkgsec.randomness import generator

TABLES: tuple[Table, ...] = ("entities", "relations")


class LocalTrainer:
    """Trains the clients of a stack in place; holds their samplers and their Adam.

    One Adam serves all clients: each client's rows are parameters of their own with their own step count, so a client that
    has fewer batches takes fewer steps. Gradients are dense (rows without a gradient still move by their
    momentum), as in the published codes.
    """

    def __init__(self, stack: ClientStack, options: FederationOptions) -> None:
        self._stack = stack
        self._options = options
        self._samplers = [
            NegativeSampler(
                graph.train,
                num_relations=graph.num_relations,
                candidates=_candidates(graph, options),
            )
            for graph in stack.graphs
        ]
        self._gradients = {table: torch.zeros_like(stack.tables[table]) for table in TABLES}
        recipe = RECIPES[options.algorithm]
        self._objective = OBJECTIVES.get(recipe.objective)
        self._shared = recipe.shared if self._objective else ()
        self._mu = recipe.mu if options.mu is None else options.mu
        # Shared rows as the round began, and as each client's last training left them (before the first: as received).
        self._received: dict[Table, Tensor] = {}
        self.previous: dict[Table, Tensor] = {table: stack.tables[table].detach().clone() for table in self._shared}
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Forget Adam's moments and step counts."""
        self._parameters = [
            {table: self._stack.rows(table, client).requires_grad_() for table in TABLES}
            for client in range(len(self._stack.graphs))
        ]
        flat = [parameters[table] for parameters in self._parameters for table in TABLES]
        self._adam = torch.optim.Adam(flat, lr=self._options.learning_rate, fused=True)

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Adam's state by name, for a checkpoint."""
        state = self._adam.state_dict()["state"]
        return {f"{place}.{name}": tensor for place, values in state.items() for name, tensor in values.items()}

    def load_optimizer_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `optimizer_tensors` gave."""
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            place, name = key.split(".", 1)
            state.setdefault(int(place), {})[name] = tensor
        whole = self._adam.state_dict()
        whole["state"] = state
        self._adam.load_state_dict(whole)

    def num_steps(self, clients: Sequence[int]) -> int:
        """Steps of one round: those of the client with the most batches."""
        longest = max(len(self._stack.graphs[client].train) for client in clients)
        return self._options.local_epochs * -(-longest // self._options.batch_size)

    def train_round(
        self, round: int, clients: Sequence[int], on_step: Callable[[], None] = lambda: None
    ) -> dict[int, float]:
        """`local_epochs` epochs of the given clients; returns each one's mean loss over its batches.

        Raises:
            TrainingError: a loss is not finite; the tables are as they were before that step.
        """
        self._received = {table: self._stack.tables[table].detach().clone() for table in self._shared}
        ordered = [client for client in self._stack.order if client in set(clients)]
        losses: dict[int, list[float]] = {client: [] for client in ordered}
        for epoch in range(self._options.local_epochs):
            shuffled, draws = {}, {}
            for client in ordered:
                key = self._stack.keys[client]
                train = self._stack.graphs[client].train
                shuffled[client] = generator(self._options.seed, "shuffle", key, round, epoch).permutation(len(train))
                draws[client] = generator(self._options.seed, "negatives", key, round, epoch)
            size = self._options.batch_size
            for step in range(-(-len(shuffled[ordered[0]]) // size)):
                active = [client for client in ordered if step * size < len(shuffled[client])]
                # Tails and heads in alternate steps; the epoch shifts the parity, so that a client of one batch sees both.
                head_turn = self._options.negative_sides == "both" and (step + epoch + round) % 2 == 1
                batches = {client: shuffled[client][step * size : (step + 1) * size] for client in active}
                step_losses = self._step(batches, draws, "head" if head_turn else "tail")
                bad = [client for client, loss in step_losses.items() if not np.isfinite(loss)]
                if bad:
                    raise TrainingError(
                        f"the loss of client {self._stack.graphs[bad[0]].name} is {step_losses[bad[0]]} in round {round}, "
                        f"epoch {epoch + 1}, step {step + 1}; lower learning_rate (now {self._options.learning_rate})"
                    )
                self._adam.step()
                for client, loss in step_losses.items():
                    losses[client].append(loss)
                on_step()
        for table, previous in self.previous.items():
            for client in ordered:
                previous[self._stack.span(table, client)] = self._stack.rows(table, client).detach()
        return {client: float(np.mean(values)) for client, values in losses.items()}

    def _step(
        self, batches: dict[int, np.ndarray], draws: dict[int, np.random.Generator], side: Side
    ) -> dict[int, float]:
        """Set the gradients of one step; returns the loss of each client."""
        stack, model = self._stack, self._stack.model
        triples, candidates, weights = self._assemble(batches, draws, side)
        anchor_column, positive_column = (0, 2) if side == "tail" else (2, 0)
        candidates[:, 0] = triples[:, positive_column]
        with torch.enable_grad():
            anchors = stack.tables["entities"].detach()[triples[:, anchor_column]].requires_grad_()
            relations = stack.tables["relations"].detach()[triples[:, 1]].requires_grad_()
            queries = model.query(anchors, relations, side)
        # Active clients are a prefix of the rows (or of all rows, when some clients do not take part in the round).
        end = max(stack.span("entities", client).stop for client in batches)
        outcome = kernels.candidate_loss(
            model.similarity,
            queries.detach(),
            stack.tables["entities"].detach()[:end],
            candidates,
            weights,
            margin=model.margin,
            temperature=self._options.temperature,
        )
        anchor_gradient, relation_gradient = torch.autograd.grad(queries, [anchors, relations], outcome.query_gradient)
        gradients: dict[Table, Tensor] = {
            "entities": outcome.table_gradient.index_add_(0, triples[:, anchor_column], anchor_gradient),
            "relations": self._gradients["relations"].zero_().index_add_(0, triples[:, 1], relation_gradient),
        }
        further = self._add_row_losses(gradients, batches)
        for client, parameters in enumerate(self._parameters):
            for table in TABLES:
                parameters[table].grad = gradients[table][stack.span(table, client)] if client in batches else None
        ends = np.cumsum([len(rows) for rows in batches.values()])
        # (positive + negative) / 2, the mean over the batch. Source: FedE's and FedR's codes.
        parts = np.split((outcome.losses * weights).cpu().numpy().astype(np.float64), ends[:-1])
        return {client: float(part.sum()) + further[client] for client, part in zip(batches, parts, strict=True)}

    def _add_row_losses(self, gradients: dict[Table, Tensor], batches: Collection[int]) -> dict[int, float]:
        """Add the gradient of the further objective on shared rows, in place; returns each client's loss of it."""
        losses = dict.fromkeys(batches, 0.0)
        if self._objective is None:
            return losses
        for table in self._shared:
            rows = self._stack.tables[table].detach()[: len(gradients[table])].requires_grad_()
            end = len(rows)
            with torch.enable_grad():
                received, previous = self._received[table][:end], self.previous[table][:end]
                row_losses = self._objective.row_loss(rows, received, previous, self._options.tau)
            weights = torch.zeros_like(row_losses)
            for client in batches:
                span = self._stack.span(table, client)
                weights[span] = self._mu / (span.stop - span.start if self._objective.mean else 1)
                losses[client] += float((row_losses.detach() * weights)[span].sum())
            gradients[table] += torch.autograd.grad(row_losses, rows, weights)[0]
        return losses

    def _assemble(
        self, batches: dict[int, np.ndarray], draws: dict[int, np.random.Generator], side: Side
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Stacked triples int64 `[B, 3]`, candidates int32 `[B, K]` (column 0 still open) and weights float32 `[B]`."""
        triples, weights = [], []
        total = sum(len(rows) for rows in batches.values())
        candidates = torch.empty(total, 1 + self._options.num_negatives, dtype=torch.int32)
        low = 0
        for client, rows in batches.items():
            first_entity = self._stack.span("entities", client).start
            first_relation = self._stack.span("relations", client).start
            triples.append(
                self._stack.graphs[client].train[rows] + np.array([first_entity, first_relation, first_entity])
            )
            drawn = self._samplers[client].sample(rows, self._options.num_negatives, side, draws[client])
            candidates[low : low + len(rows), 1:] = torch.where(drawn >= 0, drawn + first_entity, drawn)
            weights.append(np.full(len(rows), 0.5 / len(rows), dtype=np.float32))
            low += len(rows)
        device = self._stack.device
        return (
            torch.from_numpy(np.concatenate(triples)).to(device),
            candidates.to(device),
            torch.from_numpy(np.concatenate(weights)).to(device),
        )


def _candidates(graph: ClientGraph, options: FederationOptions) -> np.ndarray:
    """The local ids that a client corrupts with, see `FederationOptions.entity_scope`."""
    if options.entity_scope == "own":
        return np.arange(graph.num_trained_entities)
    if options.entity_scope == "all":
        return np.arange(graph.num_entities)
    return np.nonzero(graph.entity_ids < graph.num_trained_entities)[0]
