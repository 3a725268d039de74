"""Local training: the steps that each client would take alone, taken for all clients of a stack at once.

    trainer = LocalTrainer(ClientStack(graph.clients, keys, model, seed, device), options)
    losses = trainer.train_round(1, [0, 2])         # mean loss of each active client; tables move in place

A client's random draws derive from its key, and no sum spans two clients. Alone or stacked, a client trains to the same bits.

Legend: `B` positives of a step (all clients together), `K` 1 + negatives, `W`, `V` widths of entity and relation rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import ClientGraph
from fkgsec.errors import TrainingError
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.kge import kernels
from fkgsec.kge.local.learner import Learner
from fkgsec.kge.local.rule import LocalRule
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.models import Side
from fkgsec.kge.negatives import NegativeSampler, frequency_weights
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator

TABLES: tuple[Table, ...] = ("entities", "relations")
CACHED_BYTES = 12 * 2**20  # cache size that the clients of one group may fill


class TrainingSubset(NamedTuple):
    """Training items of a client: `rows` int64 `[m]` of `triples` int64 `[n, 3]`. Negatives exclude all of `triples`."""

    triples: np.ndarray
    rows: np.ndarray

    @classmethod
    def all(cls, triples: np.ndarray) -> TrainingSubset:
        """Use all triples.

        Args:
            triples: int64 `[n, 3]`.
        """
        return cls(triples, np.arange(len(triples)))


class LocalTrainer:
    """Trains the clients of a stack in place, and their private models if the recipe has them.

    Args:
        stack: tables of the shared model.
        options: of the federation.
        private: tables of the private models, or None.
        subsets: training subset by client, instead of its whole train split.
    """

    def __init__(
        self,
        stack: ClientStack,
        options: KgeOptions,
        private: ClientStack | None = None,
        subsets: Mapping[int, TrainingSubset] | None = None,
    ) -> None:
        self._stack = stack
        self._options = options
        self._recipe = RECIPES[options.algorithm]
        chosen = subsets or {}
        self._subsets = [
            chosen.get(client, TrainingSubset.all(graph.train)) for client, graph in enumerate(stack.graphs)
        ]
        self._samplers = [self._sampler(client) for client in range(len(stack.graphs))]
        self._weights = [self._frequencies(subset) for subset in self._subsets]
        # Where both models use one table of relations, it is the private model's to train (FedLU's code).
        own_tables: tuple[Table, ...] = ("entities",) if self._recipe.private == "entities" else TABLES
        self._learner = Learner(stack, own_tables, options.learning_rate)
        self._private = Learner(private, TABLES, options.learning_rate) if private else None
        self.rule: LocalRule = (self._recipe.rule or LocalRule)(options)
        pull = self.rule.objective()
        pulled = self._recipe.shared if pull or self.rule.keeps_received else ()
        # Shared rows as a client last received them, and as its last training left them (before the first: as received).
        self.received: dict[Table, Tensor] = {table: stack.tables[table].detach().clone() for table in pulled}
        self.previous: dict[Table, Tensor] = {
            table: stack.tables[table].detach().clone() for table in pulled if pull and pull.objective.uses_previous
        }

    def train_on(self, client: int, subset: TrainingSubset) -> None:
        """Replace a client's training triples from now on.

        Args:
            client: index in the stack.
            subset: triples to train on.
        """
        self._subsets[client] = subset
        self._samplers[client] = self._sampler(client)
        self._weights[client] = self._frequencies(subset)

    def _learners(self) -> list[tuple[str, Learner, bool]]:
        """List name in checkpoints, learner, and whether its Adam outlives a round."""
        named = (("adam", self._learner, self._options.keeps_optimizer), ("private adam", self._private, True))
        return [(name, learner, outlives) for name, learner, outlives in named if learner is not None]

    def _sampler(self, client: int) -> NegativeSampler:
        graph = self._stack.graphs[client]
        candidates = corrupting_entities(graph, self._options)
        return NegativeSampler(self._subsets[client].triples, num_relations=graph.num_relations, candidates=candidates)

    def _frequencies(self, subset: TrainingSubset) -> np.ndarray:
        """Weigh the triples `[n]` of a subset by the frequency of their pairs in its rows; 1 with uniform weights."""
        weights = np.ones(len(subset.triples), dtype=np.float32)
        if self._options.training("triple_weights") == "frequency":
            weights[subset.rows] = frequency_weights(subset.triples[subset.rows])
        return weights

    def receive(self, table: Table, client: int, rows: Tensor, *, first: bool = False) -> None:
        """Store the rows that a client received, for the rule or objective that needs them.

        Args:
            client: index in the stack.
            rows: float `[n, width]`, the client's first n rows.
            first: True in round 0.
        """
        for target in (self.received, *([self.previous] if first else [])):
            if table in target:
                target[table][self._stack.span(table, client)][: len(rows)] = rows

    def begin_round(self) -> None:
        """Reset Adam unless the options keep it: shared rows have changed since its last step."""
        if not self._options.keeps_optimizer:
            self._learners()[0][1].reset_optimizer()

    def tensors(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint between rounds needs besides the tables, by name."""
        learners = {name: learner for name, learner, outlives in self._learners() if outlives}
        state = {
            f"{name}.{key}": value for name, learner in learners.items() for key, value in learner.tensors().items()
        }
        state |= {f"received.{table}": rows for table, rows in self.received.items()}
        return state | {f"previous.{table}": rows for table, rows in self.previous.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the state that `tensors` returned."""
        for name, learner, _ in self._learners():
            state = {key.removeprefix(f"{name}."): tensors[key] for key in tensors if key.startswith(f"{name}.")}
            if state:
                learner.load(state)
        for name, target in (("received", self.received), ("previous", self.previous)):
            for table, rows in target.items():
                rows.copy_(tensors[f"{name}.{table}"])

    def num_steps(self, clients: Sequence[int]) -> int:
        """Count the steps of one round: those of the client with the most batches, summed over groups.

        Args:
            clients: indices in the stack.
        """
        # On the CPU groups train one after the other, so their steps add up.
        groups = self._groups([client for client in self._stack.order if client in set(clients)])
        longest = [max(len(self._subsets[client].rows) for client in group) for group in groups]
        batches = self._options.local_epochs * sum(-(-count // self._options.batch_size) for count in longest)
        return batches * len(corrupted_sides(self._options, 0))

    def _groups(self, ordered: Sequence[int]) -> list[list[int]]:
        """Group clients that step together: all of them on a GPU; on the CPU as many as fit in a cache.

        A client needs its rows, their gradient and Adam's two moments, for each model.
        """
        groups: list[list[int]] = []
        free = 0
        for client in ordered:
            rows = self._stack.rows("entities", client)
            needed = 4 * rows.nbytes * (2 if self._private else 1)
            if not groups or (needed > free and rows.device.type == "cpu"):
                groups.append([])
                free = CACHED_BYTES
            groups[-1].append(client)
            free -= needed
        return groups

    def train_round(
        self, round: int, clients: Sequence[int], on_step: Callable[[], None] = lambda: None
    ) -> dict[int, float]:
        """Train `local_epochs` epochs.

        Args:
            round: number of the round, which random draws depend on.
            clients: indices in the stack.
            on_step: called after every step.

        Returns:
            Mean loss of each client over its batches.

        Raises:
            TrainingError: a loss is not finite; the tables are those before that step.
        """
        ordered = [client for client in self._stack.order if client in set(clients)]
        self.rule.begin_round(round)
        losses: dict[int, list[float]] = {client: [] for client in ordered}
        for epoch in range(self._options.local_epochs):
            # Epoch by epoch over all groups: rules such as FedE-SVD+ change all clients' parameters between epochs.
            self.rule.begin_epoch(epoch, self._stack, self.received)
            for group in self._groups(ordered):
                for step_losses in self._epoch(round, epoch, group):
                    for client, loss in step_losses.items():
                        losses[client].append(loss)
                    on_step()
        self.rule.end_round()
        for table, previous in self.previous.items():
            for client in ordered:
                # The contrastive objective compares with these rows in the next round.
                previous[self._stack.span(table, client)] = self._stack.rows(table, client).detach()
        return {client: float(np.mean(values)) for client, values in losses.items()}

    def _epoch(self, round: int, epoch: int, group: Sequence[int]) -> Iterator[dict[int, float]]:
        """Take the steps of an epoch; yield the losses of the clients that still have batches."""
        shuffled, draws = {}, {}
        for client in group:
            shuffled[client], draws[client] = self._draws(client, round, epoch)
        size = self._options.batch_size
        for step in range(-(-max(map(len, shuffled.values())) // size)):
            # Clients with fewer batches finish earlier; the group shrinks as steps go on.
            active = [client for client in group if step * size < len(shuffled[client])]
            batches = {client: shuffled[client][step * size : (step + 1) * size] for client in active}
            # The epoch shifts the parity, so that a client of one batch sees both sides.
            for side in corrupted_sides(self._options, step + epoch + round):
                # Check before moving: an infinite loss must leave the tables as they were.
                losses, steps = self._step(batches, draws, side)
                self._check(losses, round, epoch, step)
                self._take(steps, batches, losses)
                yield losses

    def _check(self, losses: Mapping[int, float], round: int, epoch: int, step: int) -> None:
        """Raise `TrainingError` if a loss is not finite."""
        bad = [client for client, loss in losses.items() if not np.isfinite(loss)]
        if bad:
            raise TrainingError(
                f"the loss of client {self._stack.graphs[bad[0]].name} is {losses[bad[0]]} in round {round}, "
                f"epoch {epoch + 1}, step {step + 1}; lower learning_rate (now {self._options.learning_rate})"
            )

    def _draws(self, client: int, round: int, epoch: int) -> tuple[np.ndarray, np.random.Generator]:
        """Return a client's shuffled rows for an epoch, and the generator of its negatives."""
        seed, key, rows = self._options.seed, self._stack.keys[client], self._subsets[client].rows
        # FedLU's code draws batches and negatives once, before the first round.
        if self._options.training("redraw") == "never":
            round = epoch = 0
        shuffled = generator(seed, "shuffle", key, round, epoch).permutation(rows)
        return shuffled, generator(seed, "negatives", key, round, epoch)

    def _step(
        self, batches: dict[int, np.ndarray], draws: Mapping[int, np.random.Generator], side: Side
    ) -> tuple[dict[int, float], list[tuple[Learner, dict[Table, Tensor]]]]:
        """Compute each client's loss and each learner's gradients, without moving anything."""
        segments = self._stack.segments({client: len(rows) for client, rows in batches.items()})
        triples, candidates, weights = self._assemble(batches, draws, side, segments.first)
        importance = self._importance(batches)
        if self._private is None:
            # Without distillation, importance and batch weight are factors of the same loss.
            weights = weights * importance
            losses, steps = self._alone(triples, candidates, weights, side, segments)
        else:
            losses, steps = self._together(self._private, triples, candidates, weights, importance, side, segments)
        # The objective on shared rows enters the gradient of the shared model, the first learner.
        further = self._add_row_losses(steps[0][1], batches)
        # Each client's losses are summed separately, so that stacking does not change their bits.
        ends = np.cumsum([len(rows) for rows in batches.values()])
        parts = np.split((losses * weights).cpu().numpy().astype(np.float64), ends[:-1])
        return {client: float(part.sum()) + further[client] for client, part in zip(batches, parts, strict=True)}, steps

    def _alone(
        self, triples: Tensor, candidates: Tensor, weights: Tensor, side: Side, segments: kernels.Segments
    ) -> tuple[Tensor, list[tuple[Learner, dict[Table, Tensor]]]]:
        """Compute losses `[B]` and gradients if a client has one model."""
        stack, model = self._stack, self._stack.model
        queries = self._learner.queries(triples, side)
        outcome = kernels.candidate_loss(
            model.similarity,
            queries.rows.detach(),
            segments.of(stack.tables["entities"].detach()),
            candidates,
            weights / 2,  # (positive + negative) / 2. Source: code of FedE and FedR.
            margin=model.margin,
            temperature=self._options.sampling_temperature,
            segments=segments,
            out=segments.of(self._learner.entity_gradients),
        )
        gradients = self._learner.gradients(queries, triples, side, outcome.query_gradient)
        return outcome.losses / 2, [(self._learner, gradients)]

    def _together(
        self,
        private: Learner,
        triples: Tensor,
        candidates: Tensor,
        weights: Tensor,
        importance: Tensor,
        side: Side,
        segments: kernels.Segments,
    ) -> tuple[Tensor, list[tuple[Learner, dict[Table, Tensor]]]]:
        """Compute losses `[B]` and gradients if two models of a client learn from the same candidates and from each
        other.
        """
        learners = (self._learner, private)
        queries = [learner.queries(triples, side) for learner in learners]
        scored = [
            kernels.candidate_scores(
                learner.stack.model.similarity,
                query.rows.detach(),
                segments.of(learner.stack.tables["entities"].detach()),
                candidates,
                margin=learner.stack.model.margin,
                segments=segments,
                out=segments.of(learner.entity_gradients),
            )
            for learner, query in zip(learners, queries, strict=True)
        ]
        # fedlu.txt Eq. 7-10: autograd differentiates the loss by both models' scores, kernels carry it to the rows.
        with torch.enable_grad():
            # The scores are the only leaves: distillation sees scores, not tables.
            shared, local = (part.scores.requires_grad_() for part in scored)
            losses = self.rule.distil(local, shared, candidates >= 0, importance)
        by_scores = torch.autograd.grad(losses, [shared, local], weights)
        steps = []
        for learner, query, part, gradient in zip(learners, queries, scored, by_scores, strict=True):
            to_queries, _ = part.vjp(gradient)
            steps.append((learner, learner.gradients(query, triples, side, to_queries)))
        return losses.detach(), steps

    def _importance(self, batches: Mapping[int, np.ndarray]) -> Tensor:
        """Weigh each positive's prediction, float32 `[B]`, with mean 1 over a client's batch."""
        parts = [self._weights[client][rows] for client, rows in batches.items()]
        return torch.from_numpy(np.concatenate([part / part.mean() for part in parts])).to(self._stack.device)

    def _take(
        self,
        steps: list[tuple[Learner, dict[Table, Tensor]]],
        clients: Collection[int],
        losses: dict[int, float],
    ) -> None:
        """Move every learner by its gradients, the shared one as the rule says."""
        for client, loss in self.rule.take(steps[0][1], clients).items():
            losses[client] += loss
        for learner, gradients in steps:
            learner.step(gradients, clients)

    def _add_row_losses(self, gradients: dict[Table, Tensor], batches: Collection[int]) -> dict[int, float]:
        """Add the gradient of the objective on shared rows in place; return each client's loss of it."""
        losses = dict.fromkeys(batches, 0.0)
        pull = self.rule.objective()
        if pull is None:
            return losses
        for table in self._recipe.shared:
            window = self._stack.window(table, batches)
            rows, received = self._stack.tables[table].detach()[window], self.received[table]
            previous = self.previous.get(table, received)[window]
            # One pass over the rows of all clients; then each client's rows are scaled by its reduction.
            row_losses, derivatives = pull.objective.row_loss(rows, received[window], previous, pull.tau)
            weights = torch.zeros_like(row_losses)
            for client in batches:
                span = self._stack.span(table, client)
                within = slice(span.start - window.start, span.stop - window.start)
                loss, slope = pull.objective.of_client(row_losses[within])
                weights[within] = pull.weight * slope
                losses[client] += pull.weight * loss
            gradients[table][window].addcmul_(derivatives, weights[:, None])
        return losses

    def _assemble(
        self,
        batches: dict[int, np.ndarray],
        draws: Mapping[int, np.random.Generator],
        side: Side,
        first: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Stack a batch: triples int64 `[B, 3]`, candidates int32 `[B, K]` counted from row `first`, weights float32
        `[B]`.
        """
        triples, weights = [], []
        total = sum(len(rows) for rows in batches.values())
        candidates = torch.empty(total, 1 + self._options.num_negatives, dtype=torch.int32)
        low = 0
        for client, rows in batches.items():
            first_entity = self._stack.span("entities", client).start
            first_relation = self._stack.span("relations", client).start
            triples.append(self._subsets[client].triples[rows] + np.array([first_entity, first_relation, first_entity]))
            drawn = self._samplers[client].sample(rows, self._options.num_negatives, side, draws[client])
            # Local IDs become rows of the segment window; -1 stays -1.
            shift = first_entity - first
            candidates[low : low + len(rows), 1:] = torch.where(drawn >= 0, drawn + shift, drawn) if shift else drawn
            weights.append(np.full(len(rows), 1 / len(rows), dtype=np.float32))
            low += len(rows)
        stacked, device = torch.from_numpy(np.concatenate(triples)), self._stack.device
        candidates[:, 0] = stacked[:, 2 if side == "tail" else 0] - first
        return stacked.to(device), candidates.to(device), torch.from_numpy(np.concatenate(weights)).to(device)


def corrupted_sides(options: KgeOptions, turn: int) -> tuple[Side, ...]:
    """Return the sides that a batch is corrupted on, one step for each.

    Args:
        options: of the federation.
        turn: its parity selects the side if sides alternate.

    Differs: FedLU's code takes both sides of every triple and shuffles their batches separately.
    """
    if options.negative_sides == "each":
        return ("head", "tail")
    return ("head",) if options.negative_sides == "both" and turn % 2 == 1 else ("tail",)


def corrupting_entities(graph: ClientGraph, options: KgeOptions) -> np.ndarray:
    """Return the local IDs that a client corrupts with, see `KgeOptions.negative_scope`.

    Args:
        graph: of the client.
        options: of the federation.
    """
    if options.negative_scope == "own":
        return np.arange(graph.num_trained_entities)
    if options.negative_scope == "all":
        return np.arange(graph.num_entities)
    # The code beside FedR's takes local counts for global IDs.
    return np.nonzero(graph.entity_ids < graph.num_trained_entities)[0]
