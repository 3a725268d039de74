"""Local training of one client's network, the same alone and in any federation; and what an algorithm adds to it.

class Anchored(GraphRule):                       # a recipe's `local` part: pulls shared parameters to those received
    keeps_received = True

    def correct(self, trainer):
        return pulled(trainer.shared, trainer.received, self.settings.mu)

register(Recipe("anchored", PARAMETERS, "this script", MySettings, task="graph", local=Anchored))

Clients are trained one after the other: their networks differ in every weight and their batches in every graph, so that stacked
clients would run the same products of the same sizes. What a client draws depends on the seed and its name alone.
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

from fkgsec.adam import Adam
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

JUDGED_AT_ONCE = 512  # graphs
Step = Callable[[Batch, np.random.Generator], float]


def batch_order(options: GnnOptions, num_graphs: int, client: str, round: int, epoch: int, *phase: str) -> np.ndarray:
    """The training graphs that a client takes in an epoch, in the order of its batches, int64 `[n]`."""
    order = generator(options.seed, "batches", client, round, epoch, *phase).permutation(num_graphs)
    return order if options.local_steps is None else order[: options.local_steps * options.batch_size]


def _parts(ids: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


class ClientTrainer:
    """Network of one client, its optimizers and its graphs.

    Args:
        client: its graphs. shared: which parameters are shared, by the beginnings of their names.

    Attributes:
        model: the network. shared: its shared parameters by name.
        private: tensors that the rule trains beside the network, by name. memory: others that it keeps from round to round.
        received: shared parameters as last received, where the rule keeps them.
        outgoing: what the client uploads where these are not its shared parameters; empty before it has trained.
        optimizers: by name.
    """

    def __init__(self, client: ClientGraphs, options: GnnOptions, rule: GraphRule, shared: tuple[str, ...]) -> None:
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
        """Forget moments and step counts."""
        rate, decay = self.options.learning_rate, self.options.weight_decay
        kind = Adam if self.options.optimizer == "adam" else functools.partial(torch.optim.SGD, fused=True)
        self.optimizers = {"own": kind(self.model.parameters(), lr=rate, weight_decay=decay)}
        if self.private:
            self.optimizers["private"] = kind(self.private.values(), lr=rate)

    @property
    def num_steps(self) -> int:
        """Number of steps of a round."""
        batches = -(-len(self.training) // self.options.batch_size)
        return self.rule.num_epochs() * min(batches, self.options.local_steps or batches)

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Make these the shared parameters, as they were received."""
        with torch.no_grad():
            for name, parameter in self.shared.items():
                parameter.copy_(tensors[name])
        self.outgoing = {}
        if self.rule.keeps_received:
            self.received = {name: tensor.detach().clone() for name, tensor in self.shared.items()}

    def train(self, round: int, on_step: Callable[[], None]) -> float:
        """A round, as the rule has it; returns the mean loss over graphs."""
        with one_thread():
            return self.rule.train(self, round, on_step)

    def epochs(
        self, round: int, count: int, on_step: Callable[[], None], phase: str = "", step: Step | None = None
    ) -> float:
        """So many epochs; returns the mean loss over graphs. Raises `TrainingError` for one that is not finite.

        Args:
            phase: names the draws of a second phase in a round. step: what is done with a batch; None: `self.step`.
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
                total, graphs = total + loss * len(batch), graphs + len(batch)
                on_step()
        return total / max(graphs, 1)

    def step(self, batch: Batch, rng: np.random.Generator) -> float:
        """Take a step of the optimizer. Returns the loss with the rule's terms."""
        self.forget_gradients()
        loss = functional.cross_entropy(self.model(batch, rng), batch.classes)
        loss.backward()
        added = self.rule.correct(self)
        self.optimizers["own"].step()
        return float(loss.detach()) + added

    def forget_gradients(self) -> None:
        """Clear the network's gradients. Its own `zero_grad` walks through all modules and is slow."""
        self.optimizers["own"].zero_grad()

    def state(self) -> dict[str, Tensor]:
        """Parameters, buffers and private tensors by name: what the client's network is."""
        return {**self.model.state_dict(), **self.private}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave."""
        self.model.load_state_dict({name: value for name, value in tensors.items() if name not in self.private})
        for name, tensor in self.private.items():
            tensor.copy_(tensors[name])

    @torch.no_grad()
    def classify(self, ids: np.ndarray, state: Mapping[str, Tensor] | None = None) -> Probabilities:
        """Return what the network says of some of the client's graphs; with another `state` in place of its own."""
        rows = [np.zeros((0, self.client.graphs.num_classes))]
        judged = self.rule.judged({**self.state(), **(state or {})})
        for part in _parts(ids, JUDGED_AT_ONCE):
            with one_thread():
                batch = Batch.of(self.client.graphs, part, self.device)
                logits = torch.func.functional_call(self.model, judged, (batch,))
            rows.append(logits.double().softmax(dim=1).cpu().numpy())
        return Probabilities(np.concatenate(rows), self.client.graphs.classes[ids].copy())

    def tensors(self, *, optimizer: bool) -> dict[str, Tensor]:
        """Return what a checkpoint must hold beside `state`, by name."""
        tree: dict[str, packing.Tree] = {"received": self.received, "memory": self.memory}
        for name, adam in self.optimizers.items() if optimizer else ():
            tree[name] = {str(place): values for place, values in adam.state_dict()["state"].items()}
        return packing.pack(tree)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        kinds = {kind: packing.below(f"{kind}.", tensors) for kind in ("received", "memory")}
        self.received, self.memory = (
            {name: entry.to(self.device) for name, entry in memory.items()} for memory in kinds.values()
        )
        for name, optimizer in self.optimizers.items():
            state: dict[int, dict[str, Tensor]] = {}
            for key, tensor in packing.below(f"{name}.", tensors).items():
                place, value = key.split(".")
                state.setdefault(int(place), {})[value] = tensor
            if state:
                optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


class Crossing:
    """All clients hold the same rows, of the shared parameters, and take over what the server makes of them.

    Attributes:
        layout: of a client's rows. shared: of those that are sent back.
    """

    def __init__(self, trainers: Sequence[ClientTrainer], rule: GraphRule, first: Mapping[str, Tensor]) -> None:
        self.trainers, self.rule, self.first = trainers, rule, first
        width, memory = trainers[0].options.width, trainers[0].memory
        self.upwards = Layout.of({name: memory[name] for name in rule.upwards}, width)
        self.shared = Layout.of(trainers[0].shared, width)
        self.layout = Layout(width, {**self.shared.shapes, **self.upwards.shapes})

    def holdings(self, weights: Sequence[int]) -> list[Holding]:
        """Return each client's holding, with its weight in a mean."""
        names, upwards = self.layout.names, len(self.upwards.names)
        return [Holding(names, len(names), weight, upwards) for weight in weights]

    def first_rows(self, names: Sequence[str]) -> Tensor:
        """The server's first rows of these names, `[n, width]`."""
        zeros = {name: torch.zeros(shape) for name, shape in self.upwards.shapes.items()}
        rows = dict(zip(self.layout.names, self.layout.pack({**self.first, **zeros}), strict=True))
        return torch.stack([rows[name] for name in names])

    def rows(self, place: int) -> Tensor:
        """A client's rows; once it has trained, those that it uploads, `[n, width]`."""
        return self._packed(place, self.trainers[place].outgoing)

    def receive(self, round: int, place: int, received: Received) -> None:
        """Let a client take over what a broadcast said."""
        self.trainers[place].take(self.layout.unpack(received.merged(self._packed(place))))

    def _packed(self, place: int, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """Some tensors as rows, if none the shared parameters, and what goes with them."""
        trainer = self.trainers[place]
        upwards = {name: trainer.memory[name] for name in self.rule.upwards}
        return self.layout.pack({**(tensors or trainer.shared), **upwards})


class GraphRule:
    """The hooks, all without effect: local training is that of FedAvg.

    One rule serves all clients. What it keeps of a client from round to round is in the client's trainer, for checkpoints.

    Attributes:
        keeps_received: whether clients keep the shared parameters as they last received them.
        crossing: what crosses of the networks.
        upwards: the tensors of a client's memory that it uploads with its parameters, and is not sent back.
    """

    keeps_received = False
    crossing: type[Crossing] = Crossing
    upwards: Sequence[str] = ()

    def __init__(self, options: GnnOptions) -> None:
        self.options = options
        self.settings: Any = options.settings

    @property
    def shared(self) -> tuple[str, ...]:
        """Return how the names of the shared parameters begin."""
        return ("",) if getattr(self.settings, "share", "encoder") == "all" else (ENCODER,)

    def network(self, num_features: int, num_classes: int) -> nn.Module:
        """A client's network, called as `network(batch, rng)` for logits; its first values are torch's global generator's."""
        return GraphClassifier(self.options.architecture(), num_features, num_classes)

    def prepare(self, graphs: GraphSet) -> GraphSet:
        """A client's graphs with what the network reads beside their features."""
        return graphs

    def begin(self, trainer: ClientTrainer) -> None:
        """Give a new client what it keeps beside its network: `trainer.private`, judged with it, and `trainer.memory`."""

    def train(self, trainer: ClientTrainer, round: int, on_step: Callable[[], None]) -> float:
        """A round of a client; returns its mean loss over graphs."""
        return trainer.epochs(round, self.options.local_epochs, on_step)

    def num_epochs(self) -> int:
        """Number of epochs of a round, for progress."""
        return self.options.local_epochs

    def correct(self, trainer: ClientTrainer) -> float:
        """Change the gradients of a batch before Adam's step; returns what the loss grows by."""
        return 0.0

    def judged(self, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what a client's network classifies with, of all that it has: parameters and private tensors by name."""
        return parameters


@torch.no_grad()
def pulled(shared: Mapping[str, nn.Parameter], received: Mapping[str, Tensor], weight: float) -> float:
    """Add the gradients of weight / 2 |w - w_t|^2 over all shared parameters; returns that term.

    Source: Li et al. 2020 (FedProx).
    """
    squares = 0.0
    for name, parameter in shared.items():
        difference = parameter - received[name]
        if parameter.grad is not None:
            parameter.grad.add_(difference, alpha=weight)
        squares += float(difference.square().sum())
    return weight / 2 * squares
