"""Triples that a membership attack is asked about, and what data alone tell of them.

    audits = draw_candidates(graph, seed=0)
    audits[0].members, audits[0].controls                # int64 [m, 3] each, in the client's local ids, matched row by row

Members are random training triples of a client that no other client trains on, controls triples that nobody trains on, of the
same relation and of like degrees (`fkgsec.attacks.membership.controls`). The victim's other triples should not tell them apart:
`data_scorers` has what is easiest, the names and the degrees in these. Where they do, controls are not fair, and figures say so.

    shadow, member = shadow_federation(graph, audits, number, seed=0, knowledge="same-graph")
    result = run_federation(shadow, shadow_options(options, number, seed=0))
    member["hospital-1"]                                 # bool [m + c], which of its audited triples this one trained on

Shadow federations are trained as the attacked one was, on half of the triples that are asked about and, by their adversary's
knowledge, on:

- "same-graph": all that every client trains on but the triples that are asked about: a worst-case auditor.
- "similar-graph": the same with half of each client's triples linked anew: within a relation their tails change places, so that
  heads, tails and how often each stands in a relation are those of the client, and about half of its triples are not.

Both have the clients' validation triples, which choose the best round. Shadows 2 k and 2 k + 1 take complementary halves of
members and of controls, so that each triple is in as often as out and no half tells who is a member.

Source: Carlini et al. 2022 (halves); Shokri et al. 2017 for shadows on noisy data. The noise is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from fkgsec.attacks.clients.asking import askable
from fkgsec.attacks.membership.audits import Audited, audited_triples, contains, replace_train
from fkgsec.attacks.options import ShadowKnowledge
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, retaining

MOST_MEMBERS = 5000  # of a client, for which controls are looked for
SMOOTHING = 0.1  # added to every count of a name in a relation
LINKED_ANEW = 0.5  # share of a client's triples that a similar graph does not have


def draw_candidates(graph: FederatedGraph, seed: int) -> list[Audited]:
    """Draw the candidates of each client that has any; those of a client with too few have a reason.

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
    return [triple for triple in audited_triples(graph, retaining(graph, drawn), drawn, seed) if triple.asked]


def asked_candidates(
    graph: FederatedGraph, audit: Audited, colluders: Sequence[str], seed: int, *, alone: bool
) -> np.ndarray:
    """Members and controls that an adversary is asked about, in a random order, int64 `[k]` into `Audited.triples`.

    That goes by what the colluders hold, which says nothing of who is a member: both groups stay alike, if not in pairs.

    Args:
        alone: whether the adversary is the colluders, who know of some triples without any attack. seed: of the attack.
    """
    triples = audit.triples
    order = generator(seed, "candidates", audit.name).permutation(len(triples))
    return order[askable(graph, colluders, audit.name)(triples[order])] if alone else order


def data_scorers(client: ClientGraph, audit: Audited) -> Mapping[str, Callable[[np.ndarray], np.ndarray]]:
    """Scorers by the client's other training triples of local triples `[n, 3]`, float64 `[n]`, whatever any model says.

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


def shadow_federation(
    graph: FederatedGraph, audits: Sequence[Audited], number: int, *, seed: int, knowledge: ShadowKnowledge
) -> tuple[FederatedGraph, dict[str, np.ndarray]]:
    """Data of a shadow federation, and by client the `Audited.triples` in it, bool `[m + c]`.

    Args:
        graph: the attacked federation's. audits: of its clients, with members and controls alone. number: which shadow, from 0.
        seed: of the attack.
    """
    retained = retaining(graph, {audit.name: audit.members for audit in audits})
    clients, chosen = list(retained.clients), {}
    for place, client in enumerate(clients):
        if knowledge == "similar-graph":
            clients[place] = similar(client, generator(seed, "similar graph", number // 2, client.name))
    for audit in audits:
        rng = generator(seed, "shadow", number // 2, audit.name)
        halves = [rng.permutation(len(group)) % 2 == number % 2 for group in (audit.members, audit.controls)]
        chosen[audit.name] = np.concatenate(halves)
        client, candidates = clients[audit.place], audit.triples
        # A triple that was linked anew may be one that is asked about.
        train = client.train[~contains(candidates, client.train)]
        clients[audit.place] = replace_train(client, np.concatenate([train, candidates[chosen[audit.name]]]))
    return replace(retained, clients=tuple(clients)), chosen


def similar(client: ClientGraph, rng: np.random.Generator) -> ClientGraph:
    """The client with a random half of its training triples linked anew: within each relation their tails change places."""
    train = client.train.copy()
    moved = rng.permutation(len(train))[: round(LINKED_ANEW * len(train))]
    for relation in np.unique(train[moved, 1]):
        rows = moved[train[moved, 1] == relation]
        train[rows, 2] = train[rng.permutation(rows), 2]
    return replace_train(client, train)


def shadow_options(options: KgeOptions, number: int, *, seed: int) -> KgeOptions:
    """Those of the attacked run with a training seed of this shadow's own."""
    return msgspec.structs.replace(options, seed=int(generator(seed, "shadow seed", number).integers(2**31)))
