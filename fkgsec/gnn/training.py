"""Local training of one client's network, the same alone and in any federation.

Clients are trained one after the other: their networks differ in every weight and their batches in every graph, so that stacked
clients would run the same products of the same sizes. What a client draws depends on the seed and its name alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fkgsec.errors import TrainingError
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.models import make_classifier
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import Probabilities
from fkgsec.gnn.rule import GraphRule
from fkgsec.graphs.features import feature_width
from fkgsec.graphs.sets import ClientGraphs, GraphSet
from fkgsec.randomness import generator


class ClientTrainer:
    """One client's network, its Adam, and its graphs.

    Args:
        client: its graphs. shared: which parameters are shared, by the beginnings of their names.

    Attributes:
        model: the network. shared: its shared parameters by name.
        received: these as last received, where the rule keeps them.
    """

    def __init__(self, client: ClientGraphs, options: GnnOptions, rule: GraphRule, shared: tuple[str, ...]) -> None:
        self.client, self.options, self.rule, self.device = client, options, rule, options.torch_device()
        rng = generator(options.seed, "initial parameters", client.name)
        width, num_classes = feature_width(client.graphs), client.graphs.num_classes
        self.model = make_classifier(options.architecture(), width, num_classes, rng).to(self.device)
        self.shared = {name: one for name, one in self.model.named_parameters() if name.startswith(shared)}
        self.received: dict[str, Tensor] = {}
        self.training = client.graphs.subset(client.train)
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Forget Adam's moments and step counts."""
        options, fused = self.options, self.device.type in ("cpu", "cuda")
        self._adam = torch.optim.Adam(
            self.model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay, fused=fused
        )

    @property
    def num_steps(self) -> int:
        """Of a round."""
        return self.options.local_epochs * -(-len(self.training) // self.options.batch_size)

    def train(self, round: int, on_step: Callable[[], None]) -> float:
        """`local_epochs` epochs; returns the mean loss over graphs. Raises `TrainingError` for one that is not finite."""
        total = 0.0
        for epoch in range(self.options.local_epochs):
            where = (self.client.name, round, epoch)
            order = generator(self.options.seed, "batches", *where).permutation(len(self.training))
            rng = generator(self.options.seed, "dropout", *where)
            for step, batch in enumerate(self._batches(self.training, order)):
                loss = self._step(batch, rng)
                if not np.isfinite(loss):
                    raise TrainingError(
                        f"round {round}, client {self.client.name}, epoch {epoch + 1}, step {step + 1}: the loss is {loss}; "
                        "a smaller --learning-rate may help"
                    )
                total += loss * len(batch)
                on_step()
        return total / (self.options.local_epochs * len(self.training))

    def _step(self, batch: Batch, rng: np.random.Generator) -> float:
        """One step of Adam; returns the loss with what the rule adds to it."""
        self._adam.zero_grad()
        loss = functional.cross_entropy(self.model(batch, rng), batch.classes)
        loss.backward()
        added = self.rule.correct(self.shared, self.received)
        self._adam.step()
        return float(loss.detach()) + added

    def _batches(self, graphs: GraphSet, order: np.ndarray) -> Iterator[Batch]:
        for start in range(0, len(order), self.options.batch_size):
            yield Batch.of(graphs.subset(order[start : start + self.options.batch_size]), self.device)

    @torch.no_grad()
    def classify(self, ids: np.ndarray, parameters: Mapping[str, Tensor] | None = None) -> Probabilities:
        """What the network says of some of the client's graphs; with other parameters (by name) in place of its own."""
        rows = [np.zeros((0, self.client.graphs.num_classes))]
        for batch in self._batches(self.client.graphs, ids):
            logits = torch.func.functional_call(self.model, dict(parameters or {}), (batch,))
            rows.append(logits.double().softmax(dim=1).cpu().numpy())
        return Probabilities(np.concatenate(rows), self.client.graphs.classes[ids].copy())

    def tensors(self, *, optimizer: bool) -> dict[str, Tensor]:
        """What a checkpoint must hold beside the parameters, by name."""
        kept = {f"received.{name}": tensor for name, tensor in self.received.items()}
        state = self._adam.state_dict()["state"] if optimizer else {}
        return kept | {f"adam.{place}.{name}": one for place, values in state.items() for name, one in values.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(".")
            if kind == "received":
                self.received[name] = tensor.to(self.device)
            else:
                place, name = name.split(".")
                state.setdefault(int(place), {})[name] = tensor
        if state:
            self._adam.load_state_dict(self._adam.state_dict() | {"state": state})
