"""Scoring functions of TransE, RotatE, DistMult and ComplEx.

Legend: `B` batch, `N` entities or candidates, `W` width of an entity row, `V` width of a relation row.

All four models fit one form. An anchor entity and a relation give a *query* of width `W`, and the score of a candidate
entity is a similarity between query and candidate:

| model    | tail query    | head query           | similarity                      | W    | V    |
|----------|---------------|----------------------|---------------------------------|------|------|
| TransE   | h + r         | t - r                | gamma - L1 distance             | D    | D    |
| RotatE   | h * e^(i th)  | t * e^(-i th)        | gamma - sum of complex moduli   | 2D   | D    |
| DistMult | h * r         | t * r                | dot product                     | D    | D    |
| ComplEx  | h * r         | t * conj(r)          | real part of h r conj(t)        | 2D   | 2D   |

Complex rows hold all real parts first, then all imaginary parts. Loss, gradient, ranking and attack thus need one
implementation per similarity, whatever the model and the side to replace.

Options are validated against these models, and the command line reads options without torch: only functions here load it.

Source: TransE (Bordes et al. 2013), DistMult (Yang et al. 2015), ComplEx (Trouillon et al. 2016), RotatE (Sun et al. 2019),
as set in fedr.txt appendix B.2 and B.3. Differs: TransE uses the L1 norm without normalization, and relations of RotatE
are phases scaled by pi / initial range, both as in the published code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fkgsec.arguments import checked
from fkgsec.errors import SpecError
from fkgsec.kge import kinds
from fkgsec.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from fkgsec.kge import kernels

Side = Literal["tail", "head"]
Sides = Literal["tail", "both"]
HITS = (1, 3, 5, 10)  # the k of hits@k in utility
MOST = 1e6  # bound on gamma, init_epsilon and temperature; far beyond, float32 scores are no longer finite

ModelName: TypeAlias = str
"""The name of a scoring function, a key of `MODELS`, or of a model with an encoder, a key of `ENCODERS`."""


@dataclass(frozen=True)
class ScoringFunction:
    """Definition of a scoring function. Register a new one under its name:

        MODELS.register("transl2", ScoringFunction(lambda x, y: -(x - y).norm(dim=-1), translate, lambda h, t: t - h))

    Attributes:
        similarity: a kind of `fkgsec.kge.kinds`, which is compiled, or a function of query and candidate, both `[..., W]`, in
            differentiable torch operations, which is slower. With a kind, a client gets the same bits alone and in a stack.
        query: maps anchors `[..., W]`, relation vectors `[..., V']` and the side to replace to the query `[..., W]`.
        best_relation: maps heads and tails `[..., W]` to the relation vector that maximizes their score, up to its length.
        entity_numbers, relation_numbers: values of a row per dimension, or a function from the dimension to the row's width.
        relation_vectors: maps relation rows `[..., V]` and the initial range to the vectors that act on entities; None: the
            rows act themselves.
        margin: whether gamma is added to the similarity, as to distances.
        scores_by_best_relation: whether the score of a relation is its similarity to `best_relation`.
        divisor: the dimension must be a multiple of it.
        remark: warning shown once to users of the model.
    """

    similarity: kernels.Similarity
    query: Callable[[Tensor, Tensor, Side], Tensor]
    best_relation: Callable[[Tensor, Tensor], Tensor]
    entity_numbers: int | Callable[[int], int] = 1
    relation_numbers: int | Callable[[int], int] = 1
    relation_vectors: Callable[[Tensor, float], Tensor] | None = None
    margin: bool = True
    scores_by_best_relation: bool = False
    divisor: int = 1
    remark: str = ""

    def entity_width(self, dim: int) -> int:
        """Return the width of an entity row.

        Args:
            dim: embedding dimension.
        """
        return self.entity_numbers(dim) if callable(self.entity_numbers) else dim * self.entity_numbers

    def relation_width(self, dim: int) -> int:
        """Return the width of a relation row.

        Args:
            dim: embedding dimension.
        """
        return self.relation_numbers(dim) if callable(self.relation_numbers) else dim * self.relation_numbers


@dataclass(frozen=True)
class ClientTables:
    """A client's embeddings: entities `[n, W]`, relations `[m, V]`, by its local IDs.

    Attributes:
        decoder: parameters of the scoring function by name; empty if it has none.
    """

    entities: Tensor
    relations: Tensor
    decoder: Mapping[str, Tensor] = field(default_factory=dict)

    def copied(self) -> ClientTables:
        """Copy to the CPU."""
        decoder = {name: tensor.detach().cpu().clone() for name, tensor in self.decoder.items()}
        return ClientTables(self.entities.cpu().clone(), self.relations.cpu().clone(), decoder)


@dataclass(frozen=True)
class EncoderModel:
    """A model with an encoder. Another one is registered in `ENCODERS` under its name.

    Attributes:
        scoring: compares input rows, for parties without the network, such as the server.
        make: maps graph, triples, options and key to an encoder (`fkgsec.kge.encoders.client.ClientEncoder`).
        decoder: maps the model of input rows and a client's encoded tables to the model that scores the latter.
        settings: options of `KgeOptions` that belong to this model, with their defaults.
        samples_negatives: whether training uses negatives, so that `num_negatives` and `temperature` apply.
        check: takes a dimension and raises `SpecError` if the network does not support it.
    """

    scoring: ScoringFunction
    make: Callable[..., Any]
    settings: Mapping[str, float | int]
    decoder: Callable[[KgeModel, ClientTables], KgeModel] = lambda model, _: model
    samples_negatives: bool = False
    check: Callable[[int], object] = lambda dim: None


MODELS: Registry[ScoringFunction] = Registry(
    "model", "fkgsec.models", families={"pykeen": "fkgsec.kge.interactions.scoring:scoring_function"}
)
ENCODERS: Registry[EncoderModel] = Registry(
    "model",
    "fkgsec.encoders",
    {"noge": "fkgsec.kge.encoders.noge:NOGE", "kb-gat": "fkgsec.kge.encoders.kb_gat:KB_GAT"},
    families={"pykeen": "fkgsec.kge.interactions.network:encoder_model"},
)


def function_of(name: ModelName) -> ScoringFunction:
    """Return a scoring function by name; for a model with an encoder, the one that compares its input rows.

    Args:
        name: key of `MODELS` or `ENCODERS`.
    """
    return MODELS[name] if name in MODELS else ENCODERS[name].scoring


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    real, imaginary = x.chunk(2, dim=-1)
    return real, imaginary


def _multiply(x: Tensor, y: Tensor) -> Tensor:
    """Multiply complex rows stored as (real, imaginary)."""
    import torch

    (a, b), (c, d) = _split(x), _split(y)
    return torch.cat([a * c - b * d, a * d + b * c], dim=-1)


def _conjugate(x: Tensor) -> Tensor:
    import torch

    real, imaginary = _split(x)
    return torch.cat([real, -imaginary], dim=-1)


MOST_DIM = 1_000_000  # a row of 4 MB


@dataclass(frozen=True)
class KgeModel:
    """A scoring function with its sizes; it holds no parameters.

    Args:
        name: key of `MODELS`, or of `ENCODERS`; rows are then those before the encoder.
        dim: embedding dimension D as the papers count it (RotatE and ComplEx entities take 2 D values).
        gamma: margin of the distance models; scores are gamma minus the distance.
        init_epsilon: initial values are uniform in +-(gamma + init_epsilon) / dim. The published code calls it epsilon; it is
            no privacy budget.
        entities_by_width: entity rows start in +-(gamma + init_epsilon) / `entity_width` instead, as on FedLU's server.

    Raises:
        SpecError: for an unknown name or a size that is not positive.
    """

    name: ModelName = "transe"
    dim: int = 128
    gamma: float = 10.0
    init_epsilon: float = 2.0
    entities_by_width: bool = False

    def __post_init__(self) -> None:
        # numpy numbers from user code become Python numbers, so that equal models are equal and serialize alike.
        for name, kind in (("dim", int), ("gamma", float), ("init_epsilon", float)):
            object.__setattr__(self, name, checked(name, kind, getattr(self, name)))
        if not 1 <= self.dim <= MOST_DIM:
            raise SpecError(f"dim must lie in 1..{MOST_DIM:,}; got {self.dim}")
        if self.name not in MODELS and self.name not in ENCODERS:
            raise SpecError(f"model must be one of {', '.join((*MODELS, *ENCODERS))}; got {self.name!r}")
        if self.dim % self.function.divisor:
            raise SpecError(f"dim must be a multiple of {self.function.divisor} for {self.name}; got {self.dim}")
        if not (math.isfinite(self.gamma) and math.isfinite(self.init_epsilon) and self.gamma + self.init_epsilon > 0):
            raise SpecError(f"gamma + init_epsilon must be positive and finite; got {self.gamma} + {self.init_epsilon}")
        if max(abs(self.gamma), abs(self.init_epsilon)) > MOST:
            values = f"{self.gamma:g} and {self.init_epsilon:g}"
            raise SpecError(f"gamma and init_epsilon must lie within +-{MOST:,.0f}; got {values}")

    @property
    def function(self) -> ScoringFunction:
        """Scoring function of this name."""
        return function_of(self.name)

    @property
    def similarity(self) -> kernels.Similarity:
        """Similarity that scores candidates: a kind of `fkgsec.kge.kinds`, or a function."""
        return self.function.similarity

    @property
    def margin(self) -> float:
        """Constant added to the similarity: gamma for distances, 0 for products (as in the published code)."""
        return self.gamma if self.function.margin else 0.0

    @property
    def entity_width(self) -> int:
        """W, width of an entity row."""
        return self.function.entity_width(self.dim)

    @property
    def relation_width(self) -> int:
        """V, width of a relation row."""
        return self.function.relation_width(self.dim)

    @property
    def initial_range(self) -> float:
        """Half width of the uniform initial values and of RotatE's phases. Source: code of FedR; the dimension is not
        doubled.
        """
        return (self.gamma + self.init_epsilon) / self.dim

    def initial_rows(self, rows: int, width: int, rng: np.random.Generator, *, table: str = "relations") -> Tensor:
        """Draw initial rows, uniform in +-`initial_range`; for entities `entities_by_width` may change the range.

        Args:
            width: W or V.
            rng: source of randomness.
            table: "entities" or "relations".

        Returns:
            Rows, float32 `[rows, width]`.
        """
        import torch

        # FedLU's server divides by the width of a row, not by the dimension.
        by_width = self.entities_by_width and table == "entities"
        half = (self.gamma + self.init_epsilon) / self.entity_width if by_width else self.initial_range
        return torch.from_numpy(rng.uniform(-half, half, size=(rows, width)).astype("float32"))

    def relation_vectors(self, relations: Tensor) -> Tensor:
        """Map relation rows to the space in which they act and are compared: RotatE's phases become unit complex
        numbers.

        Args:
            relations: float `[..., V]`.
        """
        vectors = self.function.relation_vectors
        return relations if vectors is None else vectors(relations, self.initial_range)

    def query(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Compute the query that candidates are compared with.

        Args:
            anchors: float `[..., W]`, heads on side "tail", else tails.
            relations: float `[..., V]`.
            side: the side to replace.

        Returns:
            Queries, float `[..., W]`.
        """
        return self.function.query(anchors, self.relation_vectors(relations), side)

    def pair_scores(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Score queries against candidates row by row; differentiable.

        Args:
            queries, candidates: float `[..., W]`, broadcast.
        """
        from fkgsec.kge import kernels

        return self.margin + kernels.similarity(self.similarity, queries, candidates)

    def score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Score triples; larger is more plausible.

        Args:
            heads, tails: float `[..., W]`.
            relations: float `[..., V]`.
        """
        return self.pair_scores(self.query(heads, relations, "tail"), tails)

    def score_all(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Score every query against every candidate.

        Args:
            queries: float `[B, W]`.
            candidates: float `[N, W]`.

        Returns:
            Scores, float `[B, N]`.
        """
        from fkgsec.kge import kernels

        return self.margin + kernels.similarity_matrix(self.similarity, queries, candidates)

    def score_relations(self, heads: Tensor, tails: Tensor, relations: Tensor) -> Tensor:
        """Score every relation between heads and tails, without a temporary of `B x M x W`.

        TransE, DistMult and ComplEx compare the relation with `best_relation`, by the similarity that they use for
        entities.

        Args:
            heads, tails: float `[B, W]`.
            relations: float `[M, V]`.

        Returns:
            Scores, float `[B, M]`.
        """
        import torch

        from fkgsec.kge import kernels

        # Other functions score one relation at a time, which bounds memory by B x W.
        if not self.function.scores_by_best_relation:
            return torch.stack([self.score(heads, row.expand(len(heads), -1), tails) for row in relations], dim=1)
        return self.margin + kernels.similarity_matrix(self.similarity, self.best_relation(heads, tails), relations)

    def best_relation(self, heads: Tensor, tails: Tensor) -> Tensor:
        """Compute the relation vector that maximizes the score of (head, ., tail), up to its length.

        TransE: t - h. RotatE: the phases that rotate h onto t. DistMult: h * t. ComplEx: conj(h) * t. The scores of the
        last two are linear in the relation, so only the direction is determined. Compare it with `relation_vectors` by
        cosine.

        Args:
            heads, tails: float `[..., W]`.

        Source: fedr.txt 3.1 step 2, r' = argmax_r f(h, r, t).
        """
        return self.function.best_relation(heads, tails)


def _translated(anchors: Tensor, relation: Tensor, side: Side) -> Tensor:
    return anchors + relation if side == "tail" else anchors - relation


def _turned(anchors: Tensor, relation: Tensor, side: Side) -> Tensor:
    return _multiply(anchors, relation if side == "tail" else _conjugate(relation))


def _turn_between(heads: Tensor, tails: Tensor) -> Tensor:
    return _multiply(_conjugate(heads), tails)


def _unit_turn_between(heads: Tensor, tails: Tensor) -> Tensor:
    import torch

    real, imaginary = _split(_turn_between(heads, tails))
    # Entities of modulus 0 have no phase; avoid NaN.
    modulus = torch.hypot(real, imaginary).clamp_min(torch.finfo(real.dtype).tiny)
    return torch.cat([real / modulus, imaginary / modulus], dim=-1)


def phase_vectors(relations: Tensor, initial_range: float) -> Tensor:
    """Map phases to complex numbers of length 1, real parts first.

    Args:
        relations: float `[..., V]`, phases in units of `initial_range` / pi.
        initial_range: value of a phase of pi.
    """
    import torch

    # Relations start uniform in +-initial_range, so phases start uniform in +-pi (Sun et al. 2019, published code).
    phase = relations * (math.pi / initial_range)
    return torch.cat([torch.cos(phase), torch.sin(phase)], dim=-1)


MODELS.register(
    "transe",
    ScoringFunction(kinds.L1, _translated, lambda heads, tails: tails - heads, scores_by_best_relation=True),
)
MODELS.register(
    "rotate",
    ScoringFunction(kinds.MODULUS, _turned, _unit_turn_between, entity_numbers=2, relation_vectors=phase_vectors),
)
MODELS.register(
    "distmult",
    ScoringFunction(
        kinds.DOT,
        lambda anchors, relation, side: anchors * relation,
        lambda heads, tails: heads * tails,
        margin=False,
        scores_by_best_relation=True,
    ),
)
MODELS.register(
    "complex",
    ScoringFunction(
        kinds.DOT,
        _turned,
        _turn_between,
        entity_numbers=2,
        relation_numbers=2,
        margin=False,
        scores_by_best_relation=True,
    ),
)
