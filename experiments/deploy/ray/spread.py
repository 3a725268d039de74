"""Local training and ranking spread over workers, while loop, exchange, attacks and record stay in this process.

    with RayWorkers(4) as workers:
        run_federation(graph, options, make_task=spread_over(workers))      # the result of one process, bit for bit

Each worker has some of the clients, stacked. A round sends it their rows, lets it train, and takes the rows back; a client draws
from its place in the federation, and no sum spans two clients, so that neither the number of workers nor who has whom changes a
bit. This process holds every table, as in a run without workers: protocols, attacks and checkpoints are those of one process.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import SpecError, TrainingError
from fkgsec.experiments.deploy.ray.host import TRAINER, packed, pickled
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.local.evaluation import Evaluator
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.local.training import TABLES, TrainingSubset
from fkgsec.kge.models import ClientTables
from fkgsec.kge.options import KgeOptions


class Workers(Protocol):
    """Worker processes, each with a `Host`.

    Attributes:
        count: how many.
    """

    count: int

    def call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], taken: Callable[[int], None] | None = None
    ) -> dict[int, Any]:
        """Call a method of the hosts of these workers at once, each with its own arguments; returns what they return.

        Args:
            taken: told, while they train, how many steps the one that has taken most has taken.
        """
        ...


def spread_over(workers: Workers) -> Callable[[Any, Any], Any]:
    """What `run_federation` takes as `make_task`."""
    return lambda graph, options: SpreadTask(graph, options, workers)


def check_spread(options: Any) -> None:
    """Raises `SpecError` for a run that workers cannot train."""
    if not isinstance(options, KgeOptions):
        raise SpecError(f"engine: ray trains knowledge-graph embedding; {options.algorithm} is of another task")
    if RECIPES[options.algorithm].pooled:
        raise SpecError(f"engine: {options.algorithm} trains one client with all data; ray spreads clients")
    if options.has_encoder:
        raise SpecError(f"engine: {options.model} has an encoder, which ray does not train; leave --engine out")
    if options.samples_validation:
        raise SpecError("engine: ray's workers validate in full; leave out eval_sample and eval_candidates")
    if options.torch_device().type != "cpu":
        raise SpecError(f"device must be cpu with --engine ray, whose workers are processors; got {options.device!r}")


class SpreadTask(KgeTask):
    """The clients' tables are here, their training and ranking with the workers."""

    def __init__(self, graph: FederatedGraph, options: KgeOptions, workers: Workers) -> None:
        check_spread(options)
        self._workers, self._name = workers, secrets.token_hex(8)
        self.groups = shared_out([len(client.train) for client in graph.clients], workers.count)
        self._loaded = False
        super().__init__(graph, options)

    def evaluators(self, graph: FederatedGraph) -> tuple[Evaluator, Evaluator]:
        shared = SpreadEvaluator(self, "shared", self.stack)
        return shared, SpreadEvaluator(self, "judged", self.private) if self.private else shared

    def call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], taken: Callable[[int], None] | None = None
    ) -> dict[int, Any]:
        """Call a method of some hosts, which have this run's clients from the first call on. Raises `TrainingError`."""
        if not self._loaded:
            self._workers.call("load", {number: self._content(group) for number, group in enumerate(self.groups)})
            self._loaded = True
        given = {number: (self._name, *own) for number, own in arguments.items()}
        found = self._workers.call(method, given, taken)
        for one in found.values():
            if isinstance(one, TrainingError):
                raise one
        return found

    def _content(self, group: Sequence[int]) -> tuple[str, bytes]:
        graph = self.graph
        clients = tuple(graph.clients[place] for place in group)
        own = FederatedGraph(graph.name, graph.entities, graph.relations, clients)
        return self._name, pickled((own, self.options, list(group)))

    def train_on(self, place: int, subset: TrainingSubset) -> None:
        super().train_on(place, subset)
        for number, group in enumerate(self.groups):
            if place in group:
                self.call("train_on", {number: (group.index(place), subset.triples, subset.rows)})

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> dict[int, float]:
        before, state, told = self.snapshot(), self.trainer.tensors(), 0
        arguments = {}
        for number, group in enumerate(self.groups):
            if own := [group.index(place) for place in places if place in group]:
                rows = self.part(before, group) | {
                    f"{TRAINER}{key}": one for key, one in self.part(state, group).items()
                }
                arguments[number] = round, own, packed(rows)

        def taken(steps: int) -> None:
            nonlocal told
            for _ in range(told, steps):
                on_step()
            told = max(told, steps)

        losses = {}
        for number, (own, content) in self.call("train", arguments, taken).items():
            group = self.groups[number]
            losses |= {group[place]: loss for place, loss in own.items()}
            tensors = safetensors.torch.load(content)
            self.put(before, group, {key: one for key, one in tensors.items() if not key.startswith(TRAINER)})
            trained = {key.removeprefix(TRAINER): one for key, one in tensors.items() if key.startswith(TRAINER)}
            self.put(state, group, trained)
        self.restore(before)
        self.load_trainer_state(state)
        taken(self.num_steps(places))
        return {place: losses[place] for place in places}

    # Which of its tensors are whose.

    def part(self, tensors: Mapping[str, Tensor], group: Sequence[int]) -> dict[str, Tensor]:
        """Of a snapshot, or of a trainer's state, what a task of these clients alone has."""
        order = [client for client in self.stack.order if client in group]
        found = {}
        for key, tensor in tensors.items():
            if (table := key.rpartition(".")[2]) in TABLES:
                found[key] = torch.cat([tensor[self.stack.span(table, client)] for client in order])
            elif (place := self._owner(key)) in group:
                found[self._renamed(key, group.index(place))] = tensor
        return found

    def put(self, tensors: dict[str, Tensor], group: Sequence[int], part: Mapping[str, Tensor]) -> None:
        """Undo `part`."""
        order = [client for client in self.stack.order if client in group]
        for key, own in part.items():
            if (table := key.rpartition(".")[2]) not in TABLES:
                tensors[self._renamed(key, group[self._owner(key)])] = own
                continue
            start = 0
            for client in order:
                span = self.stack.span(table, client)
                end = start + span.stop - span.start
                tensors[key][span] = own[start:end]
                start = end

    def _tables_of(self, learner: str) -> int:
        """How many tables of each client an optimiser moves, see `LocalTrainer`."""
        return 1 if learner == "adam" and self.recipe.private == "entities" else len(TABLES)

    def _owner(self, key: str) -> int:
        """Whose an optimiser's state is, which is numbered by client and table: "adam.5.exp_avg"."""
        learner, number, _ = key.split(".")
        return int(number) // self._tables_of(learner)

    def _renamed(self, key: str, place: int) -> str:
        learner, number, rest = key.split(".")
        count = self._tables_of(learner)
        return f"{learner}.{place * count + int(number) % count}.{rest}"


class SpreadEvaluator(Evaluator):
    """Ranks as the workers' evaluators do, on the tables that are here."""

    def __init__(self, task: SpreadTask, kind: str, stack: ClientStack) -> None:
        self._task, self._kind, self._stack, self._encode = task, kind, stack, None
        self._options = task.options

    def client_tables(self, client: int, tables: Mapping[str, Tensor] | None = None) -> ClientTables:
        """The client's rows of these stacked tables; of the live ones when None."""
        whole = self._stack.tables if tables is None else tables
        own = {table: whole[table].detach()[self._stack.span(table, client)] for table in TABLES}
        return ClientTables(own["entities"], own["relations"])

    def ranks(self, split: str, tables: Mapping[str, Tensor] | None = None) -> list[np.ndarray]:
        """As `Evaluator.ranks`."""
        whole = self._stack.tables if tables is None else tables
        whole, groups = {table: whole[table].detach() for table in TABLES}, self._task.groups
        arguments = {
            number: (self._kind, split, packed(self._task.part(whole, group))) for number, group in enumerate(groups)
        }
        found: dict[int, np.ndarray] = {}
        for number, own in self._task.call("ranks", arguments).items():
            found |= {
                place: one.copy() for place, one in zip(groups[number], own, strict=True)
            }  # Ray lends them unwritable
        return [found[place] for place in sorted(found)]


def shared_out(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Places in groups, one for each worker that gets any: the largest first, each to the worker that has least so far.

    >>> shared_out([5, 9, 1, 4], 2)
    [[1, 2], [0, 3]]
    """
    groups: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    loads = [0] * len(groups)
    for place in sorted(range(len(sizes)), key=lambda one: (-sizes[one], one)):
        least = loads.index(min(loads))
        groups[least].append(place)
        loads[least] += sizes[place]
    return [sorted(group) for group in groups]
