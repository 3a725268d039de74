"""Update recovery: how much the adversary learns about the change that a victim's training made to its rows in one round.

ERR and TRR hardly react when single uploads become visible, because after each broadcast all rows of an entity are close to
their mean. The *change* of a row in the attacked round shows the effect of its holder's triples.

Truth: the victim's row after its training minus the row that it started from, which the server has sent. Where clients start
from private rows, as in FedS, the evaluator gives the adversary more than it has.

Inference methods; the protocol itself exposes what is transmitted in plaintext (`Figure.exposed`):

- `aggregate`: mean of each row in the view, minus the start. A row that is not in the view is assumed unchanged.
- `upload`: the victim's upload of the row, as the adversary attributes it, minus the start; else the aggregate.

`cosine`: mean cosine similarity between inferred and true changes of rows. `relative_error`: norm of inferred minus true
changes over the norm of the true ones. Intervals resample rows. Metrics of relations end in `_relations`. Baseline: no change,
which is all that an adversary without the messages can infer (cosine 0, relative error 1).

Threat model: the server alone, or a threat model whose colluder adds knowledge of the round. Required knowledge: opened sums or
uploads of the attacked round, and the broadcast before it. Source: ours.

Legend: `n` rows of the victim that its training changed, `W` their width, `N` rows of the server's table.
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
    "relative_error": "error of inferred changes over the size of the true ones (lower is worse for the victim)",
    "cosine_relations": "cosine of inferred and true changes of relations",
    "relative_error_relations": "error of inferred changes of relations over their true size (lower is worse for the victim)",
}
AGGREGATE, UPLOAD, NO_CHANGE = "aggregate", "upload", "no change"


class Changes(NamedTuple):
    """True and inferred changes of a victim's rows.

    Attributes:
        true: float64 `[n, W]`.
        inferred: float64 `[n, W]` by inference method, in the same order.
        read: the method that only reads what the protocol exposes, if any.
        claimed: number of rows for which the adversary claims to have the victim's own upload.
        ends: entity or relation ID of each row, int `[n, 1]`; None if unknown.
    """

    true: np.ndarray
    inferred: Mapping[str, np.ndarray]
    read: str | None
    claimed: int
    ends: np.ndarray | None = None


def threats(wanted: Sequence[str]) -> list[str]:
    """Select the server alone, and the requested threat models that add knowledge of the round.

    Args:
        wanted: names of the requested threat models.
    """
    adding = [name for name in wanted if THREAT_MODELS[name].leaks and not THREAT_MODELS[name].victim_entities]
    return list(dict.fromkeys(["server", *adding]))


class Recovered(NamedTuple):
    """An adversary's estimate of a victim's rows after its training, float64 `[n, W]`, NaN where it has none.

    Attributes:
        means: mean of all uploads in the view.
        uploads: the victim's own upload.
        summed: True if rows are those of the whole table, in the order of the sums; else they are the victim's.
    """

    means: np.ndarray
    uploads: np.ndarray
    summed: bool


def recover(view: KgeView, table: Table) -> dict[str, Recovered]:
    """Estimate each victim's rows of a table.

    Args:
        view: the adversary's knowledge.
        table: entities or relations.

    Returns:
        Estimates by victim name; without victims of which the view has no rows.
    """
    if table in view.secure:
        opened = view.secure[table].opened[:1]
        if not opened:
            return {}
        total, holders = opened[0].sums()
        means = np.full(total.shape, np.nan)
        # The adversary's estimate under secure sums: the mean over all holders of a row.
        if opened[0].round == view.round:
            # A sum of another round says nothing about the attacked one.
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
                    # Equal numbers mark the same entity at several victims (`VictimView.aligned`).
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
    """Measure cosine and relative error for every victim and each shared table."""
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
    "infers how a victim's training changed its rows in one round",
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
    """Return the cosine of each true row to the estimated one, float64 `[n]`; 0 where either is 0.

    Args:
        true: float `[n, W]`.
        estimated: float `[n, W]`.
    """
    norms = np.linalg.norm(true, axis=1) * np.linalg.norm(estimated, axis=1)
    return np.where(norms > 0, (true * estimated).sum(axis=1) / np.where(norms > 0, norms, 1.0), 0.0)


def relative_error(true: np.ndarray, inferred: np.ndarray, rng: np.random.Generator, resamples: int = 1000) -> Estimate:
    """Return |inferred - true| / |true| over all rows, with a percentile bootstrap interval over rows.

    Args:
        true: float `[n, W]`.
        inferred: float `[n, W]`.
        rng: draws the bootstrap samples.
        resamples: number of bootstrap samples.
    """
    wrong, size = ((inferred - true) ** 2).sum(axis=1), (true**2).sum(axis=1)
    # Resample rows: the ratio has no closed-form interval.
    drawn = rng.integers(0, len(true), size=(resamples, len(true)))
    ratios = np.sqrt(wrong[drawn].sum(axis=1) / size[drawn].sum(axis=1))
    low, high = np.quantile(ratios, [0.025, 0.975])
    value = float(np.sqrt(wrong.sum() / size.sum()))
    return Estimate(value, min(value, float(low)), max(value, float(high)), len(true), "bootstrap")


def figures_of(
    truth: Truth, victim: str, changes: Changes, rng: np.random.Generator, *, suffix: str = "", **details: Any
) -> list[Figure]:
    """Measure cosine and relative error of the inferred changes, by the strongest method (`Figure.by`).

    Args:
        changes: true and inferred changes.
        rng: draws the bootstrap samples.
        suffix: suffix of both metrics' names.
        details: further fields of `Figure`.
    """
    true, num_rows = changes.true, len(changes.true)
    ends, by_row = changes.ends, {way: cosines(true, guess) for way, guess in changes.inferred.items()}
    cosine = {way: estimate.mean(values, rng) for way, values in by_row.items()}
    # Errors of all methods before the strongest is chosen: its interval is widened for the choice.
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
        # One figure per metric: the strongest method stands for the attack, so it needs no variant.
        figures.append(msgspec.structs.replace(strongest, variant=""))
    return figures


def _error_at_level(error: Estimate, compared: int = 1) -> Estimate:
    """Widen the interval of a relative error that was chosen among `compared` ones; it may exceed 1."""
    wider = critical_value(compared) / critical_value()
    low, high = (error.value + wider * (end - error.value) for end in (error.low, error.high))
    return Estimate(error.value, max(0.0, low), high, error.n, f"{error.method}, best of {compared}")


def client_index(result: KgeResult, name: str) -> int:
    """Return the index of a client."""
    return next(index for index, client in enumerate(result.graph.clients) if client.name == name)


def client_rows(result: KgeResult, place: int, table: Table) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the rows that a client uploads.

    Args:
        result: finished run that kept the start of training.

    Returns:
        Names of the rows, and the rows before and after its training, float64 `[n, W]`.
    """
    client, vocabulary = result.graph.clients[place], getattr(result.graph, table)
    ids = client.entity_ids if table == "entities" else client.relation_ids
    end = getattr(result.trained[place], table).double().numpy()
    start = result.started[table][client_party(client.name)].double().numpy()
    num = client.num_trained_entities if table == "entities" else client.num_trained_relations
    return [vocabulary[number] for number in ids[:num]], start[:num], end[:num]


def moved_rows(result: KgeResult, victim: str, table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the changes and starts of all rows that a victim's training moved, and their indices in the server's table.

    Args:
        result: finished run that kept the start of training.

    Returns:
        Changes and starts, float64 `[n, W]`, and indices, int64 `[n]`.
    """
    names, start, end = client_rows(result, client_index(result, victim), table)
    moved = np.abs(end - start).max(axis=1) > 0
    return (end - start)[moved], start[moved], table_rows(result, names, table)[moved]


def table_rows(result: KgeResult, names: Sequence[str], table: Table) -> np.ndarray:
    """Return the indices of names in the server's table, int64 `[n]`, -1 for a missing name."""
    row_of = {name: row for row, name in enumerate(result.row_names[table])}
    return np.array([row_of.get(name, -1) for name in names], dtype=np.int64)


def at_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Select rows of a table.

    Args:
        values: float `[m, W]`.
        rows: indices, int `[n]`.

    Returns:
        float64 `[n, W]`, NaN where an index is out of range.
    """
    selected, there = np.full((len(rows), values.shape[1]), np.nan), (rows >= 0) & (rows < len(values))
    selected[there] = values[rows[there]]
    return selected


def holds_rows(result: KgeResult, victim: str, table: Table) -> tuple[np.ndarray, Estimate]:
    """Return the rows of the table that a victim holds, bool `[N]`, and the accuracy of the more frequent answer."""
    names = client_rows(result, client_index(result, victim), table)[0]
    holds = np.isin(result.row_names[table], names)
    return holds, proportion(int(max(holds.sum(), (~holds).sum())), len(holds))


def changes_of(truth: Truth, run: int, victim: str, table: Table, recovered: Recovered | None) -> Changes:
    """Compare an adversary's estimate with the true changes of a victim's rows.

    Args:
        run: index of the run, see `View.run`.
        recovered: the adversary's estimate; None infers no change.

    Raises:
        NotAttacked: training changed no row, or its start was not kept.
    """
    result: KgeResult = truth.runs[run]
    # Runs of earlier versions did not store it either.
    if not result.started.get(table):
        raise NotAttacked("the rows that training started from were not kept, or nothing was sent")
    names, start, end = client_rows(result, client_index(result, victim), table)
    moved = changed_rows(start, end)
    if not moved.any():
        raise NotAttacked(f"training in round {result.best_round} changed no row of {victim}")
    client, mean, others = truth.unshuffled(victim), start, np.full_like(start, np.nan)
    if recovered is not None:
        victim_rows = truth.rows_of(victim, table)[: len(names)]
        rows = table_rows(result, names, table) if recovered.summed else victim_rows
        mean, others = (at_rows(values, rows) for values in (recovered.means, recovered.uploads))
        # Without an estimate the best guess is that the row did not change.
        mean = np.where(np.isnan(mean).any(axis=1, keepdims=True), start, mean)
    claimed = np.asarray(~np.isnan(others).any(axis=1))
    ways = {AGGREGATE: mean - start, UPLOAD: np.where(claimed[:, None], others, mean) - start}
    # Drop a method that equals the other; it would only widen the corrected interval.
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
    """Find the rows that training changed by more than single-precision rounding, bool `[n]`.

    Args:
        start: rows before training, float `[n, W]`.
        end: rows after training, float `[n, W]`.
    """
    # Rows are stored in float32: a smaller change is rounding, and its direction carries no information.
    rounding = np.finfo(np.float32).eps * np.abs(start).max(axis=1)
    return np.abs(end - start).max(axis=1) > rounding
