"""False triples to plant, and as many drawn alike that nobody plants.

    drawn = draw_false(known, 40, rng)                    # of names `[n, 3]`: 40 to plant, 40 to compare with
    asked = held_by(truth, "hospital-2", drawn.planted)   # in its local ids `[k, 3]`

A false triple has a head of the known triples, and a relation and a tail of theirs that the head has in none of them. What is
true at any client is none (`without_true`): the evaluator leaves it out, since no adversary knows it.

Source: Ma et al. 2024, "Poisoning Attack on Federated Knowledge Graph Embedding" (WWW), and its code (FKGEPoison), which draw
relation and tail among those of one victim's triples, unlike those of one of the head's. Differs: unlike those of all of its.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from fkgsec.attacks.registry import Truth

TRIALS = 50  # for each triple that is wanted


class FalseTriples(NamedTuple):
    """Names, object `[k, 3]` each; no triple stands twice."""

    planted: np.ndarray
    control: np.ndarray


def draw_false(
    known: np.ndarray, count: int, rng: np.random.Generator, entities: Collection[str] | None = None
) -> FalseTriples:
    """So many false triples to plant and to compare with; fewer where there are not as many, half of them each.

    Args:
        known: names of true triples, object `[n, 3]`. entities: among these heads and tails are drawn; None: any of theirs.
    """
    relations: dict[str, set[str]] = {}
    tails: dict[str, set[str]] = {}
    for head, relation, tail in known:
        relations.setdefault(head, set()).add(relation)
        tails.setdefault(head, {head}).add(tail)
    heads = [head for head in known[:, 0] if entities is None or head in entities]
    kinds = sorted(set(known[:, 1]))
    ends = sorted(tail for tail in set(known[:, 2]) if entities is None or tail in entities)
    drawn: dict[tuple[str, str, str], None] = {}
    for _ in range(TRIALS * 2 * count if heads and ends else 0):
        head, relation, tail = (pool[int(rng.integers(len(pool)))] for pool in (heads, kinds, ends))
        if relation not in relations[head] and tail not in tails[head]:
            drawn[head, relation, tail] = None
        if len(drawn) == 2 * count:
            break
    listed = np.array(list(drawn), dtype=object).reshape(-1, 3)
    half = len(listed) // 2
    return FalseTriples(listed[:half], listed[half : 2 * half])


def without_true(truth: Truth, plans: Mapping[str, FalseTriples]) -> dict[str, FalseTriples]:
    """The plans of each victim without triples that stand in some split of some client."""
    graph = truth.graph
    true = {
        (graph.entities[head], graph.relations[relation], graph.entities[tail])
        for client in graph.clients
        for head, relation, tail in client.to_global(client.triples).tolist()
    }
    return {
        victim: FalseTriples(*(part[[tuple(triple) not in true for triple in part]] for part in plan))
        for victim, plan in plans.items()
    }


def held_by(truth: Truth, client: str, triples: np.ndarray) -> np.ndarray:
    """Of triples of names those whose entities and relation a client trains, in its local ids, int64 `[k, 3]`."""
    own, graph = truth.own(client), truth.graph
    entity, relation = (
        {names[number]: local for local, number in enumerate(ids[:count].tolist())}
        for names, ids, count in (
            (graph.entities, own.entity_ids, own.num_trained_entities),
            (graph.relations, own.relation_ids, own.num_trained_relations),
        )
    )
    local = [
        (entity[head], relation[kind], entity[tail])
        for head, kind, tail in triples
        if head in entity and tail in entity and kind in relation
    ]
    return np.array(local, dtype=np.int64).reshape(-1, 3)
