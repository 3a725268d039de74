"""Secure aggregation with all its parties in one process.

    total = aggregate(setting, {party: {"rows": rows[party]} for party in keys}, keys, randomness=sources)
    total.vectors["rows"], total.survivors

A protocol that carries its own frames takes `secagg.server_round` and `client_round` and runs them with
`fkgsec.protocols.core.rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols.core import rounds
from fkgsec.protocols.core.errors import SettingError
from fkgsec.protocols.core.prg import Randomness
from fkgsec.protocols.core.rounds import SERVER, run
from fkgsec.protocols.secagg.messages import Message, decode, encode
from fkgsec.protocols.secagg.rounds import client_round, server_round
from fkgsec.protocols.secagg.server import Sum
from fkgsec.protocols.secagg.setting import Setting, Stage

Deliver = Callable[[str, str, Message], Message]
"""(sender, receiver, message) -> what the receiver got. The server's name is "server"."""

STAGES = {
    "advertise": Stage.ADVERTISE,
    "share": Stage.SHARE,
    "receive": Stage.SHARE,
    "mask": Stage.MASK,
    "confirm": Stage.CONSISTENCY,
    "unmask": Stage.UNMASK,
}


def direct(sender: str, receiver: str, message: Message) -> Message:
    """Delivery without a network: the receiver gets what was sent."""
    return message


def aggregate(
    setting: Setting,
    inputs: Mapping[str, Mapping[str, np.ndarray]],
    identities: Mapping[str, Ed25519PrivateKey],
    *,
    randomness: Mapping[str, Randomness],
    deliver: Deliver = direct,
    dropouts: Mapping[str, Stage] = MappingProxyType({}),
    believed: Mapping[str, Setting] = MappingProxyType({}),
) -> Sum:
    """Run a session of all parties in one process: `server_round` and `client_round` under `fkgsec.protocols.core.rounds.run`.

    Args:
        inputs: by party and vector name, `[length]` in the vector's ring. Needed of those that do not drop before MASK.
        identities: by party the private key whose public one the setting pins.
        randomness: by party; 100 bytes and more for each neighbour.
        deliver: takes every message, in the order of sending. Uploads are delivered one after the other. Where it raises a
            `ProtocolError`, the client at one end falls silent, and is named in `Sum.excluded` with that reason.
        dropouts: from which stage on a party sends nothing.
        believed: the setting by party, where a client does not take it to be the server's `setting`. Clients that differ
            derive other masks and sign other keys, and open nothing together.

    Returns:
        The sum of every vector over the clients whose upload arrived.

    Raises the `ProtocolError` of a client that finds the server at fault, or the server's when it cannot go on, with
    `excluded` naming whom it had dropped; `SettingError` for a party without input, identity or randomness, or a dropout
    that is no party.
    """
    for name, mapping in (("inputs", inputs), ("identities", identities), ("randomness", randomness)):
        silent = Stage.MASK if name == "inputs" else Stage.ADVERTISE
        missing = [
            party for party in setting.parties if party not in mapping and dropouts.get(party, Stage.UNMASK) > silent
        ]
        if missing:
            raise SettingError(f"{name}: nothing for {', '.join(missing)}")
    if not dropouts.keys() <= set(setting.parties):
        raise SettingError(f"dropouts: {sorted(dropouts.keys() - set(setting.parties))} are no parties")
    clients = {
        party: client_round(
            believed.get(party, setting),
            party,
            identities[party],
            randomness[party],
            partial(inputs.__getitem__, party),
        )
        for party in setting.parties
        if dropouts.get(party) is not Stage.ADVERTISE
    }
    crossing = silencing(framed(deliver, decode), lambda frame: dropouts)
    return run(server_round(setting), clients, crossing).result


def framed(deliver: Deliver, decode: Callable[[bytes], Message]) -> rounds.Deliver:
    """The delivery of frames that hands each message to `deliver`; `decode` reads those of the protocol that is run."""

    def crossing(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        return (encode(deliver(sender, receiver, decode(frame))),)

    return rounds.direct if deliver is direct else crossing


def silencing(deliver: rounds.Deliver, dropouts: Callable[[bytes], Mapping[str, Stage]]) -> rounds.Deliver:
    """The delivery in which parties drop out: each receives the request of its stage, and sends nothing from there on.

    Args:
        dropouts: from which stage on a party sends nothing, in the session that a frame belongs to.
    """

    def crossing(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        party = receiver if sender == SERVER else sender
        gone = stage in STAGES and dropouts(frame).get(party, len(Stage)) <= STAGES[stage]
        if gone and sender != SERVER:
            return ()
        arrived = deliver(stage, sender, receiver, frame)
        return () if gone else arrived

    return crossing
