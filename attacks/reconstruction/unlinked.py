"""Reconstruction without linked pairs: the adversary ranks all pairs of a sample of heads and claims the best.

Source: ours; the papers give the linked pairs away. The baselines here know no names beyond those that the attack guessed or
read, and rank pairs at random: they show chance, not what an adversary that reads names could do.
"""

from __future__ import annotations

import msgspec
import numpy as np

from fkgsec import estimate
from fkgsec.attacks.kge.view import ColluderKnowledge
from fkgsec.attacks.reconstruction.inference import PairRanking, expected_pairs
from fkgsec.estimate import Estimate

BOOTSTRAP_RESAMPLES = 200


class Unlinked(msgspec.Struct, frozen=True):
    """Reconstruction without linked pairs: claims ranked by score over candidate (head, tail) pairs.

    Attributes:
        precision: correct claims among those that the adversary makes (as many as the colluder's density suggests).
        recall: correct claims over the victim's training triples with a sampled head.
        average_precision: over the whole ranking; unreachable triples count as missed.
        *_baseline: expectation of the same claims in random order with the majority relation.
        num_heads, num_pairs: number of sampled heads and of their candidate pairs.
        inference: method of ranking and relation: "score" by `fkgsec.attacks.reconstruction.inference.rank_pairs`, "learned" by
            `fkgsec.attacks.uploads.links`; or the one with the best average precision, where each figure is the strongest.
    """

    precision: Estimate
    recall: Estimate
    average_precision: Estimate
    precision_baseline: Estimate
    recall_baseline: Estimate
    average_precision_baseline: Estimate
    num_heads: int
    num_pairs: int
    inference: str = "score"


def sample_heads(num_rows: int, num_heads: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the rows of a victim whose pairs are ranked, int64, ascending; all of them if there are too few.

    Args:
        num_rows: number of rows of the victim.
        num_heads: largest number of heads.
        rng: draws the heads.
    """
    return np.sort(rng.choice(num_rows, size=min(num_heads, num_rows), replace=False))


def measure_unlinked(
    ranking: PairRanking,
    colluder: ColluderKnowledge,
    train: np.ndarray,
    relations: np.ndarray,
    *,
    entity_right: np.ndarray,
    chance: np.ndarray,
    rng: np.random.Generator,
    inference: str = "score",
) -> Unlinked:
    """Count which of the ranked claims are training triples of the victim.

    Args:
        ranking: scored candidate pairs.
        train: true triples in the victim's rows, int64 `[n, 3]`.
        relations: true names of its relations, object `[m]`.
        entity_right: which rows were named correctly, bool `[rows]`.
        chance: probability that a random name is correct, float `[rows]`.
        rng: draws the bootstrap samples.
        inference: method that ranked the pairs.
    """
    count, heads = len(entity_right), ranking.heads
    place = np.full(count, -1)
    place[heads] = np.arange(len(heads))
    pairs_of_heads = np.unique(train[place[train[:, 0]] >= 0], axis=0)
    total = len(pairs_of_heads)
    rows, columns = place[pairs_of_heads[:, 0]], pairs_of_heads[:, 2]
    matches = ranking.relations[rows, columns] == relations[pairs_of_heads[:, 1]]
    # True if a pair with its inferred relation and names is a training triple.
    right = np.zeros(ranking.scores.shape, dtype=bool)
    right[rows[matches], columns[matches]] = True
    right &= entity_right[heads][:, None] & entity_right[None, :]
    finite = np.isfinite(ranking.scores)
    order = np.argsort(-ranking.scores[finite], kind="stable")
    hits = right[finite][order]
    head_of = np.nonzero(finite)[0][order]
    # The adversary knows no number of triples: it assumes the colluder's density.
    claims = expected_pairs(colluder, len(hits))
    num_right = int(hits[:claims].sum())
    # In random order with the majority relation: how many candidate pairs such an adversary would have right.
    majority = pairs_of_heads[relations[pairs_of_heads[:, 1]] == colluder.majority_relation][:, [0, 2]]
    # Only pairs that can be claimed.
    majority = majority[finite[place[majority[:, 0]], majority[:, 1]]]
    lucky, precisions = random_order(majority, chance, len(hits))
    rate = lucky / max(1, len(hits))
    return Unlinked(
        estimate.proportion(num_right, claims),
        estimate.proportion(num_right, total),
        average_precision(hits, head_of, np.bincount(place[pairs_of_heads[:, 0]], minlength=len(heads)), rng),
        estimate.exact(rate, claims),
        estimate.exact(rate * claims / max(1, total), total),
        estimate.exact(precisions / max(1, total), len(hits)),
        len(heads),
        len(hits),
        inference,
    )


def random_order(pairs: np.ndarray, chance: np.ndarray, num_candidates: int) -> tuple[float, float]:
    """Rank candidate pairs in random order, of which some are correct if both their names are.

    Each row's name is drawn once, with the same `chance` or none, so two pairs that share rows are dependent.

    Args:
        pairs: pairs that may be correct, int64 `[k, 2]`.
        chance: probability that each row's name is correct, float `[rows]`.
        num_candidates: number of candidate pairs.

    Returns:
        Expected number of correct pairs, and expected sum over these of the precision at their rank.
    """
    pairs = pairs[chance[pairs].all(axis=1)]
    if not len(pairs):
        return 0.0, 0.0
    row_chance = float(chance[pairs[0, 0]])
    degree = np.bincount(pairs.ravel())
    codes = pairs[:, 0] * len(degree) + pairs[:, 1]
    # Pairs of pairs by the number of shared rows: two rows are correct together with chance^(distinct rows).
    sharing_two = int(np.isin(pairs[:, 1] * len(degree) + pairs[:, 0], codes).sum())
    sharing_one = int((degree * (degree - 1)).sum()) - 2 * sharing_two
    sharing_none = len(pairs) * (len(pairs) - 1) - sharing_one - sharing_two
    right = len(pairs) * row_chance**2
    both_right = sharing_none * row_chance**4 + sharing_one * row_chance**3 + sharing_two * row_chance**2
    # A right pair at rank i, a uniform rank, has the precision 1 / i, plus that of every other right pair before it.
    harmonic = float((1 / np.arange(1, num_candidates + 1)).sum())
    others = both_right * (num_candidates - harmonic) / max(1, num_candidates - 1)
    return right, (right * harmonic + others) / num_candidates


def average_precision(
    hits: np.ndarray, head_of: np.ndarray, triples_of_head: np.ndarray, rng: np.random.Generator
) -> Estimate:
    """Return the average precision of a ranking, with a bootstrap over heads (whole heads drawn with replacement).

    Args:
        hits: correct pairs in the order of the ranking, bool `[n]`.
        head_of: index of each pair's head among the sampled ones, int `[n]`.
        triples_of_head: number of triples to find per head, int `[heads]`, reachable or not.
        rng: draws the bootstrap samples.
    """
    where, total, num_heads = np.nonzero(hits)[0], int(triples_of_head.sum()), len(triples_of_head)
    if not len(where):
        return Estimate(0.0, 0.0, 3 / max(3, total), total, "rule of three")
    value = float((np.arange(1, len(where) + 1) / (where + 1)).sum() / total)
    values = []
    for _ in range(BOOTSTRAP_RESAMPLES):
        # Resample heads, not pairs: the pairs of one head are dependent.
        drawn = np.bincount(rng.integers(0, num_heads, num_heads), minlength=num_heads)
        weight = drawn[head_of]
        seen, good = np.cumsum(weight)[where], np.cumsum(weight[where])
        values.append((weight[where] * good / np.maximum(seen, 1)).sum() / max(1, drawn @ triples_of_head))
    low, high = np.quantile(values, [0.025, 0.975])
    return Estimate(value, min(value, float(low)), max(value, float(high)), total, "bootstrap over heads")
