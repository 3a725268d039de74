"""One session of secure aggregation with all its parties in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols.core.errors import ProtocolError, SettingError, TooFewParties
from protocols.core.prg import Randomness
from protocols.secagg import client, server
from protocols.secagg.intake import describe
from protocols.secagg.messages import SERVER, Arrival, Failure, Message
from protocols.secagg.server import Sum
from protocols.secagg.setting import Setting, Stage

Deliver = Callable[[str, str, Message], Message]
"""(sender, receiver, message) -> what the receiver got. The server's name is "server"."""


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
    """One session of all parties in one process: the sum of every vector over the clients whose upload arrived.

    Args:
        inputs: by party and vector name, `[length]` in the vector's ring. Needed of those that do not drop before MASK.
        identities: by party the private key whose public one the setting pins.
        randomness: by party; 100 bytes and more for each neighbour.
        deliver: takes every message, in the order of sending. Uploads are delivered one after the other. Where it raises a
            `ProtocolError`, the client at one end falls silent, and is named in `Sum.excluded` with that reason.
        dropouts: from which stage on a party sends nothing.
        believed: the setting by party, where a client does not take it to be the server's `setting`. Clients that differ
            derive other masks and sign other keys, and open nothing together.

    Raises the `ProtocolError` of a client that finds the server at fault, or the server's when it cannot go on, with
    `excluded` naming whom it had dropped; `SettingError` for a party without input, identity or randomness, or a dropout
    that is no party.
    """
    for name, given in (("inputs", inputs), ("identities", identities), ("randomness", randomness)):
        silent = Stage.MASK if name == "inputs" else Stage.ADVERTISE
        missing = [
            party for party in setting.parties if party not in given and dropouts.get(party, Stage.UNMASK) > silent
        ]
        if missing:
            raise SettingError(f"{name}: nothing for {', '.join(missing)}")
    if not dropouts.keys() <= set(setting.parties):
        raise SettingError(f"dropouts: {sorted(dropouts.keys() - set(setting.parties))} are no parties")
    states: dict[str, Any] = {}

    def arrivals(stage: Stage, sent: Mapping[str, Any], answer: Callable[[str, Any], Message]) -> Iterator[Arrival]:
        """What reaches the server in answer to what it sent, which all receive before the first answers."""
        received = {party: _delivered(deliver, SERVER, party, message) for party, message in sent.items()}
        for party, message in received.items():
            if dropouts.get(party, len(Stage)) > stage:
                yield _answered(deliver, party, message, answer)

    def step(function: Callable[..., tuple[Any, Message]], *more: Callable[[str], Any]):
        def answer(party: str, message: Message) -> Message:
            states[party], reply = function(states[party], message, *(one(party) for one in more))
            return reply

        return answer

    def advertise(party: str) -> Message:
        own = believed.get(party, setting)
        states[party], message = client.advertise(own, party, identities[party], randomness[party])
        return message

    speaking = [party for party in setting.parties if dropouts.get(party, len(Stage)) > Stage.ADVERTISE]
    advertised = [_delivered(deliver, party, SERVER, advertise(party)) for party in speaking]
    keys, key_lists = server.collect_advertisements(setting, advertised)
    shares, inboxes = server.collect_shares(
        keys, arrivals(Stage.SHARE, key_lists, step(client.share, randomness.__getitem__))
    )
    cohort, cohorts = server.collect_receipts(shares, arrivals(Stage.SHARE, inboxes, step(client.receive)))
    uploads, survivors = server.collect_uploads(
        cohort, arrivals(Stage.MASK, cohorts, step(client.mask, inputs.__getitem__))
    )
    confirmations, requests = server.collect_confirmations(
        uploads, arrivals(Stage.CONSISTENCY, survivors, step(client.confirm))
    )
    return server.open_sum(
        confirmations,
        arrivals(Stage.UNMASK, requests, lambda party, message: client.unmask(states[party], message)),
    )


def _delivered(deliver: Deliver, sender: str, receiver: str, message: Message) -> Arrival:
    """What arrived; a `Failure` of the client at one end when nothing readable did, or a message of somebody else."""
    party = receiver if sender == SERVER else sender
    try:
        arrived = deliver(sender, receiver, message)
    except ProtocolError as error:
        return Failure(party, describe(error))
    if sender != SERVER and arrived.sender != sender:
        return Failure(party, f"UnknownSender: {type(arrived).__name__} of {sender} says it is of {arrived.sender!r}")
    return arrived


def _answered(deliver: Deliver, party: str, received: Arrival, answer: Callable[[str, Message], Message]) -> Arrival:
    """The client's reply as it arrives; a `Failure` when it could not read what the server sent, or too few are around it."""
    if isinstance(received, Failure):
        return received
    try:
        reply = answer(party, received)
    except TooFewParties as error:
        return Failure(party, describe(error))
    return _delivered(deliver, party, SERVER, reply)
