"""The driver: what it delivers, in which order, and what a server and a client see of each fault."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest

from fkgsec.protocols.core.errors import MalformedMessage, ProtocolError, UnexpectedMessage
from fkgsec.protocols.core.rounds import (
    NOTHING,
    SERVER,
    Ask,
    ClientRound,
    Party,
    Replies,
    Reply,
    ServerRound,
    Silence,
    run,
)
from tests.protocols.sessions import Tally

Crossed = tuple[str, str, str, bytes]


def counting(parties: Sequence[str], stages: int = 2) -> ServerRound[list[list[tuple[str, Reply]]]]:
    """Asks every party its turn, then for a few numbers; returns all replies, and tells the clients that it is over."""
    heard = [list((yield Ask("hello", dict.fromkeys(parties, NOTHING))))]
    for stage in range(stages):
        heard.append(list((yield Ask(f"stage {stage}", dict.fromkeys(parties, b"%d" % stage)))))
    yield Ask("end", dict.fromkeys(parties, b"end"))
    return heard


def client(name: str, log: list[str] | None = None) -> ClientRound[int]:
    """Says its name, then echoes numbers with it; returns how many."""
    reply, count = name.encode(), 0
    while (request := (yield reply)) != b"end":
        count += 1
        reply = name.encode() + request
        if log is not None:
            log.append(f"{name} answers {request.decode()}")
    return count


class Wire:
    """Records what is sent; loses, repeats, alters or spoils the frames of some crossings, by (stage, sender, receiver)."""

    def __init__(self, faults: dict[tuple[str, str, str], Sequence[bytes] | ProtocolError] | None = None) -> None:
        self.faults, self.log = faults or {}, list[Crossed]()

    def __call__(self, stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        self.log.append((stage, sender, receiver, frame))
        fault = self.faults.get((stage, sender, receiver), (frame,))
        if isinstance(fault, ProtocolError):
            raise fault
        return fault


def two(wire: Wire | Tally) -> tuple[list[list[tuple[str, Reply]]], dict[str, object]]:
    outcome = run(counting(["a", "b"]), {"b": client("b"), "a": client("a")}, wire)
    return outcome.result, outcome.clients


def test_all_requests_arrive_before_the_first_reply_in_the_order_of_the_requests() -> None:
    wire = Wire()
    heard, clients = two(wire)
    assert heard == [[("a", b"a"), ("b", b"b")], [("a", b"a0"), ("b", b"b0")], [("a", b"a1"), ("b", b"b1")]]
    assert clients == {"a": 2, "b": 2}
    assert wire.log == [
        ("hello", "a", SERVER, b"a"),
        ("hello", "b", SERVER, b"b"),
        *(
            crossed
            for number in range(2)
            for crossed in (
                *((f"stage {number}", SERVER, name, b"%d" % number) for name in "ab"),
                *((f"stage {number}", name, SERVER, name.encode() + b"%d" % number) for name in "ab"),
            )
        ),
        ("end", SERVER, "a", b"end"),
        ("end", SERVER, "b", b"end"),
    ]


def test_bytes_are_counted_where_they_leave_and_where_they_arrive() -> None:
    tally = Tally(Wire({("stage 0", "a", SERVER): (), ("stage 1", SERVER, "b"): (b"1", b"1")}))
    two(tally)
    assert tally.sent == {"a": 1 + 2 + 2, "b": 1 + 2 + 2, SERVER: 2 * (1 + 1 + 3)}
    assert tally.received == {"a": 1 + 1 + 3, "b": 1 + 2 + 3, SERVER: 1 + 1 + 2 + 2 + 2}


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ({("stage 0", "a", SERVER): ()}, []),
        ({("stage 0", SERVER, "a"): ()}, []),
        ({("stage 0", "a", SERVER): (b"a0", b"a0", b"other")}, [b"a0", b"a0", b"other"]),
        ({("stage 0", "a", SERVER): (b"altered",)}, [b"altered"]),
        ({("stage 0", SERVER, "a"): (b"7", b"8")}, [b"a7"]),
        ({("stage 0", "a", SERVER): MalformedMessage("noise")}, [Silence("MalformedMessage: noise")]),
        ({("stage 0", SERVER, "a"): MalformedMessage("noise")}, [Silence("MalformedMessage: noise")]),
    ],
)
def test_what_the_server_sees_of_a_fault(fault: dict, seen: list[Reply]) -> None:
    heard, _ = two(Wire(fault))
    assert heard[1] == [*(("a", reply) for reply in seen), ("b", b"b0")]
    assert heard[2] == [("a", b"a1"), ("b", b"b1")]  # whoever missed one request answers the next


def test_a_party_without_a_client_is_silent_and_is_sent_its_requests_all_the_same() -> None:
    wire = Wire()
    heard = run(counting(["a", "b"]), {"a": client("a")}, wire).result
    assert [[name for name, _ in replies] for replies in heard] == [["a"]] * 3
    assert ("stage 0", SERVER, "b", b"0") in wire.log


def test_one_reply_is_computed_at_a_time() -> None:
    log: list[str] = []

    def server() -> ServerRound[None]:
        for name, _ in (yield Ask("add", {"a": b"1", "b": b"1"})):
            log.append(f"server reads {name}")

    with pytest.raises(UnexpectedMessage, match="a request of length 1 came to a client that speaks first"):
        run(server(), {"a": client("a")})
    log.clear()

    def late(name: str) -> ClientRound[int]:
        request = yield NOTHING
        log.append(f"{name} answers {request.decode()}")
        return len((yield b"reply"))

    run(server(), {"a": late("a"), "b": late("b")})
    assert log == ["a answers 1", "server reads a", "b answers 1", "server reads b"]


def test_clients_receive_what_the_server_does_not_wait_for() -> None:
    def telling() -> ServerRound[str]:
        yield Ask("tell", {"a": b"first"})
        yield Ask("tell", {"a": b"second"})
        return "done"

    def listening() -> ClientRound[list[bytes]]:
        return [(yield NOTHING), (yield NOTHING)]

    assert run(telling(), {"a": listening()}) == ("done", {"a": [b"first", b"second"]})


def test_a_server_that_asks_nothing() -> None:
    def server() -> ServerRound[str]:
        return "done"
        yield

    assert run(server(), {"a": client("a")}) == ("done", {})


def test_a_client_that_says_why_it_leaves_is_no_message() -> None:
    wire = Wire()

    def leaving() -> ClientRound[None]:
        yield Silence("too few")

    def server() -> ServerRound[list]:
        return [*(yield Ask("hello", {"a": NOTHING})), *(yield Ask("more", {"a": b"?"}))]

    assert run(server(), {"a": leaving()}, wire) == ([("a", Silence("too few"))], {"a": None})
    assert wire.log == [("more", SERVER, "a", b"?")]


def test_what_a_client_raises_ends_the_round_and_everybody_is_closed() -> None:
    closed: list[str] = []

    def closing(name: str, steps: Generator) -> Generator:
        try:
            return (yield from steps)
        finally:
            closed.append(name)

    def failing() -> ClientRound[None]:
        yield b"a"
        raise MalformedMessage("the server is at fault")

    clients = {"a": closing("a", failing()), "b": closing("b", client("b"))}
    with pytest.raises(MalformedMessage, match="at fault"):
        run(closing(SERVER, counting(["b", "a"])), clients)
    assert sorted(closed) == ["a", "b", SERVER]


def test_a_party_answers_until_it_is_done() -> None:
    party = Party(client("a"))
    assert [party.answer(frame) for frame in (NOTHING, b"7", b"end", b"8")] == [b"a", b"a7", NOTHING, NOTHING]
    assert (party.finished, party.result) == (True, 1)


def test_a_server_may_get_its_replies_from_anywhere() -> None:
    """What another driver does: no client is in this process."""
    server = counting(["a"], stages=1)
    sent: list[Ask] = [next(server)]
    replies: Replies = [("a", b"hello")]
    sent.append(server.send(replies))
    sent.append(server.send([("a", Silence("gone"))]))
    with pytest.raises(StopIteration) as end:
        server.send(())
    assert [ask.stage for ask in sent] == ["hello", "stage 0", "end"]
    assert end.value.value == [[("a", b"hello")], [("a", Silence("gone"))]]
