"""NoGE: a graph convolution over entities and relations that co-occur in triples, QuatE's scores of all entities.

    KgeOptions(model="noge", algorithm="fede", dim=128, learning_rate=0.01, batch_size=1024)

Each entity and each relation of the client is a node. Edges connect nodes that occur in the same triple (`cooccurrence`). One
layer: tanh(batch norm(A X W)), with A the row-normalized weights and self-loops.

Source: Nguyen et al. 2022, as in fedr.txt appendix B.2 and the NoGE folders of FedR's code.
Differs: in their code, received rows only enter training if an evaluation wrote them into the model (`trains_from`). It tests the
best round's embeddings with the *last* round's network; ours are of one round. Clients of its Local train on and rank all
entities of the federation, those of its FedR only their own (`rank_scope`). Its nodes are the entities of the train split; ours
are all the client's entities, and those of valid and test have no edges. Initial rows are `KgeModel.initial_rows` (theirs: Xavier
normal). It trains tails only (`negative_sides`; "both" alternates heads and tails between epochs). Its FedE variant weights
co-occurrences with relation 0 as if that were an entity; its FedR variant and ours do not.

Legend: `N` entities, `M` relations, `D` width, `B` queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from fkgsec.data.graph import ClientGraph
from fkgsec.gnn.batches import compressed
from fkgsec.gnn.geometric import layers
from fkgsec.gnn.models import dropout
from fkgsec.kge import kernels
from fkgsec.kge.encoders.client import ClientEncoder, Rows
from fkgsec.kge.encoders.one_to_all import one_to_all_loss
from fkgsec.kge.encoders.quaternions import QUATE
from fkgsec.kge.models import ClientTables, EncoderModel, Side
from fkgsec.kge.negatives import KnownTriples
from fkgsec.kge.options import KgeOptions

MAX_GRADIENT_NORM = 0.5  # of all gradients together. Source: NoGE's code.


def cooccurrence(triples: np.ndarray, num_entities: int, num_relations: int) -> sparse.csr_array:
    """Compute the weights between nodes, entities first; each row sums to 1.

    The three parts of a triple co-occur pairwise. Let n(w, c) count how often nodes w and c co-occur, n(w) how often w
    co-occurs with any node, and n all co-occurrences. The weight is n(w, c) / n(w) between entities, and n(w, c) / n if
    one is a relation. Every node has a loop of weight 1; then rows are divided by their sums. A repeated triple counts
    each time.

    Args:
        triples: int64 `[n, 3]`.
        num_entities: N.
        num_relations: M.

    Returns:
        Weights, float64 `[N + M, N + M]`.

    Source: Nguyen et al. 2022, section 3; code of NoGE.
    """
    size = num_entities + num_relations
    # Relation r is node N + r.
    nodes = triples[:, [0, 2, 1]] + np.array([0, 0, num_entities])
    # Each triple gives all six ordered pairs of its head, tail and relation.
    pairs = np.concatenate([nodes[:, [i, j]] for i in range(3) for j in range(3) if i != j])
    # n(w, c): the conversion to CSR adds up repeated pairs.
    counts = sparse.coo_array((np.ones(len(pairs)), pairs.T), shape=(size, size)).tocsr().tocoo()
    word, context = counts.coords
    entities = (word < num_entities) & (context < num_entities)
    # Between entities divide by n(w), else by n.
    totals = np.where(entities, counts.sum(axis=1)[word], counts.sum())
    weights = sparse.coo_array((counts.data / totals, (word, context)), shape=(size, size)) + sparse.eye_array(size)
    return sparse.csr_array(weights.multiply(1 / weights.sum(axis=1)[:, None]))


class NogeNetwork(nn.Module):
    """Graph convolution with batch norm: rows `[N + M, D]` to rows in (-1, 1) of the same shape.

    Args:
        adjacency: from `cooccurrence`.
        dim: D.
        rng: draws the initial weights, uniform in +-1 / sqrt(D).
        device: where the network lives.
    """

    def __init__(self, adjacency: sparse.csr_array, dim: int, rng: np.random.Generator, device: torch.device) -> None:
        super().__init__()
        self.adjacency = compressed(adjacency.indptr, adjacency.indices, adjacency.data.astype(np.float32)).to(device)
        # The adjacency is normalized already: torch_geometric must not normalize it again.
        self.convolution = layers().GCNConv(dim, dim, normalize=False, bias=False).to(device)
        half = dim**-0.5
        # Replace torch's initialization, whose draws depend on the global generator.
        drawn = rng.uniform(-half, half, size=(dim, dim)).astype(np.float32)
        self.convolution.lin.weight.data.copy_(torch.from_numpy(drawn))
        self.norm = nn.BatchNorm1d(dim).to(device)

    def forward(self, rows: Tensor) -> Tensor:
        """Compute tanh(batch norm(A X W)) of rows `[N + M, D]`.

        Args:
            rows: float `[N + M, D]`, entities first.
        """
        return torch.tanh(self.norm(self.convolution(rows, self.adjacency)))


class NogeEncoder(ClientEncoder):
    """NoGE encoder of one client; see the module."""

    def __init__(self, graph: ClientGraph, triples: np.ndarray, options: KgeOptions, key: int) -> None:
        super().__init__(graph, triples, options, key)
        adjacency = cooccurrence(triples, graph.num_entities, graph.num_relations)
        self.network = NogeNetwork(
            adjacency, options.kge_model().dim, self.rng("initial network"), options.torch_device()
        )
        self._model = options.kge_model()
        self._dropout, self._smoothing = options.encoder_setting("dropout"), options.encoder_setting("label_smoothing")
        # Candidates are the entities of the client's train split, its first rows; in scope "all", every row that it keeps.
        own_entities = options.negative_scope == "own"
        self._num_candidates = graph.num_trained_entities if own_entities else graph.num_entities
        sides: tuple[Side, ...] = ("tail",) if options.negative_sides == "tail" else ("tail", "head")
        self._targets: dict[Side, KnownTriples] = {
            side: KnownTriples.build(triples, side, graph.num_relations) for side in sides
        }

    @property
    def num_steps(self) -> int:
        # Number of optimizer steps per round, for the longer of two consecutive rounds.
        # Alternating sides differ in the number of batches; a progress bar needs the larger number.
        epochs = range(self.options.local_epochs)
        return max(sum(len(at) for epoch in epochs for _, at in self._sides(first + epoch)) for first in (0, 1))

    def _sides(self, turn: int) -> list[tuple[Side, range]]:
        """List the sides of an epoch and where the batches of their queries begin. "both" alternates sides between
        epochs.
        """
        targets: list[tuple[Side, KnownTriples]] = list(self._targets.items())
        if self.options.negative_sides == "both":
            targets = [targets[turn % 2]]
        return [(side, range(0, len(triples.keys), self.options.batch_size)) for side, triples in targets]

    def train(self, rows: Rows, step: Callable[[], None], round: int, on_step: Callable[[], None]) -> float:
        losses: list[float] = []
        self.network.train()
        for epoch in range(self.options.local_epochs):
            for side, starts in self._sides(round + epoch):
                order = self.rng("shuffle", round, epoch, side).permutation(len(self._targets[side].keys))
                rng = self.rng("dropout", round, epoch, side)
                for number, low in enumerate(starts):
                    loss = self._backward(rows, side, order[low : low + self.options.batch_size], rng)
                    losses.append(self.checked(loss, round, epoch, number))
                    self._clip(rows)
                    step()
                    on_step()
        return float(np.mean(losses))

    def _backward(self, rows: Rows, side: Side, groups: np.ndarray, rng: np.random.Generator) -> float:
        """Add the gradient of the mean loss of some (anchor, relation) groups; return that loss."""
        triples, N = self._targets[side], self.graph.num_entities
        # The whole graph is encoded in every step: batch norm needs all nodes.
        encoded = self.network(torch.cat([rows["entities"], rows["relations"]]))
        # A group's key packs (anchor, relation) into one number.
        anchor, relation = np.divmod(triples.keys[groups], triples.num_relations)
        queries = self._model.query(encoded[torch.from_numpy(anchor)], encoded[torch.from_numpy(N + relation)], side)
        queries, candidates = dropout(queries, self._dropout, rng), encoded[: self._num_candidates]
        loss, *gradients = one_to_all_loss(
            queries, candidates, *triples.expand(groups), label_smoothing=self._smoothing
        )
        # The gradient of the scores is explicit; autograd carries it through the network.
        torch.autograd.backward([queries, candidates], gradients)
        return loss

    def _clip(self, rows: Rows) -> None:
        """Scale all gradients so that their joint norm is at most `MAX_GRADIENT_NORM`."""
        gradients = [
            gradient.grad for gradient in (*rows.values(), *self.network.parameters()) if gradient.grad is not None
        ]
        # Sums in a fixed order: the clipped gradient must not depend on the number of threads.
        norm = sum(kernels.ordered_sum(gradient.square().flatten()) for gradient in gradients) ** 0.5
        if norm > MAX_GRADIENT_NORM:
            for gradient in gradients:
                gradient.mul_(MAX_GRADIENT_NORM / norm)

    @torch.no_grad()
    def encode(self, rows: Rows, state: Mapping[str, Tensor]) -> ClientTables:
        # Encode with the running statistics of batch norm.
        self.network.eval()
        both = torch.cat([rows["entities"], rows["relations"]])
        encoded = torch.func.functional_call(self.network, dict(state), (both,))
        return ClientTables(*encoded.split([len(rows["entities"]), len(rows["relations"])]))


NOGE = EncoderModel(QUATE, NogeEncoder, {"dropout": 0.5, "label_smoothing": 0.1})
