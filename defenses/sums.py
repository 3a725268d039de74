"""The sums of one round: participants compare what they were sent, then a server opens the sum of their parts and nothing else.

    outcome, opened = SecureSums(wire, terms, server, clients).add_up(1, "entities", participants)

It drives both halves in one process: `DefendedServer` and the `DefendedClient`s reach each other by messages of the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from defenses.broadcasts import BroadcastError
from defenses.client import DefendedClient, bound_session
from defenses.server import DefendedServer
from defenses.terms import Terms
from fkgsec.exchange import Uploaded
from fkgsec.exchange.transport import header
from fkgsec.federation.messages import SERVER, AnyMessage, Channel, ProtocolMessage
from fkgsec.federation.recipes import Table
from protocols import psu, secagg
from protocols.core.errors import (
    DisconnectedGraph,
    ReconstructionMismatch,
    SplitView,
    TooFewParties,
    UnexpectedMessage,
    UnknownSender,
)
from protocols.core.prg import Ring, digest
from protocols.secagg import Stage, Sum, Vector, safe_threshold


class Wire:
    """A federation's channel, where all is serialised, counted and recorded."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def send(self, sent: AnyMessage) -> AnyMessage:
        """A message as its receiver gets it. Raises `BroadcastError` for one of another kind, round, party or table."""
        received = self.channel.send(sent)
        if header(received) != header(sent):
            raise BroadcastError(
                f"{sent.receiver} was to be sent {header(sent)} (kind, round, sender, receiver, table); got {header(received)}"
            )
        return received

    def cross(self, round: int, sender: str, receiver: str, table: Table, step: str, content: bytes) -> bytes:
        """The content of one step of a protocol, as it arrives."""
        received = self.send(ProtocolMessage(round, sender, receiver, table, step, content))
        assert isinstance(received, ProtocolMessage)
        return received.content

    def deliver(self, round: int, table: Table) -> secagg.Deliver:
        """Protocol messages cross the federation's channel, where they are serialised, counted and recorded."""

        def deliver(sender: str, receiver: str, message: secagg.Message) -> secagg.Message:
            """Send one message; raises where it arrives as another kind, or of another sender."""
            step = str(message.__struct_config__.tag)
            received = self.channel.send(ProtocolMessage(round, sender, receiver, table, step, secagg.encode(message)))
            if not isinstance(received, ProtocolMessage):
                raise UnexpectedMessage(f"{step} of {sender} arrived as another kind of message")
            arrived = psu.decode_message(received.content)
            if arrived.sender != sender:
                raise UnknownSender(f"{step} that {sender} sent says it is of {arrived.sender}")
            return arrived

        return deliver


@dataclass(frozen=True)
class SecureSums:
    """See the module."""

    wire: Wire
    terms: Terms
    server: DefendedServer
    clients: Mapping[str, DefendedClient]

    def add_up(self, round: int, table: Table, parties: Sequence[str]) -> Uploaded:
        """Sum the clients' parts. When too many drop out nothing is opened, and the table stays."""
        dropouts = self.terms.dropouts(round, parties)
        excluded = self._compare(round, table, parties, dropouts)
        dropouts |= dict.fromkeys(excluded, Stage.ADVERTISE)
        try:
            total, crossed = self._sum(round, table, parties, dropouts)
        except (TooFewParties, DisconnectedGraph, ReconstructionMismatch) as error:
            return Uploaded(0, 0, _by_table(table, {**error.excluded, **excluded}))
        self.wire.channel.transcript.note(self.server.open(round, table, total, crossed))
        for party in total.survivors:
            self.clients[party].settle(table, self.server.crossed[table])
        return Uploaded(len(total.survivors), 0, _by_table(table, {**total.excluded, **excluded}))

    def _compare(
        self, round: int, table: Table, parties: Sequence[str], dropouts: Mapping[str, Stage]
    ) -> dict[str, str]:
        """Participants sign what they were sent; neighbours in the session are shown each other's claims.

        Returns by party that is left out the reason. Raises `BroadcastError` where they were not sent the same, or one of them no
        rows.
        """
        session = digest("fkgsec exchange", self.terms.sessions["broadcasts", table])
        setting = self.terms.setting(session, round, tuple(parties), (Vector("broadcasts", 0, Ring.UINT32),))
        speaking = [party for party in parties if dropouts.get(party) is not Stage.ADVERTISE]
        if self.terms.codec.whole:
            for party in speaking:
                self.clients[party].log.require_rows(round, table)
        sent, unread = {}, {}
        for party in speaking:
            claim = self.clients[party].log.claim(self.clients[party].identity, session, round)
            try:
                sent[party] = self.wire.cross(round, party, SERVER, table, "broadcast-claim", claim)
            except BroadcastError as error:
                unread[party] = f"BroadcastError: {error}"
        claims, excluded = self.server.log.compare(sent, setting, session)
        where = f"{table}, before the sum of round {round}"
        for party in claims:
            shown = self.server.log.shown(claims, setting, party)
            told = self.wire.cross(round, SERVER, party, table, "broadcast-claims", shown)
            self.clients[party].log.check_claims(told, setting.identities, session, round, where)
        return unread | excluded

    def _sum(
        self, round: int, table: Table, parties: Sequence[str], dropouts: Mapping[str, Stage]
    ) -> tuple[Sum, np.ndarray | None]:
        """The sums of rows and weights over the survivors, and with suppression which rows were sent, bool `[N]`.

        Raises `TooFewParties`, `DisconnectedGraph`.
        """
        parts = {party: self.clients[party].parts[table] for party in parties}
        if not self.terms.defense.suppress:
            whole = {party: {"rows": part.elements.ravel(), "holders": part.weights} for party, part in parts.items()}
            return self._session(round, table, "rows", whole, dropouts), None
        holds = {party: {"holders": np.minimum(part.weights, 1)} for party, part in parts.items()}
        counted = self._session(round, table, "holders", holds, dropouts)
        self.wire.channel.transcript.note(self.server.note(round, table, counted, np.zeros(0)))
        members = counted.survivors
        if gone := [party for party in members if party in dropouts]:
            # The sum of the others would show, beside the counts, what those who left hold.
            raise TooFewParties(f"{', '.join(gone)} left between counting and sending")
        sent = counted.vectors["holders"] >= self.terms.defense.suppress.t
        told = np.packbits(sent).tobytes()
        for party in self.terms.parties:  # who sits the round out also has to know which rows of the broadcast are new
            arrived = self.wire.cross(round, SERVER, party, table, "suppress-sent-rows", told)
            if arrived != told:
                raise SplitView(f"{party} was told to send other rows")
            self.clients[party].log.extend("rows to send", round, arrived)
        self.server.log.extend("rows to send", round, told)
        kept = {party: self.clients[party].keep_back(table, sent) for party in members}
        inputs = {party: {"rows": part.elements.ravel(), "holders": part.weights} for party, part in kept.items()}
        # As many shares open a secret as in a session of all participants, however few are left.
        threshold = max(self.terms.threshold(len(parties)), safe_threshold(len(members)))
        total = self._session(round, table, "rows", inputs, {}, threshold, len(members), context=told)
        return total._replace(excluded={**counted.excluded, **total.excluded}), sent

    def _session(
        self,
        round: int,
        table: Table,
        purpose: str,
        inputs: Mapping[str, Mapping[str, np.ndarray]],
        dropouts: Mapping[str, Stage],
        threshold: int | None = None,
        min_survivors: int | None = None,
        context: bytes = b"",
    ) -> Sum:
        """One secure aggregation of the given vectors; `context` is what the parties must agree on beside them."""
        parties = tuple(inputs)
        rings = {"rows": self.terms.encodings[table].ring, "holders": Ring.UINT32}
        vectors = tuple(Vector(name, len(values), rings[name]) for name, values in inputs[parties[0]].items())
        session = bound_session(self.terms, purpose, table, context, self.server.log)
        setting = self.terms.setting(session, round, parties, vectors, threshold, min_survivors)
        clients = {party: self.clients[party] for party in parties}
        return secagg.aggregate(
            setting,
            inputs,
            {party: client.identity for party, client in clients.items()},
            randomness={party: client.draw(purpose, table, round) for party, client in clients.items()},
            deliver=self.wire.deliver(round, table),
            dropouts=dropouts,
            believed={
                party: replace(setting, session=client.agreed(purpose, table, context))
                for party, client in clients.items()
            },
        )


def _by_table(table: Table, excluded: Mapping[str, str]) -> dict[str, str]:
    """Whose messages a session left out, with the table that it summed before the reason."""
    return {party: f"{table}: {reason}" for party, reason in excluded.items()}
