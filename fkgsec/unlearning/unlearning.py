"""Unlearning: clients name triples, and a finished run becomes one in which they are forgotten, by one of several methods.

Two words: a client *asks* when the forget sets name triples of it; what it *retains* is the rest of its training triples.

Every method but re-training is one more round after the finished run: the clients that asked train, upload, and every client
receives the outcome (`fkgsec.unlearning.unlearning_round`). Whether anything was forgotten is for attacks to say.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.algorithms.fedlu import Variant, fedlu_temperature
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import DataError, SpecError, TrainingError
from fkgsec.exchange import MakeTransport, Transport, Uploaded, all_excluded
from fkgsec.federation.checkpoint import RoundEntry
from fkgsec.federation.loop import Federation, FederationResult, Observer, run_federation, run_identity
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.kge.local.evaluation import ClientTables, Evaluator
from fkgsec.kge.local.training import Learner, LocalTrainer, TrainingSubset, corrupting_entities
from fkgsec.kge.models import Side
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, forgotten_rows, retaining
from fkgsec.unlearning.interference import DECAY, INTERFERENCE, AlternatingTrainer, decay_loss, interference
from fkgsec.unlearning.unlearning_round import (
    ROUND,
    align_again,
    along_statement,
    exchange_rows,
    senders_of,
    shared_rows,
    train_along,
)
from fkgsec.kge.kernels import Segments

Method = Literal["fedlu", "retrain", "finetune", "ascent", "relabel", "delete"]


class UnlearnOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"variant": "form"}):
    """How a run forgets.

    Attributes:
        method: "fedlu", retroactive interference and passive decay (fedlu.txt 4.2); "retrain", from scratch on what is retained;
            "finetune", further training on it; "ascent", up the training loss on the forget set; "relabel", further training on
            what is retained and on the forget set with random tails; "delete", nothing but taking the triples from the file.
        variant: of "fedlu": "paper", or "published", as FedLU's code does.
        hard, soft: whether interference has this part (fedlu.txt Table 3).
        mu_soft: weight of soft confusion.
        epochs: over the forget set, of "fedlu" and "ascent". An epoch in variant "published" goes over it three times (global,
            local, both), so each model takes twice the steps; FedLU's code also corrupts heads and tails of each batch in turn.
        decay_epochs: over what is retained: passive decay of "fedlu", training of "finetune" and "relabel". The paper's 10 take
            the time of about four rounds of three epochs; more of them bring back more of what was forgotten.
        learning_rate, batch_size: None: the run's. A forget set that fits in one batch is one step an epoch; FedLU's code has
            batches of 256 here.
        seed: of the order and the negatives of unlearning.
        colluders: of the clients in a secure sum, how many may tell the server their part; None: 1. The sum needs two more. Only
            for runs that were defended.
    """

    method: Method = "fedlu"
    variant: Variant = "paper"
    hard: bool = True
    soft: bool = True
    mu_soft: float = 0.1
    epochs: int = 10
    decay_epochs: int = 10
    learning_rate: float | None = None
    batch_size: int | None = None
    seed: int = 0
    colluders: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("method", Method), ("variant", Variant)):
            if getattr(self, name) not in get_args(allowed):
                raise SpecError(f"{name} must be one of {', '.join(get_args(allowed))}; got {getattr(self, name)!r}")
        if not (self.hard or self.soft):
            raise SpecError("hard, soft: at least one must be true; interference without either forgets nothing")
        if not (math.isfinite(self.mu_soft) and self.mu_soft >= 0):
            raise SpecError(f"mu_soft must be at least 0; got {self.mu_soft}")
        for name, least in (("epochs", 1), ("decay_epochs", 0), ("batch_size", 1), ("seed", 0), ("colluders", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise SpecError(f"{name} must be at least {least}; got {value}")
        if self.method in ("finetune", "relabel") and self.decay_epochs < 1:
            raise SpecError(f"decay_epochs must be at least 1 for {self.method}; got {self.decay_epochs}")
        rate = self.learning_rate
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise SpecError(f"learning_rate must be a positive number; got {rate}")


# Unlearning.


def unlearn(
    result: FederationResult,
    forget: Forget,
    options: UnlearnOptions,
    *,
    observer: Observer | None = None,
    make_exchange: MakeTransport = Transport,
) -> FederationResult:
    """The run after forgetting. `result` stays as it is.

    Its graph is what is retained; its rounds are 0, in which clients and server align again and clients are sent what they
    have, and 1, in which the clients that asked train, upload, and all clients receive (methods that send nothing have both,
    empty). `trained` has the embeddings before that broadcast, `tables` those after it; ranks are filtered by what is retained.
    "retrain" gives the whole new run instead.

    The server takes the mean over the clients that asked and hold a row, so what they forgot is not averaged away. Two
    exceptions: under secure aggregation the others train one real round (the run's local epochs, on all their triples) and the
    mean is over them too; a server that keeps everybody's last upload (PFedEG) has those of the others as they were.

    Under secure aggregation the server must not know the sum but for one part: at least two clients beside the assumed colluders
    are in it, or the request is refused before anything is trained. Others that sent back what they have would add nothing that
    the server does not know. What the others draw depends on the request, so that two requests have no parts in common; for the
    same reason "retrain" draws afresh, where the run's own draws would make the others' first uploads those of the run.

    Args:
        result: a finished run.
        forget: what each client asks for.
        options: how.
        observer: told of rounds and steps.
        make_exchange: how tables cross, as the run had it.

    Not covered: the server has seen earlier uploads and names, and keeps what it kept. An entity that only forgotten triples
    name stays a row. Under differential privacy the round is one release more, and re-training as many as a run: the guarantee
    of the outcome counts them beside those of the run before, which crossed, too.

    Source: fedlu.txt 4.2; see `_fedlu`. Differs: the paper does not say how many rounds carry the outcome; one does.

    Raises:
        DataError: forget sets that do not fit the graph, see `retaining`.
        SpecError: "fedlu" for a recipe without private entities; a defense without its exchange; a sum that hides nothing.
        RunError: a defended run of an earlier version, which did not keep what its clients were sent.
        TrainingError: a loss is not finite.
    """
    recipe, run_options = RECIPES[result.options.algorithm], result.options
    if options.method == "fedlu" and recipe.private != "entities":
        fitting = ", ".join(name for name, one in RECIPES.items() if one.private == "entities")
        raise SpecError(f"method fedlu needs a run of {fitting}; got one of {recipe.name}")
    if not forget:
        raise DataError(f"{result.graph.name}: no client asks for anything to be forgotten")
    retained = retaining(result.graph, forget)
    colluders = 1 if options.colluders is None else options.colluders
    if options.colluders is not None and not run_options.defense:
        raise SpecError(f"colluders={options.colluders} does not apply to a run without a defense; leave it out")
    identity = _identity(result, retained, options)
    if options.method == "retrain":
        if recipe.pooled:
            _check_pooled(retained)
        if run_options.defense:
            Federation(result.graph, run_options, make_exchange).exchange.senders([], colluders)
            seed = int(generator(options.seed, "retraining", identity).integers(2**31))
            run_options = msgspec.structs.replace(run_options, seed=seed)
        return run_federation(
            retained, run_options, observer=observer, make_exchange=make_exchange, released=result.protection
        )
    observer, started = observer or Observer(), time.perf_counter()
    federation = Federation(result.graph, run_options, make_exchange)
    _load(federation, result)
    sends = options.method != "delete" and not (options.method == "fedlu" and options.variant == "published")
    senders = senders_of(federation, list(forget), colluders) if sends else []
    if sends:
        align_again(federation, make_exchange, identity, result)
    rounds = [_entry(federation, 0, None, None, [], started)]
    observer.round_done(rounds[0])

    started = time.perf_counter()
    shared_evaluator = Evaluator(retained, federation.stack, run_options, recipe.pooled)
    evaluator = shared_evaluator
    if federation.private:
        evaluator = Evaluator(retained, federation.private, run_options, recipe.pooled)
    work = _Work(federation, options, _forgotten_rows(federation, forget), evaluator, observer)
    rows_before = shared_rows(federation)
    loss = _METHODS[options.method](work)
    along = [place for place in senders if place not in work.asking] if federation.exchange.sums else []
    train_along(federation, along, _seed_along(options, identity), observer)
    trained = _tables(federation, shared_evaluator)
    before = run_options.evaluates_before_broadcast
    mrr, test_ranks = (evaluator.mrr("valid"), evaluator.ranks("test")) if before else (None, [])
    shared_test_ranks = shared_evaluator.ranks("test") if before and federation.private else []
    outcomes = exchange_rows(federation, result, work.asking, senders) if sends else []
    if not before:
        mrr, test_ranks = evaluator.mrr("valid"), evaluator.ranks("test")
        shared_test_ranks = shared_evaluator.ranks("test") if federation.private else []
    rounds.append(_entry(federation, ROUND, loss, mrr, outcomes, started))
    observer.round_done(rounds[-1])
    exchange = federation.exchange
    protection = exchange.protection(result.protection, rounds=ROUND)
    return FederationResult(
        retained,
        run_options,
        rounds,
        ROUND,
        _tables(federation, shared_evaluator),
        trained,
        test_ranks,
        federation.channel.transcript,
        inputs=dict(exchange.inputs),
        protection=replace(
            protection, remarks=(*protection.remarks, *along_statement(federation, work.asking, along, colluders))
        )
        if sends
        else result.protection,
        row_names={table: list(shared.names) for table, shared in exchange.server.items()}
        if sends
        else result.row_names,
        observed={table: exchange.observed(table) for table in exchange.server},
        private=_tables(federation, evaluator) if federation.private else [],
        shared_test_ranks=shared_test_ranks,
        started=rows_before if sends else {},
        known=dict(exchange.known),
        carried=exchange.carried(),
    )


@dataclass(frozen=True)
class _Work:
    """What a method has to work with: the parties at the end of the run, and what each of them is to forget.

    `forgotten` says it of each party's training triples, bool `[n]`, in the order of the stack's graphs; `evaluator` ranks with
    the models that the recipe evaluates.
    """

    federation: Federation
    options: UnlearnOptions
    forgotten: list[np.ndarray]
    evaluator: Evaluator
    observer: Observer

    @property
    def asking(self) -> list[int]:
        """The places of the parties that asked."""
        return [place for place, rows in enumerate(self.forgotten) if rows.any()]

    def forgetting(self) -> dict[int, TrainingSubset]:
        """The triples to forget of each party that asked; negatives avoid all that it holds."""
        return {
            place: TrainingSubset(self.federation.stack.graphs[place].train, np.flatnonzero(self.forgotten[place]))
            for place in self.asking
        }

    def forgetting_alone(self) -> dict[int, TrainingSubset]:
        """The same, with negatives that avoid no others. Source: FedLU's code."""
        return {place: TrainingSubset.all(one.triples[one.rows]) for place, one in self.forgetting().items()}

    def retained(self) -> dict[int, TrainingSubset]:
        """The other triples; negatives avoid these, since the party has no others any more."""
        graphs = self.federation.stack.graphs
        return {place: TrainingSubset.all(graphs[place].train[~self.forgotten[place]]) for place in self.asking}

    def run_options(self, phase: str, *, epochs: int = 1) -> FederationOptions:
        """The run's, for training of `epochs` epochs under a name that its randomness derives from."""
        run = self.federation.options
        return msgspec.structs.replace(
            run,
            local_epochs=epochs,
            learning_rate=self.options.learning_rate or run.learning_rate,
            batch_size=self.options.batch_size or run.batch_size,
            seed=int(generator(self.options.seed, "unlearning", phase, run.seed).integers(2**31)),
        )

    def train(self, trainer: LocalTrainer, phase: str, clients: Sequence[int], round: int = 0) -> float:
        """What a call of `train_round` does; returns the mean loss, clients weighted by what they forget."""
        try:
            losses = trainer.train_round(round, clients, self.observer.step_done)
        except TrainingError as error:
            raise TrainingError(f"{phase}: {error}") from error
        sizes = [int(self.forgotten[client].sum()) for client in losses]
        return float(np.average(list(losses.values()), weights=sizes))


def _fedlu(work: _Work) -> float:
    """Retroactive interference over the forget set, then passive decay over what is retained. Returns the last loss.

    Interference: on each batch the local model goes down on Eq. 14, then the global one, each with the other as teacher. Decay:
    on each batch the local model learns from the global one, then the global one from the local, by the run's own loss.

    In variant "published" as FedLU's code has it: an epoch of interference goes over the forget set three times (global alone;
    local alone; both by turns), only the global model distils, and negatives avoid the forget set only; in decay each batch
    has five steps, and a client ends with the first epoch that does not raise its local validation MRR. Nothing is sent.

    Source: fedlu.txt 4.2, Eq. 12-14. Differs: relations stand still, see `AlternatingTrainer`; a batch corrupts heads or
    tails, as in all training here (the code: each batch of heads is followed by one of tails). As in the code, a client keeps
    the models of its last epoch, not of its best. What the code has and "published" does not: one Adam through interference and
    decay (here a new one at decay), batches and negatives that are drawn once, and triples weighed by 1 / sqrt of their
    frequency.
    """
    federation, options, variant = work.federation, work.options, work.options.variant
    assert federation.private is not None
    published = variant == "published"
    run = federation.options
    temperature = fedlu_temperature(variant, run.temperature, run.model)
    interfere = functools.partial(
        interference,
        hard=options.hard,
        soft=options.soft,
        mu_soft=options.mu_soft,
        variant=variant,
        temperature=temperature,
    )
    decay = functools.partial(decay_loss, variant=variant, temperature=temperature)
    subsets = work.forgetting_alone() if published else work.forgetting()
    first = AlternatingTrainer(
        federation.stack, work.run_options("interference"), federation.private, subsets, interfere
    )
    then = AlternatingTrainer(federation.stack, work.run_options("decay"), federation.private, work.retained(), decay)
    passes, then.moves = INTERFERENCE[variant], DECAY[variant]
    num_passes = options.epochs * len(passes)
    steps = num_passes * first.num_steps(work.asking) + options.decay_epochs * then.num_steps(work.asking)
    work.observer.round_started(ROUND, steps)
    loss = 0.0
    for number in range(num_passes):
        first.moves = passes[number % len(passes)]
        loss = work.train(first, "retroactive interference", work.asking, number)
    clients, best = work.asking, np.zeros(len(federation.graph.clients))
    for epoch in range(options.decay_epochs):
        loss = work.train(then, "passive decay", clients, epoch)
        if published:
            ranks = work.evaluator.ranks("valid")
            mrr = np.array([(1 / one).mean() if len(one) else math.inf for one in ranks])
            clients = [client for client in clients if mrr[client] > best[client] or not len(ranks[client])]
            best = np.maximum(best, mrr)
        if not clients:
            break
    return loss


def _finetune(work: _Work) -> float:
    """Further training on what is retained."""
    return _retrain_on(work, work.retained(), "finetune")


def _relabel(work: _Work) -> float:
    """Further training on what is retained and on the forget set with random tails."""
    subsets = work.retained()
    for place, forgetting in work.forgetting().items():
        stack = work.federation.stack
        tails = corrupting_entities(stack.graphs[place], work.federation.options)
        rng = generator(work.options.seed, "relabel", stack.keys[place])
        try:
            wrong = with_random_tails(forgetting.triples, forgetting.rows, tails, rng)
        except DataError as error:
            raise DataError(f"client {stack.graphs[place].name}: {error}") from error
        subsets[place] = TrainingSubset.all(np.concatenate([subsets[place].triples, wrong]))
    return _retrain_on(work, subsets, "relabel")


def with_random_tails(triples: np.ndarray, rows: np.ndarray, tails: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """`rows` int64 `[k]` of `triples` `[n, 3]` with tails drawn from `tails` that make none of `triples`: int64 `[k, 3]`.

    Raises:
        DataError: every tail makes one of them.
    """
    known, wrong = set(map(tuple, triples.tolist())), triples[rows]
    for row, (head, relation, _) in enumerate(wrong.tolist()):
        free = [tail for tail in tails.tolist() if (head, relation, tail) not in known]
        if not free:
            raise DataError(f"relabel: every entity is a tail of ({head}, {relation}, ?) in its local ids")
        wrong[row, 2] = rng.choice(free)
    return wrong


def _retrain_on(work: _Work, subsets: Mapping[int, TrainingSubset], phase: str) -> float:
    federation = work.federation
    run_options = work.run_options(phase, epochs=work.options.decay_epochs)
    trainer = LocalTrainer(federation.stack, run_options, federation.private, subsets)
    work.observer.round_started(ROUND, trainer.num_steps(work.asking))
    return work.train(trainer, phase, work.asking)


class _Ascent(LocalTrainer):
    """Goes up the loss of scores; further objectives on rows still pull down."""

    def _alone(
        self, triples: Tensor, candidates: Tensor, weights: Tensor, side: Side, segments: Segments
    ) -> tuple[Tensor, list[tuple[Learner, dict[Table, Tensor]]]]:
        return super()._alone(triples, candidates, -weights, side, segments)

    def _together(
        self,
        private: Learner,
        triples: Tensor,
        candidates: Tensor,
        weights: Tensor,
        side: Side,
        segments: Segments,
    ) -> tuple[Tensor, list[tuple[Learner, dict[Table, Tensor]]]]:
        return super()._together(private, triples, candidates, -weights, side, segments)


def _ascend(work: _Work) -> float:
    """Gradient ascent on the forget set."""
    federation = work.federation
    run_options = work.run_options("ascent", epochs=work.options.epochs)
    trainer = _Ascent(federation.stack, run_options, federation.private, work.forgetting())
    work.observer.round_started(ROUND, trainer.num_steps(work.asking))
    return work.train(trainer, "ascent", work.asking)


_METHODS: dict[str, Callable[[_Work], float | None]] = {
    "fedlu": _fedlu,
    "finetune": _finetune,
    "ascent": _ascend,
    "relabel": _relabel,
    "delete": lambda work: None,
}


# Before and after.


def _check_pooled(retained: FederatedGraph) -> None:
    """One party with all triples has no row for an entity that none of them names."""
    named = np.concatenate([client.to_global(client.triples) for client in retained.clients])
    for what, names, columns in (("entity", retained.entities, [0, 2]), ("relation", retained.relations, [1])):
        held = [client.entity_ids if what == "entity" else client.relation_ids for client in retained.clients]
        gone = np.setdiff1d(np.concatenate(held), named[:, columns])
        if len(gone):
            raise DataError(f"{retained.name}: without the forget set no triple names the {what} {names[gone[0]]}")


def _load(federation: Federation, result: FederationResult) -> None:
    """Put the finished run's embeddings into the models of its parties."""
    stacks = [(federation.private, result.private)] if federation.private else []
    for stack, given in (*stacks, (federation.stack, result.tables)):
        for place, tables in enumerate(given):
            if not federation.recipe.pooled:
                stack.rows("entities", place).detach().copy_(tables.entities)
                stack.rows("relations", place).detach().copy_(tables.relations)
                continue
            client, whole = result.graph.clients[place], stack.graphs[0]
            for table, rows, ids, held in (
                (stack.tables["entities"], tables.entities, whole.entity_ids, client.entity_ids),
                (stack.tables["relations"], tables.relations, whole.relation_ids, client.relation_ids),
            ):
                order = np.argsort(ids)
                places = torch.from_numpy(order[np.searchsorted(ids, held, sorter=order)]).to(stack.device)
                table.detach()[places] = rows[: len(held)].to(stack.device)


def _forgotten_rows(federation: Federation, forget: Forget) -> list[np.ndarray]:
    """What each party is to forget of its training triples; one that pools has those of all clients, one after the other."""
    graph = federation.graph
    rows = [
        forgotten_rows(graph, client, forget[client.name])
        if client.name in forget
        else np.zeros(len(client.train), bool)
        for client in graph.clients
    ]
    return [np.concatenate(rows)] if federation.recipe.pooled else rows


def _identity(result: FederationResult, retained: FederatedGraph, options: UnlearnOptions) -> str:
    """Names the unlearning, so that what a protocol draws in it is nothing that the run itself drew."""
    given = {name: value for name, value in msgspec.to_builtins(options).items() if value is not None}
    fields = [run_identity(result.graph, result.options), retained.hash, given]
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


def _seed_along(options: UnlearnOptions, identity: str) -> int:
    return int(generator(options.seed, "training along", identity).integers(2**31))


def _tables(federation: Federation, evaluator: Evaluator) -> list[ClientTables]:
    views = [evaluator.client_tables(client) for client in range(len(federation.graph.clients))]
    return [ClientTables(view.entities.cpu().clone(), view.relations.cpu().clone()) for view in views]


def _entry(
    federation: Federation,
    number: int,
    loss: float | None,
    mrr: float | None,
    outcomes: Sequence[Uploaded],
    started: float,
) -> RoundEntry:
    transcript = federation.channel.transcript
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
