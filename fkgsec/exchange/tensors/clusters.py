"""Clients in clusters, each with its own parameters. A cluster is split if its updates are large but cancel out.

    cut(similarity)                                  # bool [C]: a minimum cut, by Stoer and Wagner
    dtw_distance(first, second)                      # of two series

At the start, all clients form one cluster. Each round, a cluster adds the mean of its clients' updates, weighted by their numbers
of training items, to its parameters. A cluster of three or more is split while the mean update is shorter than `epsilon1` and the
longest one longer than `epsilon2`. Similar clients stay together. Similarity is the cosine of the updates (`clusters`), or the
dynamic time warping distance of two series: of the norms of the updates (`clusters-by-update-norms`), or of the last gradients,
which clients upload in a row of their own (`clusters-by-gradient-norms`).

Leakage: the server sees every client's rows and which clients are similar. Clients see when their cluster is split.
Source: GCFL and GCFL+ (Xie et al. 2021), and their code. Differs: clients upload parameters, from which the server computes
updates. With partial participation, the most recent update of each client counts; in the code, all take part. Cosines are cut at
-1, where rounding goes below. A series without variance is not standardized; the code divides by zero.

Legend: `C` clients, `K` clusters, `N` rows, `W` their width, `L` norms of a series.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fkgsec.exchange.aggregation import AGGREGATIONS, Aggregation
from fkgsec.exchange.parts import Delivered, Upload, tensor_places

GRADIENT_NORM = "gradient_norm"
"""Name of the tensor with one number: the norm of a client's last gradient of the shared parameters."""


class Clusters(Aggregation):
    """GCFL. Settings: `epsilon1`, `epsilon2`, `first_cut`.

    Attributes:
        cluster: int64 `[C]`, of each client. models: float32 `[K, N, W]`, the rows of each cluster.
        updates: float32 `[C, N, W]`, each client's last update. seen: bool `[C]`, clients that ever uploaded.
    """

    needs = "single uploads"
    answers = "personal rows"
    keeps_uploads = True
    state: ClassVar[tuple[str, ...]] = ("cluster", "models", "updates", "seen")

    def begin(self) -> None:
        count, rows = len(self.shared.parties), self.shared.rows
        self.cluster = torch.zeros(count, dtype=torch.int64)
        self.models = rows[None].clone()
        self.updates = rows.new_zeros(count, *rows.shape)
        self.seen = torch.zeros(count, dtype=torch.bool)
        self._place = {party: place for place, party in enumerate(self.shared.parties)}
        self._norm_rows = tensor_places(self.shared.names).get(GRADIENT_NORM, torch.zeros(0, dtype=torch.int64))

    def aggregate(self, round: int, previous: Tensor, delivered: Delivered) -> Tensor:
        # Split clusters, then add to each the mean update of its clients; the table does not change.
        for party, upload in delivered.uploads.items():
            self._take_in(self._place[party], upload)
        if round > self.options.settings.first_cut:
            for number in range(len(self.models)):
                self._cut(number)
        # Xie et al. 2021: each cluster runs federated averaging on its own, weighted by the clients' training items.
        weights = {self._place[party]: upload.weight for party, upload in delivered.uploads.items()}
        for number in range(len(self.models)):
            members = [place for place in weights if self.cluster[place] == number]
            if members:
                shares = torch.tensor([weights[place] for place in members], dtype=torch.float64)
                mean = (shares / shares.sum())[:, None, None] * self.updates[members].double()
                self.models[number] += mean.sum(0).float()
        return previous

    def _take_in(self, place: int, upload: Upload) -> None:
        model = self.models[self.cluster[place]]
        self.updates[place] = 0.0
        self.updates[place, upload.places] = upload.rows.float() - model[upload.places]
        self.updates[place, self._norm_rows] = 0.0
        self.seen[place] = True

    def _cut(self, number: int) -> None:
        """Split a cluster in two if its updates require it. The part with the first client keeps the number."""
        (members,) = torch.nonzero(self.cluster == number, as_tuple=True)
        if len(members) <= 2 or not self.seen[members].all() or not self._ready():
            return
        updates, settings = self.updates[members].flatten(1).double(), self.options.settings
        # GCFL's criterion: the mean update is short (the cluster has converged) while some client's is long (it has not).
        if updates.mean(0).norm() < settings.epsilon1 and updates.norm(dim=1).max() > settings.epsilon2:
            # A minimum cut of the similarity graph separates the least similar clients.
            apart = torch.from_numpy(cut(self._similarity(members)))
            apart = ~apart if apart[0] else apart
            self.cluster[members[apart]] = len(self.models)
            self.models = torch.cat([self.models, self.models[number][None]])
            self._forget()

    def _ready(self) -> bool:
        return True

    def _similarity(self, members: Tensor) -> np.ndarray:
        """Compute the similarity of each pair of clients of a cluster, 0 or more: float64 `[c, c]`."""
        updates = self.updates[members].flatten(1).double()
        norms = updates.norm(dim=1)
        cosines = updates @ updates.T / (norms[:, None] * norms).clamp_min(1e-12)
        # Stoer and Wagner's algorithm needs weights of at least 0.
        return (cosines + 1).clamp_min(0).numpy()

    def _forget(self) -> None:
        return

    def answer(self, round: int, party: str | None, holding: Tensor) -> Tensor:
        if party is None:
            return super().answer(round, party, holding)
        return self.models[self.cluster[self._place[party]]][holding]

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in self.state}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, tensor.clone())


class ClustersByNorms(Clusters):
    """GCFL+. Further settings: `seq_length`, `standardize`; all series begin anew after a split.

    Attributes:
        norms: float64 `[C, L]`, each client's latest in the last column; NaN where there are fewer.
    """

    state = (*Clusters.state, "norms")

    def begin(self) -> None:
        super().begin()
        self._forget()

    def _take_in(self, place: int, upload: Upload) -> None:
        super()._take_in(place, upload)
        self.norms[place] = torch.cat([self.norms[place, 1:], self._norm(place, upload).double().reshape(1)])

    def _norm(self, place: int, upload: Upload) -> Tensor:
        """Return the next number of a client's series: the norm of its update."""
        return self.updates[place].double().norm()

    def _ready(self) -> bool:
        return not bool(self.norms.isnan().any())

    def _similarity(self, members: Tensor) -> np.ndarray:
        series = self.norms[members].numpy()
        if self.options.settings.standardize:
            spread = series.std(axis=1, keepdims=True)
            series = series / np.where(spread > 0, spread, 1.0)
        # GCFL+: similarity from the dynamic time warping distance of the series. Clients with the same trend stay together.
        distances = np.array([[dtw_distance(first, other) for other in series] for first in series])
        return distances.max() - distances

    def _forget(self) -> None:
        length = self.options.settings.seq_length
        self.norms = torch.full((len(self.shared.parties), length), torch.nan, dtype=torch.float64)


class ClustersByGradientNorms(ClustersByNorms):
    """GCFL+ as in its code: series of the gradient norms that clients report."""

    def _norm(self, place: int, upload: Upload) -> Tensor:
        (row,) = self._norm_rows.tolist()
        return upload.rows[upload.places == row][0, 0]


def cut(similarity: np.ndarray) -> np.ndarray:
    """Compute one side of a minimum cut of a complete graph, bool `[c]`.

    Args:
        similarity: weights, 0 or more, `[c, c]`.

    Source: Stoer and Wagner 1997.

    >>> sides = cut(np.array([[0, 3, 1], [3, 0, 1], [1, 1, 0]]))
    >>> bool(sides[0] == sides[1] != sides[2])
    True
    """
    # Nothing else of the registries needs networkx.
    import networkx as nx

    graph = nx.Graph()
    count = len(similarity)
    graph.add_weighted_edges_from(
        (left, other, float(similarity[left, other])) for left in range(count) for other in range(left)
    )
    _, (side, _) = nx.stoer_wagner(graph)
    return np.isin(np.arange(count), list(side))


def dtw_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Compute the dynamic time warping distance of two series.

    It is the root of the least sum of squared differences along a path that steps on in one of them or in both.

    Args:
        first, second: float `[n]`, `[m]`.

    >>> dtw_distance(np.array([0.0, 1.0, 1.0]), np.array([0.0, 0.0, 3.0]))  # 1 with the second 0, 1 with 3
    2.23606797749979
    """
    costs = np.full((len(first) + 1, len(second) + 1), np.inf)
    costs[0, 0] = 0.0
    for row, value in enumerate(first):
        for other, against in enumerate(second):
            # Dynamic programming: the best path to this pair comes from one of three neighbors.
            before = min(costs[row, other], costs[row, other + 1], costs[row + 1, other])
            costs[row + 1, other + 1] = (value - against) ** 2 + before
    return float(np.sqrt(costs[-1, -1]))


AGGREGATIONS.register("clusters", Clusters)
AGGREGATIONS.register("clusters-by-update-norms", ClustersByNorms)
AGGREGATIONS.register("clusters-by-gradient-norms", ClustersByGradientNorms)
