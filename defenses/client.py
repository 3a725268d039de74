"""Client's half of a defended exchange: its key and randomness, its history of broadcasts, its rows, its summands.

    client = DefendedClient("client/a", terms, entropy.of(0), ReceivedBroadcasts)
    client.join(table_client)
    client.place("entities", names, bind=False)
    client.begin(1, "entities", rows)                     # what it puts into the sums of a round; `fkgsec.defenses.rounds`
    goes on

No object of the server is kept here, nor of another client: of what all draw from, its own share. Of the names of a table's rows
a client knows those of a private union from the list that it was sent. Differs: after alignment in clear it knows the places of
its rows from the server's list, which costs no message.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.defenses.bound_broadcasts import History, ReceivedBroadcasts
from fkgsec.defenses.broadcasts import BroadcastError, commitment_of_names, commitment_of_rows, commitment_of_table
from fkgsec.defenses.privacy import LocalNoise, RingNoise, clip_changes
from fkgsec.defenses.terms import PartyEntropy, Terms
from fkgsec.errors import RunError
from fkgsec.exchange import Received
from fkgsec.exchange.client import Kept, TableClient
from fkgsec.exchange.codec import Content, Contribution
from fkgsec.federation.messages import AnyMessage, Rows
from fkgsec.federation.recipes import Table
from fkgsec.protocols.core.prg import Ring, digest
from fkgsec.protocols.secagg import Setting, Vector, safe_threshold

LOG = logging.getLogger("fkgsec")


class Part(NamedTuple):
    """Summands of a client in a round.

    Attributes:
        kept: what it is made of. rows: `[k]`, which of the table's `[N]` rows it sends, ascending; under noise in the ring all.
        elements: ring elements `[k, width]` with its weight and noise. values: these as numbers.
        weights: `[k]`, its weight, 0 at the rows that it does not hold.
    """

    kept: Kept
    rows: np.ndarray
    elements: np.ndarray
    values: np.ndarray
    weights: np.ndarray

    def whole(self, contributed: np.ndarray, num_rows: int) -> np.ndarray:
        """Elements or weights at all of the table's rows, `[N]` or `[N, width]`: zeros where it sends no row."""
        whole = np.zeros((num_rows, *contributed.shape[1:]), dtype=contributed.dtype)
        whole[self.rows] = contributed
        return whole


class DefendedClient:
    """See the module."""

    def __init__(self, party: str, terms: Terms, entropy: PartyEntropy, log: type[ReceivedBroadcasts]) -> None:
        self.party, self.terms, self.log = party, terms, log(party)
        self.identity, self.draw = entropy.identity, entropy.randomness
        self.guarded = True
        self.tables: dict[Table, TableClient] = {}
        self.names: dict[Table, Sequence[str]] = {}  # of the table's rows, as it was told
        self.places: dict[Table, Tensor] = {}  # its rows' numbers among these
        self.parts: dict[Table, Part] = {}  # of the round
        # The rows to send, bool `[N]`, and the round in which it was told; the last round in whose sum it signed to be.
        self.sent_rows: dict[Table, tuple[int, np.ndarray]] = {}
        self.in_sum: dict[Table, int] = {}
        self.clipped: set[Table] = set()  # tables of which it logged that values were cut

    @property
    def whole(self) -> bool:
        """Return whether it receives whole tables, as after private alignment."""
        return self.terms.defense.psu is not None

    def join(self, client: TableClient, *, guarded: bool = True) -> None:
        """Take part in the exchange of one table. One that is not `guarded` sends its rows as they are, without noise."""
        self.tables[client.table] = client
        self.guarded = guarded
        client.tells_weight = self.terms.defense.secagg is None
        if guarded and (self.terms.defense.dp or self.terms.defense.others):
            client.guard = self.guard

    def place(self, table: Table, names: Sequence[str], *, bind: bool) -> None:
        """Find its rows in the list of names; `bind`: the list becomes part of its history."""
        numbers = {name: number for number, name in enumerate(names)}
        self.names[table] = list(names)
        own_names = self.tables[table].holding.names
        self.places[table] = torch.tensor([numbers[name] for name in own_names], dtype=torch.int64)
        if bind:
            self.log.extend(f"names of {table}", 0, commitment_of_names(names))

    # What it receives.

    def read(self, message: AnyMessage) -> Content:
        """A broadcast, checked: shape, kind, and values that a sum can have given.

        Raises:
            BroadcastError: another one.
        """
        table, round = message.table, message.round
        where = f"{self.party} refuses the broadcast of {table} in round {round}"
        names, client = self.names[table], self.tables[table]
        rows = len(names) if self.whole else len(self.places[table])
        got, width = client.codec.shape(message), self.terms.widths[table]
        if isinstance(message, Rows) and client.chooses_rows:  # shared rows alone, which the codec counts
            rows = got[0]
        if got != (rows, width):
            raise BroadcastError(f"{where}: {got[0]} x {got[1]} values, where its rows are {rows} x {width}")
        try:
            content = client.codec.read(message, len(names) if self.whole else None)
        except RunError as error:
            raise BroadcastError(f"{where}: {error}") from error
        scale = content.scale.numpy() if isinstance(content.scale, Tensor) else content.scale
        self.log.check(round, table, content.values, self.terms.largest_value(table) * scale)
        return content

    def receive(self, round: int, table: Table, content: Content, proof: bytes) -> Received:
        """Take over what it read, once it has entered its history: as a whole table, or with a proof of where its rows stand."""
        names = self.names[table]
        if self.whole:
            commitment, own_content = commitment_of_table(names, content.rows.numpy()), content.at(self.places[table])
        elif not len(content.places):  # it was sent no row of the table, and so has all that it can have
            commitment, own_content = proof, content
        else:
            places, own_content = self.places[table][content.places], content
            commitment = commitment_of_rows(
                [names[int(place)] for place in places], own_content.rows.numpy(), places.numpy(), len(names), proof
            )
        self.log.enter(round, table, commitment, withheld=False)
        return self.tables[table].take(round, own_content)

    def rows_sent(self, round: int, table: Table) -> np.ndarray:
        """The rows that clients were to send in a round, bool `[N]`. Raises `BroadcastError` if it was not told them."""
        frame, rows = self.sent_rows.get(table, (None, None))
        if frame != round or rows is None:
            raise BroadcastError(f"{self.party} was not told which rows of {table} were sent in round {round}")
        return rows

    def taking(self, table: Table, received: Received) -> Received:
        """Limit what it received to the rows that it takes over: all but its local ones."""
        local = self.log.local_rows(table, len(self.names[table]))
        return Received(received.rows, torch.from_numpy(~local)[self.places[table]])

    # What it sends.

    def guard(self, round: int, table: Table, rows: Tensor, received: Tensor) -> Tensor:
        """Apply the defenses to its rows in order: those of other packages, then `dp`, which clips the change and adds the
        client's own noise (`fkgsec.defenses.privacy`).

        Rows that are no numbers before a defense of another package, which a malicious client sends, skip the rest of these:
        whoever aggregates leaves them out. Returns float64 `[num_uploaded, width]`.

        Raises:
            RunError: a defense that gives rows of another shape or no numbers.
        """
        defense = self.terms.defense
        for name, extra in defense.others.items():
            if not rows.isfinite().all():
                break
            protected = extra.protect(round, table, rows, received, self.draw(f"defense {name}", table, round))
            if protected.shape != rows.shape or not protected.isfinite().all():
                shape = " x ".join(map(str, protected.shape))
                raise RunError(
                    f"defense {name} made {shape} values of the {' x '.join(map(str, rows.shape))} of {self.party}, or some that "
                    "are not finite"
                )
            rows = protected.to(rows.dtype)
        if defense.dp is None:
            return rows
        values, noise = clip_changes(rows.numpy(), received.numpy(), defense.dp), self.terms.noise[table]
        if isinstance(noise, LocalNoise):
            values = noise.add(values, self.draw("local noise", table, round))
        return torch.from_numpy(values)

    def begin(self, round: int, table: Table, rows: Tensor) -> Part:
        """Make its part of a round's sums of its trained rows float32 `[num_uploaded, width]`."""
        contribution = self.tables[table].contribute(round, rows)
        return self.part(round, table, contribution, contribution.contribution.rows.shape[1])

    def tell_sent_rows(self, round: int, table: Table, frame: bytes) -> None:
        """It is told which rows of the table participants send: bits, which become part of its history."""
        self.log.extend(f"rows of {table} to send", round, frame)
        bits = np.unpackbits(np.frombuffer(frame, dtype=np.uint8))
        if len(bits) < len(self.names[table]):
            raise BroadcastError(
                f"{self.party} was told of {len(bits)} rows to send; {table} has {len(self.names[table])}"
            )
        self.sent_rows[table] = round, bits[: len(self.names[table])].astype(bool)

    def enter_sum(self, round: int, table: Table) -> None:
        """It signed that its part is in the sum of a round."""
        self.in_sum[table] = round

    def part(self, round: int, table: Table, contribution: Kept, width: int) -> Part:
        """Encode a contribution for sums of rows `[N, width]`."""
        encoding, noise = self.terms.encodings[table], self.terms.noise.get(table)
        indices, noise = (
            self._held(table, contribution.contribution),
            noise if isinstance(noise, RingNoise) and self.guarded else None,
        )
        rows = np.arange(len(self.names[table])) if noise else np.sort(indices)
        places = np.searchsorted(rows, indices)
        values = np.zeros((len(rows), width))
        values[places] = contribution.contribution.rows.numpy()
        elements, num_clipped = encoding.encode(values)
        if num_clipped:
            self._warn_of_clip(round, table, num_clipped, encoding.clip)
        weight = self.tables[table].holding.weight
        if weight > 1:
            elements = elements * elements.dtype.type(weight)  # modulo the ring
        if noise:
            drawn = noise.draw(elements.size, self.draw("ring noise", table, round))
            elements = encoding.ring.add(elements, encoding.ring.from_integers(drawn).reshape(elements.shape))
        weights = np.zeros(len(rows), dtype=Ring.UINT32.dtype)
        weights[places] = weight
        self.parts[table] = Part(contribution, rows, elements, encoding.decode(elements), weights)
        return self.parts[table]

    def _warn_of_clip(self, round: int, table: Table, num_clipped: int, clip: float) -> None:
        """Log the first time that values are cut to the clip. The number stays with the client: a server that chooses the table
        could read from it whether the client holds a row."""
        if table not in self.clipped:
            self.clipped.add(table)
            LOG.warning(
                "%s: round %d: %d values of %s were cut to the secagg clip of %g; choose a larger clip if this goes on",
                *(self.party, round, num_clipped, table, clip),
            )

    def _held(self, table: Table, contribution: Contribution) -> np.ndarray:
        """The numbers of the contribution's rows in the table."""
        return self.places[table][: len(contribution.chosen)][contribution.chosen].numpy()

    def keep_back(self, table: Table, sent: np.ndarray) -> Part:
        """Leave out all rows but those to send, bool `[N]`."""
        part = self.parts[table]
        sent = sent[part.rows]
        self.parts[table] = part._replace(
            elements=np.where(sent[:, None], part.elements, 0),
            values=part.values * sent[:, None],
            weights=np.where(sent, part.weights, 0),
        )
        return self.parts[table]

    def settle(self, round: int, table: Table) -> None:
        """The sum of a round was opened, as its broadcast says: what the client's codec is to remember of its part in it."""
        if self.in_sum.pop(table, None) != round:
            return
        part = self.parts[table]
        contribution = part.kept
        chosen, indices = contribution.contribution.chosen.clone(), self._held(table, contribution.contribution)
        crossed = np.ones(len(self.names[table]), dtype=bool)
        if self.terms.defense.suppress:
            crossed = self.sent_rows[table][1] & ~self.log.local_rows(table, len(crossed))
        chosen[chosen.clone()] = torch.from_numpy(crossed[indices])
        values = torch.from_numpy(part.values[np.searchsorted(part.rows, indices[crossed[indices]])])
        self.tables[table].sent(contribution, Contribution(chosen, values))


def bound_session(terms: Terms, purpose: str, table: Table, context: bytes, log: History) -> bytes:
    """The session of a sum for a party of this history; `context` is what the parties must agree on beside it."""
    return digest("fkgsec exchange", terms.sessions[purpose, table], context, log.digest)


def claim_setting(terms: Terms, round: int, table: Table, parties: Sequence[str]) -> Setting:
    """The session that claims of what was sent are signed for."""
    session = digest("fkgsec exchange", terms.sessions["broadcasts", table])
    return terms.setting(session, round, tuple(parties), (Vector("broadcasts", 0, Ring.UINT32),))


def sum_setting(
    terms: Terms,
    log: History,
    purpose: str,
    round: int,
    table: Table,
    parties: Sequence[str],
    num_rows: int,
    *,
    threshold: int | None = None,
    min_survivors: int | None = None,
    context: bytes = b"",
) -> Setting:
    """A session of secure aggregation as a party of this history believes it to be; `context` is what all must agree on, too."""
    vectors = (Vector("holders", num_rows, Ring.UINT32),)
    if purpose == "rows":
        vectors = (Vector("rows", num_rows * terms.widths[table], terms.encodings[table].ring), *vectors)
    assert terms.defense.secagg is not None
    if terms.defense.secagg.complete and min_survivors is None:
        min_survivors = len(parties)
    session = bound_session(terms, purpose, table, context, log)
    return terms.setting(session, round, tuple(parties), vectors, threshold, min_survivors)


def sending_setting(
    terms: Terms,
    log: History,
    round: int,
    table: Table,
    parties: Sequence[str],
    counted: Sequence[str],
    num_rows: int,
    sent_rows: bytes,
) -> Setting:
    """The session that sums the rows that were counted often enough.

    As many shares open a secret as in a session of all participants, however few are left.
    """
    members = tuple(party for party in parties if party in counted)
    threshold = max(terms.threshold(len(parties)), safe_threshold(len(members)))
    return sum_setting(
        terms,
        log,
        "rows",
        round,
        table,
        members,
        num_rows,
        threshold=threshold,
        min_survivors=len(members),
        context=sent_rows,
    )
