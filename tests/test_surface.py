"""The exported names: adding or removing one is a decision, not an accident."""

import fkgsec
from fkgsec import attacks, defenses


def test_exported_names_of_fkgsec() -> None:
    assert fkgsec.__all__ == [
        "ATTACKS",
        "ENTITIES",
        "OBJECTIVES",
        "RECIPES",
        "AlgorithmSettings",
        "Attack",
        "AttackSettings",
        "AuditOptions",
        "ClientGraph",
        "Estimate",
        "FederatedGraph",
        "Figure",
        "FkgsecError",
        "GnnOptions",
        "GraphAttackOptions",
        "KgeAttackOptions",
        "KgeModel",
        "KgeOptions",
        "KgeResult",
        "KnowledgeGraph",
        "Laboratory",
        "LocalRule",
        "Needs",
        "Recipe",
        "RunOptions",
        "RunResult",
        "Truth",
        "UnlearnOptions",
        "View",
        "WeightedObjective",
        "compare",
        "execute",
        "generate_consortium",
        "graph_from",
        "headline",
        "load_dataset",
        "load_federation",
        "load_result",
        "make_spec",
        "make_transport",
        "partition",
        "read_path",
        "read_record",
        "register",
        "run_attacks",
        "run_federation",
        "unlearn",
        "verify",
    ]
    assert all(hasattr(fkgsec, name) for name in fkgsec.__all__)


def test_exported_names_of_attacks() -> None:
    assert set(attacks.__all__) == {
        "ATTACKS",
        "THREAT_MODELS",
        "Attack",
        "Figure",
        "Needs",
        "Truth",
        "run_attacks",
        "AttackSettings",
        "GraphAttackOptions",
        "KgeAttackOptions",
        "Laboratory",
        "ThreatModel",
        "View",
        "build_view",
        "figures_to_frame",
        "headline",
    }
    assert all(hasattr(attacks, name) for name in attacks.__all__)


def test_exported_names_of_defenses() -> None:
    assert defenses.__all__ == [
        "KINDS",
        "DefendedTransport",
        "Defense",
        "DefenseOptions",
        "check_defense",
        "make_transport",
        "parse_defense",
    ]
    assert all(hasattr(defenses, name) for name in defenses.__all__)
