"""An interaction with parameters outside the rows, such as ConvE's filters: a network of the client, trained with its rows.

    KgeOptions(model="pykeen:ConvE", algorithm="fede", dim=64)

Clients transmit rows of entities and relations as the algorithm says. The interaction, with its running averages, stays with its
client, unless the algorithm shares the table `network`. A step equals that of models without a network
(`fkgsec.kge.local.training`): the same order of triples, negatives and loss, one client after the other.

Legend: `B` positives of a step, `K` 1 + negatives, `N` entities, `W`, `V` widths of rows of entities and relations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fkgsec.data.graph import ClientGraph
from fkgsec.kge.encoders.client import ClientEncoder, Rows
from fkgsec.kge.interactions.layout import Plugged
from fkgsec.kge.interactions.scoring import queries_of, scores_of, scoring_without_network
from fkgsec.kge.local.training import corrupted_sides, corrupting_entities
from fkgsec.kge.loss import negative_sampling_loss
from fkgsec.kge.models import ClientTables, EncoderModel, KgeModel, Side
from fkgsec.kge.negatives import NegativeSampler
from fkgsec.kge.options import KgeOptions
from fkgsec.threads import one_thread

CANDIDATES_AT_ONCE = 2**16  # scores of queries against entities that are held at once


@functools.cache
def encoder_model(name: str) -> EncoderModel | None:
    """Return the model of an interaction with parameters.

    Args:
        name: such as "pykeen:ConvE".

    Returns:
        The model, or None if the interaction has no parameters outside the rows.

    Raises:
        SpecError: see `Plugged.named`.
    """
    plugged = Plugged.named(name)
    if not plugged.has_network:
        return None

    def check(dim: int) -> None:
        """Raise `SpecError` if the interaction does not support the dimension."""
        with torch.random.fork_rng(devices=[]):
            plugged.make(dim)

    def decoder(model: KgeModel, encoded: ClientTables) -> KgeModel:
        """Return the model that scores a client's rows."""
        return InteractionModel(model.name, model.dim, model.gamma, model.init_epsilon, network=encoded.decoder)

    scoring = scoring_without_network(plugged)
    return EncoderModel(scoring, InteractionEncoder, {}, decoder, samples_negatives=True, check=functools.cache(check))


class InteractionEncoder(ClientEncoder):
    """Encoder whose network is the interaction; see the module."""

    def __init__(self, graph: ClientGraph, triples: np.ndarray, options: KgeOptions, key: int) -> None:
        super().__init__(graph, triples, options, key)
        self._plugged, self._model = Plugged.named(options.model), options.kge_model()
        with self._drawing("initial network"):
            self.network = self._plugged.make(self._model.dim).to(options.torch_device())
        candidates = corrupting_entities(graph, options)
        self._sampler = NegativeSampler(triples, num_relations=graph.num_relations, candidates=candidates)

    def _drawing(self, purpose: str, *where: int) -> _Drawing:
        """Return a context in which torch draws this client's numbers for a purpose: initial values, dropout masks."""
        return _Drawing(int(self.rng(purpose, *where).integers(2**63 - 1)))

    @property
    def num_steps(self) -> int:
        batches = -(-len(self.triples) // self.options.batch_size)
        return self.options.local_epochs * batches * len(corrupted_sides(self.options, 0))

    def train(self, rows: Rows, step: Callable[[], None], round: int, on_step: Callable[[], None]) -> float:
        losses: list[float] = []
        self.network.train()
        size = self.options.batch_size
        with self._drawing("dropout", round):
            for epoch in range(self.options.local_epochs):
                order = self.rng("shuffle", round, epoch).permutation(np.arange(len(self.triples)))
                draws = self.rng("negatives", round, epoch)
                for number, low in enumerate(range(0, len(order), size)):
                    for side in corrupted_sides(self.options, number + epoch + round):
                        loss = self._backward(rows, order[low : low + size], side, draws)
                        losses.append(self.checked(loss, round, epoch, number))
                        step()
                        on_step()
        return float(np.mean(losses))

    def _backward(self, rows: Rows, chosen: np.ndarray, side: Side, draws: np.random.Generator) -> float:
        """Add the gradient of the mean loss of some triples; return that loss."""
        triples = torch.from_numpy(self.triples[chosen])
        negatives = self._sampler.sample(chosen, self.options.num_negatives, side, draws).long()
        # Column 0 of the candidates is the positive, as in the compiled loops.
        anchor, replaced = (0, 2) if side == "tail" else (2, 0)
        candidates = torch.cat([triples[:, replaced, None], negatives], dim=1).to(rows["entities"].device)
        triples = triples.to(candidates.device)
        # -1 marks masked negatives; their scores are computed for row 0 and ignored.
        anchors, others = rows["entities"][triples[:, anchor, None]], rows["entities"][candidates.clamp_min(0)]
        heads, tails = (anchors, others) if side == "tail" else (others, anchors)
        scores = self._plugged.score(
            self.network, heads, rows["relations"][triples[:, 1, None]], tails, self._model.dim
        )
        losses = negative_sampling_loss(
            scores + (self._model.gamma if self._plugged.has_margin else 0.0),
            candidates >= 0,
            temperature=self.options.sampling_temperature,
        )
        loss = losses.mean() / 2  # (positive + negative) / 2, as models without a network have it
        loss.backward()
        return float(loss.detach())

    def encode(self, rows: Rows, state: Mapping[str, Tensor]) -> ClientTables:
        return ClientTables(rows["entities"], rows["relations"], dict(state))


class _Drawing:
    """Context that seeds torch's generators of the CPU and the current GPU, and restores them."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._fork = torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else [])

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *error: object) -> None:
        self._fork.__exit__(None, None, None)


@dataclass(frozen=True, eq=False)
class InteractionModel(KgeModel):
    """Scores by a client's own interaction, as it is without dropout.

    Queries hold everything that a candidate is scored with: anchor `[W]`, relation `[V]`, and which side is replaced.

    Args (in addition to those of `KgeModel`):
        network: the interaction's parameters and buffers by name.
    """

    network: Mapping[str, Tensor] = field(default_factory=dict)

    @functools.cached_property
    def _interaction(self) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            module = Plugged.named(self.name).make(self.dim)
        # The module is rebuilt from its tensors, since results store tensors only.
        module.load_state_dict(dict(self.network))
        first = next(iter(self.network.values()))
        return module.to(first.device).eval().requires_grad_(False)

    def query(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        return queries_of(anchors, relations, side)

    def pair_scores(self, queries: Tensor, candidates: Tensor) -> Tensor:
        with one_thread():
            return self._added + scores_of(Plugged.named(self.name), self._interaction, queries, candidates, self.dim)

    @property
    def _added(self) -> float:
        return self.gamma if Plugged.named(self.name).has_margin else 0.0

    @torch.no_grad()
    def score_all(self, queries: Tensor, candidates: Tensor) -> Tensor:
        # PyKEEN broadcasts queries and candidates, which needs memory of B x N x W.
        step = max(1, CANDIDATES_AT_ONCE // max(1, len(candidates)))
        parts = [self.pair_scores(part[:, None], candidates) for part in queries.split(step)]
        return torch.cat(parts or [queries.new_empty(0, len(candidates))])

    def score_relations(self, heads: Tensor, tails: Tensor, relations: Tensor) -> Tensor:
        return torch.stack([self.score(heads, row.expand(len(heads), -1), tails) for row in relations], dim=1)
