"""Setting that all parties of a secure aggregation agree on before it starts, checked once.

setting = Setting(b"session", 0, ("a", "b", "c"), safe_threshold(3), (Vector("rows", 800, Ring.UINT32),), public_keys)
setting.digest                                                      # enters every key, signature and sealed message
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from fkgsec.protocols import CipherName
from fkgsec.protocols.core.errors import SettingError
from fkgsec.protocols.core.prg import Ring, digest
from fkgsec.protocols.core.rounds import SERVER
from fkgsec.protocols.secagg.graph import Graph, complete_graph, regular_graph


class Stage(enum.IntEnum):
    """The five rounds of Bonawitz et al. 2017 Figure 4, in order."""

    ADVERTISE = 0
    SHARE = 1
    MASK = 2
    CONSISTENCY = 3
    UNMASK = 4


STAGES = {
    "advertise": Stage.ADVERTISE,
    "share": Stage.SHARE,
    "receive": Stage.SHARE,
    "mask": Stage.MASK,
    "confirm": Stage.CONSISTENCY,
    "unmask": Stage.UNMASK,
}
"""Round of the paper by the name that `server_round` gives each exchange."""


@dataclass(frozen=True)
class Vector:
    """Vector to sum: its name, its number of elements and the ring they lie in."""

    name: str
    length: int
    ring: Ring


def safe_threshold(num_parties: int) -> int:
    """Compute floor(2 N / 3) + 1, safe on the complete graph against an active server that colludes with under N / 3 clients.

    Source: Bonawitz et al. 2017, Theorem 6.5. Differs: none.

    >>> [safe_threshold(n) for n in (2, 3, 10, 20)]
    [2, 3, 7, 14]
    """
    return 2 * num_parties // 3 + 1


@dataclass(frozen=True)
class Setting:
    """Setting of one session of secure aggregation. Its digest enters every key, signature and sealed message.

    Attributes:
        session: names the federation's run; public, never used twice.
        round: number of this session within it. Keys are fresh in every session.
        parties: the clients' names, at least two, in an order that all know.
        threshold: shares that open a secret, more than half of its holders: no server can then get both kinds of share of one
            party from different holders. Against an active server that colludes with C of the holders, twice the threshold must
            exceed holders + C. `safe_threshold` does for C up to a third.
        vectors: the vectors that one session sums.
        identities: raw Ed25519 public keys by party, pinned beforehand.
        neighbours: None for the complete graph; k for the k-regular graph, against a semi-honest server only. The holders of
            a party's shares are its neighbors and itself, so the threshold is at most k, of k + 1 holders. Callers check with
            `bounds.require_small_risk` whether k is enough for the expected colluders and dropouts.
        cipher: cipher of the masks.
        min_survivors: clients refuse to unmask a smaller set. None: the threshold on the complete graph, and
            `safe_threshold` of all parties on a regular one, whose threshold does not bound the whole. There, a client knows
            the number of survivors only from the server.

    Raises `SettingError` for each value that is not allowed, `DisconnectedGraph` for a graph that falls apart.
    """

    session: bytes
    round: int
    parties: tuple[str, ...]
    threshold: int
    vectors: tuple[Vector, ...]
    identities: Mapping[str, bytes]
    neighbours: int | None = None
    cipher: CipherName = "aes-256-ctr"
    min_survivors: int | None = None

    def __post_init__(self) -> None:
        num_parties = len(self.parties)
        if num_parties < 2:
            raise SettingError(f"parties: {num_parties}; the sum of fewer than 2 hides nothing")
        if len(set(self.parties)) != num_parties or SERVER in self.parties or "" in self.parties:
            raise SettingError(f"parties: names must be distinct, not empty and not {SERVER!r}; got {self.parties}")
        if set(self.identities) != set(self.parties):
            raise SettingError(f"identities: one for each party; wrong: {set(self.identities) ^ set(self.parties)}")
        if any(len(identity) != 32 for identity in self.identities.values()):
            raise SettingError("identities: raw Ed25519 public keys of 32 bytes")
        if len(set(self.identities.values())) != num_parties:
            raise SettingError("identities: two parties have the same one")
        names = [vector.name for vector in self.vectors]
        if not names or len(set(names)) != len(names) or any(vector.length < 0 for vector in self.vectors):
            raise SettingError(f"vectors: distinct names and lengths of at least 0; got {self.vectors}")
        if self.round < 0:
            raise SettingError(f"round: {self.round}; it must be at least 0")
        if self.cipher not in get_args(CipherName):
            raise SettingError(f"cipher: {self.cipher!r}; allowed: {', '.join(get_args(CipherName))}")
        # With a threshold of at most half the holders, a server could get both kinds of share of one party from two disjoint
        # sets of holders, and so open its upload.
        most = num_parties if self.neighbours is None else self.neighbours
        num_holders = len(self.graph[self.parties[0]]) + 1  # after the graph's own checks
        if not num_holders < 2 * self.threshold or not self.threshold <= most:
            raise SettingError(
                f"threshold: {self.threshold}; with {num_holders} holders of each secret it must lie in "
                f"{num_holders // 2 + 1}..{most}"
            )
        least = self.threshold if self.neighbours is None else 2
        if self.min_survivors is not None and not least <= self.min_survivors <= num_parties:
            raise SettingError(f"min_survivors: {self.min_survivors}; it must lie in {least}..{num_parties}")

    @cached_property
    def graph(self) -> Graph:
        """Neighbors of each party."""
        if self.neighbours is None:
            return complete_graph(self.parties)
        return regular_graph(self.parties, self.neighbours, self.session, self.round)

    @cached_property
    def point(self) -> Mapping[str, int]:
        """Point at which each party's shares are evaluated, from 1. The points also order the parties for the mask signs."""
        return {party: place for place, party in enumerate(self.parties, start=1)}

    @property
    def fewest_survivors(self) -> int:
        """Smallest number of survivors whose sum may be opened."""
        if self.min_survivors is not None:
            return self.min_survivors
        return self.threshold if self.neighbours is None else safe_threshold(len(self.parties))

    @property
    def fewest_around(self) -> int:
        """Smallest number of survivors among a client and its neighbors.

        If all parties must survive, these are all of them. The client counts them itself, so a server that lies about the
        number of all survivors cannot leave anybody out of such a sum.
        """
        everybody = self.fewest_survivors == len(self.parties)
        return len(self.graph[self.parties[0]]) + 1 if everybody else self.threshold

    def around(self, party: str) -> frozenset[str]:
        """Return a party and its neighbors: the holders of its shares, and the owners of the shares that it holds."""
        return self.graph[party] | {party}

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all attributes. Clients that received different settings notice it at once."""
        return digest(
            "secagg setting, version 2",
            self.session,
            self.round,
            self.threshold,
            self.neighbours or 0,
            self.cipher,
            self.fewest_survivors,
            len(self.parties),
            *(part for party in self.parties for part in (party, self.identities[party])),
            *(part for vector in self.vectors for part in (vector.name, vector.length, vector.ring.value)),
        )

    @property
    def context(self) -> tuple[bytes, int, bytes]:
        """Session, round and digest: the context of every key and signature of this session."""
        return self.session, self.round, self.digest

    def in_order(self, parties: Iterable[str]) -> list[str]:
        """Sort parties in the setting's order."""
        return sorted(parties, key=self.point.__getitem__)
