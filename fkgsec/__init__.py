"""Federated knowledge-graph embedding: graphs, scoring functions, training, messages and transcript.

    graph = partition(graph_from(frame), "relations", clients=3, seed=0)     # of a pandas DataFrame, or of a file by read_path
    result = run_federation(graph, KgeOptions(algorithm="fede", dim=64, rounds=20))
    result.to_frame()                                                        # pandas: a row for each round

The names below are the public surface for scripts; `attacks` and `experiments` build on them.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# Before torch loads libgomp. Threads that wait for each other by spinning 300,000 times, its default, make training tens of
# times slower beside any other busy process; 1,000 times cost a free machine a twentieth of a small run
# (`GOMP_SPINCOUNT=300000 fkgsec train --algorithm fedlu --dim 32 --rounds 10 --num-negatives 32`, alone and beside another).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if TYPE_CHECKING:
    from fkgsec.data.catalogue import load_dataset
    from fkgsec.data.consortium import generate_consortium
    from fkgsec.data.formats.in_memory import graph_from
    from fkgsec.data.formats.readers import read_path
    from fkgsec.data.graph import ClientGraph, FederatedGraph, KnowledgeGraph
    from fkgsec.data.partition import partition
    from fkgsec.errors import FkgsecError
    from fkgsec.estimate import Estimate
    from fkgsec.federation.loop import run_federation
    from fkgsec.federation.options import RunOptions
    from fkgsec.federation.result import RunResult
    from fkgsec.kge.models import KgeModel
    from fkgsec.kge.options import KgeOptions
    from fkgsec.kge.result import KgeResult

__version__ = "0.2.0"

__all__ = [
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

_WHERE = {
    "ClientGraph": "fkgsec.data.graph",
    "Estimate": "fkgsec.estimate",
    "FederatedGraph": "fkgsec.data.graph",
    "FkgsecError": "fkgsec.errors",
    "KgeModel": "fkgsec.kge.models",
    "KgeOptions": "fkgsec.kge.options",
    "KgeResult": "fkgsec.kge.result",
    "KnowledgeGraph": "fkgsec.data.graph",
    "RunOptions": "fkgsec.federation.options",
    "RunResult": "fkgsec.federation.result",
    "generate_consortium": "fkgsec.data.consortium",
    "graph_from": "fkgsec.data.formats.in_memory",
    "load_dataset": "fkgsec.data.catalogue",
    "partition": "fkgsec.data.partition",
    "read_path": "fkgsec.data.formats.readers",
    "run_federation": "fkgsec.federation.loop",
}


def __getattr__(name: str) -> Any:
    """Load a name of the public surface when it is first asked for: torch takes seconds, and `fkgsec --help` needs none of it."""
    if name not in _WHERE:
        raise AttributeError(f"module 'fkgsec' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
