"""A client's half of a defended exchange: its key and randomness, its history of broadcasts, its rows and its summands.

    client = DefendedClient("client/a", terms, entropy.of(0), ReceivedBroadcasts)
    client.join(table_client)
    client.place("entities", names, bind=False)
    client.begin(1, "entities", rows)                     # its part of the sums of a round; `fkgsec.defenses.rounds` goes on

It holds no object of the server or of another client, and of the shared entropy only its own part. After a private union, it
knows the names of a table's rows from the list that it received. Differs: after alignment in plaintext, it knows the indices of
its rows from the server's list, which is not counted as a message.
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
    """A client's summands in a round.

    Attributes:
        kept: the contribution it is made of.
        rows: `[k]`, ascending indices of the table's `[N]` rows that it sends; with noise in the ring all N.
        elements: ring elements `[k, width]`, with the client's weight and noise. values: the same, decoded.
        weights: `[k]`, the client's weight, 0 at the rows that it does not hold.
    """

    kept: Kept
    rows: np.ndarray
    elements: np.ndarray
    values: np.ndarray
    weights: np.ndarray

    def whole(self, contributed: np.ndarray, num_rows: int) -> np.ndarray:
        """Expand elements or weights to all rows of the table, with zeros elsewhere.

        Args:
            contributed: `[k]` or `[k, width]`.
            num_rows: N.

        Returns:
            `[N]` or `[N, width]`.
        """
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
        # Names of all rows of each table, as the server announced them.
        self.names: dict[Table, Sequence[str]] = {}
        # Indices of the client's rows among these names.
        self.places: dict[Table, Tensor] = {}
        # Summands of the current round.
        self.parts: dict[Table, Part] = {}
        # The rows to send, bool `[N]`, and the round in which it was told; the last round in whose sum it signed to be.
        self.sent_rows: dict[Table, tuple[int, np.ndarray]] = {}
        self.in_sum: dict[Table, int] = {}
        # Tables for which clipping has been logged.
        self.clipped: set[Table] = set()

    @property
    def whole(self) -> bool:
        """True if it receives whole tables, as after private alignment."""
        return self.terms.defense.psu is not None

    def join(self, client: TableClient, *, guarded: bool = True) -> None:
        """Take part in the exchange of one table.

        Args:
            client: its half of the plaintext exchange.
            guarded: False sends rows without defenses of the client, such as clipping and noise.
        """
        self.tables[client.table] = client
        self.guarded = guarded
        client.tells_weight = self.terms.defense.secagg is None
        if guarded and (self.terms.defense.dp or self.terms.defense.others):
            client.guard = self.guard

    def place(self, table: Table, names: Sequence[str], *, bind: bool) -> None:
        """Find the client's rows in a list of names.

        Args:
            names: of all rows of the table.
            bind: add the list to the client's history.
        """
        numbers = {name: number for number, name in enumerate(names)}
        self.names[table] = list(names)
        own_names = self.tables[table].holding.names
        self.places[table] = torch.tensor([numbers[name] for name in own_names], dtype=torch.int64)
        if bind:
            self.log.extend(f"names of {table}", 0, commitment_of_names(names))

    # What it receives.

    def read(self, message: AnyMessage) -> Content:
        """Decode a broadcast, and check its kind, shape and values.

        Args:
            message: the rows of one table in one round.

        Raises:
            BroadcastError: a message that no honest server sends.
        """
        table, round = message.table, message.round
        where = f"{self.party} refuses the broadcast of {table} in round {round}"
        names, client = self.names[table], self.tables[table]
        rows = len(names) if self.whole else len(self.places[table])
        got, width = client.codec.shape(message), self.terms.widths[table]
        # A codec that chooses rows sends some shared rows only; the codec itself checks their number.
        if isinstance(message, Rows) and client.chooses_rows:
            rows = got[0]
        if got != (rows, width):
            raise BroadcastError(f"{where}: {got[0]} x {got[1]} values, where its rows are {rows} x {width}")
        try:
            content = client.codec.read(message, len(names) if self.whole else None)
        except RunError as error:
            raise BroadcastError(f"{where}: {error}") from error
        scale = content.scale.numpy() if isinstance(content.scale, Tensor) else content.scale
        # A mean of clipped values is within the clip. Larger values would make a client upload exactly the clip, which the server
        # could subtract (Pasquini et al. 2022).
        self.log.check(round, table, content.values, self.terms.largest_value(table) * scale)
        return content

    def receive(self, round: int, table: Table, content: Content, proof: bytes) -> Received:
        """Enter a broadcast into the history, and take its rows over.

        Args:
            content: from `read`.
            proof: from `BroadcastTree.prove`; for a client with no rows in this broadcast, the commitment itself.
        """
        names = self.names[table]
        if self.whole:
            commitment, own_content = commitment_of_table(names, content.rows.numpy()), content.at(self.places[table])
        # Without rows there is nothing to prove. The client enters the commitment that it was told.
        elif not len(content.places):
            commitment, own_content = proof, content
        else:
            places, own_content = self.places[table][content.places], content
            commitment = commitment_of_rows(
                [names[int(place)] for place in places], own_content.rows.numpy(), places.numpy(), len(names), proof
            )
        self.log.enter(round, table, commitment, withheld=False)
        return self.tables[table].take(round, own_content)

    def rows_sent(self, round: int, table: Table) -> np.ndarray:
        """Return the rows that clients had to send in a round, bool `[N]`. Raises `BroadcastError` if it was not told them."""
        frame, rows = self.sent_rows.get(table, (None, None))
        if frame != round or rows is None:
            raise BroadcastError(f"{self.party} was not told which rows of {table} were sent in round {round}")
        return rows

    def taking(self, table: Table, received: Received) -> Received:
        """Limit what it received to the shared rows. Local rows stay as the client trained them.

        Args:
            received: rows of the broadcast.
        """
        local = self.log.local_rows(table, len(self.names[table]))
        return Received(received.rows, torch.from_numpy(~local)[self.places[table]])

    # What it sends.

    def guard(self, round: int, table: Table, rows: Tensor, received: Tensor) -> Tensor:
        """Apply the client's defenses to its rows: those of `others` in order, then clipping and local noise of `dp`.

        Args:
            rows: as trained, `[num_uploaded, width]`.
            received: the same rows as last received.

        Returns:
            float64 `[num_uploaded, width]`, or `rows` if there is no `dp`.

        Raises:
            RunError: a defense returns rows of another shape, or values that are not finite.
        """
        defense = self.terms.defense
        for name, extra in defense.others.items():
            # A malicious client may send values that are not finite. The aggregation leaves them out, so skip the defenses.
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
        """Encode the client's part of a round's sums.

        Args:
            rows: trained rows, float32 `[num_uploaded, width]`.
        """
        contribution = self.tables[table].contribute(round, rows)
        return self.part(round, table, contribution, contribution.contribution.rows.shape[1])

    def tell_sent_rows(self, round: int, table: Table, frame: bytes) -> None:
        """Receive the rows of the table that participants send, and add them to the history.

        Args:
            frame: packed bits, one per row of the table.

        Raises:
            BroadcastError: too few bits.
        """
        self.log.extend(f"rows of {table} to send", round, frame)
        bits = np.unpackbits(np.frombuffer(frame, dtype=np.uint8))
        if len(bits) < len(self.names[table]):
            raise BroadcastError(
                f"{self.party} was told of {len(bits)} rows to send; {table} has {len(self.names[table])}"
            )
        self.sent_rows[table] = round, bits[: len(self.names[table])].astype(bool)

    def enter_sum(self, round: int, table: Table) -> None:
        """Note that the client signed a sum of this round with its part in it."""
        self.in_sum[table] = round

    def part(self, round: int, table: Table, contribution: Kept, width: int) -> Part:
        """Encode a contribution as summands of the table.

        Args:
            contribution: rows to upload.
            width: numbers per row.
        """
        encoding, noise = self.terms.encodings[table], self.terms.noise.get(table)
        indices, noise = (
            self._held(table, contribution.contribution),
            noise if isinstance(noise, RingNoise) and self.guarded else None,
        )
        # With noise in the ring, every row gets noise, also those that the client does not hold: otherwise the noise shows them.
        rows = np.arange(len(self.names[table])) if noise else np.sort(indices)
        places = np.searchsorted(rows, indices)
        values = np.zeros((len(rows), width))
        values[places] = contribution.contribution.rows.numpy()
        elements, num_clipped = encoding.encode(values)
        if num_clipped:
            self._warn_of_clip(round, table, num_clipped, encoding.clip)
        # A weighted mean is the sum of weight * row over the sum of the weights. Both sums are taken in the ring.
        weight = self.tables[table].holding.weight
        if weight > 1:
            # Modulo the ring.
            elements = elements * elements.dtype.type(weight)
        if noise:
            drawn = noise.draw(elements.size, self.draw("ring noise", table, round))
            elements = encoding.ring.add(elements, encoding.ring.from_integers(drawn).reshape(elements.shape))
        weights = np.zeros(len(rows), dtype=Ring.UINT32.dtype)
        weights[places] = weight
        self.parts[table] = Part(contribution, rows, elements, encoding.decode(elements), weights)
        return self.parts[table]

    def _warn_of_clip(self, round: int, table: Table, num_clipped: int, clip: float) -> None:
        """Log the first clipped values of a table. The number stays at the client: it could show a server that chose the table
        whether the client holds a row.
        """
        if table not in self.clipped:
            self.clipped.add(table)
            LOG.warning(
                "%s: round %d: %d values of %s were cut to the secagg clip of %g; choose a larger clip if this goes on",
                *(self.party, round, num_clipped, table, clip),
            )

    def _held(self, table: Table, contribution: Contribution) -> np.ndarray:
        return self.places[table][: len(contribution.chosen)][contribution.chosen].numpy()

    def keep_back(self, table: Table, sent: np.ndarray) -> Part:
        """Set all rows to zero except those to send.

        Args:
            sent: bool `[N]`.
        """
        part = self.parts[table]
        sent = sent[part.rows]
        self.parts[table] = part._replace(
            elements=np.where(sent[:, None], part.elements, 0),
            values=part.values * sent[:, None],
            weights=np.where(sent, part.weights, 0),
        )
        return self.parts[table]

    def settle(self, round: int, table: Table) -> None:
        """Let the client's codec remember which part of its contribution is in the opened sum of a round."""
        # A client that signed no sum of this round is not in it: its codec keeps everything for the next upload.
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
    """Compute the session of a sum for a party with this history.

    Args:
        purpose: one of `terms.SESSIONS`.
        context: further values that the parties must agree on.
        log: history of the party.
    """
    # Clients with different histories get different sessions, and so different masks and signatures: their sum cannot open.
    return digest("fkgsec exchange", terms.sessions[purpose, table], context, log.digest)


def claim_setting(terms: Terms, round: int, table: Table, parties: Sequence[str]) -> Setting:
    """Return the setting whose session the claims about broadcasts are signed for.

    Args:
        parties: participants of the round.
    """
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
    """Return the setting of a sum, as a party with this history computes it.

    Args:
        log: history of the party.
        purpose: "rows" sums rows and weights, "holders" counts the holders of each row.
        num_rows: N.
        threshold, min_survivors: None: as the terms say.
        context: further values that the parties must agree on.
    """
    # The sum of the weights of each row's holders is opened too: the mean needs it.
    vectors = (Vector("holders", num_rows, Ring.UINT32),)
    if purpose == "rows":
        vectors = (Vector("rows", num_rows * terms.widths[table], terms.encodings[table].ring), *vectors)
    assert terms.defense.secagg is not None
    # With `complete`, a sum opens only for all participants, so two sums never differ by one client that fell silent.
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
    """Return the setting of the sum that follows the counting of holders.

    Args:
        parties: participants of the round.
        counted: those whose holdings were counted; all must be in this sum.
        num_rows: N.
        sent_rows: packed bits of the rows to send.
    """
    members = tuple(party for party in parties if party in counted)
    # Few may be left after counting. The threshold must not sink with them.
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
