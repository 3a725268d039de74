"""What attacks on secure sums have in common: whom they attack, and why there may be no sum to take apart.

if reason := obstacle(truth):
    return [figure for victim in plan.victims for figure in truth.not_attacked(victim, reason)]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attacks.kge.view import KgeView
from attacks.registry import Truth
from fkgsec.federation.loop import FederationResult, run_federation


@dataclass(frozen=True)
class Plan:
    """Whom the server attacks."""

    victims: tuple[str, ...]


def plan(view: KgeView, rng: np.random.Generator) -> Plan:
    """All of them."""
    return Plan(tuple(victim.name for victim in view.victims))


def obstacle(truth: Truth) -> str | None:
    """Why a run cannot be trained once more for its sums; None where it can."""
    result: FederationResult = truth.result
    if not any(result.inputs.values()):
        return "uploads cross one by one, or none does: there is no sum to take apart"
    if truth.view.train is run_federation:
        return "the run was defended: it can be trained again with that defense's transport alone"
    return None
