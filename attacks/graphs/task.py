"""Attacks on runs of graph classification: one attack under each of its threat models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fkgsec.attacks.graphs.view import graph_view
from fkgsec.attacks.laboratory import Laboratory
from fkgsec.attacks.options import MODELS, THREAT_MODELS, GraphAttackOptions
from fkgsec.attacks.registry import Attack, AttackedTask, Case, attack_view
from fkgsec.federation.recipes import RECIPES
from fkgsec.gnn.result import GnnResult

KINSHIP = "client-kinship"


def default_attacks(algorithm: str, threat: Sequence[str] = ()) -> tuple[str, ...]:
    """Return membership inference, and the attack on what the algorithm reveals besides.

    Args:
        threat: requested threat models; they do not change the defaults.
    """
    specific = {"fedstar": ("degree-support",), "gcfl": (KINSHIP,), "gcfl+": (KINSHIP,), "gcfl+dws": (KINSHIP,)}
    return ("graph-membership", *specific.get(algorithm, ()))


def default_threats(algorithm: str) -> tuple[str, ...]:
    """Return the threat models that fit an algorithm: only the final models if nothing is shared."""
    return ("server", MODELS) if RECIPES[algorithm].shared else (MODELS,)


def cases(
    attack: Attack,
    result: GnnResult,
    options: GraphAttackOptions,
    leak_draws: int,
    train: Callable[..., GnnResult],
) -> list[Case]:
    """Run one attack under each of its threat models. No share leaks, so nothing is drawn again.

    Args:
        leak_draws: not used.
        train: trains federations for the attack.

    Returns:
        Figures and item scores by threat model.
    """
    who, seed, needs = options.colluders(result.graph.clients), options.seed, attack.needs
    results = []
    for name in attack.fitting(options.threat, result.options.algorithm):
        # The laboratory builds views of its own runs in the same way.
        view_of = partial(
            graph_view, threat_model=THREAT_MODELS[name], colluder=who[0], seed=seed, candidates=needs.candidates,
            first=needs.first_round,
        )  # fmt: skip
        figures, scores = attack_view(attack, view_of(result), Laboratory(result, train, options, who, view_of))
        results.append((figures, [items.assign(threat_model=name) for items in scores]))
    return results


ATTACKED_TASK = AttackedTask(GraphAttackOptions, default_attacks, default_threats, graph_view, cases)
