"""Frames of figures and of runs, from which every table, listing and verdict takes its rows.

    figures(records)                                 # a row for each figure of every attack, beside the settings of its run
    figures(records, over_all)                       # only the figures that summaries use
    run_frame(records)[["run", "mrr", "bytes"]]      # a row for each run

Values, intervals and baselines are plain numbers. What was not measured is missing, and `reason` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fkgsec.attacks.figure import Figure, Place, headline, leading, over_victims
from fkgsec.attacks.frames import COLUMNS, figure_rows
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.registry import ATTACKS
from fkgsec.attacks.residual import SOURCES
from fkgsec.attacks.view import ALL
from fkgsec.experiments.reporting.convergence import convergence, relative_cost
from fkgsec.experiments.reporting.sheets import short
from fkgsec.experiments.runs.record import Record
from fkgsec.experiments.tasks.task import task_of

Pick = Callable[[Sequence[Figure]], list[Figure]]
FIGURE_COLUMNS = (*COLUMNS, "label", "place", "sources", "baselines")
_TEXT = {
    "run", "algorithm", "defense", "model", "data", "metric", "variant", "attack", "threat_model", "colluder", "victim",
    "method", "by", "status", "reason", "remark", "label", "place", "sources", "baselines", "commit",
}  # fmt: skip
_COUNTS = {
    "clients", "dim", "layers", "width", "rounds", "kept", "seed", "n", "round", "num_attacked", "bytes_up", "bytes_down",
    "bytes", "bytes_kept",
}  # fmt: skip
_FLAGS = {"dirty", "less_is_worse", "headline"}


def figure_frame(runs: Mapping[str, Sequence[Figure]], pick: Pick = list) -> pd.DataFrame:
    """Return a row for each figure of each run.

    Args:
        runs: figures by the name of the run.
        pick: selects figures of a run, such as `fkgsec.attacks.figure.headline` and `over_all`.

    Returns:
        `run`, the columns of `fkgsec.attacks.frames.COLUMNS`, and as text `label` (metric and variant), `place` (threat
        model
        and leak), `sources` (sources of correct claims) and `baselines` (all baselines, if there are several).
    """
    rows = []
    for run, listed in runs.items():
        # By identity: two figures of different victims may be equal.
        headlines = {id(figure) for figure in headline(listed)}
        picked = pick(listed)
        for figure, row in zip(picked, figure_rows(picked), strict=True):
            row |= {"run": run, "label": figure.label, "place": attack_name(figure.threat_model, figure.leak)}
            row["headline"] = id(figure) in headlines
            row["sources"] = (
                ", ".join(f"{name} {figure.counts[name]:,}" for name in SOURCES if name in figure.counts) or None
            )
            row["baselines"] = ", ".join(f"{name} {short(base)}" for name, base in figure.guesses.items()) or None
            rows.append(row)
    return _typed(pd.DataFrame(rows, columns=["run", *FIGURE_COLUMNS], dtype=object))


def figures(records: Mapping[str, Record], pick: Pick = list) -> pd.DataFrame:
    """Return the rows of `figure_frame`, next to the settings, utility and cost of their runs.

    Args:
        records: runs by name. A run without figures gets one row.
        pick: see `figure_frame`.
    """
    rows = figure_frame({name: record.figures for name, record in records.items()}, pick)
    # A left join keeps runs that were not attacked.
    return run_frame(records).merge(rows, on="run", how="left")


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    # Nullable types: a missing value stays missing instead of becoming NaN or False.
    kinds = {
        name: "string" if name in _TEXT else "Int64" if name in _COUNTS else "boolean" if name in _FLAGS else "Float64"
        for name in frame.columns
    }
    return frame.astype(kinds)


def attack_name(threat_model: str, leak: float | None) -> str:
    """Write `collusion, leak 0.5`; without a colluder, the threat model alone.

    Args:
        leak: share of entities that the colluder reveals.
    """
    colluding = leak is not None and THREAT_MODELS[threat_model].leaks
    return f"{threat_model}, leak {leak:g}" if colluding else threat_model


def over_all(listed: Sequence[Figure]) -> list[Figure]:
    """Select headline figures over all victims, or of the worst victim if an attack has no figure over all.

    Args:
        listed: figures of one run.
    """
    return over_victims(headline(listed))


def each_victim(listed: Sequence[Figure]) -> list[Figure]:
    """Select the headline figures of every victim, and every variant over all victims.

    Args:
        listed: figures of one run.
    """
    chosen = {id(figure) for figure in (*headline(listed), *(figure for figure in listed if figure.victim == ALL))}
    return [figure for figure in listed if id(figure) in chosen]


def every_variant(listed: Sequence[Figure]) -> list[Figure]:
    """Select the figures of `over_all`, and every variant over all victims.

    Args:
        listed: figures of one run.
    """
    chosen = {id(figure) for figure in over_all(listed)}
    return [figure for figure in over_victims(listed) if figure.victim == ALL or id(figure) in chosen]


def leading_by_place(listed: Iterable[Figure]) -> dict[Place, Figure]:
    """Select the leading metrics of each registered attack, over all victims or of the worst one.

    Args:
        listed: figures of one run.
    """
    return leading(listed, {name: attack.leading for name, attack in ATTACKS.items()})


def in_order(places: Iterable[Place]) -> list[Place]:
    """Sort places by the order of the registered attacks."""
    # Attacks of packages that are not installed come last.
    order = {name: number for number, name in enumerate(ATTACKS)}
    return sorted(set(places), key=lambda place: (order.get(place[0], len(order)), *map(str, place)))


def leading_figures(listed: Iterable[Figure]) -> list[Figure]:
    """Select the figures of `leading_by_place`, in the order of the registered attacks."""
    figures = leading_by_place(listed)
    return [figures[place] for place in in_order(figures)]


def where_measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop metrics that no row measured, unless none was measured at all. `words.figure_reasons` states why.

    Args:
        frame: rows with the columns `label` and `reason`.
    """
    measured = list(frame.loc[frame["reason"].isna(), "label"])
    return frame.loc[frame["label"].isin(measured)] if measured else frame


def run_frame(records: Mapping[str, Record]) -> pd.DataFrame:
    """Return a row for each run: settings, utility, cost and convergence.

    Args:
        records: runs by name. `p98` and `p99` are relative to the first one.
    """
    first = next(iter(records.values()), None)
    return _typed(pd.DataFrame([_run(name, record, first or record) for name, record in records.items()], dtype=object))


def _run(name: str, record: Record, first: Record) -> dict[str, Any]:
    spec, task, reached = record.spec, task_of(record.spec), convergence(record)
    # One row per run, so every part of the utility becomes a column with its interval.
    utility = {
        # An estimate over no items is missing, not zero.
        f"{metric}{end}": value if figure.n else None
        for metric, figure in (
            *record.utility.items(),
            *((part, parts[task.metric]) for part, parts in record.utility_by_leak.items()),
        )
        for end, value in (("", figure.value), ("_low", figure.low), ("_high", figure.high))
    }
    return {
        "run": name,
        "algorithm": spec.algorithm,
        "defense": spec.defense,
        "model": spec.model,
        "data": record.data.name,
        "clients": len(record.data.clients),
        **{column: value for column, value in task.columns(spec).items() if value is not None},
        # Entry 0 is the exchange before the first round.
        "rounds": len(record.rounds) - 1,
        "kept": record.best_round,
        "seed": record.seed,
        **utility,
        "bytes_up": record.bytes.up,
        "bytes_down": record.bytes.down,
        "bytes": record.bytes.up + record.bytes.down,
        "seconds": sum(entry.seconds for entry in record.rounds),
        "valid": reached.valid,
        "bytes_kept": reached.num_bytes,
        "p98": relative_cost(record, first, 0.98),
        "p99": relative_cost(record, first, 0.99),
        "commit": record.environment.commit,
        "dirty": record.environment.dirty,
    }


def mixed_temperatures(records: Iterable[Record]) -> bool:
    """Return True if runs use different temperatures for negatives, which changes utility and leakage."""
    return len({task_of(record.spec).columns(record.spec).get("temperature") for record in records}) > 1
