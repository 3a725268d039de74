"""An interaction without parameters outside the rows as a scoring function, which every algorithm trains.

    MODELS["pykeen:TransH"].similarity                      # a function of queries and candidates, differentiable

A query holds everything that a candidate is scored with: the anchor's row, the relation's vector, and a last number that says
which side is replaced. The similarity passes them to PyKEEN's interaction. Scores are those of PyKEEN. Training and initial
values (uniform in +-(gamma + init_epsilon) / dim) are those of fkgsec: PyKEEN's initializers, constrainers and regularizers are
no part of an interaction.

Legend: `B` queries, `W`, `V` widths of rows of entities and of relation vectors.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fkgsec.kge import kinds
from fkgsec.kge.interactions.layout import Plugged
from fkgsec.kge.models import ScoringFunction, Side, phase_vectors

NEARBY = 1e-3  # relation vector at which gradients are taken; at 0 a norm has none


@functools.cache
def scoring_function(name: str) -> ScoringFunction | None:
    """Return the scoring function of an interaction without parameters.

    Args:
        name: such as "pykeen:TransH".

    Returns:
        The function, or None if the interaction has parameters outside the rows.

    Raises:
        SpecError: see `Plugged.named`.
    """
    plugged = Plugged.named(name)
    if plugged.has_network:
        return None
    return ScoringFunction(
        functools.partial(_similarity, plugged),
        queries_of,
        functools.partial(_steepest, plugged),
        entity_numbers=plugged.entity_width,
        relation_numbers=plugged.relation_width,
        relation_vectors=phase_vectors if plugged.phases else None,
        margin=plugged.has_margin,
        remark=slow(plugged),
    )


def slow(plugged: Plugged) -> str:
    """Return the remark that users of a PyKEEN model see.

    Args:
        plugged: the interaction.
    """
    return f"{plugged.name} trains by autograd through PyKEEN, which takes several times as long as fkgsec's own models"


def scoring_without_network(plugged: Plugged) -> ScoringFunction:
    """Return a scoring function for parties that have the rows of an interaction but not its network.

    It compares rows as DistMult does, on the numbers that entity and relation rows both have.

    Args:
        plugged: the interaction.
    """

    def together(entities: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Multiply entities by relations on their common part."""
        # Widths of entities and relations may differ, so the product covers the common part.
        common = min(entities.shape[-1], relations.shape[-1])
        rest = torch.zeros_like(entities[..., common:])
        return torch.cat([entities[..., :common] * relations[..., :common], rest], dim=-1)

    def best(heads: Tensor, tails: Tensor) -> Tensor:
        """Return the relation with the largest dot product."""
        width = plugged.relation_width(plugged.dim_of(heads.shape[-1]))
        product = (heads * tails)[..., :width]
        return pad(product, (0, width - product.shape[-1]))

    return ScoringFunction(
        kinds.DOT,
        together,
        best,
        entity_numbers=plugged.entity_width,
        relation_numbers=plugged.relation_width,
        margin=False,
        remark=slow(plugged),
    )


def queries_of(anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
    """Concatenate anchor, relation vector and side.

    Args:
        anchors: float `[..., W]`.
        relations: float `[..., V]`.
        side: the side to replace.

    Returns:
        Queries `[..., W + V + 1]`.
    """
    shape = torch.broadcast_shapes(anchors.shape[:-1], relations.shape[:-1])
    # The side travels inside the query, since similarities know only queries and candidates.
    sign = anchors.new_full((*shape, 1), 1.0 if side == "tail" else -1.0)
    return torch.cat([anchors.expand(*shape, -1), relations.expand(*shape, -1), sign], dim=-1)


def scores_of(plugged: Plugged, interaction: nn.Module, queries: Tensor, candidates: Tensor, dim: int) -> Tensor:
    """Compute PyKEEN's scores, broadcast.

    Args:
        plugged: the interaction's layout.
        interaction: its instance.
        queries: float `[..., W + V + 1]`, all of one side.
        candidates: float `[..., W]`.
        dim: embedding dimension.
    """
    # PyKEEN's interactions fail on empty batches.
    if not queries.numel():
        return queries.new_empty(torch.broadcast_shapes(queries.shape[:-1], candidates.shape[:-1]))
    W = candidates.shape[-1]
    anchors, relations, sign = queries.split([W, queries.shape[-1] - W - 1, 1], dim=-1)
    heads, tails = (anchors, candidates) if float(sign.detach().flatten()[0]) > 0 else (candidates, anchors)
    return plugged.score(interaction, heads, relations, tails, dim)


def _similarity(plugged: Plugged, queries: Tensor, candidates: Tensor) -> Tensor:
    dim = plugged.dim_of(candidates.shape[-1])
    return scores_of(plugged, plugged.sample.to(queries.device), queries, candidates, dim)


def _steepest(plugged: Plugged, heads: Tensor, tails: Tensor) -> Tensor:
    """Return the gradient of the score by the relation vector, close to zero.

    For a score linear in the relation it is the best vector up to its length; for others, the direction towards it.
    """
    dim = plugged.dim_of(heads.shape[-1])
    width = sum(part.width for part in plugged.parts("r", dim))
    with torch.enable_grad():
        # At 0 norms have no gradient; close to 0 its direction is that of the best relation.
        relations = heads.new_full((*heads.shape[:-1], width), NEARBY).requires_grad_()
        if not width:
            return relations.detach()
        scores = plugged.score(plugged.sample.to(heads.device), heads.detach(), relations, tails.detach(), dim)
        (gradient,) = torch.autograd.grad(scores.sum(), relations)
    return torch.nan_to_num(gradient)
