"""Transports carry messages and drive an exchange between parties in one process. This one sends plaintext, as the papers do.

    transport = Transport(channel, options, parties, ("entities",), run)

A transport says what it `delivers` to the server, and makes the parts of the algorithm's recipe fit: an aggregation that needs
what it does not deliver is refused. It alone holds both the server's halves and the clients'; they reach each other by messages
of its channel, in rounds of generator pairs (`fkgsec.exchange.rounds`), which another driver can run elsewhere. Another transport
is a subclass (`fkgsec.defenses.transport`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import cast, get_args

from torch import Tensor

from fkgsec.errors import SpecError
from fkgsec.exchange import rounds
from fkgsec.exchange.aggregation import AGGREGATIONS, Aggregation, Answers
from fkgsec.exchange.client import TableClient
from fkgsec.exchange.codec import CODECS
from fkgsec.exchange.parts import Delivery, Holding, Observed, Received, Uploaded, below
from fkgsec.exchange.server import TableServer
from fkgsec.exchange.table import SharedTable
from fkgsec.federation.adversary import Adversary
from fkgsec.federation.messages import Alignment, Channel
from fkgsec.federation.options import RunOptions
from fkgsec.federation.protection import NOTHING, Protection
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.protocols.core.rounds import ClientRound, Deliver, Outcome, Result, ServerRound, run


class Transport:
    """Alignment, broadcast and upload of the shared tables in clear.

    Leakage: the server sees every client's names and rows.

    Args:
        channel: takes every message.
        options: of the federation.
        parties: the clients, in their order.
        tables: what is shared.
        run: names the run, by its data and options.

    Attributes:
        delivers: what the server gets of a round's uploads.
        codec, aggregation: of the recipe.
        server: the tables as the server has them.
        inputs: by table and party what each participant put into the last sum; see `KgeResult.inputs`.
        known: what the server knows beforehand of participants' parts of that sum; see `KgeResult.known`.
        unguarded: parties that do to their rows nothing that a defense asks of clients; see `Adversary.guarded`.

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
        check_fit(self.options.algorithm, delivers=self.delivers, transport="a transport in clear")

    def tamper_with(self, adversary: Adversary) -> None:
        """Let an adversary run the server."""
        self.malicious_server = adversary
        for server in self.servers.values():
            server.tamper = adversary.broadcast

    def align(self, table: Table, holdings: Mapping[str, Holding]) -> None:
        """Round 0: afterwards `server[table].names` is the union of what clients hold."""
        self._seat(table, holdings)
        clients = self.clients[table]
        self._run(self.aligning(table), {party: rounds.client_alignment(client) for party, client in clients.items()})

    # The server's halves of the steps, which reach no client but by what they yield.

    def aligning(self, table: Table) -> ServerRound[None]:
        """Steps of alignment."""
        return rounds.server_alignment(self.servers[table], self.parties)

    def broadcasting(self, round: int, table: Table, receivers: Sequence[str]) -> ServerRound[None] | None:
        """Steps of a broadcast to these clients; None if there is nothing to send."""
        return rounds.server_broadcast(self.servers[table], round, receivers)

    def uploading(self, round: int, table: Table, participants: Sequence[str]) -> ServerRound[Uploaded]:
        """Steps of these clients' uploads."""
        return rounds.server_upload(self.servers[table], round, participants)

    def receivers(self, parties: Sequence[str]) -> Sequence[str]:
        """Who is sent rows where these are to be: changes go to all, as they are of no use to one that missed any."""
        return self.parties if self.codec.to_everyone else parties

    # A round.

    def _run(
        self, server: ServerRound[Result], clients: Mapping[str, ClientRound], deliver: Deliver | None = None
    ) -> Outcome[Result]:
        """A step with all its parties in this process."""
        return run(server, clients, deliver or self._deliver)

    def _deliver(self, stage: str, sender: str, receiver: str, frame: rounds.Frames) -> Sequence[rounds.Frames]:
        """The messages of a frame cross the channel one after the other."""
        return (tuple(self.channel.send(message) for message in frame),)

    def _seat(self, table: Table, holdings: Mapping[str, Holding]) -> None:
        """Make the clients' halves."""
        self.clients[table] = {
            party: TableClient(party, table, holding, self.codec, self.aggregation, self.options)
            for party, holding in holdings.items()
        }

    def initialise(self, table: Table, rows: Tensor) -> None:
        """Set the first rows, one for each name."""
        self.servers[table].initialise(rows)

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """Return what each of these clients receives of the table, see `receivers`."""
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
        """Participants send their rows, `[num_uploaded, width]` each; the server aggregates them into the table.

        Args:
            refusals: by participant why it sends nothing (`fkgsec.federation.order`).
        """
        clients = {
            party: rounds.client_upload(self.clients[table][party], round, client_rows)
            for party, client_rows in rows.items()
            if party not in refusals
        }
        outcome = self._run(self.uploading(round, table, list(rows)), clients).result
        return outcome._replace(excluded={**refusals, **outcome.excluded})

    # What is kept.

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold of this exchange beside its transcript, by name."""
        named = {}
        for table, server in self.servers.items():
            named |= {f"server.{table}.{name}": tensor for name, tensor in server.tensors().items()}
        return named | self.memories()

    def memories(self) -> dict[str, Tensor]:
        """Return what clients remember, by table and place."""
        return {
            f"client.{table}.{self.parties.index(party)}.{name}": tensor.clone()
            for table, clients in self.clients.items()
            for party, client in clients.items()
            for name, tensor in client.tensors().items()
        }

    def restore(self, holdings: Mapping[Table, Mapping[str, Holding]], tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint, whose transcript is back in the channel: the alignment, and what `tensors` gave."""
        for message in self.channel.transcript.each_message(0):
            if isinstance(message, Alignment):
                self.server[message.table].align(message)
        for table, server in self.servers.items():
            self._seat(table, holdings[table])
            server.load(below(f"server.{table}.", tensors))
        self.remember(tensors)

    def remember(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `memories` gave."""
        for table, clients in self.clients.items():
            for party, client in clients.items():
                client.load(below(f"client.{table}.{self.parties.index(party)}.", tensors))

    # Rounds after a run.

    @property
    def sums(self) -> bool:
        """Return whether the server learns sums of uploads, not each."""
        return self.delivers == "sum"

    def senders(self, requesting: Sequence[int], colluders: int) -> list[int]:
        """Who uploads in a round in which these clients (by place) forget: they alone, where uploads are not summed.

        Args:
            colluders: clients that may tell the server their part of a sum.

        Raises:
            SpecError: a sum of so few would show the server what one of them sent.
        """
        return list(requesting)

    def carried(self) -> dict[str, Tensor]:
        """Return the state from which a round after the run, such as one of unlearning, continues: the uploads that the
        aggregation keeps, where it keeps any."""
        if not self.aggregation.keeps_uploads:
            return {}
        return {
            f"aggregation.{table}.{name}": tensor.clone()
            for table, server in self.servers.items()
            for name, tensor in server.aggregation.tensors().items()
        }

    def carry_on(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on, after `initialise`, from what another exchange's `carried` gave."""
        for table, server in self.servers.items():
            if aggregation := below(f"aggregation.{table}.", tensors):
                server.aggregation.load(aggregation)

    def send_again(self, table: Table) -> dict[str, Received]:
        """Round 0 after a run: every client is sent the table. Returns what some take over; the others keep what they have."""
        self.broadcast(0, table, self.parties)
        return {}

    # What it says of itself.

    def observed(self, table: Table) -> dict[str, Observed]:
        """Return what the server knows of each client's rows; empty under sums, and where one message says all of it."""
        return {} if self.sums else self.servers[table].codec.observed()

    def rounds_worth_noting(self) -> set[int]:
        """The rounds whose opened sums an adversary still has a use for, beside the best and the last."""
        return set()

    def protection(self, before: Protection = NOTHING, rounds: int | None = None) -> Protection:
        """Return what the exchange protects; nothing in clear.

        Args:
            before: of what crossed before in a run that this one goes on from or repeats: its guarantees compose with these.
            rounds: how many rounds of uploads this exchange carries; None: as many as the options allow.
        """
        return before


def check_fit(
    algorithm: str, *, delivers: Delivery, knows_holdings: bool = True, hides_choice: bool = True, transport: str
) -> None:
    """Compare what the parts of an algorithm need and carry with what a transport delivers.

    Args:
        knows_holdings: whether the server learns who holds each row. hides_choice: whether which rows of a client cross says
            nothing that the transport promises to hide. transport: what it is called in errors.

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
    if delivers == "sum":
        _check_sum_is_enough(algorithm, recipe.aggregation, aggregation, transport)
    if aggregation.answers not in codec.carries:
        carried = ", ".join(sorted(codec.carries))
        raise SpecError(
            f"{algorithm}: aggregation {recipe.aggregation!r} answers with {aggregation.answers}; codec {recipe.codec!r} "
            f"carries {carried}"
        )
    if codec.chooses_rows and not knows_holdings:
        raise SpecError(
            f"{algorithm}: codec {recipe.codec!r} needs a server that knows who holds each row; {transport} hides it"
        )
    if codec.chooses_rows and not hides_choice:
        raise SpecError(
            f"{algorithm}: codec {recipe.codec!r} chooses rows by their values; the noise of {transport} covers values alone"
        )


def _check_sum_is_enough(algorithm: str, name: str, aggregation: type[Aggregation], transport: str) -> None:
    """Raises `SpecError` for an aggregation that takes single uploads to compute, or to say whose answer is whose."""
    if aggregation.needs == "single uploads":
        raise SpecError(f"{algorithm}: aggregation {name!r} needs single uploads; {transport} delivers their sum alone")
    if aggregation.answers == "personal rows":
        raise SpecError(
            f"{algorithm}: aggregation {name!r} answers each client with rows of its own; {transport} sends all the same"
        )
    if aggregation.keeps_uploads:
        raise SpecError(
            f"{algorithm}: aggregation {name!r} keeps every client's most recent upload; {transport} delivers their sum alone"
        )


MakeTransport = Callable[[Channel, RunOptions, Sequence[str], Sequence[Table], str], Transport]
