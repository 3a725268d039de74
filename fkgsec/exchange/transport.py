"""Transports carry messages, and drive an exchange between parties in one process. This one sends plaintext, as the papers do.

    transport = Transport(channel, options, parties, ("entities",), run)

A transport states what it `delivers` to the server. An aggregation that needs more is refused. Only the transport holds both the
server's and the clients' halves. They reach each other by messages of its channel, in rounds of generator pairs
(`fkgsec.exchange.rounds`), which another driver can run elsewhere. Other transports are subclasses (`fkgsec.defenses.transport`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import cast, get_args

from torch import Tensor

from fkgsec.errors import SpecError
from fkgsec.exchange import rounds
from fkgsec.exchange.aggregation import AGGREGATIONS, Answers
from fkgsec.exchange.client import TableClient
from fkgsec.exchange.codec import CODECS
from fkgsec.exchange.parts import Delivery, Holding, Observed, Received, SharedTable, Uploaded, below
from fkgsec.exchange.server import TableServer
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import Alignment, Channel
from fkgsec.federation.options import RunOptions
from fkgsec.federation.protection import NOTHING, Protection
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.protocols.core.rounds import ClientRound, Deliver, Outcome, Result, ServerRound, run


class Transport:
    """Alignment, broadcast and upload of the shared tables in plaintext.

    Leakage: the server sees every client's names and rows.

    Args:
        channel: takes every message.
        options: of the federation.
        parties: the clients, in their order.
        tables: the shared tables.
        run: names the run, by its data and options.

    Attributes:
        delivers: what the server receives of a round's uploads.
        codec, aggregation: of the recipe.
        server: the tables at the server.
        inputs: by table and party each participant's part of the last sum; see `KgeResult.inputs`.
        known: parts of that sum that the server knows beforehand; see `KgeResult.known`.
        unguarded: parties that skip the defenses of clients; see `Adversary.guarded`.

    Raises:
        SpecError: a codec, an aggregation and a transport that do not fit.
    """

    delivers: Delivery = "single uploads"

    def __init__(
        self, channel: Channel, options: RunOptions, parties: Sequence[str], tables: Sequence[Table], run: str
    ) -> None:
        self.channel, self.options, self.parties, self.run = channel, options, tuple(parties), run
        recipe = RECIPES[options.algorithm]
        self.codec, self.aggregation = CODECS[recipe.codec], AGGREGATIONS[recipe.aggregation]
        # Fail before training, not in the first round.
        self._check_fit()
        self.servers: dict[Table, TableServer] = {
            table: TableServer(SharedTable(table, self.parties), self.codec, self.aggregation, options)
            for table in tables
        }
        self.server: dict[Table, SharedTable] = {table: server.shared for table, server in self.servers.items()}
        self.clients: dict[Table, dict[str, TableClient]] = {table: {} for table in tables}
        self.inputs: dict[Table, Mapping[str, Tensor]] = {}
        self.known: dict[Table, dict[str, Tensor]] = {}
        self.unguarded: set[str] = set()
        self.malicious_server: Adversary | None = None

    def _check_fit(self) -> None:
        check_fit(self.options.algorithm, delivers=self.delivers, transport="a plaintext transport")

    def tamper_with(self, adversary: Adversary) -> None:
        """Let an adversary run the server.

        Args:
            adversary: replaces broadcasts.
        """
        self.malicious_server = adversary
        for server in self.servers.values():
            server.tamper = adversary.broadcast

    def align(self, table: Table, holdings: Mapping[str, Holding]) -> None:
        """Run round 0; afterwards `server[table].names` is the union of the clients' names.

        Args:
            holdings: by party.
        """
        self._seat(table, holdings)
        clients = self.clients[table]
        self._run(self.aligning(table), {party: rounds.client_alignment(client) for party, client in clients.items()})

    # The server's halves of the steps, which reach no client but by what they yield.

    def aligning(self, table: Table) -> ServerRound[None]:
        """Return the server's side of alignment."""
        return rounds.server_alignment(self.servers[table], self.parties)

    def broadcasting(self, round: int, table: Table, receivers: Sequence[str]) -> ServerRound[None] | None:
        """Return the server's side of a broadcast; None if there is nothing to send.

        Args:
            receivers: clients that get rows.
        """
        return rounds.server_broadcast(self.servers[table], round, receivers)

    def uploading(self, round: int, table: Table, participants: Sequence[str]) -> ServerRound[Uploaded]:
        """Return the server's side of an upload.

        Args:
            participants: of the round.
        """
        return rounds.server_upload(self.servers[table], round, participants)

    def receivers(self, parties: Sequence[str]) -> Sequence[str]:
        """Return the clients that receive a broadcast.

        Args:
            parties: clients that need the rows.
        """
        # A change is useless to a client that missed an earlier one, so changes go to all clients.
        return self.parties if self.codec.to_everyone else parties

    # A round.

    def _run(
        self, server: ServerRound[Result], clients: Mapping[str, ClientRound], deliver: Deliver | None = None
    ) -> Outcome[Result]:
        return run(server, clients, deliver or self._deliver)

    def _deliver(self, stage: str, sender: str, receiver: str, frame: rounds.Frames) -> Sequence[rounds.Frames]:
        return (tuple(self.channel.send(message) for message in frame),)

    def _seat(self, table: Table, holdings: Mapping[str, Holding]) -> None:
        self.clients[table] = {
            party: TableClient(party, table, holding, self.codec, self.aggregation, self.options)
            for party, holding in holdings.items()
        }

    def initialise(self, table: Table, rows: Tensor) -> None:
        """Set the first rows of a table, one per name.

        Args:
            rows: float32 `[N, width]`.
        """
        self.servers[table].initialise(rows)

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """Send the table, and return what each of the `receivers` reads.

        Args:
            parties: clients that need the rows.
        """
        # A driver for a network runs the same pairs of generators with real messages.
        receivers = self.receivers(parties)
        clients = {party: rounds.client_broadcast(self.clients[table][party], round) for party in receivers}
        steps = self.broadcasting(round, table, receivers)
        assert steps is not None
        outcome = self._run(steps, clients)
        return cast("dict[str, Received]", outcome.clients)

    def upload(
        self,
        round: int,
        table: Table,
        rows: Mapping[str, Tensor],
        *,
        refusals: Mapping[str, str] = MappingProxyType({}),
    ) -> Uploaded:
        """Upload the participants' rows; the server aggregates them.

        Args:
            rows: trained rows by party, `[num_uploaded, width]` each.
            refusals: by participant why it sends nothing (`fkgsec.federation.order`).
        """
        clients = {
            party: rounds.client_upload(self.clients[table][party], round, client_rows)
            for party, client_rows in rows.items()
            if party not in refusals
        }
        # A client that refuses is silent, as on a network.
        outcome = self._run(self.uploading(round, table, list(rows)), clients).result
        return outcome._replace(excluded={**refusals, **outcome.excluded})

    # What is kept.

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint beside the transcript, by name."""
        named = {}
        for table, server in self.servers.items():
            named |= {f"server.{table}.{name}": tensor for name, tensor in server.tensors().items()}
        return named | self.memories()

    def memories(self) -> dict[str, Tensor]:
        """Return the clients' state, by table and client index."""
        return {
            f"client.{table}.{self.parties.index(party)}.{name}": tensor.clone()
            for table, clients in self.clients.items()
            for party, client in clients.items()
            for name, tensor in client.tensors().items()
        }

    def restore(self, holdings: Mapping[Table, Mapping[str, Holding]], tensors: Mapping[str, Tensor]) -> None:
        """Restore from a checkpoint, whose transcript is in the channel.

        Args:
            holdings: by table and party. tensors: from `tensors`.
        """
        # Names and holdings are not in the checkpoint: the alignment of round 0 has them.
        for message in self.channel.transcript.each_message(0):
            if isinstance(message, Alignment):
                self.server[message.table].align(message)
        for table, server in self.servers.items():
            self._seat(table, holdings[table])
            server.load(below(f"server.{table}.", tensors))
        self.remember(tensors)

    def remember(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the clients' state.

        Args:
            tensors: from `memories`.
        """
        for table, clients in self.clients.items():
            for party, client in clients.items():
                client.load(below(f"client.{table}.{self.parties.index(party)}.", tensors))

    # Rounds after a run.

    @property
    def sums(self) -> bool:
        """True if the server learns sums of uploads, not each of them."""
        return self.delivers == "sum"

    def senders(self, requesting: Sequence[int], colluders: int) -> list[int]:
        """Choose the clients that upload in a round of unlearning: without sums, only the requesting ones.

        Args:
            requesting: client indices.
            colluders: clients that may share their part of a sum with the server.

        Raises:
            SpecError: a sum of so few would show the server what one of them sent.
        """
        return list(requesting)

    def carried(self) -> dict[str, Tensor]:
        """Return the state from which a round after the run continues: uploads that the aggregation keeps, if any."""
        if not self.aggregation.keeps_uploads:
            return {}
        return {
            f"aggregation.{table}.{name}": tensor.clone()
            for table, server in self.servers.items()
            for name, tensor in server.aggregation.tensors().items()
        }

    def carry_on(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue, after `initialise`, from another exchange's state.

        Args:
            tensors: from its `carried`.
        """
        for table, server in self.servers.items():
            if aggregation := below(f"aggregation.{table}.", tensors):
                server.aggregation.load(aggregation)

    def send_again(self, table: Table) -> dict[str, Received]:
        """Run round 0 after a run: send every client the table. Returns what some take over; the others keep their rows."""
        self.broadcast(0, table, self.parties)
        return {}

    # Statements about the exchange.

    def observed(self, table: Table) -> dict[str, Observed]:
        """Return the server's knowledge of each client's rows; empty with sums, or if one message contains all of it."""
        return {} if self.sums else self.servers[table].codec.observed()

    def rounds_worth_noting(self) -> set[int]:
        """Return the rounds whose opened sums an adversary can still use, beside the best and the last."""
        return set()

    def protection(self, before: Protection = NOTHING, rounds: int | None = None) -> Protection:
        """Return the protection of the exchange; none in plaintext.

        Args:
            before: protection of a run that this one continues or repeats; its guarantees compose with these.
            rounds: rounds of uploads that this exchange carries; None: as many as the options allow.
        """
        return before


def check_fit(
    algorithm: str, *, delivers: Delivery, knows_holdings: bool = True, hides_choice: bool = True, transport: str
) -> None:
    """Compare what the parts of an algorithm need and carry with what a transport delivers.

    Args:
        knows_holdings: True if the server learns who holds each row.
        hides_choice: True if the choice of transmitted rows reveals nothing that the transport promises to hide.
        transport: named in errors.

    Raises:
        SpecError: they do not fit.
    """
    recipe = RECIPES[algorithm]
    codec, aggregation = CODECS[recipe.codec], AGGREGATIONS[recipe.aggregation]
    for name, allowed in (("needs", get_args(Delivery)), ("answers", get_args(Answers))):
        if (value := getattr(aggregation, name)) not in allowed:
            raise SpecError(
                f"{algorithm}: aggregation {recipe.aggregation!r}: {name} must be one of {', '.join(allowed)}; got {value!r}"
            )
    named, summed = f"aggregation {recipe.aggregation!r}", delivers == "sum"
    # A sum hides single uploads, personal answers name their receivers, and stored uploads would be single ones. Noise covers
    # values; the choice of rows depends on values too, and would be sent in plaintext.
    for misfit, why in (
        (
            summed and aggregation.needs == "single uploads",
            f"{named} needs single uploads; {transport} delivers their sum alone",
        ),
        (
            summed and aggregation.answers == "personal rows",
            f"{named} answers each client with rows of its own; {transport} sends all the same",
        ),
        (
            summed and aggregation.keeps_uploads,
            f"{named} keeps every client's most recent upload; {transport} delivers their sum alone",
        ),
        (
            aggregation.answers not in codec.carries,
            f"{named} answers with {aggregation.answers}; codec {recipe.codec!r} carries {', '.join(sorted(codec.carries))}",
        ),
        (
            codec.chooses_rows and not knows_holdings,
            f"codec {recipe.codec!r} needs a server that knows who holds each row; {transport} hides it",
        ),
        (
            codec.chooses_rows and not hides_choice,
            f"codec {recipe.codec!r} chooses rows by their values; the noise of {transport} covers values alone",
        ),
    ):
        if misfit:
            raise SpecError(f"{algorithm}: {why}")


MakeTransport = Callable[[Channel, RunOptions, Sequence[str], Sequence[Table], str], Transport]
