"""History of broadcasts to each party of a defended exchange: a hash chain on either side, bound to the sessions of sums.

    sent = SentBroadcasts()                               # the server's
    client = ReceivedBroadcasts("client/a")               # each client's, checked as it arrives
    client.enter("entities", 1, commitment, withheld=False)
    client.require_rows("entities", 2)                    # one that was only told the commitment refuses to take part
    session = digest(..., client.digest)                  # of a sum, as a party believes it to be

See `fkgsec.defenses.broadcasts` for what this resists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from fkgsec.defenses.broadcasts import (
    HASH_BYTES,
    BroadcastError,
    BroadcastTree,
    Claim,
    check_claims,
    check_signature,
    check_values,
    decode_claims,
    encode_claims,
    sign_claim,
)
from fkgsec.errors import RunError
from fkgsec.federation.messages import SERVER
from fkgsec.federation.recipes import Table
from fkgsec.protocols.core.prg import digest
from fkgsec.protocols.secagg import Setting


class Last(msgspec.Struct):
    """State of the last broadcast of one table at a client.

    Attributes:
        commitment: to the table.
        withheld: the round in which it was first told the commitment alone since it last received rows; None: it has the rows.
        shared: bool `[N]` as packed bits, the rows that clients were told to send since the run began; empty before the first sum
            that left rows out.
    """

    commitment: bytes = b""
    withheld: int | None = None
    shared: bytes = b""


class _State(msgspec.Struct):
    """All that a run goes on with."""

    history: dict[str, bytes]
    last: dict[str, dict[str, Last]]


class History:
    """A hash chain over the commitments to all that a party was sent (the server: to what it says it sent).

    Whether a client was sent rows or the commitment alone does not enter it: who has no rows takes no part.
    """

    def __init__(self) -> None:
        self.digest = bytes(HASH_BYTES)

    def extend(self, what: str, round: int, commitment: bytes) -> None:
        """The party was sent one thing more."""
        self.digest = digest("fkgsec broadcasts", self.digest, what, round, commitment)

    def renewed(self, round: int, table: Table, sent: np.ndarray | None) -> None:
        """The party was told which rows clients were to send in a round, bool `[N]`, or None for a round whose sum failed."""
        self.extend(f"renewed rows of {table}", round, b"" if sent is None else np.packbits(sent).tobytes())


class SentBroadcasts(History):
    """The server's half: its own history, and the tree over the table that it sends."""

    def __init__(self) -> None:
        super().__init__()
        self._tree: tuple[Tensor, BroadcastTree] | None = None

    def tree(self, names: Sequence[str], content: Tensor) -> BroadcastTree:
        """The tree over a table; all clients are sent rows of one."""
        if self._tree is None or self._tree[0] is not content:
            self._tree = content, BroadcastTree(names, content.numpy())
        return self._tree[1]

    def shown(self, claims: Mapping[str, Claim], setting: Setting, party: str) -> bytes:
        """Return what a party is shown: the claims of its neighbours in the session."""
        return encode_claims([claims[peer] for peer in setting.in_order(setting.graph[party]) if peer in claims])

    def compare(
        self, claims: Mapping[str, bytes], setting: Setting, session: bytes
    ) -> tuple[dict[str, Claim], dict[str, str]]:
        """The claims that were made well, without the minority (fewer than half) of other histories than the server's.

        Returns these and, by party that was left out, why.
        """
        good: dict[str, Claim] = {}
        excluded: dict[str, str] = {}
        for party, content in claims.items():
            try:
                good[party] = _own_claim(party, content, setting, session)
            except BroadcastError as error:
                excluded[party] = f"BroadcastError: {error}"
        others = [party for party, claim in good.items() if claim.history != self.digest]
        if 2 * len(others) < len(good):
            surplus = len(good) - len(others)
            for party in others:
                del good[party]
                excluded[party] = (
                    f"BroadcastError: it says that it was sent other tables than the server and {surplus} clients say"
                )
        return good, excluded


class ReceivedBroadcasts(History):
    """A client's half. It refuses what no sum gives, and to take part without the rows that it was told of."""

    def __init__(self, party: str) -> None:
        super().__init__()
        self.party = party
        self.last: dict[Table, Last] = {}

    def check(self, round: int, table: Table, rows: Tensor, largest: np.ndarray | float) -> None:
        """Refuse values that are not finite or beyond `largest` (one, or `[n]` by row). Raises `BroadcastError`."""
        check_values(rows.numpy(), largest, where=f"{self.party} refuses the broadcast of {table} in round {round}")

    def enter(self, round: int, table: Table, commitment: bytes, *, withheld: bool) -> None:
        """Enter a broadcast into the history, and whether the client has the rows.

        Raises `BroadcastError` for what is no commitment.
        """
        if len(commitment) != HASH_BYTES:
            raise BroadcastError(
                f"{self.party} was told {len(commitment)} bytes as the commitment to {table} in round {round}; {HASH_BYTES} are "
                "one"
            )
        self.extend(table, round, commitment)
        last = self.last.setdefault(table, Last())
        last.commitment = commitment
        if not withheld:
            last.withheld = None
        elif last.withheld is None:
            last.withheld = round

    def renew(self, round: int, table: Table, sent: np.ndarray | None) -> None:
        """Enter which rows clients were to send in a round, bool `[N]`, or None for a round whose sum failed.

        From the first sum on, the rows that clients were never told to send are local. A row that they are told to send is shared
        from this broadcast on: they take it over from each broadcast, also of a round that failed. Which rows are local follows
        from the history alone. So it is the same for all clients of a sum, in which each row has all of its holders or none.
        """
        self.renewed(round, table, sent)
        if sent is None:
            return
        self.last[table].shared = np.packbits(sent | _bits(self.last[table].shared, len(sent))).tobytes()

    def local_rows(self, table: Table, num_rows: int) -> np.ndarray:
        """Rows that clients train on from their own values and contribute to no sum, bool `[N]`."""
        shared = self.last.get(table, Last()).shared
        return ~_bits(shared, num_rows) if shared else np.zeros(num_rows, dtype=bool)

    def lacks_rows(self, table: Table) -> bool:
        """Return whether the client was only told the commitment to the last table."""
        return self.last.get(table, Last()).withheld is not None

    def require_rows(self, round: int, table: Table) -> None:
        """Take part in no sum of a table whose rows it was not sent. Raises `BroadcastError`.

        One that was only told the commitment has rows of its own, while the others may have rows that the server made up.
        """
        withheld = self.last[table].withheld
        if withheld is not None:
            raise BroadcastError(
                f"{self.party} refuses the sum of {table} in round {round}: since round {withheld} the server sent it no rows "
                "but the commitment to the table alone"
            )

    def claim(self, identity: Ed25519PrivateKey, session: bytes, round: int) -> bytes:
        """Return what it was sent so far, signed for one session."""
        return encode_claims([sign_claim(identity, session, round, self.party, self.digest)])

    def check_claims(
        self, shown: bytes, identities: Mapping[str, bytes], session: bytes, round: int, where: str
    ) -> None:
        """Compare its neighbours' claims with its own history.

        Raises `BroadcastError` where another one was sent something else; who is at fault cannot be told.
        """
        claims = decode_claims(shown, where=where)
        check_claims(self.party, self.digest, claims, identities, session=session, round=round, where=where)


def packed(server: History, clients: Mapping[str, ReceivedBroadcasts]) -> Tensor:
    """Return what each party was sent so far, as bytes, uint8 `[n]`; `unpack` puts it back."""
    last: dict[str, dict[str, Last]] = {}
    for party, client in clients.items():
        for table, history_of_table in client.last.items():
            last.setdefault(table, {})[party] = history_of_table
    history = {party: client.digest for party, client in clients.items()} | {SERVER: server.digest}
    return torch.frombuffer(bytearray(msgspec.msgpack.encode(_State(history, last))), dtype=torch.uint8)


def unpack(tensor: Tensor, server: History, clients: Mapping[str, ReceivedBroadcasts]) -> None:
    """Go on from what `packed` gave. Raises `RunError` for what is none, or of other parties."""
    try:
        state = msgspec.msgpack.decode(tensor.numpy().tobytes(), type=_State)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # names that are no UTF-8 raise the latter
        raise RunError(f"what clients were sent cannot be read ({error}): train the run again") from error
    if list(state.history) != (expected := [*clients, SERVER]):
        raise RunError(f"what was sent is of {', '.join(state.history)}; expected {', '.join(expected)}")
    server.digest = state.history[SERVER]
    for party, client in clients.items():
        client.digest = state.history[party]
        client.last = {table: last[party] for table, last in state.last.items() if party in last}  # type: ignore[misc]


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
