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

Complex rows hold all real parts first, then all imaginary parts. So loss, gradient, ranking and attack need one
implementation for each of three similarities, whatever the model and the side that is replaced.

Source: TransE (Bordes et al. 2013), DistMult (Yang et al. 2015), ComplEx (Trouillon et al. 2016), RotatE (Sun et al. 2019),
as set in fedr.txt appendix B.2 and B.3. Differs: TransE takes the L1 norm and no normalisation, and relations of RotatE
are phases scaled by pi / initial range, both as in the published codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fkgsec.errors import SpecError
from fkgsec.kge import kernels, kinds

ModelName = Literal["transe", "rotate", "distmult", "complex"]
Side = Literal["tail", "head"]
MODELS: tuple[ModelName, ...] = get_args(ModelName)
_SIMILARITY = {
    "transe": kinds.L1,
    "rotate": kinds.MODULUS,
    "distmult": kinds.DOT,
    "complex": kinds.DOT,
}


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    real, imaginary = x.chunk(2, dim=-1)
    return real, imaginary


def _multiply(x: Tensor, y: Tensor) -> Tensor:
    """Complex product of rows held as (real, imaginary)."""
    (a, b), (c, d) = _split(x), _split(y)
    return torch.cat([a * c - b * d, a * d + b * c], dim=-1)


def _conjugate(x: Tensor) -> Tensor:
    real, imaginary = _split(x)
    return torch.cat([real, -imaginary], dim=-1)


@dataclass(frozen=True)
class KgeModel:
    """A scoring function with its sizes; it holds no parameters.

    Args:
        name: one of `MODELS`.
        dim: embedding dimension D as the papers count it (RotatE and ComplEx entities take 2 D numbers).
        gamma: margin of the distance models; larger is a better score.
        init_epsilon: initial values are uniform in +-(gamma + init_epsilon) / dim; the codes' epsilon, no privacy budget.

    Raises:
        SpecError: for an unknown name or a size that is not positive.
    """

    name: ModelName = "transe"
    dim: int = 128
    gamma: float = 10.0
    init_epsilon: float = 2.0

    def __post_init__(self) -> None:
        if self.name not in MODELS:
            raise SpecError(f"model must be one of {', '.join(MODELS)}; got {self.name!r}")
        if self.dim < 1:
            raise SpecError(f"dim must be at least 1; got {self.dim}")
        if not (math.isfinite(self.gamma) and math.isfinite(self.init_epsilon) and self.gamma + self.init_epsilon > 0):
            raise SpecError(f"gamma + init_epsilon must be positive and finite; got {self.gamma} + {self.init_epsilon}")

    @property
    def similarity(self) -> int:
        """Which kernel similarity scores candidates: `kinds.L1`, `MODULUS` or `DOT`."""
        return _SIMILARITY[self.name]

    @property
    def margin(self) -> float:
        """What is added to the similarity: gamma for distances, 0 for products (as in the published codes)."""
        return 0.0 if self.similarity == kinds.DOT else self.gamma

    @property
    def entity_width(self) -> int:
        return self.dim * (2 if self.name in ("rotate", "complex") else 1)

    @property
    def relation_width(self) -> int:
        return self.dim * (2 if self.name == "complex" else 1)

    @property
    def initial_range(self) -> float:
        """Half width of the uniform initial values, and of RotatE's phases. Source: fedr code; the dimension is not doubled."""
        return (self.gamma + self.init_epsilon) / self.dim

    def initial_rows(self, rows: int, width: int, rng: np.random.Generator) -> Tensor:
        """float32 `[rows, width]`, uniform in +-`initial_range`."""
        half = self.initial_range
        return torch.from_numpy(rng.uniform(-half, half, size=(rows, width)).astype(np.float32))

    def relation_vectors(self, relations: Tensor) -> Tensor:
        """Relation rows `[..., V]` in the space in which they act and are compared: RotatE's phases as unit complex numbers."""
        if self.name != "rotate":
            return relations
        phase = relations * (math.pi / self.initial_range)
        return torch.cat([torch.cos(phase), torch.sin(phase)], dim=-1)

    def query(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """What a candidate is compared with. Anchors `[..., W]` are heads on side "tail", else tails; relations `[..., V]`."""
        relation = self.relation_vectors(relations)
        if self.name == "transe":
            return anchors + relation if side == "tail" else anchors - relation
        if self.name == "distmult":
            return anchors * relation
        return _multiply(anchors, relation if side == "tail" else _conjugate(relation))

    def pair_scores(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Scores of queries against candidates row by row, both `[..., W]`, broadcast; differentiable."""
        return self.margin + kernels.similarity(self.similarity, queries, candidates)

    def score(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Scores of triples given by rows `[..., W]`, `[..., V]`, `[..., W]`; larger is more plausible."""
        return self.pair_scores(self.query(heads, relations, "tail"), tails)

    def score_all(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Scores `[B, N]` of every query `[B, W]` against every candidate `[N, W]`."""
        return self.margin + kernels.similarity_matrix(self.similarity, queries, candidates)

    def score_relations(self, heads: Tensor, tails: Tensor, relations: Tensor) -> Tensor:
        """Scores `[B, M]` of every relation `[M, V]` between heads and tails `[B, W]`, without a temporary of `B x M x W`.

        TransE, DistMult and ComplEx compare the relation with `best_relation` by the similarity that they compare entities by.
        """
        if self.name == "rotate":
            return torch.stack([self.score(heads, row.expand(len(heads), -1), tails) for row in relations], dim=1)
        return self.margin + kernels.similarity_matrix(self.similarity, self.best_relation(heads, tails), relations)

    def best_relation(self, heads: Tensor, tails: Tensor) -> Tensor:
        """The relation vector that maximises the score of (head, ., tail), `[..., W]`, up to its length.

        TransE: t - h. RotatE: the phases that turn h onto t. DistMult: h * t; ComplEx: conj(h) * t (their score is linear
        in the relation, so only the direction is determined). Compare it with `relation_vectors` by cosine.
        Source: fedr.txt 3.1 step 2, r' = argmax_r f(h, r, t).
        """
        if self.name == "transe":
            return tails - heads
        if self.name == "distmult":
            return heads * tails
        turned = _multiply(_conjugate(heads), tails)
        if self.name == "complex":
            return turned
        real, imaginary = _split(turned)
        modulus = torch.hypot(real, imaginary).clamp_min(torch.finfo(real.dtype).tiny)
        return torch.cat([real / modulus, imaginary / modulus], dim=-1)
