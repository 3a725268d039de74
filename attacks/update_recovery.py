"""Update recovery: how much the adversary learns about the change that a victim's training made to its rows in one round.

    found = run_attacks(result, AttackOptions(attack=("update-recovery",)))
    for one in found.figures:
        print(one.threat_model, one.victim, one.metric, one.estimate, one.by, one.baseline)

ERR and TRR hardly react when single uploads come to light, because after each broadcast all rows of a name lie near their mean.
The *change* of a row in the attacked round is what its holder's own triples did to it.

Truth: the victim's row after its training minus the row that it started from. The server has sent that start; where clients
start from rows of their own, as in FedS, the evaluator gives the adversary more than it has. A row counts as changed where the
change exceeds the rounding of its numbers.

Ways of the adversary:

- `aggregate`: the mean of each row in the view, minus the start: a sum divided by its holders where uploads are summed, else the
  mean of the uploads that the view holds. A row that the view does not have did not change.
- `upload`: what the adversary takes for the victim's own upload of the row, minus the start. Where it claims nothing of a row, it
  takes the aggregate.

What crosses as it is, single uploads in plaintext or else the aggregate, is exposed by the protocol (`Figure.exposed`).

Baseline: no change, all that an adversary without the messages can say: cosine 0, relative error 1.

`cosine`: mean cosine similarity between inferred and true changes of rows; 1: known.
`relative_error`: norm of inferred minus true changes over the norm of the true ones, all rows together; 0: known. Intervals of
both resample rows. Both are of entities; of relations they end in `_relations`.

Threat model: the server alone, and those with a colluder that add what it knows of the round. Source: ours.

Legend: `n` rows of the victim that its training changed, `W` their width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from attacks.figure import NOT_ATTACKED, Figure
from attacks.kge.view import KgeView, VictimView, kge_view
from attacks.registry import UPDATE_RECOVERY, Attack, Needs, Truth
from attacks.uploads.ways import Measure, by_ways
from attacks.view import THREAT_MODELS
from fkgsec import estimate
from fkgsec.estimate import Estimate, at_level, critical_value, exact
from fkgsec.federation.loop import FederationResult
from fkgsec.federation.messages import client_party
from fkgsec.federation.recipes import RECIPES, Table
from fkgsec.randomness import generator

METRICS = {
    "cosine": "mean cosine similarity between inferred and true changes of rows",
    "relative_error": "error of inferred changes over the size of the true ones; a limit is the least that is allowed",
}
METRICS |= {f"{name}_relations": f"{about}; of relations" for name, about in METRICS.items()}
AGGREGATE, UPLOAD, NO_CHANGE = "aggregate", "upload", "no change"


class Changes(NamedTuple):
    """True changes of a victim's rows float64 `[n, W]`, and those inferred by each way, in the same order.

    `read`: the way that reads what the protocol shows as it is, if any. `claimed`: of how many rows the adversary claims to have
    the victim's own upload.
    """

    true: np.ndarray
    inferred: Mapping[str, np.ndarray]
    read: str | None
    claimed: int


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
        means = _aggregate(result, view, table) if result.started.get(table) else {}
        for victim in claims.values():
            rng = generator(truth.seed, "update recovery", table, victim.name)
            changes = _changes(result, view, victim, table, means)
            suffix = "" if table == "entities" else f"_{table}"
            if isinstance(changes, str):
                metrics = [f"{name}{suffix}" for name in ("cosine", "relative_error")]
                figures += [truth.figure(name, victim.name, NOT_ATTACKED, reason=changes) for name in metrics]
            else:
                figures += figures_of(truth, victim.name, changes, rng, suffix=suffix)
    return figures


def by_the_server(truth: Truth, result: FederationResult, victim: str, table: Table) -> Changes | str:
    """What a server that follows the protocol infers from another run of the same clients; the reason when there is nothing."""
    view = kge_view(result, THREAT_MODELS["server"], colluder=truth.colluders, leak=1.0, seed=truth.seed)
    means = _aggregate(result, view, table) if result.started.get(table) else {}
    return _changes(result, view, next(one for one in view.victims if one.name == victim), table, means)


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


def relative_error(true: np.ndarray, inferred: np.ndarray, rng: np.random.Generator, resamples: int = 1000) -> Estimate:
    """|inferred - true| / |true| over all rows `[n, W]`, with a percentile bootstrap interval over rows."""
    wrong, size = ((inferred - true) ** 2).sum(axis=1), (true**2).sum(axis=1)
    drawn = rng.integers(0, len(true), size=(resamples, len(true)))
    ratios = np.sqrt(wrong[drawn].sum(axis=1) / size[drawn].sum(axis=1))
    low, high = np.quantile(ratios, [0.025, 0.975])
    value = float(np.sqrt(wrong.sum() / size.sum()))
    return Estimate(value, min(value, float(low)), max(value, float(high)), len(true), "bootstrap")


def figures_of(
    truth: Truth, victim: str, changes: Changes, rng: np.random.Generator, *, suffix: str = "", **details: Any
) -> list[Figure]:
    """Cosine and relative error of the inferred changes, by the strongest way (`Figure.by`).

    Args:
        suffix: of both metrics. details: further fields of `Figure`.
    """
    true, num_rows = changes.true, len(changes.true)
    cosine = {way: estimate.mean(cosines(true, guess), rng) for way, guess in changes.inferred.items()}
    error = {way: relative_error(true, guess, rng) for way, guess in changes.inferred.items()}
    figures: list[Figure] = []
    for metric, known, level, nothing, attainable in (
        ("cosine", cosine, at_level, 0.0, 1.0),
        ("relative_error", error, _error_at_level, 1.0, 0.0),
    ):
        ways: dict[str, Measure] = {way: partial(level, one) for way, one in known.items()}
        *_, strongest = by_ways(
            truth, f"{metric}{suffix}", victim, ways, {NO_CHANGE: exact(nothing, num_rows)}, attainable=attainable,
            exposed=known.get(changes.read or ""), counts={"claimed": changes.claimed}, **details,
        )  # fmt: skip
        figures.append(msgspec.structs.replace(strongest, variant=""))
    return figures


def _error_at_level(error: Estimate, compared: int) -> Estimate:
    """The same relative error with the interval that holds where it was chosen among `compared` ones; it may exceed 1."""
    wider = critical_value(compared) / critical_value()
    low, high = (error.value + wider * (end - error.value) for end in (error.low, error.high))
    return Estimate(error.value, max(0.0, low), high, error.n, f"{error.method}, best of {compared}")


def _aggregate(result: FederationResult, view: KgeView, table: Table) -> dict[str, np.ndarray]:
    """By name, the mean of each row in the view, `[W]`; names of rows that are in no sum and no upload are missing.

    Names are those of the evaluator, who matches rows; the server aligns rows without them.
    """
    if table in view.secure:
        opened = view.secure[table].opened[:1]
        if not opened or opened[0].round != view.round:
            return {}
        total, holders = opened[0].sums()
        return {name: total[row] / holders[row] for row, name in enumerate(result.row_names[table]) if holders[row] > 0}
    found: dict[str, list[np.ndarray]] = {}
    for victim in view.victims:
        rows = victim.entities if table == "entities" else victim.relations
        if rows is None:
            continue
        names, start, end = client_rows(result, _client_index(result, victim.name), table)
        if not np.array_equal(start, end):  # else the client sat the round out
            for name, row in zip(names, rows.double().numpy(), strict=False):
                if not np.isnan(row).any():
                    found.setdefault(name, []).append(row)
    return {name: np.mean(rows, axis=0) for name, rows in found.items()}


def _client_index(result: FederationResult, name: str) -> int:
    return next(index for index, client in enumerate(result.graph.clients) if client.name == name)


def client_rows(result: FederationResult, place: int, table: Table) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names of the rows that a client uploads, and these before and after its training, float64 `[n, W]`."""
    client, vocabulary = result.graph.clients[place], getattr(result.graph, table)
    ids = client.entity_ids if table == "entities" else client.relation_ids
    end = getattr(result.trained[place], table).double().numpy()
    start = result.started[table][client_party(client.name)].double().numpy()
    num = client.num_trained_entities if table == "entities" else client.num_trained_relations
    return [vocabulary[number] for number in ids[:num]], start[:num], end[:num]


def _changes(
    result: FederationResult, view: KgeView, victim: VictimView, table: Table, means: Mapping[str, np.ndarray]
) -> Changes | str:
    """The rows of a victim that its training changed; the reason when there is nothing to measure."""
    if not result.started.get(table):  # nor by runs of an earlier version
        return "the rows that training started from were not kept, or nothing was sent"
    names, start, end = client_rows(result, _client_index(result, victim.name), table)
    moved = changed_rows(start, end)
    if not moved.any():
        return f"training in round {view.round} changed no row of {victim.name}"
    mean = np.stack([means.get(name, row) for name, row in zip(names, start, strict=True)])
    known = _estimates(result, victim, table, names)
    claimed = np.asarray(~np.isnan(known).any(axis=1))
    ways = {AGGREGATE: mean - start, UPLOAD: np.where(claimed[:, None], known, mean) - start}
    if np.allclose(ways[AGGREGATE], ways[UPLOAD], atol=1e-6):  # single precision of claims
        del ways[UPLOAD]
    read = UPLOAD if UPLOAD in ways and table not in victim.claims else AGGREGATE
    return Changes(
        (end - start)[moved], {way: rows[moved] for way, rows in ways.items()}, read, int(claimed[moved].sum())
    )


def changed_rows(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Which rows `[n, W]` training changed by more than single precision rounds them, bool `[n]`."""
    rounding = np.finfo(np.float32).eps * np.abs(start).max(axis=1)
    return np.abs(end - start).max(axis=1) > rounding


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
