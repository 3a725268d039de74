"""The server's halves of an exchange whose clients sit apart: the laboratory's transports with nobody else in the process.

exchange = server_exchange(conversation, channel, agreement, secret)
exchange.align("entities", {})
exchange.upload(1, "entities", dict.fromkeys(participants))        # whose rows are where the clients are
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fkgsec.defenses.terms import Entropy
from fkgsec.defenses.transport import DefendedTransport
from fkgsec.errors import RunError
from fkgsec.exchange import Holding, Received, Transport, Uploaded
from fkgsec.exchange.rounds import sole
from fkgsec.experiments.deploy.agreement import Agreement, agreed_terms
from fkgsec.experiments.deploy.core.conversation import Conversation
from fkgsec.experiments.deploy.core.messages import Placed, encode
from fkgsec.federation.messages import Channel
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.protocols.core.rounds import Replies, ServerRound, Silence


class Apart(Transport):
    """A transport whose clients are reached by a conversation alone. It has their steps, and none of their halves."""

    def __init__(self, talk: Conversation, channel: Channel, agreement: Agreement, secret: bytes) -> None:
        self.talk, self.agreement, self.secret, options = talk, agreement, secret, agreement.options
        super().__init__(channel, options, agreement.addresses, RECIPES[options.algorithm].shared, agreement.run)

    def align(self, table: Table, holdings: Mapping[str, Holding]) -> None:
        """Afterwards `server[table].names` is the union, and each client that has a defense is told where its rows stand."""
        defense: Any = getattr(self, "defense", None)
        step = "union" if defense and defense.psu else "alignment"
        self.talk.drive(self.aligning(table), step, 0, table)
        shared = self.server[table]
        for party, rows in shared.holdings.items():
            told = shared.weights[party], shared.num_upwards[party]
            if told != (1, 0) or not 0 <= shared.num_uploaded[party] <= len(rows):
                raise RunError(
                    f"{party} aligned {table} with weight {told[0]}, {told[1]} rows upwards and {shared.num_uploaded[party]} of "
                    f"{len(rows)} rows to send; every client has weight 1 and sends what it holds"
                )

    def place(self, table: Table) -> None:
        """Tell clients where their rows stand; those that have the names of a union, how many these are."""
        shared = self.server[table]
        for party in self.parties:
            places = shared.holdings.get(party)
            told = b"" if places is None else places.numpy().astype("<i4").tobytes()
            self.talk.post(party, "place", table=table, content=encode(Placed(len(shared.names), told)))

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """Say what each of these clients receives; what they make of it stays with them."""
        steps = self.broadcasting(round, table, self.receivers(parties))
        if steps is not None:
            self.talk.drive(steps, "broadcast", round, table)
        return {}

    def upload(self, round: int, table: Table, rows: Mapping[str, Any], **refusals: Any) -> Uploaded:
        """The uploads of the clients that `rows` names are aggregated. Clients refuse by themselves."""
        steps = self.uploading(round, table, list(rows))
        steps = steps if self.sums else self._readable(steps, round, table)
        return self.talk.drive(steps, "upload", round, table, members=list(rows))

    def _readable(self, steps: ServerRound[Uploaded], round: int, table: Table) -> ServerRound[Uploaded]:
        """Single uploads without those that the codec cannot read: one client at fault ends no run of others. Who sent none, or
        such a one, is named with the reason."""
        excluded: dict[str, str] = {}

        def read(replies: Replies) -> Replies:
            for party, reply in replies:
                try:
                    if isinstance(reply, Silence):
                        raise RunError(reply.reason)
                    self.servers[table].codec.accept(round, sole(reply, party))
                except RunError as error:
                    excluded[party] = f"{table}: {error}"
                else:
                    yield party, reply

        try:
            ask = next(steps)
            while True:
                replies = yield ask
                ask = steps.send(read(replies))
        except StopIteration as end:
            outcome: Uploaded = end.value
        return outcome._replace(excluded={**excluded, **outcome.excluded})


class DefendedApart(Apart, DefendedTransport):
    """The same under a defense."""

    def _draw_from(self, entropy: Entropy) -> None:
        """The server draws from a secret of its own, so that one that is started anew announces what it announced; clients have
        keys of their own, whose public halves were agreed on."""
        self.entropy, self.defended = Entropy(self.secret, self.run), {}
        agreed = agreed_terms(self.agreement)
        self.terms.adopt(agreed.keys, agreed.sessions)

    def align(self, table: Table, holdings: Mapping[str, Holding]) -> None:
        super().align(table, holdings)
        self._place(table, {})
        self.place(table)


def server_exchange(talk: Conversation, channel: Channel, agreement: Agreement, secret: bytes) -> Apart:
    """The server's exchange of a run. `secret`: 32 bytes, what it draws from."""
    kind = DefendedApart if agreement.options.defense else Apart
    return kind(talk, channel, agreement, secret)
