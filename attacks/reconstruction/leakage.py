"""The names of reconstruction's figures, and the scores of the items behind each.

    trr = next(one for one in rebuilt(record.figures) if one.metric == "trr")
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
"""Ways to infer relations that run by default. `mlp` takes seconds more for each draw of the leaked entities."""
PUBLISHED = "published"
UNLINKED = ("precision", "recall", "average_precision")


def rebuilt(figures: Iterable[Figure]) -> list[Figure]:
    """Select ERR and TRR of reconstruction, of each victim by each inference."""
    return [figure for figure in figures if figure.attack == RECONSTRUCTION and figure.metric not in UNLINKED]


def items_behind(figure: Figure, scores: pd.DataFrame) -> pd.DataFrame:
    """The entities that an ERR, or the triples that a TRR was measured on, of its victim or of all, in the order of the data.

    Args:
        scores: of `fkgsec.attacks.registry.run_attacks`. They have a column `right` and `guessed_relation` for the best
            inference on each victim, and `right_*` and `guessed_relation_*` for each.

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
    of_variants = [name for name in items if str(name).startswith(("right_", "guessed_relation_"))]
    best = figure.variant == STRONGEST
    by = figure.by if best else PAPER if figure.variant == PUBLISHED else figure.variant
    if item == "triple" and f"right_{by}" in items:
        items = items.assign(right=items[f"right_{by}"], guessed_relation=items[f"guessed_relation_{by}"])
    elif not best and f"right_{by}" in items and items[f"right_{by}"].notna().all():
        items = items.assign(right=items[f"right_{by}"])  # files of before have none for entities
    return items.drop(columns=of_variants).assign(right=items["right"].astype(bool))
