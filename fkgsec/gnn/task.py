"""Graph classification as the task of a federation: each client's graphs and network, parameters as rows of one
table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fkgsec.errors import DataError, SpecError
from fkgsec.exchange import Holding, Received
from fkgsec.federation import packing
from fkgsec.federation.messages import SERVER
from fkgsec.federation.options import RunOptions
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.federation.result import RunResult
from fkgsec.gnn.models import drawing_from
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import GnnResult
from fkgsec.gnn.training import ClientTrainer, GraphRule
from fkgsec.graphs.features import feature_width
from fkgsec.graphs.sets import ClientGraphs, FederatedGraphs, GraphSet
from fkgsec.randomness import generator


class GraphTask:
    """The clients' graphs and networks; see `fkgsec.federation.task.Task`.

    The table `parameters` has the shared parameters, laid out by `fkgsec.gnn.layout`. Every client holds all of its rows. Means
    weight a client by its number of training graphs, as in the code of GCFL and FedStar.

    Args:
        graph: graphs of each client.
        options: of the federation.
    """

    options_type: ClassVar[type[RunOptions]] = GnnOptions
    result_type: ClassVar[type[RunResult]] = GnnResult
    metric: str = "accuracy"

    def __init__(self, graph: FederatedGraphs, options: GnnOptions) -> None:
        if not isinstance(graph, FederatedGraphs):
            raise DataError(
                f"{type(graph).__name__} has no clients with graphs; divide it by fkgsec.graphs.split first, or load it by "
                "fkgsec.graphs.collection.load_federation"
            )
        self.graph, self.options, self.recipe = graph, options, RECIPES[options.algorithm]
        rule: GraphRule = (self.recipe.rule or GraphRule)(options)
        # The empty prefix shares every parameter, so all networks need the same shapes.
        if "" in rule.shared:
            _check_alike(graph)
        # One rule object serves all clients; their state is in the trainers.
        self.trainers = [ClientTrainer(client, options, rule, rule.shared) for client in graph.clients]
        self.rule = rule
        self.names: Sequence[str] = [client.name for client in graph.clients]
        self.sizes: Sequence[int] = [len(client.train) for client in graph.clients]
        self.judged_before_broadcast = options.evaluates_before_broadcast
        first = self._first_parameters()
        for trainer in self.trainers:
            trainer.take(first)
        self.crossing = rule.crossing(self.trainers, rule, first)
        self.layout = self.crossing.layout

    def _first_parameters(self) -> dict[str, Tensor]:
        """Draw the initial shared parameters, which all clients start from."""
        graphs = self.graph.clients[0].graphs
        rng = generator(self.options.seed, "initial parameters", SERVER, "server")
        with drawing_from(rng):
            model = self.rule.network(feature_width(graphs), graphs.num_classes)
        return {name: tensor for name, tensor in model.state_dict().items() if name in self.trainers[0].shared}

    def data(self, place: int) -> ClientGraphs:
        return self.graph.clients[place]

    def train_on(self, place: int, subset: GraphSet) -> None:
        self.trainers[place].training = self.rule.prepare(subset)

    def first_rows(self, table: Table, names: Sequence[str]) -> Tensor:
        return self.crossing.first_rows(names)

    def holdings(self, table: Table) -> list[Holding]:
        return self.crossing.holdings(self.sizes)

    def rows(self, table: Table, place: int) -> Tensor:
        return self.crossing.rows(place)

    def receive(self, round: int, table: Table, place: int, received: Received) -> None:
        self.crossing.receive(round, place, received)

    def begin_round(self) -> None:
        if not self.options.keeps_optimizer:
            for trainer in self.trainers:
                trainer.reset_optimizer()

    def num_steps(self, places: Collection[int]) -> int:
        return sum(self.trainers[place].num_steps for place in places)

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> dict[int, float]:
        return {place: self.trainers[place].train(round, on_step) for place in places}

    def validate(self) -> float | None:
        # Compute the mean validation accuracy over clients (test accuracy with `select=test`).
        split = "test" if self.options.select == "test" else "valid"
        chosen = [(trainer, getattr(trainer.client, split)) for trainer in self.trainers]
        # The mean over clients, as in the papers, not over graphs.
        shares = [trainer.classify(ids).correct.mean() for trainer, ids in chosen if len(ids)]
        return float(np.mean(shares)) if shares else None

    def snapshot(self, *, shared_only: bool = False) -> dict[str, Tensor]:
        return {
            f"{place}.{name}": tensor.detach().clone()
            for place, trainer in enumerate(self.trainers)
            for name, tensor in trainer.state().items()
            if name in trainer.shared or not shared_only
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for place, trainer in enumerate(self.trainers):
            trainer.restore(packing.below(f"{place}.", tensors))

    def trainer_state(self) -> dict[str, Tensor]:
        return {
            f"{place}.{name}": tensor
            for place, trainer in enumerate(self.trainers)
            for name, tensor in trainer.tensors(optimizer=self.options.keeps_optimizer).items()
        }

    def load_trainer_state(self, tensors: Mapping[str, Tensor]) -> None:
        for place, trainer in enumerate(self.trainers):
            trainer.load(packing.below(f"{place}.", tensors))

    def outcome(self, trained: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> dict[str, Any]:
        # Snapshots of `trained` have shared parameters only; private ones come from `final`.
        judged = {**final, **trained} if self.judged_before_broadcast else final
        test = [
            trainer.classify(trainer.client.test, packing.below(f"{place}.", judged))
            for place, trainer in enumerate(self.trainers)
        ]
        by_kind = {
            kind: [
                {name: tensor.cpu() for name, tensor in packing.below(f"{place}.", state).items()}
                for place in range(len(test))
            ]
            for kind, state in (("models", final), ("trained", trained))
        }
        return by_kind | {"test": test}


def _check_alike(graph: FederatedGraphs) -> None:
    """Raise `SpecError` if clients' features or classes differ, so that whole networks cannot be averaged."""
    shapes = {client.name: (feature_width(client.graphs), client.graphs.num_classes) for client in graph.clients}
    first, *others = shapes.items()
    for name, shape in others:
        if shape != first[1]:
            raise SpecError(
                f"share: whole networks can be shared by clients of one data set alone; {first[0]} has {first[1][0]} features "
                f"and {first[1][1]} classes, {name} {shape[0]} and {shape[1]}"
            )
