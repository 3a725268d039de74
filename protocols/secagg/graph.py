"""Pairs of parties that mask with each other: all pairs, or the neighbors in the k-regular graph of Bell et al. 2020.

>>> graph = regular_graph(("a", "b", "c", "d", "e"), 2, b"session", 0)
>>> sorted(len(neighbours) for neighbours in graph.values()), components(graph, graph) == [set(graph)]
([2, 2, 2, 2, 2], True)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from types import MappingProxyType

from fkgsec.protocols.core.errors import DisconnectedGraph, SettingError
from fkgsec.protocols.core.prg import digest

Graph = Mapping[str, frozenset[str]]


# Every client of a simulation needs the same graph, which takes 5 MB for 300 parties.
@lru_cache(maxsize=4)
def complete_graph(parties: tuple[str, ...]) -> Graph:
    """Connect every pair of parties.

    Args:
        parties: distinct names.

    Returns:
        The neighbors of each party.
    """
    everybody = frozenset(parties)
    return MappingProxyType({party: everybody - {party} for party in parties})


# Every client of a simulation needs the same graph.
@lru_cache(maxsize=64)
def regular_graph(parties: tuple[str, ...], degree: int, session: bytes, round: int) -> Graph:
    """Connect each party to `degree` others: a Harary graph over a random order of the parties.

    The order is public. It hides nothing if the adversary chose its colluders after it, or the session after them.

    Args:
        degree: neighbors of each party, 1 to number of parties - 1.
        session, round: seed the order.

    Raises `SettingError` unless 1 <= degree < number of parties and their product is even, `DisconnectedGraph` for
    degree 1 among more than two parties.
    Source: Bell et al. 2020, Algorithm 1 and section 3.2. Differs: the order comes from the session, not the server.
    """
    num_parties = len(parties)
    if not 1 <= degree < num_parties:
        raise SettingError(f"neighbours {degree}: it must lie in 1..{num_parties - 1} for {num_parties} parties")
    if degree % 2 and num_parties % 2:
        raise SettingError(f"neighbours {degree}: an odd number needs an even number of parties, not {num_parties}")
    if degree == 1 and num_parties > 2:
        raise DisconnectedGraph(f"neighbours 1: {num_parties} parties fall into pairs; at least 2 are needed")
    # Bell et al. 2020, Algorithm 1: put the parties on a ring in random order, and join each to the degree/2 next and
    # previous parties; for an odd degree also to the opposite party.
    order = sorted(parties, key=lambda party: digest("graph order", session, round, party))
    steps = [step for half in range(1, degree // 2 + 1) for step in (half, -half)]
    if degree % 2:
        steps.append(num_parties // 2)
    return MappingProxyType(
        {party: frozenset(order[(place + step) % num_parties] for step in steps) for place, party in enumerate(order)}
    )


def components(graph: Graph, parties: Collection[str]) -> list[set[str]]:
    """Find the connected components of the graph among `parties`.

    Args:
        parties: the vertices to keep; edges to others are ignored.
    """
    left = set(parties)
    parts = []
    while left:
        component, edge = set(), {left.pop()}
        while edge:
            component |= edge
            edge = {peer for party in edge for peer in graph[party] & left}
            left -= edge
        parts.append(component)
    return parts


def require_connected(graph: Graph, parties: Collection[str]) -> None:
    """Check that masks join all of `parties`. Otherwise the sum of each group would be exposed.

    Args:
        parties: the survivors.

    Raises:
        DisconnectedGraph: the survivors fall into groups.
    """
    groups = components(graph, parties)
    if len(groups) > 1:
        smallest = sorted(min(groups, key=len))
        raise DisconnectedGraph(
            f"the {len(parties)} survivors fall into {len(groups)} groups without a mask between them; the smallest is "
            f"{', '.join(smallest)}"
        )
