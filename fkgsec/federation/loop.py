"""The one loop of all algorithms: align, broadcast, then rounds of local training, upload, aggregation and broadcast."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import SPLITS, ClientGraph, FederatedGraph
from fkgsec.errors import DataError, SpecError
from fkgsec.exchange import Holding, MakeTransport, Observed, Transport, Uploaded, all_excluded
from fkgsec.federation import checkpoint
from fkgsec.federation.checkpoint import Progress, RoundEntry
from fkgsec.federation.messages import SERVER, Channel, Transcript, client_party
from fkgsec.federation.options import RENAMED, FederationOptions
from fkgsec.federation.protection import NOTHING, Protection
from fkgsec.federation.recipes import RECIPES, Recipe, Table
from fkgsec.kge.local.evaluation import ClientTables, Evaluator
from fkgsec.kge.local.stack import ClientStack
from fkgsec.kge.local.training import TABLES, LocalTrainer
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
        test_ranks: ranks of each client's test triples, float64 `[n, sides]`, by `trained` or by `tables`, see
            `FederationOptions.evaluate`.
        transcript: what crossed; the messages of round 0, of the best and of the last round are retained whole.
        inputs: what each party (by table) put into the exchange of that round when a protocol hid it (what a colluder
            would hand over): float64 `[n, width]` over all rows of the shared table, its noise included.
        protection: what the exchange protected, its guarantees over all that ever crossed; nothing in clear.
        row_names: the names of the rows of each shared table, in the server's order.
        observed: by table and party, what the server had put together of the client's uploads by that round, where no
            single message holds it.
        private: each client's embeddings of the model that it keeps to itself, where the recipe has one; `test_ranks` are
            its ranks, and `shared_test_ranks` those of the shared model.
        started: by table and party, the shared rows that its training of that round started from, in its own order.
        known: by table and party, what the server knew beforehand of its part of that round's sum: float64 `[n, width]`, the
            part's value in each row of the shared table, where the client holds it. Empty unless something is wrong: clients
            that send the server's broadcast back, or that were sent what the clip cuts to a value the server can tell.
        carried: what the exchange goes on from in a round after that one.
    """

    graph: FederatedGraph
    options: FederationOptions
    rounds: list[RoundEntry]
    best_round: int
    tables: list[ClientTables]
    trained: list[ClientTables]
    test_ranks: list[np.ndarray]
    transcript: Transcript
    inputs: dict[Table, dict[str, Tensor]] = field(default_factory=dict)
    protection: Protection = NOTHING
    row_names: dict[Table, list[str]] = field(default_factory=dict)
    observed: dict[Table, dict[str, Observed]] = field(default_factory=dict)
    private: list[ClientTables] = field(default_factory=list)
    shared_test_ranks: list[np.ndarray] = field(default_factory=list)
    started: dict[Table, dict[str, Tensor]] = field(default_factory=dict)
    known: dict[Table, dict[str, Tensor]] = field(default_factory=dict)
    carried: dict[str, Tensor] = field(default_factory=dict)


class Federation:
    """The parties of one run and their state. `run_federation` drives it."""

    def __init__(
        self, graph: FederatedGraph, options: FederationOptions, make_exchange: MakeTransport = Transport
    ) -> None:
        if options.defense and make_exchange is Transport:
            raise SpecError(f"defense {options.defense!r} was asked for, but an exchange in clear was given")
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
        self.private: ClientStack | None = None
        relations = None
        if self.recipe.private != "none":
            model, purpose = options.private_model(), "initial private rows"
            self.private = ClientStack(trained, keys, model, options.seed, device, purpose=purpose)
            relations = self.private.tables["relations"] if self.recipe.private == "entities" else None
        self.stack = ClientStack(trained, keys, options.kge_model(), options.seed, device, relations=relations)
        self.trainer = LocalTrainer(self.stack, options, self.private)
        wide = FederatedGraph(graph.name, graph.entities, graph.relations, tuple(clients))
        self.shared_evaluator = Evaluator(wide, self.stack, options, self.recipe.pooled)
        self.evaluator = self.shared_evaluator
        if self.private:
            self.evaluator = Evaluator(wide, self.private, options, self.recipe.pooled)
        self.parties = [client_party(client.name) for client in trained]
        self.channel = Channel()
        self.exchange = make_exchange(
            self.channel, options, self.parties, self.recipe.shared, run_identity(graph, options)
        )
        # How many rows a client uploads: those that stand in its training triples, whatever it corrupts with.
        self.num_uploaded = [
            {"entities": client.num_trained_entities, "relations": client.num_trained_relations} for client in trained
        ]

    def align(self) -> None:
        """Round 0: clients and server agree on the rows of every shared table, and the first rows are sent."""
        model = self.stack.model
        widths = {"entities": model.entity_width, "relations": model.relation_width}
        for table, shared in self.exchange.server.items():
            self.exchange.align(table, self.holdings(table))
            rng = generator(self.options.seed, "initial rows", table, SERVER)
            rows = model.initial_rows(len(shared.names), widths[table], rng)
            # A name's first row does not depend on the order in which names arrived.
            rank = np.argsort(np.argsort(np.array(shared.names, dtype=object)))
            self.exchange.initialise(table, rows[torch.from_numpy(rank)])
        self.broadcast(0)

    def holdings(self, table: Table) -> dict[str, Holding]:
        """Which rows of a shared table each client holds, by name."""
        vocabulary = self.graph.entities if table == "entities" else self.graph.relations
        held = {}
        for client, party in enumerate(self.parties):
            graph = self.stack.graphs[client]
            ids = graph.entity_ids if table == "entities" else graph.relation_ids
            held[party] = Holding([vocabulary[number] for number in ids], self.num_uploaded[client][table])
        return held

    def broadcast(self, round: int) -> None:
        """Clients receive their rows of every shared table and take them over, unless they keep their own.

        Where the federation's model is what is evaluated, every client receives it; else those that train next. In round 0
        the models that clients keep to themselves may take these rows over, too (`LocalRule.starts_private`).
        """
        receivers = range(len(self.parties))
        if self.recipe.evaluated == "local" and round > 0:
            receivers = self.participants(round + 1)
        parties = [self.parties[client] for client in receivers]
        rule = self.trainer.rule
        for table in self.exchange.server:
            for party, received in self.exchange.broadcast(round, table, parties).items():
                client = self.parties.index(party)
                own = self.stack.rows(table, client).detach()
                rows = received.merged(own)
                self.trainer.receive(table, client, rows, first=round == 0)
                if rule.takes_over(round):
                    own.copy_(rows)
                if rule.starts_private and self.private and round == 0:
                    self.private.rows(table, client).detach().copy_(rows)

    def upload(self, round: int, participants: list[int]) -> list[Uploaded]:
        """Participants send their trained rows, and the server takes the mean over holders; one outcome for each table."""
        return [
            self.exchange.upload(
                round,
                table,
                {
                    self.parties[client]: self.stack.rows(table, client)[: self.num_uploaded[client][table]]
                    .detach()
                    .cpu()
                    for client in participants
                },
            )
            for table in self.exchange.server
        ]

    def participants(self, round: int) -> list[int]:
        """The clients of this round, at least one, drawn without replacement; in ascending order."""
        count = self.options.num_participants(len(self.parties))
        if count == len(self.parties):
            return list(range(count))
        drawn = generator(self.options.seed, "participants", round).choice(len(self.parties), size=count, replace=False)
        return sorted(int(client) for client in drawn)

    def started(self, prefix: str) -> dict[str, Tensor]:
        """Each client's shared rows, copied, under names that begin with `prefix`."""
        return {
            f"{prefix}.{table}.{client}": self.stack.rows(table, client).detach().cpu().clone()
            for table in self.recipe.shared
            for client in range(len(self.parties))
        }

    def inputs(self, prefix: str) -> dict[str, Tensor]:
        """What each participant put into this round's exchange, under names that begin with `prefix`."""
        return {
            f"{prefix}.{table}.{self.parties.index(party)}": rows
            for table, own in self.exchange.inputs.items()
            for party, rows in own.items()
        }

    def known(self, prefix: str) -> dict[str, Tensor]:
        """What the server knew beforehand of participants' parts of this round's sum, under names that begin with `prefix`."""
        return {
            f"{prefix}.{table}.{self.parties.index(party)}": rows.clone()
            for table, own in self.exchange.known.items()
            for party, rows in own.items()
        }

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """The clients' tables, copied, under names that begin with `prefix`."""
        return _copied(prefix, self.stack)

    def private_tensors(self, prefix: str) -> dict[str, Tensor]:
        """The same of the models that clients keep to themselves; nothing where there are none."""
        return _copied(prefix, self.private) if self.private else {}

    def observed(self, prefix: str) -> dict[str, Tensor]:
        """What the server has put together of each client's uploads, under names that begin with `prefix`."""
        return {
            f"{prefix}.{name}.{table}.{self.parties.index(party)}": tensor.clone()
            for table in self.exchange.server
            for party, observed in self.exchange.observed(table).items()
            for name, tensor in observed._asdict().items()
        }


def _copied(prefix: str, stack: ClientStack) -> dict[str, Tensor]:
    return {f"{prefix}.{table}": stack.tables[table].detach().clone() for table in TABLES}


def run_identity(graph: FederatedGraph, options: FederationOptions) -> str:
    """What a checkpoint must agree with: data and options, except the device.

    4 and 4.0 are one value, and settings at their defaults are left out, so that a new one does not make strangers of earlier
    runs. For their sake names that have changed go by the old ones, and what once was there for all algorithms stays.
    """
    encoded = msgspec.json.encode(msgspec.structs.replace(options, device="auto"))
    fields = msgspec.structs.asdict(msgspec.json.decode(encoded, type=FederationOptions))
    old = {new: name for name, new in RENAMED.items()}
    given = {old.get(name, name): value for name, value in options.settings.given().items()}
    fields = (
        {"temperature": 1.0, "tau": 0.2} | {name: value for name, value in fields.items() if value is not None} | given
    )
    del fields["settings"]
    fields["epsilon"] = fields.pop("init_epsilon")
    return hashlib.sha256(msgspec.json.encode([graph.hash, fields], order="sorted")).hexdigest()


def run_federation(
    graph: FederatedGraph,
    options: FederationOptions,
    folder: Path | None = None,
    observer: Observer | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    make_exchange: MakeTransport = Transport,
    released: Protection = NOTHING,
) -> FederationResult:
    """Train a federation to its last round or until validation stops improving.

    Args:
        graph: the clients' graphs.
        options: what to run.
        folder: where checkpoints go; a run that was killed goes on from the last one found there.
        observer: told of every round and step.
        checkpoint_every_s: least time between two checkpoints; 0 writes one after every round.
        make_exchange: how tables cross; a defense's own (`defenses.make_exchange`), or in clear.
        released: the protection of a run on the same clients' data that this one replaces; guarantees compose.

    On the CPU the result depends on nothing but graph, options and seed, also across a kill and a resume.

    Raises:
        DataError: a federated algorithm with one client.
        SpecError: options that name a defense, and an exchange that has none.
        TrainingError: a loss that is not finite; the last checkpoint stays.
        RunError: a checkpoint that is damaged or of another run.
    """
    observer = observer or Observer()
    federation = Federation(graph, options, make_exchange)
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
        progress.rounds.append(_entry(transcript, 0, None, None, [], started))
        if path:  # before anything is released: what is done again after a kill then goes on from the same entropy
            progress.entries = transcript.entries
            checkpoint.save(path, _state(federation, best), progress)

    for entry in progress.rounds:
        observer.round_done(entry)
    saved_at = time.perf_counter()
    while not progress.finished and len(progress.rounds) <= options.rounds:
        number, started = len(progress.rounds), time.perf_counter()
        participants = (
            federation.participants(number) if federation.recipe.shared else list(range(len(federation.parties)))
        )
        observer.round_started(number, federation.trainer.num_steps(participants))
        federation.trainer.begin_round()
        rows_before = federation.started("best_started")
        losses = federation.trainer.train_round(number, participants, observer.step_done)
        trained = federation.tensors("best_trained")
        check = number % options.eval_every == 0 or number == options.rounds
        # A broadcast leaves private models as they are.
        before = options.evaluates_before_broadcast or federation.private is not None
        mrr = federation.evaluator.mrr("valid") if check and before else None
        outcomes = federation.upload(number, participants)
        federation.broadcast(number)

        if check:
            mrr = mrr if before else federation.evaluator.mrr("valid")
            if mrr is None or mrr > progress.best_mrr:
                progress.best_mrr = progress.best_mrr if mrr is None else mrr
                progress.best_round, progress.bad_checks = number, 0
                best = {
                    **federation.tensors("best"),
                    **trained,
                    **federation.private_tensors("best_private"),
                    **rows_before,
                    **federation.inputs("best_input"),
                    **federation.known("best_known"),
                    **{f"best_carried.{name}": rows for name, rows in federation.exchange.carried().items()},
                    **federation.observed("best_observed"),
                }
            else:
                progress.bad_checks += 1
        _retain(federation, progress.best_round, number)
        sizes = [len(federation.stack.graphs[client].train) for client in losses]
        loss = float(np.average(list(losses.values()), weights=sizes))
        progress.rounds.append(_entry(transcript, number, loss, mrr, outcomes, started))
        observer.round_done(progress.rounds[-1])
        progress.finished = number == options.rounds or 0 < options.patience <= progress.bad_checks
        if path and (progress.finished or time.perf_counter() - saved_at >= checkpoint_every_s):
            progress.entries = transcript.entries
            checkpoint.save(path, _state(federation, best), progress)
            saved_at = time.perf_counter()
    return _result(federation, progress, best, released)


def _retain(federation: Federation, *rounds: int) -> None:
    """Keep the messages of round 0, of these, and each client's last upload up to these; and the notes worth keeping."""
    transcript = federation.channel.transcript
    whole = {0, *rounds}.union(*(transcript.latest_uploads(number) for number in rounds))
    opened = [number for number in transcript.notes if any(note.total for note in transcript.opened(number))]
    latest = {max((one for one in opened if one <= number), default=number) for number in rounds}
    transcript.retain(whole, {*rounds, *latest, *federation.exchange.rounds_worth_noting()})


def _entry(
    transcript: Transcript,
    number: int,
    loss: float | None,
    mrr: float | None,
    outcomes: list[Uploaded],
    started: float,
) -> RoundEntry:
    return RoundEntry(
        number,
        loss,
        mrr,
        transcript.num_bytes("up", number),
        transcript.num_bytes("down", number),
        time.perf_counter() - started,
        min((outcome.num_survivors for outcome in outcomes), default=0),
        sum(outcome.num_clipped for outcome in outcomes),
        all_excluded(outcomes),
    )


def _state(federation: Federation, best: dict[str, Tensor]) -> dict[str, Tensor]:
    transcript = federation.channel.transcript
    state = {
        **federation.tensors("now"),
        **federation.private_tensors("now_private"),
        **best,
        **checkpoint.pack_frames("frame", transcript.frames),
        **checkpoint.pack_frames("note", transcript.notes),
    }
    state |= {f"exchange.{name}": tensor for name, tensor in federation.exchange.tensors().items()}
    return state | {f"trainer.{name}": tensor for name, tensor in federation.trainer.tensors().items()}


def _restore(federation: Federation, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put a checkpoint's state back; returns the best tables."""
    _put_back(federation, tensors, "now", "now_private")
    transcript = federation.channel.transcript
    transcript.frames = checkpoint.unpack_frames("frame", tensors)
    transcript.notes = checkpoint.unpack_frames("note", tensors)
    federation.exchange.restore(
        {table: federation.holdings(table) for table in federation.recipe.shared}, _below("exchange.", tensors)
    )
    federation.trainer.load(_below("trainer.", tensors))
    return {name: tensor for name, tensor in tensors.items() if name.startswith("best")}


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _put_back(federation: Federation, tensors: dict[str, Tensor], shared: str, private: str) -> None:
    """Copy tables saved under these prefixes into the models."""
    stacks = [(federation.private, private)] if federation.private else []
    for stack, prefix in (*stacks, (federation.stack, shared)):
        for table in TABLES:
            stack.tables[table].detach().copy_(tensors[f"{prefix}.{table}"])


def _result(
    federation: Federation, progress: Progress, best: dict[str, Tensor], released: Protection
) -> FederationResult:
    recipe, parties, before = federation.recipe, federation.parties, federation.options.evaluates_before_broadcast

    def tables(prefix: str, evaluator: Evaluator) -> list[ClientTables]:
        _put_back(federation, best, prefix, "best_private")
        views = [evaluator.client_tables(client) for client in range(len(federation.graph.clients))]
        return [ClientTables(view.entities.cpu().clone(), view.relations.cpu().clone()) for view in views]

    trained = tables("best_trained", federation.shared_evaluator)
    shared_test_ranks = federation.shared_evaluator.ranks("test") if before else []
    private = tables("best_trained", federation.evaluator) if federation.private else []
    final = tables("best", federation.shared_evaluator)
    if not before:
        shared_test_ranks = federation.shared_evaluator.ranks("test")
    test_ranks = federation.evaluator.ranks("test") if federation.private else shared_test_ranks
    transcript = federation.channel.transcript
    _retain(federation, progress.best_round, progress.rounds[-1].round)
    by_party: dict[str, dict[Table, dict[str, Tensor]]] = {
        kind: {
            table: {
                party: best[f"best_{kind}.{table}.{place}"]
                for place, party in enumerate(parties)
                if f"best_{kind}.{table}.{place}" in best
            }
            for table in recipe.shared
        }
        for kind in ("input", "started", "known")
    }
    observed: dict[Table, dict[str, Observed]] = {
        table: {
            party: Observed(*(best[f"best_observed.{name}.{table}.{place}"] for name in Observed._fields))
            for place, party in enumerate(parties)
            if f"best_observed.rows.{table}.{place}" in best
        }
        for table in recipe.shared
    }
    return FederationResult(
        federation.graph,
        federation.options,
        progress.rounds,
        progress.best_round,
        final,
        trained,
        test_ranks,
        transcript,
        by_party["input"],
        federation.exchange.protection(released),
        {table: list(shared.names) for table, shared in federation.exchange.server.items()},
        observed,
        private,
        shared_test_ranks if federation.private else [],
        by_party["started"],
        by_party["known"],
        _below("best_carried.", best),
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
