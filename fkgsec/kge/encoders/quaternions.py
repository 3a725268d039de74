"""QuatE's scoring function: a relation turns the head's quaternions, the score is their dot product with the tail's.

    model = KgeModel("noge", 128)                    # 32 quaternions a row
    model.score_all(model.query(heads, relations, "tail"), entities)

A row holds all real parts first, then those of i, j and k. Source: Zhang et al. 2019; fedr.txt Table 6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fkgsec.kge import kinds
from fkgsec.kge.models import ScoringFunction, Side


def hamilton(x: Tensor, y: Tensor) -> Tensor:
    """Multiply rows of quaternions (Hamilton product).

    Args:
        x, y: float `[..., 4 n]`, broadcast.
    """
    a, b, c, d = x.chunk(4, dim=-1)
    e, f, g, h = y.chunk(4, dim=-1)
    # (a + b i + c j + d k)(e + f i + g j + h k), with i^2 = j^2 = k^2 = i j k = -1.
    real = a * e - b * f - c * g - d * h
    i = a * f + b * e + c * h - d * g
    j = a * g - b * h + c * e + d * f
    k = a * h + b * g - c * f + d * e
    return torch.cat([real, i, j, k], dim=-1)


def conjugate(x: Tensor) -> Tensor:
    """Conjugate rows of quaternions.

    Args:
        x: float `[..., 4 n]`.
    """
    real, rest = x.tensor_split([x.shape[-1] // 4], dim=-1)
    return torch.cat([real, -rest], dim=-1)


def unit(x: Tensor) -> Tensor:
    """Divide each quaternion by its modulus; 0 stays 0.

    Args:
        x: float `[..., 4 n]`.
    """
    parts = x.unflatten(-1, (4, -1))
    # The smallest positive number avoids a division of 0 by 0, so that 0 stays 0.
    modulus = parts.square().sum(-2, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny).sqrt()
    return (parts / modulus).flatten(-2)


def _turned(anchors: Tensor, relation: Tensor, side: Side) -> Tensor:
    """Rotate the anchors by the relation. For heads: <h r, t> = <t conj(r), h>."""
    return hamilton(anchors, relation if side == "tail" else conjugate(relation))


QUATE = ScoringFunction(
    kinds.DOT,
    _turned,
    lambda heads, tails: unit(hamilton(conjugate(heads), tails)),
    relation_vectors=lambda relations, _: unit(relations),
    margin=False,
    divisor=4,
)
