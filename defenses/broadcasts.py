"""Broadcasts that clients can check: all of a round train from one table, or no sum is opened.

A server that sends clients different tables knows what some of them will upload. A client that received values far beyond the
clip uploads exactly the clip. The sum without these parts is the upload of the one client that received a proper table
(Pasquini et al. 2022). Clients therefore commit to what they received:

    tree = BroadcastTree(names, rows)                        # the server's table, a leaf for each row
    proof = tree.prove(places)                               # sent along with rows[places]
    commitment_of_rows(names, rows, places, total, proof)    # the client's side: the root if these are rows of the table

With private set union, every client receives the whole table and hashes it (`commitment_of_table`). Without it, a client receives
its own rows, and a Merkle root stands for the table.

A client's history is a hash chain over the commitments to everything it received, from the list of names on
(`fkgsec.defenses.bound_broadcasts`). It enters the session of every sum that the client takes part in. A client that does not
take part in a round receives the commitments alone, so that clients with the same broadcasts have the same history. It takes
part in no sum of the table before it has received rows again. So all participants of a sum have the rows of the last broadcast:
a server cannot give some of them a table of its choice, and leave another with the rows that it trained.

`check_values` refuses values that no honest sum gives. `check_claims` compares what clients sign about their broadcasts, so that
a split is named. A server could withhold that comparison. What makes a split harmless is the session: clients with different
histories derive different masks, sign different claims, and open nothing together.

Not covered:

- A server that sends all clients the same malicious table. It learns the sum of the resulting uploads. If entities of zeros
  have no gradient (ComplEx, RotatE), it can send zeros except for one row. A client moves a row only if one of its triples joins
  the two. A row that one client alone moves is in the sum as that client uploads it, however many hold it.
- Without private set union, the indices of rows: a server can give one name different indices for different clients.
- FedS: the server chooses which rows each client receives, and a client keeps its own for the others. So a server can send rows
  to all clients but one. FedS with sums withstands only a server that follows the protocol.

Source: Merkle 1987 for the tree (leaves and inner nodes are hashed apart, as in RFC 6962); the use is ours, after Pasquini,
Francati and Ateniese, "Eluding secure aggregation in federated learning via model inconsistency", 2022.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fkgsec.errors import FkgsecError
from fkgsec.protocols.core.errors import BadSignature
from fkgsec.protocols.core.keys import sign, verify
from fkgsec.protocols.core.prg import digest

HASH_BYTES = 32


class BroadcastError(FkgsecError):
    """A broadcast that a client refuses: values that no sum gives, or another table than others received."""


# What was received.


def commitment_of_table(names: Sequence[str], rows: np.ndarray) -> bytes:
    """Hash a whole table.

    Args:
        names: of the rows.
        rows: float32 `[n, width]`, in the same order.
    """
    return digest("fkgsec broadcast table", _digest_of_names(names), *rows.shape, _bytes(rows))


def commitment_of_names(names: Sequence[str]) -> bytes:
    """Hash the list of names that rows are placed by."""
    return digest("fkgsec broadcast names", _digest_of_names(names))


def _digest_of_names(names: Sequence[str]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(list(names))).digest()


def _leaf(place: int, name: str, row: bytes) -> bytes:
    encoded = name.encode()
    # Leaves begin with 0 and inner nodes with 1 (RFC 6962 section 2.1), so an inner node cannot pass for a leaf. The index
    # and the name are hashed too, so a row cannot move.
    return hashlib.sha256(b"\0" + place.to_bytes(8, "big") + len(encoded).to_bytes(4, "big") + encoded + row).digest()


def _inner(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _root(top: bytes, num_rows: int) -> bytes:
    return digest("fkgsec broadcast rows", num_rows, top)


class BroadcastTree:
    """The server's Merkle tree over the rows of a table.

    Args:
        names: of the rows. rows: `[n, ...]` of any dtype, each hashed as its bytes; at least one.
    """

    def __init__(self, names: Sequence[str], rows: np.ndarray) -> None:
        content = _bytes(rows)
        width = len(content) // len(names)
        leaves = [_leaf(place, name, content[place * width : (place + 1) * width]) for place, name in enumerate(names)]
        # Merkle 1987: hash pairs until one node is left. A node without a sibling moves up unchanged.
        self._levels = [leaves]
        while len(self._levels[-1]) > 1:
            level = self._levels[-1]
            paired = [_inner(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
            self._levels.append([*paired, *level[len(level) // 2 * 2 :]])

    @property
    def root(self) -> bytes:
        """Commitment to the table."""
        return _root(self._levels[-1][0], len(self._levels[0]))

    def prove(self, places: np.ndarray) -> bytes:
        """Collect the hashes that a holder of some rows lacks to compute the root.

        Args:
            places: indices of its rows, `[k]`.

        Returns:
            The hashes, ordered by level from the leaves and by index.
        """
        covered, missing = {int(place) for place in places}, []
        for level in self._levels[:-1]:
            # A sibling differs in the lowest bit. Those that the holder can compute itself are left out.
            siblings = {place ^ 1 for place in covered} - covered
            missing += [level[place] for place in sorted(siblings) if place < len(level)]
            covered = {place // 2 for place in covered}
        return b"".join(missing)


def commitment_of_rows(names: Sequence[str], rows: np.ndarray, places: np.ndarray, total: int, proof: bytes) -> bytes:
    """Compute the root of the table from received rows and a proof, at the client.

    Args:
        names: of the received rows. rows: `[k, ...]`, at least one. places: int64 `[k]`, distinct, each below `total`.
        total: rows of the table.
        proof: from `BroadcastTree.prove`.

    Raises:
        BroadcastError: a proof of another length than these indices need.
    """
    content = _bytes(rows)
    width = len(content) // len(places)
    nodes = {
        int(place): _leaf(int(place), name, content[k * width : (k + 1) * width])
        for k, (place, name) in enumerate(zip(places, names, strict=True))
    }
    hashes = [proof[start : start + HASH_BYTES] for start in range(0, len(proof), HASH_BYTES)]
    remaining, size, missing = iter(hashes), total, False
    # Rebuild the tree level by level. The proof fills in siblings in the same order in which `prove` collected them.
    while size > 1:
        siblings = {place ^ 1 for place in nodes} - nodes.keys()
        for place in sorted(place for place in siblings if place < size):
            nodes[place] = next(remaining, b"")
            missing |= not nodes[place]
        nodes = {
            place // 2: _inner(node, nodes[place + 1]) if place + 1 < size else node
            for place, node in sorted(nodes.items())
            if place % 2 == 0
        }
        size = (size + 1) // 2
    if missing or next(remaining, None) is not None or len(proof) % HASH_BYTES:
        raise BroadcastError(f"a proof of {len(proof)} bytes does not fit {len(places)} of {total} rows")
    return _root(nodes[0], total)


def _bytes(rows: np.ndarray) -> bytes:
    return np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<")).tobytes()


# What is refused.


def check_values(rows: np.ndarray, bound: np.ndarray | float, *, where: str) -> None:
    """Check that values can be means of honest uploads.

    Args:
        rows: `[k, width]`.
        bound: largest absolute value, a number or `[k]`.
        where: names the broadcast in errors.

    Raises:
        BroadcastError: a value that is not finite or above `bound`.
    """
    # NaN in a row makes its largest value NaN, which fails the comparison below.
    largest = np.abs(rows).max(axis=1, initial=0.0)
    limit = np.broadcast_to(bound, largest.shape)
    wrong = np.nonzero(~(largest <= limit) | ~np.isfinite(largest))[0]
    if len(wrong):
        first = wrong[0]
        raise BroadcastError(
            f"{where}: the server sent {largest[first]:g} in row {first} of {len(rows)}; values up to {limit[first]:g} can come "
            f"of a sum ({len(wrong)} rows are beyond)"
        )


class Claim(msgspec.Struct, frozen=True, tag="broadcast-claim"):
    """Signed digest of a client's history, for one session."""

    sender: str
    history: bytes
    signature: bytes


def sign_claim(identity: Ed25519PrivateKey, session: bytes, round: int, sender: str, history: bytes) -> Claim:
    """Sign the history of a client that takes part in a sum.

    Args:
        identity: signing key of `sender`.
        session, round: that the claim is bound to.
        history: digest of its history, 32 bytes.
    """
    return Claim(sender, history, sign(identity, digest("fkgsec broadcast claim", session, round, sender, history)))


def check_signature(claim: Claim, identities: Mapping[str, bytes], *, session: bytes, round: int) -> None:
    """Check the signature of a claim.

    Args:
        identities: raw public keys by party.
        session, round: that the claim must be signed for.

    Raises:
        BroadcastError: the sender did not sign this claim.
    """
    # Bound to session and round, so a claim of an earlier round cannot be shown again.
    signed = digest("fkgsec broadcast claim", session, round, claim.sender, claim.history)
    try:
        verify(identities[claim.sender], claim.signature, signed, signer=claim.sender)
    except (BadSignature, KeyError) as error:
        raise BroadcastError(f"a claim that {claim.sender} did not sign") from error


def check_claims(
    party: str,
    history: bytes,
    claims: Sequence[Claim],
    identities: Mapping[str, bytes],
    *,
    session: bytes,
    round: int,
    where: str,
) -> None:
    """Compare the other clients' claims with a client's own history.

    Args:
        party, history: the client and the digest of its history.
        identities: raw public keys by party.
        where: names the sum in errors.

    Raises:
        BroadcastError: others received another table, or a claim is not signed by its sender; the message names them.
    """
    others = []
    for claim in claims:
        try:
            check_signature(claim, identities, session=session, round=round)
        except BroadcastError as error:
            raise BroadcastError(f"{where}: the server showed {party} {error}") from error
        if claim.history != history:
            others.append(claim.sender)
    if others:
        named = ", ".join(others)
        raise BroadcastError(
            f"{where}: the server sent {named} other tables than {party} (inconsistent broadcast), or {named} lied about it"
        )


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[Claim])


def encode_claims(claims: Sequence[Claim]) -> bytes:
    """Encode claims with msgpack."""
    return _encoder.encode(list(claims))


def decode_claims(content: bytes, *, where: str) -> list[Claim]:
    """Decode the claims of `encode_claims`. Raises `BroadcastError`."""
    try:
        return _decoder.decode(content)
    # Names that are not UTF-8 raise `UnicodeDecodeError`.
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BroadcastError(f"{where}: claims cannot be read ({error})") from error
