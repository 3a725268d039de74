"""Federated knowledge-graph embedding: graphs, scoring functions, training, messages and transcript.

The names below are the public surface for scripts; `attacks` and `experiments` build on them.
"""

from fkgsec.data.catalogue import load_dataset
from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import ClientGraph, FederatedGraph, KnowledgeGraph
from fkgsec.data.partition import partition
from fkgsec.data.readers import read_path
from fkgsec.errors import FkgsecError
from fkgsec.estimate import Estimate
from fkgsec.federation.loop import FederationResult, run_federation
from fkgsec.federation.options import FederationOptions
from fkgsec.kge.models import KgeModel

__version__ = "0.1.0"

__all__ = [
    "ClientGraph",
    "Estimate",
    "FederatedGraph",
    "FederationOptions",
    "FederationResult",
    "FkgsecError",
    "KgeModel",
    "KnowledgeGraph",
    "generate_consortium",
    "load_dataset",
    "partition",
    "read_path",
    "run_federation",
]
