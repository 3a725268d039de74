"""Knowledge-graph embedding as the task of a federation: triples, stacked tables, filtered link prediction.

    task = KgeTask(graph, KgeOptions(algorithm="fede", dim=64))
    task.train(1, [0, 1, 2], lambda: None)          # the mean loss of each client
    task.validate()                                 # MRR on the validation triples of all clients

See `fkgsec.federation.task.Task` for the interface that the loop uses.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph
from fkgsec.errors import DataError, SpecError
from fkgsec.exchange import Holding, Received
from fkgsec.federation.messages import SERVER
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.federation.result import RunResult
from fkgsec.kge.encoders.trainer import NETWORK, EncoderTrainer
from fkgsec.kge.local.evaluation import Evaluator, mean_reciprocal
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import TABLES, LocalTrainer, TrainingSubset
from fkgsec.kge.models import ClientTables, KgeModel
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

POOLED_KEY = -1
PRIVATE = "private."
KEPT = "kept."


class KgeTask:
    """The clients' graphs and embeddings; see `fkgsec.federation.task.Task`.

    Args:
        graph: triples of each client.
        options: of the federation.
        keys: index in the federation of each client, for its random draws; None if all clients are in this process.

    Attributes:
        stack: tables whose rows are shared.
        private: tables that clients keep, or None if the recipe has none.
        trainer: trains the clients' rows.
        encoders: the same trainer if the model has an encoder, else None.
        shared_evaluator: ranks with `stack`.
        evaluator: ranks with the models that the recipe evaluates.
    """

    options_type: ClassVar[type[RunOptions]] = KgeOptions
    result_type: ClassVar[type[RunResult]] = KgeResult
    metric: str = "mrr"

    def __init__(self, graph: FederatedGraph, options: KgeOptions, keys: Sequence[int] | None = None) -> None:
        if not isinstance(graph, FederatedGraph):
            raise DataError(f"{type(graph).__name__} has no clients; divide it by fkgsec.partition() first")
        self.graph, self.options, self.recipe = graph, options, RECIPES[options.algorithm]
        wide = options.keeps_all_entities
        clients = [_widen(client, len(graph.entities)) if wide else client for client in graph.clients]
        pooled = self.recipe.pooled
        # With `rank_scope` or `negative_scope` "all", clients hold rows of entities they have never seen.
        self._wide = FederatedGraph(graph.name, graph.entities, graph.relations, tuple(clients))
        trained = [_pool(clients)] if pooled else clients
        keys = [POOLED_KEY] if pooled else list(range(len(clients)) if keys is None else keys)
        ranks_own = options.rank_scope == "own" and not pooled
        self._num_exchanged = [client.num_entities for client in (graph.clients if ranks_own else trained)]
        self.private: ClientStack | None = None
        # Draws derive from keys: in a deployment, a client alone draws what it would draw here.
        self.stack, self.private = self._stacks(trained, keys)
        for table in options.kge_settings.starts_from_server:
            holdings = self.holdings(table)
            names = sorted({name for holding in holdings for name in holding.names})
            rows, places = self.first_rows(table, names), {name: place for place, name in enumerate(names)}
            for client, holding in enumerate(holdings):
                received = rows[[places[name] for name in holding.names]]
                self.stack.rows(table, client)[: len(received)] = received.to(self.stack.device)
        if remark := options.kge_model().function.remark:
            _remark_once(remark)
        self.encoders = EncoderTrainer(self.stack, options) if options.has_encoder else None
        if NETWORK in self.recipe.shared and not self.encoders:
            raise SpecError(f"algorithm {options.algorithm} averages a network, and the model {options.model} has none")
        self.trainer = self.encoders or LocalTrainer(self.stack, options, self.private)
        self.shared_evaluator, self.evaluator = self.evaluators(self._wide)
        self.names: Sequence[str] = [client.name for client in trained]
        self.sizes: Sequence[int] = [len(client.train) for client in trained]
        # Best validation of each client, and the stacked tables of `snapshot` with its rows of that round.
        self._best = torch.zeros(len(self.names) if options.keeps_by_client else 0, dtype=torch.float64)
        self._kept: dict[str, Tensor] = self.snapshot() if options.keeps_by_client else {}
        # A broadcast leaves private models as they are.
        self.judged_before_broadcast = options.evaluates_before_broadcast or self.private is not None

    def _stacks(self, trained: Sequence[ClientGraph], keys: Sequence[int]) -> tuple[ClientStack, ClientStack | None]:
        """Draw initial tables. If both models use one table of relations, it is the private model's."""
        options, device = self.options, self.options.torch_device()
        private, relations = None, None
        if self.recipe.private != "none":
            model, purpose = options.private_model(), "initial private rows"
            private = ClientStack(trained, keys, model, options.seed, device, purpose=purpose)
            relations = private.tables["relations"] if self.recipe.private == "entities" else None
        return ClientStack(trained, keys, options.kge_model(), options.seed, device, relations=relations), private

    def evaluators(self, graph: FederatedGraph) -> tuple[Evaluator, Evaluator]:
        """Return evaluators of the shared models and of those that the recipe evaluates.

        Args:
            graph: triples to rank, with the same local IDs as the task's graph.
        """
        encode = self.encoders.encoded if self.encoders else None
        ranks_own = self.options.rank_scope == "own"
        candidates = [client.num_entities for client in (self.graph if ranks_own else graph).clients]
        shared = Evaluator(graph, self.stack, self.options, self.recipe.pooled, encode, candidates=candidates)
        if not self.private:
            return shared, shared
        return shared, Evaluator(graph, self.private, self.options, self.recipe.pooled, candidates=candidates)

    def data(self, place: int) -> ClientGraph:
        return self.stack.graphs[place]

    def train_on(self, place: int, subset: TrainingSubset) -> None:
        self.trainer.train_on(place, subset)

    def first_rows(self, table: Table, names: Sequence[str]) -> Tensor:
        if table == NETWORK and self.encoders:
            return self.encoders.first_network().cpu()
        return first_rows(self.stack.model, self.options.seed, table, names)

    def holdings(self, table: Table) -> list[Holding]:
        if table == NETWORK:
            return [Holding([NETWORK], 1) for _ in self.stack.graphs]
        vocabulary = self.graph.entities if table == "entities" else self.graph.relations
        parts = []
        for graph in self.stack.graphs:
            ids = graph.entity_ids[: self._num_exchanged[len(parts)]] if table == "entities" else graph.relation_ids
            # A client uploads the rows of its training triples, whatever entities it corrupts with.
            uploaded = graph.num_trained_entities if table == "entities" else graph.num_trained_relations
            parts.append(Holding([vocabulary[number] for number in ids], uploaded))
        return parts

    def rows(self, table: Table, place: int) -> Tensor:
        if self.encoders and table == NETWORK:
            return self.encoders.network(place)
        rows = self.stack.rows(table, place).detach()
        return rows[: self._num_exchanged[place]] if table == "entities" else rows

    def receive(self, round: int, table: Table, place: int, received: Received) -> None:
        current, rule = self.rows(table, place), self.trainer.rule
        rows = received.merged(current)
        if self.encoders and table == NETWORK:
            self.encoders.load_network(place, rows)
            return
        self.trainer.receive(table, place, rows, first=round == 0)
        # Algorithms that pull toward received rows (PFedEG) do not replace local rows in every round.
        if rule.takes_over(round):
            current.copy_(rows)
        if rule.starts_private and self.private and round == 0:
            self.private.rows(table, place).detach()[: len(rows)].copy_(rows)

    def begin_round(self) -> None:
        self.trainer.begin_round()

    def num_steps(self, places: Collection[int]) -> int:
        return self.trainer.num_steps(list(places))

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> dict[int, float]:
        return self.trainer.train_round(round, places, on_step)

    def validate(self) -> float | None:
        if self.encoders:
            self.encoders.fit_decoders()
        if not self.options.keeps_by_client:
            return self.evaluator.mrr("valid")
        parts = self.evaluator.reciprocal("valid")
        for place, (total, num_ranks) in enumerate(parts):
            # A client without validation triples keeps its latest round.
            if num_ranks and total <= self._best[place]:
                continue
            self._best[place] = total
            for prefix, stack in (("", self.stack), *([(PRIVATE, self.private)] if self.private else [])):
                for table in TABLES:
                    self._kept[f"{prefix}{table}"][stack.span(table, place)] = stack.rows(table, place).detach()
        return mean_reciprocal((best, count) for best, (_, count) in zip(self._best.tolist(), parts, strict=True))

    def snapshot(self, *, shared_only: bool = False) -> dict[str, Tensor]:
        state = {table: self.stack.tables[table].detach().clone() for table in TABLES}
        if self.encoders and (not shared_only or NETWORK in self.recipe.shared):
            state |= self.encoders.local()
        if self.private and not shared_only:
            state |= {f"{PRIVATE}{table}": self.private.tables[table].detach().clone() for table in TABLES}
        return state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        # The shared stack comes last: where both have one table of relations, it is as the shared snapshot has it.
        stacks = [(self.private, PRIVATE)] if self.private else []
        for stack, prefix in (*stacks, (self.stack, "")):
            for table in TABLES:
                stack.tables[table].detach().copy_(tensors[f"{prefix}{table}"])
        if self.encoders:
            self.encoders.restore_local(tensors)

    def trainer_state(self) -> dict[str, Tensor]:
        saved = {f"{KEPT}{name}": rows for name, rows in {"best": self._best, **self._kept}.items()}
        return self.trainer.tensors() | (saved if self._kept else {})

    def load_trainer_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.trainer.load({name: tensor for name, tensor in tensors.items() if not name.startswith(KEPT)})
        for name, rows in ({"best": self._best, **self._kept} if self._kept else {}).items():
            rows.copy_(tensors[f"{KEPT}{name}"])

    def client_tables(self, evaluator: Evaluator, tables: Mapping[str, Tensor] | None = None) -> list[ClientTables]:
        """Copy each client's embeddings.

        Args:
            tables: of a snapshot; the current ones when None.
        """
        return [evaluator.client_tables(client, tables).copied() for client in range(len(self.graph.clients))]

    def outcome(self, trained: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> dict[str, Any]:
        if self._kept:  # a broadcast does not change private models
            # Per-client best rounds replace the rows of the common best round.
            trained = {**trained, **{name: rows for name, rows in self._kept.items() if name in trained}}
            after = {name for name in self._kept if name.startswith(PRIVATE) or not self.judged_before_broadcast}
            final = {**final, **{name: self._kept[name] for name in after}}
        trained = {**final, **trained}  # unshared tables are those after training
        judged = trained if self.options.evaluates_before_broadcast else final
        shared_ranks = self.shared_evaluator.ranks("test", judged)
        fields: dict[str, Any] = {
            "tables": self.client_tables(self.shared_evaluator, final),
            "trained": self.client_tables(self.shared_evaluator, trained),
            "test_ranks": shared_ranks,
        }
        if self.encoders:
            fields |= {
                kind: [self.evaluator.predictor(place, rows)[1].copied() for place in range(len(self.graph.clients))]
                for kind, rows in (("encoded", final), ("trained_encoded", trained))
            }
        if self.options.samples_validation and not self.private:
            fields["valid_ranks"] = self.evaluator.ranks("valid", judged, sampled=True)
        if self.private:
            private = {table: final[f"{PRIVATE}{table}"] for table in TABLES}
            fields |= {
                "private": self.client_tables(self.evaluator, private),
                "test_ranks": self.evaluator.ranks("test", private),
                "shared_test_ranks": shared_ranks,
            }
            if self.options.samples_validation:
                fields["valid_ranks"] = self.evaluator.ranks("valid", private, sampled=True)
        return fields


@functools.cache
def _remark_once(remark: str) -> None:
    warnings.warn(remark, RuntimeWarning, stacklevel=4)


def first_rows(model: KgeModel, seed: int, table: Table, names: Sequence[str]) -> Tensor:
    """Draw the server's initial rows of a shared table. The row of a name does not depend on the order of names.

    Args:
        model: determines width and range.
        seed: see `generator`.
        names: entity or relation names.

    Returns:
        Rows, float32 `[n, width]`.
    """
    width = model.entity_width if table == "entities" else model.relation_width
    rows = model.initial_rows(len(names), width, generator(seed, "initial rows", table, SERVER), table=table)
    # Row i of the draw belongs to the i-th name in sorted order.
    rank = np.argsort(np.argsort(np.array(names, dtype=object)))
    return rows[torch.from_numpy(rank)]


def _pool(clients: Sequence[ClientGraph]) -> ClientGraph:
    """Merge all clients into one that has all triples."""
    # Local IDs of clients differ, so triples are pooled by global IDs.
    splits = [np.concatenate([client.to_global(getattr(client, split)) for client in clients]) for split in SPLITS]
    return ClientGraph.from_global("pooled", *splits)


def _widen(client: ClientGraph, num_entities: int) -> ClientGraph:
    """Give a client a row for every entity of the federation; its own come first."""
    others = np.setdiff1d(np.arange(num_entities), client.entity_ids)
    ids = np.concatenate([client.entity_ids, others])
    return ClientGraph(client.name, ids, client.relation_ids, client.train, client.valid, client.test)
