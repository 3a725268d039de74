"""Figures of a membership attack from what each way says of candidates, and the table of these for ROC curves and risks.

    group = Group("hospital-1", triples, member, {"global, score": values}, {"names": guesses})
    figures = group_figures(truth, group)
    truth.scores.append(item_table(truth, group, figures))

All victims together: each triple goes by its share of ranks within a client, since scores differ between models, and by the mean
of these over the clients that were asked about it, so that it counts once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from fkgsec.attacks.figure import NOT_ATTACKED, Figure
from fkgsec.attacks.membership.audits import distinct_triples, mean_by
from fkgsec.attacks.membership.figures import MAX_FPR, MembershipResult, measure_membership, placements, tpr_at_fpr
from fkgsec.attacks.membership.intervals import dyadic_auc, dyadic_tpr
from fkgsec.attacks.registry import Truth
from fkgsec.attacks.uploads.ways import Measure, by_ways
from fkgsec.attacks.view import ALL
from fkgsec.estimate import Estimate, critical_value, exact
from fkgsec.randomness import generator

ITEM = "membership"  # of a row of the scores
SHARED, GLOBAL = "_shared", "global"
TPR = {max_fpr: f"tpr@{max_fpr:g}" for max_fpr in MAX_FPR}
METRICS = {
    "auc": "AUC of membership inference",
    **{name: f"members found at {100 * max_fpr:g} % false alarms" for max_fpr, name in TPR.items()},
    "advantage": "members found beyond false alarms, at the best threshold",
}
OF_SHARED = {f"{name}{SHARED}": f"{METRICS[name]}, in the federation's model alone" for name in ("auc", *TPR.values())}


class Group(NamedTuple):
    """Candidates of one victim, or of all.

    Attributes:
        triples: int64 `[n, 3]`, global ids. member: bool `[n]`.
        ways, guesses: by name, float64 `[n]`, larger for those that are taken for members. remark: on the controls.
    """

    victim: str
    triples: np.ndarray
    member: np.ndarray
    ways: Mapping[str, np.ndarray]
    guesses: Mapping[str, np.ndarray]
    remark: str = ""

    @property
    def sizes(self) -> tuple[int, int]:
        """How many members and controls."""
        return int(self.member.sum()), int((~self.member).sum())

    def parts(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values `[n]` of members, then those of controls."""
        return values[self.member], values[~self.member]

    @property
    def ends(self) -> np.ndarray:
        """Heads and tails of members, then of controls, int64 `[n, 2]`."""
        return np.concatenate(self.parts(self.triples))[:, [0, 2]]


def together(groups: Sequence[Group]) -> Group:
    """Several victims as one, by the ways that all of them were asked in."""
    first, which = distinct_triples(np.concatenate([one.triples for one in groups]))

    def pooled(name: str) -> dict[str, np.ndarray]:
        names = [way for way in getattr(groups[0], name) if all(way in getattr(one, name) for one in groups)]
        return {
            way: mean_by(which, np.concatenate([rankdata(of := getattr(one, name)[way]) / len(of) for one in groups]))
            for way in names
        }

    triples, member = (np.concatenate([getattr(one, name) for one in groups])[first] for name in ("triples", "member"))
    remark = "; ".join(f"{one.victim}: {one.remark}" for one in groups if one.remark)
    return Group(ALL, triples, member, pooled("ways"), pooled("guesses"), remark)


def group_figures(truth: Truth, group: Group, num_attacked: int = 1) -> list[Figure]:
    """Every metric by every way and by the strongest; where models are held, of the federation's model alone, too."""
    figures = _figures(truth, group, METRICS, "", num_attacked)
    if truth.threat_model.models:
        shared = {way: values for way, values in group.ways.items() if way.startswith(f"{GLOBAL}, ")}
        figures += _figures(truth, group._replace(ways=shared), OF_SHARED, SHARED, num_attacked)
    return figures


def _figures(truth: Truth, group: Group, metrics: Mapping[str, str], suffix: str, num_attacked: int) -> list[Figure]:
    m, c = group.sizes
    counts, remark = {"members": m, "controls": c}, group.remark or None
    details = {"attainable": 1.0, "counts": counts, "num_attacked": num_attacked, "remark": remark}
    figures: list[Figure] = []
    for metric in metrics:
        name = metric.removesuffix(suffix)
        reason = None if group.ways else f"{truth.result.options.algorithm} has no model of the federation"
        max_fpr = next((fpr for fpr, tpr in TPR.items() if tpr == name), None)
        if max_fpr is not None and math.floor(max_fpr * c + 1e-9) < 1:
            reason = f"{max_fpr:.1%} false alarms take {math.ceil(1 / max_fpr):,} never-seen triples; {c:,} match"
        if reason:
            figures.append(truth.figure(metric, group.victim, NOT_ATTACKED, reason=reason, **details))
            continue
        measures: dict[str, Measure] = {
            way: partial(_measure, truth, group, name, max_fpr, way, values) for way, values in group.ways.items()
        }
        figures += by_ways(truth, metric, group.victim, measures, _baselines(group, name, max_fpr), **details)
    return figures


def _measure(
    truth: Truth, group: Group, name: str, max_fpr: float | None, way: str, values: np.ndarray, compared: int
) -> Estimate:
    if name == "auc":
        return dyadic_auc(*group.parts(values), group.ends, compared=compared)
    if max_fpr is not None:
        found = dyadic_tpr(*group.parts(values), group.ends, max_fpr, compared=compared)
        assert found is not None  # there are enough controls
        return found
    rng = generator(truth.seed, "advantage", group.victim, way)
    found = measure_membership(values, group.member, attack=way, control="held_out", rng=rng).advantage
    wider = critical_value(compared) / critical_value()
    low, high = (found.value + wider * (end - found.value) for end in (found.low, found.high))
    method = found.method if compared == 1 else f"{found.method}, best of {compared}"
    return Estimate(found.value, max(-1.0, low), min(1.0, high), found.n, method)


def _baselines(group: Group, name: str, max_fpr: float | None) -> dict[str, Estimate]:
    """Chance, and what the adversary's own data tell; of an advantage chance alone."""
    n = len(group.member)
    if name == "auc":
        guessed = {key: placements(*group.parts(values)).members.mean() for key, values in group.guesses.items()}
        return {"chance": exact(0.5, n), **{key: exact(value, n) for key, value in guessed.items()}}
    if max_fpr is None:
        return {"chance": exact(0.0, n)}
    found = {key: tpr_at_fpr(*group.parts(values), max_fpr, "remembered").tpr for key, values in group.guesses.items()}
    return {"chance": exact(max_fpr, n), **{key: exact(one.value, n) for key, one in found.items() if one is not None}}


def item_table(truth: Truth, group: Group, figures: Sequence[Figure]) -> pd.DataFrame:
    """A row for each candidate of a group: its names, whether it was trained on, and what its risk is.

    Returns: columns `item`, `victim`, `head`, `relation`, `tail`, `trained`; `by`, the strongest way by AUC; `statistic`, what it
    says; `false_alarms`, the share of controls that it takes for a member before, or with, this triple: the smallest
    false-alarm rate at which the triple is found.
    """
    found = [one for one in figures if one.metric == "auc" and one.victim == group.victim and one.variant in group.ways]
    by = max(found, key=lambda one: one.estimate.value).variant
    values = group.ways[by]
    controls = np.sort(values[~group.member])
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


def measures(
    found: MembershipResult, items: str = "triples"
) -> Sequence[tuple[str, Estimate | None, float, str | None]]:
    """Metric (those of `METRICS`), estimate, what chance gives, and why there is none; `items` are called so in the reason."""
    low = [
        (
            TPR[one.max_fpr],
            one.tpr,
            one.max_fpr,
            None
            if one.tpr
            else f"{one.max_fpr:.1%} false alarms take {math.ceil(1 / one.max_fpr):,} never-seen {items}; "
            f"{found.num_controls:,} match",
        )
        for one in found.low_fpr
        if one.direction == "remembered"
    ]
    return [("auc", found.auc, 0.5, None), *low, ("advantage", found.advantage, 0.0, None)]
