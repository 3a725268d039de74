"""An exchange that resists: alignment by private set union, uploads through secure aggregation, suppression, noise.

Leakage, by what is chosen:

- `psu`: the server learns the union of names, not who holds what. Every client receives the whole table, and so the names and
  rows that only others hold. (With any aggregation a client sees, where a row comes back unlike what it sent, that others
  hold it too.)
- `secagg`: the server learns, each round, the sum of the participants' rows, how many of them hold each row, who is in the
  sum, and how many values were clipped (in this simulation). With a colluder it subtracts the colluder's part. What remains
  with few clients, or when the participants change from round to round, is what `attacks.residual` reads. Without `psu`
  alignment is in clear: the server knows who holds each row, and whose a row with one holder is.
- `suppress`: also, before each sum, the number of holders of every row; rows held by fewer than t stay with their clients.
  Which rows are sent enters the session of the sum: clients that were told different ones open nothing.
- `dp`: clipped values with noise, see `defenses.privacy`. It covers neither which rows a client holds nor what a record says
  beside the messages: losses, validation figures, counts of clipped values.

What is drawn, and from what:

- Keys, identities, shares, masks, the randomness of private set union and the noise of `dp`: from 32 bytes that the operating
  system gives at the start of the run. A checkpoint holds them, so that a run that was killed goes on with the same bits; they
  stand in no record, transcript, spec or log, and no view of an adversary. Whoever reads the checkpoint opens every upload (and
  finds all clients' tables beside them). `protocol_seed` puts a number in their place: for tests, and then the record says so.
- First rows, batches, negatives, participants, simulated dropouts: from the run's seed, which a record states. They say nothing
  of the data, but whoever has the data as well can train the whole federation again: a laboratory run is a function of data,
  options and seed. So are the values of all sums, since masks cancel; with `dp` the noise is fresh in every run.

A run that was killed goes on with the same identities and the same noise, so that what it releases again is what it released,
and with fresh keys, shares and masks: a round that is done again would else give a server both kinds of share of one secret.
Where values differ in their last bits (on another device) the noise is the same over other values.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from defenses.bound_broadcasts import BoundBroadcasts
from defenses.broadcasts import BroadcastError, commitment_of_names
from defenses.options import DpOptions, check_defense, parse_defense
from defenses.privacy import LocalNoise, RingNoise, clip_changes, composed, local_noise, released, ring_noise, ring_of
from defenses.server_models import withstood
from fkgsec.errors import RunError, SpecError
from fkgsec.federation.exchange import Exchange, Holding, Received, Uploaded
from fkgsec.federation.messages import SERVER, Channel, Opened, ProtocolMessage
from fkgsec.federation.options import FederationOptions
from fkgsec.federation.protection import NOTHING, Protection
from fkgsec.federation.recipes import Table
from fkgsec.randomness import generator
from protocols import psu, secagg
from protocols.core.errors import (
    DisconnectedGraph,
    OutOfRing,
    ReconstructionMismatch,
    SettingError,
    SplitView,
    TooFewParties,
    UnexpectedMessage,
    UnknownSender,
)
from protocols.core.fixed_point import FixedPoint
from protocols.core.prg import SEED_BYTES, Randomness, Ring, derive, digest, seeded
from protocols.secagg import Setting, Stage, Sum, Vector, safe_threshold
from protocols.secagg.bounds import require_small_risk

LARGE_EPSILON = 20.0  # e^20: half a billion to one
MIN_UNKNOWN = 2  # summands that the server does not know, so that their sum is neither of them


class DefendedExchange(Exchange):
    """See the module. Raises `SpecError` for a defense that does not fit the federation."""

    binds_broadcasts = True  # whether the clients of a sum know that all have the rows that were sent last

    def __init__(
        self, channel: Channel, options: FederationOptions, parties: Sequence[str], tables: Sequence[Table], run: str
    ) -> None:
        super().__init__(channel, options, parties, tables, run)
        check_defense(options)
        self.defense = parse_defense(options.defense)
        self._draw_from(_entropy(options))
        self.sums = self.defense.secagg is not None
        if self.defense.secagg:
            self._check_setting()
        if self.defense.distributed_noise:  # what does not fit is said now; tables are larger than one row
            self._ring_noise(1, options.kge_model().entity_width)
        self._places = {party: place for place, party in enumerate(parties)}
        # What each client knows: where its rows stand in the table, and what it last received of them.
        self._held: dict[Table, dict[str, np.ndarray]] = {}
        self._names: dict[Table, dict[str, list[str]]] = {}  # after private alignment: the list that each received
        self._num_uploaded: dict[Table, dict[str, int]] = {}
        self._received: dict[Table, dict[str, np.ndarray]] = {}
        self._sent_rows: dict[Table, np.ndarray] = {}  # of the round: rows that were not suppressed, none if it failed
        self._encodings: dict[Table, FixedPoint] = {}
        self._noise: dict[Table, LocalNoise | RingNoise] = {}
        self._bound = BoundBroadcasts(channel, parties, whole=self.defense.psu is not None)
        self._notable: dict[int, np.ndarray] = {}  # rounds whose survivors tell something new, and who they were

    def align(self, table: Table, held: Mapping[str, Holding]) -> None:
        """By private set union where `psu` says so, else in clear."""
        if self.defense.psu:
            self.server[table].names = list(self._union(table, held).identifiers)
            self._bind_names(table)
        else:
            super().align(table, held)
        self._place(table, held)

    def initialise(self, table: Table, rows: Tensor) -> None:
        """As in clear; then encoding and noise fit the table's size. Raises `SpecError` for values beyond the clip."""
        super().initialise(table, rows)
        self._prepare(table)
        if not self.defense.secagg:
            return
        largest = float(rows.abs().max()) if rows.numel() else 0.0
        if largest > self._largest_value(table):
            raise SpecError(
                f"defense: secagg: clip must be at least {largest:.3g}, which the first rows of {table} reach; got "
                f"{self._encodings[table].clip:g}, to which every such value would be cut, as the server knows"
            )

    def tensors(self) -> dict[str, Tensor]:
        """As in clear; the entropy of the protocols; what each party was sent so far; and, to clip, what it received."""
        received = {
            f"received.{table}.{self._places[party]}": torch.from_numpy(rows)
            for table, parties in self._received.items()
            for party, rows in parties.items()
            if self.defense.dp
        }
        entropy = torch.from_numpy(np.frombuffer(self._entropy, dtype=np.uint8).copy())
        return super().tensors() | received | {"entropy": entropy, "broadcasts": self._bound.tensor()}

    def senders(self, requesting: Sequence[int], colluders: int) -> list[int]:
        """Under secure aggregation as many as in any round, those that ask among them, if a sum of them hides its parts.

        Who asks is not hidden from a server that sees several such rounds of the same federation.
        """
        if not self.defense.secagg:
            return super().senders(requesting, colluders)
        count = self.options.num_participants(len(self.parties))
        if len(requesting) > count:
            raise SpecError(
                f"defense: {count} clients take part in a round, and {len(requesting)} asked; unlearn in several rounds"
            )
        fewest = self._fewest_survivors(count)
        if fewest < MIN_UNKNOWN + colluders:
            raise SpecError(
                f"defense: a sum of {fewest} clients (the fewest that open one) of whom colluders={colluders} tell the server "
                f"their part hides no upload: {MIN_UNKNOWN} others are needed; unlearn with more clients or fewer colluders"
            )
        others = [place for place in range(len(self.parties)) if place not in requesting]
        drawn = generator(self.options.seed, "participants of an unlearning", *requesting).permutation(others)
        return sorted([*requesting, *map(int, drawn[: count - len(requesting)])])

    def carried(self) -> dict[str, Tensor]:
        """The server's tables, and what each party was sent so far."""
        rows = {f"rows.{table}": shared.rows.clone() for table, shared in self.server.items()}
        return rows | {"broadcasts": self._bound.tensor()}

    def carry_on(self, tensors: Mapping[str, Tensor]) -> None:
        """Parties were sent what the run sent them. The tables are those that the first rows were set to."""
        self._bound.load(tensors["broadcasts"])
        for table in self._names:
            self._bind_names(table)

    def send_again(self, table: Table) -> dict[str, Received]:
        """Clients know what they were sent last, and take no other table; who was sent no rows then takes these over."""
        if not (self.defense.secagg and self.binds_broadcasts):
            return super().send_again(table)
        missed = self._bound.take_missed(table, len(self.server[table].names))
        known = self._bound.commitments(table)
        received = self.broadcast(0, table, self.parties)
        for party, commitment in self._bound.commitments(table).items():
            if commitment != known[party]:
                raise BroadcastError(f"{party} was sent another table of {table} than it was sent last in the run")
        return {
            party: Received(received[party].rows, torch.from_numpy(rows[self._held[table][party]]))
            for party, rows in missed.items()
        }

    def restore(self, held: Mapping[Table, Mapping[str, Holding]], tensors: Mapping[str, Tensor]) -> None:
        """As in clear; a private union is read from its list, and what clients and server knew follows from the transcript.

        Raises `RunError` for a checkpoint without the entropy that its protocols began with.
        """
        if "entropy" not in tensors:
            raise RunError("the checkpoint lacks the entropy of its protocols (an earlier version made it); start over")
        fresh = b"" if self.options.protocol_seed is not None else secrets.token_bytes(SEED_BYTES)
        self._draw_from(tensors["entropy"].numpy().tobytes(), fresh)
        for message in self.channel.transcript.messages(0):
            if isinstance(message, ProtocolMessage) and message.step == "psu-union-list":
                told = psu.decode_message(message.content)
                assert isinstance(told, psu.UnionList)
                self.server[message.table].names = list(told.identifiers)
        super().restore(held, tensors)
        self._bound.load(tensors["broadcasts"])
        for table, holdings in held.items():
            self._place(table, holdings)
            self._prepare(table)
            for party in self.parties if self.defense.dp else ():
                self._received[table][party] = tensors[f"received.{table}.{self._places[party]}"].numpy()
        for number in sorted(self.channel.transcript.notes):
            for opened in self.channel.transcript.opened(number):
                self._remember_survivors(number, opened.survivors)

    def broadcast(self, round: int, table: Table, parties: Sequence[str]) -> dict[str, Received]:
        """After private alignment everybody receives the whole table; suppressed rows stay each client's own."""
        if not self.defense.secagg:
            received = super().broadcast(round, table, parties)
        else:
            largest = self._largest_value(table)
            received = {}
            for party in parties:
                # After private alignment the server cannot tell who holds what: everybody receives the whole table.
                sent, places = self._table_for(round, table, party), torch.from_numpy(self._held[table][party])
                names = self._names_of(table, party)
                received[party] = Received(self._bound.send(round, table, party, names, sent, places, largest))
            self._bound.close(
                round, table, parties, self._bound.commit(self.server[table].names, self.server[table].rows)
            )
        for party, own in received.items():
            self._received[table][party] = own.rows.numpy()
        if round and self.defense.suppress:
            renewed = self._bound.renew(round, table, parties, self._sent_rows[table])
            received = {
                party: Received(own.rows, torch.from_numpy(renewed[party][self._held[table][party]]))
                for party, own in received.items()
            }
        return received

    def _table_for(self, round: int, table: Table, party: str) -> Tensor:
        """The table that the server sends a client rows of: its own."""
        return self.server[table].rows

    def _largest_value(self, table: Table) -> float:
        """The largest absolute value that a mean of uploads can have: the clip, with noise in the ring all that it can carry."""
        encoding = self._encodings[table]
        if isinstance(self._noise.get(table), RingNoise):
            return encoding.ring.modulus / 2 * 2.0**-encoding.fraction_bits
        return encoding.clip * (1 + 1e-6) + 2.0**-encoding.fraction_bits

    def upload(self, round: int, table: Table, rows: Mapping[str, Tensor]) -> Uploaded:
        """Clipped and noisy where `dp` says so, summed where `secagg` does. When too many drop out the table stays."""
        values = {party: self._private(round, table, party, own) for party, own in rows.items()}
        if not self.defense.secagg:
            return super().upload(round, table, {p: torch.from_numpy(v.astype(np.float32)) for p, v in values.items()})
        placed = {party: (self._held[table][party][: len(own)], own) for party, own in values.items()}
        before = self.server[table].rows
        outcome = self._add_up(round, table, placed)
        # Who sends back what the server sent it adds nothing that the server does not know.
        self.known[table] = {}
        for party, own in rows.items():
            held = placed[party][0]
            crossed = self._sent_rows[table][held] if self.defense.suppress else np.ones(len(held), dtype=bool)
            if crossed.any() and torch.equal(own[crossed], before[torch.from_numpy(held[crossed])]):
                self.known[table][party] = before.double()
        return outcome

    def _add_up(self, round: int, table: Table, placed: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Uploaded:
        """Sum what clients have at the given rows of the table. When too many drop out nothing is opened, the table stays."""
        self._sent_rows[table] = np.zeros(len(self.server[table].names), dtype=bool)
        encoded, num_clipped = self._encode(round, table, placed)
        dropouts = self._dropouts(round, list(encoded))
        excluded = self._compare_broadcasts(round, table, list(encoded), dropouts)
        dropouts |= dict.fromkeys(excluded, Stage.ADVERTISE)
        try:
            total = self._sum(round, table, encoded, dropouts)
        except (TooFewParties, DisconnectedGraph, ReconstructionMismatch) as error:
            return Uploaded(0, num_clipped, _by_table(table, {**error.excluded, **excluded}))
        self._open(round, table, total)
        return Uploaded(len(total.survivors), num_clipped, _by_table(table, {**total.excluded, **excluded}))

    def rounds_worth_noting(self) -> set[int]:
        """Those whose survivors differ from earlier ones, so that their counts tell who holds what."""
        return set(self._notable)

    def protection(self, before: Protection = NOTHING, rounds: int | None = None) -> Protection:
        """The statement, and the guarantees of what `dp` releases in so many rounds on top of what was released before."""
        guarantees = released(
            {table: noise.guarantee for table, noise in self._noise.items()}, releases=rounds or self.options.rounds
        )
        guarantees = composed(before.guarantees, guarantees)
        remarks = self.statement()
        if any(guarantee.epsilon > LARGE_EPSILON for guarantee in guarantees.values()):
            remarks.append(f"dp: an epsilon above {LARGE_EPSILON:g} promises next to nothing")
        withstands = withstood(
            self.defense,
            len(self.parties),
            self.options.num_participants(len(self.parties)),
            threshold=self._threshold(self.options.num_participants(len(self.parties))),
            bound=self.binds_broadcasts,
        )
        return Protection(tuple(remarks), guarantees, withstands)

    def statement(self) -> list[str]:
        """A line for each protection and what it assumes."""
        lines = []
        if self.defense.psu:
            lines.append("psu: the server learns the union of names; every client receives the whole table")
        if self.defense.secagg:
            bounds = {table: encoding.bound for table, encoding in self._encodings.items()}
            errors = ", ".join(f"{bound:.2g} ({table})" for table, bound in bounds.items())
            lines.append(f"secagg: the server learns sums, holders and survivors; error of a sum at most {errors}")
            if self.defense.secagg.neighbours is not None:
                count = self.options.num_participants(len(self.parties))
                lines.append(self._graph_risk(count, self.defense.secagg.neighbours))
        if self.defense.suppress:
            lines.append(f"suppress: rows with fewer than {self.defense.suppress.t} holders stay with their clients")
        if self._noise:
            lines.append(
                "dp covers the values that cross, not which rows a client holds; losses, validation figures and counts in the "
                "record are of the clear data"
            )
        if self.defense.distributed_noise and self.defense.dp and self.defense.dp.colluders == 0:
            lines.append("dp: with colluders=0 the guarantee does not hold where a client colludes with the server")
        if self.options.protocol_seed is not None:
            lines.append("protocol randomness: fixed for tests; whoever has protocol_seed opens every upload")
        elif self._noise:
            lines.append("dp: noise is fresh in every run, so that figures differ between runs of one seed")
        return lines

    def _graph_risk(self, count: int, neighbours: int) -> str:
        """What the k-regular graph withstands in one session. Raises `SettingError` for one that is too thin."""
        assert self.defense.secagg is not None
        dropout, given = self.defense.secagg.dropout, self.defense.secagg.colluders
        colluders = 1 if given is None else given
        risk = require_small_risk(
            count, neighbours, threshold=self._threshold(count), colluders=colluders, dropout=dropout
        )
        assumed = f"with {colluders} colluders at random places and dropout {dropout:g}"
        return f"secagg: {neighbours} neighbours of {count - 1}; {assumed} a session {risk.describe()}"

    # Alignment.

    def _union(self, table: Table, held: Mapping[str, Holding]) -> psu.Union:
        assert self.defense.psu is not None
        sources = {
            party: self._randomness("psu", table, 0, place) for place, party in enumerate([*self.parties, SERVER])
        }
        send, lists = self._deliver(0, table), self._names.setdefault(table, {})

        def deliver(sender: str, receiver: str, message: secagg.Message) -> secagg.Message:
            """As ever; a client keeps the list that it is sent at last."""
            arrived = send(sender, receiver, message)
            if isinstance(arrived, psu.UnionList):
                lists[receiver] = list(arrived.identifiers)
            return arrived

        union = psu.union(
            {party: holding.names for party, holding in held.items()},
            self._identities,
            session=self._session("psu", table),
            threshold=safe_threshold(len(self.parties)),
            randomness=sources,
            deliver=deliver,
            cap=self.defense.psu.cap,
            max_attempts=self.defense.psu.max_attempts,
        )
        if union.excluded:
            told = ", ".join(f"{party} ({reason})" for party, reason in union.excluded.items())
            raise TooFewParties(f"psu: the union of {table} is without {told}; start the federation without them")
        return union

    def _place(self, table: Table, held: Mapping[str, Holding]) -> None:
        """Each client finds its rows in the list of names that it has."""
        self._held[table] = {}
        for party, holding in held.items():
            place = {name: number for number, name in enumerate(self._names_of(table, party))}
            self._held[table][party] = np.array([place[name] for name in holding.names], dtype=np.int64)
        self._num_uploaded[table] = {party: holding.num_uploaded for party, holding in held.items()}
        self._received[table] = {}

    def _names_of(self, table: Table, party: str) -> list[str]:
        """The names of the rows as a client knows them: of the list that it received in this process, else the server's."""
        return self._names.get(table, {}).get(party, self.server[table].names)

    def _bind_names(self, table: Table) -> None:
        """The list that each party places rows by becomes part of its history."""
        for party in (*self.parties, SERVER):
            self._bound.extend(party, f"names of {table}", 0, commitment_of_names(self._names_of(table, party)))

    def _prepare(self, table: Table) -> None:
        """The encoding and the noise of a table, now that its size is known."""
        num_rows, width = self.server[table].rows.shape
        defense, num_participants = self.defense, self.options.num_participants(len(self.parties))
        if defense.secagg:
            ring = ring_of(defense)
            self._encodings[table] = FixedPoint.finest(num_participants, defense.secagg.clip, ring=ring)
        if defense.dp is None:
            return
        if defense.distributed_noise:
            self._noise[table], self._encodings[table] = self._ring_noise(num_rows, width)
        else:
            self._noise[table] = local_noise(defense.dp, releases=self._releases(defense.dp))

    def _ring_noise(self, num_rows: int, width: int) -> tuple[RingNoise, FixedPoint]:
        """The noise and the encoding of a table of that size."""
        assert self.defense.dp is not None
        num_participants = self.options.num_participants(len(self.parties))
        return ring_noise(
            self.defense,
            releases=self._releases(self.defense.dp),
            dimension=width if self.defense.dp.unit == "row" else num_rows * width,
            num_clients=num_participants,
            fewest_survivors=self._fewest_survivors(num_participants),
        )

    def _releases(self, options: DpOptions) -> int:
        """How often a unit's values cross: once a round, of every table that a client (but not a row) has a part in."""
        return self.options.rounds * (1 if options.unit == "row" else len(self.server))

    # An upload, on the client's side.

    def _private(self, round: int, table: Table, party: str, rows: Tensor) -> np.ndarray:
        """What the client lets go of: its rows, clipped and under its own noise where the defense says so; float64."""
        values = rows.numpy().astype(np.float64)
        if self.defense.dp is None:
            return values
        values = clip_changes(values, self._received[table][party][: len(values)], self.defense.dp)
        noise = self._noise[table]
        if isinstance(noise, LocalNoise):
            values = noise.add(values, self._randomness("local noise", table, round, self._places[party]))
        return values

    def _encode(
        self, round: int, table: Table, placed: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], int]:
        """Each client's ring elements `[n, width]` with its noise, zeros where it sends no row, and which it sends 0/1 `[n]`."""
        encoding, shape = self._encodings[table], tuple(self.server[table].rows.shape)
        encoded, num_clipped = {}, 0
        self.inputs[table] = {}
        for party, (held, own) in placed.items():
            dense = np.zeros(shape)
            dense[held] = own
            elements, clipped = encoding.encode(dense)
            num_clipped += clipped
            noise = self._noise.get(table)
            if isinstance(noise, RingNoise):
                source = self._randomness("ring noise", table, round, self._places[party])
                drawn = encoding.ring.from_integers(noise.draw(elements.size, source))
                elements = encoding.ring.add(elements, drawn.reshape(shape))
            holds = np.zeros(shape[0], dtype=Ring.UINT32.dtype)
            holds[held] = 1
            encoded[party] = elements, holds
            self.inputs[table][party] = torch.from_numpy(encoding.decode(elements))
        return encoded, num_clipped

    # Sums.

    def _sum(
        self,
        round: int,
        table: Table,
        encoded: Mapping[str, tuple[np.ndarray, np.ndarray]],
        dropouts: Mapping[str, Stage],
    ) -> Sum:
        """The sums of rows and holders over the survivors. Raises `TooFewParties`, `DisconnectedGraph`."""
        if not self.defense.suppress:
            return self._session_of(
                round,
                table,
                "rows",
                {party: {"rows": rows.ravel(), "holders": holds} for party, (rows, holds) in encoded.items()},
                dropouts,
            )
        counted = self._session_of(
            round, table, "holders", {party: {"holders": holds} for party, (_, holds) in encoded.items()}, dropouts
        )
        self._note(round, table, counted, np.zeros(0))
        members = counted.survivors
        if gone := [party for party in members if party in dropouts]:
            # The sum of the others would show, beside the counts, what those who left hold.
            raise TooFewParties(f"{', '.join(gone)} left between counting and sending")
        sent = counted.vectors["holders"] >= self.defense.suppress.t
        told = np.packbits(sent).tobytes()
        for party in self.parties:  # who sits the round out also has to know which rows of the broadcast are new
            received = self.channel.send(ProtocolMessage(round, SERVER, party, table, "suppress-sent-rows", told))
            assert isinstance(received, ProtocolMessage)
            if received.content != told:
                raise SplitView(f"{party} was told to send other rows")
            self._bound.extend(party, "rows to send", round, received.content)
        self._bound.extend(SERVER, "rows to send", round, told)
        inputs = {}
        for party in members:
            rows, holds = (np.where(sent[:, None] if part.ndim == 2 else sent, part, 0) for part in encoded[party])
            inputs[party] = {"rows": rows.ravel(), "holders": holds}
            self.inputs[table][party] *= torch.from_numpy(sent)[:, None]
        # As many shares open a secret as in a session of all participants, however few are left.
        threshold = max(self._threshold(len(encoded)), safe_threshold(len(members)))
        total = self._session_of(
            round, table, "rows", inputs, {}, threshold=threshold, min_survivors=len(members), context=told
        )
        self._sent_rows[table] = sent
        return total._replace(excluded={**counted.excluded, **total.excluded})

    def _compare_broadcasts(
        self, round: int, table: Table, parties: Sequence[str], dropouts: Mapping[str, Stage]
    ) -> dict[str, str]:
        """Participants compare what they were sent. Returns by party that is left out the reason.

        Raises `BroadcastError` where they were not sent the same, or one of them no rows.
        """
        session = digest("fkgsec exchange", self._session("broadcasts", table))
        vectors = (Vector("broadcasts", 0, Ring.UINT32),)
        setting = self._setting(session, round, tuple(parties), self._threshold(len(parties)), vectors)
        silent = {party for party, stage in dropouts.items() if stage is Stage.ADVERTISE}
        if self.binds_broadcasts:
            self._bound.require_rows(round, table, [party for party in parties if party not in silent])
        return self._bound.compare(setting, table, session, self._identities, silent)

    def _session_of(
        self,
        round: int,
        table: Table,
        purpose: str,
        inputs: Mapping[str, Mapping[str, np.ndarray]],
        dropouts: Mapping[str, Stage],
        *,
        threshold: int | None = None,
        min_survivors: int | None = None,
        context: bytes = b"",
    ) -> Sum:
        """One secure aggregation of the given vectors; `context` is what the parties must agree on beside them.

        Everything that a party was sent so far is part of the session as it believes it to be.
        """
        parties = tuple(inputs)
        rings = {"rows": self._encodings[table].ring, "holders": Ring.UINT32}
        example = inputs[parties[0]]
        setting = self._setting(
            self._bound_session(purpose, table, context, SERVER),
            round,
            parties,
            threshold or self._threshold(len(parties)),
            tuple(Vector(name, len(values), rings[name]) for name, values in example.items()),
            min_survivors,
        )
        believed = {
            party: replace(setting, session=self._bound_session(purpose, table, context, party)) for party in parties
        }
        sources = {party: self._randomness(purpose, table, round, self._places[party]) for party in parties}
        return secagg.aggregate(
            setting,
            inputs,
            {party: self._identities[party] for party in parties},
            randomness=sources,
            deliver=self._deliver(round, table),
            dropouts=dropouts,
            believed=believed,
        )

    def _bound_session(self, purpose: str, table: Table, context: bytes, party: str) -> bytes:
        """The session of a sum as a party (or the server) believes it to be."""
        return digest("fkgsec exchange", self._session(purpose, table), context, self._bound.history[party])

    def _open(self, round: int, table: Table, total: Sum) -> np.ndarray:
        """The server's side: divide by the holders, and note what it saw. Returns the summed rows, float64 `[n, width]`."""
        shared = self.server[table]
        rows = self._encodings[table].decode(total.vectors["rows"]).reshape(shared.rows.shape)
        holders = total.vectors["holders"].astype(np.int64)
        mean = torch.from_numpy((rows / np.maximum(holders, 1)[:, None]).astype(np.float32))
        shared.rows = torch.where(torch.from_numpy(holders > 0)[:, None], mean, shared.rows)
        self._note(round, table, total, rows)
        return rows

    def _note(self, round: int, table: Table, total: Sum, rows: np.ndarray) -> None:
        survivors = list(total.survivors)
        self._remember_survivors(round, survivors)
        holders = total.vectors["holders"].astype("<i8").tobytes()
        error = self._encodings[table].bound
        self.channel.transcript.note(Opened(round, table, survivors, rows.astype("<f8").tobytes(), holders, error))

    def _remember_survivors(self, round: int, survivors: Collection[str]) -> None:
        """Keep the rounds whose survivors are no combination of earlier ones: they tell who holds what."""
        present = np.array([party in survivors for party in self.parties], dtype=np.float64)
        known = [*self._notable.values(), present]
        if round not in self._notable and np.linalg.matrix_rank(np.stack(known)) == len(known):
            self._notable[round] = present

    # What all sessions need.

    def _setting(
        self,
        session: bytes,
        round: int,
        parties: tuple[str, ...],
        threshold: int,
        vectors: tuple[Vector, ...],
        min_survivors: int | None = None,
    ) -> Setting:
        assert self.defense.secagg is not None
        return Setting(
            session=session,
            round=round,
            parties=parties,
            threshold=threshold,
            vectors=vectors,
            identities={party: self._identities[party].public_key().public_bytes_raw() for party in parties},
            neighbours=self.defense.secagg.neighbours,
            cipher=self.defense.secagg.cipher,
            min_survivors=min_survivors,
        )

    def _check_setting(self) -> None:
        """Raises `SpecError` before anything is trained when no session could have these options."""
        assert self.defense.secagg is not None
        count = self.options.num_participants(len(self.parties))
        if count < 2:
            raise SpecError("defense: secagg needs at least 2 participants in a round; raise participation")
        if self.defense.suppress and self.defense.suppress.t > count:
            raise SpecError(
                f"defense: suppress: t is {self.defense.suppress.t}, but {count} clients take part in a round"
            )
        vectors = (Vector("check", 1, Ring.UINT32),)
        try:
            self._setting(b"check", 0, self.parties[:count], self._threshold(count), vectors)
            if self.defense.secagg.neighbours is not None:
                self._graph_risk(count, self.defense.secagg.neighbours)
            FixedPoint.finest(count, self.defense.secagg.clip, ring=ring_of(self.defense))
        except (SettingError, DisconnectedGraph, OutOfRing) as error:
            raise SpecError(f"defense: secagg: {error}") from error

    def _threshold(self, num_parties: int) -> int:
        secagg_options = self.defense.secagg
        if secagg_options is None:
            return num_parties
        neighbours = secagg_options.neighbours
        safe = safe_threshold(num_parties) if neighbours is None else min(neighbours, safe_threshold(neighbours + 1))
        return secagg_options.threshold or safe

    def _fewest_survivors(self, num_parties: int) -> int:
        """The least that a sum of so many participants is opened for."""
        if self.defense.secagg and self.defense.secagg.neighbours is not None:
            return safe_threshold(num_parties)
        return self._threshold(num_parties)

    def _dropouts(self, round: int, parties: Sequence[str]) -> dict[str, Stage]:
        """Who falls silent in this round, and from which stage on: the same for every table."""
        assert self.defense.secagg is not None
        rng = generator(self.options.seed, "dropouts", round)
        chances, stages = rng.random(len(parties)), rng.integers(0, len(Stage), len(parties))
        return {
            party: Stage(int(stage))
            for party, chance, stage in zip(parties, chances, stages, strict=True)
            if chance < self.defense.secagg.dropout
        }

    def _draw_from(self, entropy: bytes, fresh: bytes = b"") -> None:
        """Take these 32 bytes as the source of identities and noise, and with `fresh` ones of what sessions draw."""
        self._entropy = entropy
        self._session_entropy = derive(entropy, "sessions of an exchange", self.run, fresh)
        self._identities = {
            party: Ed25519PrivateKey.from_private_bytes(derive(entropy, "identity in an exchange", self.run, place))
            for place, party in enumerate(self.parties)
        }

    def _session(self, purpose: str, table: Table) -> bytes:
        return derive(self._session_entropy, "session of an exchange", self.run, purpose, table, length=16)

    def _randomness(self, purpose: str, table: Table, round: int, place: int) -> Randomness:
        entropy = self._entropy if purpose in ("local noise", "ring noise") else self._session_entropy
        return seeded(derive(entropy, "randomness of an exchange", self.run, purpose, table, round, place))

    def _deliver(self, round: int, table: Table) -> secagg.Deliver:
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


def _by_table(table: Table, excluded: Mapping[str, str]) -> dict[str, str]:
    """Whose messages a session left out, with the table that it summed before the reason."""
    return {party: f"{table}: {reason}" for party, reason in excluded.items()}


def _entropy(options: FederationOptions) -> bytes:
    """32 bytes from the operating system, or for tests from `protocol_seed`."""
    if options.protocol_seed is None:
        return secrets.token_bytes(SEED_BYTES)
    return digest("fixed entropy of an exchange", options.protocol_seed)
