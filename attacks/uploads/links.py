"""Classifier of linked pairs of rows: a logistic regression trained on the pairs for which the colluder knows the answer.

    learner = learn_links(view.model, view.colluder, relations, seed=0)      # `relations`: a `RelationLearner`
    if learner:
        ranking = learner.rank(victim.entities, heads)                       # `PairRanking` of the victim's rows

A comparison with the colluder's relation rows (`fkgsec.attacks.reconstruction.inference.rank_pairs`) only measures how well
some relation fits a pair. This classifier also learns what separates linked pairs from others: how near the two rows are
compared with other rows, how well each known relation fits, and which relation the rows suggest. A pair's score is log
p(linked) + log p(relation | linked) of its most probable relation, so that pairs with a clear relation come first.

Required knowledge: the colluder's triples with both ends leaked, and its rows of these. Nothing else of the view is used.
Source: ours. Links learned from known ones: He et al. 2021, "Stealing Links from Graph Neural Networks" (attack 3, partial
graph).

Legend: `n` rows, `H` heads, `P` pairs, `W` width, `R` relations that the adversary knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.kge.view import ColluderKnowledge
from fkgsec.attacks.reconstruction.inference import PairRanking
from fkgsec.attacks.reconstruction.learned import RelationLearner, pair_features
from fkgsec.attacks.uploads.pairs import closeness, standardised
from fkgsec.kge.models import KgeModel
from fkgsec.randomness import generator

# scikit-learn takes a second to import, which every command would pay.
if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

UNLINKED_PER_LINKED = 5
# Larger sets of linked pairs are subsampled.
MAX_LINKED = 4_000
# Entities whose pairs are used for training, which bounds the matrix of distances.
MAX_HEADS = 1_000
# scikit-learn's C.
INVERSE_L2 = 0.01
PAIRS_AT_ONCE = 16_384


@dataclass(frozen=True, eq=False)
class LinkLearner:
    """A trained classifier of pairs."""

    model: KgeModel
    colluder: ColluderKnowledge
    relations: RelationLearner
    scaler: StandardScaler
    classifier: LogisticRegression

    def rank(self, rows: Tensor, heads: np.ndarray) -> PairRanking:
        """Score every pair of a head row and any row; a pair of a row with itself or with a row of NaN gets -inf.

        Args:
            rows: float `[n, W]`.
            heads: indices of the rows to use as heads, int64 `[H]`.
        """
        seen = np.flatnonzero(~rows.isnan().any(dim=1).numpy())
        places = np.flatnonzero(np.isin(heads, seen))
        scores = np.full((len(heads), len(rows)), -np.inf)
        best = np.zeros((len(heads), len(rows)), dtype=np.int64)
        if len(places):
            embeddings, among = rows[torch.from_numpy(seen)].float(), np.searchsorted(seen, heads[places])
            near = standardised(closeness(self.model, embeddings[torch.from_numpy(among)], embeddings), among)
            # Features of all pairs of a large victim would not fit into memory.
            step = max(1, PAIRS_AT_ONCE // len(seen))
            for start in range(0, len(places), step):
                block = slice(start, start + step)
                first, second = np.repeat(among[block], len(seen)), np.tile(np.arange(len(seen)), len(among[block]))
                linked, kind = self._score(embeddings, first, second, near[block].ravel())
                shape, where = (-1, len(seen)), np.ix_(places[block], seen)
                scores[where], best[where] = linked.reshape(shape), kind.reshape(shape)
        scores[np.arange(len(heads)), heads] = -np.inf
        return PairRanking(heads, scores, self.colluder.relation_names[best])

    def _score(
        self, rows: Tensor, first: np.ndarray, second: np.ndarray, near: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Score pairs of these rows, `[P]`, and return the index of the most probable relation, `[P]`."""
        heads, tails = rows[torch.from_numpy(first)], rows[torch.from_numpy(second)]
        posterior = self.relations.log_posterior(heads, tails)
        features = link_features(self.model, self.colluder.relations, heads, tails, near, posterior)
        # scikit-learn's own log of a probability is -inf for every pair that is far enough from linked, all of them alike
        odds = self.classifier.decision_function(self.scaler.transform(features)).astype(np.float64)
        # log p(linked) + max over relations of log p(relation | linked), with log p = -log(1 + exp(-odds)).
        return posterior.max(axis=1) - np.logaddexp(0.0, -odds), posterior.argmax(axis=1)


def link_features(
    model: KgeModel, relations: Tensor, heads: Tensor, tails: Tensor, near: np.ndarray, posterior: np.ndarray
) -> np.ndarray:
    """Build the features of pairs of rows.

    Args:
        relations: relation rows that the adversary knows, `[R, V]`.
        heads: float `[P, W]`.
        tails: float `[P, W]`.
        near: standardized closeness, `[P]`.
        posterior: log-probability of each relation if the pair is linked, `[P, R]`.

    Returns:
        float32 `[P, 4 W + R + 5]`.
    """
    # Fit of each known relation, and how clear the best one is.
    scores = model.score_relations(heads, tails, relations)
    likely = torch.from_numpy(posterior)
    summary = [
        scores.amax(dim=1),
        scores.logsumexp(dim=1),
        torch.from_numpy(near),
        likely.amax(dim=1),
        (scores * likely.exp()).sum(dim=1),
    ]
    parts = [pair_features(model, heads, tails), scores.float().numpy(), torch.stack(summary, dim=1).float().numpy()]
    return np.concatenate(parts, axis=1)


def learn_links(
    model: KgeModel, colluder: ColluderKnowledge, relations: RelationLearner, seed: int
) -> LinkLearner | None:
    """Train on the colluder's linked pairs of leaked entities, and on a multiple of unlinked pairs.

    Args:
        relations: relation classifier trained on the same triples.
        seed: seed for the training entities and pairs.

    Returns:
        None if no relation could be learned, or linked or unlinked pairs are missing.
    """
    if relations.classifier is None:
        return None
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    rng, count = generator(seed, "learned links"), len(colluder.entity_names)
    heads = np.sort(rng.permutation(count)[:MAX_HEADS])
    ends = colluder.triples[:, [0, 2]]
    ends = np.unique(ends[(ends >= 0).all(axis=1) & np.isin(ends[:, 0], heads) & (ends[:, 0] != ends[:, 1])], axis=0)
    place = np.searchsorted(heads, ends[:, 0])
    others = np.ones((len(heads), count), dtype=bool)
    # Neither linked pairs nor pairs of a row with itself are negatives.
    others[place, ends[:, 1]] = others[np.arange(len(heads)), heads] = False
    linked = np.stack([place, ends[:, 1]], axis=1)[rng.permutation(len(ends))[:MAX_LINKED]]
    unlinked = rng.permutation(np.flatnonzero(others))[: UNLINKED_PER_LINKED * len(linked)]
    if not (len(linked) and len(unlinked)):
        return None
    pairs = np.concatenate([linked, np.stack(np.divmod(unlinked, count), axis=1)])
    rows = colluder.entities.float()
    near = standardised(closeness(model, rows[torch.from_numpy(heads)], rows), heads)[pairs[:, 0], pairs[:, 1]]
    first, second = rows[torch.from_numpy(heads[pairs[:, 0]])], rows[torch.from_numpy(pairs[:, 1].copy())]
    posterior = relations.log_posterior(first, second)
    features = link_features(model, colluder.relations, first, second, near, posterior)
    scaler = StandardScaler().fit(features)
    classifier = LogisticRegression(C=INVERSE_L2, max_iter=200)
    classifier.fit(scaler.transform(features), np.arange(len(pairs)) < len(linked))
    return LinkLearner(model, colluder, relations, scaler, classifier)
