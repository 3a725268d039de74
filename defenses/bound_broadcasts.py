"""The broadcasts of a federation, bound to its sums: what each party was sent so far, and the messages that let clients check it.

    >>> bound = BoundBroadcasts(channel, parties, whole=False)
    >>> rows = bound.send(Rows.pack(...), names, table, places, largest=16.0)  # to one client, who checks and remembers it
    >>> bound.close(round, "entities", receivers, root)                       # the server's own history; the others are told
    >>> bound.compare(setting, "entities", session, identities, silent=())    # before a sum: a split is named
    >>> session = digest(..., bound.history[party])                           # of the sum, as a party believes it to be

See `defenses.broadcasts` for what this resists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from defenses.broadcasts import (
    HASH_BYTES,
    BroadcastError,
    BroadcastTree,
    Claim,
    check_claims,
    check_values,
    commitment_of_rows,
    commitment_of_table,
    decode_claims,
    encode_claims,
    sign_claim,
)
from fkgsec.federation.messages import SERVER, Channel, ProtocolMessage, Rows
from fkgsec.federation.recipes import Table
from protocols.prg import digest
from protocols.secagg import Setting


class BoundBroadcasts:
    """See the module.

    Args:
        whole: every client receives whole tables; else its own rows, with a proof.

    Attributes:
        history: by party, a hash chain over the commitments to all that it was sent; the server's is of what it says it sent.
    """

    def __init__(self, channel: Channel, parties: Sequence[str], *, whole: bool) -> None:
        self._channel = channel
        self._parties = tuple(parties)
        self._whole = whole
        self._tree: tuple[Tensor, BroadcastTree] | None = None
        self.history = dict.fromkeys([*parties, SERVER], bytes(HASH_BYTES))

    def extend(self, party: str, what: str, round: int, commitment: bytes) -> None:
        """A party was sent one thing more."""
        self.history[party] = digest("fkgsec broadcasts", self.history[party], what, round, commitment)

    def commit(self, names: Sequence[str], rows: Tensor) -> bytes:
        """The commitment to a table: its digest, or the root of its tree."""
        if self._whole:
            return commitment_of_table(names, rows.numpy())
        return self._tree_of(names, rows).root

    def send(
        self, round: int, table: Table, party: str, names: Sequence[str], rows: Tensor, places: Tensor, largest: float
    ) -> Tensor:
        """Send a client the table (or its rows at `places`, with a proof). Returns its rows as it received and checked them.

        Args:
            names: of the table's rows. rows: float32 `[N, width]`. places: int64 `[n]`, the client's rows. largest: value that
                it takes.
        """
        message = self._channel.send(Rows.pack(round, SERVER, party, table, rows if self._whole else rows[places]))
        if not isinstance(message, Rows):
            raise BroadcastError(
                f"the broadcast of {table} in round {round} arrived at {party} as another kind of message"
            )
        received = message.unpack()
        self.check(round, table, party, received, largest)
        if self._whole:
            self.extend(party, table, round, commitment_of_table(names, received.numpy()))
            return received[places]
        self.prove(round, table, party, names, rows, places, received)
        return received

    def check(self, round: int, table: Table, party: str, rows: Tensor, largest: np.ndarray | float) -> None:
        """A client refuses values that are not finite or beyond `largest` (one, or `[n]` by row). Raises `BroadcastError`."""
        check_values(rows.numpy(), largest, where=f"{party} refuses the broadcast of {table} in round {round}")

    def prove(
        self, round: int, table: Table, party: str, names: Sequence[str], rows: Tensor, places: Tensor, received: Tensor
    ) -> None:
        """The server proves that the rows `received` are those of `rows` at `places`; the client computes the root."""
        tree = self._tree_of(names, rows)
        if not len(places):
            self._tell(round, table, party, tree.root)
            return
        proof = self._send(round, SERVER, party, table, "broadcast-proof", tree.prove(places.numpy()))
        own = [names[int(place)] for place in places]
        self.extend(party, table, round, commitment_of_rows(own, received.numpy(), places.numpy(), len(names), proof))

    def close(self, round: int, table: Table, receivers: Collection[str], commitment: bytes) -> None:
        """The server enters what it sent into its own history, and tells clients that received nothing."""
        self.extend(SERVER, table, round, commitment)
        for party in self._parties:
            if party not in receivers:
                self._tell(round, table, party, commitment)

    def compare(
        self,
        setting: Setting,
        table: Table,
        session: bytes,
        identities: Mapping[str, Ed25519PrivateKey],
        silent: Collection[str],
    ) -> None:
        """Before a sum each party signs its history; neighbours in the session are shown each other's. Raises `BroadcastError`.

        Args:
            session: names the sum, whatever was sent. silent: parties that send nothing.
        """
        claims: dict[str, Claim] = {}
        for party in setting.parties:
            if party not in silent:
                claim = sign_claim(identities[party], session, setting.round, party, self.history[party])
                sent = self._send(setting.round, party, SERVER, table, "broadcast-claim", encode_claims([claim]))
                (claims[party],) = decode_claims(sent, where=party)
        where = f"{table}, before the sum of round {setting.round}"
        for party in claims:
            shown = encode_claims([claims[peer] for peer in setting.in_order(setting.graph[party]) if peer in claims])
            received = self._send(setting.round, SERVER, party, table, "broadcast-claims", shown)
            check_claims(
                party,
                self.history[party],
                decode_claims(received, where=where),
                setting.identities,
                session=session,
                round=setting.round,
                where=where,
            )

    def tensor(self) -> Tensor:
        """The histories, uint8 `[parties + 1, 32]`, the server's last; `load` puts them back."""
        return torch.frombuffer(bytearray(b"".join(self.history.values())), dtype=torch.uint8).reshape(-1, HASH_BYTES)

    def load(self, histories: Tensor) -> None:
        """Go on from what `tensor` gave."""
        self.history = {party: own.numpy().tobytes() for party, own in zip(self.history, histories, strict=True)}

    def _tree_of(self, names: Sequence[str], rows: Tensor) -> BroadcastTree:
        if self._tree is None or self._tree[0] is not rows:  # all clients are sent rows of one table
            self._tree = rows, BroadcastTree(names, rows.numpy())
        return self._tree[1]

    def _tell(self, round: int, table: Table, party: str, commitment: bytes) -> None:
        told = self._send(round, SERVER, party, table, "broadcast-root", commitment)
        self.extend(party, table, round, told)

    def _send(self, round: int, sender: str, receiver: str, table: Table, step: str, content: bytes) -> bytes:
        received = self._channel.send(ProtocolMessage(round, sender, receiver, table, step, content))
        if not isinstance(received, ProtocolMessage):
            raise BroadcastError(f"{step} of {sender} arrived at {receiver} as another kind of message")
        return received.content
