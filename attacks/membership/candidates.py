"""Candidate triples of a membership attack, and what data alone reveal about them.

    audits = draw_candidates(graph, seed=0)
    audits[0].members, audits[0].controls                # int64 [m, 3] each, in the client's local IDs, matched row by row

Members are random training triples of a client that no other client trains on. Controls are triples that nobody trains on, with
the same relation and similar degrees (`fkgsec.attacks.membership.controls`). The victim's other triples should not separate the
two. `data_scorers` tests this with the names and with the degrees in these triples. If they do separate them, controls are not
fair, and figures say so.

    shadow, member = shadow_federation(graph, audits, number, seed=0, knowledge="same-graph")
    result = run_federation(shadow, shadow_options(options, number, seed=0))
    member["hospital-1"]                                 # bool [m + c], which of its audited triples this shadow trained on

Shadow federations are trained like the attacked run, on half of the candidates and, by their adversary's knowledge, on:

- "same-graph": all training triples except the candidates: a worst-case auditor.
- "similar-graph": the same with half of each client's triples rewired: the tails within a relation are permuted. Heads, tails
  and their frequencies in a relation stay those of the client, and about half of its triples change.

Both contain the clients' validation triples, which choose the best round. Shadows 2 k and 2 k + 1 take complementary halves of
members and of controls. Each triple is therefore in as often as out, and no half reveals who is a member.

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

# Largest number of a client's triples for which controls are drawn.
MOST_MEMBERS = 5000
# Pseudo-count of a name in a relation.
SMOOTHING = 0.1
# Share of a client's triples that a similar graph rewires.
LINKED_ANEW = 0.5


def draw_candidates(graph: FederatedGraph, seed: int) -> list[Audited]:
    """Draw the candidates of each client; those of a client with too few have a reason.

    Members are drawn among twice as many training triples as the client has test triples, at most half of its training triples.

    Args:
        seed: seed of the attack.
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
    """Return the members and controls that an adversary has to classify, in a random order, int64 `[k]` into `Audited.triples`.

    The selection depends on what the colluders hold, which says nothing about membership. Both groups stay alike, if not in
    pairs.

    Args:
        audit: candidates of one victim.
        colluders: names of the colluding clients.
        seed: seed of the attack.
        alone: True if colluders act without a server: triples that they know without any attack are left out.
    """
    triples = audit.triples
    order = generator(seed, "candidates", audit.name).permutation(len(triples))
    return order[askable(graph, colluders, audit.name)(triples[order])] if alone else order


def data_scorers(client: ClientGraph, audit: Audited) -> Mapping[str, Callable[[np.ndarray], np.ndarray]]:
    """Build scorers that use only the client's other training triples, independent of any model.

    `names`: frequency of head and tail in the relation. `degrees`: number of triples of head and tail.

    Args:
        client: the victim.
        audit: its candidates.

    Returns:
        By name, a function from local triples, int `[n, 3]`, to float64 `[n]`.
    """
    rest = client.train[~contains(audit.members, client.train)]
    shape = (client.num_entities, client.num_relations)
    heads, tails = (np.zeros(shape) for _ in range(2))
    np.add.at(heads, (rest[:, 0], rest[:, 1]), 1)
    np.add.at(tails, (rest[:, 2], rest[:, 1]), 1)
    degrees = np.log1p((heads + tails).sum(axis=1))

    def names(triples: np.ndarray) -> np.ndarray:
        """Add the log-frequencies of head and tail in the relation."""
        head, relation, tail = triples.T
        return np.log(heads[head, relation] + SMOOTHING) + np.log(tails[tail, relation] + SMOOTHING)

    return {"names": names, "degrees": lambda triples: degrees[triples[:, 0]] + degrees[triples[:, 2]]}


def shadow_federation(
    graph: FederatedGraph, audits: Sequence[Audited], number: int, *, seed: int, knowledge: ShadowKnowledge
) -> tuple[FederatedGraph, dict[str, np.ndarray]]:
    """Build the data of a shadow federation.

    Args:
        graph: data of the attacked federation.
        audits: candidates of its clients, members and controls only.
        number: index of the shadow federation, from 0.
        seed: seed of the attack.
        knowledge: "same-graph" or "similar-graph".

    Returns:
        The data, and by client which of `Audited.triples` they contain, bool `[m + c]`.
    """
    retained = retaining(graph, {audit.name: audit.members for audit in audits})
    clients, chosen = list(retained.clients), {}
    for place, client in enumerate(clients):
        if knowledge == "similar-graph":
            clients[place] = similar(client, generator(seed, "similar graph", number // 2, client.name))
    for audit in audits:
        rng = generator(seed, "shadow", number // 2, audit.name)
        # The generator depends on number // 2: both shadows of a pair draw one permutation and take its two halves.
        halves = [rng.permutation(len(group)) % 2 == number % 2 for group in (audit.members, audit.controls)]
        chosen[audit.name] = np.concatenate(halves)
        client, candidates = clients[audit.place], audit.triples
        # A rewired triple may equal a candidate.
        # No candidate may be trained on except those of this shadow's half.
        train = client.train[~contains(candidates, client.train)]
        clients[audit.place] = replace_train(client, np.concatenate([train, candidates[chosen[audit.name]]]))
    return replace(retained, clients=tuple(clients)), chosen


def similar(client: ClientGraph, rng: np.random.Generator) -> ClientGraph:
    """Rewire a random half of a client's training triples: permute the tails within each relation.

    Args:
        client: client to change.
        rng: draws triples and permutations.
    """
    train = client.train.copy()
    moved = rng.permutation(len(train))[: round(LINKED_ANEW * len(train))]
    for relation in np.unique(train[moved, 1]):
        rows = moved[train[moved, 1] == relation]
        # A permutation of tails keeps every frequency per relation.
        train[rows, 2] = train[rng.permutation(rows), 2]
    return replace_train(client, train)


def shadow_options(options: KgeOptions, number: int, *, seed: int) -> KgeOptions:
    """Return the options of the attacked run with a different training seed.

    Args:
        options: options of the attacked run.
        number: index of the shadow federation.
        seed: seed of the attack.
    """
    return msgspec.structs.replace(options, seed=int(generator(seed, "shadow seed", number).integers(2**31)))
