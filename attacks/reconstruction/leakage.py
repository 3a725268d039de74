"""What one attack got of one victim, and the strongest of several ways to infer relations.

    >>> from fkgsec.estimate import exact, proportion
    >>> def row(inference, right):
    ...     none = exact(0.2, 100)
    ...     return Leakage("reconstruction", "collusion", "paper", inference, "a", "b", 1.0, 9, proportion(60, 100), none, 0.4,
    ...                    proportion(right, 100), exact(0.1, 100), none, right / 100 - 0.2)
    >>> best = strongest([row("cosine", 15), row("score", 45)])
    >>> best.inference, best.trr_by, best.trr_compared, str(best.trr)
    ('strongest', 'score', 4, '0.4500 [0.3323, 0.5735]')
    >>> strongest([row("cosine", 15)]).trr_by, strongest([row("cosine", 15)]).trr.value
    ('prior', 0.2)

Source: ours. fedr.txt 3.1 infers by cosine alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import pandas as pd

from attacks.figure import STRONGEST, Figure
from attacks.reconstruction.inference import Inference
from attacks.reconstruction.unlinked import Unlinked
from attacks.residual import count_sources
from attacks.view import ALL, View
from fkgsec import estimate
from fkgsec.estimate import Estimate

INFERENCES: tuple[Inference, ...] = get_args(Inference)
RECONSTRUCTION, PUBLISHED = "reconstruction", "published"
UNLINKED = ("precision", "recall", "average_precision")
PAPER: Inference = "cosine"  # fedr.txt's own
Item = Literal["entity", "triple"]


class Leakage(msgspec.Struct, frozen=True):
    """What one attack got of one victim (or of "all" together) under one threat model at one leak ratio.

    `inference` says how relations were inferred: one of `INFERENCES`, or "strongest" for the best of them and of the baselines
    (`strongest`), which is what a verdict goes by. `trr_by` then names the best one, `err_by` is "attack" or "baseline", and
    `trr_compared` says among how many the best was taken; its interval is corrected for that choice.
    Baselines are adversaries with the same knowledge and no embeddings: `err_baseline` draws a name, `trr_baseline` takes the
    majority relation, `trr_prior` the one that the colluder's triples suggest where both names can be read
    (`attacks.reconstruction.prior`). The advantages are the figure minus the best of its baselines. `err_attainable` is the
    share of entities whose name the adversary can output at all, `trr_attainable` that of triples whose names and relation it
    can; None where nothing was attacked, and in records that do not have it. `reason` says why there was nothing to attack;
    then the figures are zero with the interval [0, 1]. `remark` says why a TRR is zero by construction, whatever was attacked,
    or of what nothing could be learnt. "all" counts the `num_attacked` victims that could be attacked, and has a reason only
    when there was none. `metric` is "paper" (the definitions above) or "published" (FedR's notebooks' counts). Where rows were
    summed securely, the adversary claims rows for victims, the baselines claim as many at random of the names that it knows,
    and `sources` counts how the right claims were found (`attacks.residual.SOURCES`).
    """

    attack: str
    threat_model: str
    metric: str
    inference: str
    colluder: str | None
    victim: str
    leak: float
    round: int
    err: Estimate
    err_baseline: Estimate
    err_advantage: float
    trr: Estimate
    trr_baseline: Estimate
    trr_prior: Estimate
    trr_advantage: float
    unlinked: Unlinked | None = None
    reason: str | None = None
    num_attacked: int = 1
    sources: dict[str, int] = {}
    err_attainable: float | None = None
    trr_attainable: float | None = None
    remark: str | None = None
    err_by: str | None = None
    trr_by: str | None = None
    trr_compared: int = 1


def strongest(rows: Sequence[Leakage]) -> Leakage:
    """The best of several inferences on one victim and of the baselines, which an adversary is free to take instead.

    Args:
        rows: of the same threat model, leak and victim, one for each inference.

    ERR is the largest of the ways to name entities (the paper's, and by the nearer of the colluder's rows) and of the baseline,
    whose expectation is known without sampling. TRR is the largest of the inferences, the majority relation and the
    prior. Intervals are Wilson's at the level 1 - 0.05 / m (Bonferroni) for the m among which was chosen, so that all m hold
    at once and the chosen one with them; ways that named as many entities right count once. Ties go to the first.
    """
    first = rows[0]
    if first.reason:
        return msgspec.structs.replace(first, inference=STRONGEST)
    guess = max(first.trr_baseline.value, first.trr_prior.value)
    by_name = {row.inference: row.trr.value for row in rows}
    by_name |= {"majority": first.trr_baseline.value, "prior": first.trr_prior.value}
    by = max(by_name, key=lambda name: by_name[name])
    ways = {row.err.value for row in rows}
    err, err_by = first.err, "attack"
    if len(ways) > 1:
        err = _share(max(ways), first.err.n, len(ways))
    if first.err_baseline.value > err.value:
        err, err_by = _share(first.err_baseline.value, first.err.n, 1), "baseline"
    trr = _share(by_name[by], first.trr.n, len(by_name))
    return msgspec.structs.replace(
        first,
        inference=STRONGEST,
        err=err,
        err_advantage=err.value - first.err_baseline.value,
        trr=trr,
        trr_advantage=trr.value - guess,
        err_by=err_by,
        trr_by=by,
        trr_compared=len(by_name),
    )


def _share(value: float, n: int, compared: int) -> Estimate:
    found = estimate.proportion(min(value * n, n), n, compared=compared)
    return msgspec.structs.replace(found, value=value, low=min(value, found.low), high=max(value, found.high))


def headline_rows(rows: Sequence[Leakage]) -> list[Leakage]:
    """The rows that verdicts and summaries go by: the strongest ones; all of them where a record has none (older ones,
    and counts with metric published)."""
    return [row for row in rows if row.inference == STRONGEST] or list(rows)


def paper_rows(rows: Sequence[Leakage]) -> list[Leakage]:
    """The rows by the papers' own inference, cosine, which stand in their tables; all where a record has none."""
    return [row for row in rows if row.inference == PAPER] or headline_rows(rows)


def leakage_figures(row: Leakage) -> list[Figure]:
    """Everything that a row says, figure by figure: ERR, TRR, and what is claimed without linked pairs."""
    colluder = row.colluder
    by_rows = PUBLISHED if row.metric == PUBLISHED else row.inference

    def figure(metric: str, found: Estimate, baseline: Estimate, variant: str = by_rows, **details: Any) -> Figure:
        return Figure(
            row.attack, metric, row.threat_model, row.victim, found, baseline, leak=None if colluder is None else row.leak,
            round=row.round, reason=row.reason, colluder=colluder, num_attacked=row.num_attacked,
            variant=variant, **details,
        )  # fmt: skip

    guesses = {"majority": row.trr_baseline, "prior": row.trr_prior}
    figures = [
        figure("err", row.err, row.err_baseline, attainable=row.err_attainable, by=row.err_by, counts=row.sources),
        figure(
            "trr", row.trr, max(guesses.values(), key=lambda one: one.value), attainable=row.trr_attainable,
            by=row.trr_by, compared=row.trr_compared, guesses=guesses, remark=row.remark,
        ),
    ]  # fmt: skip
    if (honest := row.unlinked) is not None:
        counts = {"heads": honest.num_heads, "pairs": honest.num_pairs}
        figures += [
            figure(
                name,
                getattr(honest, name),
                getattr(honest, f"{name}_baseline"),
                variant=honest.inference,
                counts=counts,
            )
            for name in UNLINKED
        ]
    return figures


def rows_of(figures: Iterable[Figure]) -> list[Leakage]:
    """ERR and TRR of each victim and inference side by side, as their tables have them; the inverse of `leakage_figures`."""
    pairs: dict[tuple[str, float | None, str, str], dict[str, Figure]] = {}
    honest: dict[tuple[str, float | None, str], dict[str, Figure]] = {}
    for one in figures:
        if one.attack == RECONSTRUCTION:
            place = one.threat_model, one.leak, one.victim
            found = (
                honest.setdefault(place, {}) if one.metric in UNLINKED else pairs.setdefault((*place, one.variant), {})
            )
            found[one.metric] = one
    rows = [_row(pair["err"], pair["trr"]) for pair in pairs.values()]
    shown = {id(row) for row in headline_rows(rows)}
    for place, row in enumerate(rows):
        parts = honest.get((row.threat_model, row.leak if row.colluder else None, row.victim))
        if parts and id(row) in shown:
            rows[place] = msgspec.structs.replace(row, unlinked=_unlinked(parts))
    return rows


def _row(err: Figure, trr: Figure) -> Leakage:
    assert err.baseline is not None
    return Leakage(
        attack=err.attack,
        threat_model=err.threat_model,
        metric=PUBLISHED if err.variant == PUBLISHED else "paper",
        inference=PAPER if err.variant == PUBLISHED else err.variant,
        colluder=err.colluder,
        victim=err.victim,
        leak=err.leak or 0.0,
        round=err.round,
        err=err.estimate,
        err_baseline=err.baseline,
        err_advantage=err.advantage,
        trr=trr.estimate,
        trr_baseline=trr.guesses["majority"],
        trr_prior=trr.guesses["prior"],
        trr_advantage=trr.advantage,
        reason=err.reason,
        num_attacked=err.num_attacked,
        sources=err.counts,
        err_attainable=err.attainable,
        trr_attainable=trr.attainable,
        remark=trr.remark,
        err_by=err.by,
        trr_by=trr.by,
        trr_compared=trr.compared,
    )


def _unlinked(parts: Mapping[str, Figure]) -> Unlinked:
    counts, inference = parts[UNLINKED[0]].counts, parts[UNLINKED[0]].variant
    estimates = {name: parts[name].estimate for name in UNLINKED}
    baselines = {f"{name}_baseline": parts[name].baseline for name in UNLINKED}
    return Unlinked(**estimates, **baselines, num_heads=counts["heads"], num_pairs=counts["pairs"], inference=inference)  # pyright: ignore[reportArgumentType]


def inference_label(inference: str) -> str:
    """How tables call an inference; the papers' own is named as such.

    >>> inference_label("cosine"), inference_label("learned")
    ("cosine (the paper's)", 'learned')
    """
    return f"{inference} (the paper's)" if inference == PAPER else inference


def items_of(scores: pd.DataFrame, row: Leakage, item: Item) -> pd.DataFrame:
    """The entities or triples that a row of leakage was measured on, of its victim or of all, in the order of the data.

    Args:
        scores: of `attack_federation`. They have a column `right` and `guessed_relation` for the best inference on each victim,
            and `right_*` and `guessed_relation_*` for each.

    Returns: the rows, where `right` (bool) and `guessed_relation` are those of the row's inference; of the best inference on
    each victim where a baseline was stronger still, whose figure is an expectation.
    """
    chosen = (scores["item"] == item) & (scores["threat_model"] == row.threat_model) & (scores["leak"] == row.leak)
    if row.victim != ALL:
        chosen &= scores["victim"] == row.victim
    items = scores.loc[chosen]
    own = [name for name in items if str(name).startswith(("right_", "guessed_relation_"))]
    by = row.trr_by if row.inference == STRONGEST else row.inference
    if item == "triple" and f"right_{by}" in items:
        items = items.assign(right=items[f"right_{by}"], guessed_relation=items[f"guessed_relation_{by}"])
    elif row.inference != STRONGEST and f"right_{by}" in items and items[f"right_{by}"].notna().all():
        items = items.assign(right=items[f"right_{by}"])  # files of before have none for entities
    return items.drop(columns=own).assign(right=items["right"].astype(bool))


class Counts(msgspec.Struct):
    """Right guesses, expectations and what can be right at all of one victim; `entities` and `triples` are by inference."""

    victim: str
    num_entities: int
    num_triples: int
    entities: dict[str, float] = {}
    entities_baseline: float = 0
    entities_attainable: float = 0
    triples: dict[str, float] = {}
    triples_baseline: float = 0
    triples_prior: float = 0
    triples_attainable: float = 0
    remark: str | None = None
    unlinked: Unlinked | None = None
    reason: str | None = None
    sources: np.ndarray = msgspec.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    items: pd.DataFrame = msgspec.field(default_factory=pd.DataFrame)


def leakage_rows(
    view: View, metric: str, inferences: Sequence[Inference], colluder: str, counts: list[Counts], note: str | None
) -> list[Leakage]:
    """Leakage by each inference, then the strongest of them: of each victim, and of all where there are several.

    Args:
        note: what is to be said of the learned inference.
    """
    groups = [(count.victim, [count]) for count in counts] + ([(ALL, counts)] if len(counts) > 1 else [])
    by_inference = [[_leakage(view, metric, by, colluder, *group) for group in groups] for by in inferences]
    rows = [
        msgspec.structs.replace(row, remark="; ".join(filter(None, (row.remark, f"learned: {note}"))))
        if note and row.inference == "learned" and not row.reason
        else row
        for rows in by_inference
        for row in rows
    ]
    if metric == "published":
        return rows
    for (_, group), same_victim in zip(groups, zip(*by_inference, strict=True), strict=True):
        unlinked = group[0].unlinked if len(group) == 1 else None
        rows.append(msgspec.structs.replace(strongest(same_victim), unlinked=unlinked))
    return rows


def _leakage(
    view: View, metric: str, inference: Inference, colluder: str, victim: str, counts: Sequence[Counts]
) -> Leakage:
    def share(name: str, num: int) -> Estimate:
        return estimate.exact(sum(getattr(count, name) for count in counts) / num, num)

    entities, triples = (sum(getattr(count, name) for count in counts) for name in ("num_entities", "num_triples"))
    attacked = [count for count in counts if not count.reason]
    reasons = [] if attacked else _distinct(count.reason for count in counts)
    counts = attacked or counts
    err = _measured(sum(count.entities.get(inference, 0.0) for count in counts), entities, reasons)
    trr = _measured(sum(count.triples.get(inference, 0.0) for count in counts), triples, reasons)
    err_baseline, trr_baseline = share("entities_baseline", entities), share("triples_baseline", triples)
    trr_prior = share("triples_prior", triples)
    known = not reasons and metric == "paper"
    reachable = share("triples_attainable", triples).value
    return Leakage(
        attack="reconstruction",
        threat_model=view.threat_model.name,
        metric=metric,
        inference=inference,
        colluder=colluder if view.threat_model.colluder else None,
        victim=victim,
        num_attacked=len(attacked),
        leak=view.leak,
        round=view.round,
        err=err,
        err_baseline=err_baseline,
        err_advantage=0.0 if reasons else err.value - err_baseline.value,
        trr=trr,
        trr_baseline=trr_baseline,
        trr_prior=trr_prior,
        trr_advantage=0.0 if reasons else trr.value - max(trr_baseline.value, trr_prior.value),
        reason="; ".join(reasons) if reasons else None,
        sources=count_sources([count.sources for count in counts]),
        err_attainable=share("entities_attainable", entities).value if known else None,
        trr_attainable=reachable if known else None,
        remark="; ".join(_distinct(count.remark for count in counts)) if known and not reachable else None,
    )


def _measured(right: float, n: int, reasons: list[str]) -> Estimate:
    """The share with its interval. A figure that was not measured is zero with no certainty at all."""
    if reasons:
        return Estimate(0.0, 0.0, 1.0, n, "not attacked")
    # FedR's notebooks divide a number of entities by a number of triples: a ratio that can pass 1, without an interval.
    return estimate.proportion(right, n) if right <= n else estimate.exact(right / n, n)


def _distinct(reasons: Iterable[str | None]) -> list[str]:
    return sorted({reason for reason in reasons if reason})
