"""Update recovery: how much the adversary learns about the change that a victim's training made to its rows in one round.

ERR and TRR hardly react when single uploads come to light, because after each broadcast all rows of a name lie near their mean.
The *change* of a row in the attacked round is what its holder's own triples did to it.

Truth: the victim's row after its training minus the row that it started from, which the server has sent. Where clients start from
rows of their own, as in FedS, the evaluator gives the adversary more than it has.

Ways of the adversary; the protocol itself exposes what is transmitted in plaintext (`Figure.exposed`):

- `aggregate`: the mean of each row in the view, minus the start. A row that the view does not have did not change.
- `upload`: the victim's own upload of the row, as the adversary attributes it, minus the start; else the aggregate.

`cosine`: mean cosine similarity between inferred and true changes of rows. `relative_error`: norm of inferred minus true changes
over the norm of the true ones. Intervals resample rows. Of relations both end in `_relations`. Baseline: no change, all that an
adversary without the messages can say (cosine 0, relative error 1).

Threat model: the server alone, and those with a colluder that add what it knows of the round. Source: ours.

Legend: `n` rows of the victim that its training changed, `W` their width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fkgsec import estimate
from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.view import KgeView
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.options import THREAT_MODELS, UPDATE_RECOVERY
from fkgsec.attacks.outcomes import of_mean
from fkgsec.attacks.questions import UPLOADS
from fkgsec.attacks.registry import Attack, Measure, Needs, Truth
from fkgsec.attacks.view import NotAttacked
from fkgsec.estimate import Estimate, at_level, critical_value, exact, proportion
from fkgsec.federation.messages import client_party
from fkgsec.federation.recipes import Table
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

METRICS = {
    "cosine": "cosine of inferred and true changes of rows",
    "relative_error": "error of inferred changes over the size of the true ones; a limit is the least that is allowed",
    "cosine_relations": "cosine of inferred and true changes of relations",
    "relative_error_relations": "error of inferred changes of relations over that of the true ones; a limit is the least allowed",
}
AGGREGATE, UPLOAD, NO_CHANGE = "aggregate", "upload", "no change"


class Changes(NamedTuple):
    """True changes of a victim's rows float64 `[n, W]`, and those inferred by each way, in the same order.

    `read`: the way that reads what the protocol shows as it is, if any. `claimed`: of how many rows the adversary claims to have
    the victim's own upload. `ends`: int `[n, 1]`, the entity or relation of each row, None where it is not known.
    """

    true: np.ndarray
    inferred: Mapping[str, np.ndarray]
    read: str | None
    claimed: int
    ends: np.ndarray | None = None


def threats(wanted: Sequence[str]) -> list[str]:
    """The server alone, and of the threat models asked for those that add what it knows of the round."""
    adding = [name for name in wanted if THREAT_MODELS[name].leaks and not THREAT_MODELS[name].victim_entities]
    return list(dict.fromkeys(["server", *adding]))


class Recovered(NamedTuple):
    """An adversary's estimate of a victim's rows after its training, float64 `[n, W]`, NaN where it has none.

    `means`: of all uploads in the view. `own`: the victim's own upload. `summed`: whether rows are those of the whole table, in
    the order of the sums; else they are the victim's.
    """

    means: np.ndarray
    own: np.ndarray
    summed: bool


def recover(view: KgeView, table: Table) -> dict[str, Recovered]:
    """Estimate each victim's rows of a table."""
    if table in view.secure:
        opened = view.secure[table].opened[:1]
        if not opened:
            return {}
        total, holders = opened[0].sums()
        means = np.full(total.shape, np.nan)
        if opened[0].round == view.round:
            means[holders > 0] = total[holders > 0] / holders[holders > 0, None]
        recovered = {}
        for victim in view.victims:
            upload, rows = np.full(total.shape, np.nan), victim.rows(table)
            if rows is not None and table in victim.claims:
                upload[victim.claims[table].rows] = rows.double().numpy()
            recovered[victim.name] = Recovered(means, upload, summed=True)
        return recovered
    rows_of = {
        victim.name: rows.double().numpy() for victim in view.victims if (rows := victim.rows(table)) is not None
    }
    uploads: dict[int, list[np.ndarray]] = {}
    victims = [victim for victim in view.victims if victim.name in rows_of]
    for victim in victims:
        if table in victim.uploaded:
            for number, row in zip(victim.aligned[table].tolist(), rows_of[victim.name], strict=False):
                if not np.isnan(row).any():
                    uploads.setdefault(number, []).append(row)
    recovered = {}
    for victim in victims:
        means = np.full(rows_of[victim.name].shape, np.nan)
        for row, number in enumerate(victim.aligned[table].tolist()):
            if number in uploads:
                means[row] = np.mean(uploads[number], axis=0)
        recovered[victim.name] = Recovered(means, rows_of[victim.name], summed=False)
    return recovered


def run(view: KgeView, laboratory: Laboratory, rng: np.random.Generator) -> dict[Table, dict[str, Recovered]]:
    """Estimate each victim's rows of each shared table."""
    return {table: recover(view, table) for table in laboratory.settings.recipe.shared}


def score(claims: Mapping[Table, Mapping[str, Recovered]], truth: Truth) -> list[Figure]:
    """Cosine and relative error of every victim, for each table that is shared."""
    figures = []
    for table, recovered in claims.items():
        for victim in truth.victims:
            rng = generator(truth.seed, "update recovery", table, victim)
            suffix = "" if table == "entities" else f"_{table}"
            try:
                changes = changes_of(truth, 0, victim, table, recovered.get(victim))
                figures += figures_of(truth, victim, changes, rng, suffix=suffix)
            except NotAttacked as reason:
                figures += truth.not_attacked(victim, reason, [f"cosine{suffix}", f"relative_error{suffix}"])
    return figures


ATTACK = Attack(
    UPDATE_RECOVERY,
    "estimates how the victims' training changed their rows in a round",
    Needs(),
    METRICS,
    run,
    score,
    questions=dict.fromkeys(METRICS, UPLOADS),
    items=dict.fromkeys(METRICS, "rows of the victims that changed"),
    errors=("relative_error", "relative_error_relations"),
    choose=threats,
    leads=("cosine", "cosine_relations"),
)


def cosines(true: np.ndarray, estimated: np.ndarray) -> np.ndarray:
    """Cosine of each true row `[n, W]` to the estimated one, float64 `[n]`; 0 where either is 0."""
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
    ends, by_row = changes.ends, {way: cosines(true, guess) for way, guess in changes.inferred.items()}
    cosine = {way: estimate.mean(values, rng) for way, values in by_row.items()}
    error = {way: relative_error(true, guess, rng) for way, guess in changes.inferred.items()}
    figures: list[Figure] = []
    for metric, measured, level, nothing, attainable in (
        ("cosine", cosine, at_level, 0.0, 1.0),
        ("relative_error", error, _error_at_level, 1.0, 0.0),
    ):
        ways: dict[str, Measure] = {way: partial(level, value) for way, value in measured.items()}
        *_, strongest = truth.figures(
            f"{metric}{suffix}", victim, ways, {NO_CHANGE: exact(nothing, num_rows)}, attainable=attainable,
            exposed=measured.get(changes.read or ""), counts={"claimed": changes.claimed},
            outcomes=None if ends is None or metric != "cosine" else lambda way: of_mean(by_row[way], ends), **details,
        )  # fmt: skip
        figures.append(msgspec.structs.replace(strongest, variant=""))
    return figures


def _error_at_level(error: Estimate, compared: int = 1) -> Estimate:
    """The same relative error with the interval that holds where it was chosen among `compared` ones; it may exceed 1."""
    wider = critical_value(compared) / critical_value()
    low, high = (error.value + wider * (end - error.value) for end in (error.low, error.high))
    return Estimate(error.value, max(0.0, low), high, error.n, f"{error.method}, best of {compared}")


def client_index(result: KgeResult, name: str) -> int:
    """The index of a client."""
    return next(index for index, client in enumerate(result.graph.clients) if client.name == name)


def client_rows(result: KgeResult, place: int, table: Table) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names of the rows that a client uploads, and these before and after its training, float64 `[n, W]`."""
    client, vocabulary = result.graph.clients[place], getattr(result.graph, table)
    ids = client.entity_ids if table == "entities" else client.relation_ids
    end = getattr(result.trained[place], table).double().numpy()
    start = result.started[table][client_party(client.name)].double().numpy()
    num = client.num_trained_entities if table == "entities" else client.num_trained_relations
    return [vocabulary[number] for number in ids[:num]], start[:num], end[:num]


def moved_rows(result: KgeResult, victim: str, table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Changes and starts float64 `[n, W]` of the rows that a victim's training moved at all, and their rows in the table."""
    names, start, end = client_rows(result, client_index(result, victim), table)
    moved = np.abs(end - start).max(axis=1) > 0
    return (end - start)[moved], start[moved], table_rows(result, names, table)[moved]


def table_rows(result: KgeResult, names: Sequence[str], table: Table) -> np.ndarray:
    """The rows of names in the server's table, int64 `[n]`, -1 for a name that it does not have."""
    row_of = {name: row for row, name in enumerate(result.row_names[table])}
    return np.array([row_of.get(name, -1) for name in names], dtype=np.int64)


def at_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The values `[m, W]` of rows `[n]`, float64 `[n, W]`, NaN where there is no such row."""
    selected, there = np.full((len(rows), values.shape[1]), np.nan), (rows >= 0) & (rows < len(values))
    selected[there] = values[rows[there]]
    return selected


def holds_rows(result: KgeResult, victim: str, table: Table) -> tuple[np.ndarray, Estimate]:
    """Rows of the table that a victim holds, bool `[N]`, and the share that the commoner answer has right."""
    names = client_rows(result, client_index(result, victim), table)[0]
    holds = np.isin(result.row_names[table], names)
    return holds, proportion(int(max(holds.sum(), (~holds).sum())), len(holds))


def changes_of(truth: Truth, run: int, victim: str, table: Table, recovered: Recovered | None) -> Changes:
    """The rows of a victim that its training changed.

    Args:
        run: see `View.run`.

    Raises:
        NotAttacked: there is nothing to measure.
    """
    result: KgeResult = truth.runs[run]
    if not result.started.get(table):  # nor by runs of an earlier version
        raise NotAttacked("the rows that training started from were not kept, or nothing was sent")
    names, start, end = client_rows(result, client_index(result, victim), table)
    moved = changed_rows(start, end)
    if not moved.any():
        raise NotAttacked(f"training in round {result.best_round} changed no row of {victim}")
    client, mean, others = truth.own(victim), start, np.full_like(start, np.nan)
    if recovered is not None:
        victim_rows = truth.rows_of(victim, table)[: len(names)]
        rows = table_rows(result, names, table) if recovered.summed else victim_rows
        mean, others = (at_rows(values, rows) for values in (recovered.means, recovered.own))
        mean = np.where(np.isnan(mean).any(axis=1, keepdims=True), start, mean)
    claimed = np.asarray(~np.isnan(others).any(axis=1))
    ways = {AGGREGATE: mean - start, UPLOAD: np.where(claimed[:, None], others, mean) - start}
    if np.allclose(ways[AGGREGATE], ways[UPLOAD], atol=1e-6):  # single precision of claims
        del ways[UPLOAD]
    read = UPLOAD if UPLOAD in ways and recovered and not recovered.summed else AGGREGATE
    return Changes(
        (end - start)[moved],
        {way: rows[moved] for way, rows in ways.items()},
        read,
        int(claimed[moved].sum()),
        (client.entity_ids if table == "entities" else client.relation_ids)[: len(names)][moved][:, None],
    )


def changed_rows(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Find the rows `[n, W]` that training changed by more than single precision rounds them, bool `[n]`."""
    rounding = np.finfo(np.float32).eps * np.abs(start).max(axis=1)
    return np.abs(end - start).max(axis=1) > rounding
