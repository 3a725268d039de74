"""Secure aggregation as a pair of generators (`fkgsec.protocols.core.rounds`): the server's round and a client's.

    clients = {party: client_round(setting, party, keys[party], randomness[party], lambda: values) for party in setting.parties}
    total = run(server_round(setting), clients).result

The stages are "advertise", "share", "receive", "mask", "confirm" and "unmask", named after the steps of `client`. Clients speak
first, so their first message can travel with an earlier reply; the `opening` of a surrounding protocol can be the first request.
After the last stage, a client returns the next request, so that the surrounding protocol can continue with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.protocols.core.errors import MalformedMessage, TooFewParties, describe
from fkgsec.protocols.core.prg import Randomness
from fkgsec.protocols.core.rounds import NOTHING, Ask, ClientRound, Replies, Reply, ServerRound, Silence
from fkgsec.protocols.secagg import client, server
from fkgsec.protocols.secagg.messages import Arrival, Failure, Message, decode, encode, kind_of
from fkgsec.protocols.secagg.server import Sum
from fkgsec.protocols.secagg.setting import Setting


def server_round(setting: Setting, *, opening: Mapping[str, bytes] | None = None) -> ServerRound[Sum]:
    """Run the server's side: sum every vector over the clients whose upload arrived.

    Args:
        opening: by party the surrounding protocol's request that its advertisement answers; None sends empty requests.

    Raises the errors of `fkgsec.protocols.secagg.server`; their `excluded` names the clients that it had dropped.
    """
    requests = dict.fromkeys(setting.parties, NOTHING) if opening is None else opening
    keys, key_lists = server.collect_advertisements(setting, _arrivals((yield Ask("advertise", requests))))
    shares, inboxes = server.collect_shares(keys, _arrivals((yield _ask("share", key_lists))))
    cohort, cohorts = server.collect_receipts(shares, _arrivals((yield _ask("receive", inboxes))))
    uploads, survivors = server.collect_uploads(cohort, _arrivals((yield _ask("mask", cohorts))))
    confirmations, unmasking = server.collect_confirmations(uploads, _arrivals((yield _ask("confirm", survivors))))
    return server.open_sum(confirmations, _arrivals((yield _ask("unmask", unmasking))))


def client_round(
    setting: Setting,
    party: str,
    identity: Ed25519PrivateKey,
    randomness: Randomness,
    values: Callable[[], Mapping[str, np.ndarray]],
) -> ClientRound[bytes]:
    """Run a client's side. It speaks first, and returns the request that comes after its last reply.

    If too few parties are around it, or if it cannot read a message, the client reports it (`Silence`) and waits for that
    request. A message of another protocol is such a request too: the server continued without this client.

    Args:
        setting: as this client received it.
        identity: its signing key, pinned in the setting.
        randomness: source of at least 100 bytes per neighbor.
        values: returns the vectors for `client.mask`; called when the upload is due.

    Raises the `ProtocolError` of `fkgsec.protocols.secagg.client` if the server is at fault.
    """
    state: Any = None
    left = False

    def reply(step: Callable[..., tuple[Any, Message]], *received: bytes) -> Reply:
        """Take one step and return its message. The round keeps none, so a waiting client has no upload in memory."""
        nonlocal state, left
        try:
            state, message = step(state, *(decode(frame) for frame in received))
        except (TooFewParties, MalformedMessage) as error:
            # The client leaves this session without blaming the server: others dropped out, or the frame was damaged.
            left = True
            return Silence(describe(error))
        return encode(message)

    request = yield reply(lambda _: client.advertise(setting, party, identity, randomness))
    for step in (
        partial(client.share, randomness=randomness),
        client.receive,
        lambda state, cohort: client.mask(state, cohort, values()),
        client.confirm,
        lambda state, request: (None, client.unmask(state, request)),
    ):
        kind = kind_of(request)
        if left or (kind and not kind.startswith("secagg-")):
            break
        request = yield reply(step, request)
    return request


def _ask(stage: str, messages: Mapping[str, Message]) -> Ask:
    return Ask(stage, {party: encode(message) for party, message in messages.items()})


def _arrivals(replies: Replies) -> Iterator[Arrival]:
    """Decode the replies. A frame that is no message, or claims another sender than the channel says, becomes a `Failure`."""
    for party, reply in replies:
        if isinstance(reply, Silence):
            yield Failure(party, reply.reason)
            continue
        try:
            message = decode(reply)
        except MalformedMessage as error:
            yield Failure(party, describe(error))
            continue
        if message.sender == party:
            yield message
        else:
            name = type(message).__name__
            yield Failure(party, f"UnknownSender: {name} of {party} says it is of {message.sender!r}")
