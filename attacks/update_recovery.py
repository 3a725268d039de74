"""Update recovery: how much of what a victim's training did to its rows in one round the adversary knows afterwards.

    found = run_attacks(result, AttackOptions(attack=("update-recovery",)))
    for one in found.figures:
        print(one.threat_model, one.victim, one.metric, one.estimate, one.baseline)

ERR and TRR hardly react when single uploads come to light, because after each broadcast all rows of a name lie near their mean.
The *change* of a row in the attacked round is what its holder's own triples did to it.

Truth: the victim's row after its training minus the row that it started from. The adversary's claim: what it takes for the
victim's upload of the row, less the same start. (The server has sent that start; where clients start from rows of their own, as
in FedS, the evaluator gives the adversary more than it has.) Beside it stands an adversary that takes the mean change: the mean
of the row over the clients in the round (a sum divided by its holders, where uploads are summed) minus the start. Where the
adversary claims nothing of a row it takes that mean too.

`cosine`: mean over rows of the cosine between the true change and the claimed one, 0 for a claim of no change; 1: known.
`relative_error`: norm of claim minus truth, over that of the truth, of all rows together; 0: known, 1: as good as no claim. Its
interval resamples rows, as that of the cosine. Both are of entities; of relations they end in `_relations`.

Threat model: the server alone, and those with a colluder that add what it knows of the round. Source: ours.

Legend: `n` rows of the victim that its training changed, `W` their width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attacks.figure import NOT_ATTACKED, Figure
from attacks.kge.view import KgeView, VictimView, kge_view
from attacks.registry import UPDATE_RECOVERY, Attack, Needs, Truth
from attacks.view import THREAT_MODELS
from fkgsec import estimate
from fkgsec.estimate import Estimate
from fkgsec.federation.loop import FederationResult
from fkgsec.federation.messages import client_party
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.randomness import generator

METRICS = {
    "cosine": "cosine of the estimated to the true change of a row, mean over rows",
    "relative_error": "error of the estimated changes over the true ones; a limit is the least that is allowed",
}
METRICS |= {f"{name}_relations": f"{about}; of relations" for name, about in METRICS.items()}


class _Changes(NamedTuple):
    """True and estimated changes, and the mean, float64 `[n, W]`; and of which rows there is an estimate, bool `[n]`."""

    true: np.ndarray
    estimated: np.ndarray
    mean: np.ndarray
    claimed: np.ndarray


def threats(asked: Sequence[str]) -> list[str]:
    """The server alone, and of the threat models asked for those that add what it knows of the round."""
    adding = [name for name in asked if THREAT_MODELS[name].leaks and not THREAT_MODELS[name].victim_entities]
    return list(dict.fromkeys(["server", *adding]))


def claim_uploads(view: KgeView, rng: np.random.Generator) -> dict[str, VictimView]:
    """What the adversary takes for each victim's upload: the rows in its view, as single uploads or as claimed of a sum."""
    return {victim.name: victim for victim in view.victims}


def score_changes(claims: Mapping[str, VictimView], truth: Truth) -> list[Figure]:
    """Cosine and relative error of every victim, for each table that is shared."""
    result, view, figures = truth.result, truth.view, []
    for table in RECIPES[result.options.algorithm].shared:
        means = _means(result, view, table) if result.started.get(table) else {}
        for victim in claims.values():
            rng = generator(truth.seed, "update recovery", table, victim.name)
            changes = _changes(result, view, victim, table, means)
            figures += _figures(truth, victim.name, "" if table == "entities" else f"_{table}", changes, rng)
    return figures


def by_the_server(truth: Truth, result: FederationResult) -> dict[tuple[str, str], Figure]:
    """What a server alone that follows the protocol has of another run of the same clients, by victim and metric: a baseline."""
    view = kge_view(result, THREAT_MODELS["server"], colluder=truth.colluders, leak=1.0, seed=truth.seed)
    rng = generator(truth.seed, "the server alone")
    of_run = Truth(ATTACK, view, result, truth.colluder, truth.seed, rng)
    return {(one.victim, one.metric): one for one in score_changes(claim_uploads(view, rng), of_run)}


ATTACK = Attack(
    UPDATE_RECOVERY,
    "estimates how the victims' training changed their rows in a round",
    Needs(),
    METRICS,
    claim_uploads,
    score_changes,
    items=dict.fromkeys(METRICS, "rows of the victims that changed"),
    errors=("relative_error", "relative_error_relations"),
    choose=threats,
    in_order=True,
    leads=("cosine", "cosine_relations"),
)


def cosines(true: np.ndarray, estimated: np.ndarray) -> np.ndarray:
    """Of each row `[n, W]` of one to that of the other, float64 `[n]`; 0 where either is 0."""
    norms = np.linalg.norm(true, axis=1) * np.linalg.norm(estimated, axis=1)
    return np.where(norms > 0, (true * estimated).sum(axis=1) / np.where(norms > 0, norms, 1.0), 0.0)


def relative_error(
    true: np.ndarray, estimated: np.ndarray, rng: np.random.Generator, resamples: int = 1000
) -> Estimate:
    """|estimated - true| / |true| over all rows `[n, W]`, with a percentile bootstrap interval over rows."""
    wrong, size = ((estimated - true) ** 2).sum(axis=1), (true**2).sum(axis=1)
    drawn = rng.integers(0, len(true), size=(resamples, len(true)))
    ratios = np.sqrt(wrong[drawn].sum(axis=1) / size[drawn].sum(axis=1))
    low, high = np.quantile(ratios, [0.025, 0.975])
    value = float(np.sqrt(wrong.sum() / size.sum()))
    return Estimate(value, min(value, float(low)), max(value, float(high)), len(true), "bootstrap")


def _means(result: FederationResult, view: KgeView, table: Table) -> dict[str, np.ndarray]:
    """By name, the mean of each row over the clients in the attacked round, `[W]`; names that are in no sum are missing."""
    if result.inputs.get(table):
        opened = view.secure[table].opened[:1] if table in view.secure else ()
        if not opened or opened[0].round != result.best_round:
            return {}
        total, holders = opened[0].sums()
        return {name: total[row] / holders[row] for row, name in enumerate(result.row_names[table]) if holders[row] > 0}
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    for place in range(len(result.graph.clients)):
        names, start, end = client_rows(result, place, table)
        if np.array_equal(start, end):  # the client sat the round out
            continue
        for name, row in zip(names, end, strict=True):
            sums[name] = sums.get(name, 0.0) + row
            counts[name] = counts.get(name, 0) + 1
    return {name: total / counts[name] for name, total in sums.items()}


def client_rows(result: FederationResult, place: int, table: Table) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names of the rows that a client uploads, and these before and after its training, float64 `[n, W]`."""
    client, vocabulary = result.graph.clients[place], getattr(result.graph, table)
    ids = client.entity_ids if table == "entities" else client.relation_ids
    end = getattr(result.trained[place], table).double().numpy()
    start = result.started[table][client_party(client.name)].double().numpy()
    num = client.num_trained_entities if table == "entities" else client.num_trained_relations
    return [vocabulary[number] for number in ids[:num]], start[:num], end[:num]


def _changes(
    result: FederationResult, view: KgeView, victim: VictimView, table: Table, means: dict[str, np.ndarray]
) -> _Changes | str:
    """The rows of a victim that its training changed; the reason when there is nothing to measure."""
    if not result.started.get(table):  # nor by runs of an earlier version
        return "the rows that training started from were not kept, or nothing was sent"
    place = next(number for number, client in enumerate(result.graph.clients) if client.name == victim.name)
    names, start, end = client_rows(result, place, table)
    moved = np.flatnonzero(np.abs(end - start).max(axis=1))
    if not len(moved):
        return f"{victim.name} did not train in round {view.round}"
    known = _estimates(result, victim, table, names)
    claimed = np.asarray(~np.isnan(known).any(axis=1))
    mean = start.copy()
    for number, name in enumerate(names):
        mean[number] = means.get(name, start[number])
    estimated = np.where(claimed[:, None], known, mean)
    return _Changes((end - start)[moved], (estimated - start)[moved], (mean - start)[moved], claimed[moved])


def _estimates(result: FederationResult, victim: VictimView, table: Table, names: list[str]) -> np.ndarray:
    """What the adversary takes for the victim's rows of these names, float64 `[n, W]`; NaN where it has none."""
    rows = victim.entities if table == "entities" else victim.relations
    width = getattr(result.trained[0], table).shape[1]
    found = np.full((len(names), width), np.nan)
    if rows is None:
        return found
    known = rows.double().numpy()
    if table in victim.claims:
        place = {result.row_names[table][row]: number for number, row in enumerate(victim.claims[table].rows)}
        for number, name in enumerate(names):
            if name in place:
                found[number] = known[place[name]]
    else:
        found[: len(known)] = known[: len(names)]
    return found


def _figures(truth: Truth, victim: str, suffix: str, changes: _Changes | str, rng: np.random.Generator) -> list[Figure]:
    if isinstance(changes, str):
        return [
            truth.figure(f"{name}{suffix}", victim, NOT_ATTACKED, reason=changes)
            for name in ("cosine", "relative_error")
        ]
    true, estimated, mean, claimed = changes
    (cosine, error), (base_cosine, base_error) = (
        (estimate.mean(cosines(true, guess), rng), relative_error(true, guess, rng)) for guess in (estimated, mean)
    )
    counts = {"claimed": int(claimed.sum())}
    return [
        truth.figure(f"cosine{suffix}", victim, cosine, baseline=base_cosine, attainable=1.0, counts=counts),
        truth.figure(f"relative_error{suffix}", victim, error, baseline=base_error, attainable=0.0, counts=counts),
    ]
