"""The one loop of all algorithms: align, broadcast, then rounds of local training, upload, aggregation and broadcast."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph
from fkgsec.errors import DataError
from fkgsec.federation import checkpoint
from fkgsec.federation.checkpoint import Progress, RoundEntry
from fkgsec.federation.evaluation import ClientTables, Evaluator
from fkgsec.federation.messages import SERVER, Alignment, Channel, Rows, Transcript, client_party
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import RECIPES, Recipe, Table
from fkgsec.federation.server import SharedTable
from fkgsec.federation.stack import ClientStack
from fkgsec.federation.training import TABLES, LocalTrainer
from fkgsec.randomness import generator

CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_EVERY_S = 20.0
_POOLED_KEY = -1


class Observer:
    """Told how a run proceeds; does nothing. Subclass it for a progress bar."""

    def round_started(self, round: int, num_steps: int) -> None:
        """A round of so many steps begins."""

    def step_done(self) -> None:
        """One step of every busy client is done."""

    def round_done(self, entry: RoundEntry) -> None:
        """The round is over."""


@dataclass(frozen=True)
class FederationResult:
    """A finished run, at its best validation.

    Attributes:
        rounds: what each round did, round 0 first.
        best_round: the round whose models are kept, the one with the best validation MRR (the last without validation).
        tables: each client's embeddings after the broadcast of that round.
        trained: each client's embeddings before it (what a colluder would hand over): as its own training left them, or for a
            client that sat the round out as the last broadcast did.
        test_ranks: ranks of each client's test triples, float64 `[n, sides]`.
        transcript: what crossed; the messages of round 0, of the best and of the last round are retained whole.
    """

    graph: FederatedGraph
    options: FederationOptions
    rounds: list[RoundEntry]
    best_round: int
    tables: list[ClientTables]
    trained: list[ClientTables]
    test_ranks: list[np.ndarray]
    transcript: Transcript


class Federation:
    """The parties of one run and their state. `run_federation` drives it."""

    def __init__(self, graph: FederatedGraph, options: FederationOptions) -> None:
        self.graph = graph
        self.options = options
        self.recipe: Recipe = RECIPES[options.algorithm]
        if self.recipe.shared and len(graph.clients) < 2:
            raise DataError(f"{graph.name}: {options.algorithm} needs at least 2 clients; the federation has one")
        own = options.entity_scope == "own"
        clients = [client if own else _widen(client, len(graph.entities)) for client in graph.clients]
        if self.recipe.pooled:
            trained, keys = [_pool(clients)], [_POOLED_KEY]
        else:
            trained, keys = clients, list(range(len(clients)))
        device = options.torch_device()
        self.stack = ClientStack(trained, keys, options.kge_model(), options.seed, device)
        self.trainer = LocalTrainer(self.stack, options)
        wide = FederatedGraph(graph.name, graph.entities, graph.relations, tuple(clients))
        self.evaluator = Evaluator(wide, self.stack, options, self.recipe.pooled)
        self.channel = Channel()
        self.server: dict[Table, SharedTable] = {table: SharedTable(table) for table in self.recipe.shared}
        self.parties = [client_party(client.name) for client in trained]
        # How many rows a client uploads: those that stand in its training triples, whatever it corrupts with.
        self.num_uploaded = [
            {"entities": client.num_trained_entities, "relations": client.num_trained_relations} for client in trained
        ]

    def align(self) -> None:
        """Round 0: clients name their rows, the server numbers the union and sends the first shared rows."""
        vocabulary = {"entities": self.graph.entities, "relations": self.graph.relations}
        model = self.stack.model
        widths = {"entities": model.entity_width, "relations": model.relation_width}
        for table, shared in self.server.items():
            for client, party in enumerate(self.parties):
                graph = self.stack.graphs[client]
                ids = graph.entity_ids if table == "entities" else graph.relation_ids
                names = [vocabulary[table][number] for number in ids]
                message = Alignment(0, party, SERVER, table, names, self.num_uploaded[client][table])
                received = self.channel.send(message)
                assert isinstance(received, Alignment)
                shared.align(received)
            rng = generator(self.options.seed, "initial rows", table, SERVER)
            shared.initialise(model.initial_rows(len(shared.names), widths[table], rng))
        self.broadcast(0)

    def broadcast(self, round: int) -> None:
        """Every client receives its rows of every shared table and takes them over."""
        for table, shared in self.server.items():
            for client, party in enumerate(self.parties):
                rows = shared.rows[shared.holdings[party]]
                received = self.channel.send(Rows.pack(round, SERVER, party, table, rows))
                assert isinstance(received, Rows)
                with torch.no_grad():
                    self.stack.rows(table, client).copy_(received.unpack())

    def upload(self, round: int, participants: list[int]) -> None:
        """Participants send their trained rows, and the server takes the mean over holders."""
        for table, shared in self.server.items():
            uploads = []
            for client in participants:
                rows = self.stack.rows(table, client)[: self.num_uploaded[client][table]]
                received = self.channel.send(Rows.pack(round, self.parties[client], SERVER, table, rows))
                assert isinstance(received, Rows)
                uploads.append(received)
            shared.aggregate(uploads)

    def participants(self, round: int) -> list[int]:
        """The clients of this round, at least one, drawn without replacement; in ascending order."""
        count = max(1, round_half_up(self.options.participation * len(self.parties)))
        if count == len(self.parties):
            return list(range(count))
        drawn = generator(self.options.seed, "participants", round).choice(len(self.parties), size=count, replace=False)
        return sorted(int(client) for client in drawn)

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """The clients' tables, copied, under names that begin with `prefix`."""
        return {f"{prefix}.{table}": self.stack.tables[table].detach().clone() for table in TABLES}


def round_half_up(value: float) -> int:
    """Nearest whole number, halves upwards (Python's `round` takes halves to even numbers).

    >>> round_half_up(2.5)
    3
    """
    return int(np.floor(value + 0.5))


def run_identity(graph: FederatedGraph, options: FederationOptions) -> str:
    """What a checkpoint must agree with: data and options, except the device."""
    fields = msgspec.structs.asdict(msgspec.structs.replace(options, device="auto"))
    return hashlib.sha256(msgspec.json.encode([graph.hash, fields], order="sorted")).hexdigest()


def run_federation(
    graph: FederatedGraph,
    options: FederationOptions,
    folder: Path | None = None,
    observer: Observer | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
) -> FederationResult:
    """Train a federation to its last round or until validation stops improving.

    Args:
        graph: the clients' graphs.
        options: what to run.
        folder: where checkpoints go; a run that was killed goes on from the last one found there.
        observer: told of every round and step.
        checkpoint_every_s: least time between two checkpoints; 0 writes one after every round.

    On the CPU the result depends on nothing but graph, options and seed, also across a kill and a resume.

    Raises:
        DataError: a federated algorithm with one client.
        TrainingError: a loss that is not finite; the last checkpoint stays.
        RunError: a checkpoint that is damaged or of another run.
    """
    observer = observer or Observer()
    federation = Federation(graph, options)
    transcript = federation.channel.transcript
    path = folder / CHECKPOINT if folder else None
    progress = Progress(run_identity(graph, options))
    best: dict[str, Tensor] = {}

    if path and path.exists():
        tensors, progress = checkpoint.load(path, progress.identity)
        best = _restore(federation, tensors)
        transcript.entries = list(progress.entries)
    else:
        started = time.perf_counter()
        federation.align()
        progress.rounds.append(_entry(transcript, 0, None, None, started))

    for entry in progress.rounds:
        observer.round_done(entry)
    saved_at = time.perf_counter()
    while not progress.finished and len(progress.rounds) <= options.rounds:
        number, started = len(progress.rounds), time.perf_counter()
        participants = federation.participants(number) if federation.server else list(range(len(federation.parties)))
        observer.round_started(number, federation.trainer.num_steps(participants))
        if not federation.recipe.keep_optimizer:
            federation.trainer.reset_optimizer()
        losses = federation.trainer.train_round(number, participants, observer.step_done)
        trained = federation.tensors("best_trained")
        federation.upload(number, participants)
        federation.broadcast(number)

        mrr = None
        if number % options.eval_every == 0 or number == options.rounds:
            mrr = federation.evaluator.mrr("valid")
            if mrr is None or mrr > progress.best_mrr:
                progress.best_mrr = progress.best_mrr if mrr is None else mrr
                progress.best_round, progress.bad_checks = number, 0
                best = {**federation.tensors("best"), **trained}
            else:
                progress.bad_checks += 1
        transcript.retain(_rounds_to_keep(transcript, progress.best_round, number))
        sizes = [len(federation.stack.graphs[client].train) for client in losses]
        loss = float(np.average(list(losses.values()), weights=sizes))
        progress.rounds.append(_entry(transcript, number, loss, mrr, started))
        observer.round_done(progress.rounds[-1])
        progress.finished = number == options.rounds or 0 < options.patience <= progress.bad_checks
        if path and (progress.finished or time.perf_counter() - saved_at >= checkpoint_every_s):
            progress.entries = transcript.entries
            checkpoint.save(path, _state(federation, best), progress)
            saved_at = time.perf_counter()
    return _result(federation, progress, best)


def _rounds_to_keep(transcript: Transcript, *rounds: int) -> set[int]:
    return {0, *rounds}.union(*(transcript.latest_uploads(number) for number in rounds))


def _entry(transcript: Transcript, number: int, loss: float | None, mrr: float | None, started: float) -> RoundEntry:
    up, down = transcript.num_bytes("up", number), transcript.num_bytes("down", number)
    return RoundEntry(number, loss, mrr, up, down, time.perf_counter() - started)


def _state(federation: Federation, best: dict[str, Tensor]) -> dict[str, Tensor]:
    state = {**federation.tensors("now"), **best, **checkpoint.pack_frames(federation.channel.transcript.frames)}
    for table, shared in federation.server.items():
        state[f"server.{table}"] = shared.rows
    if federation.recipe.keep_optimizer:
        state |= {f"adam.{name}": tensor for name, tensor in federation.trainer.optimizer_tensors().items()}
    return state


def _restore(federation: Federation, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put a checkpoint's state back; returns the best tables."""
    for table in TABLES:
        federation.stack.tables[table].detach().copy_(tensors[f"now.{table}"])
    transcript = federation.channel.transcript
    transcript.frames = checkpoint.unpack_frames({k: v for k, v in tensors.items() if k.startswith("frame.")})
    for message in transcript.messages(0):
        if isinstance(message, Alignment):
            federation.server[message.table].align(message)
    for table, shared in federation.server.items():
        shared.initialise(tensors[f"server.{table}"])
    adam = {name.removeprefix("adam."): tensor for name, tensor in tensors.items() if name.startswith("adam.")}
    if adam:
        federation.trainer.load_optimizer_tensors(adam)
    return {name: tensor for name, tensor in tensors.items() if name.startswith("best")}


def _result(federation: Federation, progress: Progress, best: dict[str, Tensor]) -> FederationResult:
    clients = range(len(federation.graph.clients))

    def tables(prefix: str) -> list[ClientTables]:
        for table in TABLES:
            federation.stack.tables[table].detach().copy_(best[f"{prefix}.{table}"])
        views = [federation.evaluator.client_tables(client) for client in clients]
        return [ClientTables(view.entities.cpu().clone(), view.relations.cpu().clone()) for view in views]

    trained = tables("best_trained")
    final = tables("best")
    transcript = federation.channel.transcript
    transcript.retain(_rounds_to_keep(transcript, progress.best_round, progress.rounds[-1].round))
    return FederationResult(
        federation.graph,
        federation.options,
        progress.rounds,
        progress.best_round,
        final,
        trained,
        federation.evaluator.ranks("test"),
        transcript,
    )


def _pool(clients: list[ClientGraph]) -> ClientGraph:
    """One client with the triples of all."""
    splits = [np.concatenate([client.to_global(getattr(client, split)) for client in clients]) for split in SPLITS]
    return ClientGraph.from_global("pooled", *splits)


def _widen(client: ClientGraph, num_entities: int) -> ClientGraph:
    """The same client keeping a row for every entity of the federation, its own first."""
    others = np.setdiff1d(np.arange(num_entities), client.entity_ids)
    ids = np.concatenate([client.entity_ids, others])
    return ClientGraph(client.name, ids, client.relation_ids, client.train, client.valid, client.test)
