"""Select reconstruction's figures, and the item scores behind each.

    trr = next(figure for figure in rebuilt(record.figures) if figure.metric == "trr")
    items_behind(trr, scores)["right"].mean()        # trr.estimate.value

Source: ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import pandas as pd

from fkgsec.attacks.figure import STRONGEST, Figure
from fkgsec.attacks.options import PAPER, RECONSTRUCTION, Inference
from fkgsec.attacks.view import ALL

INFERENCES: tuple[Inference, ...] = tuple(name for name in get_args(Inference) if name != "mlp")
"""Default inference methods of relations. `mlp` takes seconds more for each draw of leaked entities."""
PUBLISHED = "published"
UNLINKED = ("precision", "recall", "average_precision")


def rebuilt(figures: Iterable[Figure]) -> list[Figure]:
    """Select ERR and TRR of reconstruction, for each victim and inference method.

    Args:
        figures: all figures of a run.
    """
    return [figure for figure in figures if figure.attack == RECONSTRUCTION and figure.metric not in UNLINKED]


def items_behind(figure: Figure, scores: pd.DataFrame) -> pd.DataFrame:
    """Select the entities behind an ERR, or the triples behind a TRR, in the order of the data.

    Args:
        figure: ERR or TRR of one victim or of all.
        scores: item scores from `fkgsec.attacks.registry.run_attacks`. Columns `right` and `guessed_relation` belong to the
            best inference method per victim, `right_*` and `guessed_relation_*` to each.

    Returns:
        Rows with `right` (bool) and `guessed_relation` of the figure's variant. If a baseline was stronger than every method,
        the figure is an expectation, and the rows are those of the best method per victim.
    """
    item = "triple" if figure.metric == "trr" else "entity"
    chosen = (
        (scores["item"] == item) & (scores["threat_model"] == figure.threat_model) & (scores["leak"] == figure.leak)
    )
    if figure.victim != ALL:
        chosen &= scores["victim"] == figure.victim
    items = scores.loc[chosen]
    # Return only the columns of the requested variant.
    of_variants = [name for name in items if str(name).startswith(("right_", "guessed_relation_"))]
    best = figure.variant == STRONGEST
    by = figure.by if best else PAPER if figure.variant == PUBLISHED else figure.variant
    if item == "triple" and f"right_{by}" in items:
        items = items.assign(right=items[f"right_{by}"], guessed_relation=items[f"guessed_relation_{by}"])
    elif not best and f"right_{by}" in items and items[f"right_{by}"].notna().all():
        # Older records have no such column for entities.
        items = items.assign(right=items[f"right_{by}"])
    return items.drop(columns=of_variants).assign(right=items["right"].astype(bool))
