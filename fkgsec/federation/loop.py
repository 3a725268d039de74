"""The training loop of all algorithms: align, broadcast, then rounds of local training, upload, aggregation and broadcast.

    graph = generate_consortium(clients=3, size=2_000, seed=0)
    result = run_federation(graph, KgeOptions(algorithm="feds", rounds=20), folder=Path("runs/mine"))
    print(result.summary())

The loop knows neither triples nor metrics. A `Task` trains models; a `Transport` transmits and aggregates rows.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fkgsec.errors import DataError, RunError, SpecError
from fkgsec.exchange import Holding, MakeTransport, Observed, Transport, Uploaded
from fkgsec.federation import checkpoint, packing
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.checkpoint import Progress, RoundEntry, stands_at
from fkgsec.federation.messages import SERVER, Channel, Transcript, client_party
from fkgsec.federation.options import CHECKPOINT_EVERY_S, Result_co, RunOptions, run_identity
from fkgsec.federation.order import ClientOrders
from fkgsec.federation.protection import NOTHING, Protection
from fkgsec.federation.recipes import RECIPES, Recipe, Table
from fkgsec.federation.result import Kept
from fkgsec.federation.steps import Observer, broadcast_and_check, judge, mean_loss, round_entry, train_and_upload
from fkgsec.federation.task import TASKS, MakeTask, Task

__all__ = [
    "CHECKPOINT",
    "Federation",
    "Observer",
    "load_result",
    "run_federation",
    "run_identity",
]

CheckLoaded: TypeAlias = Callable[[Mapping[str, Tensor], Progress], None]

CHECKPOINT = "checkpoint.safetensors"
BEFORE_END, KEPT_BEFORE_END = "before-end.safetensors", 4  # a second state, this many rounds before the last


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best(Kept):
    """Best round: the task's models before and after its broadcast, and its messages."""

    trained: dict[str, Tensor]
    final: dict[str, Tensor]

    @classmethod
    def of(cls, federation: Federation, trained: dict[str, Tensor], started: packing.ByParty) -> Best:
        """Copy the state of the round that has just ended.

        Args:
            federation: after the round's broadcast.
            trained: snapshot of the shared models after local training.
            started: shared rows before it.
        """
        # Clones: later rounds change these tensors in place.
        exchange = federation.exchange
        return cls(
            trained=trained,
            final=federation.task.snapshot(),
            started=started,
            inputs={table: exchange.inputs.get(table, {}) for table in exchange.server},
            known={
                table: {party: rows.clone() for party, rows in exchange.known.get(table, {}).items()}
                for table in exchange.server
            },
            carried=exchange.carried(),
            observed={
                table: {party: Observed(*map(Tensor.clone, seen)) for party, seen in exchange.observed(table).items()}
                for table in exchange.server
            },
        )

    def tree(self, parties: Sequence[str]) -> dict[str, packing.Tree]:
        """Return the tensors for a checkpoint.

        Args:
            parties: party names, whose indices name the tensors.
        """
        return {**super().tree(parties), "trained": self.trained, "final": self.final}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], tables: Sequence[Table], parties: Sequence[str]) -> Best:
        """Undo `tree`, packed.

        Args:
            tables: shared tables.
            parties: party names.
        """
        trained, final = (packing.below(f"{kind}.", tensors) for kind in ("trained", "final"))
        return cls(trained=trained, final=final, **Kept.read(tensors, tables, parties))


class Federation:
    """Parties of one run and their state, driven by `run_federation`, which documents the arguments."""

    def __init__(
        self,
        graph: Any,
        options: RunOptions[Any],
        make_transport: MakeTransport = Transport,
        adversary: Adversary | None = None,
        rounds_needed: Collection[int] = (),
        make_task: MakeTask | None = None,
    ) -> None:
        if not isinstance(options, RunOptions):
            raise SpecError(f"options must be those of a task, such as KgeOptions(); got {type(options).__name__}")
        # The default transport is plaintext: a defense must not be dropped silently.
        if options.defense and make_transport is Transport:
            raise SpecError(
                f"defense {options.defense!r} is set, but the transport sends plaintext; in Python, pass "
                "make_transport=fkgsec.defenses.make_transport"
            )
        self.graph, self.options = graph, options
        self.recipe: Recipe = RECIPES[options.algorithm]
        if options.keeps_by_client and (adversary or make_task):
            raise SpecError("best_round=client goes with neither an adversary nor clients in other processes")
        task = TASKS[self.recipe.task]
        if not isinstance(options, task.options_type):
            raise SpecError(
                f"options: {options.algorithm} is an algorithm of the task {self.recipe.task!r}, which takes "
                f"{task.options_type.__name__}; got {type(options).__name__}"
            )
        self.task: Task = (make_task or task)(graph, options)
        # With one client, the mean is that client's upload.
        if self.recipe.shared and len(self.task.names) < 2:
            raise DataError(f"{graph.name}: {options.algorithm} needs at least 2 clients; the federation has one")
        self.parties = [client_party(name) for name in self.task.names]
        self._holdings: dict[Table, dict[str, Holding]] = {}
        self.channel = Channel()
        run = run_identity(graph, options, adversary)
        self.exchange = make_transport(self.channel, options, self.parties, self.recipe.shared, run)
        # Simulated clients check the order of requests like deployed ones.
        self.orders = ClientOrders(self.parties, options, self.recipe.shared, sums=self.exchange.sums)
        self.adversary = adversary
        self.needed = {*rounds_needed, *(adversary.rounds_needed() if adversary else ())}
        self.needed |= options.first_exchange() if self.recipe.keeps_first else set()
        self._corrupt: int | None = None  # index of the adversary if it is a client
        self.best: Best | None = None
        # Shared rows before the round's training, and models after it; empty before the first round.
        self._started: packing.ByParty = {}
        self._trained: dict[str, Tensor] = {}
        if adversary:
            self._seat(adversary)

    def _seat(self, adversary: Adversary) -> None:
        """Assign the adversary to a party. Raises `SpecError` if the party does not exist."""
        # A malicious server changes broadcasts and aggregation, so the exchange calls its hooks.
        if adversary.party == SERVER:
            self.exchange.tamper_with(adversary)
            return
        if adversary.party not in self.task.names:
            raise SpecError(
                f"adversary: {adversary.party!r} is no party; allowed: {SERVER}, {', '.join(self.task.names)}"
            )
        # A malicious client may train on other data, and upload other rows.
        self._corrupt = list(self.task.names).index(adversary.party)
        if not adversary.guarded:
            self.exchange.unguarded.add(self.parties[self._corrupt])
        subset = adversary.training_subset(self.task.data(self._corrupt))
        if subset is not None:
            self.task.train_on(self._corrupt, subset)

    @property
    def transcript(self) -> Transcript:
        return self.channel.transcript

    @property
    def judged_before_broadcast(self) -> bool:
        return self.task.judged_before_broadcast

    def align(self) -> None:
        """Run round 0: agree on the rows of every shared table, and broadcast the initial rows."""
        # FedE and FedR (fedr.txt Algorithm 1, lines 1-2): collect the names of rows, then initialize the shared table.
        for table, shared in self.exchange.server.items():
            self.exchange.align(table, self.holdings(table))
            self.exchange.initialise(table, self.task.first_rows(table, shared.names))
        self.broadcast(0)

    def holdings(self, table: Table) -> dict[str, Holding]:
        """Return the rows of a shared table that each client holds."""
        if table not in self._holdings:  # lists of all names, which no round changes
            self._holdings[table] = dict(zip(self.parties, self.task.holdings(table), strict=True))
        return self._holdings[table]

    def broadcast(self, round: int) -> None:
        # If the global model is evaluated, every client receives it, otherwise those that train next.
        # fedr.txt Algorithm 1, line 4: the server sends the table to the clients.
        receivers = range(len(self.parties))
        if self.recipe.evaluated == "local" and round > 0:
            receivers = self.participants(round + 1)
        parties = [self.parties[client] for client in receivers]
        for table in self.exchange.server:
            self.orders.broadcast(round, table)
            for party, received in self.exchange.broadcast(round, table, parties).items():
                self.task.receive(round, table, self.parties.index(party), received)

    def num_steps(self, places: Sequence[int]) -> int:
        return self.task.num_steps(places)

    def train(self, round: int, places: Sequence[int], on_step: Callable[[], None]) -> Callable[[], float | None]:
        # All clients' shared rows from before and after are stored.
        # A malicious server may ask only some participants to train.
        if (server := self.exchange.malicious_server) is not None:
            places = [client for client in places if server.asks_to_train(round, self.parties[client])]
        # Optimizer state of shared rows is reset here unless the recipe keeps it.
        self.task.begin_round()
        self._started = self.shared_rows()
        # fedr.txt Algorithm 1, lines 9-11: local epochs on the shared and private rows.
        losses = self.task.train(round, places, on_step)
        self.orders.train(round, self.changed_since(self._started, places))
        self._trained = self.task.snapshot(shared_only=True)
        return lambda: mean_loss(losses, self.task.sizes)

    def validate(self, round: int) -> Callable[[], float | None]:
        valid = self.task.validate()
        # In one process the figure is known at once; deployments return a function that waits.
        return lambda: valid

    def upload(self, round: int, places: Sequence[int]) -> list[Uploaded]:
        outcomes = []
        for table in self.exchange.server:
            holdings = self.holdings(table)
            rows = {}
            for client in places:
                party = self.parties[client]
                # Only the rows of training items are uploaded; the first rows of a client.
                own_rows = self.task.rows(table, client)[: holdings[party].num_uploaded].cpu()
                if self.adversary and client == self._corrupt and self._started:
                    own_rows = self.adversary.upload(
                        round, table, self._started[table][party][: len(own_rows)], own_rows.clone()
                    )
                rows[party] = own_rows
            # Clients refuse an upload that would expose a summand, unless the run measures a design without that check.
            checked = self.adversary is None or self.adversary.checks_order
            refusals = self.orders.refusals(round, table, list(rows)) if checked else {}
            # fedr.txt Algorithm 1, line 8: the server aggregates rows by their holders.
            outcomes.append(self.exchange.upload(round, table, rows, refusals=refusals))
        return outcomes

    def keep(self, round: int) -> None:
        self.best = Best.of(self, self._trained, self._started)

    def participants(self, round: int) -> list[int]:
        return self.options.participants(len(self.parties), round)

    def shared_rows(self) -> packing.ByParty:
        """Copy each client's shared rows."""
        return {
            table: {party: self.task.rows(table, client).cpu().clone() for client, party in enumerate(self.parties)}
            for table in self.recipe.shared
        }

    def changed_since(self, before: packing.ByParty, places: Sequence[int]) -> dict[str, bool]:
        """Map each party to whether training changed any of its shared rows.

        Args:
            before: rows from `shared_rows`.
            places: client indices.
        """
        return {
            self.parties[client]: any(
                not torch.equal(rows[self.parties[client]], self.task.rows(table, client).cpu())
                for table, rows in before.items()
            )
            for client in places
        }

    def retain(self, *rounds: int) -> None:
        """Discard messages that no attack needs.

        Retained are the messages of round 0, of `rounds`, of the rounds that an attack or the adversary needs, and each
        client's last upload up to these. So are the broadcasts before the last of these uploads, and notes of the rounds
        that need them.

        Args:
            rounds: round numbers.
        """
        transcript = self.channel.transcript
        # Round 0 has the alignment, which every attack needs.
        whole = {0, *rounds, *self.needed}.union(*(transcript.latest_uploads(number) for number in rounds))
        # Notes with an opened sum are needed to reconstruct updates between two sums.
        opened = [number for number in transcript.notes if any(note.total for note in transcript.opened(number))]
        latest = {max((earlier for earlier in opened if earlier <= number), default=number) for number in rounds}
        before = {transcript.last_broadcast(number) for number in (*rounds, *self.needed)}
        noted = {*rounds, *self.needed, *latest, *self.exchange.rounds_worth_noting()}
        transcript.retain(whole, noted, broadcasts=before)

    def save(self, path: Path, progress: Progress) -> None:
        """Write a checkpoint.

        Args:
            path: of the file.
            progress: of the run; its `entries` are set.
        """
        transcript = self.channel.transcript
        progress.entries = transcript.entries
        tree: dict[str, packing.Tree] = {
            # Prefixes name the owner of each tensor; `restore` reads them back by prefix.
            "now": self.task.snapshot(),
            "best": self.best.tree(self.parties) if self.best else {},
            "exchange": self.exchange.tensors(),
            "trainer": self.task.trainer_state(),
            "adversary": self.adversary.tensors() if self.adversary else {},
        }
        checkpoint.save(path, packing.leaves(tree), progress, {"frame": transcript.frames, "note": transcript.notes})

    def restore(self, path: Path, *, honest: bool = False, check: CheckLoaded | None = None) -> Progress:
        """Load a checkpoint's state and return the progress.

        Args:
            path: of the file.
            honest: whether it is of the run without the adversary, which has not begun.
            check: called with the tensors and the progress before they are used; raises `RunError` to refuse them.

        Raises:
            RunError: the checkpoint is damaged or of another run.
        """
        adversary = None if honest else self.adversary
        tensors, progress = checkpoint.load(path, run_identity(self.graph, self.options, adversary))
        if check:
            check(tensors, progress)
        # The digest of a checkpoint has no key, so its content may be anything.
        try:
            checkpoint.check_rounds(progress, self.options.rounds, self.task.metric)
            self._put_back(tensors, progress, adversary)
        except (RunError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise RunError(f"{path}: damaged: {error}; delete it to start over") from error
        return progress

    def _put_back(self, tensors: Mapping[str, Tensor], progress: Progress, adversary: Adversary | None) -> None:
        """Set the state of all parties. Raises `RunError`, `ValueError` or an error of torch if the tensors do not fit."""
        whole, shared_only = self.task.snapshot(), self.task.snapshot(shared_only=True)
        now = packing.below("now.", tensors)
        packing.check_like(now, whole, "now")
        self.task.restore(now)
        transcript = self.channel.transcript
        transcript.entries = list(progress.entries)
        transcript.frames = packing.frames_of(packing.view_below("frame.", tensors))
        transcript.notes = packing.frames_of(packing.below("note.", tensors))
        shared = self.recipe.shared
        self.exchange.restore({table: self.holdings(table) for table in shared}, packing.below("exchange.", tensors))
        # The order checks must know that round 0 was broadcast.
        for table in shared:
            self.orders.broadcast(0, table)
        self.task.load_trainer_state(packing.below("trainer.", tensors))
        if adversary:
            adversary.load(packing.below("adversary.", tensors))
        best_tensors = packing.view_below("best.", tensors)
        self.best = Best.from_tensors(best_tensors, shared, self.parties) if best_tensors else None
        if self.best is None:
            if progress.finished:
                raise RunError("the run is finished, and its best round is missing")
            return
        packing.check_like(self.best.final, whole, "best.final")
        if self.best.trained:  # empty before the first round
            packing.check_like(self.best.trained, shared_only, "best.trained")
        for table, rows in self.best.started.items():
            like = {party: self.task.rows(table, client).cpu() for client, party in enumerate(self.parties)}
            packing.check_like(rows, like, f"best.started.{table}")


def run_federation(
    graph: Any,
    options: RunOptions[Result_co],
    folder: Path | str | None = None,
    observer: Observer | None = None,
    checkpoint_every_s: float = CHECKPOINT_EVERY_S,
    make_transport: MakeTransport = Transport,
    released: Protection = NOTHING,
    adversary: Adversary | None = None,
    rounds_needed: Collection[int] = (),
    make_task: MakeTask | None = None,
    start: Path | None = None,
) -> Result_co:
    """Train a federation to its last round or until validation stops improving.

    Args:
        graph: the clients' data, for knowledge graphs a `FederatedGraph`.
        options: options of the algorithm's task.
        folder: folder of checkpoints, created if missing; a killed run resumes from the last checkpoint in it.
        observer: progress callbacks for every round and step.
        checkpoint_every_s: minimum time between two checkpoints, in seconds; 0 writes one after every round.
        make_transport: `fkgsec.defenses.make_transport` for defenses; the default transmits in plaintext.
        released: protection of a run on the same data that this run replaces; guarantees compose.
        adversary: a malicious party, or None.
        rounds_needed: rounds whose messages the transcript must retain for attacks, besides those it retains anyway.
        make_task: maps graph and options to the task; None: the task of the options, in this process.
        start: `BEFORE_END` of the same run without an adversary. Rounds are replayed from it if the adversary begins
            (`Adversary.begins`) and messages are needed later. Otherwise all rounds are trained, on the CPU to the same bits.

    Returns:
        The result of the best round. On the CPU it depends only on graph, options, seed and adversary, also across a kill and a
        resume.

    Raises:
        DataError: a federated algorithm has one client, or the graph has no clients.
        SpecError: the options name a defense but the transport has none, or belong to another task; or the adversary is no
            party.
        TrainingError: a loss is not finite; the last checkpoint stays.
        RunError: a checkpoint is damaged or of another run, or the folder cannot be created.
    """
    observer = observer or Observer()
    federation = Federation(graph, options, make_transport, adversary, rounds_needed, make_task)
    path = _checkpoint_in(Path(folder)) if folder else None
    progress = Progress(run_identity(graph, options, adversary), metric=federation.task.metric)
    if path and path.exists():
        progress = federation.restore(path)
    else:
        # Rounds before the adversary begins, and before needed messages, equal those of the honest run.
        begins = adversary.begins if adversary else min(rounds_needed, default=0) + 1
        usable = start if start and _may_start(federation, start, begins) else None
        if adversary and begins > 1:
            honest = functools.partial(Federation, graph, options, make_transport, None, federation.needed, make_task)
            _as_it_begins(federation, adversary, usable, honest, progress)
        elif usable and not adversary:
            progress = federation.restore(usable)
        else:
            _align(federation, progress)
        if path:  # before anything is released, so that a repetition after a kill uses the same entropy
            federation.save(path, progress)
    # Replay finished rounds, so that a progress display of a resumed run is complete.
    for entry in progress.rounds:
        observer.round_done(entry)
    saved_at = time.perf_counter()
    # The list includes round 0, so its length is the number of the next round.
    while not progress.finished and len(progress.rounds) <= options.rounds:
        _round(federation, progress, observer)
        observer.round_done(progress.rounds[-1])
        # A later attack can resume just before the end instead of training the run again.
        if path and not adversary and _may_end(options, progress, KEPT_BEFORE_END):
            federation.save(path.with_name(BEFORE_END), progress)
        if path and (progress.finished or time.perf_counter() - saved_at >= checkpoint_every_s):
            federation.save(path, progress)
            saved_at = time.perf_counter()
    return _result(federation, progress, released)


def _align(federation: Federation, progress: Progress) -> None:
    began = time.perf_counter()
    federation.align()
    progress.rounds.append(round_entry(federation.transcript, 0, None, None, [], began))


def _round(federation: Federation, progress: Progress, observer: Observer) -> None:
    passed = train_and_upload(federation, len(progress.rounds), observer)
    broadcast_and_check(federation, passed)
    judge(federation, progress, passed, federation.adversary.acts if federation.adversary else 0)


def _may_end(options: RunOptions, progress: Progress, after: int) -> bool:
    """Return whether the run may end `after` rounds from now."""
    done = len(progress.rounds) - 1
    end = done + after
    # The last round by number.
    if end >= options.rounds:
        return end == options.rounds
    # The earliest end by patience: if every remaining validation is worse.
    checks = sum(options.is_checked(number) for number in range(done + 1, end + 1))
    return options.is_checked(end) and 0 < options.patience <= progress.bad_checks + checks


def _may_start(federation: Federation, start: Path, begins: int) -> bool:
    """Return whether a file has a usable state of the run without the adversary.

    The state must be of a round before it `begins`, and not after a round whose messages are needed.
    """
    if not start.exists():
        return False
    identity, done = stands_at(start)
    # The honest run has another identity than the run with the adversary.
    same = identity == run_identity(federation.graph, federation.options)
    return same and done < max(begins, 1) and done <= min(federation.needed, default=done)


def _as_it_begins(
    federation: Federation, adversary: Adversary, start: Path | None, make: Callable[[], Federation], progress: Progress
) -> None:
    """Put a federation into the state of the run without its adversary, before the round in which the adversary begins.

    Args:
        federation: changed in place.
        adversary: of the federation.
        start: an earlier state of the honest run, or None.
        make: creates the honest run's federation.
        progress: of the run with the adversary; receives the rounds.
    """
    if start and stands_at(start)[1] == adversary.begins - 1:
        passed = federation.restore(start, honest=True)
    else:
        honest = make()
        passed = Progress(run_identity(federation.graph, federation.options), metric=progress.metric)
        if start:
            passed = honest.restore(start)
        else:
            _align(honest, passed)
        while not passed.finished and len(passed.rounds) < adversary.begins:
            _round(honest, passed, Observer())
        # Through a checkpoint, so that the copy has exactly the state of a resumed run.
        with tempfile.TemporaryDirectory() as folder:
            honest.save(Path(folder) / CHECKPOINT, passed)
            passed = federation.restore(Path(folder) / CHECKPOINT, honest=True)
    for name in ("rounds", "best_round", "best_valid", "bad_checks", "finished"):
        setattr(progress, name, getattr(passed, name))


def load_result(
    path: Path,
    graph: Any,
    options: RunOptions[Result_co],
    make_transport: MakeTransport = Transport,
    released: Protection = NOTHING,
    adversary: Adversary | None = None,
    check: CheckLoaded | None = None,
) -> Result_co:
    """Load the result of a finished run from its checkpoint, without training.

    Args:
        path: of the checkpoint.
        graph, options, make_transport, released, adversary: as in `run_federation`.
        check: as in `Federation.restore`.

    Raises:
        RunError: the checkpoint is missing, damaged, of another run, or of an unfinished run.
    """
    federation = Federation(graph, options, make_transport, adversary)
    progress = federation.restore(path, check=check)
    if not progress.finished:
        raise checkpoint.unfinished(path, progress)
    return _result(federation, progress, released)


def _checkpoint_in(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
    return folder / CHECKPOINT


def _result(federation: Federation, progress: Progress, released: Protection) -> Any:
    best = federation.best
    assert best is not None  # a run ends with a round that was validated
    # A resumed run may have retained more.
    federation.retain(progress.best_round, progress.rounds[-1].round)
    return result_of(
        federation,
        best,
        rounds=progress.rounds,
        best_round=progress.best_round,
        protection=federation.exchange.protection(released),
    )


def result_of(
    federation: Federation,
    best: Best,
    *,
    rounds: list[RoundEntry],
    best_round: int,
    protection: Protection,
    graph: Any = None,
    row_names: Mapping[Table, list[str]] | None = None,
) -> Any:
    """Build the task's result from a round.

    Args:
        federation: with the transcript of the run.
        best: state of round `best_round`.
        protection: of the exchange.
        graph, row_names: None: those of the federation.
    """
    task, names = federation.task, {table: list(part.names) for table, part in federation.exchange.server.items()}
    return task.result_type(
        graph=federation.graph if graph is None else graph,
        options=federation.options,
        rounds=rounds,
        best_round=best_round,
        metric=task.metric,
        transcript=federation.channel.transcript,
        protection=protection,
        row_names=names if row_names is None else dict(row_names),
        **{part.name: getattr(best, part.name) for part in dataclasses.fields(Kept)},
        **task.outcome(best.trained, best.final),
    )
