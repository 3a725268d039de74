"""Secure aggregation: the server learns the sum of the clients' vectors and who is in it, and nothing else of them.

The protocol of Bonawitz et al. 2017 ("Practical Secure Aggregation", Figure 4) with all its rounds, the one for
consistency included; optionally over the k-regular graph of Bell et al. 2020. Each client adds to its vector a mask
for each neighbour, which that neighbour subtracts, and a mask of its own. Shamir shares let the others open the own mask
of a client whose upload arrived, or the pair masks of one whose upload did not, never both.

What each party sees
    The server: public keys, commitments, sealed shares, uploads that are uniform to it, who drops out and when, of
    each survivor the seed of its own mask, of each client that dropped after sharing its private mask key; and the sum.
    An upload that arrives after its client was given up stays under the client's own mask, which nobody opens.
    A client: everybody's public keys, its neighbours' shares that it holds, who survived. Not the sum, unless told.
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
    active one that withholds shares can cut a group of clients out of the graph and open the group's sum; and it holds
    only while the honest survivors are connected, which a client cannot check, as it does not know the colluders (it
    checks all survivors). Uploads are not signed, and `sender` of unsigned messages is what the channel says: whoever
    forges them can stop a session or change its sum unnoticed, not open an upload. A client can spoil the sum with any
    input in the ring; no range is proven. Private keys are Python bytes, and are not wiped from memory.

Differs: a commitment to b is signed with the keys; shares are opened before the upload; clients sign the key list and
the setting together with the survivors; the server states which shares it asks for. Over a regular graph every client
sees all keys and signs one set for all, where Bell et al. let neighbours confirm each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocols import secagg_client as client
from protocols import secagg_server as server
from protocols.errors import SettingError
from protocols.prg import Randomness, Ring
from protocols.secagg_messages import SERVER, AnyMessage, Message, decode, encode
from protocols.secagg_server import Sum
from protocols.secagg_setting import Setting, Stage, Vector, safe_threshold

__all__ = [
    "SERVER",
    "AnyMessage",
    "Deliver",
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

_M = TypeVar("_M", bound=Message)


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
) -> Sum:
    """One session of all parties in one process: the sum of every vector over the clients whose upload arrived.

    Args:
        inputs: by party and vector name, `[length]` in the vector's ring. Needed of those that do not drop before MASK.
        identities: by party the private key whose public one the setting pins.
        randomness: by party; 100 bytes and more for each neighbour.
        deliver: takes every message, in the order of sending. Uploads are delivered one after the other.
        dropouts: from which stage on a party sends nothing.

    Raises the `ProtocolError` of the first party that finds something wrong; `SettingError` for a party without input,
    identity or randomness, or a dropout that is no party.
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

    def sends(party: str, stage: Stage) -> bool:
        return party not in dropouts or dropouts[party] > stage

    def down(messages: Mapping[str, _M], stage: Stage) -> list[tuple[str, Message]]:
        """What the server sends, delivered, with the receivers that will answer."""
        delivered = [(party, deliver(SERVER, party, message)) for party, message in messages.items()]
        return [(party, message) for party, message in delivered if sends(party, stage)]

    advertised, sent = {}, []
    for party in setting.parties:
        if sends(party, Stage.ADVERTISE):
            advertised[party], message = client.advertise(setting, party, identities[party], randomness[party])
            sent.append(deliver(party, SERVER, message))
    keys, key_lists = server.collect_advertisements(setting, sent)

    shared, sent = {}, []
    for party, received in down(key_lists, Stage.SHARE):
        shared[party], message = client.share(advertised[party], received, randomness[party])
        sent.append(deliver(party, SERVER, message))
    shares, inboxes = server.collect_shares(keys, sent)

    masked = {}

    def uploads():
        for party, received in down(inboxes, Stage.MASK):
            masked[party], message = client.mask(shared[party], received, inputs[party])
            yield deliver(party, SERVER, message)

    collected, survivors = server.collect_uploads(shares, uploads())

    confirmed, sent = {}, []
    for party, received in down(survivors, Stage.CONSISTENCY):
        confirmed[party], message = client.confirm(masked[party], received)
        sent.append(deliver(party, SERVER, message))
    agreed, requests = server.collect_confirmations(collected, sent)

    sent = []
    for party, received in down(requests, Stage.UNMASK):
        sent.append(deliver(party, SERVER, client.unmask(confirmed[party], received)))
    return server.open_sum(agreed, sent)
