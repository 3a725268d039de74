"""The membership attack: which training triples can be told from never-seen ones by the models that clients are left with?

    found = run_attacks(result, AttackOptions(attack=("membership",)))
    for one in found.figures:
        print(one.victim, one.variant, one.metric, one.estimate)        # hospital-1  local, loss  auc  0.71 [0.66, 0.75]

Threat model: whoever holds a client's models ("models"); with shadow federations (`infer_membership`, as the gate asks for them)
also similar data and the way it was trained. Members are as many random training triples of each client as it has test triples,
at most half of them; controls are matched (`attacks.membership.controls`).

Source: Yeom et al. 2018 (loss), Carlini et al. 2022 (shadows); see `attacks.membership.statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attacks.figure import NOT_ATTACKED, Figure
from attacks.kge.view import KgeView
from attacks.membership.audits import (
    Audited,
    Statistics,
    attack_statistics,
    audited_triples,
    pooled_statistics,
    train_shadow,
)
from attacks.membership.figures import MAX_FPR, MembershipResult, measure_membership
from attacks.membership.models import ClientModel, client_models
from attacks.registry import MEMBERSHIP, Attack, Needs, Truth
from attacks.view import ALL, MODELS
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import DataError
from fkgsec.estimate import Estimate, exact
from fkgsec.federation.loop import FederationResult, run_federation
from fkgsec.federation.options import FederationOptions
from fkgsec.randomness import generator
from fkgsec.unlearning.forget_sets import Forget, retaining

TPR = {max_fpr: f"tpr@{max_fpr:g}" for max_fpr in MAX_FPR}
METRICS = {
    "auc": "AUC of membership inference",
    **{name: f"members found at {100 * max_fpr:g} % false alarms" for max_fpr, name in TPR.items()},
    "advantage": "members found beyond false alarms, at the best threshold",
}
TOO_FEW = "too few training triples with matched never-seen ones"
Models = Mapping[str, Mapping[str, ClientModel]]


def claim(view: KgeView, rng: np.random.Generator) -> Models:
    """By victim the models that the adversary asks for the loss of whatever triple it is shown."""
    return {victim.name: victim.models for victim in view.victims}


def score(claims: Models, truth: Truth) -> list[Figure]:
    """Figures of every victim and of all together, of each of their models; of some that cannot be asked about the reason."""
    try:
        figures = infer_membership(truth.result, seed=truth.seed, models=claims)
    except DataError:
        figures = []
    measured = {one.victim for one in figures}
    return figures + [
        figure for victim in claims if victim not in measured for figure in truth.not_attacked(victim, TOO_FEW)
    ]


ATTACK = Attack(
    MEMBERSHIP,
    "tells training triples from never-seen ones by the models that clients are left with",
    Needs(models=True),
    METRICS,
    claim,
    score,
    items=dict.fromkeys(METRICS, "matched triples"),
    in_order=True,
)


def infer_membership(
    result: FederationResult,
    *,
    seed: int,
    num_shadows: int = 0,
    train: Callable[[FederatedGraph, FederationOptions], FederationResult] = run_federation,
    models: Models | None = None,
) -> list[Figure]:
    """Every metric of every attack on each model of each client, and of all together; `Figure.variant` names model and attack.

    Args:
        seed: draws members, controls and shadows. num_shadows: 0, or an even number from 4 on. train: see `train_shadow`.
        models: by client what is asked; None: what it is left with.

    Raises:
        DataError: no client has enough triples that match.
    """
    graph = result.graph
    members: Forget = {}
    for place, client in enumerate(graph.clients):
        distinct = np.unique(client.train, axis=0)
        count = min(len(client.test), len(distinct) // 2)
        if count:
            members[client.name] = distinct[generator(seed, "members", place).permutation(len(distinct))[:count]]
    without = retaining(graph, members)
    audits = audited_triples(graph, without, members, seed) if members else []
    audits = [audit for audit in audits if audit.reason is None and audit.asked]
    if not audits:
        raise DataError(f"{graph.name}: no client has training triples with matched never-seen ones")
    shadows = [train_shadow(graph, without, audits, result.options, k, seed, train=train) for k in range(num_shadows)]
    figures: list[Figure] = []
    parts: dict[str, list[tuple[Audited, Statistics]]] = {}
    for audit in audits:
        own = models[audit.name] if models else client_models(result, audit.place)
        for name, model in own.items():
            statistics = attack_statistics({"raw": model}, audit, name, shadows, result.options.sampling_temperature)
            figures += _figures(audit.name, name, statistics, audit.forgotten, seed, result.best_round)
            parts.setdefault(name, []).append((audit, statistics))
    for name, of_all in parts.items():
        statistics, member = pooled_statistics(graph, of_all)
        figures += _figures(ALL, name, statistics, member, seed, result.best_round, num_attacked=len(of_all))
    return figures


def _figures(
    victim: str,
    model: str,
    statistics: Statistics,
    member: np.ndarray,
    seed: int,
    round: int,
    num_attacked: int = 1,
) -> list[Figure]:
    figures = []
    for attack, by_role in statistics.items():
        rng = generator(seed, "advantage", victim, model, attack)
        found = measure_membership(by_role["raw"], member, attack=attack, control="held_out", rng=rng)
        counts = {"members": found.num_forgotten, "controls": found.num_controls}
        figures += [
            Figure(
                MEMBERSHIP, metric, MODELS, victim, estimate or NOT_ATTACKED, exact(chance, found.auc.n), 1.0, round=round,
                reason=reason, variant=f"{model}, {attack}", counts=counts, num_attacked=num_attacked,
            )
            for metric, estimate, chance, reason in measures(found)
        ]  # fmt: skip
    return figures


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
