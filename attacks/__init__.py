"""What an adversary computes from a view, and the figures that follow.

figures, scores = run_attacks(result, KgeAttackOptions(leak=(0.5, 1.0)))          # of knowledge graphs
figures, scores = run_attacks(result, GraphAttackOptions(threat=("models",)))     # of graph classification
for one in headline(figures):
    print(one.key, one.threat_model, one.leak, one.victim, one.estimate, one.baseline)
figures_to_frame(figures)                                                         # pandas, as run_attacks(...).to_frame()
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fkgsec.attacks.figure import Figure, headline
    from fkgsec.attacks.frames import figures_to_frame
    from fkgsec.attacks.laboratory import Laboratory
    from fkgsec.attacks.options import THREAT_MODELS, AttackOptions, GraphAttackOptions, KgeAttackOptions, ThreatModel
    from fkgsec.attacks.registry import ATTACKS, Attack, Needs, Truth, build_view, run_attacks
    from fkgsec.attacks.view import View

__all__ = [
    "ATTACKS",
    "THREAT_MODELS",
    "Attack",
    "AttackOptions",
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

_WHERE = {
    "ATTACKS": "fkgsec.attacks.registry",
    "Attack": "fkgsec.attacks.registry",
    "AttackOptions": "fkgsec.attacks.options",
    "Figure": "fkgsec.attacks.figure",
    "GraphAttackOptions": "fkgsec.attacks.options",
    "KgeAttackOptions": "fkgsec.attacks.options",
    "Laboratory": "fkgsec.attacks.laboratory",
    "Needs": "fkgsec.attacks.registry",
    "THREAT_MODELS": "fkgsec.attacks.options",
    "ThreatModel": "fkgsec.attacks.options",
    "Truth": "fkgsec.attacks.registry",
    "View": "fkgsec.attacks.view",
    "build_view": "fkgsec.attacks.registry",
    "figures_to_frame": "fkgsec.attacks.frames",
    "headline": "fkgsec.attacks.figure",
    "run_attacks": "fkgsec.attacks.registry",
}


def __getattr__(name: str) -> Any:
    """Load an exported name when it is first asked for: `fkgsec.attacks.figure` alone needs no torch, the attacks do."""
    if name not in _WHERE:
        raise AttributeError(f"module 'attacks' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
