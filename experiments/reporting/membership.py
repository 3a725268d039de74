"""Which triples were found to be trained on: ROC curves, and the risk of each triple.

    candidates = candidates_of(scores)                      # of `fkgsec.attacks.registry.run_attacks`
    Path("membership-roc.png").write_bytes(draw_roc(candidates))
    Path("membership-risk.csv").write_text(as_csv(risk_table(candidates)))

Both go by the way that is strongest on a victim by AUC (`fkgsec.attacks.membership.evaluation.item_table`). A triple's risk is
the smallest share of false alarms at which it is found; the table has the victims' own data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from fkgsec.attacks.membership.evaluation import ITEM
from fkgsec.attacks.membership.figures import MAX_FPR
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.view import ALL
from fkgsec.experiments.reporting.frames import attack_name
from fkgsec.experiments.reporting.picture import BLUE, GREEN, GREY, MOST_LETTERS, ORANGE, png
from fkgsec.text import printable

ROC_FILE, RISK_FILE = "membership-roc.png", "membership-risk.csv"
_PLACE = ["threat_model", "leak", "victim"]
_COLUMNS = [*_PLACE, "head", "relation", "tail", "trained", "by", "statistic", "false_alarms"]
MOST_VICTIMS = 8  # whose curves stand beside that of all


class Curve(NamedTuple):
    """The ROC curve of one victim, or of all, under one threat model.

    Attributes:
        place: the threat model, with its leak. by: the way. auc: the area below it.
        false_alarms, found: shares, both ascending from 0 to 1.
    """

    place: str
    victim: str
    by: str
    auc: float
    num_controls: int
    false_alarms: np.ndarray
    found: np.ndarray


def candidates_of(scores: pd.DataFrame) -> pd.DataFrame:
    """The rows of the scores of an attack that are of membership, with the columns that they have; none where there are none."""
    own = scores["item"].to_numpy() == ITEM if "item" in scores else np.zeros(0, dtype=bool)
    if not own.any():
        return pd.DataFrame(columns=_COLUMNS)
    found = scores.loc[own, _COLUMNS].reset_index(drop=True)
    leaks = np.array([THREAT_MODELS[name].leaks for name in found["threat_model"]], dtype=bool)
    return found.assign(trained=found["trained"].astype(bool), leak=found["leak"].astype(float).where(leaks))


def curves(candidates: pd.DataFrame) -> Iterator[Curve]:
    """A curve of each victim and of all together, by threat model, in the order of the rows."""
    for group, rows in candidates.groupby(_PLACE, sort=False, dropna=False):
        threat, leak, victim = np.atleast_1d(np.array(group, dtype=object))
        trained, values = rows["trained"].to_numpy(dtype=bool), rows["statistic"].to_numpy(dtype=np.float64)
        steps = np.unique(values)[::-1]
        found, alarms = (
            np.concatenate([[0.0], (len(part) - np.searchsorted(np.sort(part), steps)) / len(part)])
            for part in (values[trained], values[~trained])
        )
        area = float(np.trapezoid(found, alarms))
        place = attack_name(str(threat), None if pd.isna(leak) else float(leak))
        yield Curve(place, str(victim), str(rows["by"].iloc[0]), area, int((~trained).sum()), alarms, found)


def draw_roc(candidates: pd.DataFrame) -> bytes:
    """`roc_figure` as a PNG."""
    return png(roc_figure(candidates))


def roc_figure(candidates: pd.DataFrame) -> Figure:
    """For each threat model the curves of its victims and, in bold, of all, both axes logarithmic; chance is dotted."""
    made = list(curves(candidates))
    places = list(dict.fromkeys(one.place for one in made))
    figure = Figure(figsize=(0.6 + 4.6 * len(places), 5.9), layout="constrained")
    for axes, place in zip(np.atleast_1d(figure.subplots(1, len(places))), places, strict=True):
        _draw(axes, place, [one for one in made if one.place == place])
    figure.suptitle("Membership: training triples found, by the strongest way of each victim", fontsize=11)
    return figure


def _draw(axes: Axes, place: str, made: Sequence[Curve]) -> None:
    least = min(0.5 / one.num_controls for one in made)
    victims = [one for one in made if one.victim != ALL][:MOST_VICTIMS]
    for number, one in enumerate(victims):
        axes.plot(
            np.maximum(one.false_alarms, least), np.maximum(one.found, least), lw=1.2,
            color=(ORANGE, GREEN, GREY)[number % 3], ls=("-", "--", "-.")[number // 3 % 3],
            label=f"{printable(one.victim, MOST_LETTERS)}: {one.auc:.3f} ({one.by})",
        )  # fmt: skip
    for one in made:
        if one.victim == ALL:
            axes.plot(
                np.maximum(one.false_alarms, least), np.maximum(one.found, least), lw=2.4, color=BLUE,
                label=f"all: {one.auc:.3f} ({one.by})",
            )  # fmt: skip
    axes.plot([least, 1], [least, 1], color="black", lw=0.8, ls=":")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="false alarms (share of never-seen triples)", ylabel="found (share of training triples)")
    axes.set_title(place, fontsize=10)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), title="AUC (way)", title_fontsize=7)


def risk_table(candidates: pd.DataFrame) -> pd.DataFrame:
    """A row for each candidate of each victim, the greatest risk first; text columns are of pandas' string type.

    Returns: columns threat_model, leak, victim, head, relation, tail, trained, by, statistic, false_alarms, and for each low rate
    `found@RATE`: whether it is found at that rate of false alarms; missing where there are too few controls to see it.
    """
    rows = candidates.loc[candidates["victim"] != ALL].reset_index(drop=True)
    controls = (~rows["trained"]).groupby([rows["threat_model"], rows["leak"], rows["victim"]], dropna=False)
    count = controls.transform("sum").to_numpy(dtype=np.float64)
    for rate in MAX_FPR:
        found = (rows["false_alarms"] <= np.floor(rate * count + 1e-9) / np.maximum(count, 1) + 1e-12).astype("boolean")
        rows[f"found@{rate:g}"] = found.mask(np.floor(rate * count + 1e-9) < 1)
    text = [name for name in _COLUMNS if name not in ("leak", "trained", "statistic", "false_alarms")]
    rows = rows.astype(dict.fromkeys(text, "string"))
    order = ["threat_model", "leak", "victim", "false_alarms", "trained", "statistic"]
    return rows.sort_values(order, ascending=[True, True, True, True, False, False], kind="stable").reset_index(
        drop=True
    )
