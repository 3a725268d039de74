"""Result of a federation for graph classification.

result = run_federation(graphs, options)
print(result.accuracy())                       # mean over clients, with its interval
result.test[0].values                          # the first client's probabilities, `[n, C]`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.estimate import Estimate, proportion
from fkgsec.federation import packing
from fkgsec.federation.checkpoint import quantization_lines
from fkgsec.federation.result import RunResult
from fkgsec.graphs.sets import FederatedGraphs


class Probabilities(NamedTuple):
    """Predicted probabilities of graphs, float64 `[n, C]`, and their classes, int64 `[n]`."""

    values: np.ndarray
    classes: np.ndarray

    @property
    def correct(self) -> np.ndarray:
        """Whether each graph is classified correctly, bool `[n]`; ties go to the lowest class."""
        return self.values.argmax(axis=1) == self.classes


@dataclass(frozen=True, repr=False, kw_only=True)
class GnnResult(RunResult):
    """A finished run, at its best validation.

    Attributes (in addition to those of `RunResult`):
        models: each client's parameters and private tensors by name, after the broadcast of that round.
        trained: each client's shared parameters before that broadcast.
        test: predictions for each client's test graphs by the evaluated models, in the order of the split.
    """

    graph: FederatedGraphs
    options: Any  # `GnnOptions`, which name this type
    models: list[dict[str, Tensor]] = field(default_factory=list)
    trained: list[dict[str, Tensor]] = field(default_factory=list)
    test: list[Probabilities] = field(default_factory=list)

    def accuracy(self, masks: Sequence[np.ndarray] | None = None) -> Estimate | None:
        """Compute the mean test accuracy over clients; None if no client has test graphs.

        Args:
            masks: bool `[n]` per client, test graphs to include, such as those without a twin in the train split.
        """
        # Each client has its own task: count per client, then average.
        correct = [hits.correct for hits in self.test]
        if masks is not None:
            # Such as only graphs without a twin in the train split.
            correct = [hits[mask] for hits, mask in zip(correct, masks, strict=True)]
        return mean_over_clients([proportion(int(hits.sum()), len(hits)) for hits in correct if len(hits)])

    def utility(self) -> tuple[dict[str, Estimate], dict[str, dict[str, Estimate]]]:
        """Compute test accuracy: the unweighted mean over clients, as in the papers, and by client."""
        clients = zip(self.graph.clients, self.test, strict=bool(self.test))
        shares = {client.name: proportion(int(share.correct.sum()), len(share.classes)) for client, share in clients}
        mean = self.accuracy()
        return {} if mean is None else {"accuracy": mean}, {name: {"accuracy": share} for name, share in shares.items()}

    def headline(self) -> str:
        options = self.options
        return f"{options.algorithm}, {options.model}, {options.layers} layers of {options.width}"

    def reached(self) -> list[str]:
        mean = self.accuracy()
        if mean is None:
            return []
        lines = [f"test accuracy, mean over clients: {mean}"]
        if self.options.select == "test":
            lines.append("the round was selected by test accuracy, which is too high")
        lines += quantization_lines(self.rounds)
        for client, outcome in zip(self.graph.clients, self.test, strict=True):
            if len(outcome.classes):
                lines.append(
                    f"test accuracy, {client.name}: {proportion(int(outcome.correct.sum()), len(outcome.classes))}"
                )
        return lines

    def outcome_tree(self) -> dict[str, packing.Tree]:
        tree: dict[str, packing.Tree] = {
            kind: {str(place): part for place, part in enumerate(getattr(self, kind))} for kind in ("models", "trained")
        }
        tree["test"] = {
            str(place): {name: torch.from_numpy(array) for name, array in part._asdict().items()}
            for place, part in enumerate(self.test)
        }
        return tree

    @classmethod
    def read_outcome(cls, tensors: Mapping[str, Tensor], num_clients: int) -> dict[str, Any]:
        fields: dict[str, Any] = {
            kind: [packing.below(f"{kind}.{place}.", tensors) for place in range(num_clients)]
            for kind in ("models", "trained")
        }
        tests = [packing.below(f"test.{place}.", tensors) for place in range(num_clients)]
        return fields | {
            "test": [Probabilities(test["values"].numpy(), test["classes"].numpy()) for test in tests if test]
        }


def mean_over_clients(shares: Sequence[Estimate]) -> Estimate | None:
    """Compute the unweighted mean of shares of independent samples, with a 95 % interval; None without shares.

    The distances of each share to the ends of its interval are added like independent errors.

    Args:
        shares: with Wilson intervals.

    Source: Zou and Donner 2008 (MOVER), from Wilson intervals. The papers report this mean, without its sampling error.

    >>> print(mean_over_clients([proportion(15, 19), proportion(180, 200)]))
    0.8447 [0.7306, 0.9098]
    """
    if not shares:
        return None
    count = len(shares)
    value = sum(share.value for share in shares) / count
    # MOVER: root of the summed squares of each share's distance to its bound, divided by the number of shares.
    down = math.hypot(*(share.value - share.low for share in shares)) / count
    up = math.hypot(*(share.high - share.value for share in shares)) / count
    return Estimate(value, value - down, value + up, sum(share.n for share in shares), f"wilson, mean of {count}")
