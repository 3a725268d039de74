"""Attacks on runs of knowledge-graph embedding: an attack under each threat model and leak ratio.

Which entities leak is chance. The evaluator holds the finished run, so it repeats a `redrawn` attack with other leaked entities
of the same number (`LEAK_DRAWS`). How much a figure differs between draws joins the interval of its items (`widen`), which then
covers the mean over draws of the same training. It does not cover other trainings: several seeds do. At a leak of 1 nothing is
drawn. Source: ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fkgsec.attacks.figure import Figure
from fkgsec.attacks.kge.laboratory import KgeLaboratory
from fkgsec.attacks.kge.row_order import RowOrder
from fkgsec.attacks.kge.view import KgeView, kge_view
from fkgsec.attacks.options import THREAT_MODELS, KgeAttackOptions, ThreatModel
from fkgsec.attacks.registry import DEFAULT, Attack, AttackedTask, Case, attack_view
from fkgsec.data.graph import FederatedGraph
from fkgsec.estimate import over_draws
from fkgsec.federation.loop import run_federation, run_identity
from fkgsec.federation.recipes import RECIPES
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult
from fkgsec.randomness import generator

ALONE = ("edges", "degrees")  # what a server learns that nobody helps


def default_attacks(algorithm: str, threat: Sequence[str] = ()) -> tuple[str, ...]:
    """Reconstruction and update recovery; for a server without a colluder also what such a server learns."""
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
    who = options.colluders(result.graph.clients)

    def draw(names: Sequence[str], leak: float, options: KgeAttackOptions) -> dict[str, Case]:
        """Cases by threat model of the draw of leaked entities that follows from the options' seed."""
        memory: dict[Any, Any] = {}
        return {
            name: attack_under(attack, result, THREAT_MODELS[name], options, who, leak, train, memory) for name in names
        }

    leaking = [name for name in threats if THREAT_MODELS[name].leaks]
    case_of: dict[tuple[str, float], Case] = {}
    for leak in options.leak:
        first = draw(threats if leak == options.leak[0] else leaking, leak, options)
        chance = [
            name for name, (figures, _) in first.items()
            if leak < 1 and name in leaking and any(not figure.reason for figure in figures)
        ]  # fmt: skip
        others = [
            draw(chance, leak, msgspec.structs.replace(options, seed=seed, unlinked_heads=0))
            for seed in (other_seeds(options.seed, leak_draws) if attack.redrawn and chance else [])
        ]
        for name, (figures, scores) in first.items():
            items = [table.assign(threat_model=name, leak=leak) for table in scores]
            case_of[name, leak] = widen(figures, [other[name][0] for other in others if name in other]), items
    return [case_of[name, leak] for name in threats for leak in options.leak if (name, leak) in case_of]


def other_seeds(seed: int, count: int) -> list[int]:
    """Seeds of further draws that depend on the attack's own seed and are no other's."""
    return [int(generator(seed, "other leaked entities", number).integers(2**62)) for number in range(count)]


def widen(figures: Sequence[Figure], others: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Return the figures with intervals, and upper bounds, that cover the draw of leaked entities.

    The upper bound of a figure differs between draws. An interval that covers them ends at the largest one.

    Args:
        others: for each further draw the figures of the same attack. A draw in which a victim could not be attacked says
            nothing of it and is left out.
    """
    drawn = [{(figure.question, figure.victim): figure for figure in again if not figure.reason} for again in others]

    def widened(figure: Figure) -> Figure:
        key = figure.question, figure.victim
        same = [again[key] for again in drawn if key in again]
        bounds = [each.attainable for each in (figure, *same) if each.attainable is not None]
        bound = None if figure.attainable is None or figure.less_is_worse else max(bounds)
        values = [each.estimate.value for each in same]
        estimate = over_draws(figure.estimate, values, "leaks", 1.0 if bound is None else bound)
        outcomes = figure.outcomes
        if outcomes is not None and len(same) == len(drawn) > 0:
            outcomes = msgspec.structs.replace(outcomes, draws=(figure.estimate.value, *values))
        return msgspec.structs.replace(
            figure, estimate=estimate, attainable=figure.attainable if bound is None else bound, outcomes=outcomes
        )

    return [figure if figure.reason else widened(figure) for figure in figures]


class Remembered:
    """Trains each federation once: the threat models of an attack that trains its own share them."""

    def __init__(self, train: Callable[..., KgeResult]) -> None:
        self._train = train
        self._made: dict[str, KgeResult] = {}

    def __call__(self, graph: FederatedGraph, options: KgeOptions, **how: Any) -> KgeResult:
        """Train a run, or return an equal one. Runs with anything else in them, such as an adversary, are trained each time."""
        if how:
            return self._train(graph, options, **how)
        identity = run_identity(graph, options)
        if identity not in self._made:
            self._made[identity] = self._train(graph, options)
        return self._made[identity]


def attack_under(
    attack: Attack,
    result: KgeResult,
    model: ThreatModel,
    options: KgeAttackOptions,
    who: Sequence[str],
    leak: float,
    train: Callable[..., KgeResult] = run_federation,
    memory: dict[Any, Any] | None = None,
) -> Case:
    """Figures and scores of an attack on a run under one threat model.

    Args:
        who: those that collude, the one that acts first. memory: see `Laboratory`.
    """
    order = RowOrder(result.graph, options.seed)

    def view_of(run: KgeResult) -> KgeView:
        view = kge_view(run, model, colluder=who, leak=leak, seed=options.seed, auxiliary=options.auxiliary)
        return order.shuffled(view)

    laboratory = KgeLaboratory(result, train, options, who, view_of, memory)
    return attack_view(attack, view_of(result), laboratory, order.clients)


ATTACKED_TASK = AttackedTask(KgeAttackOptions, default_attacks, default_threats, kge_view, cases)
