"""ROC curves and the risk table of membership: scikit-learn's curves, the figures' own counts, and names that are hostile."""

from __future__ import annotations

import csv
import io

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from fkgsec.attacks.membership.evaluation import ITEM
from fkgsec.attacks.membership.figures import tpr_at_fpr
from fkgsec.experiments.reporting.html.charts import roc_charts
from fkgsec.experiments.reporting.items import Run, risk_sheets
from fkgsec.experiments.reporting.membership import candidates_of, curves, risk_table
from fkgsec.experiments.reporting.pictures import roc_figure, saved
from fkgsec.experiments.reporting.sheets import as_csv

HOSTILE = ['=HYPERLINK("http://x")', "+1", "@SUM(A1)", "$\\frac{a}{b}$", "<script>alert(1)</script>", "a,b\nc"]


@pytest.fixture(scope="module")
def scores() -> pd.DataFrame:
    rng, parts = np.random.default_rng(0), []
    for threat, victim, count in (
        ("models", "a", 150),
        ("models", "b", 50),
        ("models", "all", 200),
        ("client", "a", 30),
    ):
        trained = np.arange(2 * count) < count
        values = (rng.normal(size=2 * count) + trained).round(1)
        controls = values[~trained]
        names = rng.choice(HOSTILE, 2 * count)
        parts.append(
            pd.DataFrame(
                {
                    "item": ITEM,
                    "threat_model": threat,
                    "leak": 0.5,
                    "victim": victim,
                    "head": names,
                    "relation": "r",
                    "tail": names,
                    "trained": trained,
                    "by": "global, score",
                    "statistic": values,
                    "false_alarms": [(controls >= value).mean() for value in values],
                }
            )
        )
    others = pd.DataFrame(
        {"item": ["triple"], "threat_model": ["collusion"], "leak": [0.5], "victim": ["a"], "right": [True]}
    )
    return pd.concat([others, *parts], ignore_index=True)  # fmt: skip


def test_curves_are_those_of_scikit_learn(scores: pd.DataFrame) -> None:
    made = list(curves(candidates_of(scores)))
    assert [(one.place, one.victim) for one in made] == [
        ("models", "a"), ("models", "b"), ("models", "all"), ("client", "a"),
    ]  # fmt: skip
    for one in made:
        rows = scores[(scores["threat_model"] == one.place) & (scores["victim"] == one.victim)]
        fpr, tpr, _ = roc_curve(rows["trained"].astype(bool), rows["statistic"], drop_intermediate=False)
        assert one.false_alarms == pytest.approx(fpr)
        assert one.detected == pytest.approx(tpr)
        assert one.auc == pytest.approx(roc_auc_score(rows["trained"].astype(bool), rows["statistic"]))


def test_the_risk_table_finds_what_the_figure_counts(scores: pd.DataFrame) -> None:
    table = risk_table(candidates_of(scores))
    assert "all" not in set(table["victim"])
    rows = table[(table["threat_model"] == "models") & (table["victim"] == "a")]
    members, controls = (rows.loc[rows["trained"] == side, "statistic"].to_numpy() for side in (True, False))
    figure = tpr_at_fpr(members, controls, 0.01, "remembered").tpr
    assert figure is not None
    assert rows.loc[rows["trained"], "found@0.01"].mean() == pytest.approx(figure.value)
    assert rows.loc[~rows["trained"], "found@0.01"].sum() <= 1
    assert rows["found@0.001"].isna().all()  # 150 controls are too few
    assert rows["false_alarms"].is_monotonic_increasing
    assert table["leak"].isna().all()  # of these threat models nothing leaks by shares


def test_hostile_names_stay_text(scores: pd.DataFrame) -> None:
    written = as_csv(risk_table(candidates_of(scores)))
    rows = list(csv.DictReader(io.StringIO(written)))
    assert len(rows) == 460
    assert {row["head"][0] for row in rows} <= set("'$<a")
    assert saved(roc_figure(candidates_of(scores))).startswith(b"\x89PNG")
    run = Run("<b>x</b>", None, None, candidates_of(scores))  # type: ignore[arg-type]
    for chart in roc_charts("f1", [run]):
        assert "<b>x" not in chart.svg
    (sheet,) = risk_sheets([run])
    assert len(sheet.rows) <= 20
    assert all(row[-1] <= 0.05 for row in sheet.rows)


def test_without_membership_there_is_nothing(scores: pd.DataFrame) -> None:
    assert not len(candidates_of(scores[scores["item"] == "triple"]))
    assert not len(candidates_of(pd.DataFrame()))
    assert not list(roc_charts("f1", [Run("x", None, None, None)]))  # type: ignore[arg-type]
    assert risk_sheets([Run("x", None, None, candidates_of(pd.DataFrame()))]) == ()  # type: ignore[arg-type]
