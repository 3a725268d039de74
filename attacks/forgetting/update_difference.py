"""What a request tells the server: whose rows moved between the uploads before and after it.

    >>> degree_matched(np.array([3, 3]), np.array([0]), np.ones(2, dtype=bool), np.random.default_rng(0))
    (array([0]), array([1]))

Threat model: an honest-but-curious server that compares the rows that a client sent before and after its request.

Legend: `n` entities of forgotten triples, `N` entities.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from fkgsec.attacks.membership.audits import Audited
from fkgsec.attacks.membership.figures import MembershipResult, measure_membership
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import build_view
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import ThreatModelError
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

MAX_DOUBLINGS = 1.0  # of a degree, between an entity and the one it is held against


class UpdateDifference(msgspec.Struct, frozen=True):
    """How well a server tells the entities of forgotten triples from others of like degree by how far their rows moved."""

    client: str
    figures: dict[str, MembershipResult]
    reasons: dict[str, str]


def update_difference(
    results: Mapping[str, KgeResult], graph: FederatedGraph, audit: Audited, seed: int
) -> UpdateDifference:
    """How well the server tells the entities of a client's forgotten triples, for the roles that follow the request."""
    figures: dict[str, MembershipResult] = {}
    reasons: dict[str, str] = {}
    for role in ("retrained", "unlearned"):
        if "raw" not in results:
            reasons[role] = "no raw run was given to compare with"
            continue
        moved = moved_rows(results["raw"], results[role], audit.name)
        if isinstance(moved, str):
            reasons[role] = moved
            continue
        train = results[role].graph.clients[audit.place].train
        degree = np.bincount(train[:, [0, 2]].ravel(), minlength=graph.clients[audit.place].num_entities)
        ends = np.unique(audit.forget[:, [0, 2]])
        members, controls = degree_matched(degree, ends, np.isfinite(moved), generator(seed, "movers", audit.place))
        if len(members) < 2:
            reasons[role] = f"{len(members)} entities of forgotten triples have another of like degree; it takes 2"
            continue
        figures[role] = measure_membership(
            np.concatenate([moved[members], moved[controls]]),
            np.arange(2 * len(members)) < len(members),
            attack="update-difference",
            control="degree",
            rng=generator(seed, "advantage", audit.place, "update", role),
        )
    return UpdateDifference(audit.name, figures, reasons)


def moved_rows(before: KgeResult, after: KgeResult, client: str) -> np.ndarray | str:
    """How far each of a client's entity rows moved between its last uploads of two runs, L2, float64 `[N]`.

    Where uploads were summed: the rows of the sum that are this client's part alone once the server has subtracted the parts that
    it knows; if it knows the others' parts, moved from what it had sent.

    Threat model: the honest-but-curious server (`fkgsec.attacks.view`, "server"). NaN where a row did not cross both times.
    Returns the reason, in words, when single uploads did not cross.
    """
    seen = []
    for when, result in (("before", before), ("after", after)):
        try:
            rows = _seen_alone(result, client, started_from=after if when == "before" else None)
        except ThreatModelError as error:
            return str(error)
        if rows is None:
            return f"the server saw no entity rows of {client} alone {when} the request"
        seen.append(rows)
    return np.linalg.norm(seen[0] - seen[1], axis=1)


def _seen_alone(result: KgeResult, client: str, started_from: KgeResult | None) -> np.ndarray | None:
    """A client's entity rows as the server saw them alone, float64 `[N, W]`, NaN where it did not; None when it saw none.

    Args:
        started_from: a run that this one came before; where the server knows what it sent in that, this is what it takes.
    """
    other = next((one.name for one in result.graph.clients if one.name != client), client)
    graph = next(one for one in result.graph.clients if one.name == client)
    rows = np.full((graph.num_entities, result.options.kge_model().entity_width), np.nan)
    place_of = {result.graph.entities[number]: place for place, number in enumerate(graph.entity_ids)}
    known = started_from.known.get("entities", {}) if started_from else {}
    if started_from and known:
        sent = next(iter(known.values())).numpy()
        for row, name in enumerate(started_from.row_names["entities"]):
            if name in place_of:
                rows[place_of[name]] = sent[row]
        return rows
    view = build_view(result, THREAT_MODELS["server"], colluder=other, leak=1.0, seed=0)
    victim = next(victim for victim in view.victims if victim.name == client)
    if victim.entities is None:
        return None
    uploaded = victim.entities.double().numpy()
    if not victim.claims:
        rows[: len(uploaded)] = uploaded
        return rows
    claims = victim.claims["entities"]
    for row, alone, own in zip(claims.rows, claims.alone, uploaded, strict=True):
        name = result.row_names["entities"][row]
        if alone and name in place_of:
            rows[place_of[name]] = own
    return rows if np.isfinite(rows).any() else None


def degree_matched(
    degree: np.ndarray, chosen: np.ndarray, usable: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """For each chosen entity another one of nearly its degree, none used twice; int64 `[k]` each, at most a doubling apart.

    Args:
        degree: int64 `[N]`. chosen: int64 `[n]`. usable: bool `[N]`, which entities may be taken at all, chosen or not.
    """
    level = np.log2(1.0 + degree)
    free = np.setdiff1d(np.nonzero(usable)[0], chosen)
    free = rng.permutation(free)  # ties go to any of them
    members, controls = [], []
    for entity in rng.permutation(chosen[usable[chosen]]):
        if not len(free):
            break
        gap = np.abs(level[free] - level[entity])
        best = int(gap.argmin())
        if gap[best] < MAX_DOUBLINGS:
            members.append(entity)
            controls.append(free[best])
            free = np.delete(free, best)
    return np.array(members, dtype=np.int64), np.array(controls, dtype=np.int64)
