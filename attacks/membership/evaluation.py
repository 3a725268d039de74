"""Figures of a membership attack from its scores of candidates, and the table of these scores for ROC curves and risks.

    group = Group("hospital-1", triples, member, {"global, score": values}, {"names": guesses})
    figures = group_figures(truth, group)
    truth.scores.append(item_table(truth, group, figures))

For all victims together, each triple has its normalized rank within a client, since scores differ between models. A triple of
several clients counts once, with the mean over these clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.membership.audits import distinct_triples, mean_by
from fkgsec.attacks.membership.figures import MAX_FPR, measure_membership, placements, tpr_at_fpr
from fkgsec.attacks.membership.intervals import dyadic_auc, dyadic_tpr
from fkgsec.attacks.outcomes import of_auc
from fkgsec.attacks.registry import Measure, Truth
from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate, critical_value, exact
from fkgsec.randomness import generator

# Kind of item in the table of scores.
ITEM = "membership"
SHARED, GLOBAL = "_shared", "global"
TPR = {max_fpr: f"tpr@{max_fpr:g}" for max_fpr in MAX_FPR}
METRICS = {
    "auc": "AUC of membership inference",
    **{name: f"share of members found at a false positive rate of {100 * max_fpr:g}%" for max_fpr, name in TPR.items()},
    "advantage": "true minus false positive rate, at the best threshold",
}
OF_SHARED = {f"{name}{SHARED}": f"{METRICS[name]}, in the federation's model alone" for name in ("auc", *TPR.values())}


Parts = tuple[np.ndarray, np.ndarray]
"""Scores of members, float `[m]`, and of controls, float `[c]`."""


class Group(NamedTuple):
    """Candidates of one victim, or of all.

    Attributes:
        victim: client name, or `ALL`.
        triples: int64 `[n, 3]`, in global IDs.
        member: which were trained on, bool `[n]`.
        ways, guesses: scores by inference method and by baseline, float64 `[n]`, larger for likelier members.
        remark: note on the controls.
        num_attacked: number of victims in it.
    """

    victim: str
    triples: np.ndarray
    member: np.ndarray
    ways: Mapping[str, np.ndarray]
    guesses: Mapping[str, np.ndarray]
    remark: str = ""
    num_attacked: int = 1

    def parts(self, values: np.ndarray) -> Parts:
        """Split values `[n]` into those of members and those of controls."""
        return values[self.member], values[~self.member]

    @property
    def ends(self) -> np.ndarray:
        """Heads and tails of members, then of controls, int64 `[n, 2]`."""
        return np.concatenate(self.parts(self.triples))[:, [0, 2]]


def together(groups: Sequence[Group]) -> Group:
    """Pool several victims, by the inference methods that all of them have.

    Args:
        groups: candidates of each victim.
    """
    # A triple of several clients is one observation.
    first, which = distinct_triples(np.concatenate([group.triples for group in groups]))

    def pooled(name: str) -> dict[str, np.ndarray]:
        """Average the normalized ranks of each triple over clients."""
        parts = [getattr(group, name) for group in groups]
        return {
            way: mean_by(which, np.concatenate([rankdata(part[way]) / len(part[way]) for part in parts]))
            for way in parts[0]
            if all(way in part for part in parts)
        }

    triples, member = (
        np.concatenate([getattr(group, name) for group in groups])[first] for name in ("triples", "member")
    )
    remark = "; ".join(f"{group.victim}: {group.remark}" for group in groups if group.remark)
    return Group(ALL, triples, member, pooled("ways"), pooled("guesses"), remark, len(groups))


def group_figures(truth: Truth, group: Group) -> list[Figure]:
    """Measure all metrics by each inference method and by the strongest.

    Under threat models with final models, also measure the federation's model alone.

    Args:
        group: candidates of one victim, or of all.
    """
    figures = [figure for metric in METRICS for figure in _figures(truth, group, metric, metric)]
    if truth.threat_model.models:
        # The federation's model is what is released; clients keep their private ones.
        shared = {way: values for way, values in group.ways.items() if way.startswith(f"{GLOBAL}, ")}
        for metric in OF_SHARED:
            figures += _figures(truth, group._replace(ways=shared), metric, metric.removesuffix(SHARED))
    return figures


def _figures(truth: Truth, group: Group, metric: str, name: str) -> list[Figure]:
    """Compute the figures of a metric that is measured like the metric `name`."""
    n, c = len(group.member), int((~group.member).sum())
    details: dict[str, Any] = {
        "attainable": 1.0, "counts": {"members": n - c, "controls": c}, "num_attacked": group.num_attacked,
        "remark": group.remark or None,
    }  # fmt: skip
    reason = None if group.ways else f"{truth.result.options.algorithm} has no model of the federation"
    max_fpr = next((fpr for fpr, tpr in TPR.items() if tpr == name), None)
    if max_fpr is not None and math.floor(max_fpr * c + 1e-9) < 1:
        reason = f"{max_fpr:.1%} false alarms take {math.ceil(1 / max_fpr):,} never-seen triples; {c:,} match"
    if reason:
        return [truth.figure(metric, group.victim, reason=reason, **details)]
    scores = {way: group.parts(values) for way, values in group.ways.items()}
    guessed = {key: group.parts(values) for key, values in group.guesses.items()}
    if name != "advantage":
        return score_figures(truth, metric, group.victim, scores, guessed, group.ends, max_fpr, n, **details)
    ways: dict[str, Measure] = {way: partial(_advantage, truth.seed, group, way) for way in scores}
    return truth.figures(metric, group.victim, ways, {"chance": exact(0.0, n)}, **details)


def score_figures(
    truth: Truth,
    metric: str,
    victim: str,
    ways: Mapping[str, Parts],
    guesses: Mapping[str, Parts],
    ends: np.ndarray,
    max_fpr: float | None,
    n: int,
    **details: Any,
) -> list[Figure]:
    """Measure AUC, or TPR at a false-positive rate, by each inference method and by the strongest.

    Args:
        victim: client name, or `ALL`.
        ways, guesses: scores of members and of controls, by inference method and by baseline.
        ends: heads and tails of members, then of controls, int64 `[m + c, 2]`.
        max_fpr: largest false-positive rate; None: AUC.
        n: number of items behind the baselines.
        details: further fields of `Figure`.
    """
    if max_fpr is None:
        measures: dict[str, Measure] = {way: partial(dyadic_auc, *parts, ends) for way, parts in ways.items()}
        values = {"chance": 0.5} | {key: float(placements(*parts).members.mean()) for key, parts in guesses.items()}
    else:
        measures = {way: partial(dyadic_tpr, *parts, ends, max_fpr) for way, parts in ways.items()}
        # Guessing at random finds the share max_fpr of the members.
        shares = {key: tpr_at_fpr(*parts, max_fpr, "remembered").tpr for key, parts in guesses.items()}
        values = {"chance": max_fpr} | {key: share.value for key, share in shares.items() if share is not None}
    baselines = {key: exact(value, n) for key, value in values.items()}
    outcomes = (lambda way: of_auc(*ways[way], ends)) if max_fpr is None else None
    return truth.figures(metric, victim, measures, baselines, outcomes=outcomes, **details)


def _advantage(seed: int, group: Group, way: str, compared: int = 1) -> Estimate:
    rng = generator(seed, "advantage", group.victim, way)
    advantage = measure_membership(group.ways[way], group.member, attack=way, control="held_out", rng=rng).advantage
    wider = critical_value(compared) / critical_value()
    low, high = (advantage.value + wider * (end - advantage.value) for end in (advantage.low, advantage.high))
    method = advantage.method if compared == 1 else f"{advantage.method}, best of {compared}"
    return Estimate(advantage.value, max(-1.0, low), min(1.0, high), advantage.n, method)


def item_table(truth: Truth, group: Group, figures: Sequence[Figure]) -> pd.DataFrame:
    """Tabulate each candidate of a group: its names, whether it was trained on, and its risk.

    Args:
        group: candidates of one victim, or of all.
        figures: figures of the group.

    Returns:
        Columns `item`, `victim`, `head`, `relation`, `tail`, `trained`; `by`, the strongest method by AUC; `statistic`, its
        score;
        `false_alarms`, the share of controls with at least this score: the smallest false-positive rate at which the triple is
            found.
    """
    aucs = [figure for figure in figures if figure.metric == "auc" and figure.variant in group.ways]
    by = max(aucs, key=lambda figure: figure.estimate.value).variant
    values = group.ways[by]
    controls = np.sort(values[~group.member])
    # False-positive rate of the threshold at each triple's own score.
    alarms = 1 - np.searchsorted(controls, values, side="left") / len(controls)
    graph = truth.graph
    entities, relations = (np.array(names, dtype=object) for names in (graph.entities, graph.relations))
    head, relation, tail = group.triples.T
    return pd.DataFrame(
        {
            "item": ITEM, "victim": group.victim, "head": entities[head], "relation": relations[relation],
            "tail": entities[tail], "trained": group.member, "by": by, "statistic": values, "false_alarms": alarms,
        }
    )  # fmt: skip
