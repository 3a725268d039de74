"""What an adversary computes from a view, and the leakage figures that follow."""

from attacks.figure import Figure
from attacks.reconstruction.evaluation import attack_federation
from attacks.reconstruction.leakage import Leakage, headline_rows
from attacks.reconstruction.options import AttackOptions
from attacks.reconstruction.unlinked import Unlinked
from attacks.registry import ATTACKS, Attack, Needs, Truth, run_attacks
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
