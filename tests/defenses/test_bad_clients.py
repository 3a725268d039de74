"""A federation under secure aggregation goes on without a client that strays, and its record names the client."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch

from fkgsec.data.graph import FederatedGraph
from fkgsec.defenses.broadcasts import BroadcastError, Claim, decode_claims, encode_claims
from fkgsec.defenses.transport import DefendedTransport
from fkgsec.errors import SpecError
from fkgsec.federation.messages import Channel, ProtocolMessage, client_party
from fkgsec.kge.options import KgeOptions

PARTIES = [f"client {number}" for number in range(7)]
BAD = PARTIES[3]


def spoil(channel: Channel, step: str, change: Callable[[bytes], bytes], rounds: set[int]) -> None:
    """From here on what the bad client sends at that step of those rounds arrives changed."""
    send = channel.send

    def spoiled(message):
        if (
            isinstance(message, ProtocolMessage)
            and (message.sender, message.step) == (BAD, step)
            and message.round in rounds
        ):
            message = msgspec.structs.replace(message, content=change(message.content))
        return send(message)

    channel.send = spoiled  # ty: ignore


@pytest.mark.parametrize(
    ("step", "in_the_sum"),
    [
        ("secagg-advertisement", False),
        ("secagg-sealed-shares", False),
        ("secagg-receipt", False),
        ("secagg-masked-upload", False),
        ("secagg-confirmation", True),
        ("secagg-revealed-shares", True),
    ],
)
def test_the_mean_is_that_of_the_others(by_hand: Callable, step: str, in_the_sum: bool) -> None:
    held = {party: ["common", f"own {place}"] for place, party in enumerate(PARTIES)}
    exchange = by_hand("secagg", held)
    rows = {party: torch.full((2, 3), float(place)) for place, party in enumerate(PARTIES)}
    spoil(exchange.channel, step, lambda content: content[:-3], {1})
    outcome = exchange.upload(1, "entities", rows)
    assert outcome.excluded.keys() == {BAD}
    assert outcome.excluded[BAD].startswith("entities: MalformedMessage: ")
    assert outcome.num_survivors == 6 + in_the_sum
    table = dict(zip(exchange.server["entities"].names, exchange.server["entities"].rows, strict=True))
    mean = np.mean([place for place in range(7) if in_the_sum or PARTIES[place] != BAD])
    assert table["common"].numpy() == pytest.approx(mean, abs=1e-5)


OTHER = Claim(PARTIES[0], bytes(32), bytes(64))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: b"\0garbage", "the claim of client 3: claims cannot be read"),
        (
            lambda content: content.replace(BAD.encode(), b"\xff" * len(BAD)),
            "the claim of client 3: claims cannot be read",
        ),
        (lambda content: encode_claims([]), "one claim of client 3 was expected"),
        (lambda content: encode_claims(decode_claims(content, where="") * 2), "one claim of client 3 was expected"),
        (lambda content: encode_claims([OTHER]), "one claim of client 3 was expected"),
        (lambda content: encode_claims([msgspec.structs.replace(OTHER, sender=BAD)]), "a claim that client 3 did not"),
        (None, "it says that it was sent other tables than the server and 6 clients say"),
    ],
    ids=["garbage", "no UTF-8", "none", "two", "of another", "badly signed", "another history"],
)
@pytest.mark.parametrize("defense", ["secagg", "secagg,suppress:t=2"])
def test_a_bad_claim_of_what_was_sent_leaves_one_client_out(
    change: Callable[[bytes], bytes] | None, reason: str, defense: str, by_hand: Callable
) -> None:
    exchange = by_hand(defense, {party: ["common", f"own {place}"] for place, party in enumerate(PARTIES)})
    if change is None:  # it signs what it says
        exchange.defended[BAD].log.digest = b"x" * 32
    else:
        spoil(exchange.channel, "broadcast-claim", change, {1})
    outcome = exchange.upload(1, "entities", {party: torch.ones(2, 3) for party in PARTIES})
    assert outcome.excluded.keys() == {BAD}
    assert outcome.excluded[BAD].startswith(f"entities: BroadcastError: {reason}")
    assert outcome.num_survivors == 6


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("stage", ["broadcast-claim", "share", "mask"])
def test_a_client_that_sends_no_message_or_two_in_a_frame_is_left_out(
    stage: str, count: int, by_hand: Callable
) -> None:
    exchange = by_hand("secagg", {party: ["common"] for party in PARTIES})
    deliver = exchange._deliver

    def faulty(at: str, sender: str, receiver: str, frame: tuple) -> list[tuple]:
        (arrived,) = deliver(at, sender, receiver, frame)
        return [arrived * count if (at, sender) == (stage, BAD) else arrived]

    exchange._deliver = faulty
    outcome = exchange.upload(1, "entities", {party: torch.ones(1, 3) for party in PARTIES})
    num_sent = 2 * count if stage == "broadcast-claim" else count  # keys come with a claim
    assert f"{BAD} sent {num_sent} messages where" in outcome.excluded[BAD]
    assert outcome.num_survivors == 6


def test_where_half_say_otherwise_nobody_is_singled_out(by_hand: Callable) -> None:
    exchange = by_hand("secagg", {party: ["common"] for party in PARTIES[:4]})
    for party in PARTIES[:2]:
        exchange.defended[party].log.digest = b"x" * 32
    with pytest.raises(BroadcastError, match=r"sent client 2, client 3 other tables than client 0 .* or .* lied about"):
        exchange.upload(1, "entities", {party: torch.ones(1, 3) for party in PARTIES[:4]})


def test_the_record_names_the_client_and_a_round_of_too_few_goes_on(
    graph: Callable[[int], FederatedGraph], options: KgeOptions, remembered: Callable, monkeypatch
) -> None:
    """Of five clients with a threshold of four one may stray in round 1; in round 2 two of them leave too few."""
    made = graph(5)
    names = [client_party(client.name) for client in made.clients]
    bad = {1: set(names[:1]), 2: set(names[:2])}
    send = Channel.send

    def spoiled(self, message):
        if (
            isinstance(message, ProtocolMessage)
            and message.step == "secagg-masked-upload"
            and message.sender in bad.get(message.round, ())
        ):
            message = msgspec.structs.replace(message, content=b"garbage")
        return send(self, message)

    monkeypatch.setattr(Channel, "send", spoiled)
    result, _ = remembered(made, msgspec.structs.replace(options, defense="secagg"))
    first, second = result.rounds[1:3]
    assert (first.num_survivors, set(first.excluded)) == (4, bad[1])
    assert (second.num_survivors, set(second.excluded)) == (0, bad[2])
    assert "entities: MalformedMessage: 7 bytes cannot be read as a message" in first.excluded[names[0]]
    read = msgspec.json.decode(msgspec.json.encode(first), type=type(first))
    assert read == first


# The k-regular graph.


def exchange_of(num_clients: int, defense: str, options: KgeOptions) -> DefendedTransport:
    parties = [f"client {number}" for number in range(num_clients)]
    return DefendedTransport(Channel(), msgspec.structs.replace(options, defense=defense), parties, ["entities"], "run")


@pytest.mark.parametrize(
    ("num_clients", "settings", "named"),
    [
        (
            1000,
            "neighbours=20,colluders=100,dropout=0.01",
            "20 of 1000 clients, threshold 15, 100 colluders, dropout 0.01",
        ),
        (1000, "neighbours=20,dropout=0.1", "1 colluders, dropout 0.1"),
        (1000, "neighbours=4,colluders=6", "4 of 1000 clients, threshold 4, 6 colluders, dropout 0"),
        (20, "neighbours=6,colluders=20", "colluders: 20; it must lie in 0..19"),
    ],
)
def test_a_graph_that_is_too_thin_is_refused(num_clients: int, settings: str, named: str, options) -> None:
    with pytest.raises(SpecError, match=f"^defense: secagg: .*{named}") as caught:
        exchange_of(num_clients, f"secagg:{settings}", options)
    assert "\n" not in str(caught.value)


def test_what_a_graph_withstands_is_stated(options) -> None:
    lines = exchange_of(1000, "secagg:neighbours=20,colluders=50,dropout=0.01", options).protection().remarks
    assert (
        "secagg: 20 neighbours of 999; with 50 colluders at random places and dropout 0.01 a session exposes an upload with "
        "probability at most 2^-44 and fails with at most 3.4e-05"
    ) in lines
