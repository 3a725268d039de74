"""Who can reach what: no object of a client from the server's half, none of the server's from a client's, by any reference."""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Iterator

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from defenses import make_transport
from defenses.bound_broadcasts import ReceivedBroadcasts
from defenses.client import DefendedClient
from defenses.server import DefendedServer
from defenses.terms import Entropy
from defenses.transport import DefendedTransport
from fkgsec.exchange import Aggregation, Holding, SharedTable, Transport
from fkgsec.exchange.client import TableClient
from fkgsec.exchange.codec import ClientCodec, ServerCodec
from fkgsec.exchange.server import TableServer
from fkgsec.federation.messages import Channel
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.recipes import RECIPES

CLIENTS = (TableClient, ClientCodec, DefendedClient, ReceivedBroadcasts, Entropy, Ed25519PrivateKey)
SERVERS = (TableServer, ServerCodec, DefendedServer, Aggregation, SharedTable)
PARTIES = ("client/a", "client/b", "client/c")


def reachable(*starts: object) -> Iterator[object]:
    """Everything that these refer to, through attributes, containers, closures and bound methods; not through code."""
    seen, waiting = set[int](), list(starts)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType | Tensor):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, types.FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or ()]
        elif isinstance(one, functools.partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        else:
            waiting += gc.get_referents(one)


def after_two_rounds(algorithm: str, defense: str) -> Transport:
    """A transport that has aligned, sent and summed."""
    options = FederationOptions(algorithm=algorithm, dim=8, defense=defense, protocol_seed=0, device="cpu")
    (table,) = RECIPES[algorithm].shared
    transport = make_transport(Channel(), options, PARTIES, (table,), "a run")
    transport.align(table, {party: Holding([party, "x", "y"], 3) for party in PARTIES})
    transport.initialise(table, torch.rand(5, 16 if "svd" in algorithm else 8))
    transport.broadcast(0, table, PARTIES)
    for number in (1, 2):
        transport.upload(number, table, {party: torch.rand(3, 16 if "svd" in algorithm else 8) for party in PARTIES})
        transport.broadcast(number, table, PARTIES)
    return transport


@pytest.mark.parametrize(
    ("algorithm", "defense"),
    [
        *[(name, "") for name in ("fede", "fedr", "feds", "pfedeg")],
        *[("fede", defense) for defense in ("psu,secagg", "secagg,suppress:t=2", "dp:clip=1,epsilon=5")],
        ("feds", "secagg"),
    ],
)
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


def test_the_walk_would_notice() -> None:
    """An attribute, a list in a dictionary, a closure, a bound method."""
    client = after_two_rounds("fede", "").clients["entities"]["client/a"]
    server = TableServer.__new__(TableServer)
    for hidden in (client, {"a": [client]}, lambda: client, client.receive, functools.partial(print, client)):
        server.hidden = hidden  # type: ignore[attr-defined]
        assert any(isinstance(one, TableClient) for one in reachable(server))
