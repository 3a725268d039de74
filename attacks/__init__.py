"""What an adversary computes from a view, and the leakage figures that follow."""

from attacks.evaluation import AttackOptions, Leakage, attack_federation
from attacks.figure import Figure
from attacks.leakage import headline_rows
from attacks.registry import ATTACKS, Attack, Needs, Truth, run_attacks
from attacks.unlinked import Unlinked
from attacks.view import THREAT_MODELS, ThreatModel, View, build_view

__all__ = [
    "ATTACKS",
    "THREAT_MODELS",
    "Attack",
    "AttackOptions",
    "Figure",
    "Leakage",
    "Needs",
    "ThreatModel",
    "Truth",
    "Unlinked",
    "View",
    "attack_federation",
    "build_view",
    "headline_rows",
    "run_attacks",
]
