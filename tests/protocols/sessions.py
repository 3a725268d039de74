"""Sessions of secure aggregation and of private set union with all their parties in this process, message by message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols import MAX_ATTEMPTS, psu, secagg
from fkgsec.protocols.core import rounds
from fkgsec.protocols.core.prg import Randomness
from fkgsec.protocols.core.rounds import SERVER, run
from fkgsec.protocols.secagg import STAGES, Message, Setting, Stage, Sum, encode

Deliver = Callable[[str, str, Message], Message]
"""(sender, receiver, message) -> what the receiver got."""


def direct(sender: str, receiver: str, message: Message) -> Message:
    return message


def delivering(
    deliver: Deliver, decode: Callable[[bytes], Message], dropouts: Callable[[Message], Mapping[str, Stage]]
) -> rounds.Deliver:
    """The delivery of frames that hands each message to `deliver`.

    Args:
        dropouts: from which stage on a party sends nothing, in the session of a message: it receives the request of its stage.
    """

    def crossing(stage: str, sender: str, receiver: str, frame: bytes) -> Sequence[bytes]:
        message, party = decode(frame), receiver if sender == SERVER else sender
        gone = stage in STAGES and dropouts(message).get(party, len(Stage)) <= STAGES[stage]
        if gone and sender != SERVER:
            return ()
        arrived = encode(deliver(sender, receiver, message))
        return () if gone else (arrived,)

    return crossing


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
    """The sum of a session.

    Args:
        believed: the setting by party, where a client does not take it to be the server's.
    """
    clients = {
        party: secagg.client_round(
            believed.get(party, setting),
            party,
            identities[party],
            randomness[party],
            partial(inputs.__getitem__, party),
        )
        for party in setting.parties
    }
    return run(secagg.server_round(setting), clients, delivering(deliver, secagg.decode, lambda _: dropouts)).result


def union(
    sets: Mapping[str, Collection[str]],
    identities: Mapping[str, Ed25519PrivateKey],
    *,
    session: bytes,
    threshold: int,
    randomness: Mapping[str, Randomness],
    deliver: Deliver = direct,
    cap: int | None = None,
    max_attempts: int = MAX_ATTEMPTS,
    dropouts: Mapping[int, Mapping[str, Stage]] = MappingProxyType({}),
) -> psu.Union:
    """The union of clients' sets, in their order; `dropouts`: by attempt, as in `aggregate`."""
    public = {name: key.public_key().public_bytes_raw() for name, key in identities.items()}
    plan = psu.Plan(session, tuple(sets), threshold, public, cap, max_attempts)
    clients = {
        name: psu.client_round(psu.join(plan, name, held), identities[name], randomness[name])
        for name, held in sets.items()
    }
    crossing = delivering(deliver, psu.decode_message, lambda message: dropouts.get(message.round, {}))
    return run(psu.server_round(plan, randomness[SERVER]), clients, crossing).result


class Tally:
    """A delivery that counts bytes by party, and leaves the delivery itself to another."""

    def __init__(self, deliver: rounds.Deliver = rounds.direct) -> None:
        self._deliver = deliver
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    def __call__(self, stage: str, sender: str, receiver: str, frame: Any) -> Sequence[Any]:
        self.sent[sender] += len(frame)
        arrived = self._deliver(stage, sender, receiver, frame)
        self.received[receiver] += sum(len(message) for message in arrived)
        return arrived
