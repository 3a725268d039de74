"""The exported names: adding or removing one is a decision, not an accident."""

import fkgsec
from fkgsec import attacks, defenses


def test_exported_names_of_fkgsec() -> None:
    assert sorted(fkgsec.__all__) == [
        "ClientGraph",
        "Estimate",
        "FederatedGraph",
        "FkgsecError",
        "KgeModel",
        "KgeOptions",
        "KgeResult",
        "KnowledgeGraph",
        "RunOptions",
        "RunResult",
        "generate_consortium",
        "graph_from",
        "load_dataset",
        "partition",
        "read_path",
        "run_federation",
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
        "AttackOptions",
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
