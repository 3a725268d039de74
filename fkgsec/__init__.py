"""Federated knowledge-graph embedding: graphs, scoring functions, training, messages and transcript.

    graph = partition(graph_from(frame), "relations", clients=3, seed=0)     # from a DataFrame; read_path reads files
    result = run_federation(graph, KgeOptions(algorithm="fede", dim=64, rounds=20))
    result.to_frame()                                                        # pandas: one row per round

Scripts import the names below. They cover both tasks (knowledge graphs and graph classification), attacks, defenses, unlearning,
runs and extensions. The folders of `fkgsec.attacks`, `fkgsec.defenses`, `fkgsec.protocols` and `fkgsec.experiments` lie next to
this one in the repository.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from fkgsec.version import __version__ as __version__

# Must be set before torch loads libgomp. By default its threads wait by spinning 300,000 times, which makes training
# tens of times slower next to any other busy process. 1,000 times cost 5 % of a small run on an idle machine
# (`GOMP_SPINCOUNT=300000 fkgsec train --algorithm fedlu --dim 32 --rounds 10 --num-negatives 32`, alone and next to another).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from fkgsec.attacks import (
        ATTACKS,
        Attack,
        AttackSettings,
        Figure,
        GraphAttackOptions,
        KgeAttackOptions,
        Laboratory,
        Needs,
        Truth,
        View,
        headline,
        run_attacks,
    )
    from fkgsec.data.catalogue import load_dataset
    from fkgsec.data.consortium import generate_consortium
    from fkgsec.data.formats.in_memory import graph_from
    from fkgsec.data.formats.readers import read_path
    from fkgsec.data.graph import ClientGraph, FederatedGraph, KnowledgeGraph
    from fkgsec.data.partition import partition
    from fkgsec.defenses import make_transport
    from fkgsec.errors import FkgsecError
    from fkgsec.estimate import Estimate
    from fkgsec.experiments.runs.compare import compare
    from fkgsec.experiments.runs.record import read_record
    from fkgsec.experiments.runs.run import execute
    from fkgsec.experiments.runs.spec import make_spec
    from fkgsec.experiments.unlearning.options import AuditOptions
    from fkgsec.experiments.unlearning.verification import verify
    from fkgsec.federation.loop import load_result, run_federation
    from fkgsec.federation.options import RunOptions
    from fkgsec.federation.recipes import ENTITIES, RECIPES, Recipe, register
    from fkgsec.federation.result import RunResult
    from fkgsec.federation.settings import AlgorithmSettings
    from fkgsec.gnn.options import GnnOptions
    from fkgsec.graphs.collection import load_federation
    from fkgsec.kge.local.objectives import OBJECTIVES
    from fkgsec.kge.local.rule import LocalRule, WeightedObjective
    from fkgsec.kge.models import KgeModel
    from fkgsec.kge.options import KgeOptions
    from fkgsec.kge.result import KgeResult
    from fkgsec.unlearning.options import UnlearnOptions
    from fkgsec.unlearning.unlearning import unlearn

__all__ = [
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

_WHERE = {
    "ATTACKS": "fkgsec.attacks",
    "AlgorithmSettings": "fkgsec.federation.settings",
    "Attack": "fkgsec.attacks",
    "AttackSettings": "fkgsec.attacks",
    "AuditOptions": "fkgsec.experiments.unlearning.options",
    "ClientGraph": "fkgsec.data.graph",
    "ENTITIES": "fkgsec.federation.recipes",
    "Estimate": "fkgsec.estimate",
    "FederatedGraph": "fkgsec.data.graph",
    "Figure": "fkgsec.attacks",
    "FkgsecError": "fkgsec.errors",
    "GnnOptions": "fkgsec.gnn.options",
    "GraphAttackOptions": "fkgsec.attacks",
    "KgeAttackOptions": "fkgsec.attacks",
    "KgeModel": "fkgsec.kge.models",
    "KgeOptions": "fkgsec.kge.options",
    "KgeResult": "fkgsec.kge.result",
    "KnowledgeGraph": "fkgsec.data.graph",
    "Laboratory": "fkgsec.attacks",
    "LocalRule": "fkgsec.kge.local.rule",
    "Needs": "fkgsec.attacks",
    "OBJECTIVES": "fkgsec.kge.local.objectives",
    "RECIPES": "fkgsec.federation.recipes",
    "Recipe": "fkgsec.federation.recipes",
    "RunOptions": "fkgsec.federation.options",
    "RunResult": "fkgsec.federation.result",
    "Truth": "fkgsec.attacks",
    "UnlearnOptions": "fkgsec.unlearning.options",
    "View": "fkgsec.attacks",
    "WeightedObjective": "fkgsec.kge.local.rule",
    "compare": "fkgsec.experiments.runs.compare",
    "execute": "fkgsec.experiments.runs.run",
    "generate_consortium": "fkgsec.data.consortium",
    "graph_from": "fkgsec.data.formats.in_memory",
    "headline": "fkgsec.attacks",
    "load_dataset": "fkgsec.data.catalogue",
    "load_federation": "fkgsec.graphs.collection",
    "load_result": "fkgsec.federation.loop",
    "make_spec": "fkgsec.experiments.runs.spec",
    "make_transport": "fkgsec.defenses",
    "partition": "fkgsec.data.partition",
    "read_path": "fkgsec.data.formats.readers",
    "read_record": "fkgsec.experiments.runs.record",
    "register": "fkgsec.federation.recipes",
    "run_attacks": "fkgsec.attacks",
    "run_federation": "fkgsec.federation.loop",
    "unlearn": "fkgsec.unlearning.unlearning",
    "verify": "fkgsec.experiments.unlearning.verification",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: torch takes seconds to import, and `fkgsec --help` does not need it."""
    if name not in _WHERE:
        raise AttributeError(f"module 'fkgsec' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
