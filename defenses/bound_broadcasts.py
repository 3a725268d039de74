"""The broadcasts of a federation, bound to its sums: what each party was sent so far, and the messages that let clients check it.

    bound = BoundBroadcasts(channel, parties, whole=False)
    rows = bound.send(Rows.pack(...), names, table, places, largest=16.0)  # to one client, who checks and remembers it
    bound.close(round, "entities", receivers, root)                       # the server's own history; the others are told
    bound.require_rows(round, "entities", participants)                   # who was only told refuses to take part
    bound.compare(setting, "entities", session, identities, silent=())    # before a sum: a split is named
    session = digest(..., bound.history[party])                           # of the sum, as a party believes it to be

See `defenses.broadcasts` for what this resists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
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
    check_signature,
    check_values,
    commitment_of_rows,
    commitment_of_table,
    decode_claims,
    encode_claims,
    sign_claim,
)
from fkgsec.errors import RunError
from fkgsec.federation.messages import SERVER, AnyMessage, Channel, ProtocolMessage, Rows
from fkgsec.federation.recipes import Table
from protocols.core.prg import digest
from protocols.secagg import Setting


class Last(msgspec.Struct):
    """What a client knows of the last broadcast of one table.

    Attributes:
        commitment: to the table.
        withheld: the round in which it was first told the commitment alone since it last received rows; None: it has the rows.
        missed: bool `[N]` as bytes of bits, the rows that were renewed meanwhile; empty where all always are (no suppression).
    """

    commitment: bytes = b""
    withheld: int | None = None
    missed: bytes = b""


class _State(msgspec.Struct):
    """All that a run goes on with."""

    history: dict[str, bytes]
    last: dict[str, dict[str, Last]]


class BoundBroadcasts:
    """See the module.

    Args:
        whole: every client receives whole tables; else its own rows, with a proof.

    Attributes:
        history: by party, a hash chain over the commitments to all that it was sent; the server's is of what it says it sent.
            Whether a client was sent rows or the commitment alone does not enter it: who has no rows takes no part.
    """

    def __init__(self, channel: Channel, parties: Sequence[str], *, whole: bool) -> None:
        self._channel = channel
        self._parties = tuple(parties)
        self._whole = whole
        self._tree: tuple[Tensor, BroadcastTree] | None = None
        self.history = dict.fromkeys([*parties, SERVER], bytes(HASH_BYTES))
        self._last: dict[str, dict[str, Last]] = {}

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
            names: of the table's rows, as the client knows them. rows: float32 `[N, width]`. places: int64 `[n]`, the client's
                rows. largest: value that it takes.

        Raises:
            BroadcastError: another message, shape or value than the client can have been sent.
        """
        sent = Rows.pack(round, SERVER, party, table, rows if self._whole else rows[places])
        message = self.arrived(sent, self._channel.send(sent))
        assert isinstance(message, Rows)
        expected = (len(names) if self._whole else len(places), rows.shape[1])
        if (message.num_rows, message.width) != expected:
            raise BroadcastError(
                f"{party} refuses the broadcast of {table} in round {round}: {message.num_rows} x {message.width} values, where "
                f"its rows are {expected[0]} x {expected[1]}"
            )
        try:
            received = message.unpack()
        except RunError as error:
            raise BroadcastError(f"{party} refuses the broadcast of {table} in round {round}: {error}") from error
        self.check(round, table, party, received, largest)
        if self._whole:
            self._enter(round, table, party, commitment_of_table(names, received.numpy()), withheld=False)
            return received[places]
        self.prove(round, table, party, names, rows, places, received)
        return received

    def arrived(self, sent: AnyMessage, received: AnyMessage) -> AnyMessage:
        """A message of the same kind, step, round, sender, receiver and table. Raises `BroadcastError` for any other."""

        def header(message: AnyMessage) -> tuple[object, ...]:
            return message.label, message.round, message.sender, message.receiver, message.table

        if header(received) != header(sent):
            raise BroadcastError(
                f"{sent.receiver} was to be sent {header(sent)} (kind, round, sender, receiver, table); got {header(received)}"
            )
        return received

    def check(self, round: int, table: Table, party: str, rows: Tensor, largest: np.ndarray | float) -> None:
        """A client refuses values that are not finite or beyond `largest` (one, or `[n]` by row). Raises `BroadcastError`."""
        check_values(rows.numpy(), largest, where=f"{party} refuses the broadcast of {table} in round {round}")

    def prove(
        self, round: int, table: Table, party: str, names: Sequence[str], rows: Tensor, places: Tensor, received: Tensor
    ) -> None:
        """The server proves that the rows `received` are those of `rows` at `places`; the client computes the root."""
        tree = self._tree_of(names, rows)
        if not len(places):  # it holds no row of the table, and so has all that it can have
            self._tell(round, table, party, tree.root, withheld=False)
            return
        proof = self._send(round, SERVER, party, table, "broadcast-proof", tree.prove(places.numpy()))
        own = [names[int(place)] for place in places]
        root = commitment_of_rows(own, received.numpy(), places.numpy(), len(names), proof)
        self._enter(round, table, party, root, withheld=False)

    def close(self, round: int, table: Table, receivers: Collection[str], commitment: bytes) -> None:
        """The server enters what it sent into its own history, and tells clients that received nothing."""
        self.extend(SERVER, table, round, commitment)
        for party in self._parties:
            if party not in receivers:
                self._tell(round, table, party, commitment, withheld=True)

    def renew(self, round: int, table: Table, receivers: Collection[str], renewed: np.ndarray) -> dict[str, np.ndarray]:
        """After the broadcast of a sum that left rows out: which rows it renewed, bool `[N]`, is part of what all were told.

        Returns by receiver the rows that were renewed since it last received any: it takes over these.
        """
        told = np.packbits(renewed).tobytes()
        for party in self.history:
            self.extend(party, f"renewed rows of {table}", round, told)
        since = {}
        for party, last in self._last[table].items():
            rows = renewed | _bits(last.missed, len(renewed))
            last.missed = b"" if party in receivers else np.packbits(rows).tobytes()
            if party in receivers:
                since[party] = rows
        return since

    def take_missed(self, table: Table, num_rows: int) -> dict[str, np.ndarray]:
        """By client that was told commitments alone since it last received rows: the rows renewed meanwhile, bool `[N]`.

        It is to take over these, and has then missed nothing.
        """
        missed = {}
        for party, last in self._last[table].items():
            if last.withheld is not None:
                missed[party] = _bits(last.missed, num_rows) if last.missed else np.ones(num_rows, dtype=bool)
                last.missed = b""
        return missed

    def commitments(self, table: Table) -> dict[str, bytes]:
        """By client what it was told last of the table."""
        return {party: last.commitment for party, last in self._last.get(table, {}).items()}

    def require_rows(self, round: int, table: Table, parties: Collection[str]) -> None:
        """A client takes part in no sum of a table whose rows it was not sent. Raises `BroadcastError`.

        One that was only told the commitment has rows of its own, while the others may have rows that the server made up.
        """
        for party in parties:
            withheld = self._last[table][party].withheld
            if withheld is not None:
                raise BroadcastError(
                    f"{party} refuses the sum of {table} in round {round}: since round {withheld} the server sent it no rows "
                    "but the commitment to the table alone"
                )

    def compare(
        self,
        setting: Setting,
        table: Table,
        session: bytes,
        identities: Mapping[str, Ed25519PrivateKey],
        silent: Collection[str],
    ) -> dict[str, str]:
        """Before a sum each party signs its history; neighbours in the session are shown each other's.

        The server leaves out who sends no claim of its own, and the minority (fewer than half) whose history is not its own.

        Args:
            session: names the sum, whatever was sent. silent: parties that send nothing.

        Returns:
            By party that was left out, why.

        Raises:
            BroadcastError: a client is shown another history than its own, and whether the server is at fault or the other
                client cannot be told.
        """
        claims: dict[str, Claim] = {}
        excluded: dict[str, str] = {}
        for party in setting.parties:
            if party not in silent:
                claim = sign_claim(identities[party], session, setting.round, party, self.history[party])
                try:
                    sent = self._send(setting.round, party, SERVER, table, "broadcast-claim", encode_claims([claim]))
                    claims[party] = _own_claim(party, sent, setting, session)
                except BroadcastError as error:
                    excluded[party] = f"BroadcastError: {error}"
        others = [party for party, claim in claims.items() if claim.history != self.history[SERVER]]
        if 2 * len(others) < len(claims):
            for party in others:
                del claims[party]
                excluded[party] = (
                    f"BroadcastError: it says that it was sent other tables than the server and {len(claims)} clients say"
                )
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
        return excluded

    def tensor(self) -> Tensor:
        """What each party was sent so far, as bytes, uint8 `[n]`; `load` puts it back."""
        return torch.frombuffer(bytearray(msgspec.msgpack.encode(_State(self.history, self._last))), dtype=torch.uint8)

    def load(self, tensor: Tensor) -> None:
        """Go on from what `tensor` gave. Raises `RunError` where it is of an earlier version, or of other parties."""
        try:
            state = msgspec.msgpack.decode(tensor.numpy().tobytes(), type=_State)
        except msgspec.MsgspecError as error:
            raise RunError(f"what clients were sent cannot be read ({error}): train the run again") from error
        if list(state.history) != list(self.history):
            raise RunError(f"what was sent is of {', '.join(state.history)}; expected {', '.join(self.history)}")
        self.history, self._last = state.history, state.last

    def _tree_of(self, names: Sequence[str], rows: Tensor) -> BroadcastTree:
        if self._tree is None or self._tree[0] is not rows:  # all clients are sent rows of one table
            self._tree = rows, BroadcastTree(names, rows.numpy())
        return self._tree[1]

    def _enter(self, round: int, table: Table, party: str, commitment: bytes, *, withheld: bool) -> None:
        """A client enters a broadcast into its history, and whether it has the rows."""
        self.extend(party, table, round, commitment)
        last = self._last.setdefault(table, {}).setdefault(party, Last())
        last.commitment = commitment
        if not withheld:
            last.withheld = None
        elif last.withheld is None:
            last.withheld = round

    def _tell(self, round: int, table: Table, party: str, commitment: bytes, *, withheld: bool) -> None:
        told = self._send(round, SERVER, party, table, "broadcast-root", commitment)
        if len(told) != HASH_BYTES:
            raise BroadcastError(
                f"{party} was told {len(told)} bytes as the commitment to {table} in round {round}; {HASH_BYTES} are one"
            )
        self._enter(round, table, party, told, withheld=withheld)

    def _send(self, round: int, sender: str, receiver: str, table: Table, step: str, content: bytes) -> bytes:
        sent = ProtocolMessage(round, sender, receiver, table, step, content)
        received = self.arrived(sent, self._channel.send(sent))
        assert isinstance(received, ProtocolMessage)
        return received.content


def _own_claim(party: str, content: bytes, setting: Setting, session: bytes) -> Claim:
    """The one claim that a client may send, its own and well signed. Raises `BroadcastError`."""
    claims = decode_claims(content, where=f"the claim of {party}")
    if [claim.sender for claim in claims] != [party]:
        raise BroadcastError(f"one claim of {party} was expected; got {[claim.sender for claim in claims]}")
    check_signature(claims[0], setting.identities, session=session, round=setting.round)
    return claims[0]


def _bits(packed: bytes, count: int) -> np.ndarray:
    """Bool `[count]` of packed bits; all false of none."""
    if not packed:
        return np.zeros(count, dtype=bool)
    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=count).astype(bool)
