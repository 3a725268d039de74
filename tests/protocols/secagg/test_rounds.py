"""The pair of generators: today's bytes, faults of delivery, a server that holds nothing of a client, parties as processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import GeneratorType
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols.core.errors import ProtocolError, SplitView, TooFewParties
from fkgsec.protocols.core.keys import KeyPair
from fkgsec.protocols.core.one_shot import Steps
from fkgsec.protocols.core.rounds import (
    SERVER,
    Ask,
    ClientRound,
    Outcome,
    Party,
    Silence,
    run,
)
from fkgsec.protocols.secagg import client, client_round, decode, encode, server_round
from fkgsec.protocols.secagg.messages import Cohort, KeyList, Message, kind_of

STAGES = ["advertise", "share", "receive", "mask", "confirm", "unmask"]
ROOT = Path(__file__).parents[3]


def clients_of(cohort: Any) -> dict[str, ClientRound[bytes]]:
    return {
        party: client_round(
            cohort.setting,
            party,
            cohort.identities[party],
            cohort.source(party),
            lambda party=party: cohort.inputs[party],
        )
        for party in cohort.setting.parties
    }


def run_pair(cohort: Any, deliver: Callable[[str, str, str, bytes], Sequence[bytes]]) -> Outcome:
    return run(server_round(cohort.setting), clients_of(cohort), deliver)


def faulty(stage: str, sender: str, receiver: str, change: Callable[[bytes], Sequence[bytes]]) -> Callable:
    """A delivery with one fault."""
    return lambda *crossing: change(crossing[3]) if crossing[:3] == (stage, sender, receiver) else (crossing[3],)


# Stages and kinds.


def test_stages_and_what_each_asks_for(cohort) -> None:
    asked: list[tuple[str, str]] = []

    def recording(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        if (stage, sender, receiver) not in {one for one, _ in asked}:
            asked.append(((stage, sender, receiver), kind_of(frame)))
        return (frame,)

    run_pair(cohort(2), recording)
    assert [(stage, kind) for (stage, *_), kind in asked[::2]] == [
        ("advertise", "secagg-advertisement"),
        ("share", "secagg-key-list"),
        ("share", "secagg-sealed-shares"),
        ("receive", "secagg-share-inbox"),
        ("receive", "secagg-receipt"),
        ("mask", "secagg-cohort"),
        ("mask", "secagg-masked-upload"),
        ("confirm", "secagg-survivors"),
        ("confirm", "secagg-confirmation"),
        ("unmask", "secagg-unmask-request"),
        ("unmask", "secagg-revealed-shares"),
    ]


def test_the_kind_of_a_frame() -> None:
    assert kind_of(encode(Cohort(b"s", 0, SERVER, ()))) == "secagg-cohort"
    assert (kind_of(b""), kind_of(b"\xff" * 9), kind_of(b"\x80")) == ("", "", "")


# Faults.


@pytest.mark.parametrize(
    ("stage", "way"), [*((stage, "reply") for stage in STAGES), *((stage, "request") for stage in STAGES[1:])]
)
def test_a_lost_frame_is_a_dropout(cohort, stage: str, way: str) -> None:
    one = cohort(6)
    ends = (SERVER, "client1") if way == "request" else ("client1", SERVER)
    total = run_pair(one, faulty(stage, *ends, lambda frame: ())).result
    uploaded = STAGES.index(stage) > STAGES.index("mask")
    assert ("client1" in total.survivors, total.excluded) == (uploaded, {})
    assert total.vectors["v0"].tolist() == one.clear_sum("v0", total.survivors)


@pytest.mark.parametrize("stage", STAGES)
def test_a_repeated_frame_changes_nothing(cohort, stage: str) -> None:
    one = cohort(4)
    for ends in ((SERVER, "client1"), ("client1", SERVER)):
        total = run_pair(one, faulty(stage, *ends, lambda frame: (frame, frame))).result
        assert (total.survivors, total.excluded) == (one.setting.parties, {})
        assert total.vectors["v0"].tolist() == one.clear_sum("v0", one.setting.parties)


@pytest.mark.parametrize("stage", STAGES)
def test_an_unreadable_reply_leaves_its_sender_out(cohort, stage: str) -> None:
    one = cohort(6)
    total = run_pair(one, faulty(stage, "client1", SERVER, lambda frame: (frame[:-1],))).result
    assert list(total.excluded) == ["client1"]
    assert "cannot be read as a message" in total.excluded["client1"]
    assert total.vectors["v0"].tolist() == one.clear_sum("v0", total.survivors)


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_client_that_cannot_read_a_request_says_so(cohort, stage: str) -> None:
    one = cohort(6)
    total = run_pair(one, faulty(stage, SERVER, "client1", lambda frame: (b"\xff" + frame,))).result
    assert "cannot be read as a message" in total.excluded["client1"]
    assert total.vectors["v0"].tolist() == one.clear_sum("v0", total.survivors)


def test_a_reply_in_the_name_of_another_is_not_taken(cohort) -> None:
    frames: dict[str, bytes] = {}

    def swapping(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        if stage == "mask" and receiver == SERVER:
            frames.setdefault("first", frame)
            return (frames["first"],) if sender == "client1" else (frame,)
        return (frame,)

    one = cohort(6)
    total = run_pair(one, swapping).result
    assert total.excluded == {"client1": "UnknownSender: MaskedUpload of client1 says it is of 'client0'"}
    assert total.vectors["v0"].tolist() == one.clear_sum("v0", total.survivors)


def test_a_client_around_which_too_few_are_left_says_so(cohort) -> None:
    one = cohort(6)

    def thinned(frame: bytes) -> Sequence[bytes]:
        keys: Any = decode(frame)
        return (encode(KeyList(keys.session, keys.round, SERVER, keys.advertisements[:2])),)

    total = run_pair(one, faulty("share", SERVER, "client1", thinned)).result
    assert total.excluded == {"client1": "TooFewParties: 2 parties advertised keys; 5 are needed"}


def test_a_server_at_fault_ends_the_round(cohort) -> None:
    def alone(frame: bytes) -> Sequence[bytes]:
        told: Any = decode(frame)
        return (encode(Cohort(told.session, told.round, SERVER, (*told.members[:-1], "client9"))),)

    with pytest.raises(SplitView, match="cohort of client1"):
        run_pair(cohort(6), faulty("mask", SERVER, "client1", alone))


def test_a_client_that_is_sent_another_protocols_message_has_been_left_behind(cohort) -> None:
    """It hands the request back to whatever protocol is around it, and neither raises nor answers."""

    class Other(Message, frozen=True, tag="other-protocol"):
        pass

    one = cohort(2)
    steps = client_round(one.setting, "client0", one.identities["client0"], one.source("client0"), dict)
    next(steps)
    frame = encode(Other(b"s", 0, SERVER))
    with pytest.raises(StopIteration) as end:
        steps.send(frame)
    assert end.value.value == frame


# What the server holds.

CLIENT_STATES = (Ed25519PrivateKey, KeyPair, Steps, Party, client.Member, client.Shares)


def of_a_client(found: Sequence[Any], secrets: Sequence[bytes]) -> list[Any]:
    """What among the objects is a client's: its states by type, and its secrets by value, in bytes and arrays."""
    kept = [one for one in found if isinstance(one, CLIENT_STATES) or type(one).__module__ == client.__name__]
    kept += [one for one in found if isinstance(one, GeneratorType) and "client" in one.gi_code.co_name]
    content = [one for one in found if isinstance(one, bytes | bytearray)]
    content += [one.tobytes() for one in found if isinstance(one, np.ndarray)]
    return kept + [secret for secret in secrets if any(secret in one for one in content)]


def secrets_of(steps: ClientRound) -> Iterator[bytes]:
    """The seeds and private keys in the state of a suspended client."""
    assert isinstance(steps, GeneratorType)
    if steps.gi_frame is not None and (member := getattr(steps.gi_frame.f_locals.get("state"), "member", None)):
        yield from (
            member.self_seed,
            member.mask_keys.private,
            member.share_keys.private,
            member.identity.private_bytes_raw(),
        )


def test_the_server_holds_nothing_of_a_client_whenever_it_waits(cohort, reachable) -> None:
    one = cohort(4)
    clients = clients_of(one)
    server = server_round(one.setting)
    inputs = [values["v0"].tobytes() for values in one.inputs.values()]
    looked: list[str] = []

    def looking(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        if sender == SERVER and stage not in looked:  # the server waits
            secrets = [secret for steps in clients.values() for secret in secrets_of(steps)]
            assert len(secrets) == 4 * len(clients)
            found = reachable(server)
            assert len(found) > 80
            assert of_a_client(found, [*inputs, *secrets]) == []
            looked.append(stage)
        return (frame,)

    run(server, clients, looking)
    assert looked == STAGES[1:]


def test_the_walk_would_find_a_client(cohort, reachable) -> None:
    one = cohort(2)
    clients = clients_of(one)
    state, _ = client.advertise(one.setting, "client0", one.identities["client0"], one.source("client0"))

    def careless(held: object) -> Iterator[Ask]:
        kept = {"deep": [held]}
        yield Ask("advertise", {})
        yield Ask(str(kept), {})

    for held, expected in ((clients, GeneratorType), (state, client.Advertised), (lambda: state, client.Advertised)):
        server = careless(held)
        next(server)
        assert any(isinstance(found, expected) for found in of_a_client(reachable(server), []))
    server = careless(np.frombuffer(b"....secret", dtype=np.uint8))
    next(server)
    assert of_a_client(reachable(server), [b"secret"]) == [b"secret"]


def test_a_client_that_waits_holds_no_upload(cohort, reachable) -> None:
    """So that a simulation of many clients holds one upload at a time."""
    one = cohort(3, length=50_000)
    clients = clients_of(one)
    looked = []

    def looking(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        if (stage, sender) == ("confirm", SERVER):
            held = [thing for thing in reachable(clients[receiver]) if isinstance(thing, bytes)]
            looked.append(max(map(len, held)))
        return (frame,)

    run(server_round(one.setting), clients, looking)
    assert len(looked) == 3
    assert max(looked) < 5000 < 4 * 50_000


# Other drivers.


def test_a_silence_with_a_reason_is_named(cohort) -> None:
    server = server_round(cohort(3).setting)
    next(server)
    with pytest.raises(TooFewParties) as caught:
        server.send([("client0", Silence("ran out of battery"))])
    assert caught.value.excluded == {"client0": "ran out of battery"}
    assert isinstance(caught.value, ProtocolError)
