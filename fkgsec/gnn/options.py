"""The options and the result of a federation for graph classification.

    options = GnnOptions(algorithm="fedprox-gc", model="sage", layers=3, rounds=50, settings={"mu": 0.01})
    result = run_federation(graphs, options)
    print(result.accuracy())                       # mean over clients, with its interval
    result.test[0].values                          # the first client's probabilities, `[n, C]`

Options are frozen, and checked when made. What every task has is `fkgsec.federation.options.RunOptions`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from fkgsec.errors import SpecError
from fkgsec.estimate import Estimate, proportion
from fkgsec.federation import packing
from fkgsec.federation.checkpoint import quantization_lines
from fkgsec.federation.options import RunOptions
from fkgsec.federation.result import RunResult
from fkgsec.federation.settings import AlgorithmSettings
from fkgsec.gnn.models import Architecture, Readout
from fkgsec.graphs.sets import FederatedGraphs
from fkgsec.randomness import generator

Share = Literal["encoder", "all"]
Select = Literal["validation", "test", "last"]
Optimizer = Literal["adam", "sgd"]


class GnnOptions(RunOptions["GnnResult"], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of graph classification. Defaults are those of cefgl.txt 5.1, and of GCFL's code where it is silent.

    Attributes (beside those of `RunOptions`):
        model, layers, width, dropout, readout: the network, see `fkgsec.gnn.models.Architecture`.
        optimizer: of local training: "adam", or plain "sgd", whose single step uploads a gradient.
        local_steps: batches of a client in each epoch; None: all. With `local_epochs=1`, `local_steps=1` and `optimizer="sgd"`
            clients share the gradient of one batch in a round (FedSGD), the setting of gradient inversion.
        weight_decay: of the optimizer, the weight of half the squared norm of all parameters.
        select: round to keep: best validation accuracy ("validation"), best test accuracy ("test", which overestimates), or the
            "last" round, as the published codes of GCFL and FedStar report FedAvg, FedProx and FedStar.
    """

    task: ClassVar[str] = "graph"

    algorithm: str = "fedavg"
    model: str = "gin"
    layers: int = 2
    width: int = 64
    dropout: float = 0.5
    readout: Readout = "sum"
    optimizer: Optimizer = "adam"
    local_steps: int | None = None
    weight_decay: float = 5e-4
    select: Select = "validation"
    batch_size: int = 128
    local_epochs: int = 1
    rounds: int = 200
    eval_every: int = 1
    patience: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.architecture()
        if self.local_steps is not None and self.local_steps < 1:
            raise SpecError(f"local_steps must be at least 1; got {self.local_steps}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise SpecError(f"weight_decay must be at least 0; got {self.weight_decay}")

    @property
    def keeps_last(self) -> bool:
        return self.select == "last"

    def architecture(self) -> Architecture:
        """Of every client's network."""
        return Architecture(self.model, self.layers, self.width, self.dropout, self.readout)


class DropoutSettings(AlgorithmSettings, frozen=True):
    """Clients that drop out: in each round a share of those who would take part, drawn from a Beta distribution.

    At least one stays. Who dropped out neither trains nor uploads in that round, and is sent the next broadcast as all are.

    Attributes:
        drop_alpha, drop_beta: parameters of the distribution, mean alpha / (alpha + beta); both 0: nobody drops out.

    Source: cefgl.txt 5.8, which says no more than that the rate is drawn in each iteration, up to Beta(10, 1).
    """

    drop_alpha: Annotated[
        float, Meta(ge=0, le=1_000_000, description="Beta distribution of the share that drops out")
    ] = 0.0
    drop_beta: Annotated[
        float, Meta(ge=0, le=1_000_000, description="its second parameter; both 0: nobody drops out")
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.drop_alpha > 0) != (self.drop_beta > 0):
            raise SpecError(
                f"drop_alpha and drop_beta must both be above 0, or both 0; got {self.drop_alpha}, {self.drop_beta}"
            )

    def num_present(self, count: int, round: int, seed: int) -> int:
        """Of so many participants of a round, those that do not drop out."""
        if not self.drop_alpha:
            return count
        rate = generator(seed, "dropping out", round).beta(self.drop_alpha, self.drop_beta)
        return max(1, math.floor((1 - rate) * count + 0.5))


class GnnSettings(DropoutSettings, frozen=True):
    """When shared models are judged.

    Attributes:
        evaluate: whether they are validated, kept and tested "after" the broadcast of a round, or "before" it, as local training
            left them.
    """

    evaluate: Annotated[
        Literal["after", "before"], Meta(description="shared models after a round's broadcast, or before it")
    ] = "after"

    @property
    def evaluates_before_broadcast(self) -> bool:
        return self.evaluate == "before"


class Probabilities(NamedTuple):
    """What a network says of graphs, float64 `[n, C]`, and their classes, int64 `[n]`."""

    values: np.ndarray
    classes: np.ndarray

    @property
    def correct(self) -> np.ndarray:
        """Bool `[n]`; of equal classes the lowest is taken."""
        return self.values.argmax(axis=1) == self.classes


@dataclass(frozen=True, repr=False, kw_only=True)
class GnnResult(RunResult):
    """A finished run, at its best validation.

    Attributes (beside those of `RunResult`):
        models: each client's parameters by name after the broadcast of that round, and what it keeps beside them.
        trained: each client's shared parameters before it.
        test: what the models that the recipe judges say of each client's test graphs, in the order of the split.
    """

    graph: FederatedGraphs
    options: GnnOptions
    models: list[dict[str, Tensor]] = field(default_factory=list)
    trained: list[dict[str, Tensor]] = field(default_factory=list)
    test: list[Probabilities] = field(default_factory=list)

    def accuracy(self, masks: Sequence[np.ndarray] | None = None) -> Estimate | None:
        """Mean over clients of the share of test graphs that are classified right; None where no client has any.

        Args:
            masks: of each client's test graphs those that count, bool `[n]`, such as those without a twin in train.
        """
        correct = [one.correct for one in self.test]
        if masks is not None:
            correct = [one[mask] for one, mask in zip(correct, masks, strict=True)]
        return mean_over_clients([proportion(int(one.sum()), len(one)) for one in correct if len(one)])

    def utility(self) -> tuple[dict[str, Estimate], dict[str, dict[str, Estimate]]]:
        """Accuracy on test graphs: the mean over clients, each of which counts alike as in the papers, and of each."""
        clients = zip(self.graph.clients, self.test, strict=bool(self.test))
        shares = {client.name: proportion(int(one.correct.sum()), len(one.classes)) for client, one in clients}
        mean = self.accuracy()
        return {} if mean is None else {"accuracy": mean}, {name: {"accuracy": one} for name, one in shares.items()}

    def headline(self) -> str:
        """Algorithm, network and its size."""
        options = self.options
        return f"{options.algorithm}, {options.model}, {options.layers} layers of {options.width}"

    def reached(self) -> list[str]:
        """Test accuracy with its interval, the mean and each client's; empty without test graphs."""
        mean = self.accuracy()
        if mean is None:
            return []
        lines = [f"test accuracy, mean over clients: {mean}"]
        if self.options.select == "test":
            lines.append("the round was selected by test accuracy, which is too high")
        lines += quantization_lines(self.rounds)
        for client, one in zip(self.graph.clients, self.test, strict=True):
            if len(one.classes):
                lines.append(f"test accuracy, {client.name}: {proportion(int(one.correct.sum()), len(one.classes))}")
        return lines

    def outcome_tree(self) -> dict[str, packing.Tree]:
        """Parameters, probabilities and classes, by place."""
        tree: dict[str, packing.Tree] = {
            kind: {str(place): one for place, one in enumerate(getattr(self, kind))} for kind in ("models", "trained")
        }
        tree["test"] = {
            str(place): {name: torch.from_numpy(array) for name, array in one._asdict().items()}
            for place, one in enumerate(self.test)
        }
        return tree

    @classmethod
    def read_outcome(cls, tensors: Mapping[str, Tensor], num_clients: int) -> dict[str, Any]:
        """Undo `outcome_tree`, packed."""
        fields: dict[str, Any] = {
            kind: [packing.below(f"{kind}.{place}.", tensors) for place in range(num_clients)]
            for kind in ("models", "trained")
        }
        found = [packing.below(f"test.{place}.", tensors) for place in range(num_clients)]
        return fields | {"test": [Probabilities(one["values"].numpy(), one["classes"].numpy()) for one in found if one]}


def mean_over_clients(shares: Sequence[Estimate]) -> Estimate | None:
    """The unweighted mean of shares of independent samples, with a 95 % interval; None of none.

    The distances of each share to the ends of its interval are added as independent errors are.

    Source: Zou and Donner 2008 (MOVER), from Wilson intervals. The papers report this mean, without its sampling error.

    >>> print(mean_over_clients([proportion(15, 19), proportion(180, 200)]))
    0.8447 [0.7306, 0.9098]
    """
    if not shares:
        return None
    count = len(shares)
    value = sum(share.value for share in shares) / count
    down = math.hypot(*(share.value - share.low for share in shares)) / count
    up = math.hypot(*(share.high - share.value for share in shares)) / count
    return Estimate(value, value - down, value + up, sum(share.n for share in shares), f"wilson, mean of {count}")
