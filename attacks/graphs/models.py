"""Classifiers that an adversary has and can apply to any graph.

model = GraphModel(settings, parameters)
model.losses(graphs)                             # float64 [n], of each graph's class
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fkgsec.attacks.laboratory import PublicSettings
from fkgsec.federation.options import replace
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.training import ClientTrainer, GraphRule
from fkgsec.graphs.sets import ClientGraphs, GraphSet

# For layers that an adversary trains itself, on few graphs with one or two batches per epoch.
LAYER_EPOCHS, LAYER_RATE = (
    100,
    0.005,
)


@dataclass(frozen=True, eq=False)
class GraphModel:
    """A whole classifier: parameters by name, shared and private ones."""

    settings: PublicSettings
    parameters: Mapping[str, Tensor]

    def probabilities(self, graphs: GraphSet) -> np.ndarray:
        """Return the probability of each class, for graphs of the data set that it was trained on, float64 `[n, C]`."""
        # The initial values are replaced by the parameters.
        trainer = adversary_client(self.settings, graphs, seed=0)
        return trainer.classify(trainer.client.train, self.parameters).values

    def losses(self, graphs: GraphSet) -> np.ndarray:
        """Return the cross-entropy of each graph's class, float64 `[n]`."""
        return -np.log(np.maximum(self._of_classes(graphs), np.finfo(np.float64).tiny))

    def logits(self, graphs: GraphSet) -> np.ndarray:
        """Return the logit of the probability of each graph's class, float64 `[n]`; LiRA assumes that these are normal."""
        right = np.clip(self._of_classes(graphs), 1e-15, 1 - 1e-15)
        return np.log(right) - np.log1p(-right)

    def alignment(self, graphs: GraphSet, direction: Mapping[str, Tensor]) -> np.ndarray:
        """Return the cosine of the gradient of each graph's loss to a direction, float64 `[n]`.

        Args:
            graphs: graphs of the data set that the model was trained on.
            direction: direction of some parameters, by name.
        """
        trainer = adversary_client(self.settings, graphs, seed=0)
        parameters = dict(trainer.model.named_parameters())
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(self.parameters[name])
        towards = torch.cat([direction[name].flatten() for name in direction]).double()
        cosines = np.zeros(len(graphs))
        for number in range(len(graphs)):
            batch = Batch.of(trainer.client.graphs.subset([number]))
            loss = functional.cross_entropy(trainer.model(batch), batch.classes)
            # One graph at a time: per-example gradients.
            gradients = torch.autograd.grad(loss, [parameters[name] for name in direction], materialize_grads=True)
            gradient = torch.cat([part.flatten() for part in gradients]).double()
            cosines[number] = float(functional.cosine_similarity(gradient, towards, dim=0))
        return cosines

    def _of_classes(self, graphs: GraphSet) -> np.ndarray:
        return self.probabilities(graphs)[np.arange(len(graphs)), graphs.classes]


def parameter_names(settings: PublicSettings, graphs: GraphSet) -> list[str]:
    """Return the names of the parameters of a client's network.

    Args:
        graphs: graphs of the client's data set, which determine the input layer.
    """
    return [name for name, _ in adversary_client(settings, graphs, seed=0).model.named_parameters()]


def train_layers(
    settings: PublicSettings,
    shared: Mapping[str, Tensor],
    graphs: GraphSet,
    *,
    seed: int,
    epochs: int | None = None,
) -> dict[str, Tensor]:
    """Train the layers that are not shared on some graphs, with the shared ones fixed.

    Args:
        shared: shared parameters by name.
        graphs: graphs to train on.
        seed: seed of initial values, batches and dropout.
        epochs: number of epochs; None: `LAYER_EPOCHS`.

    Returns:
        Parameters and buffers that are not shared, by name; empty if all are shared.
    """
    trainer = adversary_client(settings, graphs, seed=seed, local_steps=None)
    parameters = dict(trainer.model.named_parameters())
    with torch.no_grad():
        for name, tensor in shared.items():
            parameters[name].copy_(tensor)
    # Optimize private layers only; the shared ones stay as received.
    layers = [parameter for name, parameter in parameters.items() if name not in shared]
    if not layers:
        return {}
    optimizer = torch.optim.Adam(layers, lr=LAYER_RATE, weight_decay=settings.weight_decay)

    def step(batch: Batch, rng: np.random.Generator) -> float:
        """Train one batch."""
        trainer.model.zero_grad()
        loss = functional.cross_entropy(trainer.model(batch, rng), batch.classes)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    trainer.epochs(0, LAYER_EPOCHS if epochs is None else epochs, lambda: None, "layers", step)
    return {name: weights.detach() for name, weights in trainer.model.state_dict().items() if name not in shared}


def adversary_client(settings: PublicSettings, graphs: GraphSet, seed: int, **changes: Any) -> ClientTrainer:
    """Build a client of the adversary that trains on all of these graphs like the attacked ones, and exchanges every round.

    Args:
        graphs: its training graphs.
        seed: seed of its training.
        changes: options that differ from the attacked run.
    """
    every = np.arange(len(graphs))
    if settings.recipe.has("exchange"):
        changes["exchange"] = 1.0
    options = replace(settings.options(seed=seed), **changes)
    rule = (settings.recipe.rule or GraphRule)(options)
    return ClientTrainer(ClientGraphs("adversary", graphs, every, every[:0], every[:0]), options, rule, rule.shared)
