"""Which triples were found to be trained on: ROC curves, and the risk of each triple.

    candidates = candidates_of(scores)                      # of `fkgsec.attacks.registry.run_attacks`
    Path("membership-roc.png").write_bytes(saved(roc_figure(candidates)))       # of `pictures`
    Path("membership-risk.csv").write_text(as_csv(risk_table(candidates)))

Both go by the way that is strongest on a victim by AUC (`fkgsec.attacks.membership.evaluation.item_table`). A triple's risk is
the smallest share of false alarms at which it is found; the table has the victims' own data.
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

    def found_at(self, rate: float) -> float | None:
        """Return the share found at no more than this share of false alarms; None where there are too few controls."""
        if rate * self.num_controls < 1 - 1e-9:
            return None
        return float(self.found[self.false_alarms <= rate + 1e-12].max())


def candidates_of(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of an attack's scores that are of membership; none where there are none."""
    of_membership = scores["item"].to_numpy() == ITEM if "item" in scores else np.zeros(0, dtype=bool)
    if not of_membership.any():
        return pd.DataFrame(columns=_COLUMNS)
    found = scores.loc[of_membership, _COLUMNS].reset_index(drop=True)
    leaks = np.array([THREAT_MODELS[name].leaks for name in found["threat_model"]], dtype=bool)
    return found.assign(trained=found["trained"].astype(bool), leak=found["leak"].astype(float).where(leaks))


def curves(candidates: pd.DataFrame) -> Iterator[Curve]:
    """Yield the curve of each victim and of all together, by threat model, in the order of the rows."""
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


def risk_table(candidates: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each candidate of each victim, the greatest risk first; text columns are of pandas' string type.

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
