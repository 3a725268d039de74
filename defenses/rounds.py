"""The rounds of a defended exchange, each as a pair of generators (`fkgsec.protocols.core.rounds`): server and client.

    parts = {party: client_upload(clients[party], 1, "entities", participants) for party in participants}
    outcome = run(server_upload(server, 1, "entities", participants, note), parts, deliver).result

Frames are those of `fkgsec.exchange.rounds`. A client's half needs its `DefendedClient` (key, rows, history of broadcasts) and
the public terms. Participants are announced. After alignment in plaintext, so are names and indices of the table's rows
(`DefendedClient.place`), which are not counted as messages here.

Secure aggregation and private set union run inside these rounds: their frames are transmitted as `ProtocolMessage`s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from torch import Tensor

from fkgsec.defenses.broadcasts import BroadcastError
from fkgsec.defenses.client import DefendedClient, claim_setting, sending_setting, sum_setting
from fkgsec.defenses.server import DefendedServer
from fkgsec.defenses.terms import Terms
from fkgsec.exchange import Received, Uploaded
from fkgsec.exchange.rounds import Frames, check_header, sole
from fkgsec.federation.disk.frames import SharedData
from fkgsec.federation.messages import SERVER, AnyMessage, Opened, ProtocolMessage
from fkgsec.federation.recipes import Table
from fkgsec.protocols import psu, secagg
from fkgsec.protocols.core.errors import (
    DisconnectedGraph,
    ProtocolError,
    ReconstructionMismatch,
    TooFewParties,
    UnexpectedMessage,
    describe,
)
from fkgsec.protocols.core.prg import Randomness
from fkgsec.protocols.core.rounds import (
    NOTHING,
    Ask,
    ClientRound,
    Deliver,
    Replies,
    Reply,
    Result,
    ServerRound,
    Silence,
)
from fkgsec.protocols.secagg import STAGES, Setting, Stage, Sum
from fkgsec.protocols.secagg.messages import Survivors, decode, kind_of
from fkgsec.protocols.secagg.opening import ClosedSecret

# Prefixes of the kinds of these protocols' messages.
INNER = ("secagg-", "psu-")
CLAIM, CLAIMS, SENT_ROWS, FAILED = "broadcast-claim", "broadcast-claims", "suppress-sent-rows", "suppress-failed"
ROOT, PROOF = "broadcast-root", "broadcast-proof"


# Protocols inside a round.


@dataclass(frozen=True)
class Seal:
    """Wraps messages of an inner protocol, which this package does not read, for one table in one round."""

    round: int
    table: Table

    def message(self, sender: str, receiver: str, step: str, content: bytes) -> ProtocolMessage:
        """Wrap the content of one step.

        Args:
            step: kind of the inner message.
            content: its bytes.
        """
        return ProtocolMessage(self.round, sender, receiver, self.table, step, content)

    def of_protocol(self, sender: str, receiver: str, frame: Reply) -> Reply:
        """Wrap a frame of an inner protocol; an empty frame and a `Silence` stay as they are.

        Args:
            frame: reply of the inner protocol.
        """
        if frame == NOTHING or isinstance(frame, Silence):
            return frame
        return (self.message(sender, receiver, kind_of(frame), frame),)

    def content(self, message: AnyMessage, sender: str, receiver: str, step: str) -> bytes:
        """Unwrap the content of one step.

        Args:
            step: that is due.

        Raises:
            BroadcastError: another message.
        """
        check_header(message, self.round, sender, receiver, self.table, step, BroadcastError)
        assert isinstance(message, ProtocolMessage)
        return message.content

    def within(self, frame: Frames, sender: str, receiver: str) -> bytes | Silence:
        """Unwrap a frame for an inner protocol; `Silence` for a frame that is no message of the sender.

        Args:
            frame: messages that arrived.
        """
        try:
            message = sole(frame, sender, BroadcastError)
            if not isinstance(message, ProtocolMessage):
                raise BroadcastError(
                    f"what {sender} sent {receiver} arrived as another kind of message, {message.label}"
                )
            return self.content(message, sender, receiver, message.step)
        except BroadcastError as error:
            return Silence(describe(UnexpectedMessage(str(error))))


def _server_side(
    inner: ServerRound[Result],
    seal: Seal,
    first: Ask | None = None,
    silent: set[str] | None = None,
    *,
    messages: Mapping[str, Frames] | None = None,
    beside: Mapping[str, AnyMessage] = MappingProxyType({}),
) -> ServerRound[Result]:
    """Run the server's side of an inner protocol.

    Args:
        first: replaces its first, empty request; clients answer this one.
        messages: by party, earlier answers to its first request; the protocol starts from them.
        beside: by party a message that travels with the first transmitted request, also to parties without one.
        silent: collects the parties that did not answer.
    """
    ask = next(inner)
    if messages is not None:
        try:
            ask = inner.send(_opened(messages.items(), seal, set()))
        except ProtocolError:
            yield Ask(CLAIMS, {party: (opening,) for party, opening in beside.items()})
            raise
    while True:
        sealed = {party: seal.of_protocol(SERVER, party, frame) for party, frame in ask.requests.items()}
        sealed |= {party: (opening, *sealed.get(party, ())) for party, opening in beside.items()}
        outer, first, beside, answered = first or Ask(ask.stage, sealed), None, {}, set[str]()
        replies = yield outer
        try:
            ask = inner.send(_opened(replies, seal, answered))
        except StopIteration as end:
            return end.value
        finally:
            if silent is not None:
                silent |= outer.requests.keys() - answered


def _opened(replies: Replies, seal: Seal, answered: set[str]) -> Iterator[tuple[str, Reply]]:
    for party, reply in replies:
        if isinstance(reply, Silence):
            yield party, reply
            continue
        answered.add(party)
        yield party, seal.within(reply, party, SERVER)


def _client_side(
    inner: ClientRound, seal: Seal, party: str, signed: Callable[[tuple[str, ...]], None] = lambda survivors: None
) -> ClientRound[tuple[object, Frames]]:
    """Run a client's side of an inner protocol, and return its result.

    If the server continues without this client, the next frame ends the inner protocol and is returned beside None.

    Args:
        signed: called with the survivors once the client has confirmed them.
    """
    replies: list[Reply] = [next(inner)]
    while True:
        # `pop` releases the reply: a waiting client has no upload in memory.
        frame = yield seal.of_protocol(party, SERVER, replies.pop())
        content = seal.within(frame, SERVER, party)
        if isinstance(content, Silence):
            replies.append(content)
            continue
        kind = frame[0].label
        if not kind.startswith(INNER):
            inner.close()
            return None, frame
        try:
            replies.append(inner.send(content))
        except StopIteration as end:
            return end.value, ()
        if kind == "secagg-survivors" and not isinstance(replies[0], Silence):
            decoded = decode(content)
            assert isinstance(decoded, Survivors)
            signed(decoded.survivors)


def _going_on(steps: ClientRound[Result], frame: Frames) -> ClientRound[Result]:
    """Continue a generator that has spoken already; `frame` answers its reply."""
    replies: list[Reply] = []
    while True:
        try:
            replies.append(steps.send(frame))
        except StopIteration as end:
            return end.value
        # `pop` releases the reply: a waiting client has no upload in memory.
        frame = yield replies.pop()


def silencing(deliver: Deliver, dropouts: Mapping[str, Stage]) -> Deliver:
    """Simulate dropouts: a client receives the request of its stage, and sends nothing from then on.

    Args:
        deliver: the delivery without dropouts.
        dropouts: stage of each dropout by party.
    """

    def crossing(stage: str, sender: str, receiver: str, frame: Frames) -> Sequence[Frames]:
        if sender != SERVER and stage in STAGES and dropouts.get(sender, len(Stage)) <= STAGES[stage]:
            return ()
        return deliver(stage, sender, receiver, frame)

    return crossing


# Alignment by private set union.


def server_union(terms: Terms, table: Table, randomness: Randomness) -> ServerRound[psu.Union]:
    """Run the server's side of the private union of a table's names.

    Args:
        randomness: source of the salts.
    """
    return _server_side(psu.server_round(terms.union(table), randomness), Seal(0, table))


def client_union(client: DefendedClient, table: Table) -> ClientRound[list[str]]:
    """Run a client's side of the private union; returns the sorted names, after checking that its own are among them."""
    joined = psu.join(client.terms.union(table), client.party, client.tables[table].holding.names)
    inner = psu.client_round(joined, client.identity, client.draw("psu", table, 0))
    union, _ = yield from _client_side(inner, Seal(0, table), client.party)
    assert isinstance(union, tuple)
    # All clients of one process receive the same names: `intern` stores each once.
    return list(map(sys.intern, union))


# Broadcasts that are bound.


def server_broadcast(
    server: DefendedServer, round: int, table: Table, contents: Mapping[str, Tensor], commitment: bytes
) -> ServerRound[None]:
    """Send the receivers their rows with a proof of their indices, and the others the commitment alone.

    Args:
        contents: by receiver, the table whose rows it receives.
        commitment: to the table; the others receive it, and the server enters it into its history.
    """
    seal, requests, shared = Seal(round, table), {}, SharedData()
    for party, content in contents.items():
        message = shared.held_by(server.message(round, table, party, content))
        requests[party] = [message]
        if not server.terms.defense.psu:
            proofs = server.prove(table, content, message)
            step, proof = (ROOT, server.commit(table, content)) if proofs is None else (PROOF, proofs)
            requests[party].append(seal.message(SERVER, party, step, proof))
    for party in server.terms.parties:
        if party not in requests:
            requests[party] = [seal.message(SERVER, party, ROOT, commitment)]
    server.log.extend(table, round, commitment)
    renews = server.terms.renews(round)
    # The clients had been told which rows to send, so tell them that this sum failed.
    if renews and not server.opened[table]:
        for party, frame in requests.items():
            frame.insert(0, seal.message(SERVER, party, FAILED, b""))
    yield Ask("broadcast", {party: tuple(frame) for party, frame in requests.items()})
    if renews:
        server.log.renewed(round, table, server.crossed[table] if server.opened[table] else None)


def client_broadcast(client: DefendedClient, round: int, table: Table) -> ClientRound[Received | None]:
    """Receive a broadcast, check it, and return the rows; None if the client received the commitment alone.

    Args:
        client: state of the client; its history grows.

    Raises:
        BroadcastError: values that no sum gives, a wrong proof, or a message that is not due.
    """
    seal = Seal(round, table)
    frame: list[AnyMessage] = list((yield NOTHING))
    renews = client.terms.renews(round)
    failed = renews and len(frame) > 1 and frame[0].label == FAILED
    if failed:
        seal.content(frame[0], SERVER, client.party, FAILED)
        frame = frame[1:]
    # Before anything is entered into the history: this may raise.
    sent = client.rows_sent(round, table) if renews and not failed else None
    # The sum was opened. It may contain less than the client uploaded.
    if not failed:
        client.settle(round, table)
    if len(frame) not in (1, 2):
        raise BroadcastError(
            f"{client.party} was sent {len(frame)} messages as the broadcast of {table} in round {round}"
        )
    received, (message, *more) = None, frame
    if message.label == ROOT and not more:
        if client.terms.codec.to_everyone:
            raise BroadcastError(
                f"{client.party} was sent no rows of {table} in round {round}; every client is sent each change"
            )
        client.log.enter(round, table, seal.content(message, SERVER, client.party, ROOT), withheld=True)
    else:
        check_header(message, round, SERVER, client.party, table, error=BroadcastError)
        content = client.read(message)
        proof = b"".join(seal.content(part, SERVER, client.party, part.label) for part in more)
        received = client.receive(round, table, content, proof)
    if renews:
        client.log.renew(round, table, sent)
        if received is not None:
            received = client.taking(table, received)
    return received


# Uploads in sums.


def server_upload(
    server: DefendedServer, round: int, table: Table, parties: Sequence[str], note: Callable[[Opened], None]
) -> ServerRound[Uploaded]:
    """Compare the participants' histories, then open their sum. If too many drop out, nothing is opened and the table stays.

    Args:
        parties: participants of the round.
        note: receives what the server computed from each session.
    """
    seal = Seal(round, table)
    server.begin(table)
    setting = claim_setting(server.terms, round, table, parties)
    replies = yield Ask(CLAIM, {party: NOTHING for party in parties if party not in server.barred})
    sent, advertised = {}, {}
    unread = {party: why for party, why in server.barred.items() if party in parties}
    for party, reply in replies:
        try:
            if isinstance(reply, Silence):
                raise BroadcastError(reply.reason)
            if len(reply) != 2:
                raise BroadcastError(f"{party} sent {len(reply)} messages where a claim and keys are due")
            claim, advertised[party] = reply
            sent[party] = seal.content(claim, party, SERVER, CLAIM)
        except BroadcastError as error:
            unread[party] = f"BroadcastError: {error}"
    claims, excluded = server.log.compare(sent, setting, setting.session)
    excluded = unread | excluded
    shown = {p: seal.message(SERVER, p, CLAIMS, server.log.shown(claims, setting, p)) for p in claims}
    try:
        messages = {party: (advertised[party],) for party in claims}
        total, crossed = yield from _server_sum(server, seal, parties, messages, shown, note)
    except (TooFewParties, DisconnectedGraph, ReconstructionMismatch) as error:
        # A client whose secret stays closed takes part in no later round, unless all shares were needed: then any holder may have
        # altered its share. Do not repeat the round with the same uploads: a server could name an honest client, and read its
        # upload off the difference of the two sums.
        if isinstance(error, ClosedSecret) and error.spare:
            server.barred[error.owner] = describe(error)
        outcome = Uploaded(0, 0, _by_table(table, {**error.excluded, **excluded}))
    else:
        note(server.note(round, table, total))
        opened = server.open(round, table, total, crossed)
        outcome = Uploaded(
            len(total.survivors),
            0,
            _by_table(table, {**total.excluded, **excluded}),
            num_kept_rows=opened,
            changed_levels=server.tables[table].codec.changed_levels,
        )
    server.end(round, table)
    return outcome


def _server_sum(
    server: DefendedServer,
    seal: Seal,
    parties: Sequence[str],
    messages: Mapping[str, Frames],
    shown: Mapping[str, AnyMessage],
    note: Callable[[Opened], None],
) -> ServerRound[tuple[Sum, np.ndarray | None]]:
    """Open the sums of rows and weights over the survivors, and with suppression also the rows that were sent, bool `[N]`.

    Args:
        messages: by party its advertisement. shown: the claims that it receives.

    Raises `TooFewParties`, `DisconnectedGraph`, `ReconstructionMismatch`.
    """
    round, table, terms, log = seal.round, seal.table, server.terms, server.log
    num_rows = len(server.tables[table].shared.names)
    if not terms.defense.suppress:
        setting = sum_setting(terms, log, "rows", round, table, parties, num_rows)
        return (yield from _server_side(secagg.server_round(setting), seal, messages=messages, beside=shown)), None
    setting = sum_setting(terms, log, "holders", round, table, parties, num_rows)
    silent: set[str] = set()
    counted = yield from _server_side(
        secagg.server_round(setting), seal, silent=silent, messages=messages, beside=shown
    )
    note(server.note(round, table, counted))
    if gone := [party for party in counted.survivors if party in silent]:
        # The sum of the others would show, beside the counts, what those who left hold.
        error = TooFewParties(f"{', '.join(gone)} left between counting and sending")
        error.excluded = {**dict.fromkeys(gone, describe(error)), **counted.excluded}
        raise error
    # A count above the number of survivors is a lie of one of them: treat the row as rare.
    holders = counted.vectors["holders"]
    sent = (holders >= terms.defense.suppress.t) & (holders <= len(counted.survivors))
    if server.rows_to_send is not None:
        sent = server.rows_to_send(round, table, sent)
    sent_mask = np.packbits(sent).tobytes()
    # Who sits the round out also has to know which rows of the broadcast are new.
    request = {party: (seal.message(SERVER, party, SENT_ROWS, sent_mask),) for party in terms.parties}
    log.extend(f"rows of {table} to send", round, sent_mask)
    # The rows to send are part of the session: clients that received different ones open nothing.
    setting = sending_setting(terms, log, round, table, parties, counted.survivors, num_rows, sent_mask)
    total = yield from _server_side(secagg.server_round(setting), seal, Ask(SENT_ROWS, request))
    return total._replace(excluded={**counted.excluded, **total.excluded}), sent


def client_upload(client: DefendedClient, round: int, table: Table, parties: Sequence[str]) -> ClientRound[None]:
    """Contribute the client's part (`DefendedClient.begin`) to the sum, after checking that all participants received the same.

    Args:
        parties: participants of the round.

    Raises:
        BroadcastError: it received no rows, or others received another table. `ProtocolError`: the server is at fault.
    """
    seal, terms = Seal(round, table), client.terms
    if terms.codec.whole:
        client.log.require_rows(round, table)
    setting = claim_setting(terms, round, table, parties)
    claim = seal.message(client.party, SERVER, CLAIM, client.log.claim(client.identity, setting.session, round))
    num_rows, members = len(client.names[table]), list[str]()
    if terms.defense.suppress:
        session = sum_setting(terms, client.log, "holders", round, table, parties, num_rows)
        summing = _client_sum(client, seal, "holders", session, members.extend)
    else:
        session = sum_setting(terms, client.log, "rows", round, table, parties, num_rows)
        summing = _client_sum(client, seal, "rows", session, lambda _: client.enter_sum(round, table))
    # Keys of a session that is bound to what it was sent: others, sent something else, have no use for them.
    frame = yield (claim, *next(summing))
    # The server excluded this client: its claim or keys were at fault.
    if len(frame) == 1 and frame[0].label == SENT_ROWS:
        _told(client, seal, frame)
        return
    if not frame:
        raise BroadcastError(f"{client.party} was sent no claims of {table} in round {round}")
    shown = seal.content(frame[0], SERVER, client.party, CLAIMS)
    where = f"{table}, before the sum of round {round}"
    # All participants must have received the same tables before any share or upload is sent.
    client.log.check_claims(shown, setting.identities, setting.session, round, where)
    # Without keys in this frame, the sum continues without this client.
    following = frame[1:] or (yield NOTHING)
    _, frame = yield from _going_on(summing, following)
    if not terms.defense.suppress:
        return
    sent_rows = _told(client, seal, frame)
    if client.party not in members:
        return
    client.keep_back(table, client.sent_rows[table][1] & ~client.log.local_rows(table, num_rows))
    setting = sending_setting(terms, client.log, round, table, parties, members, num_rows, sent_rows)
    yield from _client_sum(client, seal, "rows", setting, lambda _: client.enter_sum(round, table))


def client_listening(client: DefendedClient, round: int, table: Table, refusal: str = "") -> ClientRound[None]:
    """Run the side of a client that does not take part, but must learn which rows of the broadcast are new.

    Args:
        refusal: reason to take no part, which answers the server's first request.
    """
    _told(client, Seal(round, table), (yield Silence(refusal) if refusal else NOTHING))


def _told(client: DefendedClient, seal: Seal, frame: Frames) -> bytes:
    content = seal.content(sole(frame, SERVER, BroadcastError), SERVER, client.party, SENT_ROWS)
    client.tell_sent_rows(seal.round, seal.table, content)
    return content


def _client_sum(
    client: DefendedClient, seal: Seal, purpose: str, setting: Setting, signed: Callable[[tuple[str, ...]], None]
) -> ClientRound[tuple[object, Frames]]:
    """Take part in a secure sum: of rows and weights, or with purpose "holders" of a 1 for each row that the client holds."""
    table = seal.table

    def values() -> dict[str, np.ndarray]:
        part, num_rows = client.parts[table], len(client.names[table])
        weights = part.whole(part.weights, num_rows)
        if purpose == "holders":
            return {"holders": np.minimum(weights, 1)}
        return {"rows": part.whole(part.elements, num_rows).ravel(), "holders": weights}

    draw = client.draw(purpose, table, seal.round)
    inner = secagg.client_round(setting, client.party, client.identity, draw, values)
    return (yield from _client_side(inner, seal, client.party, signed))


def _by_table(table: Table, excluded: Mapping[str, str]) -> dict[str, str]:
    return {party: f"{table}: {reason}" for party, reason in excluded.items()}
