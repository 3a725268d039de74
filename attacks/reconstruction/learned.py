"""Learned relations: a linear classifier trained on the colluder's data, applied to linked pairs of the victim's rows.

    learner = learn_relations(view.model, view.colluder, seed=0)
    names = learner.predict(heads, tails)            # relation names [P] for the victim's rows [P, W]
    weights = learner.log_posterior(heads, tails)    # float32 [P, m], to be combined with other evidence

FedE does not share relations, so the colluder's relation rows need not fit the geometry of the victim's entities. A comparison
with them (`fkgsec.attacks.reconstruction.inference.infer_relations`) therefore understates the leak. Entity rows are shared:
the relation of a pair can be learned from the pairs whose relation the colluder knows.

Required knowledge: the colluder's triples with both ends leaked, and its rows of these. Nothing else of the view is used.
Source: ours. Softmax regression on h, t, their product and `KgeModel.best_relation`, standardized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from fkgsec.attacks.kge.view import ColluderKnowledge
from fkgsec.attacks.reconstruction.mlp import PerceptronEnsemble
from fkgsec.kge.models import KgeModel
from fkgsec.randomness import generator

# scikit-learn takes a second to import, which every command would pay.
if TYPE_CHECKING:
    from sklearn.preprocessing import StandardScaler

# Larger training sets are subsampled.
MAX_TRIPLES = 20_000
# Bound on triples seen in all passes, so that the time does not grow with the data.
MAX_SEEN = 200_000
MOST_PASSES, LEAST_PASSES = 40, 10
BATCH_SIZE = 200
# Penalty on squared weights, relative to the sum of all triples' losses.
L2 = 30.0
LEARNING_RATE, MEAN_DECAY, SQUARE_DECAY, ADAM_EPSILON = 3e-3, 0.9, 0.999, 1e-8
PAIRS_AT_ONCE = 16_384
# A float32 probability can round to 0, whose logarithm is infinite.
SMALLEST = 1e-30
Way = Literal["learned", "mlp"]


@dataclass(frozen=True, eq=False)
class SoftmaxRegression:
    """A linear classifier; for two classes the logistic regression of the second.

    Attributes:
        classes: labels `[C]`, ascending.
        weights: float32 `[F, C]`, or `[F, 1]` for two classes.
        bias: float32 `[C]`, or `[1]`.
    """

    classes: np.ndarray
    weights: np.ndarray
    bias: np.ndarray

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return the probability of each class for features `[P, F]`, float32 `[P, C]`."""
        outputs = self._outputs(features)
        return np.hstack([1 - outputs, outputs]) if len(self.classes) == 2 else outputs

    def _outputs(self, features: np.ndarray) -> np.ndarray:
        scores = features @ self.weights
        scores += self.bias
        if len(self.classes) == 2:
            return expit(scores)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    @classmethod
    def fit(cls, features: np.ndarray, labels: np.ndarray, *, num_passes: int, seed: int) -> SoftmaxRegression:
        """Train by Adam.

        The result equals that of scikit-learn's `MLPClassifier.partial_fit` without a hidden layer. That one checks its input
        in every pass, and takes ten times as long.

        Args:
            features: float32 `[P, F]`.
            labels: int `[P]`.
            num_passes: passes over the triples.
            seed: seed of the initial weights and of the order.
        """
        count, batch_size = len(labels), min(BATCH_SIZE, len(labels))
        classes, targets = np.unique(labels, return_inverse=True)
        truth = targets[:, None] == (np.arange(len(classes)) if len(classes) > 2 else [1])
        shape = features.shape[1], truth.shape[1]
        # Glorot's uniform initialization.
        bound = np.sqrt(6 / sum(shape))
        rng = np.random.RandomState(seed)
        parameters = [rng.uniform(-bound, bound, size).astype(np.float32) for size in (shape, shape[1])]
        learned = cls(classes, *parameters)
        means, squares = ([np.zeros_like(parameter) for parameter in parameters] for _ in range(2))
        step = 0
        for _ in range(num_passes):
            order = rng.permutation(count)
            # scikit-learn restarts its generator, so that every later pass has the same order; reproduce it.
            rng = np.random.RandomState(seed)
            for start in range(0, count, batch_size):
                rows = order[start : start + batch_size]
                batch = features[rows]
                error = learned._outputs(batch) - truth[rows]
                slope = batch.T @ error
                slope += L2 * batch_size / count * learned.weights
                slope /= len(rows)
                step += 1
                # Adam's bias correction: sqrt(1 - beta2^t) / (1 - beta1^t).
                rate = LEARNING_RATE * np.sqrt(1 - SQUARE_DECAY**step) / (1 - MEAN_DECAY**step)
                gradients = (slope, error.sum(axis=0) / len(rows))
                for parameter, mean, square, gradient in zip(parameters, means, squares, gradients, strict=True):
                    mean *= MEAN_DECAY
                    mean += (1 - MEAN_DECAY) * gradient
                    square *= SQUARE_DECAY
                    square += (1 - SQUARE_DECAY) * gradient**2
                    parameter -= rate * mean / (np.sqrt(square) + ADAM_EPSILON)
        return learned


@dataclass(frozen=True, eq=False)
class RelationLearner:
    """A trained classifier of pairs, or a constant guess.

    Attributes:
        model: scoring function.
        relation_names: names of the classes, object `[m]`.
        scaler, classifier: None if nothing could be learned.
        constant: class of every pair if nothing could be learned.
        num_triples: number of training triples.
        note: why nothing was learned, or the size of the subsample; None if all triples were used.
        scored: relation rows whose scores are features of the classifier, `[R, V]`; None for no such features.
    """

    model: KgeModel
    relation_names: np.ndarray
    scaler: StandardScaler | None
    classifier: SoftmaxRegression | PerceptronEnsemble | None
    constant: int
    num_triples: int
    note: str | None
    scored: Tensor | None = None

    def log_posterior(self, heads: Tensor, tails: Tensor) -> np.ndarray:
        """Return the log-probability of each relation for pairs of entity rows, float32 `[P, m]`.

        All values are zero if nothing was learned. A relation without a triple between leaked entities has the probability of a
        single triple.

        Args:
            heads: float `[P, W]`.
            tails: float `[P, W]`.
        """
        if self.classifier is None or self.scaler is None:
            return np.zeros((len(heads), len(self.relation_names)), dtype=np.float32)
        absent = -np.log(self.num_triples + len(self.relation_names))
        posterior = np.full((len(heads), len(self.relation_names)), absent, dtype=np.float32)
        for start in range(0, len(heads), PAIRS_AT_ONCE):
            block = slice(start, start + PAIRS_AT_ONCE)
            features = self.scaler.transform(pair_features(self.model, heads[block], tails[block], self.scored))
            probability = self.classifier.probabilities(np.asarray(features))
            posterior[block, self.classifier.classes] = np.log(np.maximum(probability, SMALLEST))
        return posterior

    def predict(self, heads: Tensor, tails: Tensor) -> np.ndarray:
        """Return the most probable relation name of each pair of entity rows `[P, W]`, names `[P]`."""
        if self.classifier is None:
            return np.full(len(heads), self.relation_names[self.constant], dtype=object)
        return self.relation_names[self.log_posterior(heads, tails).argmax(axis=1)]


def pair_features(model: KgeModel, heads: Tensor, tails: Tensor, scored: Tensor | None = None) -> np.ndarray:
    """Build the features of pairs: h, t, their componentwise product, and the relation vector that fits the pair best.

    Args:
        heads: float `[P, W]`.
        tails: float `[P, W]`.
        scored: relation rows whose scores are appended, `[R, V]`; None: none.

    Returns:
        float32 `[P, 4 W]`, or `[P, 4 W + R]` with scores.
    """
    parts = [heads, tails, heads * tails, model.best_relation(heads, tails)]
    if scored is not None:
        parts.append(model.score_relations(heads, tails, scored))
    return torch.cat(parts, dim=1).float().numpy()


def learn_relations(model: KgeModel, colluder: ColluderKnowledge, seed: int, way: Way = "learned") -> RelationLearner:
    """Train on the colluder's triples that have both ends among its leaked entities.

    Without two different relations among these triples nothing can be learned. Every pair then gets the colluder's most
    frequent relation.

    Args:
        seed: seed of the subsample, the initial weights and the order of batches.
        way: "learned", softmax regression; "mlp", the perceptrons of `fkgsec.attacks.reconstruction.mlp`.
    """
    triples = colluder.triples[(colluder.triples[:, [0, 2]] >= 0).all(axis=1)]
    majority = int(np.bincount(colluder.triples[:, 1], minlength=len(colluder.relation_names)).argmax())
    if len(np.unique(triples[:, 1])) < 2:
        number = "one relation" if len(triples) else "no triple"
        note = f"the colluder knows {number} between leaked entities, so that nothing was learnt and the majority relation taken"
        return RelationLearner(model, colluder.relation_names, None, None, majority, 0, note)
    from sklearn.preprocessing import StandardScaler

    rng, note = generator(seed, "learned relations"), None
    if len(triples) > MAX_TRIPLES:
        note = f"learnt from {MAX_TRIPLES:,} of the colluder's {len(triples):,} triples between leaked entities"
        triples = triples[np.sort(rng.choice(len(triples), MAX_TRIPLES, replace=False))]
    heads, tails = (colluder.entities[torch.from_numpy(triples[:, column])] for column in (0, 2))
    scored = colluder.relations if way == "mlp" else None
    features, labels = pair_features(model, heads, tails, scored), triples[:, 1]
    scaler = StandardScaler().fit(features)
    inputs, classifier_seed = np.asarray(scaler.transform(features)), int(rng.integers(2**31))
    if way == "mlp":
        classifier = PerceptronEnsemble.fit(inputs, labels, seed=classifier_seed)
    else:
        num_passes = int(np.clip(MAX_SEEN // len(labels), LEAST_PASSES, MOST_PASSES))
        classifier = SoftmaxRegression.fit(inputs, labels, num_passes=num_passes, seed=classifier_seed)
    return RelationLearner(model, colluder.relation_names, scaler, classifier, majority, len(labels), note, scored)
