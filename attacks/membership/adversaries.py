"""What an adversary of membership asks: a scoring function with rows, whichever way it came by them.

    for name, held in hold(view, victim).items():            # "local", "global"; "broadcast"; "upload" or "sum"
        asked = held.located(entity_names, relation_names)
        asked.signals(triples).scores                        # of triples in local ids, float64 [n]

- "models": the models that a client is left with: its own ("local") and the federation's ("global").
- "client": the entity rows of the last broadcast and the client's own relation rows ("broadcast").
- "identifiers", "server+triples": a victim's uploaded entity rows by their names ("upload"), or those that the adversary
  attributes to it of a sum ("sum"). Relations act as the colluder's do, or as vectors fitted to the triples that the server has
  of the victim (`attacks.uploads.auxiliary.fit_relations`).

Legend: `n` triples, `N` a client's entities, `M` its relations, `W`, `V` widths of their rows.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attacks.kge.view import KgeView, VictimView
from attacks.membership.statistics import triple_answers, triple_losses, triple_scores
from attacks.uploads.auxiliary import fit_relations
from fkgsec.kge.models import KgeModel


class Signals(NamedTuple):
    """What rows say of triples, float64 `[n]` each; see `attacks.membership.statistics`. `losses`: None where nobody asked."""

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
class Asked:
    """Rows by the local ids of one client: which row each entity `[N]` and relation `[M]` has, int64, -1 for none."""

    held: Held
    entity_rows: np.ndarray
    relation_rows: np.ndarray

    def knows(self, triples: np.ndarray) -> np.ndarray:
        """Which of the local triples `[n, 3]` it has all rows of, bool `[n]`."""
        return np.asarray((self._rows(triples) >= 0).all(axis=1))

    def signals(self, triples: np.ndarray, temperature: float | None = None) -> Signals:
        """Of local triples `[n, 3]` that it knows. temperature: of the loss; None leaves it out."""
        held, rows = self.held, self._rows(triples)
        parts = (held.model, held.entities, held.relations, rows)
        losses = None if temperature is None else triple_losses(*parts, temperature=temperature)
        return Signals(triple_scores(*parts), *triple_answers(*parts), losses)

    def _rows(self, triples: np.ndarray) -> np.ndarray:
        places = (self.entity_rows, self.relation_rows, self.entity_rows)
        return np.stack([place[triples[:, column]] for column, place in enumerate(places)], axis=1)


@dataclass(frozen=True, eq=False)
class Held:
    """Rows with their names, entities `[., W]` and relations `[., V]`; without names they are in the order of local ids."""

    model: KgeModel
    entities: Tensor
    relations: Tensor
    entity_names: np.ndarray | None = None
    relation_names: np.ndarray | None = None

    def located(self, entities: np.ndarray, relations: np.ndarray) -> Asked:
        """By local ids, given the names of these, `[N]` and `[M]`."""
        return Asked(self, _places(entities, self.entity_names), _places(relations, self.relation_names))


def _places(wanted: np.ndarray, names: np.ndarray | None) -> np.ndarray:
    if names is None:
        return np.arange(len(wanted))
    rows = {name: row for row, name in enumerate(names) if name is not None}
    return np.array([rows.get(name, -1) for name in wanted], dtype=np.int64)


def hold(view: KgeView, victim: VictimView) -> dict[str, Held] | str:
    """By name what the adversary can ask about a victim's triples; or why nothing."""
    if view.threat_model.models:
        return {name: Held(model, tables.entities, tables.relations) for name, (model, tables) in victim.models.items()}
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
