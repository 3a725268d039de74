"""Nonlinear relation classifier: a multilayer perceptron on pairs of rows, trained on the colluder's data.

    learner = learn_relations(view.model, view.colluder, seed=0, way="mlp")
    names = learner.predict(heads, tails)            # relation names [P] for the victim's rows [P, W]

A linear classifier (`fkgsec.attacks.reconstruction.learned`) cannot combine the scores of several relations. The perceptron
reads the same features and the score of every relation that the colluder knows. Training stops when the loss on a tenth of the
colluder's triples no longer decreases. The result is the mean probability of `NUM_NETWORKS` networks with different initial
weights.

Required knowledge: as for `fkgsec.attacks.reconstruction.learned`, and the colluder's relation rows.
Source: ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

NUM_NETWORKS = 3
HIDDEN_UNITS = 128
# Probability that training ignores a hidden unit.
DROPOUT = 0.3
LEARNING_RATE, WEIGHT_DECAY = 2e-3, 1e-3
BATCH_SIZE = 128
VALIDATION_SHARE = 0.1
# Bound on optimizer steps, so that the time does not grow with the data.
MOST_STEPS = 3_000
# Largest number of passes over the triples, and number of passes without a lower validation loss before training stops.
MOST_PASSES, PATIENCE = 60, 6


@dataclass(frozen=True, eq=False)
class Perceptron:
    """A network with one hidden layer: weights `[F, U]` and `[U, C]`, biases `[U]` and `[C]`."""

    parameters: tuple[Tensor, Tensor, Tensor, Tensor]

    @classmethod
    def draw(cls, num_features: int, num_classes: int, rng: torch.Generator) -> Perceptron:
        """Draw weights by Glorot's uniform initialization; biases are zero.

        Args:
            num_features: number of inputs.
            num_classes: number of outputs.
        """

        def layer(num_inputs: int, num_outputs: int) -> tuple[Tensor, Tensor]:
            """Draw one layer."""
            bound = (6 / (num_inputs + num_outputs)) ** 0.5
            weights = bound * (2 * torch.rand(num_inputs, num_outputs, generator=rng) - 1)
            return weights.requires_grad_(), torch.zeros(num_outputs, requires_grad=True)

        return cls((*layer(num_features, HIDDEN_UNITS), *layer(HIDDEN_UNITS, num_classes)))

    def logits(self, inputs: Tensor, dropout: torch.Generator | None = None) -> Tensor:
        """Compute the logits `[P, C]`.

        Args:
            inputs: float32 `[P, F]`.
            dropout: generator that drops hidden units in training; None: no dropout.
        """
        weights, bias, output_weights, output_bias = self.parameters
        hidden = functional.relu(inputs @ weights + bias)
        if dropout is not None:
            hidden = hidden * (torch.rand(hidden.shape, generator=dropout) >= DROPOUT) / (1 - DROPOUT)
        return hidden @ output_weights + output_bias


@dataclass(frozen=True, eq=False)
class PerceptronEnsemble:
    """Classifiers whose probabilities are averaged.

    Attributes:
        classes: labels `[C]`, ascending.
        networks: trained networks.
    """

    classes: np.ndarray
    networks: tuple[Perceptron, ...]

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return the mean probability of each class for features `[P, F]`, float32 `[P, C]`."""
        inputs = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
        with torch.no_grad():
            return torch.stack([network.logits(inputs).softmax(dim=1) for network in self.networks]).mean(dim=0).numpy()

    @classmethod
    def fit(cls, features: np.ndarray, labels: np.ndarray, *, seed: int) -> PerceptronEnsemble:
        """Train the networks.

        Args:
            features: float32 `[P, F]`.
            labels: int `[P]`, with at least two classes.
            seed: seed of the split, the initial weights, the order of batches and dropped units.
        """
        classes, targets = np.unique(labels, return_inverse=True)
        inputs = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
        rng = torch.Generator().manual_seed(seed)
        networks = (_train(inputs, torch.from_numpy(targets), len(classes), rng) for _ in range(NUM_NETWORKS))
        return cls(classes, tuple(networks))


def _train(inputs: Tensor, targets: Tensor, num_classes: int, rng: torch.Generator) -> Perceptron:
    """Train one network. The result has the weights of the pass with the lowest validation loss."""
    order = torch.randperm(len(targets), generator=rng)
    num_validation = max(1, round(VALIDATION_SHARE * len(order)))
    validation, train = order[:num_validation], order[num_validation:]
    network = Perceptron.draw(inputs.shape[1], num_classes, rng)
    optimizer = torch.optim.AdamW(network.parameters, LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    best, least, passes_since = network, float("inf"), 0
    num_batches = -(-len(train) // BATCH_SIZE)
    for _ in range(min(MOST_PASSES, max(1, MOST_STEPS // num_batches))):
        for batch in train[torch.randperm(len(train), generator=rng)].split(BATCH_SIZE):
            optimizer.zero_grad()
            functional.cross_entropy(network.logits(inputs[batch], dropout=rng), targets[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = float(functional.cross_entropy(network.logits(inputs[validation]), targets[validation]))
        passes_since += 1
        if loss < least:
            weights, bias, output_weights, output_bias = (part.detach().clone() for part in network.parameters)
            best, least, passes_since = Perceptron((weights, bias, output_weights, output_bias)), loss, 0
        # Early stopping; the best weights were stored.
        if passes_since == PATIENCE:
            break
    return best
