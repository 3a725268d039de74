"""The pair of generators: today's bytes, the union at server and clients, faults of delivery, a server that holds no set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import GeneratorType
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols import psu
from fkgsec.protocols.core.errors import MalformedMessage, UnexpectedMessage
from fkgsec.protocols.core.keys import KeyPair
from fkgsec.protocols.core.one_shot import Steps
from fkgsec.protocols.core.prg import Randomness, derive, seeded
from fkgsec.protocols.core.rounds import NOTHING, SERVER, ClientRound, Outcome, Party, run
from fkgsec.protocols.psu import CohortChanged, Plan, UnionList, client_round, decode_message, join, server_round
from fkgsec.protocols.secagg import client as secagg_client
from fkgsec.protocols.secagg import encode
from tests.protocols.sessions import Tally

SETS = {f"client{number}": [f"/m/{i}" for i in range(60) if (i + number) % 4 < 2] for number in range(4)}
UNION = tuple(sorted(f"/m/{i}" for i in range(60)))
Crossing = Callable[[str, str, str, bytes], Sequence[bytes]]


def plan_of(sets: Mapping[str, Sequence[str]], **options: Any) -> tuple[Plan, dict[str, Ed25519PrivateKey]]:
    keys = {name: Ed25519PrivateKey.from_private_bytes(derive(b"identity", name)) for name in sets}
    public = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
    return Plan(b"pair", tuple(sets), options.pop("threshold", 3), public, **{"cap": 100, **options}), keys


def source(name: str) -> Randomness:
    return seeded(derive(b"psu rounds", name))


def clients_of(plan: Plan, keys: Mapping[str, Ed25519PrivateKey], sets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    return {name: client_round(join(plan, name, own), keys[name], source(name)) for name, own in sets.items()}


def run_pair(sets: Mapping[str, Sequence[str]], deliver: Crossing, **options: Any) -> Outcome[psu.Union]:
    plan, keys = plan_of(sets, **options)
    return run(server_round(plan, source(SERVER)), clients_of(plan, keys, sets), deliver)


def passed(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
    return (frame,)


def faulty(stage: str, sender: str, receiver: str, change: Callable[[bytes], Sequence[bytes]]) -> Crossing:
    return lambda *crossing: change(crossing[3]) if crossing[:3] == (stage, sender, receiver) else (crossing[3],)


def test_frames_are_those_of_before_the_pair() -> None:
    """Every byte of a union in two attempts, in its order, as the version before sent it."""
    transcript = hashlib.sha256()

    def recording(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        transcript.update(f"{sender} {receiver} {len(frame)} ".encode() + frame)
        return (frame,)

    tally = Tally(recording)
    sets = {name: [f"{one}/{i}" for one in own for i in range(20)] for name, own in SETS.items()}
    assert run_pair(sets, tally, cap=1).result.attempts == 2
    assert (sum(tally.sent.values()), transcript.hexdigest()[:32]) == PINNED


PINNED = (749180, "af9a2c9e0c51131ab99d3f857847389e")


def test_the_server_and_every_client_have_the_union() -> None:
    outcome = run_pair(SETS, passed)
    assert outcome.result == psu.Union(UNION, 1, 600)
    assert outcome.clients == dict.fromkeys(SETS, UNION)


@pytest.mark.parametrize("stage", ["confirm", "unmask"])
def test_a_client_that_missed_the_end_of_a_session_still_gets_the_union(stage: str) -> None:
    outcome = run_pair(SETS, faulty(stage, SERVER, "client1", lambda frame: ()))
    assert outcome.result.identifiers == UNION
    assert outcome.clients == dict.fromkeys(SETS, UNION)


def test_a_client_that_missed_the_end_of_an_attempt_takes_part_in_the_next() -> None:
    sets = {name: [f"{one}/{i}" for one in own for i in range(20)] for name, own in SETS.items()}
    lost: list[str] = []

    def once(frame: bytes) -> Sequence[bytes]:
        lost.append("confirm")
        return () if len(lost) == 1 else (frame,)

    outcome = run_pair(sets, faulty("confirm", SERVER, "client1", once), cap=1)
    assert (outcome.result.attempts, len(lost)) == (2, 2)
    assert set(outcome.clients.values()) == {outcome.result.identifiers}


@pytest.mark.parametrize("stage", ["advertise", "share", "receive", "mask"])
@pytest.mark.parametrize("ends", [(SERVER, "client1"), ("client1", SERVER)])
def test_a_lost_frame_before_the_upload_ends_the_round(stage: str, ends: tuple[str, str]) -> None:
    with pytest.raises(CohortChanged, match="no table was opened") as caught:
        run_pair(SETS, faulty(stage, *ends, lambda frame: ()))
    assert caught.value.excluded == {}


def test_an_announcement_that_cannot_be_read_ends_the_round() -> None:
    with pytest.raises(MalformedMessage, match="cannot be read as a message"):
        run_pair(SETS, faulty("advertise", SERVER, "client1", lambda frame: (frame[:-1],)))


def test_a_union_that_does_not_arrive_is_no_union() -> None:
    def spoiled(frame: bytes) -> Sequence[bytes]:
        raise UnexpectedMessage("the wire broke")

    with pytest.raises(MalformedMessage, match="did not reach client1: UnexpectedMessage: the wire broke"):
        run_pair(SETS, faulty("union", SERVER, "client1", spoiled))


CLIENT_STATES = (Ed25519PrivateKey, KeyPair, Steps, Party, psu.Client, secagg_client.Member, secagg_client.Shares)


def of_a_client(found: Sequence[Any], identifiers: Sequence[str]) -> list[Any]:
    """What among the objects is a client's: its states, and identifiers in clear."""
    kept = [one for one in found if isinstance(one, CLIENT_STATES) or type(one).__module__ == secagg_client.__name__]
    kept += [one for one in found if isinstance(one, GeneratorType) and "client" in one.gi_code.co_name]
    return kept + [one for one in found if isinstance(one, str) and one in identifiers]


def test_the_server_holds_no_client_and_no_identifier_until_the_union_is_opened(reachable) -> None:
    plan, keys = plan_of(SETS)
    clients: dict[str, ClientRound] = clients_of(plan, keys, SETS)
    server = server_round(plan, source(SERVER))
    looked: list[str] = []

    def looking(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        if sender == SERVER and stage not in looked:  # the server waits
            found = of_a_client(reachable(server), UNION)
            assert set(found) == (set(UNION) if stage == "union" else set())
            looked.append(stage)
        return (frame,)

    run(server, clients, looking)
    assert looked == ["advertise", "share", "receive", "mask", "confirm", "unmask", "union"]
    assert of_a_client(reachable({"deep": [clients]}), UNION) != []


def test_a_client_is_done_after_the_list() -> None:
    plan, keys = plan_of(SETS)
    party = Party(clients_of(plan, keys, SETS)["client0"])
    with pytest.raises(UnexpectedMessage, match="before any table"):
        party.answer(encode(UnionList(b"pair", 0, SERVER, UNION)))
    assert isinstance(decode_message(encode(UnionList(b"pair", 0, SERVER, UNION))), UnionList)
    assert party.answer(NOTHING) == NOTHING
