"""One model of all clients on the device: its tables, what a step computes of them, and the Adam that moves them.

Legend: `B` slots, `K` candidates of each, `C` clients.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import triton
from torch import Tensor

from fkgsec.federation.recipes import Table
from fkgsec.kge.device import adam, scoring, tables
from fkgsec.kge.device.batches import Batches
from fkgsec.kge.device.sizes import block_of, tile_of
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.models import KgeModel

MODELS = {
    "transe": scoring.TRANSE,
    "rotate": scoring.ROTATE,
    "distmult": scoring.DISTMULT,
    "complex": scoring.COMPLEX,
}
BLOCK = 1024  # numbers that a program of an elementwise kernel takes


class FusedLearner:
    """One model of all clients, its gradients and its Adam, on the device.

    Args:
        stack: the tables, trained in place. trained: those that this learner trains.
    """

    def __init__(self, stack: ClientStack, trained: Sequence[Table], batches: Batches, learning_rate: float) -> None:
        self.stack, self.trained, self._batches, self._learning_rate = stack, tuple(trained), batches, learning_rate
        model: KgeModel = stack.model
        self.kind, self.dim, self.margin = MODELS[model.name], model.dim, float(model.margin)
        self.phase = float(np.pi / model.initial_range)
        self.entities, self.relations = (stack.tables[table].detach() for table in ("entities", "relations"))
        size, device = len(batches.slot_client), stack.device
        self.scores = torch.zeros(size, batches.candidates.shape[1] - 1, device=device)
        self.queries = torch.zeros(size, model.entity_width, device=device)
        self.to_anchors = torch.zeros_like(self.queries)
        self.to_relations = torch.zeros(size, model.relation_width, device=device)
        self._highest, self._normaliser = torch.zeros(size, device=device), torch.zeros(size, device=device)
        self.gradients: dict[Table, Tensor] = {
            table: torch.zeros_like(stack.tables[table].detach()) for table in trained
        }
        self.moments = {
            table: (torch.zeros_like(rows), torch.zeros_like(rows)) for table, rows in self.gradients.items()
        }
        self.steps = torch.zeros(len(stack.graphs), dtype=torch.int64, device=device)
        self._divisors = torch.ones(2, len(stack.graphs), device=device)
        self.row_client: dict[Table, Tensor] = {}
        for table in ("entities", "relations"):
            spans = [stack.span(table, client) for client in stack.order]
            sizes = torch.tensor([span.stop - span.start for span in spans])
            numbers = torch.repeat_interleave(torch.arange(len(spans), dtype=torch.int32), sizes)
            self.row_client[table] = numbers.to(device)

    def reset_optimizer(self) -> None:
        """Forget Adam's moments and step counts."""
        for first, second in self.moments.values():
            first.zero_()
            second.zero_()
        self.steps.zero_()

    def _block(self) -> tuple[int, int]:
        block = block_of(self.dim)
        return block, tile_of(block, self.kind)

    def _widths(self) -> tuple[int, int, int, int]:
        return self.scores.shape[1], self.dim, self.queries.shape[1], self.to_relations.shape[1]

    def score_and_pull(self, out: Tensor, temperature: float, weights: Tensor) -> None:
        """Losses `[B]` into `out`; scores become slopes, and gradients to anchors and relations are filled."""
        batches, (block, tile) = self._batches, self._block()
        grid = (len(batches.slot_client),)
        scoring.candidate_pass[grid](
            batches.state, self.entities, self.relations, batches.candidates, batches.relations, weights, self.queries,
            self.scores, self._highest, self._normaliser, out, self.to_anchors, self.to_relations, self.margin, temperature,
            self.phase, *self._widths(), SIDES=batches.sides, MODEL=self.kind, TILE=tile, BLOCK_D=block,
        )  # fmt: skip
        columns = min(BLOCK, block_of(self.scores.shape[1]))
        scoring.coefficients[(grid[0], triton.cdiv(self.scores.shape[1], columns))](
            batches.candidates, self.scores, self._highest, self._normaliser, weights, temperature, self.scores.shape[1],
            BLOCK=columns,
        )  # fmt: skip

    def score(self) -> None:
        """Scores, for a loss of two models."""
        batches, (block, tile) = self._batches, self._block()
        scoring.score_pass[(len(batches.slot_client),)](
            batches.state, self.entities, self.relations, batches.candidates, batches.relations, batches.weights,
            self.queries, self.scores, self.margin, self.phase, *self._widths(),
            SIDES=batches.sides, MODEL=self.kind, TILE=tile, BLOCK_D=block,
        )  # fmt: skip

    def pull(self) -> None:
        """Gradients to anchors and relations from the slopes that stand in `scores`."""
        batches, (block, tile) = self._batches, self._block()
        scoring.query_pass[(len(batches.slot_client),)](
            batches.state, self.entities, self.relations, batches.candidates, batches.relations, batches.weights,
            self.scores, self.to_anchors, self.to_relations, self.phase, *self._widths(),
            SIDES=batches.sides, MODEL=self.kind, TILE=tile, BLOCK_D=block,
        )  # fmt: skip

    def sum(self, by_entity: tuple[Tensor, Tensor] | None, by_relation: tuple[Tensor, Tensor]) -> None:
        """Gradients of the tables, from places sorted by row; those of entities by atomics where no places are given."""
        block, tile = self._block()
        num_candidates, dim, width, relation_width = self._widths()
        gradients, sizes = self.gradients["entities"], {"MODEL": self.kind, "TILE": tile, "BLOCK_D": block}
        if by_entity is None:
            tables.scatter_candidates[(len(self.scores),)](
                self.entities, self.queries, self._batches.candidates, self.scores, self.to_anchors, gradients.zero_(),
                num_candidates, dim, width, **sizes,
            )  # fmt: skip
        else:
            tables.sum_candidates[(len(self.entities),)](
                self.entities, self.queries, self.scores, self.to_anchors, *by_entity, gradients,
                num_candidates, dim, width, **sizes,
            )  # fmt: skip
        if "relations" in self.trained:
            wide = block_of(relation_width)
            tables.sum_rows[(len(self.relations),)](
                self.to_relations, *by_relation, self.gradients["relations"], relation_width,
                TILE=tile_of(wide, 0), BLOCK=wide,
            )  # fmt: skip

    def move(self, moving: Tensor, bad: Tensor) -> None:
        """One step of Adam for the clients that are `moving`, int32 `[C]`, unless a loss was `bad`."""
        count = len(self.steps)
        adam.count_steps[(1,)](moving, self.steps, self._divisors, count, BLOCK=block_of(count))
        for table in self.trained:
            rows = self.stack.tables[table].detach()
            adam.adam_step[(triton.cdiv(rows.numel(), BLOCK),)](
                rows, self.gradients[table], *self.moments[table], self.row_client[table], moving, self._divisors, bad,
                self._learning_rate, rows.numel(), rows.shape[1], count, BLOCK=BLOCK,
            )  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        """Adam's state by name, as `fkgsec.kge.local.training.Learner` names it."""
        kept, steps = {}, self.steps.tolist()
        for client in range(len(self.stack.graphs)):
            count = steps[self.stack.order.index(client)]
            for number, table in enumerate(self.trained if count else ()):
                place, span = client * len(self.trained) + number, self.stack.span(table, client)
                kept[f"{place}.step"] = torch.tensor(float(count))
                kept[f"{place}.exp_avg"] = self.moments[table][0][span].clone()
                kept[f"{place}.exp_avg_sq"] = self.moments[table][1][span].clone()
        return kept

    def load(self, kept: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        for name, tensor in kept.items():
            place, what = name.split(".", 1)
            client, number = divmod(int(place), len(self.trained))
            if what == "step":
                self.steps[self.stack.order.index(client)] = int(tensor)
                continue
            table = self.trained[number]
            self.moments[table][what == "exp_avg_sq"][self.stack.span(table, client)] = tensor.to(self.stack.device)
