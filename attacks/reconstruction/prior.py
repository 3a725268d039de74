"""Relations guessed from names alone: what an adversary without any embedding makes of the colluder's triples.

    names = fit_names(view.colluder)
    guesses = names.predict(heads, tails)        # names [P]
    weights = names.log_posterior(heads, tails)  # float32 [P, R]

Naive Bayes: log frequency of the relation, plus the log-likelihood of the head's name and that of the tail's. A name that the
colluder does not know says nothing. The smoothing of the counts is the one under which the colluder's own triples are most
likely when each is left out of the counts; nothing of a victim is used.

Source: ours. The majority relation of FedR's setting ignores that an adversary who can read names knows, from the colluder,
which relations they stand in; a leakage figure has to beat this one too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from fkgsec.attacks.kge.view import ColluderKnowledge

SMOOTHINGS = (1.0, 0.3, 0.1, 0.03, 0.01)  # added to every count
TRIPLES_AT_ONCE = 16_384
ENDS = (0, 2)  # columns of head and tail


@dataclass(frozen=True, eq=False)
class NamePosterior:
    """A fitted naive Bayes classifier of pairs of names.

    Legend: `n` names, `R` relations, `P` pairs.

    Attributes:
        names `[n]`: sorted. relation_names `[R]`. log_frequency: float32 `[R]`.
        log_likelihood: float32 `[n, R]` of a head's name and of a tail's, in the order of `names`.
        smoothing: that was chosen.
    """

    names: np.ndarray
    relation_names: np.ndarray
    log_frequency: np.ndarray
    log_likelihood: tuple[np.ndarray, np.ndarray]
    smoothing: float

    def log_posterior(self, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
        """Log-probability of each relation for each pair of names: float32 `[P, R]`, each row's exponentials sum to 1."""
        return log_softmax(self._scores(heads, tails), axis=1)

    def predict(self, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
        """The most probable relation's name for each pair of names `[P]`."""
        best = np.zeros(len(heads), dtype=np.int64)
        for start in range(0, len(heads), TRIPLES_AT_ONCE):
            block = slice(start, start + TRIPLES_AT_ONCE)
            best[block] = self._scores(heads[block], tails[block]).argmax(axis=1)
        return self.relation_names[best]

    def _scores(self, heads: np.ndarray, tails: np.ndarray) -> np.ndarray:
        scores = np.tile(self.log_frequency, (len(heads), 1))
        for names, likelihood in zip((heads, tails), self.log_likelihood, strict=True):
            place = np.minimum(np.searchsorted(self.names, names), len(self.names) - 1)
            is_named = self.names[place] == names
            scores[is_named] += likelihood[place[is_named]]
        return scores


def fit_names(colluder: ColluderKnowledge) -> NamePosterior:
    """Count in which relations each name of the colluder's triples stands, and choose the smoothing."""
    counts = _Counts(colluder)
    smoothing = max(SMOOTHINGS, key=counts.left_out_likelihood)
    order = np.argsort(colluder.entity_names)
    head, tail = (counts.log_likelihood(end, smoothing)[order] for end in ENDS)
    frequency = np.log(counts.frequency).astype(np.float32)
    return NamePosterior(colluder.entity_names[order], colluder.relation_names, frequency, (head, tail), smoothing)


class _Counts:
    """Counts of each relation `[R]`, and of each with each head and each tail `[n, R]`."""

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
        counts = self.with_name[end]
        return np.log((counts + smoothing) / (counts.sum(axis=0) + smoothing * len(counts))).astype(np.float32)

    def left_out_likelihood(self, smoothing: float) -> float:
        """Mean log-posterior of the true relation of the triples, each left out of the counts; of relations that occur again."""
        likelihood = {end: self.log_likelihood(end, smoothing) for end in ENDS}
        total = {end: self.with_name[end].sum(axis=0) for end in ENDS}
        log_frequency = np.log(self.frequency)
        triples = self.triples[self.frequency[self.triples[:, 1]] > 1]
        total_likelihood = 0.0
        for start in range(0, len(triples), TRIPLES_AT_ONCE):
            block = triples[start : start + TRIPLES_AT_ONCE]
            rows, relations = np.arange(len(block)), block[:, 1]
            scores = np.tile(log_frequency, (len(block), 1))
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
