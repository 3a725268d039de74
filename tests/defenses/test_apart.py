"""Server and clients that share no object, and speak in bytes: the halves give what the driver of one process gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from fkgsec.defenses import rounds as defended
from fkgsec.defenses.bound_broadcasts import ReceivedBroadcasts, SentBroadcasts
from fkgsec.defenses.broadcasts import commitment_of_names
from fkgsec.defenses.client import DefendedClient
from fkgsec.defenses.server import DefendedServer
from fkgsec.defenses.terms import Entropy, Terms
from fkgsec.defenses.transport import make_transport
from fkgsec.errors import FkgsecError
from fkgsec.exchange import AGGREGATIONS, CODECS, Holding, Received, SharedTable, rounds
from fkgsec.exchange.client import TableClient
from fkgsec.exchange.server import TableServer
from fkgsec.federation.messages import SERVER, Channel, decode, encode
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.options import KgeOptions
from fkgsec.protocols.core.rounds import NOTHING, Party, Silence

HELD = {"client/a": ["x", "p", "y"], "client/b": ["y", "x"], "client/c": ["z", "y", "x", "q"]}
PARTIES, RUN, WIDTH, TABLE = tuple(HELD), "a run", 3, "entities"
Rows = Mapping[str, Tensor]


def rows_of(number: int) -> Rows:
    """What training leaves in a round, drawn."""
    drawn = torch.Generator().manual_seed(number)
    return {party: torch.rand(len(names), WIDTH, generator=drawn) for party, names in HELD.items()}


def first_rows(names: Sequence[str]) -> Tensor:
    return torch.tensor([[ord(name) / 256] * WIDTH for name in names])


def to_bytes(frame: Any) -> bytes:
    return NOTHING if frame == NOTHING else msgspec.msgpack.encode([encode(message) for message in frame])


def of_bytes(frame: bytes) -> Any:
    return (
        NOTHING if frame == NOTHING else tuple(decode(one) for one in msgspec.msgpack.decode(frame, type=list[bytes]))
    )


class Machine:
    """One client with its own rows, key and randomness; what it knows of the others it was told as a participant of the run."""

    def __init__(self, party: str, options: KgeOptions) -> None:
        recipe = RECIPES[options.algorithm]
        codec, aggregation = CODECS[recipe.codec], AGGREGATIONS[recipe.aggregation]
        names = HELD[party]
        self.client = TableClient(party, TABLE, Holding(names, len(names)), codec, aggregation, options)
        self.defended: Any = None
        if options.defense:
            terms, entropy = Terms(options, PARTIES, (TABLE,), codec), Entropy.drawn(options, RUN)
            terms.agree(entropy)
            self.defended = DefendedClient(party, terms, entropy.of(PARTIES.index(party)), ReceivedBroadcasts)
            self.defended.join(self.client)
        self.part: Party[Any] = Party(rounds.client_alignment(self.client))  # of the round that is on
        self.log: list[bytes] = []

    def told(self, names: Sequence[str], *, bind: bool) -> None:
        """The names of the table's rows: from a private union, or as the server announces them."""
        if self.defended:
            self.defended.terms.prepare(TABLE, len(names), WIDTH, 1)
            self.defended.place(TABLE, names, bind=bind)

    def answer(self, request: bytes) -> bytes | Silence:
        reply = self.part.answer(of_bytes(request))
        return reply if isinstance(reply, Silence) else to_bytes(reply)


def over_bytes(server: Any, machines: Mapping[str, Machine], crossed: list[bytes]) -> Any:
    """The driver of a network: frames are bytes on the way, and nobody holds a client's generator but its machine."""
    try:
        ask = next(server)
        while True:
            requests = {party: to_bytes(frame) for party, frame in ask.requests.items()}
            crossed += [request for request in requests.values() if request]
            replies = {party: machines[party].answer(request) for party, request in requests.items()}
            crossed += [reply for reply in replies.values() if isinstance(reply, bytes) and reply]
            spoken = {party: reply for party, reply in replies.items() if reply != NOTHING}
            ask = server.send(
                (party, reply if isinstance(reply, Silence) else of_bytes(reply)) for party, reply in spoken.items()
            )
    except StopIteration as end:
        return end.value


class Apart:
    """A federation of one table on four machines."""

    def __init__(self, options: KgeOptions) -> None:
        recipe = RECIPES[options.algorithm]
        codec, aggregation = CODECS[recipe.codec], AGGREGATIONS[recipe.aggregation]
        self.options, self.crossed = options, list[bytes]()
        self.machines = {party: Machine(party, options) for party in PARTIES}
        self.server = TableServer(SharedTable(TABLE, PARTIES), codec, aggregation, options)
        self.central: Any = None
        if options.defense:
            self.terms, self.entropy = Terms(options, PARTIES, (TABLE,), codec), Entropy.drawn(options, RUN)
            self.terms.agree(self.entropy)
            self.central = DefendedServer(self.terms, {TABLE: self.server}, SentBroadcasts())

    def step(self, server: Any, part: Callable[[Machine], Any]) -> Any:
        for machine in self.machines.values():
            machine.part = Party(part(machine))
        return over_bytes(server, self.machines, self.crossed)

    def align(self) -> None:
        if "psu" in self.options.defense:
            randomness = self.entropy.of(len(PARTIES)).randomness("psu", TABLE, 0)
            found = self.step(
                defended.server_union(self.terms, TABLE, randomness),
                lambda one: defended.client_union(one.defended, TABLE),
            )
            names = self.server.shared.names = list(found.identifiers)
            self.central.log.extend(f"names of {TABLE}", 0, commitment_of_names(names))
            for machine in self.machines.values():
                machine.told(machine.part.result, bind=True)
        else:
            self.step(rounds.server_alignment(self.server, PARTIES), lambda one: rounds.client_alignment(one.client))
            names = self.server.shared.names
            for machine in self.machines.values():
                machine.told(names, bind=False)
        self.server.initialise(first_rows(names))
        if self.central:
            self.terms.prepare(TABLE, len(names), WIDTH, 1)

    def broadcast(self, number: int) -> dict[str, Received]:
        if not self.central:
            self.step(
                rounds.server_broadcast(self.server, number, PARTIES),
                lambda one: rounds.client_broadcast(one.client, number),
            )
        else:
            content = self.central.content(number, TABLE)
            told = self.central.commit(TABLE, content)
            self.step(
                defended.server_broadcast(self.central, number, TABLE, dict.fromkeys(PARTIES, content), told),
                lambda one: defended.client_broadcast(one.defended, number, TABLE),
            )
        return {party: machine.part.result for party, machine in self.machines.items()}  # type: ignore[misc]

    def upload(self, number: int, rows: Rows) -> None:
        if not self.central:
            self.step(
                rounds.server_upload(self.server, number, PARTIES),
                lambda one: rounds.client_upload(one.client, number, rows[one.client.party]),
            )
            return
        for party, machine in self.machines.items():
            machine.defended.begin(number, TABLE, rows[party])
        self.step(
            defended.server_upload(self.central, number, TABLE, PARTIES, lambda opened: None),
            lambda one: defended.client_upload(one.defended, number, TABLE, PARTIES),
        )


@pytest.mark.parametrize(
    ("algorithm", "defense"),
    [
        *[(name, "") for name in ("fede", "feds", "pfedeg")],
        *[("fede", defense) for defense in ("secagg", "psu,secagg", "secagg,suppress:t=2", "psu,secagg,suppress:t=2")],
        ("feds", "secagg"),
        ("feds", "secagg,suppress:t=2"),
    ],
)
def test_four_machines_give_the_table_and_the_bytes_of_one_process(
    algorithm: str, defense: str, options: KgeOptions
) -> None:
    options = replace(options, algorithm=algorithm, defense=defense, rounds=3)
    apart, channel = Apart(options), Channel()
    together = make_transport(channel, options, PARTIES, (TABLE,), RUN)
    apart.align()
    together.align(TABLE, {party: Holding(names, len(names)) for party, names in HELD.items()})
    together.initialise(TABLE, first_rows(together.server[TABLE].names))
    for number in range(4):
        if number:
            rows = rows_of(number)
            apart.upload(number, rows)
            together.upload(number, TABLE, rows)
        here, there = apart.broadcast(number), together.broadcast(number, TABLE, PARTIES)
        assert torch.equal(apart.server.shared.rows, together.server[TABLE].rows)
        for party in PARTIES:
            for one, other in zip(here[party], there[party], strict=True):
                assert (one is None and other is None) or torch.equal(one, other)
    sent = [message for frame in apart.crossed for message in msgspec.msgpack.decode(frame, type=list[bytes])]
    assert sorted(sent) == sorted(frame for frames in channel.transcript.frames.values() for frame in frames)
    assert any(decode(frame).receiver == SERVER for frame in sent)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("stage", ["broadcast-claim", "share", "mask"])
def test_a_client_that_sends_no_message_or_two_in_a_frame_is_left_out(
    stage: str, count: int, options: KgeOptions
) -> None:
    transport: Any = make_transport(Channel(), replace(options, defense="secagg:threshold=2"), PARTIES, (TABLE,), RUN)
    transport.align(TABLE, {party: Holding(names, len(names)) for party, names in HELD.items()})
    transport.initialise(TABLE, first_rows(transport.server[TABLE].names))
    transport.broadcast(0, TABLE, PARTIES)
    deliver = transport._deliver

    def faulty(at: str, sender: str, receiver: str, frame: Any) -> Any:
        (arrived,) = deliver(at, sender, receiver, frame)
        return (arrived * count if (at, sender) == (stage, "client/b") else arrived,)

    transport._deliver = faulty
    outcome = transport.upload(1, TABLE, rows_of(1))
    due = f"{count} messages where one was due"
    if stage == "broadcast-claim":  # with which keys come
        due = f"{2 * count} messages where a claim and keys are due"
    assert f"client/b sent {due}" in outcome.excluded["client/b"]
    assert outcome.num_survivors == 2


@pytest.mark.parametrize("defense", ["", "secagg", "psu,secagg,suppress:t=2"])
def test_a_client_refuses_a_broadcast_of_no_message(defense: str, options: KgeOptions) -> None:
    apart = Apart(replace(options, defense=defense, rounds=1))
    apart.align()
    machine = apart.machines["client/a"]
    machine.part = Party(
        defended.client_broadcast(machine.defended, 0, TABLE) if defense else rounds.client_broadcast(machine.client, 0)
    )
    with pytest.raises(FkgsecError, match="0 messages"):
        machine.answer(msgspec.msgpack.encode([]))
