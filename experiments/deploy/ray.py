"""Local training and ranking spread over worker processes of Ray; loop, exchange, attacks and record stay in this process.

    with RayWorkers(4) as workers:
        run_federation(graph, options, make_task=spread_over(workers))      # the result of one process, bit for bit

Each worker has some of the clients, stacked. In a round it gets their rows, trains, and returns the rows. A client's draws depend
on its index in the federation, and no sum spans two clients, so the number of workers does not change a bit. This process has
every table, as in a run without workers. Workers keep only the data between two calls, so a run continues from a checkpoint with
any workers.

Without the environment's `RAY_ADDRESS` Ray is started on this machine, for this command alone. It listens on every interface, and
answers only with the token that is drawn here. With `RAY_ADDRESS` the workers are started on that cluster, whose nodes need the
same version of fkgsec; anyone who reaches a cluster's ports can run code on it, unless it was started with a token.
"""

from __future__ import annotations

import importlib
import os
import pickle
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import numba
import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import RunError, SpecError, TrainingError
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.local.evaluation import Evaluator
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.local.training import TABLES, TrainingSubset
from fkgsec.kge.models import ClientTables
from fkgsec.kge.options import KgeOptions
from fkgsec.version import __version__

MOST_WORKERS = 4096
_LOOK_S, _START_S = 0.2, 300.0
TRAINER = "trainer."
"""Prefix of the names of an optimizer's tensors, which travel with those of tables."""


class Host:
    """Trains and ranks a worker's clients. Methods return a `TrainingError` instead of raising it: it arrives intact."""

    def __init__(self) -> None:
        self._name, self._steps = "", 0
        self._task: KgeTask | None = None

    def version(self) -> str:
        """Return the version of fkgsec on the worker's machine."""
        return __version__

    def load(self, name: str, content: bytes) -> None:
        """Load clients, pickled: a graph of these, the options, and each client's index in the federation.

        Args:
            name: of the run. content: the pickle.
        """
        # Unpickling can run code. Only a caller with the command's Ray token reaches a worker, and Ray runs its code anyway.
        graph, options, keys = pickle.loads(content)
        self._task, self._name = KgeTask(graph, options, keys), name

    def taken(self) -> int:
        """Return the number of steps taken in the current round."""
        return self._steps

    def train_on(self, name: str, place: int, triples: np.ndarray, rows: np.ndarray) -> None:
        """Let a client of this worker train on a subset instead of its train split.

        Args:
            place: client index in this worker. triples: int64 `[n, 3]`. rows: int64 `[k]`, those to train on.
        """
        self._task_of_run(name).train_on(place, TrainingSubset(triples, rows))

    def train(
        self, name: str, round: int, places: Sequence[int], content: bytes
    ) -> tuple[dict[int, float], bytes] | TrainingError:
        """Train a round of these clients.

        Args:
            places: client indices in this worker. content: rows and optimizer states, safetensors.

        Returns:
            Their losses, and all rows and optimizer states.
        """
        task, tensors = self._task_of_run(name), safetensors.torch.load(content)
        task.restore(tensors)
        task.begin_round()
        task.load_trainer_state(trainer_part(tensors))
        self._steps = 0

        def step() -> None:
            """Count a step."""
            self._steps += 1

        try:
            losses = task.train(round, places, step)
        except TrainingError as error:
            return error
        return losses, packed(with_trainer(task.snapshot(), task.trainer_state()))

    def ranks(
        self, name: str, kind: str, split: str, content: bytes, sampled: bool
    ) -> list[np.ndarray] | TrainingError:
        """Rank a split of each client with these tables.

        Args:
            kind: "shared" for the shared models, "judged" for those that are evaluated. content: tables, safetensors.
        """
        task = self._task_of_run(name)
        evaluator = task.shared_evaluator if kind == "shared" else task.evaluator
        try:
            return evaluator.ranks(split, safetensors.torch.load(content), sampled=sampled)
        except TrainingError as error:
            return error

    def _task_of_run(self, name: str) -> KgeTask:
        if self._task is None or self._name != name:
            raise RuntimeError(f"a worker of run {self._name!r} was asked to run {name!r}")
        return self._task


def with_trainer(tables: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Join tables and an optimizer's tensors under names that `trainer_part` tells apart.

    Args:
        tables, state: tensors by name.
    """
    return {**tables, **{TRAINER + key: tensor for key, tensor in state.items()}}


def trainer_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimizer's tensors under their own names."""
    return {key.removeprefix(TRAINER): tensor for key, tensor in tensors.items() if key.startswith(TRAINER)}


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Encode tensors as safetensors.

    Args:
        tensors: by name; they may share memory.
    """
    # safetensors refuses tensors that share memory, so clone each.
    return safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    )


class Workers(Protocol):
    """`count` worker processes, each with a `Host`."""

    count: int

    def call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], taken: Callable[[int], None] | None = None
    ) -> dict[int, Any]:
        """Call a method of these workers' hosts at the same time, each with its own arguments; return the results.

        Args:
            taken: receives the largest number of steps of a worker while they train.
        """
        ...


def spread_over(workers: Workers) -> Callable[[Any, Any], Any]:
    """Return a `make_task` for `run_federation`."""
    return lambda graph, options: SpreadTask(graph, options, workers)


def check_spread(options: Any) -> None:
    """Check that workers can train a run.

    Args:
        options: of the run.

    Raises:
        SpecError: they cannot.
    """
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
    """A task with its tables in this process, and training and ranking in the workers."""

    def __init__(self, graph: FederatedGraph, options: KgeOptions, workers: Workers) -> None:
        check_spread(options)
        self._workers, self._name = workers, secrets.token_hex(8)
        self.groups = shared_out([len(client.train) for client in graph.clients], workers.count)
        self._loaded = False
        super().__init__(graph, options)

    def evaluators(self, graph: FederatedGraph) -> tuple[Evaluator, Evaluator]:
        """Return evaluators that let the workers rank."""
        shared = SpreadEvaluator(self, "shared", self.stack)
        return shared, SpreadEvaluator(self, "judged", self.private) if self.private else shared

    def call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], taken: Callable[[int], None] | None = None
    ) -> dict[int, Any]:
        """Call a method of some hosts, and load this run's clients before the first call.

        Args:
            arguments: by worker. taken: receives the number of steps during training.

        Raises:
            TrainingError: a loss is not finite.
        """
        if not self._loaded:
            content = {}
            for number, group in enumerate(self.groups):
                clients = tuple(self.graph.clients[client] for client in group)
                part = FederatedGraph(self.graph.name, self.graph.entities, self.graph.relations, clients)
                content[number] = self._name, pickle.dumps((part, self.options, list(group)))
            self._workers.call("load", content)
            # Workers hold no state of a run but its data, so loading once is enough, also after a resume.
            self._loaded = True
        named = {number: (self._name, *values) for number, values in arguments.items()}
        results = self._workers.call(method, named, taken)
        for result in results.values():
            if isinstance(result, TrainingError):
                raise result
        return results

    def train_on(self, place: int, subset: TrainingSubset) -> None:
        """Let a client train on a subset, here and in its worker."""
        super().train_on(place, subset)
        for number, group in enumerate(self.groups):
            if place in group:
                self.call("train_on", {number: (group.index(place), subset.triples, subset.rows)})

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> dict[int, float]:
        """Train a round in the workers.

        Args:
            places: client indices. on_step: called for each step.

        Returns:
            Loss of each client.
        """
        before, state, reported = self.snapshot(), self.trainer.tensors(), 0
        arguments = {}
        for number, group in enumerate(self.groups):
            if local := [group.index(place) for place in places if place in group]:
                rows = with_trainer(self.part(before, group), self.part(state, group))
                arguments[number] = round, local, packed(rows)

        def taken(steps: int) -> None:
            """Report the steps since the last call."""
            nonlocal reported
            for _ in range(reported, steps):
                on_step()
            reported = max(reported, steps)

        # No sum spans two clients, so the result has the same bits for any number of workers.
        losses = {}
        for number, (local, content) in self.call("train", arguments, taken).items():
            group = self.groups[number]
            losses |= {group[place]: loss for place, loss in local.items()}
            tensors = safetensors.torch.load(content)
            self.put(before, group, {key: tensor for key, tensor in tensors.items() if not key.startswith(TRAINER)})
            self.put(state, group, trainer_part(tensors))
        # This process has all tables, as in a run without workers: exchange, checkpoints and attacks use them.
        self.restore(before)
        self.load_trainer_state(state)
        taken(self.num_steps(places))
        return {place: losses[place] for place in places}

    # Tensors of single clients.

    def part(self, tensors: Mapping[str, Tensor], group: Sequence[int]) -> dict[str, Tensor]:
        """Cut the tensors of these clients out of a snapshot or a trainer's state.

        Args:
            tensors: by name. group: client indices.
        """
        order = [client for client in self.stack.order if client in group]
        part = {}
        for key, tensor in tensors.items():
            if (table := key.rpartition(".")[2]) in TABLES:
                part[key] = torch.cat([tensor[self.stack.span(table, client)] for client in order])
            elif (place := self._owner(key)) in group:
                part[self._renamed(key, group.index(place))] = tensor
        return part

    def put(self, tensors: dict[str, Tensor], group: Sequence[int], part: Mapping[str, Tensor]) -> None:
        """Put the result of `part` back.

        Args:
            tensors: to change. group: client indices. part: their tensors.
        """
        order = [client for client in self.stack.order if client in group]
        for key, rows in part.items():
            if (table := key.rpartition(".")[2]) not in TABLES:
                tensors[self._renamed(key, group[self._owner(key)])] = rows
                continue
            start = 0
            for client in order:
                span = self.stack.span(table, client)
                end = start + span.stop - span.start
                tensors[key][span] = rows[start:end]
                start = end

    def _tables_of(self, learner: str) -> int:
        """Return the number of tables of each client that an optimizer updates, see `LocalTrainer`."""
        return 1 if learner == "adam" and self.recipe.private == "entities" else len(TABLES)

    def _owner(self, key: str) -> int:
        """Return the client of an optimizer's tensor, which is numbered by client and table: "adam.5.exp_avg"."""
        learner, number, _ = key.split(".")
        return int(number) // self._tables_of(learner)

    def _renamed(self, key: str, place: int) -> str:
        learner, number, rest = key.split(".")
        count = self._tables_of(learner)
        return f"{learner}.{place * count + int(number) % count}.{rest}"


class SpreadEvaluator(Evaluator):
    """An evaluator that lets the workers rank."""

    def __init__(self, task: SpreadTask, kind: str, stack: ClientStack) -> None:
        self._task, self._kind, self._stack, self._encode = task, kind, stack, None
        self._options = task.options

    def client_tables(self, client: int, tables: Mapping[str, Tensor] | None = None) -> ClientTables:
        """Return the client's rows of these stacked tables; of the live ones when None."""
        whole = self._stack.tables if tables is None else tables
        rows = {table: whole[table].detach()[self._stack.span(table, client)] for table in TABLES}
        return ClientTables(rows["entities"], rows["relations"])

    def ranks(
        self, split: str, tables: Mapping[str, Tensor] | None = None, *, sampled: bool = False
    ) -> list[np.ndarray]:
        """Rank a split of each client, as `Evaluator.ranks`."""
        whole = self._stack.tables if tables is None else tables
        whole, groups = {table: whole[table].detach() for table in TABLES}, self._task.groups
        arguments = {
            number: (self._kind, split, packed(self._task.part(whole, group)), sampled)
            for number, group in enumerate(groups)
        }
        by_client: dict[int, np.ndarray] = {}
        for number, ranks in self._task.call("ranks", arguments).items():
            for client, of_client in zip(groups[number], ranks, strict=True):
                # Ray's arrays are read-only.
                by_client[client] = of_client.copy()
        return [by_client[client] for client in sorted(by_client)]


def shared_out(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Group clients by worker: the largest first, each to the worker with the smallest load.

    Args:
        sizes: training triples of each client. count: workers.

    >>> shared_out([5, 9, 1, 4], 2)
    [[1, 2], [0, 3]]
    """
    groups: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    loads = [0] * len(groups)
    for client in sorted(range(len(sizes)), key=lambda client: (-sizes[client], client)):
        least = loads.index(min(loads))
        groups[least].append(client)
        loads[least] += sizes[client]
    return [sorted(group) for group in groups]


class OneThread(Host):
    """A host in a process that uses one processor."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        numba.set_num_threads(1)
        super().__init__()

    def process(self) -> int:
        """Return the process ID."""
        return os.getpid()


class RayWorkers:
    """Starts `count` workers of one processor each. Raises `SpecError` for a count out of range."""

    def __init__(self, count: int) -> None:
        if not 1 <= count <= MOST_WORKERS:
            raise SpecError(f"workers must lie in 1..{MOST_WORKERS:,}; got {count:,}")
        self.count = count
        self._ray: Any = None
        self._hosts: list[Any] = []

    def __enter__(self) -> Self:
        """Start the workers. Raises `RunError` if Ray is not installed, does not start, or has too few processors."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray listens on every interface: a token protects its ports.
        if not os.environ.get("RAY_ADDRESS"):
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise RunError("engine: Ray is not installed; pip install 'fkgsec[ray]', or leave --engine out") from error
        self._ray = ray
        try:
            self._start()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def _start(self) -> None:
        ray, address = self._ray, os.environ.get("RAY_ADDRESS")
        local: dict[str, Any] = {"num_cpus": self.count, "include_dashboard": False}
        try:
            ray.init(
                address=address or "local", log_to_driver=False, logging_level="error", **({} if address else local)
            )
        # Ray raises many classes of errors; with any of them, it did not start.
        except Exception as error:
            where = f" at {address}" if address else ""
            raise RunError(f"engine: Ray does not start{where} ({_line(error)})") from error
        there = int(ray.cluster_resources().get("CPU", 0))
        if there < self.count:
            raise RunError(f"workers: {self.count} need as many processors; the cluster at {address} has {there}")
        # Two calls at a time: one that trains, one that asks how far it is.
        kind = ray.remote(num_cpus=1, max_concurrency=2)(OneThread)
        self._hosts = [kind.remote() for _ in range(self.count)]
        for version in self.call("version", dict.fromkeys(range(self.count), ())).values():
            if version != __version__:
                raise RunError(
                    f"a node of the cluster has fkgsec {version}, this one {__version__}; install one version"
                )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self._hosts:
            self._ray.kill(host)
        self._hosts = []
        self._ray.shutdown()

    def call(
        self, method: str, arguments: Mapping[int, tuple[Any, ...]], taken: Callable[[int], None] | None = None
    ) -> dict[int, Any]:
        """Call the workers, see `Workers.call`. Raises `RunError` if a worker ends, or does not start."""
        ray = self._ray
        calls = {number: getattr(self._hosts[number], method).remote(*values) for number, values in arguments.items()}
        try:
            waiting = list(calls.values())
            while taken is not None and waiting:
                _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LOOK_S)
                if waiting:
                    taken(max(ray.get([self._hosts[number].taken.remote() for number in calls])))
            timeout = _START_S if method == "version" else None
            return {number: ray.get(call, timeout=timeout) for number, call in calls.items()}
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise RunError(
                f"a worker of Ray ended or did not start ({_line(error)}); repeat the command to go on"
            ) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
