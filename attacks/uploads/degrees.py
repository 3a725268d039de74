"""Degrees of a victim's entities and sizes of its relations, inferred by a server alone from the victim's rows.

Threat model: "server". `degree`, of entities: Spearman's correlation of the number of the victim's training triples at each with
what the row's `norm` suggests (rows of hubs are short where scores are distances, long where they are products), and how near its
ten nearest `neighbours` lie (`fkgsec.attacks.uploads.pairs.closeness`). `volume`, where relations are shared: the same of the
number of triples of each, by how far its row moved between what the server sent and what came back. In first rounds rows with
many triples move most (`movement`), later these have settled and move least (`stillness`).

Baseline 0, an adversary that orders them at random; 1 is the most. Source: ours.
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
BLOCK = 512  # rows compared at once
Ways: TypeAlias = tuple[Mapping[str, np.ndarray], HeldRows]
"""Scores of a victim's rows by way, `[n]` each, NaN where a row never crossed, and which rows these are."""


def claim(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[str, dict[str, Ways | NotAttacked]]:
    """Score each victim's rows `[n]` for each metric by each way, NaN where a row never crossed."""
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
    sign = -1.0 if model.margin else 1.0
    return {"norm": sign * rows.norm(dim=1).double().numpy(), "neighbours": near}, HeldRows.of(victim)


def nearness(model: KgeModel, rows: Tensor) -> np.ndarray:
    """Mean closeness of each row `[n, W]` to the `NEIGHBOURS` nearest others, float64 `[n]`."""
    count, distances = min(NEIGHBOURS, len(rows) - 1), []
    for start in range(0, len(rows), BLOCK):
        near = closeness(model, rows[start : start + BLOCK], rows)
        places = np.arange(len(near))
        near[places, start + places] = -np.inf
        distances.append(-np.sort(np.partition(-near, max(count - 1, 0), axis=1)[:, :count], axis=1).mean(axis=1))
    return np.concatenate([np.empty(0), *distances]).astype(np.float64)


def _volumes(victim: VictimView) -> Ways:
    if victim.relations is None:
        raise NotAttacked("no relation embedding of it crossed")
    if "relations" not in victim.received:
        summed = "relations" in victim.claims
        raise NotAttacked("its relations crossed in a sum only" if summed else "what it was sent was not kept")
    moved = (victim.relations - victim.received["relations"]).norm(dim=1).double().numpy()
    return {"movement": moved, "stillness": -moved}, HeldRows.of(victim, "relations")


def score(claims: Mapping[str, Mapping[str, Ways | NotAttacked]], truth: Truth) -> list[Figure]:
    """Correlations of every victim, of the tables that the algorithm shares."""
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
    "orders a victim's entities, or relations, by how many triples they stand in",
    Needs(server=True),
    METRICS,
    claim,
    score,
    threats=("server",),
    questions=dict.fromkeys(METRICS, LINKS),
    items={"degree": "entities of a victim", "volume": "relations of a victim"},
    leads=("degree", "volume"),
)
