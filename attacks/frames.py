"""Figures of attacks for pandas and notebooks: one row per figure, with its interval and its baseline.

    attacked = run_attacks(result, KgeAttackOptions())
    frame = attacked.to_frame()                         # or figure_rows of any list of figures
    frame[frame.headline & (frame.victim == "all")][["attack", "metric", "value", "low", "high", "baseline"]]

`headline` marks the figures that verdicts use: of an attack with several variants, the strongest. A victim that was not
attacked has no value and a `reason`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from fkgsec.attacks.figure import Figure, headline, over_victims
from fkgsec.frames import INTERVAL, tidy

COLUMNS = (
    "attack", "metric", "variant", "threat_model", "leak", "colluder", "victim", "round", *INTERVAL,
    "baseline", "baseline_low", "baseline_high", "attainable", "advantage", "less_is_worse", "headline", "by", "num_attacked",
    "status", "reason", "remark",
)  # fmt: skip
"""Columns of figures; `advantage` is positive if worse for the victim than the baseline, see `fkgsec.attacks.figure.Figure`."""

HEADS = ("attack", "metric", "threat model", "leak", "victim", "figure", "baseline", "attainable")


def figure_rows(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """Convert figures to rows for a table.

    Args:
        figures: all figures of one or several runs. `headline` compares the variants among them.

    Returns:
        One dictionary per figure, in the same order, with the keys `COLUMNS`.
    """
    listed = list(figures)
    # By identity: two runs may hold figures that are equal.
    chosen = {id(figure) for figure in headline(listed)}
    return [_row(figure) | {"headline": id(figure) in chosen} for figure in listed]


def _row(figure: Figure) -> dict[str, Any]:
    # A figure that was not attacked has the interval [0, 1] in records; a table shows no value instead.
    attacked = figure.reason is None
    base = figure.baseline
    row = {name: getattr(figure, name) for name in COLUMNS if name in Figure.__struct_fields__} | {
        "status": figure.status
    }
    # Without a baseline there is no advantage over one.
    return row | {
        "variant": figure.variant or None,
        **{name: getattr(figure.estimate, name) if attacked else None for name in INTERVAL},
        "baseline": None if base is None else base.value,
        "baseline_low": None if base is None else base.low,
        "baseline_high": None if base is None else base.high,
        "attainable": figure.attainable if attacked else None,
        "advantage": figure.advantage if attacked and base is not None else None,
    }


def figures_to_frame(figures: Iterable[Figure]) -> pd.DataFrame:
    """Convert figures to a frame with the columns `COLUMNS`.

    >>> from fkgsec.estimate import exact, proportion
    >>> figure = Figure("shapes", "auc", "server", "hospital-2", proportion(80, 100), baseline=exact(0.5, 100))
    >>> figures_to_frame([figure])[["victim", "value", "baseline"]].to_dict("records")
    [{'victim': 'hospital-2', 'value': 0.8, 'baseline': 0.5}]
    """
    return tidy(figure_rows(figures), COLUMNS)


def summary_rows(figures: Sequence[Figure]) -> list[tuple[Any, ...]]:
    """Summarize figures as a notebook shows them.

    Args:
        figures: all figures of a run.

    Returns:
        One row per question with the columns `HEADS`: the figure over all victims, or of the worst victim.
    """
    return [
        (
            figure.attack,
            figure.label,
            figure.threat_model,
            figure.leak,
            figure.victim,
            f"not attacked: {figure.reason}" if figure.reason else figure.estimate,
            None if figure.baseline is None else figure.baseline.value,
            None if figure.reason else figure.attainable,
        )
        for figure in over_victims(headline(figures))
    ]
