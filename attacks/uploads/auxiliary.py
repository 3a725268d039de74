"""Membership inference by a server that knows some of the victim's triples.

Threat model: "server+triples", a server that reads the names of rows. Required knowledge: labeled triples of each victim
(`auxiliary`, by default a tenth of its training triples) and its entity rows. From the rows of these triples the server fits a
vector for each relation (`fit_relations`), and uses it to score any other triple. The attack does not need the victim's
relation rows, which are not shared.

Inference methods: `fit`, the score on the victim's uploaded rows. `change`, the increase of this score over the rows that the
server had sent, where it knows them. `both`, the sum of the two, standardized.

Baselines: `names`, how often the names of head and tail occur with the relation in the auxiliary triples. `any relation`, the
same, smoothed by how often these names are a head and a tail at all.

Source: ours, after the server-initiated attack of Hu et al. 2023 (DP-FLames), whose threshold and statistic are not published.
Figures: `fkgsec.attacks.uploads.questions`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.arrays import in_deviations
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.questions import MEMBERSHIP
from fkgsec.attacks.registry import Attack, Needs, Truth, score_each
from fkgsec.attacks.uploads.questions import (
    ITEMS,
    METRICS,
    Scorer,
    draw_questions,
    named,
    names_scorer,
    question_figures,
)
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.kge import kinds
from fkgsec.kge.models import KgeModel

# Pseudo-count of triples of any relation, relative to those of one relation.
FILLED_UP = 10.0
# Pseudo-count of a name over all relations.
UNSEEN = 0.5


@dataclass(frozen=True, eq=False)
class Fitted:
    """An adversary's scorers of triples of names.

    Attributes:
        ways: scorers by inference method.
        guesses: scorers that use no rows, by name.
        rows: names of the rows that the adversary has.
        auxiliary: triples of names that the adversary knows from the start.
    """

    ways: Mapping[str, Scorer]
    guesses: Mapping[str, Scorer]
    rows: frozenset[str]
    auxiliary: frozenset[tuple[str, ...]] = frozenset()


def fit_relations(model: KgeModel, heads: Tensor, tails: Tensor, relations: np.ndarray, count: int) -> Tensor:
    """Fit the vector of each relation to the pairs of rows that it links.

    TransE: the median of t - h, which has the least L1 error. Others: the mean of the vectors that fit each pair best,
    normalized to unit modulus in each component for RotatE, and to length 1 for DistMult and ComplEx. A relation without pairs
    gets the vector of all pairs.

    Args:
        heads: float `[a, W]`.
        tails: float `[a, W]`.
        relations: relation of each pair, int `[a]`, in 0 ... count - 1.
        count: number of relations.

    Returns:
        One vector per relation, `[count, V']`.
    """
    # The vector that fits one pair best, such as t - h for TransE.
    best = model.best_relation(heads, tails)

    def fitted(chosen: Tensor) -> Tensor:
        """Average the best vectors of some pairs, projected back onto the model's relation vectors."""
        if model.similarity == kinds.L1:
            return chosen.median(dim=0).values
        mean = chosen.mean(dim=0)
        if model.similarity == kinds.MODULUS:
            real, imaginary = mean.chunk(2)
            return mean / torch.hypot(real, imaginary).clamp_min(1e-9).repeat(2)
        return mean / mean.norm().clamp_min(1e-9)

    # Start with the vector of all pairs, for relations without pairs.
    scales = fitted(best).repeat(count, 1)
    for number in np.unique(relations):
        scales[number] = fitted(best[torch.from_numpy(relations == number)])
    return scales


def fit(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, Fitted | NotAttacked]:
    """Fit scorers for each victim's triples."""
    return claim_each(view.victims, lambda victim: fit_relations_of(view.model, victim))


def fit_relations_of(model: KgeModel, victim: VictimView) -> Fitted:
    """Fit scorers for a victim's triples.

    Args:
        victim: view of a victim with auxiliary triples.

    Raises:
        NotAttacked: there are no auxiliary triples, or none of them has rows.
    """
    entities, names, seen = victim.named_entities()
    if victim.auxiliary is None:
        raise NotAttacked("no triple of it is known")
    place = {name: row for row, name in enumerate(names) if name is not None}
    # Both ends must have an uploaded row.
    usable = [triple for triple in victim.auxiliary if triple[0] in place and triple[2] in place]
    if not usable:
        raise NotAttacked(f"of {len(victim.auxiliary)} auxiliary triples none has rows that were seen")
    kinds_of = {name: number for number, name in enumerate(sorted({triple[1] for triple in victim.auxiliary}))}
    heads, tails = (torch.tensor([place[triple[end]] for triple in usable]) for end in (0, 2))
    relations = np.array([kinds_of[triple[1]] for triple in usable])

    def scorer(rows: Tensor) -> Scorer:
        """Fit relations to rows, and score triples on the same rows."""
        # The last one is for relations of no auxiliary triple.
        vectors = fit_relations(model, rows[heads], rows[tails], relations, len(kinds_of) + 1)

        def score(triples: np.ndarray) -> np.ndarray:
            """Score triples of names `[q, 3]`, float64 `[q]`."""
            head_rows, other = (rows[torch.tensor([place[name] for name in triples[:, end]])] for end in (0, 2))
            acting = vectors[torch.tensor([kinds_of.get(name, -1) for name in triples[:, 1]])]
            return model.pair_scores(model.function.query(head_rows, acting, "tail"), other).double().numpy()

        return score

    ways: dict[str, Scorer] = {"fit": scorer(entities)}
    if (received := victim.received.get("entities")) is not None:
        # A trained triple scores higher after training than on the rows that the client received.
        before, after = scorer(received[torch.from_numpy(seen)].float()), ways["fit"]
        ways["change"] = lambda triples: after(triples) - before(triples)
        ways["both"] = lambda triples: in_deviations(after(triples)) + in_deviations(ways["change"](triples))
    guesses = {"names": names_scorer(victim.auxiliary), "any relation": _any_relation_scorer(victim.auxiliary)}
    return Fitted(ways, guesses, frozenset(place), frozenset(map(tuple, victim.auxiliary)))


def _any_relation_scorer(auxiliary: np.ndarray) -> Scorer:
    """Score by log-likelihoods of head and tail given the relation, each smoothed by its frequency over all relations."""
    relations, names = Counter(auxiliary[:, 1]), len(np.unique(auxiliary[:, [0, 2]]))
    at_end = {end: Counter(auxiliary[:, end]) for end in (0, 2)}
    together = {end: Counter(zip(auxiliary[:, end], auxiliary[:, 1], strict=True)) for end in (0, 2)}

    def likelihood(end: int, name: str, relation: str) -> float:
        """Return the smoothed log-probability of a name at one end of a relation."""
        anyhow = (at_end[end][name] + UNSEEN) / (len(auxiliary) + UNSEEN * names)
        # Dirichlet smoothing: `FILLED_UP` pseudo-counts distributed as the name occurs over all relations.
        return math.log((together[end][name, relation] + FILLED_UP * anyhow) / (relations[relation] + FILLED_UP))

    def score(triples: np.ndarray) -> np.ndarray:
        """Score triples of names `[q, 3]`, float64 `[q]`."""
        return np.array([likelihood(0, head, kind) + likelihood(2, tail, kind) for head, kind, tail in triples])

    return score


@score_each
def score(truth: Truth, victim: str, claim: Fitted) -> list[Figure]:
    """Compute a victim's figures on triples that are new to the adversary and have both ends among its rows."""
    client = truth.unshuffled(victim)
    names = np.array(truth.graph.entities, dtype=object)[client.entity_ids]
    has_row = np.fromiter((name in claim.rows for name in names), dtype=bool, count=len(names))
    # Triples that the adversary already knows are no questions.
    excluded = client.train[[tuple(triple) in claim.auxiliary for triple in named(truth, victim, client.train)]]
    questions = draw_questions(
        truth, victim, lambda triples: has_row[triples[:, 0]] & has_row[triples[:, 2]], truth.rng, excluded
    )
    return question_figures(truth, victim, questions, claim.ways, claim.guesses)


ATTACK = Attack(
    "server-aux",
    "infers a victim's training triples from its uploaded rows and some of its triples",
    Needs(names=True, entities=True, auxiliary=True, server=True),
    METRICS,
    fit,
    score,
    threats=("server+triples",),
    questions=dict.fromkeys(METRICS, MEMBERSHIP),
    items=ITEMS,
)
