"""History of the broadcasts to each party of a defended exchange: a hash chain on either side, bound to the sessions of sums.

    sent = SentBroadcasts()                               # the server's
    client = ReceivedBroadcasts("client/a")               # each client's, checked as it arrives
    client.enter("entities", 1, commitment, withheld=False)
    client.require_rows("entities", 2)                    # a client with the commitment alone refuses to take part
    session = digest(..., client.digest)                  # of a sum, as this party computes it

`fkgsec.defenses.broadcasts` describes the attacks that this resists.
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
        withheld: the round in which it first received the commitment alone since it last received rows; None: it has the rows.
        shared: bool `[N]` as packed bits, the rows that clients had to send since the run began; empty before the first sum
            that left rows out.
    """

    commitment: bytes = b""
    withheld: int | None = None
    shared: bytes = b""


class _State(msgspec.Struct):
    """Everything that a resumed run needs."""

    history: dict[str, bytes]
    last: dict[str, dict[str, Last]]


class History:
    """A hash chain over the commitments to everything that a party received (the server: that it says it sent).

    It does not record whether a client received rows or the commitment alone: a client without rows takes no part.
    """

    def __init__(self) -> None:
        self.digest = bytes(HASH_BYTES)

    def extend(self, what: str, round: int, commitment: bytes) -> None:
        """Append one message to the history.

        Args:
            what: names the message, such as the table.
            round: round of the message.
            commitment: its content or a commitment to it.
        """
        self.digest = digest("fkgsec broadcasts", self.digest, what, round, commitment)

    def renewed(self, round: int, table: Table, sent: np.ndarray | None) -> None:
        """Append the rows that clients had to send in a round.

        Args:
            sent: bool `[N]`; None for a round whose sum failed.
        """
        self.extend(f"renewed rows of {table}", round, b"" if sent is None else np.packbits(sent).tobytes())


class SentBroadcasts(History):
    """The server's half: its history, and the tree over the table that it sends."""

    def __init__(self) -> None:
        super().__init__()
        self._tree: tuple[Tensor, BroadcastTree] | None = None

    def tree(self, names: Sequence[str], content: Tensor) -> BroadcastTree:
        """Return the Merkle tree over a table. All clients receive rows of one table, so the last tree is cached.

        Args:
            names: of the rows.
            content: `[N, width]`.
        """
        if self._tree is None or self._tree[0] is not content:
            self._tree = content, BroadcastTree(names, content.numpy())
        return self._tree[1]

    def shown(self, claims: Mapping[str, Claim], setting: Setting, party: str) -> bytes:
        """Encode the claims of a party's neighbors in the session.

        Args:
            claims: by party, from `compare`.
            setting: of the session; its graph defines the neighbors.
        """
        return encode_claims([claims[peer] for peer in setting.in_order(setting.graph[party]) if peer in claims])

    def compare(
        self, claims: Mapping[str, bytes], setting: Setting, session: bytes
    ) -> tuple[dict[str, Claim], dict[str, str]]:
        """Check the clients' claims, and exclude a minority (fewer than half) whose history differs from the server's.

        Args:
            claims: encoded, by party.
            setting: its identities sign the claims.
            session: the claims are signed for this session.

        Returns:
            The valid claims that remain, and by excluded party the reason.
        """
        good: dict[str, Claim] = {}
        excluded: dict[str, str] = {}
        for party, content in claims.items():
            try:
                good[party] = _own_claim(party, content, setting, session)
            except BroadcastError as error:
                excluded[party] = f"BroadcastError: {error}"
        # A few deviating clients are at fault or lie. If half of them deviate, the server is suspect: exclude nobody, and let
        # the clients see each other's claims and stop.
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
    """A client's half. It refuses values that no sum gives, and sums of tables whose rows it did not receive."""

    def __init__(self, party: str) -> None:
        super().__init__()
        self.party = party
        self.last: dict[Table, Last] = {}

    def check(self, round: int, table: Table, rows: Tensor, largest: np.ndarray | float) -> None:
        """Check the values of a broadcast.

        Args:
            rows: `[n, width]`.
            largest: largest absolute value, a number or `[n]` by row.

        Raises:
            BroadcastError: a value that is not finite or above `largest`.
        """
        check_values(rows.numpy(), largest, where=f"{self.party} refuses the broadcast of {table} in round {round}")

    def enter(self, round: int, table: Table, commitment: bytes, *, withheld: bool) -> None:
        """Enter a broadcast into the history, and note whether the client has the rows.

        Args:
            commitment: to the whole table, 32 bytes.
            withheld: True if the client received the commitment alone.

        Raises:
            BroadcastError: `commitment` has another length.
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
        """Enter which rows clients had to send in a round, and update the local rows.

        Args:
            sent: bool `[N]`; None for a round whose sum failed.
        """
        self.renewed(round, table, sent)
        if sent is None:
            return
        # From the first sum on, rows that clients never had to send are local. All others are shared: clients take them over
        # from each broadcast, also after a failed round. This follows from the history alone, so all clients of a sum have the
        # same local rows, and each row has all of its holders in the sum or none.
        self.last[table].shared = np.packbits(sent | _bits(self.last[table].shared, len(sent))).tobytes()

    def local_rows(self, table: Table, num_rows: int) -> np.ndarray:
        """Return the rows that each client trains alone and contributes to no sum, bool `[N]`.

        Args:
            num_rows: N, rows of the table.
        """
        shared = self.last.get(table, Last()).shared
        return ~_bits(shared, num_rows) if shared else np.zeros(num_rows, dtype=bool)

    def lacks_rows(self, table: Table) -> bool:
        """Return whether the client received only the commitment to the last table."""
        return self.last.get(table, Last()).withheld is not None

    def require_rows(self, round: int, table: Table) -> None:
        """Refuse to take part in a sum of a table whose rows the client did not receive.

        Raises:
            BroadcastError: the client has the commitment alone.
        """
        # Such a client would upload its own trained rows, while the server could have sent made-up rows to all others and
        # subtract what those become.
        withheld = self.last[table].withheld
        if withheld is not None:
            raise BroadcastError(
                f"{self.party} refuses the sum of {table} in round {round}: since round {withheld} the server sent it no rows "
                "but the commitment to the table alone"
            )

    def claim(self, identity: Ed25519PrivateKey, session: bytes, round: int) -> bytes:
        """Sign the client's history for one session.

        Args:
            identity: the client's signing key.
            session, round: that the claim is bound to.
        """
        return encode_claims([sign_claim(identity, session, round, self.party, self.digest)])

    def check_claims(
        self, shown: bytes, identities: Mapping[str, bytes], session: bytes, round: int, where: str
    ) -> None:
        """Compare the neighbors' claims with the client's own history.

        Args:
            shown: encoded claims, from the server.
            identities: raw public keys by party.
            where: names the sum in errors.

        Raises:
            BroadcastError: a neighbor received something else. Nobody can tell who is at fault.
        """
        claims = decode_claims(shown, where=where)
        check_claims(self.party, self.digest, claims, identities, session=session, round=round, where=where)


def packed(server: History, clients: Mapping[str, ReceivedBroadcasts]) -> Tensor:
    """Encode the histories of all parties, uint8 `[n]`. `unpack` restores them.

    Args:
        clients: histories by party.
    """
    last: dict[str, dict[str, Last]] = {}
    for party, client in clients.items():
        for table, history_of_table in client.last.items():
            last.setdefault(table, {})[party] = history_of_table
    history = {party: client.digest for party, client in clients.items()} | {SERVER: server.digest}
    return torch.frombuffer(bytearray(msgspec.msgpack.encode(_State(history, last))), dtype=torch.uint8)


def unpack(tensor: Tensor, server: History, clients: Mapping[str, ReceivedBroadcasts]) -> None:
    """Restore the histories that `packed` encoded.

    Args:
        tensor: uint8 `[n]`.

    Raises:
        RunError: bytes that cannot be decoded, or histories of other parties.
    """
    try:
        state = msgspec.msgpack.decode(tensor.numpy().tobytes(), type=_State)
    # Names that are not UTF-8 raise `UnicodeDecodeError`.
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunError(f"what clients were sent cannot be read ({error}): train the run again") from error
    if list(state.history) != (expected := [*clients, SERVER]):
        raise RunError(f"what was sent is of {', '.join(state.history)}; expected {', '.join(expected)}")
    server.digest = state.history[SERVER]
    for party, client in clients.items():
        client.digest = state.history[party]
        client.last = {table: last[party] for table, last in state.last.items() if party in last}  # type: ignore[misc]


def _own_claim(party: str, content: bytes, setting: Setting, session: bytes) -> Claim:
    """Decode the one claim that a client may send: its own, with a valid signature. Raises `BroadcastError`."""
    claims = decode_claims(content, where=f"the claim of {party}")
    if [claim.sender for claim in claims] != [party]:
        raise BroadcastError(f"one claim of {party} was expected; got {[claim.sender for claim in claims]}")
    check_signature(claims[0], setting.identities, session=session, round=setting.round)
    return claims[0]


def _bits(packed: bytes, count: int) -> np.ndarray:
    """Unpack bits to bool `[count]`; all False for empty bytes."""
    if not packed:
        return np.zeros(count, dtype=bool)
    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=count).astype(bool)
