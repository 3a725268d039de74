"""Which of a victim's rows are linked? Ranked by a server alone, which knows no name and no triple.

    found = run_attacks(result, AttackOptions(attack=("edges",)))
    for one in headline(found.figures):
        print(one.threat_model, one.victim, one.metric, one.estimate, one.baseline)     # server  hospital-2  auc  0.92 ...

Threat model: "server" alone; where asked for "identifiers", too, where it reads the names of rows and has a colluder's triples.
It ranks all pairs of a victim's rows (`fkgsec.attacks.uploads.pairs`), however these reached it: uploaded, or, under secure
sums, as it attributes the sum's rows to the victim. A pair is right if a training triple of the victim links it, whichever way
round.

`distance`: how near two rows lie. `standardised`: how much nearer than either lies to others. `movement`: that, and how straight
the round's training moved them towards each other, where the server knows what it had sent. `named`: the first and what names
tell, both standardised.

Baselines: chance; `names`, what names alone tell: pairs that the colluder's own triples link come first, then by the degree that
both ends have in these.

Source: ours. Stealing links from embeddings by distance: He et al. 2021 (on graph networks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from fkgsec.attacks.arrays import in_deviations
from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.kge.view import ColluderKnowledge, KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.figures import placements
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.uploads.pairs import (
    FirstPairs,
    HeldRows,
    Pairs,
    RankingAuc,
    attraction,
    candidate_pairs,
    closeness,
    linked_pairs,
    local_ids,
    right_of_first,
    standardised,
)
from fkgsec.attacks.uploads.ways import Measure, by_ways
from fkgsec.estimate import exact
from fkgsec.kge.models import KgeModel

EDGES = "edges"
FIRST = 100
METRICS = {
    "auc": "AUC of linked pairs among all pairs of a victim's rows",
    "precision": f"of the first {FIRST} pairs of a victim's rows, the share that is linked",
}
LINKED_BY_COLLUDER = 100.0  # above every sum of two log-degrees


@dataclass(frozen=True, eq=False)
class Ranked:
    """Pairs of the rows that the adversary has of a victim, and their scores `[P]` by way; `names`: by names alone."""

    held: HeldRows
    pairs: Pairs
    ways: Mapping[str, np.ndarray]
    names: np.ndarray | None


def rank(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Ranked | str]:
    """By victim its pairs ranked, or why there is none."""
    return {victim.name: rank_pairs(view, victim, rng) for victim in view.victims}


def rank_pairs(view: KgeView, victim: VictimView, rng: np.random.Generator) -> Ranked | str:
    """A victim's pairs ranked, or why there is none."""
    if victim.entities is None:
        return "no entity embedding of it crossed"
    seen = np.flatnonzero(~victim.entities.isnan().any(dim=1).numpy())
    if len(seen) < 2:
        return f"{len(seen)} entity rows of it were seen; a pair takes 2"
    within = candidate_pairs(len(seen), rng)
    rows = victim.entities[torch.from_numpy(seen)].float()
    received = victim.received.get("entities")
    ways = _ways(view.model, rows, within, None if received is None else received[torch.from_numpy(seen)])
    pairs = Pairs(seen[within.rows], within.mask, seen[within.first], seen[within.second])
    if view.colluder is None or victim.entity_names is None:
        return Ranked(HeldRows.of(victim), pairs, ways, None)
    names = by_names(view.colluder, victim.entity_names, pairs)
    ways["named"] = in_deviations(ways["standardised"]) + in_deviations(names)
    return Ranked(HeldRows.of(victim), pairs, ways, names)


def _ways(model: KgeModel, rows: torch.Tensor, pairs: Pairs, received: torch.Tensor | None) -> dict[str, np.ndarray]:
    chosen = rows[torch.from_numpy(pairs.rows)]
    near = closeness(model, chosen, rows)
    nearer = standardised(near, pairs.rows)
    found = {"distance": near[pairs.mask], "standardised": nearer[pairs.mask]}
    if received is not None:
        towards = standardised(attraction(chosen, rows, pairs.rows, received), pairs.rows)
        found["movement"] = (nearer + towards)[pairs.mask]
    return found


def by_names(colluder: ColluderKnowledge, names: np.ndarray, pairs: Pairs) -> np.ndarray:
    """What a reader of names `[n]` with the colluder's triples expects of each pair, float64 `[P]`."""
    place = {name: number for number, name in enumerate(colluder.entity_names)}
    known = np.array([place.get(name, -1) for name in names], dtype=np.int64)
    ends = colluder.triples[:, [0, 2]]
    degree = np.bincount(ends[ends >= 0], minlength=len(colluder.entity_names))
    popularity = np.where(known >= 0, np.log1p(degree[known]), 0.0)
    inside = colluder.triples[(ends >= 0).all(axis=1)]
    linked = linked_pairs(inside, pairs, known)
    return popularity[pairs.first] + popularity[pairs.second] + LINKED_BY_COLLUDER * linked


def score(claims: Mapping[str, Ranked | str], truth: Truth) -> list[Figure]:
    """AUC and precision of every victim, by each way and by the strongest."""
    figures = []
    for victim, ranked in claims.items():
        if isinstance(ranked, Ranked):
            figures += pair_figures(truth, victim, ranked)
        else:
            figures += truth.not_attacked(victim, ranked)
    return figures


def pair_figures(truth: Truth, victim: str, ranked: Ranked) -> list[Figure]:
    """AUC and precision of one victim, by each way and by the strongest."""
    pairs = ranked.pairs
    linked = linked_pairs(truth.client(victim).train, pairs, local_ids(truth, victim, ranked.held))
    num_linked, num_pairs = int(linked.sum()), len(linked)
    if min(num_linked, num_pairs - num_linked) < 2:
        reason = f"{num_linked} of {num_pairs} pairs are linked; it takes 2 linked ones and 2 others"
        return truth.not_attacked(victim, reason)
    counts = {"pairs": num_pairs, "linked": num_linked}
    chance = {"auc": 0.5, "precision": num_linked / num_pairs}
    most = {"auc": 1.0, "precision": min(1.0, num_linked / FIRST)}
    ways: dict[str, dict[str, Measure]] = {
        "auc": {way: RankingAuc(scores, linked, pairs).estimate for way, scores in ranked.ways.items()}
    }
    if num_pairs > FIRST:
        ways["precision"] = {
            way: FirstPairs(scores, linked, pairs, FIRST).estimate for way, scores in ranked.ways.items()
        }
    figures = []
    for metric, measures in ways.items():
        guesses = {"chance": exact(chance[metric], num_pairs)}
        if ranked.names is not None:
            guesses["names"] = exact(_of_names(metric, ranked.names, linked), num_pairs)
        figures += by_ways(truth, metric, victim, measures, guesses, attainable=most[metric], counts=counts)
    if num_pairs <= FIRST:
        reason = f"there are {num_pairs} pairs, of which all would be among the first {FIRST}"
        figures.append(truth.figure("precision", victim, NOT_ATTACKED, reason=reason, counts=counts))
    return figures


def _of_names(metric: str, names: np.ndarray, linked: np.ndarray) -> float:
    if metric == "precision":
        return right_of_first(names, linked, FIRST) / FIRST
    return float(placements(names[linked], names[~linked]).members.mean())


ATTACK = Attack(
    EDGES,
    "ranks pairs of a victim's rows by how likely a triple links them, without knowing any triple of it",
    Needs(entities=True, server=True),
    METRICS,
    rank,
    score,
    threats=("server",),
    items={"auc": "pairs of a victim's rows", "precision": f"the first {FIRST} pairs"},
)
