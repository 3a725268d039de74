"""The honest attack: no linked pair is given, the adversary ranks all pairs of a sample of heads and claims the best.

Source: ours; the papers give the linked pairs away. The baselines here know no names beyond those that the attack guessed
or read, and take pairs in random order: they say what chance gives, not what a reader of names could do.
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
        precision: right claims among those the adversary makes (as many as the colluder's density suggests).
        recall: those, over the victim's training triples with a sampled head.
        average_precision: over the whole ranking, unreachable triples counted as missed.
        *_baseline: expectation of the same claims in random order with the majority relation.
        num_heads, num_pairs: sampled heads and the candidate pairs they give.
        inference: how a pair's relation is inferred and its score made: "score" by
            `fkgsec.attacks.reconstruction.inference.rank_pairs`, "learned" by `fkgsec.attacks.uploads.links`; or which of them
            has the best average precision, where each figure is that of the strongest.
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
    """The rows of a victim whose pairs are ranked, int64, ascending; all where it has no more."""
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
        train: int64 `[n, 3]` true triples in the victim's rows; relations: true names of its relations `[m]`.
        entity_right: bool `[rows]`, whether each row was named right; chance: that of a random name, float `[rows]`.
        rng: of the bootstrap. inference: that ranked them.
    """
    count, heads = len(entity_right), ranking.heads
    place = np.full(count, -1)
    place[heads] = np.arange(len(heads))
    pairs_of_heads = np.unique(train[place[train[:, 0]] >= 0], axis=0)
    total = len(pairs_of_heads)
    rows, columns = place[pairs_of_heads[:, 0]], pairs_of_heads[:, 2]
    matches = ranking.relations[rows, columns] == relations[pairs_of_heads[:, 1]]
    right = np.zeros(
        ranking.scores.shape, dtype=bool
    )  # whether a pair, with its guessed relation and names, is a triple
    right[rows[matches], columns[matches]] = True
    right &= entity_right[heads][:, None] & entity_right[None, :]
    finite = np.isfinite(ranking.scores)
    order = np.argsort(-ranking.scores[finite], kind="stable")
    hits = right[finite][order]
    head_of = np.nonzero(finite)[0][order]
    claims = expected_pairs(colluder, len(hits))
    num_right = int(hits[:claims].sum())
    # In random order with the majority relation: how many candidate pairs such an adversary would have right.
    majority = pairs_of_heads[relations[pairs_of_heads[:, 1]] == colluder.majority_relation][:, [0, 2]]
    majority = majority[finite[place[majority[:, 0]], majority[:, 1]]]  # of the pairs that can be claimed at all
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
    """Rank `num_candidates` pairs in random order, of which `pairs` `[k, 2]` are right when both their names are.

    Returns: the expected number that is right, and the expected sum over these of the precision down to their rank.

    Each row's name is drawn once, with the same `chance` or none, so two pairs that share rows are not independent.
    """
    pairs = pairs[chance[pairs].all(axis=1)]
    if not len(pairs):
        return 0.0, 0.0
    row_chance = float(chance[pairs[0, 0]])
    degree = np.bincount(pairs.ravel())
    codes = pairs[:, 0] * len(degree) + pairs[:, 1]
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
    """Average precision of a ranking, with a bootstrap over heads (whole heads drawn with replacement).

    Args:
        hits: bool `[n]` in the order of the ranking; head_of: place of the head `[n]` among the sampled ones.
        triples_of_head: triples to be found `[heads]`, whether or not a pair of the ranking reaches them.
    """
    where, total, num_heads = np.nonzero(hits)[0], int(triples_of_head.sum()), len(triples_of_head)
    if not len(where):
        return Estimate(0.0, 0.0, 3 / max(3, total), total, "rule of three")
    value = float((np.arange(1, len(where) + 1) / (where + 1)).sum() / total)
    values = []
    for _ in range(BOOTSTRAP_RESAMPLES):
        drawn = np.bincount(rng.integers(0, num_heads, num_heads), minlength=num_heads)
        weight = drawn[head_of]
        seen, good = np.cumsum(weight)[where], np.cumsum(weight[where])
        values.append((weight[where] * good / np.maximum(seen, 1)).sum() / max(1, drawn @ triples_of_head))
    low, high = np.quantile(values, [0.025, 0.975])
    return Estimate(value, min(value, float(low)), max(value, float(high)), total, "bootstrap over heads")
