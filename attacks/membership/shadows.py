"""Shadow federations of a membership attack: trained as the attacked one was, on half of the triples that are asked about.

    for number in range(4):
        shadow, member = shadow_federation(graph, audits, number, seed=0, knowledge="same-graph")
        result = run_federation(shadow, shadow_options(options, number, seed=0))
        member["hospital-1"]                             # bool [m + c], which of its audited triples this one trained on

What the adversary trains them on, by the name of its knowledge:

- "same-graph": all that every client trains on but the triples that are asked about: a worst-case auditor.
- "similar-graph": the same with half of each client's triples linked anew: within a relation their tails change places, so that
  heads, tails and how often each stands in a relation are those of the client, and about half of its triples are not.

Both have the clients' validation triples, which choose the round that is kept. Shadows 2 k and 2 k + 1 take complementary halves
of members and of controls, so that each triple is in as often as out and no half tells who is a member.

Source: Carlini et al. 2022 (halves); Shokri et al. 2017 for shadows on noisy data. The noise is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from fkgsec.attacks.membership.audits import Audited, contains, replace_train
from fkgsec.attacks.options import ShadowKnowledge
from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import retaining

LINKED_ANEW = 0.5  # share of a client's triples that a similar graph does not have


def shadow_federation(
    graph: FederatedGraph, audits: Sequence[Audited], number: int, *, seed: int, knowledge: ShadowKnowledge
) -> tuple[FederatedGraph, dict[str, np.ndarray]]:
    """What one shadow federation trains on, and by client which of `Audited.triples` are in it, bool `[m + c]`.

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
        client, asked = clients[audit.place], audit.triples
        train = client.train[~contains(asked, client.train)]  # one that was linked anew may be one that is asked about
        clients[audit.place] = replace_train(client, np.concatenate([train, asked[chosen[audit.name]]]))
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
