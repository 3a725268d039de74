"""ERR and TRR of one victim side by side, as tables lay them out; records hold them as figures (`attacks.figure`).

    for row in headline_rows(rows_of(record.all_figures())):
        print(row.threat_model, row.leak, row.victim, row.err, row.trr, row.trr_by)

Source: ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import pandas as pd

from attacks.figure import STRONGEST, Figure
from attacks.options import PAPER, RECONSTRUCTION, Inference
from attacks.reconstruction.unlinked import Unlinked
from attacks.view import ALL
from fkgsec.errors import RunError
from fkgsec.estimate import Estimate

INFERENCES: tuple[Inference, ...] = get_args(Inference)
PUBLISHED = "published"
UNLINKED = ("precision", "recall", "average_precision")
Item = Literal["entity", "triple"]


class Leakage(msgspec.Struct, frozen=True):
    """What one attack got of one victim (or of "all" together) under one threat model at one leak ratio, 0 without a colluder.

    `inference` says how relations were inferred: one of `INFERENCES`, or "strongest" for the best of them and of the baselines,
    which is what a verdict goes by. `trr_by` then names the best one, `err_by` is "attack" or "baseline", and `trr_compared`
    says among how many the best was taken; its interval is corrected for that choice.
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

    Records of schema fkgsec/record/1 hold such rows (`leakage_figures`).
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
            if one.metric not in found or one.variant == STRONGEST:
                found[one.metric] = one
    for place, pair in pairs.items():
        _check_pair(place, pair)
    rows = [_row(pair["err"], pair["trr"]) for pair in pairs.values()]
    shown = {id(row) for row in headline_rows(rows)}
    for place, row in enumerate(rows):
        parts = honest.get((row.threat_model, row.leak if row.colluder else None, row.victim))
        if parts and id(row) in shown:
            rows[place] = msgspec.structs.replace(row, unlinked=_unlinked(parts))
    return rows


def _check_pair(place: tuple[object, ...], pair: Mapping[str, Figure]) -> None:
    """Raises `RunError` unless a record has ERR, TRR and their baselines of a victim and inference."""
    err, trr = pair.get("err"), pair.get("trr")
    if err is None or err.baseline is None or trr is None or not {"majority", "prior"} <= trr.guesses.keys():
        named = " ".join(str(part) for part in place)
        raise RunError(f"figures: reconstruction ({named}) must have err and trr with their baselines")


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
    if any(name not in parts or parts[name].baseline is None for name in UNLINKED):
        raise RunError(
            f"figures: reconstruction without linked pairs must have {', '.join(UNLINKED)} with their baselines"
        )
    counts, last = parts[UNLINKED[0]].counts, parts[UNLINKED[-1]]
    if not {"heads", "pairs"} <= counts.keys():
        raise RunError("figures: reconstruction without linked pairs must have its counts of heads and pairs")
    inference = last.by if last.variant == STRONGEST else last.variant
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
    """The entities or triples that a row was measured on, see `items_behind`."""
    err, trr, *_ = leakage_figures(row)
    return items_behind(err if item == "entity" else trr, scores)


def items_behind(figure: Figure, scores: pd.DataFrame) -> pd.DataFrame:
    """The entities that an ERR, or the triples that a TRR was measured on, of its victim or of all, in the order of the data.

    Args:
        scores: of `attacks.registry.run_attacks`. They have a column `right` and `guessed_relation` for the best inference on
            each victim, and `right_*` and `guessed_relation_*` for each.

    Returns: the rows, where `right` (bool) and `guessed_relation` are those of the figure's variant; of the best inference on
    each victim where a baseline was stronger still, whose figure is an expectation.
    """
    item = "triple" if figure.metric == "trr" else "entity"
    chosen = (
        (scores["item"] == item) & (scores["threat_model"] == figure.threat_model) & (scores["leak"] == figure.leak)
    )
    if figure.victim != ALL:
        chosen &= scores["victim"] == figure.victim
    items = scores.loc[chosen]
    own = [name for name in items if str(name).startswith(("right_", "guessed_relation_"))]
    best = figure.variant == STRONGEST
    by = figure.by if best else PAPER if figure.variant == PUBLISHED else figure.variant
    if item == "triple" and f"right_{by}" in items:
        items = items.assign(right=items[f"right_{by}"], guessed_relation=items[f"guessed_relation_{by}"])
    elif not best and f"right_{by}" in items and items[f"right_{by}"].notna().all():
        items = items.assign(right=items[f"right_{by}"])  # files of before have none for entities
    return items.drop(columns=own).assign(right=items["right"].astype(bool))
