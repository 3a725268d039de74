"""Records as frames: a row for each figure of every attack, and a row for each run. Tables, listings and pages show these.

    runs = {"none": record, "psu,secagg": other}
    figures = figure_frame(runs, over_all)        # run, attack, metric, threat_model, ..., estimate, baseline, attainable, reason
    side_by_side(figures)                         # err, err_base, err_max, trr, ... in one row for each run and threat model
    run_frame(runs)[["run", "mrr", "bytes", "seconds"]]

Cells hold estimates with their intervals, not text: what writes them is `experiments.reporting.sheets`. What was not measured
is None, and `reason` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import pandas as pd

from attacks.figure import STRONGEST, Figure, headline, over_victims
from attacks.reconstruction.leakage import RECONSTRUCTION, UNLINKED, Leakage, headline_rows
from attacks.view import ALL, THREAT_MODELS
from experiments.reporting.convergence import convergence, relative_cost
from experiments.runs.record import Record
from experiments.tasks.task import task_of
from fkgsec.estimate import Estimate

FIELDS = Figure.__struct_fields__
PLACE = ("run", "attack", "threat_model", "leak", "place", "round", "victim", "metric", "variant")
"""What a figure answers; two rows of a frame differ in some of these."""


class Attacked(Protocol):
    """What was attacked: a run's record, an audit of tables, or a round."""

    @property
    def figures(self) -> list[Figure]: ...


def figure_frame(runs: Mapping[str, Attacked], pick: Callable[[Sequence[Figure]], list[Figure]] = list) -> pd.DataFrame:
    """A row for each figure that was picked of each run.

    Args:
        pick: which figures; all, or such as `attacks.figure.headline` and `over_all`.

    Returns: columns of objects: `run`, the fields of `attacks.figure.Figure`, `advantage`, `headline` (whether summaries go by
    it), `place`, which names threat model and leak, and `label`, the metric with its variant. `estimate` and `attainable` are
    None where the victim was not attacked; `baseline` is a number.
    """
    rows = []
    for run, record in runs.items():
        chosen = {id(one) for one in headline(record.figures)}
        for one in pick(record.figures):
            row = {"run": run, **{name: getattr(one, name) for name in FIELDS}, "advantage": one.advantage}
            row["headline"] = id(one) in chosen
            row["place"], row["label"] = attack_name(one.threat_model, one.leak), one.label
            row["baseline"] = None if one.baseline is None else one.baseline.value
            rows.append(row | (dict.fromkeys(("estimate", "attainable")) if one.reason else {}))
    return pd.DataFrame(rows, columns=["run", *FIELDS, "advantage", "headline", "place", "label"], dtype=object)


def attack_name(threat_model: str, leak: float | None) -> str:
    """`collusion, leak 0.5`; the leak has no meaning without a colluder."""
    colluding = leak is not None and THREAT_MODELS[threat_model].leaks
    return f"{threat_model}, leak {leak:g}" if colluding else threat_model


def over_all(figures: Sequence[Figure]) -> list[Figure]:
    """The figures that summaries go by, of all victims together, or of the worst one where an attack has none over all."""
    return over_victims(headline(figures))


def reconstruction(figures: pd.DataFrame) -> pd.DataFrame:
    """The rows of ERR and TRR."""
    return figures.loc[(figures["attack"] == RECONSTRUCTION) & ~figures["metric"].isin(UNLINKED)]


def without_links(figures: pd.DataFrame) -> pd.DataFrame:
    """The rows of reconstruction without being told which pairs are linked."""
    return figures.loc[(figures["attack"] == RECONSTRUCTION) & figures["metric"].isin(UNLINKED)]


def others(figures: pd.DataFrame) -> pd.DataFrame:
    """The rows of every other attack."""
    return figures.loc[figures["attack"] != RECONSTRUCTION]


def where_measured(figures: pd.DataFrame) -> pd.DataFrame:
    """The rows of metrics that were measured anywhere in the frame; all, where none was. `tables.figure_reasons` says why not."""
    measured = list(figures.loc[figures["reason"].isna(), "label"])
    return figures.loc[figures["label"].isin(measured)] if measured else figures


def side_by_side(figures: pd.DataFrame, of: str = "metric") -> pd.DataFrame:
    """The metrics (or variants) of one victim in one row: a column for each, and beside it `NAME_base` and `NAME_max`."""
    place = [name for name in PLACE if name != of]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in rows_of(figures):
        key = tuple(one[name] for name in place)
        row = rows.setdefault(key, {name: one[name] for name in (*place, "headline", "reason")})
        name = one[of]
        row |= {name: one["estimate"], f"{name}_base": one["baseline"], f"{name}_max": one["attainable"]}
        row |= {f"{name}_by": one["by"], **one["guesses"], "sources": row.get("sources") or one["counts"]}
        row["remark"] = row.get("remark") or one["remark"]
    return pd.DataFrame(list(rows.values()), columns=None if rows else [*place, "headline", "reason"], dtype=object)


def by_inference(figures: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """TRR by each inference in one row for each victim, beside the guesses and what the strongest is; and the inferences.

    Args:
        figures: of every variant. Only what has a strongest one is in the frame.
    """
    rates = figures.loc[(figures["attack"] == RECONSTRUCTION) & (figures["metric"] == "trr")]
    wide = side_by_side(rates, "variant")
    names = [name for name in dict.fromkeys(rates["variant"]) if name != STRONGEST]
    return wide.loc[wide[STRONGEST].notna() | wide["reason"].notna()] if STRONGEST in wide else wide.iloc[:0], names


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dictionaries; what is missing is None."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")  # type: ignore[return-value]


def run_frame(runs: Mapping[str, Record]) -> pd.DataFrame:
    """A row for each run: its settings, utility, cost and convergence. `p98`, `p99` are relative to the first run."""
    first = next(iter(runs.values()), None)
    rows = [] if first is None else [{"run": name, **_run(record, first)} for name, record in runs.items()]
    return pd.DataFrame(rows, dtype=object)


def _run(record: Record, first: Record) -> dict[str, Any]:
    spec, task, found = record.spec, task_of(record.spec), convergence(record)
    return {
        "algorithm": spec.algorithm,
        "defense": spec.defense,
        "model": spec.model,
        "data": record.data.name,
        "clients": len(record.data.clients),
        **task.columns(spec),
        "rounds": len(record.rounds) - 1,
        "kept": record.best_round,
        "of_rounds": f"{record.best_round} of {len(record.rounds) - 1}",
        "seed": record.seed,
        **{name: measured(figure) for name, figure in record.utility.items()},
        **{name: measured(figures[task.metric]) for name, figures in record.utility_by_leak.items()},
        "bytes_up": record.bytes.up,
        "bytes_down": record.bytes.down,
        "bytes": record.bytes.up + record.bytes.down,
        "seconds": sum(entry.seconds for entry in record.rounds),
        "valid": found.valid,
        "bytes_kept": found.num_bytes,
        "p98": relative_cost(record, first, 0.98),
        "p99": relative_cost(record, first, 0.99),
        "commit": record.environment.commit,
        "dirty": record.environment.dirty,
    }


def measured(figure: Estimate) -> Estimate | None:
    """The figure; None where nothing was counted."""
    return figure if figure.n else None


def pooled(record: Record, pick: Callable[[Sequence[Leakage]], list[Leakage]] = headline_rows) -> list[Leakage]:
    """These rows of reconstruction over all victims; those of the one victim where there is but one."""
    rows = pick(record.leakage)
    return [row for row in rows if row.victim == ALL] or rows


def mixed_temperatures(records: Iterable[Record]) -> bool:
    """Whether negatives are weighed alike in some runs and by their scores in others, which tells on utility and leakage."""
    return len({task_of(one.spec).columns(one.spec).get("temperature") for one in records}) > 1
