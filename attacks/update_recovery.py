"""Update recovery: how much of what a victim's training did to its rows in one round the adversary knows afterwards.

    view = build_view(result, THREAT_MODELS["server"], colluder="a", leak=0.5, seed=0)
    for row in measure_updates(result, view, colluder="a", seed=0):
        print(row.victim, row.cosine, row.relative_error, row.base_cosine, row.base_relative_error)

ERR and TRR hardly react when single uploads come to light, because after each broadcast all rows of a name lie near their mean.
The *change* of a row in the attacked round is what its holder's own triples did to it.

Truth: the victim's row after its training minus the row that it started from. The adversary's estimate: what it takes for the
victim's upload of the row minus the same start. (The server has sent that start; where clients start from rows of their own, as
in FedS, the evaluator gives the adversary more than it has.) Beside it stands an adversary that takes the mean change: the mean
of the row over the clients in the round (a sum divided by its holders, where uploads are summed) minus the start. Where the
adversary has no estimate of a row it takes that mean too.

Threat model: any of `attacks.view.THREAT_MODELS`, with or without a colluder. Source: ours.

Legend: `n` rows of the victim that its training changed, `W` their width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from attacks.figure import Figure
from attacks.view import THREAT_MODELS, VictimView, View, build_view
from fkgsec import estimate
from fkgsec.estimate import Estimate
from fkgsec.federation.loop import FederationResult
from fkgsec.federation.messages import client_party
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.randomness import generator


class UpdateRecovery(msgspec.Struct, frozen=True):
    """What one adversary knows of one victim's change of one table in the attacked round.

    Attributes:
        cosine: mean over rows of the cosine between the true change and the estimate, 0 for an estimate of no change; 1: known.
        relative_error: norm of estimate minus truth, over that of the truth, of all rows together; 0: known, 1: as good as no
            estimate. Its interval resamples rows, as that of `cosine`.
        base_cosine, base_relative_error: the same of the mean change. num_claimed: of the n rows, those with an estimate.
        reason: why nothing was measured; then the figures are 0 with the widest interval.
    """

    threat_model: str
    leak: float
    colluder: str | None
    victim: str
    table: Table
    round: int
    cosine: Estimate
    relative_error: Estimate
    base_cosine: Estimate
    base_relative_error: Estimate
    num_claimed: int = 0
    reason: str | None = None


class _Changes(NamedTuple):
    """True and estimated changes, and the mean, float64 `[n, W]`; and of which rows there is an estimate, bool `[n]`."""

    true: np.ndarray
    estimated: np.ndarray
    mean: np.ndarray
    claimed: np.ndarray


def measure_updates(result: FederationResult, view: View, *, colluder: str, seed: int) -> list[UpdateRecovery]:
    """The figures of every victim of the view, for each table that is shared.

    Args:
        colluder: for whom the view was built. seed: of the intervals.
    """
    rows = []
    for table in RECIPES[result.options.algorithm].shared:
        means = _means(result, view, table) if result.started.get(table) else {}
        for victim in view.victims:
            rng = generator(seed, "update recovery", table, victim.name)
            changes = _changes(result, view, victim, table, means)
            rows.append(_row(view, colluder, victim.name, table, changes, rng))
    return rows


def attack_updates(
    result: FederationResult, threats: Iterable[str], *, colluder: str | None, leak: float, seed: int
) -> list[UpdateRecovery]:
    """The figures under the server alone and under those of the threat models that add what it knows of the round.

    Args:
        threats: names of `THREAT_MODELS`. colluder: a client; None: the first. leak: leak ratio. seed: of the leaked share and of
            the intervals.

    Raises:
        ThreatModelError: nothing to attack, or an unknown colluder.
    """
    who = colluder or result.graph.clients[0].name
    adding = [name for name in threats if THREAT_MODELS[name].colluder and not THREAT_MODELS[name].victim_entities]
    rows = []
    for name in dict.fromkeys(["server", *adding]):
        view = build_view(result, THREAT_MODELS[name], colluder=who, leak=leak, seed=seed)
        rows += measure_updates(result, view, colluder=who, seed=seed)
    return rows


def update_figures(row: UpdateRecovery) -> list[Figure]:
    """Cosine and relative error, as every attack's figures stand in tables and reports; of relations by names of their own."""
    leak = row.leak if row.colluder is not None else None
    suffix = "" if row.table == "entities" else f"_{row.table}"
    head = (row.threat_model, row.victim)
    tail: dict[str, Any] = {
        "leak": leak, "round": row.round, "reason": row.reason, "colluder": row.colluder,
        "counts": {"claimed": row.num_claimed},
    }  # fmt: skip
    return [
        Figure("update-recovery", f"cosine{suffix}", *head, row.cosine, row.base_cosine, 1.0, **tail),
        Figure(
            "update-recovery", f"relative_error{suffix}", *head, row.relative_error, row.base_relative_error, 0.0,
            less_is_worse=True, **tail,
        ),
    ]  # fmt: skip


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


def _means(result: FederationResult, view: View, table: Table) -> dict[str, np.ndarray]:
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
        names, start, end = _truth(result, place, table)
        if np.array_equal(start, end):  # the client sat the round out
            continue
        for name, row in zip(names, end, strict=True):
            sums[name] = sums.get(name, 0.0) + row
            counts[name] = counts.get(name, 0) + 1
    return {name: total / counts[name] for name, total in sums.items()}


def _truth(result: FederationResult, place: int, table: Table) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names of the rows that a client uploads, and these before and after its training, float64 `[n, W]`."""
    client, vocabulary = result.graph.clients[place], getattr(result.graph, table)
    ids = client.entity_ids if table == "entities" else client.relation_ids
    end = getattr(result.trained[place], table).double().numpy()
    start = result.started[table][client_party(client.name)].double().numpy()
    num = client.num_trained_entities if table == "entities" else client.num_trained_relations
    return [vocabulary[number] for number in ids[:num]], start[:num], end[:num]


def _changes(
    result: FederationResult, view: View, victim: VictimView, table: Table, means: dict[str, np.ndarray]
) -> _Changes | str:
    """The rows of a victim that its training changed; the reason when there is nothing to measure."""
    if not result.started.get(table):  # nor by runs of an earlier version
        return "the rows that training started from were not kept, or nothing was sent"
    place = next(number for number, client in enumerate(result.graph.clients) if client.name == victim.name)
    names, start, end = _truth(result, place, table)
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


def _row(
    view: View, colluder: str, victim: str, table: Table, changes: _Changes | str, rng: np.random.Generator
) -> UpdateRecovery:
    head = (
        view.threat_model.name,
        view.leak,
        colluder if view.threat_model.colluder else None,
        victim,
        table,
        view.round,
    )
    if isinstance(changes, str):
        nothing = Estimate(0.0, 0.0, 1.0, 0, "not measured")
        return UpdateRecovery(*head, nothing, nothing, nothing, nothing, reason=changes)
    true, estimated, mean, claimed = changes
    figures = [
        figure
        for guess in (estimated, mean)
        for figure in (estimate.mean(cosines(true, guess), rng), relative_error(true, guess, rng))
    ]
    return UpdateRecovery(*head, *figures, num_claimed=int(claimed.sum()))
