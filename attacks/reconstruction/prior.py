"""Relations guessed from names alone: what an adversary without any embedding infers from the colluder's triples.

    names = fit_names(view.colluder)
    guesses = names.predict(heads, tails)        # names [P]
    weights = names.log_posterior(heads, tails)  # float32 [P, R]

Naive Bayes: log-frequency of the relation, plus the log-likelihoods of the head's and of the tail's name. A name that the
colluder does not know contributes nothing. The smoothing of the counts maximizes the likelihood of the colluder's triples, each
left out of the counts; nothing of a victim is used.

Source: ours. The majority relation of FedR's setting ignores that an adversary who reads names knows, from the colluder, in
which relations they occur. A leak must beat this baseline, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from fkgsec.attacks.kge.view import ColluderKnowledge

# Candidate pseudo-counts, added to every count.
SMOOTHINGS = (1.0, 0.3, 0.1, 0.03, 0.01)
TRIPLES_AT_ONCE = 16_384
# Columns of head and tail.
ENDS = (0, 2)


@dataclass(frozen=True, eq=False)
class NamePosterior:
    """A fitted naive Bayes classifier of pairs of names.

    Legend: `n` names, `R` relations, `P` pairs.

    Attributes:
        names: sorted, `[n]`.
        relation_names: object `[R]`.
        log_frequency: float32 `[R]`.
        log_likelihood: of a head's name and of a tail's, float32 `[n, R]` each, in the order of `names`.
        smoothing: chosen pseudo-count.
    """

    names: np.ndarray
    relation_names: np.ndarray
    log_frequency: np.ndarray
    log_likelihood: tuple[np.ndarray, np.ndarray]
    smoothing: float

    def log_posterior(self, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
        """Return the log-probability of each relation for pairs of names, float32 `[P, R]`.

        Args:
            heads: names `[P]`.
            tails: names `[P]`.
        """
        return log_softmax(self._scores(heads, tails), axis=1)

    def predict(self, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
        """Return the most probable relation name for each pair of names, `[P]`.

        Args:
            heads: names `[P]`.
            tails: names `[P]`.
        """
        best = np.zeros(len(heads), dtype=np.int64)
        for start in range(0, len(heads), TRIPLES_AT_ONCE):
            block = slice(start, start + TRIPLES_AT_ONCE)
            best[block] = self._scores(heads[block], tails[block]).argmax(axis=1)
        return self.relation_names[best]

    def _scores(self, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
        scores = np.tile(self.log_frequency, (len(heads), 1))
        for names, likelihood in zip((heads, tails), self.log_likelihood, strict=True):
            place = np.minimum(np.searchsorted(self.names, names), len(self.names) - 1)
            # Names unknown to the colluder contribute nothing.
            is_named = self.names[place] == names
            scores[is_named] += likelihood[place[is_named]]
        return scores


def fit_names(colluder: ColluderKnowledge) -> NamePosterior:
    """Count in which relations each name of the colluder's triples occurs, and choose the smoothing.

    Args:
        colluder: knowledge of the colluder.
    """
    counts = _Counts(colluder)
    smoothing = max(SMOOTHINGS, key=counts.left_out_likelihood)
    # Sorted names allow a binary search for unknown names.
    order = np.argsort(colluder.entity_names)
    head, tail = (counts.log_likelihood(end, smoothing)[order] for end in ENDS)
    frequency = np.log(counts.frequency).astype(np.float32)
    return NamePosterior(colluder.entity_names[order], colluder.relation_names, frequency, (head, tail), smoothing)


class _Counts:
    """Frequency of each relation `[R]`, and of each with each head and each tail `[n, R]`."""

    def __init__(self, colluder: ColluderKnowledge) -> None:
        self.triples = colluder.triples
        num_names, num_relations = len(colluder.entity_names), len(colluder.relation_names)
        self.frequency = np.bincount(self.triples[:, 1], minlength=num_relations)
        self.with_name: dict[int, np.ndarray] = {}
        for end in ENDS:
            named = self.triples[self.triples[:, end] >= 0]
            self.with_name[end] = np.zeros((num_names, num_relations), dtype=np.float32)
            np.add.at(self.with_name[end], (named[:, end], named[:, 1]), 1)

    def log_likelihood(self, end: int, smoothing: float) -> np.ndarray:
        """Return the smoothed log-likelihood of each name given each relation, float32 `[n, R]`."""
        counts = self.with_name[end]
        return np.log((counts + smoothing) / (counts.sum(axis=0) + smoothing * len(counts))).astype(np.float32)

    def left_out_likelihood(self, smoothing: float) -> float:
        """Return the mean leave-one-out log-posterior of triples' true relations; only relations that occur more than once."""
        likelihood = {end: self.log_likelihood(end, smoothing) for end in ENDS}
        total = {end: self.with_name[end].sum(axis=0) for end in ENDS}
        log_frequency = np.log(self.frequency)
        triples = self.triples[self.frequency[self.triples[:, 1]] > 1]
        total_likelihood = 0.0
        for start in range(0, len(triples), TRIPLES_AT_ONCE):
            block = triples[start : start + TRIPLES_AT_ONCE]
            rows, relations = np.arange(len(block)), block[:, 1]
            scores = np.tile(log_frequency, (len(block), 1))
            # Leave-one-out: subtract the triple itself from the counts of its true relation.
            own_frequency = np.log(self.frequency[relations] - 1)
            for end in ENDS:
                is_known = block[:, end] >= 0
                names, true = block[is_known, end], relations[is_known]
                scores[is_known] += likelihood[end][names]
                counts = self.with_name[end]
                own_frequency[is_known] += np.log(
                    (counts[names, true] - 1 + smoothing) / (total[end][true] - 1 + smoothing * len(counts))
                )
            scores[rows, relations] = own_frequency
            total_likelihood += float(log_softmax(scores, axis=1)[rows, relations].sum())
        return total_likelihood / max(1, len(triples))
