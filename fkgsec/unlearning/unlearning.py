"""Unlearning: clients name triples, and a method changes a finished run so that it forgets them.

    forget = {"hospital-1": graph.clients[0].train[:20]}
    after = unlearn(result, forget, UnlearnOptions(method="finetune"))

The *requesting* clients are those with a forget set; they *retain* the rest of their training triples. Every method but
re-training adds one round to the finished run: the requesting clients train and upload, and every client receives the result.
Attacks measure whether anything was forgotten.

Without a defense, only the requesting clients upload. With secure sums, others train one real round on their own data and upload
too. If they sent back the server's rows instead, the sum would reveal the requesting client's upload.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import DataError, SpecError
from fkgsec.exchange import MakeTransport, Transport, Uploaded
from fkgsec.federation.loop import (
    Best,
    Federation,
    Observer,
    result_of,
    run_federation,
    run_identity,
)
from fkgsec.federation.order import ClientOrders
from fkgsec.federation.packing import ByParty
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.federation.steps import round_entry
from fkgsec.kge.local.evaluation import positions
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.local.training import LocalTrainer
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, forgotten_rows, retaining
from fkgsec.unlearning.methods import METHODS, ROUND, Work
from fkgsec.unlearning.options import Method, UnlearnOptions

__all__ = ["Method", "UnlearnOptions", "unlearn"]


def unlearn(
    result: KgeResult,
    forget: Forget,
    options: UnlearnOptions,
    *,
    observer: Observer | None = None,
    make_transport: MakeTransport = Transport,
) -> KgeResult:
    """Return the run after forgetting. `result` is not changed.

    The graph of the returned run has the retained triples. Its round 0 aligns clients and server again and sends clients the
    current rows. In round 1 the requesting clients train and upload, and all clients receive. Methods that send nothing have
    both rounds, empty. `trained` has the embeddings before that broadcast, `tables` those after it; ranks are filtered by the
    retained triples. "retrain" returns the whole new run instead.

    The server averages over the requesting clients that hold a row, so forgotten triples are not averaged back. Two exceptions:
    under secure aggregation the mean is over the other clients too, and a server that keeps every client's last upload (PFedEG)
    still uses those of the others.

    Not covered: the server has seen earlier uploads and names, and may keep them. An entity that only forgotten triples name
    stays a row. Under differential privacy the round is one more release, and re-training as many as a run. The guarantee of the
    result counts them together with those of the earlier run.

    Args:
        result: a finished run.
        forget: triples to forget by client.
        options: method and settings.
        observer: progress callbacks.
        make_transport: creates the transport, as in the run.

    Source: fedlu.txt 4.2; see `fkgsec.unlearning.methods`.
    Differs: the paper does not say how many rounds carry the result; one does.

    Raises:
        DataError: forget sets that do not fit the graph, see `retaining`.
        SpecError: "fedlu" for a recipe without private entities; a model with an encoder, except for "retrain"; a defense without
            its exchange; a sum that hides nothing.
        TrainingError: a loss is not finite.
    """
    recipe = RECIPES[result.options.algorithm]
    if options.method == "fedlu" and recipe.private != "entities":
        fitting = ", ".join(name for name, fit in RECIPES.items() if fit.private == "entities")
        raise SpecError(f"method fedlu needs a run of {fitting}; got one of {recipe.name}")
    if options.method != "retrain" and result.options.has_encoder:
        raise SpecError(f"method {options.method} does not know the network of {result.options.model}; take retrain")
    if not forget:
        raise DataError(f"{result.graph.name}: no client asks for anything to be forgotten")
    retained = retaining(result.graph, forget)
    if options.colluders is not None and not result.options.defense:
        raise SpecError(f"colluders={options.colluders} does not apply to a run without a defense; leave it out")
    if options.method == "retrain":
        return _retrain(result, retained, options, observer, make_transport)
    return _forget(result, retained, forget, options, observer or Observer(), make_transport)


def _retrain(
    result: KgeResult,
    retained: FederatedGraph,
    options: UnlearnOptions,
    observer: Observer | None,
    make_transport: MakeTransport,
) -> KgeResult:
    """Train the whole run again on the retained triples."""
    run_options = result.options
    if RECIPES[run_options.algorithm].pooled:  # one party with all triples has no row for what none of them names
        named = np.concatenate([client.to_global(client.triples) for client in retained.clients])
        for what, names, columns in (("entity", retained.entities, [0, 2]), ("relation", retained.relations, [1])):
            of_clients = [getattr(client, f"{what}_ids") for client in retained.clients]
            gone = np.setdiff1d(np.concatenate(of_clients), named[:, columns])
            if len(gone):
                raise DataError(f"{retained.name}: without the forget set no triple names the {what} {names[gone[0]]}")
    # The seed must differ from the run's. Otherwise the other clients upload the same again, and the difference of the two
    # first sums is the requesting client's change.
    if run_options.defense:
        Federation(result.graph, run_options, make_transport).exchange.senders([], _colluders(options))
        seed = int(generator(options.seed, "retraining", _identity(result, retained, options)).integers(2**31))
        run_options = msgspec.structs.replace(run_options, seed=seed)
    return run_federation(
        retained, run_options, observer=observer, make_transport=make_transport, released=result.protection
    )


def _forget(
    result: KgeResult,
    retained: FederatedGraph,
    forget: Forget,
    options: UnlearnOptions,
    observer: Observer,
    make_transport: MakeTransport,
) -> KgeResult:
    """Run rounds 0 and 1 after the run."""
    started, run_options, identity = time.perf_counter(), result.options, _identity(result, retained, options)
    federation = Federation(result.graph, run_options, make_transport)
    task, transcript = federation.task, federation.channel.transcript
    assert isinstance(task, KgeTask)
    _load(task, result)
    sends = options.method != "delete" and not (options.method == "fedlu" and options.variant == "published")
    colluders = _colluders(options)
    senders = []
    if sends:
        asking = [place for place, name in enumerate(task.names) if name in forget or federation.recipe.pooled]
        senders = federation.exchange.senders(asking, colluders)
        _align_again(federation, make_transport, identity, result)
    rounds = [round_entry(transcript, 0, None, None, [], started)]
    observer.round_done(rounds[0])

    started = time.perf_counter()
    task.shared_evaluator, task.evaluator = task.evaluators(retained)
    work = Work(task, options, _forgotten_rows(task, forget), observer)
    rows_before = federation.shared_rows()
    loss = METHODS[options.method](work)
    # Under secure aggregation, at least two clients beside the assumed colluders are in the sum (`senders` checks it). What
    # the others draw depends on the request, so two requests have no parts in common.
    along = [place for place in senders if place not in work.asking] if federation.exchange.sums else []
    if along:  # they train one round of the run on all their triples
        seed = int(generator(options.seed, "training along", identity).integers(2**31))
        trainer = LocalTrainer(task.stack, msgspec.structs.replace(task.options, seed=seed), task.private)
        observer.round_started(ROUND, trainer.num_steps(along))
        trainer.train_round(ROUND, along, observer.step_done)
    if sends:
        federation.orders.train(ROUND, federation.changed_since(rows_before, [*work.asking, *along]))
    # `trained` is the state before the broadcast, which attacks compare with the state after it.
    trained, before = task.snapshot(), run_options.evaluates_before_broadcast
    # Validate before or after the broadcast, as in the run.
    valid = task.validate() if before else None
    statement = _along_statement(federation, rows_before, work.asking, along, colluders) if sends else []
    outcomes = _exchange_rows(federation, senders) if sends else []
    valid = valid if before else task.validate()
    rounds.append(round_entry(transcript, ROUND, loss, valid, outcomes, started))
    observer.round_done(rounds[-1])
    exchange = federation.exchange
    protection = exchange.protection(result.protection, rounds=ROUND)
    best = Best.of(federation, trained, rows_before if sends else {})
    return result_of(
        federation,
        best if sends else replace(best, carried=result.carried),  # the exchange stands where the run left it
        rounds=rounds,
        best_round=ROUND,
        protection=replace(protection, remarks=(*protection.remarks, *statement)) if sends else result.protection,
        graph=retained,
        row_names=None if sends else result.row_names,
    )


def _colluders(options: UnlearnOptions) -> int:
    return 1 if options.colluders is None else options.colluders


def _load(task: KgeTask, result: KgeResult) -> None:
    """Load the finished run's embeddings into the models of its parties."""
    stacks = [(task.private, result.private)] if task.private else []
    # A pooled party has one table for all clients: find each client's rows by their global IDs.
    for stack, tables_of_parties in (*stacks, (task.stack, result.tables)):
        for place, tables in enumerate(tables_of_parties):
            if not task.recipe.pooled:
                stack.rows("entities", place).detach().copy_(tables.entities)
                stack.rows("relations", place).detach().copy_(tables.relations)
                continue
            client, whole = result.graph.clients[place], stack.graphs[0]
            for table, rows, ids, rows_of in (
                (stack.tables["entities"], tables.entities, whole.entity_ids, client.entity_ids),
                (stack.tables["relations"], tables.relations, whole.relation_ids, client.relation_ids),
            ):
                table.detach()[positions(ids, rows_of).to(stack.device)] = rows[: len(rows_of)].to(stack.device)


def _forgotten_rows(task: KgeTask, forget: Forget) -> list[np.ndarray]:
    """Mark the training triples that each party forgets. A pooled party has the triples of all clients in turn."""
    graph = task.graph
    rows = [
        forgotten_rows(graph, client, forget[client.name])
        if client.name in forget
        else np.zeros(len(client.train), bool)
        for client in graph.clients
    ]
    return [np.concatenate(rows)] if task.recipe.pooled else rows


def _identity(result: KgeResult, retained: FederatedGraph, options: UnlearnOptions) -> str:
    """Name the unlearning, so that the protocol's randomness differs from the run's."""
    values = {name: value for name, value in msgspec.to_builtins(options).items() if value is not None}
    values["form"] = values.pop("variant")  # the name that it had when the first of these identities were made
    fields = [run_identity(result.graph, result.options), retained.hash, values]
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()


def _align_again(federation: Federation, make_transport: MakeTransport, run: str, result: KgeResult) -> None:
    """Run round 0: align as in the run, and send the current rows.

    Clients that lacked the last table of a defended run take it over.

    Args:
        run: names the unlearning; the protocol's randomness derives from it.
    """
    # Without a defense, the server has the mean of the holders' rows, and the uploads of the run if it keeps any. With one, it
    # has its own table, and the sessions continue from everything that clients received in the run.
    carried = result.carried
    exchange = make_transport(federation.channel, federation.options, federation.parties, federation.recipe.shared, run)
    federation.exchange = exchange
    for table, shared in exchange.server.items():
        exchange.align(table, federation.holdings(table))
        if f"rows.{table}" in carried:
            place = {name: row for row, name in enumerate(result.row_names[table])}
            rows = carried[f"rows.{table}"][[place[name] for name in shared.names]]
        else:
            rows = _mean_of_holders(federation, table, shared.names)
        exchange.initialise(table, rows)
    federation.orders = ClientOrders(
        federation.parties, federation.options, federation.recipe.shared, sums=exchange.sums, after_run=True
    )
    if carried:
        exchange.carry_on(carried)
    for table in exchange.server:
        federation.orders.broadcast(0, table)
        for party, received in exchange.send_again(table).items():
            own_rows = federation.task.rows(table, federation.parties.index(party))
            own_rows.copy_(received.merged(own_rows))


def _mean_of_holders(federation: Federation, table: Table, names: Sequence[str]) -> Tensor:
    place = {name: number for number, name in enumerate(names)}
    total = torch.zeros(len(place), federation.task.rows(table, 0).shape[1], dtype=torch.float64)
    holders = torch.zeros(len(place), 1)
    for client, (_, holding) in enumerate(federation.holdings(table).items()):
        rows = torch.tensor([place[name] for name in holding.names])
        total.index_add_(0, rows, federation.task.rows(table, client).cpu().double())
        holders.index_add_(0, rows, torch.ones(len(rows), 1))
    # In float64 the mean of equal rows is the row itself.
    return (total / holders).float()


def _along_statement(
    federation: Federation, before: ByParty, asking: Sequence[int], along: Sequence[int], colluders: int
) -> list[str]:
    """State the assumptions of the round's sum; nothing without sums.

    Args:
        before: the rows that all clients began from.
    """
    if not federation.exchange.sums:
        return []
    lines = [
        f"unlearning: one sum of {len(asking)} clients that asked and {len(along)} that trained on their own data as ever; "
        f"it assumes that at most {colluders} of them collude with the server"
    ]
    if along:
        # A sum hides a part no better than the others' changes are large. With "ascent" over 50 epochs on UMLS and five
        # clients, the change of the sum had a cosine of 0.96 with the requesting client's, so state the ratio of the two.
        ratio = max(_ratio_of_changes(federation, table, before[table], asking, along) for table in before)
        lines.append(
            f"unlearning: the clients that asked changed the sum {ratio:.2g} times as much as the others did; the further above "
            "1, the better it shows their change, and which rows they moved"
        )
    return lines


def _ratio_of_changes(
    federation: Federation, table: Table, before: Mapping[str, Tensor], asking: Sequence[int], along: Sequence[int]
) -> float:
    """Return the norm of the requesting clients' summed change over that of the others'; inf if these changed nothing."""
    holdings, names = federation.holdings(table), federation.exchange.server[table].names
    place, norms = {name: number for number, name in enumerate(names)}, []
    for clients in (asking, along):
        total = torch.zeros(len(names), federation.task.rows(table, 0).shape[1], dtype=torch.float64)
        for client in clients:
            party = federation.parties[client]
            holding, count, weight, _ = holdings[party]
            rows = torch.tensor([place[name] for name in holding[:count]])
            change = federation.task.rows(table, client)[:count].cpu().double() - before[party][:count].cpu().double()
            total.index_add_(0, rows, change, alpha=weight)
        norms.append(float(total.norm()))
    return norms[0] / norms[1] if norms[1] else math.inf


def _exchange_rows(federation: Federation, senders: Sequence[int]) -> list[Uploaded]:
    """Run round 1, once the senders have trained: they upload, all clients receive."""
    exchange = federation.exchange
    outcomes = []
    for table in exchange.server:
        uploads, holdings = {}, federation.holdings(table)
        for client in senders:
            party = federation.parties[client]
            uploads[party] = federation.task.rows(table, client)[: holdings[party].num_uploaded].cpu()
        refusals = federation.orders.refusals(ROUND, table, list(uploads))
        outcomes.append(exchange.upload(ROUND, table, uploads, refusals=refusals))
    for table in exchange.server:
        federation.orders.broadcast(ROUND, table)
        for party, received in exchange.broadcast(ROUND, table, federation.parties).items():
            own_rows = federation.task.rows(table, federation.parties.index(party))
            own_rows.copy_(received.merged(own_rows))
    return outcomes
