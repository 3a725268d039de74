"""Secure aggregation: the server learns the sum of the clients' vectors and who is in it, and nothing else of them.

The protocol of Bonawitz et al. 2017 ("Practical Secure Aggregation", Figure 4) with all its rounds, the one for
consistency included; optionally over the k-regular graph of Bell et al. 2020. Each client adds to its vector a mask
for each neighbour, which that neighbour subtracts, and a mask of its own. Shamir shares let the others open the own mask
of a client whose upload arrived, or the pair masks of one whose upload did not, never both.

What each party sees
    The server: public keys, commitments, sealed shares, uploads that are uniform to it, who drops out and when, of
    each survivor the seed of its own mask, of each client that dropped after sharing its private mask key; and the sum.
    An upload that arrives after its client was given up stays under the client's own mask, which nobody opens.
    A client: its neighbours' public keys, shares and survival, and how many survived. Not the sum, unless told.
    Server and colluding clients together: also the colluders' inputs, so the sum over the honest survivors. With one
    honest survivor that is its input. On a regular graph a client whose surviving neighbours all collude is such a one.
    Whoever reads the channel: all that the server sees, the sum included. Encrypt the channel (TLS).

What it does not hide
    What the sum itself says: a row that one client holds is in it as it is, the sum of existence vectors tells how many
    hold a row, and sums of successive rounds over different survivors can be subtracted.

What it assumes
    Identities pinned beforehand, no session and round used twice, good randomness. Confidentiality holds against a
    semi-honest server with fewer colluders than the threshold among the holders of each secret, and, on the complete
    graph, against an active one as far as `Setting.threshold` says. A regular graph is for a semi-honest server only: an
    active one that withholds shares, or says that clients left, can cut a group of clients out of the graph and open the
    group's sum; and it holds only while the honest survivors are connected, which a client cannot check, as it does not know
    the colluders and is told of its neighbours alone. `secagg_bounds` says how likely that is for colluders and dropouts at
    random. Uploads are not signed, and `sender` of unsigned messages is what the channel says: whoever
    forges them can drop a client or change the sum unnoticed, not open an upload. A client can spoil the sum with any
    input in the ring; no range is proven. Private keys are Python bytes, and are not wiped from memory.

What one bad client can do
    Drop out: whatever it sends that is malformed, late, badly signed or of another session is left out, with the reason in
    `Sum.excluded`, and so is a client whose sealed shares do not open or that says so of many others (one of each such pair is
    dropped, before anything is masked). Wrong shares at the end are decoded around, as far as the others reach beyond the
    threshold. Whether the holder altered a wrong share or its owner dealt it so, nobody can tell: shares are not verifiable
    when dealt, and the reason names both. By dealing enough wrong ones, sealed well, a client can end a session, in which its
    secret then stays closed, and have those that it dealt them to named beside it. What shows the server at fault ends
    the session: keys that their owner did not sign, two views of the survivors, a request for both kinds of share. A client
    takes each step once (`protocols.one_shot`).

Differs: a commitment to b is signed with the keys; shares are opened before the upload, and the clients say which do not
open; clients sign the key list and the setting together with the survivors; the server states which shares it asks for.
Over a regular graph a client gets the keys, the survival and the confirmations of its neighbours, O(k) in all, and compares
with each of them what both were told; Bell et al. let neighbours confirm each other's survival one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols import secagg_client as client
from protocols import secagg_server as server
from protocols.errors import ProtocolError, SettingError, TooFewParties
from protocols.prg import Randomness, Ring
from protocols.secagg_intake import describe
from protocols.secagg_messages import SERVER, AnyMessage, Arrival, Failure, Message, decode, encode
from protocols.secagg_server import Sum
from protocols.secagg_setting import Setting, Stage, Vector, safe_threshold

__all__ = [
    "SERVER",
    "AnyMessage",
    "Deliver",
    "Failure",
    "Message",
    "Ring",
    "Setting",
    "Stage",
    "Sum",
    "Vector",
    "aggregate",
    "decode",
    "direct",
    "encode",
    "safe_threshold",
]

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
