"""Triples that a membership attack is asked about, and what data alone tell of them.

    audits = draw_candidates(graph, seed=0)
    audits[0].members, audits[0].controls                # int64 [m, 3] each, in the client's local ids, matched row by row

Members are random training triples of a client that no other client trains on, controls triples that nobody trains on, of the
same relation and of like degrees (`fkgsec.attacks.membership.controls`). The victim's other triples should not tell them apart:
`data_scorers` has what is easiest, the names and the degrees in these. Where they do, controls are not fair, and figures say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fkgsec.attacks.clients.asking import askable
from fkgsec.attacks.membership.audits import Audited, audited_triples, contains
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, retaining

MOST_MEMBERS = 5000  # of a client, for which controls are looked for
SMOOTHING = 0.1  # added to every count of a name in a relation


def draw_candidates(graph: FederatedGraph, seed: int) -> list[Audited]:
    """Of each client that has any; those of a client with too few have a reason.

    Members are drawn among twice as many training triples as it has test triples, at most half of its own.
    """
    drawn: Forget = {}
    for place, client in enumerate(graph.clients):
        train = np.unique(client.train, axis=0)
        count = min(2 * len(client.test), len(train) // 2, MOST_MEMBERS)
        if count:
            drawn[client.name] = train[generator(seed, "members", place).permutation(len(train))[:count]]
    if not drawn:
        return []
    return [one for one in audited_triples(graph, retaining(graph, drawn), drawn, seed) if one.asked]


def asked_candidates(
    graph: FederatedGraph, audit: Audited, colluders: Sequence[str], seed: int, *, alone: bool
) -> np.ndarray:
    """Which of the members and controls an adversary is asked about, in a random order, int64 `[k]` into `Audited.triples`.

    That goes by what the colluders hold, which says nothing of who is a member: both groups stay alike, if not in pairs.

    Args:
        alone: whether the adversary is the colluders, who know of some triples without any attack. seed: of the attack.
    """
    triples = audit.triples
    order = generator(seed, "candidates", audit.name).permutation(len(triples))
    return order[askable(graph, colluders, audit.name)(triples[order])] if alone else order


def data_scorers(client: ClientGraph, audit: Audited) -> Mapping[str, Callable[[np.ndarray], np.ndarray]]:
    """What the client's other training triples say of local triples `[n, 3]`, float64 `[n]`, whatever any model says.

    `names`: how often head and tail stand in the relation. `degrees`: in how many triples they stand.
    """
    rest = client.train[~contains(audit.members, client.train)]
    shape = (client.num_entities, client.num_relations)
    heads, tails = (np.zeros(shape) for _ in range(2))
    np.add.at(heads, (rest[:, 0], rest[:, 1]), 1)
    np.add.at(tails, (rest[:, 2], rest[:, 1]), 1)
    degrees = np.log1p((heads + tails).sum(axis=1))

    def names(triples: np.ndarray) -> np.ndarray:
        head, relation, tail = triples.T
        return np.log(heads[head, relation] + SMOOTHING) + np.log(tails[tail, relation] + SMOOTHING)

    return {"names": names, "degrees": lambda triples: degrees[triples[:, 0]] + degrees[triples[:, 2]]}
