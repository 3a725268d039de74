"""Inference from a request to forget: the server compares the uploads before and after it.

    >>> degree_matched(np.array([3, 3]), np.array([0]), np.ones(2, dtype=bool), np.random.default_rng(0))
    (array([0]), array([1]))

Threat model: an honest-but-curious server. Required knowledge: the rows that a client sent before and after its request.

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
from fkgsec.attacks.view import NotAttacked
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import ThreatModelError
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

# Largest difference of degrees between an entity and its control, in doublings.
MAX_DOUBLINGS = 1.0


class UpdateDifference(msgspec.Struct, frozen=True):
    """A server's success at identifying the entities of forgotten triples by how far their rows moved.

    The controls are entities of similar degree.
    """

    client: str
    figures: dict[str, MembershipResult]
    reasons: dict[str, str]


def update_difference(
    results: Mapping[str, KgeResult], graph: FederatedGraph, audit: Audited, seed: int
) -> UpdateDifference:
    """Measure how well the server identifies the entities of a client's forgotten triples, for the roles after the request.

    Args:
        results: finished runs by role; "raw" is required.
        graph: data of the raw run.
        audit: audited triples of the client.
        seed: seed of matching and resampling.
    """
    figures: dict[str, MembershipResult] = {}
    reasons: dict[str, str] = {}
    for role in ("retrained", "unlearned"):
        if "raw" not in results:
            reasons[role] = "no raw run was given to compare with"
            continue
        try:
            # A forgotten triple's rows lose its gradient, and move more than others of similar degree.
            moved = moved_rows(results["raw"], results[role], audit.name)
        except NotAttacked as reason:
            reasons[role] = str(reason)
            continue
        train = results[role].graph.clients[audit.place].train
        # Degrees after the request: a retrained model sees only these.
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


def moved_rows(before: KgeResult, after: KgeResult, client: str) -> np.ndarray:
    """Return the L2 distance that each of a client's entity rows moved between its last uploads of two runs, float64 `[N]`.

    Under summed uploads: rows of the sum that are this client's input alone once the server has subtracted the inputs that it
    knows. If it knows the others' inputs, the distance is from the rows that it had sent.

    Threat model: the honest-but-curious server (`fkgsec.attacks.view`, "server"). NaN where a row was not transmitted both
    times.

    Args:
        before: run before the request.
        after: run after it.

    Raises:
        NotAttacked: no single upload was transmitted.
    """
    first = _seen_alone(before, client, started_from=after)
    second = _seen_alone(after, client, started_from=None)
    return np.linalg.norm(first - second, axis=1)


def _seen_alone(result: KgeResult, client: str, started_from: KgeResult | None) -> np.ndarray:
    """Return a client's entity rows as the server saw them individually, float64 `[N, W]`, NaN elsewhere.

    Args:
        started_from: run that this one preceded; if the server knows the rows that it sent in that run, these are returned.
    """
    graph, *others = sorted(result.graph.clients, key=lambda data: data.name != client)
    rows = np.full((graph.num_entities, result.options.kge_model().entity_width), np.nan)
    row_of = {result.graph.entities[number]: row for row, number in enumerate(graph.entity_ids)}
    known_rows = started_from.known.get("entities", {}) if started_from else {}
    if started_from and known_rows:
        sent = next(iter(known_rows.values())).numpy()
        for row, name in enumerate(started_from.row_names["entities"]):
            if name in row_of:
                rows[row_of[name]] = sent[row]
        return rows
    other = next((data.name for data in others), client)
    try:
        view = build_view(result, THREAT_MODELS["server"], colluder=other, leak=1.0, seed=0)
    except ThreatModelError as error:
        raise NotAttacked(str(error)) from error
    victim = next(victim for victim in view.victims if victim.name == client)
    if victim.entities is not None and not victim.claims:
        rows[: len(victim.entities)] = victim.entities.double().numpy()
        return rows
    if victim.entities is not None:
        claims = victim.claims["entities"]
        for row, alone, values in zip(claims.rows, claims.alone, victim.entities.double().numpy(), strict=True):
            name = result.row_names["entities"][row]
            if alone and name in row_of:
                rows[row_of[name]] = values
    if not np.isfinite(rows).any():
        when = "before" if started_from else "after"
        raise NotAttacked(f"the server saw no entity rows of {client} alone {when} the request")
    return rows


def degree_matched(
    degree: np.ndarray, chosen: np.ndarray, usable: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Match each chosen entity with another one of similar degree, none used twice; int64 `[k]` each.

    Args:
        degree: int64 `[N]`.
        chosen: entities to match, int64 `[n]`.
        usable: entities that may be used at all, chosen or not, bool `[N]`.
        rng: draws the order and breaks ties.
    """
    level = np.log2(1.0 + degree)
    free = np.setdiff1d(np.nonzero(usable)[0], chosen)
    # Shuffle to break ties at random.
    free = rng.permutation(free)
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
