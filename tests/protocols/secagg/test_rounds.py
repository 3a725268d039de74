"""The pair of generators: today's bytes, faults of delivery, a server that holds nothing of a client, parties as processes."""

from __future__ import annotations

import hashlib
import subprocess
import sys
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
    NOTHING,
    SERVER,
    Ask,
    ClientRound,
    Outcome,
    Party,
    Replies,
    Reply,
    ServerRound,
    Silence,
    run,
)
from fkgsec.protocols.secagg import Sum, client, client_round, decode, encode, server_round
from fkgsec.protocols.secagg.messages import Cohort, KeyList, Message, kind_of
from tests.protocols.sessions import Tally

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


# The bytes.


def test_frames_are_those_of_before_the_pair(cohort) -> None:
    """Every byte of a session, in its order, as the version before sent it (the messages of a record must not change)."""
    transcript = hashlib.sha256()

    def recording(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        transcript.update(f"{sender} {receiver} {len(frame)} ".encode() + frame)
        return (frame,)

    tally = Tally(recording)
    total = run_pair(cohort(5, seed=b"pinned"), tally).result
    assert total.vectors["v0"].tolist() == cohort(5, seed=b"pinned").clear_sum("v0", total.survivors)
    assert (sum(tally.sent.values()), transcript.hexdigest()[:32]) == PINNED


PINNED = (24015, "3bdb6e4802e6f7f22e05ad44cc3d48c5")


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


def drive(server: ServerRound[Sum], answers: Callable[[Ask], Replies]) -> Sum:
    """The server's half of a driver."""
    try:
        ask = next(server)
        while True:
            ask = server.send(answers(ask))
    except StopIteration as end:
        return end.value


def test_five_requests_a_round_when_keys_ride_on_the_last_reply(cohort) -> None:
    """A driver over a network: what needs no request comes with the reply before, here the keys of the next session."""
    sessions = [cohort(3, session=b"%d" % number) for number in range(3)]
    later = [clients_of(one) for one in sessions]
    parties = {name: [Party(steps[name]) for steps in later] for name in sessions[0].setting.parties}
    riding: dict[str, Reply] = {}
    requests = 0
    for number, one in enumerate(sessions):

        def answers(ask: Ask, number: int = number) -> list[tuple[str, Reply]]:
            nonlocal requests, riding
            if ask.stage == "advertise" and riding:
                return list(riding.items())
            requests += ask.stage != "advertise"
            replies = [(name, parties[name][number].answer(frame)) for name, frame in ask.requests.items()]
            if ask.stage == "unmask" and number + 1 < len(sessions):
                riding = {name: parties[name][number + 1].answer(NOTHING) for name in ask.requests}
            return replies

        total = drive(server_round(one.setting), answers)
        assert total.vectors["v0"].tolist() == one.clear_sum("v0", one.setting.parties)
    assert requests == 5 * len(sessions)


COMMON = """
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fkgsec.protocols.core.prg import Ring, derive, seeded
from fkgsec.protocols.secagg import Setting, Vector

names = tuple(f"client{number}" for number in range(4))
keys = {name: Ed25519PrivateKey.from_private_bytes(derive(b"identity", name)) for name in names}
public = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
setting = Setting(b"processes", 0, names, 3, (Vector("rows", 3, Ring.UINT32),), public)
"""

CLIENT = (
    COMMON
    + """
import sys
from fkgsec.protocols.core.rounds import Party
from fkgsec.protocols.secagg import client_round

name = sys.argv[1]
values = {"rows": np.array([1, 2, 3], dtype=np.uint32) * int(name[-1])}
party = Party(client_round(setting, name, keys[name], seeded(derive(b"process", name)), lambda: values))
while len(head := sys.stdin.buffer.read(4)) == 4:
    reply = party.answer(sys.stdin.buffer.read(int.from_bytes(head, "big")))
    sys.stdout.buffer.write(len(reply).to_bytes(4, "big") + reply)
    sys.stdout.buffer.flush()
"""
)


def test_clients_may_be_processes_and_one_may_die() -> None:
    """The server has the setting, the frames, and nothing else; a client that is killed before its upload is a dropout."""
    common: dict[str, Any] = {}
    exec(COMMON, common)
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", CLIENT, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        for name in common["names"]
    }

    def answers(ask: Ask) -> Iterator[tuple[str, bytes]]:
        if ask.stage == "mask":
            processes["client1"].kill()
            processes["client1"].wait()
        for name, frame in ask.requests.items():
            pipe: Any = processes[name]
            try:
                pipe.stdin.write(len(frame).to_bytes(4, "big") + frame)
                pipe.stdin.flush()
            except BrokenPipeError:
                continue
            if head := pipe.stdout.read(4):
                yield name, pipe.stdout.read(int.from_bytes(head, "big"))

    try:
        total = drive(server_round(common["setting"]), answers)
        assert total.survivors == ("client0", "client2", "client3")
        assert total.vectors["rows"].tolist() == [5, 10, 15]
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def test_a_silence_with_a_reason_is_named(cohort) -> None:
    server = server_round(cohort(3).setting)
    next(server)
    with pytest.raises(TooFewParties) as caught:
        server.send([("client0", Silence("ran out of battery"))])
    assert caught.value.excluded == {"client0": "ran out of battery"}
    assert isinstance(caught.value, ProtocolError)
