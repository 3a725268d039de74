"""What an adversary computes from a view, and the leakage figures that follow."""

from attacks.evaluation import AttackOptions, Leakage, attack_federation
from attacks.leakage import headline_rows
from attacks.unlinked import Unlinked
from attacks.view import THREAT_MODELS, ThreatModel, View, build_view

__all__ = [
    "THREAT_MODELS",
    "AttackOptions",
    "Leakage",
    "ThreatModel",
    "Unlinked",
    "View",
    "attack_federation",
    "build_view",
    "headline_rows",
]
