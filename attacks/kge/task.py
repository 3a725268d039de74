"""How runs of knowledge-graph embedding are attacked: an attack under each threat model and leak ratio.

Attacks that depend on which entities leak are repeated on other draws of these (`fkgsec.attacks.kge.leak_draws`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from fkgsec.attacks.clients.asking import draw_dictionary
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.leak_draws import other_seeds, widen
from fkgsec.attacks.kge.row_order import RowOrder
from fkgsec.attacks.kge.view import KgeView, kge_view
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions, ThreatModel
from fkgsec.attacks.registry import DEFAULT, Attack, AttackedTask, Case, attack_view
from fkgsec.data.graph import FederatedGraph
from fkgsec.federation.loop import run_federation, run_identity
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult

ALONE = ("edges", "degrees")  # what a server learns that nobody helps


def default_attacks(algorithm: str, threat: Sequence[str] = ()) -> tuple[str, ...]:
    """Reconstruction and update recovery; where the asked threat models have a server and no colluder, without which the former
    has nothing to start from, also what such a server learns."""
    models = [THREAT_MODELS[name] for name in threat]
    alone = any(model.server for model in models) and not any(model.colluder for model in models)
    return (*DEFAULT, *ALONE) if alone else DEFAULT


def default_threats(algorithm: str) -> tuple[str, ...]:
    """The threat models of the papers and of practice that fit an algorithm."""
    shared = RECIPES[algorithm].shared
    if "entities" in shared:
        return ("collusion", "identifiers")
    return ("collusion", "collusion+entities") if shared else ("collusion",)


def cases(
    attack: Attack,
    result: KgeResult,
    options: KgeAttackOptions,
    leak_draws: int,
    train: Callable[..., KgeResult],
) -> list[Case]:
    """Figures and scores of one attack: for each threat model those of each leak ratio."""
    threats = attack.fitting(options.threat, result.options.algorithm)
    if train is not run_federation or not result.options.defense:  # else attacks say that they cannot train it
        train = Remembered(train)
    alone = [name for name in threats if not THREAT_MODELS[name].leaks]
    found: dict[tuple[str, float], Case] = {}
    for leak in options.leak:
        here = threats if leak == options.leak[0] else [name for name in threats if name not in alone]
        first = _draw(attack, result, options, here, leak, train)
        chance = [
            name for name, (figures, _) in first.items()
            if leak < 1 and name not in alone and any(not one.reason for one in figures)
        ]  # fmt: skip
        others = [
            _draw(attack, result, msgspec.structs.replace(options, seed=seed, unlinked_heads=0), chance, leak, train)
            for seed in (other_seeds(options.seed, leak_draws) if attack.redrawn and chance else [])
        ]
        for name, (figures, scores) in first.items():
            found[name, leak] = widen(figures, [other[name][0] for other in others if name in other]), scores
    return [found[name, leak] for name in threats for leak in options.leak if (name, leak) in found]


class Remembered:
    """Trains each federation once: the threat models of an attack that trains its own share them."""

    def __init__(self, train: Callable[..., KgeResult]) -> None:
        self._train = train
        self._made: dict[str, KgeResult] = {}

    def __call__(self, graph: FederatedGraph, options: KgeOptions, **how: Any) -> KgeResult:
        """As `train`, unless something besides is asked for, such as an adversary in it."""
        if how:
            return self._train(graph, options, **how)
        identity = run_identity(graph, options)
        if identity not in self._made:
            self._made[identity] = self._train(graph, options)
        return self._made[identity]


def _draw(
    attack: Attack,
    result: KgeResult,
    options: KgeAttackOptions,
    threats: Sequence[str],
    leak: float,
    train: Callable[..., KgeResult],
) -> dict[str, Case]:
    """By threat model the figures and scores of an attack, of one draw of the leaked entities, which is that of the seed."""
    attack = attack.configured(options) if attack.configured else attack
    found, who = {}, options.colluders(result.graph.clients)
    for name in threats:
        figures, scores = attack_under(attack, result, THREAT_MODELS[name], options, who, leak, train)
        found[name] = figures, [items.assign(threat_model=name, leak=leak) for items in scores]
    return found


def attack_under(
    attack: Attack,
    result: KgeResult,
    model: ThreatModel,
    options: KgeAttackOptions,
    who: Sequence[str],
    leak: float,
    train: Callable[..., KgeResult] = run_federation,
) -> Case:
    """Figures and scores of an attack on a run under one threat model.

    Args:
        who: those that collude, the one that acts first.
    """
    seed = options.seed
    order = RowOrder(result.graph, seed)

    def view_of(run: KgeResult) -> KgeView:
        view = kge_view(run, model, colluder=who, leak=leak, seed=seed, auxiliary=options.auxiliary)
        return order.shuffled(view)

    view, laboratory = view_of(result), KgeLaboratory(result, train, seed, view_of)
    if attack.asks:
        view = laboratory.with_candidates(view, who)
    if attack.dictionary:
        view = replace(view, dictionary=tuple(draw_dictionary(result.graph, who, attack.dictionary, seed).names))
    return attack_view(attack, view, laboratory, who, order.clients)


ATTACKED_TASK = AttackedTask(KgeAttackOptions, default_attacks, default_threats, kge_view, cases)
