"""Degrees of a victim's entities and sizes of its relations, inferred by a server alone from the victim's rows.

Threat model: "server". Required knowledge: the victim's rows. `degree`, of entities: Spearman's correlation of an entity's
number of training triples with one of two scores. `norm`: rows of hubs are short if the model scores by distances, and long if
it scores by products. `neighbours`: closeness of the ten nearest rows (`fkgsec.attacks.uploads.pairs.closeness`). `volume`,
where relations are shared: the same for the number of triples of each relation, by how far its row moved between broadcast and
upload. In the first rounds rows with many triples move most (`movement`); later these have converged and move least
(`stillness`).

Baseline: 0, a random order. Upper bound: 1. Source: ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

import numpy as np
from torch import Tensor

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import KgeView, VictimView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.membership.intervals import LEAST, spearman
from fkgsec.attacks.outcomes import of_spearman
from fkgsec.attacks.questions import LINKS
from fkgsec.attacks.registry import Attack, Needs, Truth
from fkgsec.attacks.uploads.pairs import HeldRows, closeness, local_ids
from fkgsec.attacks.view import NotAttacked, claim_each
from fkgsec.estimate import exact
from fkgsec.kge.models import KgeModel

METRICS = {
    "degree": "rank correlation of inferred and true degrees of entities",
    "volume": "rank correlation of a relation's number of triples with how far its row moved",
}
TABLES = {"degree": "entities", "volume": "relations"}
NEIGHBOURS = 10
# Rows compared at once.
BLOCK = 512
Ways: TypeAlias = tuple[Mapping[str, np.ndarray], HeldRows]
"""Scores of a victim's rows by inference method, `[n]` each, NaN for a row that was never transmitted; and the rows."""


def claim(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, dict[str, Ways | NotAttacked]]:
    """Score each victim's rows for each metric.

    Args:
        laboratory: laboratory of its adversary; only its public settings are read.
        rng: not used; the attack draws nothing.

    Returns:
        Scores `[n]` by inference method, for each metric and victim, NaN for a row that was never transmitted.
    """
    shared = laboratory.settings.recipe.shared
    ways = {"degree": lambda victim: _degrees(view.model, victim), "volume": _volumes}
    return {
        metric: claim_each(view.victims, ways[metric])
        for metric, table in TABLES.items()
        if table in shared or not shared
    }


def _degrees(model: KgeModel, victim: VictimView) -> Ways:
    rows, seen = victim.crossed()
    near = np.full(len(rows), np.nan)
    near[seen] = nearness(model, rows[seen])
    # A model with a margin scores by distances: its hubs lie near the origin.
    sign = -1.0 if model.margin else 1.0
    return {"norm": sign * rows.norm(dim=1).double().numpy(), "neighbours": near}, HeldRows.of(victim)


def nearness(model: KgeModel, rows: Tensor) -> np.ndarray:
    """Return the mean closeness of each row to its `NEIGHBOURS` nearest rows.

    Args:
        rows: float `[n, W]`.

    Returns:
        float64 `[n]`, larger is nearer.
    """
    count, distances = min(NEIGHBOURS, len(rows) - 1), []
    for start in range(0, len(rows), BLOCK):
        near = closeness(model, rows[start : start + BLOCK], rows)
        places = np.arange(len(near))
        # A row is not its own neighbor.
        near[places, start + places] = -np.inf
        distances.append(-np.sort(np.partition(-near, max(count - 1, 0), axis=1)[:, :count], axis=1).mean(axis=1))
    return np.concatenate([np.empty(0), *distances]).astype(np.float64)


def _volumes(victim: VictimView) -> Ways:
    if victim.relations is None:
        raise NotAttacked("none of its relation embeddings was transmitted")
    if "relations" not in victim.received:
        summed = "relations" in victim.claims
        raise NotAttacked(
            "its relations were transmitted only inside a sum" if summed else "its broadcasts were not stored"
        )
    # Sum of gradients over a relation's triples: many triples move it far in the first rounds.
    moved = (victim.relations - victim.received["relations"]).norm(dim=1).double().numpy()
    return {"movement": moved, "stillness": -moved}, HeldRows.of(victim, "relations")


def score(claims: Mapping[str, Mapping[str, Ways | NotAttacked]], truth: Truth) -> list[Figure]:
    """Compute the correlations of every victim, for the tables that the algorithm shares."""
    return [
        figure
        for victim in truth.victims
        for metric, ways in claims.items()
        for figure in _figures(truth, victim, metric, ways[victim])
    ]


def _figures(truth: Truth, victim: str, metric: str, ways: Ways | NotAttacked) -> list[Figure]:
    if isinstance(ways, NotAttacked):
        return truth.not_attacked(victim, ways, [metric])
    scored, rows = ways
    # The truth: number of training triples at each entity, or of each relation.
    columns = [0, 2] if metric == "degree" else [1]
    degree = np.bincount(truth.client(victim).train[:, columns].ravel())
    ids = local_ids(truth, victim, rows, TABLES[metric])
    is_scored = (ids >= 0) & np.isfinite(np.stack(list(scored.values()))).all(axis=0)
    if is_scored.sum() < LEAST:
        reason = f"{is_scored.sum()} rows of it were seen; a correlation takes {LEAST}"
        return truth.not_attacked(victim, reason, [metric])
    measures = {way: partial(spearman, scores[is_scored], degree[ids[is_scored]]) for way, scores in scored.items()}
    client = truth.client(victim)
    names = (client.entity_ids if metric == "degree" else client.relation_ids)[ids[is_scored]]
    return truth.figures(
        metric, victim, measures, {"chance": exact(0.0, int(is_scored.sum()))}, attainable=1.0,
        outcomes=lambda way: of_spearman(scored[way][is_scored], degree[ids[is_scored]], names[:, None]),
    )  # fmt: skip


ATTACK = Attack(
    "degrees",
    "orders a victim's entities, or relations, by their number of triples",
    Needs(server=True),
    METRICS,
    claim,
    score,
    threats=("server",),
    questions=dict.fromkeys(METRICS, LINKS),
    items={"degree": "entities of a victim", "volume": "relations of a victim"},
    leads=("degree", "volume"),
)
