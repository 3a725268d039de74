"""PyKEEN, and every interaction of it by a name that fkgsec takes."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from fkgsec.kge.options import KgeOptions
from tests.federation.conftest import consortium, uneven

__all__ = ["NAMES", "consortium", "needs_pykeen", "small", "uneven"]

NAMES = (
    "AutoSF(coefficients=[(0,0,0,1), (0,1,1,-1)])", "BoxE", "ComplEx", "ConvE", "ConvKB(num_filters=8)", "CP", "CrossE", "DistMA",
    "DistMult", "ERMLP", "ERMLPE", "HolE", "KG2E", "LineaRE", "MultiLinearTucker", "MuRE", "NTN(k=2)", "PairRE", "ProjE",
    "QuatE", "RESCAL", "RotatE", "SE", "SimplE", "TorusE", "TransD(e=6)", "TransE(p=2)", "TransF",
    "Transformer(dim_feedforward=16)", "TransH", "TransR(e=6)", "TripleRE", "TuckER", "UM",
)  # fmt: skip

needs_pykeen = pytest.mark.skipif(importlib.util.find_spec("pykeen") is None, reason="PyKEEN is not installed")


def small(model: str, **changes: Any) -> KgeOptions:
    """A few steps a round, on the CPU."""
    common: dict[str, Any] = {
        "dim": 8, "gamma": 4.0, "batch_size": 16, "num_negatives": 4, "local_epochs": 2, "rounds": 3, "eval_every": 2,
        "patience": 0, "learning_rate": 0.01, "seed": 5, "device": "cpu",
    }  # fmt: skip
    return KgeOptions(model=f"pykeen:{model}", **(common | changes))
