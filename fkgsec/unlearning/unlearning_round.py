"""The round in which an unlearning crosses: who uploads, what the others train, and how tables go to and fro.

    senders = senders_of(federation, ["hospital-1"], colluders=1)      # refused where their sum would hide nothing
    align_again(federation, make_transport, identity, result)           # round 0
    train_along(task, [place for place in senders if place not in asking], seed, observer)
    outcomes = exchange_rows(federation, senders)                      # round 1

In clear only the clients that asked upload. Where uploads are summed securely the others train one real round on their own data
and upload with them: if they sent back what the server had sent them, the sum without these parts would be the upload of the
client that asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from fkgsec.errors import RunError
from fkgsec.exchange import MakeTransport, Uploaded
from fkgsec.federation.loop import Federation, Observer
from fkgsec.federation.order import ClientOrders
from fkgsec.federation.packing import ByParty
from fkgsec.federation.recipes import Table
from fkgsec.kge.local.task import KgeTask
from fkgsec.kge.local.training import LocalTrainer
from fkgsec.kge.result import KgeResult

ROUND = 1  # of the transcript: round 0 aligns and sends what clients have, this one unlearns


def senders_of(federation: Federation, forgetting: Sequence[str], colluders: int) -> list[int]:
    """The places of the clients that upload, where those of these names ask. Raises `SpecError` when their sum hides nothing."""
    asking = [
        place for place, name in enumerate(federation.task.names) if name in forgetting or federation.recipe.pooled
    ]
    return federation.exchange.senders(asking, colluders)


def align_again(federation: Federation, make_transport: MakeTransport, run: str, result: KgeResult) -> None:
    """Round 0: parties align as in the run, and the server sends what it has. Clients keep what they have, but for those that
    were not sent the last table of a defended run, which take it over: a sum is of clients that were sent the same.

    In clear the server has the mean of what holders received, and the uploads of the run where it keeps any. Under a defense,
    which may have kept rows from it, it has its own table, and the sessions go on from all that clients were sent in the run.

    Args:
        run: names the unlearning, so that what a protocol draws in it is nothing that the run itself drew.

    Raises:
        RunError: a run of an earlier version, defended or with an aggregation that keeps uploads.
    """
    carried = result.carried
    exchange = make_transport(federation.channel, federation.options, federation.parties, federation.recipe.shared, run)
    if (exchange.sums or exchange.aggregation.keeps_uploads) and not carried:
        raise RunError(
            "the run is of an earlier version, which did not keep what its exchange goes on from: train it again"
        )
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
            own = federation.task.rows(table, federation.parties.index(party))
            own.copy_(received.merged(own))


def _mean_of_holders(federation: Federation, table: Table, names: Sequence[str]) -> Tensor:
    place = {name: number for number, name in enumerate(names)}
    total = torch.zeros(len(place), federation.task.rows(table, 0).shape[1], dtype=torch.float64)
    holders = torch.zeros(len(place), 1)
    for client, (_, holding) in enumerate(federation.holdings(table).items()):
        rows = torch.tensor([place[name] for name in holding.names])
        total.index_add_(0, rows, federation.task.rows(table, client).cpu().double())
        holders.index_add_(0, rows, torch.ones(len(rows), 1))
    return (total / holders).float()  # in float64 the mean of equal rows is the row itself


def train_along(task: KgeTask, clients: Sequence[int], seed: int, observer: Observer) -> None:
    """These clients train one round of the run on all their triples. Raises `TrainingError` for a loss that is not finite."""
    if not clients:
        return
    options = msgspec.structs.replace(task.options, seed=seed)
    trainer = LocalTrainer(task.stack, options, task.private)
    observer.round_started(ROUND, trainer.num_steps(clients))
    trainer.train_round(ROUND, clients, observer.step_done)


def along_statement(
    federation: Federation, before: ByParty, asking: Sequence[int], along: Sequence[int], colluders: int
) -> list[str]:
    """What the sum of the round rests on, before it is made; nothing in clear.

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
        ratio = max(_ratio_of_changes(federation, table, before[table], asking, along) for table in before)
        lines.append(
            f"unlearning: the clients that asked changed the sum {ratio:.2g} times as much as the others did; the further above "
            "1, the better it shows their change, and which rows they moved"
        )
    return lines


def _ratio_of_changes(
    federation: Federation, table: Table, before: Mapping[str, Tensor], asking: Sequence[int], along: Sequence[int]
) -> float:
    """Norm of the summed change of some clients' uploaded rows over that of the others'; inf where these changed nothing."""
    holdings, names = federation.holdings(table), federation.exchange.server[table].names
    place, norms = {name: number for number, name in enumerate(names)}, []
    for clients in (asking, along):
        total = torch.zeros(len(names), federation.task.rows(table, 0).shape[1], dtype=torch.float64)
        for client in clients:
            party = federation.parties[client]
            held, count, weight, _ = holdings[party]
            rows = torch.tensor([place[name] for name in held[:count]])
            change = federation.task.rows(table, client)[:count].cpu().double() - before[party][:count].cpu().double()
            total.index_add_(0, rows, change, alpha=weight)
        norms.append(float(total.norm()))
    return norms[0] / norms[1] if norms[1] else math.inf


def exchange_rows(federation: Federation, senders: Sequence[int]) -> list[Uploaded]:
    """Round 1, once the senders have trained: they upload, everybody receives. See `unlearn` for who uploads."""
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
            own = federation.task.rows(table, federation.parties.index(party))
            own.copy_(received.merged(own))
    return outcomes
