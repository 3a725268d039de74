"""Links between a victim's rows, ranked by a server alone that knows no name and no triple.

Threat model: "server", or "identifiers" if requested, where the server reads the names of rows and has a colluder's triples.
Required knowledge: the victim's entity rows, either uploaded or attributed to the victim in a secure sum. The attack ranks all
pairs of these rows (`fkgsec.attacks.uploads.pairs`). A pair is correct if a training triple of the victim links it in either
direction.

Inference methods: `distance`, closeness of the two rows. `standardised`, closeness compared with how close either is to other
rows. `movement`, that, and how straight the round's training moved them towards each other, where the server knows what it had
sent. `named`, the second and the baseline `names`, both standardized.

Baselines: chance; `names`, which ranks pairs that the colluder's triples link first, and then by the degree that both ends have
in these triples.

Source: ours. Stealing links from embeddings by distance: He et al. 2021 (on graph neural networks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fkgsec.attacks.arrays import in_deviations
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.figures import placements
from fkgsec.attacks.questions import LINKS
from fkgsec.attacks.registry import Attack, Needs, Truth, score_each
from fkgsec.attacks.uploads.pairs import (
    HeldRows,
    Pairs,
    attraction,
    candidate_pairs,
    closeness,
    linked_pairs,
    local_ids,
    ranking_auc,
    right_of_first,
    share_of_first,
    standardised,
)
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.estimate import exact

FIRST = 100
METRICS = {
    "auc": "AUC of linked pairs among all pairs of a victim's rows",
    "precision": f"of the first {FIRST} pairs of a victim's rows, the share that is linked",
}
# Larger than any sum of two log-degrees.
LINKED_BY_COLLUDER = 100.0


@dataclass(frozen=True, eq=False)
class Ranked:
    """Ranked pairs of a victim's rows.

    Attributes:
        held_rows: rows that the adversary has of the victim.
        pairs: candidate pairs.
        ways: scores of the pairs by inference method, float `[P]`.
        names: scores by names alone, float64 `[P]`; None if the adversary has no names.
    """

    held_rows: HeldRows
    pairs: Pairs
    ways: Mapping[str, np.ndarray]
    names: np.ndarray | None


def rank(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Ranked | NotAttacked]:
    """Rank each victim's pairs.

    Args:
        laboratory: not used; the attack trains nothing.
        rng: draws candidate pairs of large victims.
    """
    return claim_each(view.victims, lambda victim: rank_pairs(view, victim, rng))


def rank_pairs(view: KgeView, victim: VictimView, rng: np.random.Generator) -> Ranked:
    """Rank a victim's pairs.

    Args:
        rng: draws candidate pairs of large victims.

    Raises:
        NotAttacked: fewer than two rows were transmitted.
    """
    rows, crossed = victim.crossed()
    seen = np.flatnonzero(crossed)
    if len(seen) < 2:
        raise NotAttacked(f"{len(seen)} entity rows of it were seen; a pair takes 2")
    within, rows = candidate_pairs(len(seen), rng), rows[torch.from_numpy(seen)]
    chosen = rows[torch.from_numpy(within.rows)]
    # A trained triple pulls its two rows together, up to the relation between them.
    near = closeness(view.model, chosen, rows)
    nearer = standardised(near, within.rows)
    ways = {"distance": near[within.mask], "standardised": nearer[within.mask]}
    if (received := victim.received.get("entities")) is not None:
        # Gradients of a trained triple pull its two rows towards each other.
        towards = attraction(chosen, rows, within.rows, received[torch.from_numpy(seen)])
        ways["movement"] = (nearer + standardised(towards, within.rows))[within.mask]
    pairs = Pairs(seen[within.rows], within.mask, seen[within.first], seen[within.second])
    if view.colluder is None or victim.entity_names is None:
        return Ranked(HeldRows.of(victim), pairs, ways, None)
    # With names, an adversary can also use the colluder's own links.
    names = by_names(view.colluder, victim.entity_names, pairs)
    ways["named"] = in_deviations(ways["standardised"]) + in_deviations(names)
    return Ranked(HeldRows.of(victim), pairs, ways, names)


def by_names(colluder: ColluderKnowledge, names: np.ndarray, pairs: Pairs) -> np.ndarray:
    """Score pairs by names and the colluder's triples, without any embedding.

    Args:
        names: names of the victim's rows, object `[n]`.

    Returns:
        float64 `[P]`, larger for pairs that are more likely linked.
    """
    place = {name: number for number, name in enumerate(colluder.entity_names)}
    index = np.array([place.get(name, -1) for name in names], dtype=np.int64)
    ends = colluder.triples[:, [0, 2]]
    degree = np.bincount(ends[ends >= 0], minlength=len(colluder.entity_names))
    # Entities with many triples at the colluder probably have many at the victim, too.
    popularity = np.where(index >= 0, np.log1p(degree[index]), 0.0)
    inside = colluder.triples[(ends >= 0).all(axis=1)]
    linked = linked_pairs(inside, pairs, index)
    return popularity[pairs.first] + popularity[pairs.second] + LINKED_BY_COLLUDER * linked


def pair_figures(truth: Truth, victim: str, ranked: Ranked) -> list[Figure]:
    """Compute AUC and precision of one victim, by each inference method and by the strongest.

    Args:
        ranked: the adversary's ranking.

    Raises:
        NotAttacked: fewer than two pairs are linked, or fewer than two are not.
    """
    pairs = ranked.pairs
    linked = linked_pairs(truth.client(victim).train, pairs, local_ids(truth, victim, ranked.held_rows))
    num_linked, num_pairs = int(linked.sum()), len(linked)
    if min(num_linked, num_pairs - num_linked) < 2:
        raise NotAttacked(f"{num_linked} of {num_pairs} pairs are linked; it takes 2 linked ones and 2 others")
    counts, names = {"pairs": num_pairs, "linked": num_linked}, ranked.names
    guesses = {"chance": 0.5}
    if names is not None:
        guesses["names"] = float(placements(names[linked], names[~linked]).members.mean())
    aucs = {way: partial(ranking_auc, scores, linked, pairs) for way, scores in ranked.ways.items()}
    baselines = {name: exact(value, num_pairs) for name, value in guesses.items()}
    figures = truth.figures("auc", victim, aucs, baselines, attainable=1.0, counts=counts)
    if num_pairs <= FIRST:
        reason = f"there are {num_pairs} pairs, of which all would be among the first {FIRST}"
        return [*figures, truth.figure("precision", victim, reason=reason, counts=counts)]
    guesses = {"chance": num_linked / num_pairs}
    if names is not None:
        guesses["names"] = right_of_first(names, linked, FIRST) / FIRST
    shares = {way: partial(share_of_first, scores, linked, pairs, FIRST) for way, scores in ranked.ways.items()}
    baselines = {name: exact(value, num_pairs) for name, value in guesses.items()}
    # With fewer linked pairs than `FIRST` not even a perfect ranking reaches precision 1.
    most = min(1.0, num_linked / FIRST)
    return figures + truth.figures("precision", victim, shares, baselines, attainable=most, counts=counts)


score = score_each(pair_figures)

ATTACK = Attack(
    "edges",
    "ranks pairs of a victim's rows by how likely a triple links them, without any known triple",
    Needs(entities=True, server=True),
    METRICS,
    rank,
    score,
    threats=("server",),
    questions=dict.fromkeys(METRICS, LINKS),
    items={"auc": "pairs of a victim's rows", "precision": f"the first {FIRST} pairs"},
)
