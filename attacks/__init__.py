"""Attacks: an adversary computes claims from a view, and figures compare them with the truth.

figures, scores = run_attacks(result, KgeAttackOptions(leak=(0.5, 1.0)))          # of knowledge graphs
figures, scores = run_attacks(result, GraphAttackOptions(threat=("models",)))     # of graph classification
for figure in headline(figures):
    print(figure.key, figure.threat_model, figure.leak, figure.victim, figure.estimate, figure.baseline)
figures_to_frame(figures)                                                         # pandas, as run_attacks(...).to_frame()
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fkgsec.attacks.figure import Figure, headline
    from fkgsec.attacks.frames import figures_to_frame
    from fkgsec.attacks.laboratory import Laboratory
    from fkgsec.attacks.needs import Needs
    from fkgsec.attacks.options import (
        THREAT_MODELS,
        AttackSettings,
        GraphAttackOptions,
        KgeAttackOptions,
        ThreatModel,
    )
    from fkgsec.attacks.registry import ATTACKS, Attack, Truth, build_view, run_attacks
    from fkgsec.attacks.view import View

__all__ = [
    "ATTACKS",
    "THREAT_MODELS",
    "Attack",
    "AttackSettings",
    "Figure",
    "GraphAttackOptions",
    "KgeAttackOptions",
    "Laboratory",
    "Needs",
    "ThreatModel",
    "Truth",
    "View",
    "build_view",
    "figures_to_frame",
    "headline",
    "run_attacks",
]

# Import on first use: torch takes seconds to load, and records and reports need none of it.
_MODULES = {
    "figure": ("Figure", "headline"),
    "frames": ("figures_to_frame",),
    "laboratory": ("Laboratory",),
    "options": (
        "AttackSettings",
        "GraphAttackOptions",
        "KgeAttackOptions",
        "THREAT_MODELS",
        "ThreatModel",
    ),
    "needs": ("Needs",),
    "registry": ("ATTACKS", "Attack", "Truth", "build_view", "run_attacks"),
    "view": ("View",),
}
_WHERE = {name: f"fkgsec.attacks.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load an exported name when it is first used: `fkgsec.attacks.figure` alone needs no torch, the attacks do."""
    if name not in _WHERE:
        raise AttributeError(f"module 'attacks' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
