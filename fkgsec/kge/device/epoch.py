"""Local training of a stack on a device: every step of an epoch in kernels of fixed shapes, without a word to the host.

    fused = make_fused([(stack, TABLES)], subsets, options, rule, {}, {})        # of `fkgsec.kge.device.fused`
    losses = fused.train_round(1, [0, 2], None)           # of each client, by epoch and step; tables move in place

Each client has a slot for every positive of a batch; slots without one cost next to nothing, so an epoch is the same launches
whoever takes part, and on CUDA it is one graph, captured after the first epoch and launched for the others. Numbers, losses and
moves are those of `fkgsec.kge.local.training.LocalTrainer` with `draws="philox"`, up to the order of sums.

Legend: `B` slots, `K` candidates of each, `C` clients, `T` training triples of all clients.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.federation.recipes import Table
from fkgsec.kge.device import losses, tables
from fkgsec.kge.device.batches import Batches
from fkgsec.kge.device.learner import BLOCK, FusedLearner
from fkgsec.kge.device.sizes import block_of
from fkgsec.kge.device.where import How, current
from fkgsec.kge.local.rule import Distillation, WeightedObjective
from fkgsec.kge.options import KgeOptions

OBJECTIVES = {"squared": losses.SQUARED, "distance": losses.DISTANCE, "contrastive": losses.CONTRASTIVE}
FORMULAS = {"mutual": losses.MUTUAL, "published": losses.PUBLISHED, "co": losses.CO}


class Pull(NamedTuple):
    """An objective of shared rows with the rows that it looks at: those received, and those of the last training, by table."""

    objective: WeightedObjective
    name: str
    received: Mapping[Table, Tensor]
    previous: Mapping[Table, Tensor]


class FusedTrainer:
    """Trains the clients of a stack, and the model that each keeps to itself, in fused steps.

    Args:
        learners: of the shared model, then of the one that clients keep, if any. batches: what they train on.
        pull: what is added for shared rows, if anything. how: how epochs run.
    """

    def __init__(
        self,
        learners: Sequence[FusedLearner],
        batches: Batches,
        options: KgeOptions,
        pull: Pull | None,
        how: How,
    ) -> None:
        self.learners, self._batches, self._pull = tuple(learners), batches, pull
        self._temperature = float(options.sampling_temperature)
        self._epochs, self._how = options.local_epochs, how
        device = learners[0].stack.device
        count = len(learners[0].stack.graphs)
        self.losses = torch.zeros(self._epochs * batches.num_steps, count, dtype=torch.float64, device=device)
        self._totals = torch.zeros(count, dtype=torch.float64, device=device)
        self._slot_losses = torch.zeros(len(batches.slot_client), device=device)
        self._bad = torch.zeros(1, dtype=torch.int32, device=device)
        self._moving = torch.zeros(count, dtype=torch.int32, device=device)
        self._mu = torch.zeros(1, device=device)
        self._formula = losses.MUTUAL
        self._row_losses = {
            table: torch.zeros(len(rows), device=device) for table, rows in (pull.received if pull else {}).items()
        }
        self._factors = torch.zeros(count, device=device)
        self._capture = how.graphs and device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._row_starts: dict[Table, Tensor] = {}
        for table in self._row_losses:
            spans = [learners[0].stack.span(table, client) for client in learners[0].stack.order]
            self._row_starts[table] = torch.tensor([0, *(span.stop for span in spans)], device=device)

    def train_round(
        self, round: int, clients: Sequence[int], distillation: Distillation | None
    ) -> dict[int, np.ndarray]:
        """Of each of these clients, by place, its losses float64 `[epochs, its steps]`.

        The tables, and the counts of Adam, are as before the first step whose loss was not finite.
        """
        batches, order = self._batches, self._batches.order_of_clients
        with current(self._totals.device):
            batches.take_part(clients)
            batches.state[2] = round
            self._bad.zero_()
            if distillation:
                self._formula = FORMULAS[distillation.formula]
                self._mu.fill_(distillation.weight)
            for epoch in range(self._epochs):
                batches.state[1] = epoch
                self._run_epoch()
            found = self.losses.cpu().numpy().reshape(self._epochs, batches.num_steps, len(order))
        return {client: found[:, : batches.steps_of(client), order.index(client)].copy() for client in clients}

    def _run_epoch(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        self._epoch()  # compiles every kernel, which a capture could not
        if self._capture:
            self._capture = False
            state = self._batches.state.clone()
            try:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self._epoch()
                self._graph = graph
            except RuntimeError as error:
                warnings.warn(
                    f"an epoch could not be captured as a CUDA graph, so every kernel is launched on its own ({error})",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._batches.state.copy_(state)

    def _epoch(self) -> None:
        self._batches.begin_epoch()
        for _ in range(self._batches.num_steps):
            self.step()

    def step(self) -> None:
        """One step of all clients that have a batch."""
        batches = self._batches
        batches.draw()
        weights, scale = batches.weights, 1.0
        if len(self.learners) == 1:
            weights, scale = batches.weights / 2, 0.5  # (positive + negative) / 2, as in `LocalTrainer`
            self.learners[0].score_and_pull(self._slot_losses, self._temperature, weights)
        else:
            self._distil()
        self._sum()
        count = len(self._totals)
        losses.client_losses[(count,)](
            self._slot_losses, batches.weights, batches.clients, self._totals, len(self._slot_losses), scale,
            BLOCK=BLOCK,
        )  # fmt: skip
        self._pull_rows()
        losses.settle[(1,)](
            batches.state, batches.clients, self._totals, self.losses, self._moving, self._bad, batches.batch_size,
            batches.num_steps, count, SIDES=batches.sides, BLOCK=block_of(count),
        )  # fmt: skip
        for learner in self.learners:
            learner.move(self._moving, self._bad)
        batches.state[:1].add_(1)

    def _sum(self) -> None:
        batches, shared = self._batches, self.learners[0]
        by_relation = tables.by_row(batches.relations, batches.num_relations)
        by_entity = tables.by_row(batches.candidates, len(shared.entities)) if self._how.ordered else None
        for learner in self.learners:
            learner.sum(by_entity, by_relation)

    def _distil(self) -> None:
        shared, own = self.learners
        for learner in self.learners:
            learner.score()
        count = shared.scores.shape[1]
        losses.distil[(len(shared.scores),)](
            self._batches.candidates, own.scores, shared.scores, self._batches.weights, self._slot_losses, self._mu,
            self._temperature, count, KIND=self._formula, BLOCK=block_of(count),
        )  # fmt: skip
        for learner in self.learners:
            learner.pull()

    def _pull_rows(self) -> None:
        if self._pull is None:
            return
        (_, weight, tau), shared = self._pull.objective, self.learners[0]
        weight, tau = float(weight), float(tau)
        kind = OBJECTIVES[self._pull.name]
        for table, received in self._pull.received.items():
            rows, previous = shared.stack.tables[table].detach(), self._pull.previous.get(table, received)
            width = rows.shape[1]
            block, out = block_of(width), self._row_losses[table]
            losses.row_losses[(len(rows),)](rows, received, previous, out, tau, width, KIND=kind, BLOCK=block)
            losses.reduce_rows[(len(self._totals),)](
                out, self._row_starts[table], self._totals, self._factors, weight, KIND=kind, BLOCK=BLOCK
            )
            losses.pull_rows[(len(rows),)](
                rows, received, previous, shared.row_client[table], self._factors, shared.gradients[table], tau, width,
                KIND=kind, BLOCK=block,
            )  # fmt: skip
