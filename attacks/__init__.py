"""What an adversary computes from a view, and the figures that follow.

figures, scores = run_attacks(result, KgeAttackOptions(leak=(0.5, 1.0)))          # of knowledge graphs
figures, scores = run_attacks(result, GraphAttackOptions(threat=("models",)))     # of graph classification
for one in headline(figures):
    print(one.key, one.threat_model, one.leak, one.victim, one.estimate, one.baseline)
figures_to_frame(figures)                                                         # pandas, as run_attacks(...).to_frame()
"""

from attacks.figure import Figure, headline
from attacks.frames import figures_to_frame
from attacks.graphs.options import GraphAttackOptions
from attacks.reconstruction.evaluation import attack_federation
from attacks.reconstruction.leakage import Leakage, headline_rows
from attacks.reconstruction.options import AttackOptions, KgeAttackOptions
from attacks.reconstruction.unlinked import Unlinked
from attacks.registry import ATTACKS, Attack, Needs, Truth, run_attacks
from attacks.view import THREAT_MODELS, ThreatModel, View, build_view

__all__ = [
    "ATTACKS",
    "THREAT_MODELS",
    "Attack",
    "AttackOptions",
    "Figure",
    "GraphAttackOptions",
    "KgeAttackOptions",
    "Leakage",
    "Needs",
    "ThreatModel",
    "Truth",
    "Unlinked",
    "View",
    "attack_federation",
    "build_view",
    "figures_to_frame",
    "headline",
    "headline_rows",
    "run_attacks",
]
