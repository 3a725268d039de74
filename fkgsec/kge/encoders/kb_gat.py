"""KB-GAT: two layers of attention over triples and over pairs of them that follow each other, then ConvKB.

    KgeOptions(model="kb-gat", algorithm="fede", dim=50, local_epochs=10)

A tail attends to its triples (h, r, t), and to paths of two triples, (h, r1, m) and (m, r2, t), with r1 + r2. The encoder is
trained with the TransE distance. ConvKB, which scores, is trained afterwards on encoded rows.

Source: Nathani et al. 2019, as in fedr.txt appendix D and its published code: one head, 50 dimensions, LeakyReLU 0.2, margin 5
between L1 distances, one corrupted head and tail per triple. That code trains 500 epochs of the encoder per round and 150 of
ConvKB at each evaluation, with 40 negatives. Each step passes over the whole graph, which is slow on a CPU. The defaults of
`local_epochs`, `decoder_epochs` and `decoder_negatives` are therefore far smaller, and figures are not those of the paper.

Differs: input rows are uploaded; the code uploads encoded rows, whose means are the next inputs. ConvKB trains only its own
parameters (code: its copy of the rows, too). Attention is added for all entities, in training and in the final model (code: in
each step only for the tails of its batch, and the final model is that of the last step). Gradients pass through the norm of input
rows. Initial entity rows are `KgeModel.initial_rows` (code: zeros). Of several paths between two entities, the first by IDs
counts, with the first relation of each pair (code: the first path of a breadth-first search, and the last relation). The learning
rate is constant (code: ConvKB's is halved every 25 epochs).

Legend: `N` entities, `M` relations, `E` edges, `D` dimension, `B` triples, `K` negatives of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu, normalize, relu, softplus

from fkgsec.adam import Adam
from fkgsec.data.graph import ClientGraph
from fkgsec.gnn.models import dropout
from fkgsec.kge.encoders.client import ClientEncoder, Rows
from fkgsec.kge.encoders.convkb import ConvKb, ConvKbModel
from fkgsec.kge.local.training import corrupting_entities
from fkgsec.kge.models import MODELS, ClientTables, EncoderModel, KgeModel, Side
from fkgsec.kge.negatives import NegativeSampler
from fkgsec.kge.options import KgeOptions

MARGIN = 5.0
SLOPE = 0.2
DECODER_BATCH = 128
DECODER_DECAY = 1e-5
SOURCES_AT_ONCE = 256


class Edges(NamedTuple):
    """Edges of attention, int64 `[E]` each: an entity, its neighbor, and their relations; `M` stands for no second
    relation.
    """

    target: Tensor
    source: Tensor
    first: Tensor
    second: Tensor


def edges_of(triples: np.ndarray, num_entities: int, num_relations: int) -> Edges:
    """Build the edges of a client: from each tail to its head, and from each entity to those exactly two triples away.

    Of several triples between two entities, the first by relation counts on a path; of several paths, the first by IDs.

    Args:
        triples: int64 `[n, 3]`, local IDs.
        num_entities: N.
        num_relations: M.
    """
    # One triple per pair of entities, the first by relation; `start` then finds the triples of a head.
    distinct = np.unique(triples[:, [0, 2, 1]], axis=0)  # head, tail, relation
    linked = distinct[np.unique(distinct[:, :2], axis=0, return_index=True)[1]]
    start = np.searchsorted(linked[:, 0], np.arange(num_entities + 1))
    # Paths of length two, in blocks of heads: all of them at once need memory of the order of their number.
    paths = [np.empty((0, 4), dtype=np.int64)]
    for low in range(0, num_entities, SOURCES_AT_ONCE):
        steps = linked[start[low] : start[min(low + SOURCES_AT_ONCE, num_entities)]]
        count = start[steps[:, 1] + 1] - start[steps[:, 1]]
        first = np.repeat(np.arange(len(steps)), count)
        # For each first triple, list the triples that begin at its tail.
        second = (
            np.arange(len(first)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(start[steps[:, 1]], count)
        )
        head, tail = steps[first, 0], linked[second, 1]
        ends = head * num_entities + tail
        # Only pairs without a triple of their own: closer neighbors are edges already.
        new = (head != tail) & ~np.isin(ends, steps[:, 0] * num_entities + steps[:, 1])
        new_ends = np.nonzero(new)[0][np.unique(ends[new], return_index=True)[1]]
        paths.append(np.stack([tail, head, steps[first, 2], linked[second, 2]], axis=1)[new_ends])
    # Edges of single triples have no second relation: M marks it, and its vector is zero.
    near = np.column_stack([triples[:, [2, 0, 1]], np.full(len(triples), num_relations)])
    return Edges(*(torch.from_numpy(column.copy()) for column in np.concatenate([near, *paths]).T))


class Attention(nn.Module):
    """Attention head over edges: for each edge a vector c = A [target | source | relation], weighed by softmax(-LeakyReLU(a c)).

    Source: Nathani et al. 2019, Eq. 5 to 8. Differs as the code does: the sign in the softmax.
    """

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.parts = nn.Parameter(_xavier(rng, 3 * dim, dim, normal=True))  # of the target, the source and the relation
        self.weigh = nn.Parameter(_xavier(rng, dim, 1, normal=True))

    def forward(self, x: Tensor, relations: Tensor, edges: Edges, drop: Callable[[Tensor], Tensor]) -> Tensor:
        """Gather over edges.

        Args:
            x: float `[N, D]`, entities.
            relations: float `[M, D]`.
            edges: who attends to whom.
            drop: dropout of attention weights.

        Returns:
            The weighted sum over each entity's edges, `[N, D]`; zeros without edges.
        """
        # c_ijk = W1 [h_i | h_j | g_k] (Nathani et al. 2019, Eq. 5): W1 is split, so that each part multiplies N or M
        # rows, not E.
        at_target, at_source, at_relation = self.parts.chunk(3)
        # Row M is zero: the missing second relation of a direct neighbor adds nothing.
        by_relation = torch.cat([relations @ at_relation, relations.new_zeros(1, x.shape[1])])
        vectors = (x @ at_target).index_select(0, edges.target) + (x @ at_source).index_select(0, edges.source)
        vectors = vectors + by_relation.index_select(0, edges.first) + by_relation.index_select(0, edges.second)
        # b_ijk = LeakyReLU(W2 c_ijk) (Eq. 6), with the sign of the published code.
        powers = -leaky_relu(vectors @ self.weigh, SLOPE)[:, 0]
        # Softmax over the edges of each target (Eq. 7); the highest is subtracted so that exp does not overflow.
        highest = torch.full((len(x),), -math.inf, device=x.device).scatter_reduce(
            0, edges.target, powers.detach(), "amax"
        )
        weights = torch.exp(powers - highest[edges.target])
        total = torch.zeros(len(x), device=x.device).index_add(0, edges.target, weights)
        weights = drop(weights / total.index_select(0, edges.target))
        # h_i' = sum of attention times c_ijk (Eq. 8); the caller applies the nonlinearity.
        return torch.zeros_like(x).index_add(0, edges.target, weights[:, None] * vectors)


class KbGatNetwork(nn.Module):
    """Two layers of attention, and the decoder. Input rows of width `D`, output rows of width `D` and length 1."""

    def __init__(self, edges: Edges, dim: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.edges = edges
        self.near, self.far = Attention(dim, rng), Attention(dim, rng)
        self.of_relations = nn.Parameter(_xavier(rng, dim, dim))
        self.of_entities = nn.Parameter(_xavier(rng, dim, dim))
        self.decoder = ConvKb(dim, rng)

    def forward(
        self, entities: Tensor, relations: Tensor, drop: Callable[[Tensor], Tensor] = lambda x: x
    ) -> tuple[Tensor, Tensor]:
        """Encode entities and relations.

        Args:
            entities: float `[N, D]`.
            relations: float `[M, D]`.
            drop: dropout, the identity in evaluation.

        Returns:
            Entities `[N, D]` of length 1 and relations `[M, D]`.
        """
        # Input entities are scaled to length 1, as in the published code.
        entities = normalize(entities)
        # First layer: one attention head, then ELU and dropout.
        x = drop(elu(self.near(entities, relations, self.edges, drop)))
        # Relations are projected between the two layers: G' = G W_R (Nathani et al. 2019, section 3.3).
        relations = relations @ self.of_relations
        x = elu(self.far(x, relations, self.edges, drop))
        # H'' = W_E H_input + H_output (Nathani et al. 2019, section 3.3), so that the input rows are not lost.
        return normalize(entities @ self.of_entities + x), relations


def _xavier(rng: np.random.Generator, inputs: int, outputs: int, *, normal: bool = False) -> Tensor:
    """Draw initial weights `[inputs, outputs]`, Xavier with gain 1.414, as in the published code."""
    deviation = 1.414 * math.sqrt(2 / (inputs + outputs))
    half = deviation * math.sqrt(3)
    drawn = rng.normal(0, deviation, (inputs, outputs)) if normal else rng.uniform(-half, half, (inputs, outputs))
    return torch.from_numpy(drawn.astype(np.float32))


class KbGatEncoder(ClientEncoder):
    """KB-GAT encoder of one client; see the module."""

    weight_decay = 5e-6

    def __init__(self, graph: ClientGraph, triples: np.ndarray, options: KgeOptions, key: int) -> None:
        super().__init__(graph, triples, options, key)
        device = options.torch_device()
        edges = edges_of(triples, graph.num_entities, graph.num_relations)
        edges = Edges(*(part.to(device) for part in edges))
        self._network = KbGatNetwork(edges, options.kge_model().dim, self.rng("initial network")).to(device)
        self.network = self._network
        self._dropout = options.encoder_setting("dropout")
        candidates = corrupting_entities(graph, options)
        self._sampler = NegativeSampler(triples, num_relations=graph.num_relations, candidates=candidates)
        self._sides: tuple[Side, ...] = ("tail",) if options.negative_sides == "tail" else ("head", "tail")

    @property
    def num_steps(self) -> int:
        """Number of optimizer steps per round."""
        return self.options.local_epochs * -(-len(self.triples) // self.options.batch_size)

    def train(self, rows: Rows, step: Callable[[], None], round: int, on_step: Callable[[], None]) -> float:
        losses: list[float] = []
        for epoch in range(self.options.local_epochs):
            # Each epoch draws its order, negatives and dropout from separate generators, so that none shifts another.
            order = self.rng("shuffle", round, epoch).permutation(len(self.triples))
            draws, drops = self.rng("negatives", round, epoch), self.rng("dropout", round, epoch)
            for number, low in enumerate(range(0, len(order), self.options.batch_size)):
                entities, relations = self._network(
                    rows["entities"], rows["relations"], lambda x, rng=drops: dropout(x, self._dropout, rng)
                )
                chosen = order[low : low + self.options.batch_size]
                loss = self._distance_loss(entities, relations, chosen, draws)
                losses.append(self.checked(float(loss.detach()), round, epoch, number))
                loss.backward()
                step()
                on_step()
        return float(np.mean(losses))

    def _distance_loss(
        self, entities: Tensor, relations: Tensor, chosen: np.ndarray, rng: np.random.Generator
    ) -> Tensor:
        """Compute the mean of max(0, 5 + |h + r - t| - that of a corrupted triple), L1 norms, over two negatives per
        triple.
        """
        head, relation, tail = torch.from_numpy(self.triples[chosen]).to(entities.device).unbind(1)
        h, r, t = entities.index_select(0, head), relations.index_select(0, relation), entities.index_select(0, tail)
        # TransE's distance with the L1 norm, of encoded rows.
        true = (h + r - t).abs().sum(1)
        losses = []
        # Two negatives per triple: a head and a tail, or two tails if only tails are corrupted.
        for side in (self._sides * 2)[:2]:
            drawn = self._sampler.sample(chosen, 1, side, rng)[:, 0].long().to(entities.device)
            false = entities.index_select(0, drawn.clamp_min(0))
            distance = (h + r - false if side == "tail" else false + r - t).abs().sum(1)
            losses.append(relu(MARGIN + true - distance)[drawn >= 0])
        # Negatives that are known triples are left out, so the number of terms varies.
        terms = torch.cat(losses)
        return terms.sum() / max(1, len(terms))

    def fit_decoder(self, rows: Rows, round: int) -> None:
        """Train ConvKB on fixed encoded rows: mean of log(1 + e^(-y s)), y = 1 for a triple and -1 for a corrupted one.

        Args:
            rows: input rows.
            round: the client's last round of training.
        """
        # ConvKB trains on the final encoding; no gradient reaches the encoder or the input rows.
        encoded = self.encode(rows, self.network.state_dict())
        decoder = self._network.decoder
        adam = Adam(decoder.parameters(), lr=self.options.learning_rate, weight_decay=DECODER_DECAY)
        model = ConvKbModel(self.options.model, self.options.kge_model().dim, decoder=dict(decoder.named_parameters()))
        for epoch in range(self.options.encoder_setting("decoder_epochs")):
            order = self.rng("decoder shuffle", round, epoch).permutation(len(self.triples))
            draws = self.rng("decoder negatives", round, epoch)
            for number, low in enumerate(range(0, len(order), DECODER_BATCH)):
                with torch.enable_grad():
                    loss = self._decoder_loss(model, encoded, order[low : low + DECODER_BATCH], draws)
                    self.checked(float(loss.detach()), round, epoch, number)
                    loss.backward()
                adam.step()
                adam.zero_grad()

    def _decoder_loss(
        self, model: KgeModel, encoded: ClientTables, chosen: np.ndarray, rng: np.random.Generator
    ) -> Tensor:
        triples = torch.from_numpy(self.triples[chosen]).to(encoded.entities.device)
        num_negatives, losses = self.options.encoder_setting("decoder_negatives"), []
        for place, side in enumerate(self._sides):
            # Divide the negatives over the sides; the first side takes the odd one.
            count = num_negatives // len(self._sides) + (place < num_negatives % len(self._sides))
            drawn = self._sampler.sample(chosen, count, side, rng).long().to(triples.device)
            anchor, candidate = (0, 2) if side == "tail" else (2, 0)
            queries = model.query(encoded.entities[triples[:, anchor]], encoded.relations[triples[:, 1]], side)
            candidates = torch.cat([triples[:, candidate, None], drawn], dim=1)
            scores = model.pair_scores(queries[:, None], encoded.entities[candidates.clamp_min(0)])
            # The positive counts once, whatever the number of sides.
            if place == 0:
                losses.append(softplus(-scores[:, 0]))
            losses.append(softplus(scores[:, 1:])[drawn >= 0])
        return torch.cat(losses).mean()

    @torch.no_grad()
    def encode(self, rows: Rows, state: Mapping[str, Tensor]) -> ClientTables:
        # Encode without dropout.
        both = rows["entities"], rows["relations"]
        entities, relations = torch.func.functional_call(self._network, dict(state), both)
        decoder = {name: state[f"decoder.{name}"].detach() for name, _ in self._network.decoder.named_parameters()}
        return ClientTables(entities, relations, decoder)


def _decoder(model: KgeModel, encoded: ClientTables) -> KgeModel:
    return ConvKbModel(model.name, model.dim, model.gamma, model.init_epsilon, decoder=encoded.decoder)


KB_GAT = EncoderModel(
    MODELS["transe"], KbGatEncoder, {"dropout": 0.3, "decoder_epochs": 5, "decoder_negatives": 10}, _decoder
)
