"""A client's encoder: the network that its rows pass through, its training, and its predictions.

    class Mean(ClientEncoder):                       # a new encoder, see each method
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
    """Encoder of one client. Its random draws depend only on the seed and the client's key.

    Args:
        graph: the client's graph.
        triples: int64 `[n, 3]`, the triples it trains on and encodes over; usually the train split.
        options: of the federation.
        key: distinguishes the client's random draws from those of others.

    Attributes:
        network: parameters and buffers, which never leave the client.
        weight_decay: of Adam.
    """

    network: nn.Module
    weight_decay = 0.0

    def __init__(self, graph: ClientGraph, triples: np.ndarray, options: KgeOptions, key: int) -> None:
        self.graph, self.triples, self.options, self.key = graph, triples, options, key

    def rng(self, purpose: str, *where: int | str) -> np.random.Generator:
        """Return the client's generator for a purpose.

        Args:
            purpose: what is drawn, such as "shuffle".
            where: round, epoch or the like.
        """
        return generator(self.options.seed, purpose, self.key, *where)

    @property
    @abc.abstractmethod
    def num_steps(self) -> int:
        """Number of optimizer steps per round."""

    @abc.abstractmethod
    def train(self, rows: Rows, step: Callable[[], None], round: int, on_step: Callable[[], None]) -> float:
        """Train one round.

        Args:
            rows: input rows, leaves with a gradient.
            step: moves rows and network by their gradients, and clears these.
            round: number of the round, which random draws depend on.
            on_step: called after every step.

        Returns:
            Mean loss over batches.
        """

    @abc.abstractmethod
    def encode(self, rows: Rows, state: Mapping[str, Tensor]) -> ClientTables:
        """Compute the tables that the client predicts with.

        Args:
            rows: input rows.
            state: state dict of the network.
        """

    def fit_decoder(self, rows: Rows, round: int) -> None:  # noqa: B027 (most encoders have none)
        """Prepare for evaluation, such as by training a decoder. Called before the models of a round are evaluated.

        Args:
            rows: input rows at that time.
            round: the client's last round of training.
        """

    def checked(self, loss: float, round: int, epoch: int, number: int) -> float:
        """Return the loss of a step if it is finite.

        Args:
            loss: of the step.
            round, epoch, number: where the step is, for the message; epoch and number count from 0.

        Raises:
            TrainingError: the loss is NaN or infinite.
        """
        if not np.isfinite(loss):
            raise TrainingError(
                f"the loss of client {self.graph.name} is {loss} in round {round}, epoch {epoch + 1}, step {number + 1}; lower "
                f"learning_rate (now {self.options.learning_rate})"
            )
        return loss
