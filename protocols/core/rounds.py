"""A round of a protocol as a pair of generators, one for the server and one for each client, and a driver that runs both.

    >>> def asking(parties):                                            # the server's: it yields requests
    ...     replies = yield Ask("number", dict.fromkeys(parties, b"your number?"))
    ...     return sum(int(frame) for _, frame in replies)
    >>> def answering(number):                                          # a client's: it yields replies
    ...     request = yield NOTHING
    ...     yield str(number).encode()
    >>> run(asking(["a", "b"]), {"a": answering(2), "b": answering(3)}).result
    5

The server yields an `Ask` (requests by party) and receives the replies: pairs (party, frame) in the order of the requests, to be
read once. A party without a reply is silent, as after a dropout. A `Silence` instead of a frame gives the reason, if it is known.
The generator returns the server's result. It holds no object of a client, so clients may be other processes. It sums in the order
of the requests, never in that of arrival.

A client yields a reply to each request. Its first reply answers an empty request, and is empty (`NOTHING`) if it must receive
something before it can speak. When a request ends its part, it returns its result without a reply.

A frame is bytes, or anything else that a driver carries as one piece (an exchange of tables: typed messages that the channel
encodes). Only frames are transmitted, and an empty one is not: an empty request merely gives a party the turn. So a driver may
send the reply to it with an earlier one, such as the first message of the next round with the last of this one. A protocol that
begins with an empty request (secure aggregation) takes a first request from the surrounding protocol (an announcement, a
broadcast).

`run` is the driver for one process. A driver for a network passes the arriving frames to the server's `send`, and uses
`Party.answer` at the client.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from fkgsec.protocols.core.errors import ProtocolError, UnexpectedMessage, describe

SERVER = "server"
NOTHING = b""


class Silence(NamedTuple):
    """In place of a frame: why none arrived, as the channel or the client itself says."""

    reason: str


class Ask(NamedTuple):
    """Requests of a server: one for each party whose reply it needs to continue.

    Attributes:
        stage: what the protocol calls this exchange.
        requests: frames by party, in the order in which replies are to come.
    """

    stage: str
    requests: Mapping[str, Any]


Result = TypeVar("Result")
Reply = Any  # a frame, or a `Silence`
Replies = Iterable[tuple[str, Reply]]
ServerRound = Generator[Ask, Replies, Result]
ClientRound = Generator[Reply, Any, Result]
Deliver = Callable[[str, str, str, Any], Sequence[Any]]
"""(stage, sender, receiver, frame) -> the frames that arrive: none where it is lost, several where it is repeated, others where
it is altered. It raises a `ProtocolError` where something arrives that nobody can read."""


def direct(stage: str, sender: str, receiver: str, frame: Any) -> Sequence[Any]:
    """Deliver without faults: each frame arrives once."""
    return (frame,)


class Party(Generic[Result]):
    """A client's generator in a driver: one request in, one reply out.

    Attributes:
        finished: whether its part is over.
        result: its return value, once finished.
    """

    def __init__(self, steps: ClientRound[Result]) -> None:
        self._steps = steps
        self.finished = False
        self.result: Result | None = None

    def answer(self, request: Any) -> Reply:
        """Send a request to the client and return its reply.

        Args:
            request: frame from the server; `NOTHING` for a turn to speak.

        Returns:
            The reply; `NOTHING` if the client has none or has finished, also after an error.

        Raises:
            UnexpectedMessage: the first request, to a client that speaks first, is not empty.
            Exception: whatever the client raises.
        """
        if self.finished:
            return NOTHING
        try:
            if inspect.getgeneratorstate(self._steps) == inspect.GEN_CREATED:
                # A generator must run to its first `yield` before it can receive. What it yields there answers an empty request.
                first = next(self._steps)
                if request == NOTHING:
                    return first
                if first != NOTHING:
                    raise UnexpectedMessage(f"a request of length {len(request)} came to a client that speaks first")
            return self._steps.send(request)
        except StopIteration as end:
            self.finished, self.result = True, end.value
            return NOTHING

    def close(self) -> None:
        """End the client's part and release its private values."""
        self._steps.close()


class Outcome(NamedTuple, Generic[Result]):
    """Outcome of a round: the server's result, and by party those of the clients that finished."""

    result: Result
    clients: dict[str, object]


def run(server: ServerRound[Result], clients: Mapping[str, ClientRound], deliver: Deliver = direct) -> Outcome[Result]:
    """Run a round with all its parties in this process, each frame through `deliver`.

    Args:
        clients: generators by name. A requested party that is missing here is silent.
        deliver: returns the frames that arrive; the first arrival of a repeated request counts.

    Raises:
        Exception: what the server or a client raises. (On separate machines a client that raises is silent.)
    """
    parties = {name: Party(steps) for name, steps in clients.items()}
    try:
        # A reply is computed when the server reads it, so one upload is in memory at a time. All requests of an `Ask`
        # are delivered before the first is answered, as on a network.
        replies: Iterator[tuple[str, Reply]] | None = None
        while True:
            try:
                ask = next(server) if replies is None else server.send(replies)
            except StopIteration as end:
                _read_rest(replies)
                return Outcome(end.value, {name: party.result for name, party in parties.items() if party.finished})
            _read_rest(replies)
            replies = _replies(ask, parties, deliver)
    finally:
        server.close()
        for party in parties.values():
            party.close()


def _replies(ask: Ask, parties: Mapping[str, Party], deliver: Deliver) -> Iterator[tuple[str, Reply]]:
    """Deliver the requests; then answer one after the other."""
    arrived = {name: _crossed(deliver, ask.stage, SERVER, name, frame) for name, frame in ask.requests.items()}

    def answers() -> Iterator[tuple[str, Reply]]:
        """Yield the reply of one party after the other."""
        for name, requests in arrived.items():
            if isinstance(requests, Silence):
                yield name, requests
                continue
            reply = parties[name].answer(requests[0]) if requests and name in parties else NOTHING
            crossed = reply if isinstance(reply, Silence) else _crossed(deliver, ask.stage, name, SERVER, reply)
            if isinstance(crossed, Silence):
                yield name, crossed
            else:
                yield from ((name, frame) for frame in crossed if frame != NOTHING)

    return answers()


def _crossed(deliver: Deliver, stage: str, sender: str, receiver: str, frame: Any) -> Sequence[Any] | Silence:
    """The frames that arrive; `Silence` where nobody can read what does."""
    if frame == NOTHING:
        return (frame,)
    try:
        return deliver(stage, sender, receiver, frame)
    except ProtocolError as error:
        return Silence(describe(error))


def _read_rest(replies: Iterator[tuple[str, Reply]] | None) -> None:
    """Clients receive what they were sent also where the server does not wait for an answer."""
    for _ in replies or ():
        pass
