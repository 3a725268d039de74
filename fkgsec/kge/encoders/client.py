"""A client's encoder: the network that its rows pass through, its training, and what its model predicts with.

    class Mean(ClientEncoder):                       # one of one's own, see each method
        ...
    ENCODERS.register("mean", EncoderModel(scoring=QUATE, make=Mean))

Legend: `N` entities and `M` relations of the client, `W`, `V` widths of their rows.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor, nn

from fkgsec.data.graph import ClientGraph
from fkgsec.errors import TrainingError
from fkgsec.federation.recipes import Table
from fkgsec.kge.models import ClientTables
from fkgsec.kge.options import KgeOptions
from fkgsec.randomness import generator

Step = Callable[[np.ndarray, np.random.Generator], float]
Rows = Mapping[Table, Tensor]
"""A client's input rows: entities `[N, W]`, relations `[M, V]`."""


class ClientEncoder(abc.ABC):
    """Network of one client. Its random draws depend only on the seed and the client's key.

    Args:
        graph: the client's. triples: int64 `[n, 3]`, what it trains on and sees as its graph; its train split usually.
        key: what its randomness derives from.

    Attributes:
        network: its parameters and buffers, which never leave the client.
        weight_decay: of Adam.
    """

    network: nn.Module
    weight_decay = 0.0

    def __init__(self, graph: ClientGraph, triples: np.ndarray, options: KgeOptions, key: int) -> None:
        self.graph, self.triples, self.options, self.key = graph, triples, options, key

    def rng(self, purpose: str, *where: int | str) -> np.random.Generator:
        """The client's own generator for a purpose."""
        return generator(self.options.seed, purpose, self.key, *where)

    @property
    @abc.abstractmethod
    def num_steps(self) -> int:
        """Number of steps of a round."""

    @abc.abstractmethod
    def train(self, rows: Rows, step: Callable[[], None], round: int, on_step: Callable[[], None]) -> float:
        """A round of training; returns the mean loss over batches.

        Args:
            rows: leaves with a gradient. step: moves rows and network by the gradients that they have, and clears these.
        """

    @abc.abstractmethod
    def encode(self, rows: Rows, state: Mapping[str, Tensor]) -> ClientTables:
        """Return what the client predicts with: rows after the encoder, as its network is in this state."""

    def fit_decoder(self, rows: Rows, round: int) -> None:  # noqa: B027 (most encoders have none)
        """Called before the models of a round are judged, with the rows that they then have."""

    def checked(self, loss: float, round: int, epoch: int, number: int) -> float:
        """The loss of a step; raises `TrainingError` for one that is not finite."""
        if not np.isfinite(loss):
            raise TrainingError(
                f"the loss of client {self.graph.name} is {loss} in round {round}, epoch {epoch + 1}, step {number + 1}; lower "
                f"learning_rate (now {self.options.learning_rate})"
            )
        return loss
