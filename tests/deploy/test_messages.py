"""Messages that are late, repeated, damaged, too large or another's: said in one line or left out, and never in a sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from fkgsec.experiments.deploy.core.messages import Answer, Placed, Reply, Request, encode
from fkgsec.federation import messages
from fkgsec.federation.messages import Alignment, Rows, Transcript
from fkgsec.federation.order import Position

VICTIM = "client/hospital-2"


def reply_of(party: Any, request: bytes) -> Reply:
    return msgspec.msgpack.decode(party.answer(request), type=Reply)


@pytest.fixture
def asked(consortium: Callable[..., Any]) -> tuple[Any, list[bytes]]:
    """A consortium after its rounds, and the requests that one of its parties was sent."""
    apart, requests = consortium(rounds=2), list[bytes]()

    def noting(stage: str, party: str, request: bytes) -> None:
        if party == VICTIM:
            requests.append(request)

    apart.fault = noting
    apart.train()
    return apart, requests


def test_a_party_says_what_is_wrong_with_a_request_and_does_nothing(asked: tuple[Any, list[bytes]]) -> None:
    apart, requests = asked
    party = apart.parties["hospital-2"]
    tables, last = party.task.snapshot(), msgspec.msgpack.decode(requests[-1], type=Request)
    small = msgspec.structs.replace(apart.terms, largest_bytes=100)
    for request, reason in (
        (requests[0], "a stale request: number 1; 4 was answered"),
        (msgspec.msgpack.encode(Request(last.run, 4, [])), "another request with the serial number 4"),
        (msgspec.msgpack.encode(Request(bytes(32), 9, last.items)), "a request of another run or under other terms"),
        (msgspec.msgpack.encode(Request(small.digest, 9, [])), "a request of another run or under other terms"),
        (requests[1][:-3], "a request cannot be read"),
        (b"\xc1", "a request cannot be read"),
        (b"", "a request cannot be read"),
    ):
        reply = reply_of(party, request)
        assert reason in reply.error
        assert reply.answers == []
    party.agreement = msgspec.structs.replace(party.agreement, largest_bytes=1_000)
    assert "a message of 5,000 bytes; at most 1,000 are read" in reply_of(party, bytes(5_000)).error
    for name, table in party.task.snapshot().items():
        assert torch.equal(table, tables[name])


def test_the_same_request_gets_the_same_reply_also_after_a_restart(asked: tuple[Any, list[bytes]]) -> None:
    apart, requests = asked
    before = apart.parties["hospital-2"].answer(requests[-1])
    apart.restart("hospital-2")
    assert apart.parties["hospital-2"].answer(requests[-1]) == before


def test_steps_that_a_party_does_not_do_are_refused_by_name(asked: tuple[Any, list[bytes]]) -> None:
    apart, requests = asked
    party = apart.parties["hospital-2"]
    run = msgspec.msgpack.decode(requests[-1], type=Request).run
    party.order.position = Position(last={"broadcast entities": 0})
    for serial, (item, reason) in enumerate(
        (
            ({"step": "upload", "round": 2, "table": "entities"}, "in which this client did not train"),
            ({"step": "upload", "round": 3, "table": "graphs"}, "'graphs' is no shared table of fede"),
            ({"step": "union", "table": "entities"}, "the agreement has no defense"),
            ({"step": "place", "table": "entities", "content": encode(Placed(10**9))}, "a table has 1 to 10,000,000"),
            ({"step": "place", "table": "entities", "content": b"x"}, "a placed cannot be read"),
            ({"step": "keep", "round": 1}, "the models of round 1 are to be kept"),
            ({"step": "broadcast", "round": 2, "table": "entities", "frames": []}, "0 messages"),
            ({"step": "broadcast", "round": 2, "table": "entities", "frames": [b"x"]}, "a message cannot be read"),
            ({"step": "broadcast", "round": 9, "table": "entities", "frames": [b"x"]}, "round 9; allowed: 0..2"),
        ),
        start=10,
    ):
        (answer,) = reply_of(party, request(run, serial, item)).answers
        assert reason in answer.silence
    missing = request(run, 90, {"step": "keep", "round": 1, "lasting": 90})
    assert "number 90 of what lasts" in reply_of(party, missing).error


def request(run: bytes, serial: int, item: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode({"run": run, "serial": serial, "items": [item]})


def with_upload(reply: Reply, frames: list[bytes]) -> Reply:
    answers = [*reply.answers[:-1], Answer(frames=frames)]
    return Reply(reply.run, reply.serial, reply.party, answers)


def upload_of(reply: Reply) -> Rows:
    assert reply.answers[-1].frames
    (message,) = (messages.decode(frame) for frame in reply.answers[-1].frames)
    assert isinstance(message, Rows)
    return message


def changed_upload(**changes: Any) -> Callable[[Reply], Reply]:
    def change(reply: Reply) -> Reply:
        message = msgspec.structs.replace(upload_of(reply), **changes)
        return with_upload(reply, [messages.encode(message)])

    return change


FAULTS: list[tuple[Callable[[Reply], Any], str]] = [
    (lambda reply: b"\xc1", "a reply cannot be read"),
    (lambda reply: Reply(reply.run, 1, reply.party, reply.answers), "a reply of 'client/hospital-2' to request 1; "),
    (
        lambda reply: Reply(reply.run, reply.serial, "client/hospital-1", reply.answers),
        "a reply of 'client/hospital-1' to request ",
    ),
    (lambda reply: Reply(reply.run, reply.serial, reply.party, reply.answers[:-1]), "answers to"),
    (lambda reply: with_upload(reply, [b"junk"]), "a message cannot be read"),
    (lambda reply: with_upload(reply, []), "sent 0 messages where one was due"),
    (lambda reply: with_upload(reply, reply.answers[-1].frames * 2), "sent 2 messages where one was due"),
    (changed_upload(sender="client/hospital-1"), "was to be sent"),
    (changed_upload(round=1), "was to be sent"),
    (changed_upload(data=b""), "bytes do not hold"),
    (changed_upload(num_rows=1, width=4, data=bytes(16)), "uploaded 1 rows of entities"),
]
"""A fault in the reply with one party's upload, one in each round, and the reason that the server gives."""


def test_a_reply_at_fault_is_left_out_and_the_run_goes_on(consortium: Callable[..., Any]) -> None:
    apart, uploads = consortium(rounds=len(FAULTS)), list[str]()

    def fault(stage: str, party: str, request: bytes) -> bytes | None:
        if party != VICTIM or not stage.endswith("upload"):
            return None
        uploads.append(stage)
        changed = FAULTS[len(uploads) - 1][0](reply_of(apart.parties["hospital-2"], request))
        return changed if isinstance(changed, bytes) else msgspec.msgpack.encode(changed)

    apart.fault = fault
    server, progress = apart.train()
    assert uploads == [f"round {number}: upload" for number in range(1, len(FAULTS) + 1)]
    for entry, (_, reason) in zip(progress.rounds[1:], FAULTS, strict=True):
        assert reason in entry.excluded[VICTIM]
        assert entry.num_survivors == 2
    assert_mean_of(server.transcript, len(FAULTS), ("client/hospital-1", "client/hospital-3"))


def assert_mean_of(transcript: Transcript, round: int, senders: tuple[str, ...]) -> None:
    """What was sent after a round is, name by name, the mean of what these uploaded."""
    names = {one.sender: one.names for one in transcript.messages(0) if isinstance(one, Alignment)}
    sent = [one for one in transcript.messages(round) if isinstance(one, Rows)]
    rows: dict[str, list[torch.Tensor]] = {}
    for one in sent:
        if one.sender in senders:
            for name, row in zip(names[one.sender], one.unpack(), strict=False):
                rows.setdefault(name, []).append(row)
    broadcast = next(one for one in sent if one.receiver == senders[0])
    checked = 0
    for name, row in zip(names[senders[0]], broadcast.unpack(), strict=True):
        if name in rows:
            assert torch.allclose(row, torch.stack(rows[name]).mean(dim=0), atol=1e-6)
            checked += 1
    assert checked > 20


def test_a_party_tells_nothing_of_values_that_it_cut(
    consortium: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The number would tell a server that sends a table just above the clip which rows the party holds. The party logs it."""
    apart, answers = consortium(rounds=2, defense="psu,secagg:clip=0.76"), list[Answer]()
    alone = apart.ask

    def listening(stage: str, requests: Any) -> Any:
        for party, reply in alone(stage, requests):
            items = msgspec.msgpack.decode(requests[party], type=Request).items
            said = msgspec.msgpack.decode(reply, type=Reply).answers
            answers.extend(one for item, one in zip(items, said, strict=True) if item.step == "upload")
            yield party, reply

    apart.ask = listening
    _, progress = apart.train()
    assert len([record for record in caplog.records if "were cut to the secagg clip of 0.76" in record.message]) == 3
    assert progress.rounds[1].num_survivors == 3
    assert len(answers) > 20
    assert {answer.content for answer in answers} == {b""}
    assert [entry.num_clipped for entry in progress.rounds] == [0, 0, 0]


def test_late_and_second_replies_change_nothing(consortium: Callable[..., Any]) -> None:
    apart = consortium(rounds=2)
    alone = apart.ask

    def twice(stage: str, requests: Any) -> Any:
        replies = list(alone(stage, requests))
        yield from replies
        yield from [(party, b"late") for party, _ in replies]
        yield "client/stranger", b"hello"

    apart.ask = twice
    _, progress = apart.train()
    assert [entry.excluded for entry in progress.rounds] == [{}, {}, {}]
    assert [entry.num_survivors for entry in progress.rounds] == [0, 3, 3]
