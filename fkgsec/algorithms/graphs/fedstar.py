"""FedStar: a channel that reads only structure is shared; a channel that also reads features stays private.

Nodes have structure features (`fkgsec.graphs.structure`): random-walk return probabilities and clipped degrees, which have the
same meaning in every data set. In each layer the structure channel, a GCN with tanh, transforms them. The feature channel, a
convolution of the chosen kind, reads the concatenation of both channels. Clients share the parameters `structure.*`.

Leakage: columns of `structure.embedding.weight` for degrees that a client never has change by weight decay alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fkgsec.algorithms.graphs.settings import FedStarSettings
from fkgsec.gnn.batches import Batch
from fkgsec.gnn.models import Architecture, convolution_of, dropout, edges_for, read_out
from fkgsec.gnn.training import GraphRule
from fkgsec.graphs.sets import GraphSet
from fkgsec.graphs.structure import structure_features, with_structure

STRUCTURE = "structure."


class StructureChannel(nn.Module):
    """Parameters of the shared channel: a linear layer, and a graph convolution per layer."""

    def __init__(self, num_inputs: int, architecture: Architecture) -> None:
        super().__init__()
        width, convolution = architecture.width, convolution_of("gcn")
        self.embedding = nn.Linear(num_inputs, width)
        self.convs = nn.ModuleList(convolution(width, width) for _ in range(architecture.layers))


class FedStarClassifier(nn.Module):
    """Both channels, and a readout of both.

    Source: `GIN_dc` in FedStar's code. Differs: it has GIN alone, and returns log-probabilities.
    """

    def __init__(self, architecture: Architecture, settings: FedStarSettings, num_features: int, num_classes: int):
        super().__init__()
        width, convolution = architecture.width, convolution_of(architecture.model)
        self.architecture, self.settings, self.num_features = architecture, settings, num_features
        self.pre = nn.Linear(num_features, width)
        self.structure = StructureChannel(settings.num_walks + settings.num_degrees, architecture)
        self.convs = nn.ModuleList(convolution(2 * width, width) for _ in range(architecture.layers))
        self.joined = nn.Linear(2 * width, width)
        self.post = nn.Linear(width, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, batch: Batch, rng: np.random.Generator | None = None) -> Tensor:
        """Compute logits `[B, C]`.

        Args:
            batch: graphs, with or without structure features.
            rng: source of dropout; None: no dropout.
        """
        drop = self.architecture.dropout
        # The feature channel uses the chosen convolution, the structure channel always a GCN.
        edges = edges_for(self.architecture.model, batch)
        x, s = self.pre(batch.x[:, : self.num_features]), self.structure.embedding(self._structure_of(batch))
        for convolution, shared in zip(self.convs, self.structure.convs, strict=True):
            # The feature channel reads both channels before the structure channel moves on, as in FedStar's code.
            x = dropout(functional.relu(convolution(torch.cat([x, s], dim=1), edges)), drop, rng)
            s = torch.tanh(shared(s, batch.normalized))
        x = read_out(self.joined(torch.cat([x, s], dim=1)), batch, self.architecture.readout)
        return self.head(dropout(functional.relu(self.post(x)), drop, rng))

    def _structure_of(self, batch: Batch) -> Tensor:
        """Return the nodes' structure features, computed unless the batch has them."""
        features = batch.x[:, self.num_features :]
        if features.shape[1]:
            return features
        # Rebuild the starts of graphs from the batch.
        ends = torch.bincount(batch.graph_of, minlength=len(batch)).cumsum(0)
        node_ptr = np.concatenate([[0], ends.cpu().numpy()])
        indptr, sources = (
            array.cpu().numpy() for array in (batch.adjacency.crow_indices(), batch.adjacency.col_indices())
        )
        sizes = {"num_walks": self.settings.num_walks, "num_degrees": self.settings.num_degrees}
        return torch.from_numpy(structure_features(node_ptr, indptr, sources, **sizes)).to(batch.x.device)


class FedStarRule(GraphRule):
    """Two channels, one of them shared; local training is that of FedAvg."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Prefixes of the shared parameters."""
        return (STRUCTURE,)

    def network(self, num_features: int, num_classes: int) -> nn.Module:
        return FedStarClassifier(self.options.architecture(), self.settings, num_features, num_classes)

    def prepare(self, graphs: GraphSet) -> GraphSet:
        return with_structure(graphs, num_walks=self.settings.num_walks, num_degrees=self.settings.num_degrees)
