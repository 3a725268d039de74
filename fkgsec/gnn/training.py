"""Local training of one client's network, the same alone and in any federation, and the hooks of algorithms.

class Anchored(GraphRule):                       # a recipe's `local` part: pulls shared parameters to those received
    keeps_received = True

    def correct(self, trainer):
        return pulled(trainer.shared, trainer.received, self.settings.mu)

register(Recipe("anchored", PARAMETERS, "this script", MySettings, task="graph", local=Anchored))

Clients are trained one after the other. Their networks and batches all differ, so stacking clients would not save any matrix
product. A client's random draws depend on the seed and its name alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fkgsec.adam import Adam, load_packed_state, packed_state
from fkgsec.errors import TrainingError
from fkgsec.exchange import Holding, Received
from fkgsec.federation import packing
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.layout import Layout
from fkgsec.gnn.models import ENCODER, GraphClassifier, drawing_from
from fkgsec.gnn.options import GnnOptions
from fkgsec.gnn.result import Probabilities
from fkgsec.graphs.features import feature_width
from fkgsec.graphs.sets import ClientGraphs, GraphSet
from fkgsec.randomness import generator
from fkgsec.threads import one_thread

JUDGED_AT_ONCE = 512  # graphs per batch in evaluation
Step = Callable[[Batch, np.random.Generator], float]


def batch_order(options: GnnOptions, num_graphs: int, client: str, round: int, epoch: int, *phase: str) -> np.ndarray:
    """Draw the training graphs of an epoch in the order of its batches, int64 `[n]`.

    Args:
        options: of the federation.
        num_graphs: of the client's train split.
        client, round, epoch, phase: the draw depends on these.
    """
    order = generator(options.seed, "batches", client, round, epoch, *phase).permutation(num_graphs)
    # `local_steps` limits the batches of an epoch (FedSGD: one).
    return order if options.local_steps is None else order[: options.local_steps * options.batch_size]


def _parts(ids: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


class ClientTrainer:
    """Network of one client, its optimizers and its graphs.

    Args:
        client: its graphs.
        options: of the federation.
        rule: of the algorithm.
        shared: prefixes of the names of shared parameters.

    Attributes:
        model: the network.
        shared: shared parameters of the network by name.
        private: tensors that the rule trains in addition to the network, by name.
        memory: tensors that the rule stores between rounds, by name.
        received: last received shared parameters, if the rule keeps them.
        outgoing: tensors to upload instead of shared parameters; empty before training, or if there are none.
        optimizers: by name.
    """

    def __init__(self, client: ClientGraphs, options: GnnOptions, rule: GraphRule, shared: tuple[str, ...]) -> None:
        # Before the network: inputs that the rule adds change its width.
        client = replace(client, graphs=rule.prepare(client.graphs))
        self.client, self.options, self.rule, self.device = client, options, rule, options.torch_device()
        rng = generator(options.seed, "initial parameters", client.name)
        width, num_classes = feature_width(client.graphs), client.graphs.num_classes
        with drawing_from(rng):
            self.model = rule.network(width, num_classes).to(self.device)
        self.shared = {name: parameter for name, parameter in self.model.named_parameters() if name.startswith(shared)}
        self.private: dict[str, Tensor] = {}
        self.memory: dict[str, Tensor] = {}
        self.received: dict[str, Tensor] = {}
        self.outgoing: dict[str, Tensor] = {}
        self.training = client.graphs.subset(client.train)
        rule.begin(self)
        self.reset_optimizer()

    def reset_optimizer(self) -> None:
        """Reset moments and step counts."""
        rate, decay = self.options.learning_rate, self.options.weight_decay
        # fused: one pass over all parameters.
        kind = Adam if self.options.optimizer == "adam" else functools.partial(torch.optim.SGD, fused=True)
        self.optimizers = {"own": kind(self.model.parameters(), lr=rate, weight_decay=decay)}
        if self.private:
            # Without weight decay: CEFGL shrinks its sparse part by a soft threshold instead.
            self.optimizers["private"] = kind(self.private.values(), lr=rate)

    @property
    def num_steps(self) -> int:
        """Number of steps of a round."""
        batches = -(-len(self.training) // self.options.batch_size)
        return self.rule.num_epochs() * min(batches, self.options.local_steps or batches)

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the shared parameters by received ones."""
        with torch.no_grad():
            for name, parameter in self.shared.items():
                parameter.copy_(tensors[name])
        # A broadcast replaces the shared parameters, so a prepared upload is obsolete.
        self.outgoing = {}
        if self.rule.keeps_received:
            self.received = {name: tensor.detach().clone() for name, tensor in self.shared.items()}

    def train(self, round: int, on_step: Callable[[], None]) -> float:
        """Train a round as the rule defines it; return the mean loss over graphs.

        Args:
            on_step: called after every step.
        """
        with one_thread():
            return self.rule.train(self, round, on_step)

    def epochs(
        self, round: int, count: int, on_step: Callable[[], None], phase: str = "", step: Step | None = None
    ) -> float:
        """Train some epochs; return the mean loss over graphs.

        Args:
            count: number of epochs.
            on_step: called after every step.
            phase: name of the draws of a second phase in a round.
            step: function for one batch; None: `self.step`.

        Raises:
            TrainingError: a loss is not finite.
        """
        total, graphs = 0.0, 0
        for epoch in range(count):
            where = (self.client.name, round, epoch, *filter(None, [phase]))
            order = batch_order(self.options, len(self.training), *where)
            rng = generator(self.options.seed, "dropout", *where)
            for number, ids in enumerate(_parts(order, self.options.batch_size)):
                batch = Batch.of(self.training, ids, self.device)
                loss = (step or self.step)(batch, rng)
                if not np.isfinite(loss):
                    raise TrainingError(
                        f"round {round}, client {self.client.name}, epoch {epoch + 1}, step {number + 1}: the loss is {loss}; "
                        "a smaller --learning-rate may help"
                    )
                # Weight by batch size: the last batch of an epoch is smaller.
                total, graphs = total + loss * len(batch), graphs + len(batch)
                on_step()
        return total / max(graphs, 1)

    def step(self, batch: Batch, rng: np.random.Generator) -> float:
        """Take a step of the optimizer; return the loss with the rule's terms.

        Args:
            batch: graphs.
            rng: source of dropout.
        """
        self.forget_gradients()
        loss = functional.cross_entropy(self.model(batch, rng), batch.classes)
        loss.backward()
        # Between backward and step: rules change gradients, such as by a proximal term.
        added = self.rule.correct(self)
        self.optimizers["own"].step()
        return float(loss.detach()) + added

    def forget_gradients(self) -> None:
        """Clear the network's gradients. `Module.zero_grad` would walk through all modules, which is slow."""
        self.optimizers["own"].zero_grad()

    def state(self) -> dict[str, Tensor]:
        """Return parameters, buffers and private tensors by name."""
        return {**self.model.state_dict(), **self.private}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the state that `state` returned."""
        self.model.load_state_dict({name: value for name, value in tensors.items() if name not in self.private})
        for name, tensor in self.private.items():
            tensor.copy_(tensors[name])

    @torch.no_grad()
    def classify(self, ids: np.ndarray, state: Mapping[str, Tensor] | None = None) -> Probabilities:
        """Predict the classes of some of the client's graphs.

        Args:
            ids: int64 `[n]`, graph numbers.
            state: tensors that replace those of the trainer; None: none.
        """
        # An empty first part keeps the shape for clients without graphs in the split.
        rows = [np.zeros((0, self.client.graphs.num_classes))]
        # The rule may combine parts of the model, such as Theta + S.
        judged = self.rule.judged({**self.state(), **(state or {})})
        for part in _parts(ids, JUDGED_AT_ONCE):
            with one_thread():
                batch = Batch.of(self.client.graphs, part, self.device)
                logits = torch.func.functional_call(self.model, judged, (batch,))
            # In float64, so that attacks on confidences see no rounding to 1.
            rows.append(logits.double().softmax(dim=1).cpu().numpy())
        return Probabilities(np.concatenate(rows), self.client.graphs.classes[ids].copy())

    def tensors(self, *, optimizer: bool) -> dict[str, Tensor]:
        """Return the state that a checkpoint needs besides `state`, by name.

        Args:
            optimizer: whether to include the optimizers' state.
        """
        tree: dict[str, packing.Tree] = {"received": self.received, "memory": self.memory}
        for name, adam_or_sgd in self.optimizers.items() if optimizer else ():
            tree[name] = packed_state(adam_or_sgd)
        return packing.pack(tree)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the state that `tensors` returned."""
        kinds = {kind: packing.below(f"{kind}.", tensors) for kind in ("received", "memory")}
        self.received, self.memory = (
            {name: entry.to(self.device) for name, entry in memory.items()} for memory in kinds.values()
        )
        for name, optimizer in self.optimizers.items():
            load_packed_state(optimizer, packing.below(f"{name}.", tensors))


class Crossing:
    """Exchange in which all clients hold the same rows of shared parameters, and receive the server's aggregate.

    Attributes:
        layout: of a client's rows.
        shared: layout of the rows that are broadcast.
    """

    def __init__(self, trainers: Sequence[ClientTrainer], rule: GraphRule, first: Mapping[str, Tensor]) -> None:
        self.trainers, self.rule, self.first = trainers, rule, first
        width, memory = trainers[0].options.width, trainers[0].memory
        self.upwards = Layout.of({name: memory[name] for name in rule.upwards}, width)
        self.shared = Layout.of(trainers[0].shared, width)
        # Uploaded tensors follow the shared ones, so that a broadcast is a prefix.
        self.layout = Layout(width, {**self.shared.shapes, **self.upwards.shapes})

    def holdings(self, weights: Sequence[int]) -> list[Holding]:
        """Return each client's holding.

        Args:
            weights: of the clients in a mean.
        """
        names, upwards = self.layout.names, len(self.upwards.names)
        return [Holding(names, len(names), weight, upwards) for weight in weights]

    def first_rows(self, names: Sequence[str]) -> Tensor:
        """Return the server's initial rows, `[n, width]`.

        Args:
            names: of the rows.
        """
        zeros = {name: torch.zeros(shape) for name, shape in self.upwards.shapes.items()}
        rows = dict(zip(self.layout.names, self.layout.pack({**self.first, **zeros}), strict=True))
        return torch.stack([rows[name] for name in names])

    def rows(self, place: int) -> Tensor:
        """Return a client's rows, `[n, width]`; after training, those that it uploads.

        Args:
            place: index of the client.
        """
        return self._packed(place, self.trainers[place].outgoing)

    def receive(self, round: int, place: int, received: Received) -> None:
        """Apply a broadcast.

        Args:
            place: index of the client.
            received: rows.
        """
        self.trainers[place].take(self.layout.unpack(received.merged(self._packed(place))))

    def _packed(self, place: int, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """Lay tensors (or the shared parameters) out as rows, together with those only uploaded."""
        trainer = self.trainers[place]
        upwards = {name: trainer.memory[name] for name in self.rule.upwards}
        return self.layout.pack({**(tensors or trainer.shared), **upwards})


class GraphRule:
    """Hooks without effect: local training is that of FedAvg.

    One rule serves all clients. State of a client between rounds is in the client's trainer, so that checkpoints
    include it.

    Attributes:
        keeps_received: whether clients store the shared parameters that they last received.
        crossing: the exchange of networks.
        upwards: names of tensors in a client's memory that are uploaded but not broadcast.
    """

    keeps_received = False
    crossing: type[Crossing] = Crossing
    upwards: Sequence[str] = ()

    def __init__(self, options: GnnOptions) -> None:
        self.options = options
        self.settings: Any = options.settings

    @property
    def shared(self) -> tuple[str, ...]:
        """Prefixes of the names of shared parameters."""
        return ("",) if getattr(self.settings, "share", "encoder") == "all" else (ENCODER,)

    def network(self, num_features: int, num_classes: int) -> nn.Module:
        """Build a client's network, called as `network(batch, rng)` for logits. Initial values come from torch's global
        generator.

        Args:
            num_features: of a node.
            num_classes: of a graph.
        """
        return GraphClassifier(self.options.architecture(), num_features, num_classes)

    def prepare(self, graphs: GraphSet) -> GraphSet:
        """Return a client's graphs with additional inputs of the network.

        Args:
            graphs: of the client.
        """
        return graphs

    def begin(self, trainer: ClientTrainer) -> None:
        """Create the private tensors and the memory of a new client.

        Args:
            trainer: of the client; `private` and `memory` are set.
        """

    def train(self, trainer: ClientTrainer, round: int, on_step: Callable[[], None]) -> float:
        """Train a client for one round; return its mean loss over graphs.

        Args:
            trainer: of the client.
            on_step: called after every step.
        """
        return trainer.epochs(round, self.options.local_epochs, on_step)

    def num_epochs(self) -> int:
        """Return the number of epochs in a round, for progress."""
        return self.options.local_epochs

    def correct(self, trainer: ClientTrainer) -> float:
        """Change the gradients of a batch before the optimizer's step; return the additional loss.

        Args:
            trainer: of the client.
        """
        return 0.0

    def judged(self, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that a client's network classifies with.

        Args:
            parameters: parameters and private tensors of the client by name.
        """
        return parameters


@torch.no_grad()
def pulled(shared: Mapping[str, nn.Parameter], received: Mapping[str, Tensor], weight: float) -> float:
    """Add the gradients of weight / 2 |w - w_t|^2 over all shared parameters; return that term.

    Args:
        shared: parameters w by name, with gradients.
        received: w_t by name.
        weight: of the term.

    Source: Li et al. 2020 (FedProx).
    """
    squares = 0.0
    for name, parameter in shared.items():
        # The gradient of the proximal term is weight * (w - w_t).
        difference = parameter - received[name]
        if parameter.grad is not None:
            parameter.grad.add_(difference, alpha=weight)
        squares += float(difference.square().sum())
    return weight / 2 * squares
