"""Who can reach what: no object of a client from the server's half, none of the server's from a client's, by any reference."""

from __future__ import annotations

import functools
import gc
import itertools
import types
from collections.abc import Iterator

import msgspec
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from fkgsec.defenses import make_transport
from fkgsec.defenses.bound_broadcasts import ReceivedBroadcasts
from fkgsec.defenses.client import DefendedClient
from fkgsec.defenses.server import DefendedServer
from fkgsec.defenses.terms import Entropy, PartyEntropy
from fkgsec.defenses.transport import DefendedTransport
from fkgsec.exchange import Aggregation, Holding, SharedTable, Transport
from fkgsec.exchange.client import TableClient
from fkgsec.exchange.codec import ClientCodec, ServerCodec
from fkgsec.exchange.server import TableServer
from fkgsec.federation.messages import Channel
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.options import KgeOptions

CLIENTS = (TableClient, ClientCodec, DefendedClient, ReceivedBroadcasts, PartyEntropy, Entropy, Ed25519PrivateKey)
SERVERS = (TableServer, ServerCodec, DefendedServer, Aggregation, SharedTable)
PARTIES = ("client/a", "client/b", "client/c")


def reachable(*starts: object) -> Iterator[object]:
    """Everything that these refer to, through attributes, containers, closures and bound methods; not through code."""
    seen, waiting = set[int](), list(starts)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, Tensor):
            continue
        if isinstance(one, types.FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or ()] + list(one.__defaults__ or ())
        elif isinstance(one, functools.partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        else:
            waiting += gc.get_referents(one)


def after_two_rounds(algorithm: str, defense: str) -> Transport:
    """A transport that has aligned, sent and summed."""
    options = KgeOptions(algorithm=algorithm, dim=8, defense=defense, protocol_seed=0, device="cpu")
    (table,) = RECIPES[algorithm].shared
    transport = make_transport(Channel(), options, PARTIES, (table,), "a run")
    transport.align(table, {party: Holding([party, "x", "y"], 3) for party in PARTIES})
    transport.initialise(table, torch.rand(5, 16 if "svd" in algorithm else 8))
    transport.broadcast(0, table, PARTIES)
    for number in (1, 2):
        stacked = torch.rand(len(PARTIES), 3, 16 if "svd" in algorithm else 8)  # as a task has the rows of all clients
        transport.upload(number, table, dict(zip(PARTIES, stacked, strict=True)))
        transport.broadcast(number, table, PARTIES)
    return transport


CASES = [
    *[(name, "") for name in ("fede", "fedr", "feds", "pfedeg")],
    *[("fede", defense) for defense in ("psu,secagg", "secagg,suppress:t=2", "dp:clip=1,epsilon=5")],
    ("feds", "secagg"),
]


@pytest.mark.parametrize(("algorithm", "defense"), CASES)
def test_neither_half_reaches_the_other(algorithm: str, defense: str) -> None:
    transport = after_two_rounds(algorithm, defense)
    server, clients = list(transport.servers.values()), list(transport.clients.values())
    if isinstance(transport, DefendedTransport):
        server, clients = [*server, transport.central], [*clients, transport.defended]
    found = list(reachable(*server))
    assert len(found) > 20
    assert not [one for one in found if isinstance(one, CLIENTS)]
    assert any(isinstance(one, SharedTable) for one in found)
    found = list(reachable(*clients))
    assert not [one for one in found if isinstance(one, SERVERS)]
    assert sum(isinstance(one, TableClient) for one in found) == len(PARTIES)


def can_change(one: object) -> bool:
    """Whether it is an object with content of its own that its holder could alter, or a secret key."""
    if isinstance(one, msgspec.Struct):
        return not one.__struct_config__.frozen
    fixed = (str, bytes, int, float, bool, tuple, frozenset, types.FunctionType, types.BuiltinFunctionType)
    return one is not None and not isinstance(one, fixed) and type(one).__module__ != "torch"


@pytest.mark.parametrize(("algorithm", "defense"), CASES)
def test_a_party_shares_no_object_and_no_memory_with_another(algorithm: str, defense: str) -> None:
    """But for the terms, which are public: its client's half, keys and randomness could stand on another machine."""
    transport = after_two_rounds(algorithm, defense)
    halves: dict[str, list[object]] = {"server": [*transport.servers.values()]}
    halves |= {party: [clients[party] for clients in transport.clients.values()] for party in PARTIES}
    public: set[int] = set()
    if isinstance(transport, DefendedTransport):
        halves["server"].append(transport.central)
        for party in PARTIES:
            halves[party].append(transport.defended[party])
        terms = list(reachable(transport.terms))
        assert not [one for one in terms if isinstance(one, CLIENTS + SERVERS)]
        public = {id(one) for one in terms}
    for one, other in itertools.combinations(halves, 2):
        here, there = (list(reachable(*halves[party])) for party in (one, other))
        shared = {id(thing) for thing in here if can_change(thing)} & {id(thing) for thing in there} - public
        assert not [type(thing) for thing in here if id(thing) in shared], (one, other)
        memory = [{t.untyped_storage().data_ptr() for t in things if isinstance(t, Tensor)} for things in (here, there)]
        assert not (memory[0] & memory[1]) - {0}, (one, other)


def test_what_one_client_draws_says_nothing_of_another() -> None:
    """From all that the first client holds, tried as what keys derive from, no other's identity follows."""
    transport = after_two_rounds("fede", "psu,secagg")
    assert isinstance(transport, DefendedTransport)
    held = [one for one in reachable(transport.defended["client/a"]) if isinstance(one, bytes) and len(one) == 32]
    keys = dict(transport.terms.keys)
    made = {
        party
        for one in held
        for party, key in keys.items()
        for place in range(3)
        for entropy in (Entropy(one, "a run").of(place), PartyEntropy(one, one, "a run"))
        if entropy.identity.public_key().public_bytes_raw() == key
    }
    assert made == {"client/a"}


def test_the_walk_would_notice() -> None:
    """An attribute, a list in a dictionary, a closure, a bound method."""
    client = after_two_rounds("fede", "").clients["entities"]["client/a"]
    server = TableServer.__new__(TableServer)
    for hidden in (client, {"a": [client]}, lambda: client, client.receive, functools.partial(print, client)):
        server.hidden = hidden  # type: ignore[attr-defined]
        assert any(isinstance(one, TableClient) for one in reachable(server))
