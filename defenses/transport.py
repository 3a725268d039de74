"""A transport with defenses: alignment by private set union, uploads through secure aggregation, suppression, noise.

    make_transport(channel, KgeOptions(defense="psu,secagg"), parties, tables, run)

Leakage by defense:

- `psu`: the server learns the union of names, but not who holds which. Every client receives the whole table, and so the names
  and rows that only others hold. (With any aggregation, a row that returns changed shows a client that others hold it too.)
- `secagg`: each round, the server learns the sum of the participants' rows, how many of them hold each row (with client weights:
  the sum of the holders' weights; all know the largest weight), who is in the sum, and how many values were clipped (in this
  simulation). With a colluder, it subtracts the colluder's part. `fkgsec.attacks.residual` reads what remains with few clients,
  or with changing participants. Without `psu`, alignment is in plaintext: the server knows who holds each row, and whose a row
  with one holder is.
- `suppress`: before each sum, the server also learns the number of holders of every row. Rows held by fewer than t stay with
  their clients. The rows to send are part of the sum's session: clients that received different ones open nothing.
- `dp`: clipped values with noise, see `fkgsec.defenses.privacy`. It covers neither which rows a client holds nor the other
  contents of a record: losses, validation figures, counts of clipped values.

With sums, a codec that omits rows (FedS) uploads zeros in their place, which masks hide. Uploads are then as long as FedE's, and
a row that one client alone chose is opened as it is. `suppress` opens only rows that at least t clients chose. A server that does
not follow the protocol can send some clients of such a codec rows of its choice and others none (`fkgsec.defenses.broadcasts`).

Sources of randomness:

- Keys, identities, shares, masks, the randomness of private set union and the noise of `dp`: 32 bytes that the operating system
  gives at the start of the run. A checkpoint holds them, so that a stopped run continues with the same bits. They are in no
  record, transcript, spec or log, and in no view of an adversary. Anyone who reads the checkpoint can open every upload, and also
  finds all clients' tables there. `protocol_seed` replaces them by a number, for tests only; the record then says so.
- First rows, batches, negatives, participants, simulated dropouts: the run's seed, which a record states. They reveal nothing
  about the data, but anyone with the data can repeat the training: a laboratory run is a function of data, options and seed.
  So are the values of all sums, since masks cancel; with `dp` the noise is fresh in every run.
  In two runs of one seed, the other clients contribute the same. If the data of one client alone differ, the difference of
  the first sums is that client's. An unlearning therefore draws anew; use another seed for data that changed otherwise.

A stopped run continues with the same identities and noise, so it releases nothing new when it repeats a round. Keys, shares and
masks are fresh: with the old ones, a repeated round would give a server both kinds of share of one secret.
If values differ in their last bits (on another device), the noise is the same over different values.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

import msgspec
import numpy as np
import torch
from torch import Tensor

from fkgsec.defenses import rounds
from fkgsec.defenses.bound_broadcasts import ReceivedBroadcasts, SentBroadcasts, packed, unpack
from fkgsec.defenses.broadcasts import BroadcastError, commitment_of_names
from fkgsec.defenses.client import DefendedClient
from fkgsec.defenses.options import check_defense, parse_defense
from fkgsec.defenses.server import DefendedServer
from fkgsec.defenses.statement import protection_of
from fkgsec.defenses.terms import Entropy, Terms
from fkgsec.errors import SpecError
from fkgsec.exchange import Holding, Received, Transport, Uploaded
from fkgsec.exchange.parts import FilledRows, LazyTensors, Sum
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import Channel, ProtocolMessage
from fkgsec.federation.options import RunOptions
from fkgsec.federation.protection import NOTHING, Protection
from fkgsec.federation.recipes import Table
from fkgsec.protocols import psu
from fkgsec.protocols.core.errors import TooFewParties
from fkgsec.protocols.core.prg import SEED_BYTES
from fkgsec.protocols.core.rounds import ServerRound
from fkgsec.protocols.secagg import Stage
from fkgsec.randomness import generator

# Summands that the server does not know; the sum of one would be its value.
MIN_UNKNOWN = 2


class DefendedTransport(Transport):
    """See the module. Raises `SpecError` for a defense that does not fit the federation."""

    sent_log, received_log = SentBroadcasts, ReceivedBroadcasts

    def __init__(
        self, channel: Channel, options: RunOptions, parties: Sequence[str], tables: Sequence[Table], run: str
    ) -> None:
        check_defense(options)
        self.defense = parse_defense(options.defense)
        self.delivers = self.defense.delivers
        super().__init__(channel, options, parties, tables, run)
        self.terms = Terms(options, parties, tables, self.codec)
        self.central = DefendedServer(self.terms, self.servers, self.sent_log())
        self._draw_from(Entropy.drawn(options, run))
        if self.delivers == "single uploads":
            for server in self.servers.values():
                server.screen = self.defense.screen

    def _check_fit(self) -> None:
        """`check_defense` has compared."""

    def _draw_from(self, entropy: Entropy) -> None:
        self.entropy = entropy
        self.terms.agree(entropy)
        self.defended = {
            party: DefendedClient(party, self.terms, entropy.of(place), self.received_log)
            for place, party in enumerate(self.parties)
        }

    def tamper_with(self, adversary: Adversary) -> None:
        # Let an adversary run the server; under suppression, it also chooses the rows that clients send.
        super().tamper_with(adversary)
        self.central.rows_to_send = adversary.rows_to_send

    # Alignment.

    def align(self, table: Table, holdings: Mapping[str, Holding]) -> None:
        if not self.defense.psu:
            super().align(table, holdings)
            self._place(table, {})
            return
        self._seat(table, holdings)
        self._place(table, self._union(table))

    def _seat(self, table: Table, holdings: Mapping[str, Holding]) -> None:
        super()._seat(table, holdings)
        for party, client in self.clients[table].items():
            self.defended[party].join(client, guarded=party not in self.unguarded)

    def _place(self, table: Table, lists: Mapping[str, Sequence[str]]) -> None:
        """Let each client find its rows in its list of names, which is bound if it comes from a private union."""
        names, bind = self.server[table].names, self.defense.psu is not None
        for party, client in self.defended.items():
            client.place(table, lists.get(party, names), bind=bind)
        if bind:
            self.central.log.extend(f"names of {table}", 0, commitment_of_names(names))

    def _union(self, table: Table) -> dict[str, list[str]]:
        clients = {party: rounds.client_union(client, table) for party, client in self.defended.items()}
        return cast("dict[str, list[str]]", self._run(self.aligning(table), clients).clients)

    def aligning(self, table: Table) -> ServerRound[None]:
        if not self.defense.psu:
            yield from super().aligning(table)
            return
        randomness = self.entropy.of(len(self.parties)).randomness("psu", table, 0)
        try:
            union = yield from rounds.server_union(self.terms, table, randomness)
        except psu.CohortChanged as error:
            if error.opened or not error.excluded:
                raise
            left_out = ", ".join(f"{party} ({reason})" for party, reason in error.excluded.items())
            raise TooFewParties(
                f"psu: the union of {table} is without {left_out}; start the federation without them, or without a party that "
                "could not open their shares: either is at fault"
            ) from error
        self.server[table].names = list(union.identifiers)

    def initialise(self, table: Table, rows: Tensor) -> None:
        # Encoding and noise fit the table. Raises `SpecError` for values beyond the clip.
        super().initialise(table, rows)
        self._prepare(table)
        if not self.defense.secagg:
            return
        largest = float(rows.abs().max()) if rows.numel() else 0.0
        if largest > self.terms.largest_value(table):
            raise SpecError(
                f"defense: secagg: clip must be at least {largest:.3g}, which the first rows of {table} reach; got "
                f"{self.terms.encodings[table].clip:g}, to which every such value would be cut, as the server knows"
            )

    def _prepare(self, table: Table) -> None:
        num_rows, width = self.server[table].rows.shape
        weights = [client.holding.weight for client in self.clients[table].values()]
        self.terms.prepare(table, num_rows, width, max(weights, default=1))

    # Broadcasts.

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        # With sums, each client checks the rows and binds them to its history; local rows stay.
        if not self.defense.secagg:
            return super().broadcast(round, table, parties)
        receivers = self.receivers(parties)
        steps = self.broadcasting(round, table, receivers)
        if steps is None:
            return {}
        clients = {party: rounds.client_broadcast(client, round, table) for party, client in self.defended.items()}
        outcome = self._run(steps, clients)
        return {party: cast("Received", outcome.clients[party]) for party in receivers}

    def broadcasting(self, round: int, table: Table, receivers: Sequence[str]) -> ServerRound[None] | None:
        # With sums, receivers get a proof, and all others the commitment.
        if not self.defense.secagg:
            return super().broadcasting(round, table, receivers)
        # Too many dropped out, so there is nothing new to send.
        if round and not self.codec.whole and not self.central.opened[table]:
            if not self.codec.to_everyone:
                return None
            # Every client must receive each change. This change is zero.
            rows = self.server[table].rows
            self.servers[table].aggregate_sum(round, Sum(torch.zeros_like(rows), torch.zeros(len(rows)).long()))
        content = self.central.content(round, table)
        contents = {party: self._content_for(round, table, party, content) for party in receivers}
        # An adversary says that it sent everybody what it sent the first of them.
        announced = content if self.servers[table].tamper is None else next(iter(contents.values()), content)
        return rounds.server_broadcast(self.central, round, table, contents, self.central.commit(table, announced))

    def _content_for(self, round: int, table: Table, party: str, content: Tensor) -> Tensor:
        """Return the table whose rows the server sends a client. An adversary may change it; the client's history binds it."""
        return self.servers[table].sent(round, party, content)

    # Uploads.

    def upload(
        self,
        round: int,
        table: Table,
        rows: Mapping[str, Tensor],
        *,
        refusals: Mapping[str, str] = MappingProxyType({}),
    ) -> Uploaded:
        # Rows are guarded by the clients' defenses and summed with `secagg`; after too many dropouts, the table
        # stays.
        if not self.defense.secagg:
            return super().upload(round, table, rows, refusals=refusals)
        before, participants = self.server[table].rows, list(rows)
        rows = {party: client_rows for party, client_rows in rows.items() if party not in refusals}
        for party, client_rows in rows.items():
            self.defended[party].begin(round, table, client_rows)
        dropouts = self.terms.dropouts(round, participants)
        if (server := self.malicious_server) is not None:
            dropouts |= {party: Stage.MASK for party in participants if server.drops(round, party)}
        speaking = [party for party in rows if dropouts.get(party) is not Stage.ADVERTISE]
        clients = {
            party: rounds.client_upload(client, round, table, participants)
            if party in speaking
            else rounds.client_listening(client, round, table, refusals.get(party, ""))
            for party, client in self.defended.items()
        }
        server = self.uploading(round, table, participants)
        outcome = self._run(server, clients, rounds.silencing(self._deliver, dropouts)).result
        parts = {party: self.defended[party].parts[table] for party in rows}
        self.inputs[table] = LazyTensors(
            {
                party: FilledRows(len(before), torch.from_numpy(part.rows), torch.from_numpy(part.values))
                for party, part in parts.items()
            }
        )
        self.known[table] = {} if self.codec.chooses_rows else self._echoes(table, before)
        return outcome

    def uploading(self, round: int, table: Table, participants: Sequence[str]) -> ServerRound[Uploaded]:
        if not self.defense.secagg:
            return super().uploading(round, table, participants)
        return rounds.server_upload(self.central, round, table, participants, self.channel.transcript.note)

    def _echoes(self, table: Table, before: Tensor) -> dict[str, Tensor]:
        """Return the inputs that the server knows already: clients that send back exactly what it sent them."""
        by_row = {}
        for party in self.inputs[table]:
            contributed = self.defended[party].parts[table].kept.contribution.rows
            indices = self.defended[party].places[table][: len(contributed)]
            crossed = torch.ones(len(indices), dtype=torch.bool)
            if self.defense.suppress:
                local = self.defended[party].log.local_rows(table, len(before))
                crossed = torch.from_numpy(self.central.crossed[table] & ~local)[indices]
            if crossed.any() and torch.equal(contributed[crossed].double(), before[indices[crossed]].double()):
                by_row[party] = before.double() * self.clients[table][party].holding.weight
        return by_row

    # What is kept, and rounds after a run.

    def tensors(self) -> dict[str, Tensor]:
        entropy = torch.from_numpy(np.frombuffer(self.entropy.value, dtype=np.uint8).copy())
        since = torch.tensor(sorted(self.central.since_whole), dtype=torch.int64)
        barred = torch.frombuffer(bytearray(msgspec.msgpack.encode(self.central.barred)), dtype=torch.uint8)
        state = {"entropy": entropy, "broadcasts": self._histories(), "since": since, "barred": barred}
        return super().tensors() | state

    def _histories(self) -> Tensor:
        return packed(self.central.log, {party: client.log for party, client in self.defended.items()})

    def _load_histories(self, tensor: Tensor) -> None:
        unpack(tensor, self.central.log, {party: client.log for party, client in self.defended.items()})

    def restore(self, holdings: Mapping[Table, Mapping[str, Holding]], tensors: Mapping[str, Tensor]) -> None:
        # The list of a private union and the survivors are read from the transcript.
        # Fresh keys and shares after a stop: repeating a round with the old ones could reveal both kinds of share of one secret.
        fresh = b"" if self.options.protocol_seed is not None else secrets.token_bytes(SEED_BYTES)
        self._draw_from(Entropy(tensors["entropy"].numpy().tobytes(), self.run, fresh))
        # The union is not in the checkpoint: the transcript of round 0 has the list that all clients received.
        transcript = self.channel.transcript
        for message in transcript.each_message(0):
            if isinstance(message, ProtocolMessage) and message.step == "psu-union-list":
                union = psu.decode_message(message.content)
                assert isinstance(union, psu.UnionList)
                self.server[message.table].names = list(union.identifiers)
        super().restore(holdings, tensors)
        for table in holdings:
            self._place(table, {})
            self._prepare(table)
        self._load_histories(tensors["broadcasts"])
        self.central.since_whole = {int(round) for round in tensors["since"]}
        self.central.barred = msgspec.msgpack.decode(tensors["barred"].numpy().tobytes(), type=dict[str, str])
        for number in sorted(transcript.notes):
            for opened in transcript.opened(number):
                self.central.remember_survivors(number, opened.survivors)

    def senders(self, requesting: Sequence[int], colluders: int) -> list[int]:
        """Choose the senders of an unlearning: as many as in any round, so that a sum hides its parts.

        A server that sees several such rounds of one federation can still find the requesting clients.

        Args:
            requesting: client indices that must be among them.
            colluders: clients that share their part with the server.

        Raises:
            SpecError: a sum of so few clients hides no upload.
        """
        if not self.defense.secagg:
            return super().senders(requesting, colluders)
        count = self.terms.num_participants
        if len(requesting) > count:
            raise SpecError(
                f"defense: {count} clients take part in a round, and {len(requesting)} asked; unlearn in several rounds"
            )
        fewest = self.terms.fewest_survivors(count)
        if fewest < MIN_UNKNOWN + colluders:
            raise SpecError(
                f"defense: a sum of {fewest} clients (the fewest that open one) of whom colluders={colluders} tell the server "
                f"their part hides no upload: {MIN_UNKNOWN} others are needed; unlearn with more clients or fewer colluders"
            )
        others = [place for place in range(len(self.parties)) if place not in requesting]
        drawn = generator(self.options.seed, "participants of an unlearning", *requesting).permutation(others)
        return sorted([*requesting, *map(int, drawn[: count - len(requesting)])])

    def carried(self) -> dict[str, Tensor]:
        rows = {f"rows.{table}": shared.rows.clone() for table, shared in self.server.items()}
        memories = {name: tensor for name, tensor in self.memories().items() if ".codec." in name}
        return super().carried() | rows | memories | {"broadcasts": self._histories()}

    def carry_on(self, tensors: Mapping[str, Tensor]) -> None:
        super().carry_on(tensors)
        self._load_histories(tensors["broadcasts"])
        if self.defense.psu:
            for table in self.server:
                self._place(table, {party: client.names[table] for party, client in self.defended.items()})
        if any(".codec." in name for name in tensors):
            self.remember(tensors)

    def send_again(self, table: Table) -> dict[str, Received]:
        # Clients accept no other table; those that lacked its rows take them over.
        if not (self.defense.secagg and self.codec.whole):
            return super().send_again(table)
        commitments, lacking = {}, [party for party, client in self.defended.items() if client.log.lacks_rows(table)]
        for party, client in self.defended.items():
            commitments[party] = client.log.last[table].commitment
        received = self.broadcast(0, table, self.parties)
        for party, client in self.defended.items():
            if client.log.last[table].commitment != commitments[party]:
                raise BroadcastError(f"{party} was sent another table of {table} than it was sent last in the run")
        return {party: self.defended[party].taking(table, received[party]) for party in lacking}

    # Statements about the exchange.

    def rounds_worth_noting(self) -> set[int]:
        # Rounds whose survivors reveal more about holdings, and those since a sum had all rows.
        return {*self.central.notable, *(self.central.since_whole if self.codec.chooses_rows else ())}

    def protection(self, before: Protection = NOTHING, rounds: int | None = None) -> Protection:
        return protection_of(self.terms, before, rounds or self.terms.num_releases)


def make_transport(
    channel: Channel, options: RunOptions, parties: Sequence[str], tables: Sequence[Table], run: str
) -> Transport:
    """Create the transport that `options.defense` requires; plaintext for none.

    Args:
        run: names the run, for keys and randomness.
    """
    kind = DefendedTransport if options.defense else Transport
    return kind(channel, options, parties, tables, run)
