"""Filtered link prediction of every client among its own entities.

    evaluator = Evaluator(graph, stack, options, pooled=False)
    ranks = evaluator.ranks("test")                 # for each client float64 [n, sides]

Clients are weighted by their number of triples; ties get the realistic rank (`fkgsec.kge.ranking`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import TrainingError
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.models import ClientTables, KgeModel
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.ranking import filtered_ranks, sides_of
from fkgsec.randomness import generator


class Evaluator:
    """Ranks the valid or test triples of every client of a federation.

    A client's candidates are its own entities, or with `rank_scope` "all" those of the federation. Known triples are those of
    the client's train, valid and test splits; a client knows no others. Source: code of FedE and FedR.

    Args:
        graph: triples to rank, by client.
        stack: the clients' tables.
        options: of the federation.
        pooled: True if one model is trained on the triples of all clients.
        encode: maps a client index, its input rows and a snapshot (None: the current state) to the rows that its model scores;
            None for models without an encoder.
        candidates: number of candidates per client, the first of its entity rows; None: all of them.
    """

    def __init__(
        self,
        graph: FederatedGraph,
        stack: ClientStack,
        options: KgeOptions,
        pooled: bool,
        encode: Callable[[int, Mapping[str, Tensor], Mapping[str, Tensor] | None], ClientTables] | None = None,
        candidates: Sequence[int] | None = None,
    ) -> None:
        self._stack = stack
        self._options = options
        self._graph = graph
        self._encode = encode
        self._candidates = candidates or [client.num_entities for client in graph.clients]
        self._rows: list[tuple[Tensor, Tensor] | None] = [None] * len(graph.clients)
        if pooled:
            # One model for all: each client ranks with the rows of its own entities in it.
            whole = stack.graphs[0]
            self._rows = [
                (
                    positions(whole.entity_ids, client.entity_ids).to(stack.device),
                    positions(whole.relation_ids, client.relation_ids).to(stack.device),
                )
                for client in graph.clients
            ]
        # Triples to filter, per client and side, indexed once for all rounds.
        self._known = [
            [KnownTriples.build(client.triples, side, client.num_relations) for side in sides_of(options.eval_sides)]
            for client in graph.clients
        ]

    def client_tables(self, client: int, tables: Mapping[str, Tensor] | None = None) -> ClientTables:
        """Return the client's rows of stacked tables.

        Args:
            tables: stacked tables by name; the current ones when None.
        """
        whole, chosen = self._stack.tables if tables is None else tables, self._rows[client]
        entities, relations = whole["entities"].detach(), whole["relations"].detach()
        if chosen is None:
            spans = self._stack.span("entities", client), self._stack.span("relations", client)
            return ClientTables(entities[spans[0]], relations[spans[1]])
        # Tables from a checkpoint lie on the CPU, whatever device trains.
        return ClientTables(entities[chosen[0].to(entities.device)], relations[chosen[1].to(relations.device)])

    def predictor(self, client: int, snapshot: Mapping[str, Tensor] | None = None) -> tuple[KgeModel, ClientTables]:
        """Return the model that the client predicts with, and its rows, encoded if the model has an encoder.

        Args:
            snapshot: of the task; the current state when None.
        """
        if self._encode is None:
            return self._stack.model, self.client_tables(client, snapshot)
        whole, chosen = self._stack.tables if snapshot is None else snapshot, self._rows[client]
        place = client if chosen is None else 0
        rows = {table: whole[table].detach()[self._stack.span(table, place)] for table in ("entities", "relations")}
        encoded = self._encode(place, rows, snapshot)
        if chosen is not None:
            encoded = replace(encoded, entities=encoded.entities[chosen[0]], relations=encoded.relations[chosen[1]])
        return self._options.decoder(encoded), encoded

    def ranks(
        self, split: str, tables: Mapping[str, Tensor] | None = None, *, sampled: bool = False
    ) -> list[np.ndarray]:
        """Rank each client's triples of a split.

        Args:
            split: "valid" or "test".
            tables: snapshot of the task; the current state when None.
            sampled: rank a sample of the triples among sampled candidates, see `eval_sample` and `eval_candidates`. Every
                round uses the same, so that rounds are comparable.

        Returns:
            Ranks of each client, float64 `[n, number of sides]`.

        Raises:
            TrainingError: an embedding is not finite.
        """
        ranks = []
        for client, graph in enumerate(self._graph.clients):
            model, of_client = self.predictor(client, tables)
            entities, known = of_client.entities[: self._candidates[client]], self._known[client]
            triples, drawn = getattr(graph, split), [None] * len(known)
            if sampled:
                # A client validates on the same draws in a stack and in its own process.
                key = client if self._rows[client] is not None else self._stack.keys[client]
                triples, drawn = self._sample(triples, len(entities), key)
            try:
                columns = [
                    filtered_ranks(model, entities, of_client.relations, triples, [index], drawn=candidates)
                    for index, candidates in zip(known, drawn, strict=True)
                ]
            except FloatingPointError as error:
                raise TrainingError(f"client {graph.name}: {error}") from error
            ranks.append(np.concatenate(columns, axis=1))
        return ranks

    def _sample(self, triples: np.ndarray, num_candidates: int, key: int) -> tuple[np.ndarray, list[np.ndarray | None]]:
        """Draw some of a client's triples int64 `[n, 3]` and, per side, its candidates, ascending; None: all.

        Both are drawn without replacement, uniformly, from the run's seed and the client's key.
        """
        options, sides = self._options, sides_of(self._options.eval_sides)
        if options.eval_sample is not None and options.eval_sample < len(triples):
            rng = generator(options.seed, "validation triples", key)
            triples = triples[np.sort(rng.choice(len(triples), options.eval_sample, replace=False))]
        count = options.eval_candidates
        if count is None or count >= num_candidates:
            return triples, [None] * len(sides)
        draws = (generator(options.seed, "validation candidates", key, side) for side in sides)
        return triples, [np.sort(rng.choice(num_candidates, count, replace=False)) for rng in draws]

    def reciprocal(self, split: str) -> list[tuple[float, int]]:
        """Sum each client's reciprocal ranks over all sides; the second number is how many ranks there are.

        Sampled validation is scaled up to all triples of the client.

        Args:
            split: "valid" or "test".
        """
        if split == "valid" and self._options.samples_validation:
            scaled = []
            for graph, ranks in zip(self._graph.clients, self.ranks(split, sampled=True), strict=True):
                # Scale the sum of sampled triples up to all of them, so that clients keep their weights.
                share = len(graph.valid) / max(1, len(ranks))
                scaled.append((float((1 / ranks).sum()) * share, len(graph.valid) * len(self._known[0])))
            return scaled
        return [(float((1 / ranks).sum()), ranks.size) for ranks in self.ranks(split)]

    def mrr(self, split: str) -> float | None:
        """Compute the mean reciprocal rank over all clients' triples; None without triples.

        Args:
            split: "valid" or "test".
        """
        return mean_reciprocal(self.reciprocal(split))


def mean_reciprocal(parts: Iterable[tuple[float, int]]) -> float | None:
    """Compute the mean over all clients' ranks; None without ranks.

    Args:
        parts: sum of reciprocal ranks and number of ranks per client, from `Evaluator.reciprocal`.
    """
    # In the order of clients: floating-point sums depend on it.
    total, count = 0.0, 0
    for part, num_ranks in parts:
        total, count = total + part, count + num_ranks
    return total / count if count else None


def positions(ids: np.ndarray, wanted: np.ndarray) -> Tensor:
    """Find the position of each wanted ID, int64 `[n]`, in an unsorted list that has all of them."""
    order = np.argsort(ids)
    return torch.from_numpy(order[np.searchsorted(ids, wanted, sorter=order)])
