"""Triples identified as training data: ROC curves, and the risk of each triple.

    candidates = candidates_of(scores)                      # of `fkgsec.attacks.registry.run_attacks`
    Path("membership-roc.png").write_bytes(saved(roc_figure(candidates)))       # of `pictures`
    Path("membership-risk.csv").write_text(as_csv(risk_table(candidates)))

Both use the statistic with the highest AUC for a victim (`fkgsec.attacks.membership.evaluation.item_table`). A triple's
risk is the smallest false alarm rate at which it is detected. The table contains the victims' data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from fkgsec.attacks.membership.evaluation import ITEM
from fkgsec.attacks.membership.figures import MAX_FPR
from fkgsec.attacks.options import THREAT_MODELS
from fkgsec.attacks.view import ALL
from fkgsec.experiments.reporting.frames import attack_name

ROC_FILE, RISK_FILE = "membership-roc.png", "membership-risk.csv"
_PLACE = ["threat_model", "leak", "victim"]
_COLUMNS = [*_PLACE, "head", "relation", "tail", "trained", "by", "statistic", "false_alarms"]


class Curve(NamedTuple):
    """ROC curve of one victim, or of all, under one threat model.

    Attributes:
        place: the threat model, with its leak.
        by: the statistic.
        auc: area under the curve.
        num_controls: number of triples that were not trained on.
        false_alarms: false alarm rates, float `[n]`, ascending from 0 to 1.
        detected: detection rates, float `[n]`, ascending from 0 to 1.
    """

    place: str
    victim: str
    by: str
    auc: float
    num_controls: int
    false_alarms: np.ndarray
    detected: np.ndarray

    def detected_at(self, rate: float) -> float | None:
        """Return the largest detection rate within a false alarm rate; None with too few controls to measure it.

        Args:
            rate: largest false alarm rate, in (0, 1).
        """
        # With fewer than 1 / rate controls, a single false alarm already exceeds the rate.
        if rate * self.num_controls < 1 - 1e-9:
            return None
        return float(self.detected[self.false_alarms <= rate + 1e-12].max())


def candidates_of(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of membership inference among an attack's scores.

    Args:
        scores: per-item scores of all attacks.

    Returns:
        An empty frame with the same columns if no attack inferred membership.
    """
    of_membership = scores["item"].to_numpy() == ITEM if "item" in scores else np.zeros(0, dtype=bool)
    if not of_membership.any():
        return pd.DataFrame(columns=_COLUMNS)
    candidates = scores.loc[of_membership, _COLUMNS].reset_index(drop=True)
    leaks = np.array([THREAT_MODELS[name].leaks for name in candidates["threat_model"]], dtype=bool)
    # A leak means nothing without a colluder, so it is missing in those threat models.
    return candidates.assign(
        trained=candidates["trained"].astype(bool), leak=candidates["leak"].astype(float).where(leaks)
    )


def curves(candidates: pd.DataFrame) -> Iterator[Curve]:
    """Yield the curve of each victim and of all together, by threat model, in the order of the rows.

    Args:
        candidates: rows of `candidates_of`.
    """
    for group, rows in candidates.groupby(_PLACE, sort=False, dropna=False):
        threat, leak, victim = np.atleast_1d(np.array(group, dtype=object))
        trained, values = rows["trained"].to_numpy(dtype=bool), rows["statistic"].to_numpy(dtype=np.float64)
        # One point per distinct value, so that ties move both rates at once.
        steps = np.unique(values)[::-1]
        detected, alarms = (
            np.concatenate([[0.0], (len(part) - np.searchsorted(np.sort(part), steps)) / len(part)])
            for part in (values[trained], values[~trained])
        )
        area = float(np.trapezoid(detected, alarms))
        place = attack_name(str(threat), None if pd.isna(leak) else float(leak))
        yield Curve(place, str(victim), str(rows["by"].iloc[0]), area, int((~trained).sum()), alarms, detected)


def risk_table(candidates: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each candidate of each victim, the greatest risk first.

    Args:
        candidates: rows of `candidates_of`.

    Returns:
        Columns threat_model, leak, victim, head, relation, tail, trained, by, statistic, false_alarms. For each low
        rate, `found@RATE` tells whether the triple is detected at that false alarm rate; missing with too few controls.
        Text columns have pandas' string type.
    """
    rows = candidates.loc[candidates["victim"] != ALL].reset_index(drop=True)
    controls = (~rows["trained"]).groupby([rows["threat_model"], rows["leak"], rows["victim"]], dropna=False)
    # Each victim under each threat model has its own controls, hence its own resolution.
    count = controls.transform("sum").to_numpy(dtype=np.float64)
    for rate in MAX_FPR:
        detected = (rows["false_alarms"] <= np.floor(rate * count + 1e-9) / np.maximum(count, 1) + 1e-12).astype(
            "boolean"
        )
        rows[f"found@{rate:g}"] = detected.mask(np.floor(rate * count + 1e-9) < 1)
    text = [name for name in _COLUMNS if name not in ("leak", "trained", "statistic", "false_alarms")]
    rows = rows.astype(dict.fromkeys(text, "string"))
    # Among equal risks, training triples come first, since they are the ones to protect.
    order = ["threat_model", "leak", "victim", "false_alarms", "trained", "statistic"]
    return rows.sort_values(order, ascending=[True, True, True, True, False, False], kind="stable").reset_index(
        drop=True
    )
