"""What clients are sent, and remember: malformed broadcasts, lists of names, rows that were missed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.broadcasts import BroadcastError
from fkgsec.defenses.transport import DefendedTransport, make_transport
from fkgsec.errors import RunError
from fkgsec.federation.loop import run_federation
from fkgsec.federation.messages import AnyMessage, Channel, ProtocolMessage, Rows, SparseRows
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import Table
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.protocols import psu, secagg
from fkgsec.unlearning.unlearning import UnlearnOptions, unlearn


class Changing(Channel):
    """Messages arrive changed."""

    def __init__(self, transcript: Any, change: Callable[[Any], AnyMessage]) -> None:
        super().__init__(transcript)
        self.change = change

    def send(self, message: AnyMessage) -> AnyMessage:
        return self.change(super().send(message))


def federated(graph: FederatedGraph, options: KgeOptions, change: Callable[[Any], AnyMessage]) -> KgeResult:
    def make(channel: Channel, *others: Any) -> Any:
        return make_transport(Changing(channel.transcript, change), *others)

    return run_federation(graph, options, make_transport=make)


def to_second(kind: type, change: Callable[[Any], AnyMessage], at: int = 1) -> Callable[[Any], AnyMessage]:
    """What the second client is sent after round `at`, changed."""

    def changed(message: Any) -> AnyMessage:
        hit = isinstance(message, kind) and message.receiver == "client/hospital-2" and message.round == at
        return change(message) if hit else message

    return changed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: Rows.pack(1, "server", rows.receiver, rows.table, rows.unpack()[:5]), "5 x 8 values"),
        (lambda rows: replace(rows, num_rows=rows.num_rows * 2, width=4), "x 4 values, where its rows are"),
        (lambda rows: replace(rows, num_rows=-rows.num_rows, width=-8), "x -8 values"),
        (lambda rows: replace(rows, data=rows.data[:-4]), "bytes do not hold"),
        (lambda rows: replace(rows, table="relations"), "was to be sent"),
        (lambda rows: replace(rows, receiver="client/hospital-1"), "was to be sent"),
        (lambda rows: replace(rows, round=0), "was to be sent"),
        (lambda rows: replace(rows, sender="client/hospital-1"), "was to be sent"),
    ],
    ids=["fewer", "half as wide", "negative", "short", "other table", "other receiver", "other round", "other sender"],
)
def test_a_malformed_broadcast_is_refused(
    change: Callable[[Any], AnyMessage], says: str, graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    with pytest.raises(BroadcastError, match=f"client/hospital-2 .*{says}"):
        federated(graph(3), replace(options, defense="psu,secagg", rounds=1), to_second(Rows, change))


@pytest.mark.parametrize(
    ("kind", "at", "change"),
    [
        (SparseRows, 1, lambda rows: replace(rows, num_rows=rows.num_rows + 8, signs=rows.signs + bytes(1))),
        (SparseRows, 1, lambda rows: replace(rows, width=rows.width * 2)),
        (SparseRows, 1, lambda rows: replace(rows, data=rows.data[:-4])),
        (SparseRows, 1, lambda rows: replace(rows, round=0)),
        (Rows, 2, lambda rows: replace(rows, width=rows.width * 2, num_rows=rows.num_rows // 2)),
        (Rows, 2, lambda rows: replace(rows, num_rows=-rows.num_rows, width=-rows.width)),
        (Rows, 2, lambda rows: replace(rows, table="relations")),
        (Rows, 2, lambda rows: replace(rows, data=b"")),
    ],
    ids=["more", "wide", "short", "other round", "all: wide", "all: negative", "all: other table", "all: short"],
)
def test_a_malformed_sparse_broadcast_is_refused(
    kind: type,
    at: int,
    change: Callable[[Any], AnyMessage],
    graph: Callable[[int], FederatedGraph],
    options: KgeOptions,
) -> None:
    """With `sparse_rounds=1` all rows are sent after round 2, and the client knows which these are."""
    options = replace(options, algorithm="feds", defense="secagg", sparse_rounds=1)
    with pytest.raises(BroadcastError, match="client/hospital-2"):
        federated(graph(3), options, to_second(kind, change, at))


def test_a_commitment_of_another_length_is_refused(by_hand: Callable) -> None:
    exchange = by_hand("secagg", {party: ["x", "y"] for party in "abc"})
    send = exchange.channel.send

    def short(message: Any) -> AnyMessage:
        received = send(message)
        return replace(received, content=b"ab") if received.label == "broadcast-root" else received

    exchange.channel.send = short
    with pytest.raises(BroadcastError, match="c was told 2 bytes as the commitment to entities in round 1"):
        exchange.broadcast(1, "entities", ["a", "b"])


# Names.


def test_a_client_that_was_sent_another_list_of_names_is_in_no_sum(
    graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    """A list of the same length, with one name that it does not hold replaced by one that stands first: its rows move."""
    made = graph(5)
    client = made.clients[0]
    target, own = f"client/{client.name}", {made.entities[number] for number in client.entity_ids}

    def change(message: Any) -> AnyMessage:
        if not (
            isinstance(message, ProtocolMessage) and (message.step, message.receiver) == ("psu-union-list", target)
        ):
            return message
        told = psu.decode_message(message.content)
        assert isinstance(told, psu.UnionList)
        lost = [name for name in told.identifiers if name not in own][-1]
        names = ("!", *(name for name in told.identifiers if name != lost))
        return replace(message, content=secagg.encode(replace(told, identifiers=names)))

    result = federated(made, replace(options, defense="psu,secagg"), change)
    for entry in result.rounds[1:]:
        assert entry.excluded.keys() == {target}
        assert entry.num_survivors == 4
        assert all(target not in opened.survivors for opened in result.transcript.opened(entry.round))


# Rows that were missed.


def test_after_a_pause_a_client_takes_over_every_shared_row(by_hand: Callable) -> None:
    exchange = by_hand("secagg,suppress:t=2", {party: ["x", "y"] for party in "abc"})
    exchange.upload(1, "entities", {party: torch.ones(2, 3) for party in "abc"})
    received = exchange.broadcast(1, "entities", ["a", "b"])
    assert received["a"].taken.all()
    with pytest.raises(BroadcastError, match="c refuses the sum of entities in round 2: since round 1"):
        exchange.upload(2, "entities", {party: torch.ones(2, 3) for party in "abc"})
    exchange.central.begin("entities")  # a round whose sum failed: everybody goes back to the rows of the last one
    received = exchange.broadcast(2, "entities", ["a", "c"])
    assert received["a"].taken.all()
    assert received["c"].taken.all()


def test_a_row_that_a_sum_leaves_out_is_local_for_all_until_enough_holders_are_in_a_sum(by_hand: Callable) -> None:
    """c, d and e hold y. It has one holder in the sums of rounds 1 and 4, and two in those of rounds 2 and 3."""
    held = {"a": ["x"], "b": ["x"], "c": ["x", "y"], "d": ["x", "y"], "e": ["x", "y"]}
    exchange = by_hand("secagg,suppress:t=2", held)

    def round_of(number: int, senders: str) -> tuple[int, list[bool]]:
        """The number of clients that y is the sum of, and which of c, d and e take it over afterwards."""
        exchange.upload(number, "entities", {party: torch.ones(len(held[party]), 3) for party in senders})
        opened = exchange.uploads[-1].opened[-1].sums()[1]
        received = exchange.broadcast(number, "entities", list(held))
        assert all(received[party].taken[0] for party in held)
        return opened[exchange.server["entities"].names.index("y")], [bool(received[p].taken[1]) for p in "cde"]

    assert round_of(1, "abc") == (0, [False, False, False])
    assert round_of(2, "acd") == (0, [True, True, True])  # they have trained from their own rows
    assert round_of(3, "ade") == (2, [True, True, True])
    assert round_of(4, "abe") == (0, [True, True, True])


@pytest.mark.parametrize("algorithm", ["fedep", "feds"])
@pytest.mark.parametrize("defense", ["secagg:dropout=0.2", "secagg:dropout=0.2,suppress:t=2"])
def test_honest_rounds_send_every_participant_rows(
    algorithm: str, defense: str, graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    """With few participants, dropouts and failed rounds nobody refuses."""
    options = replace(options, algorithm=algorithm, defense=defense, participation=0.6, rounds=5, eval_every=5)
    result = run_federation(graph(5), options, make_transport=make_transport)
    assert {entry.num_survivors for entry in result.rounds[1:]} >= {0, 3}
    assert not any(entry.excluded for entry in result.rounds)


@pytest.mark.parametrize("defense", ["psu,secagg", "secagg,suppress:t=2"])
def test_unlearning_begins_from_what_was_sent_last(
    defense: str, graph: Callable[[int], FederatedGraph], options: KgeOptions
) -> None:
    """Who sat the last rounds out takes over the table that the others have, and it can be no other one."""
    options = replace(options, algorithm="fedep", defense=defense, participation=0.6, rounds=2, eval_every=2)
    result = run_federation(graph(5), options, make_transport=make_transport)
    asking = result.graph.clients[0]
    forget, how = {asking.name: asking.train[:5]}, UnlearnOptions(method="finetune", decay_epochs=1)
    unlearned = unlearn(result, forget, how, make_transport=make_transport)
    assert unlearned.rounds[1].num_survivors == 3
    assert not unlearned.rounds[1].excluded

    class Other(DefendedTransport):
        """Round 0 of the unlearning sends all the same other table."""

        def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> Any:
            self.server[table].rows = torch.zeros_like(self.server[table].rows)
            return super().broadcast(round, table, parties)

    with pytest.raises(BroadcastError, match="another table of entities than it was sent last in the run"):
        unlearn(result, forget, how, make_transport=Other)


def test_what_clients_were_sent_is_read_back_or_refused(by_hand: Callable) -> None:
    exchange = by_hand("secagg", {party: ["x", "y"] for party in "abc"})
    exchange.broadcast(1, "entities", ["a", "b"])
    kept: Tensor = exchange._histories()
    again = by_hand("secagg", {party: ["x", "y"] for party in "abc"})
    again._load_histories(kept)
    assert torch.equal(again._histories(), kept)
    again.defended["a"].log.require_rows(2, "entities")
    with pytest.raises(BroadcastError, match="c refuses the sum of entities in round 2: since round 1"):
        again.defended["c"].log.require_rows(2, "entities")
    with pytest.raises(RunError, match="train the run again"):
        again._load_histories(torch.zeros(4, 32, dtype=torch.uint8))
    with pytest.raises(RunError, match="what was sent is of a, b, c, server"):
        by_hand("secagg", {party: ["x", "y"] for party in "ab"})._load_histories(kept)
