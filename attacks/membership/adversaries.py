"""What an adversary of membership asks: a scoring function with rows, whichever way it came by them.

    for name, held in hold(view, victim).items():            # "local", "global"; "broadcast"; "upload" or "sum"
        held.signals(triples).scores                         # of triples of names, float64 [n]

- "models": the models that a client is left with: its own ("local") and the federation's ("global").
- "client": the entity rows of the last broadcast and the client's own relation rows ("broadcast").
- "identifiers", "server+triples": a victim's uploaded entity rows by their names ("upload"), or those that the adversary
  attributes to it of a sum ("sum"). Relations act as the colluder's do, or as vectors fitted to the triples that the server has
  of the victim (`fkgsec.attacks.uploads.auxiliary.fit_relations`).

Legend: `n` triples; `W`, `V` widths of rows of entities and relations.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.membership.statistics import triple_answers, triple_losses, triple_scores
from fkgsec.attacks.uploads.auxiliary import fit_relations
from fkgsec.kge.models import KgeModel


class Signals(NamedTuple):
    """What rows say of triples, float64 `[n]` each; see `fkgsec.attacks.membership.statistics`. `losses`: None where nobody
    asked."""

    scores: np.ndarray
    log_probability: np.ndarray
    log_rank: np.ndarray
    losses: np.ndarray | None


@dataclass(frozen=True)
class _Acting(KgeModel):
    """A model whose relation rows are the vectors in which relations act."""

    def relation_vectors(self, relations: Tensor) -> Tensor:
        return relations


@dataclass(frozen=True, eq=False)
class Held:
    """Rows with their names, entities `[., W]` and relations `[., V]`."""

    model: KgeModel
    entities: Tensor
    relations: Tensor
    entity_names: np.ndarray
    relation_names: np.ndarray

    def signals(self, triples: np.ndarray, temperature: float | None = None) -> Signals:
        """Of triples of names, object `[n, 3]`, NaN where it lacks a row. temperature: of the loss; None leaves it out."""
        places = [
            {name: row for row, name in enumerate(names) if name is not None}
            for names in (self.entity_names, self.relation_names)
        ]
        rows = np.array(
            [[places[column == 1].get(name, -1) for column, name in enumerate(triple)] for triple in triples],
            dtype=np.int64,
        ).reshape(-1, 3)
        known = (rows >= 0).all(axis=1)
        parts = (self.model, self.entities, self.relations, rows[known])
        losses = None if temperature is None else triple_losses(*parts, temperature=temperature)

        def spread(values: np.ndarray) -> np.ndarray:
            whole = np.full(len(triples), np.nan)
            whole[known] = values
            return whole

        probability, rank = triple_answers(*parts)
        signals = triple_scores(*parts), probability, rank
        return Signals(*map(spread, signals), None if losses is None else spread(losses))  # pyright: ignore[reportCallIssue]


def hold(view: KgeView, victim: VictimView) -> dict[str, Held] | str:
    """By name what the adversary can ask about a victim's triples; or why nothing."""
    if view.threat_model.models:
        names = victim.vocabulary["entities"], victim.vocabulary["relations"]
        return {
            name: Held(model, tables.entities, tables.relations, *names)
            for name, (model, tables) in victim.models.items()
        }
    own = view.colluder
    if not view.threat_model.server:
        assert own is not None
        return {"broadcast": Held(view.model, own.shared_entities, own.relations, own.entity_names, own.relation_names)}
    if victim.entities is None or victim.entity_names is None:
        return "no entity embedding of it crossed"
    seen = ~victim.entities.isnan().any(dim=1)
    rows, names = victim.entities[seen].float(), victim.entity_names[seen.numpy()]
    name = "sum" if "entities" in victim.claims else "upload"
    if own is not None:
        return {name: Held(view.model, rows, own.relations, names, own.relation_names)}
    fitted = _fitted(view.model, rows, names, victim.auxiliary)
    return fitted if isinstance(fitted, str) else {name: fitted}


def _fitted(model: KgeModel, rows: Tensor, names: np.ndarray, triples: np.ndarray | None) -> Held | str:
    """Relations fitted to the triples of names `[a, 3]` whose ends have rows; one for each that has any."""
    place = {name: row for row, name in enumerate(names) if name is not None}
    told = [] if triples is None else [one for one in triples if one[0] in place and one[2] in place]
    if not told:
        return f"of {0 if triples is None else len(triples)} auxiliary triples none has rows that were seen"
    relations = sorted({one[1] for one in told})
    number = {name: place for place, name in enumerate(relations)}
    heads, tails = (rows[torch.tensor([place[one[end]] for one in told])] for end in (0, 2))
    vectors = fit_relations(model, heads, tails, np.array([number[one[1]] for one in told]), len(relations))
    acting = _Acting(**{one.name: getattr(model, one.name) for one in fields(model)})
    return Held(acting, rows, vectors, names, np.array(relations, dtype=object))
