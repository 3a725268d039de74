"""Where kernels run: on the GPU where there is one, else in Triton's interpreter, which `tests/conftest.py` asks for."""

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fkgsec.data.graph import ClientGraph, FederatedGraph
from fkgsec.kge import kernels
from fkgsec.kge.device import where


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU trains in fused steps, too; and the interpreter computes numbers that a mask then leaves out, by numpy."""
    monkeypatch.setattr(where, "DEVICES", ("cuda", "cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a machine without numba says so, once
        kernels.numba_is_there()
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="session")
def pair() -> FederatedGraph:
    """Two clients, of two batches of four and of one; three entities are in both."""
    rng = np.random.default_rng(4)
    clients = []
    for name, count, low, high in (("small", 3, 0, 4), ("large", 7, 1, 6)):
        drawn = rng.integers([low, 0, low], [high, 2, high], size=(40, 3))
        triples = np.unique(drawn, axis=0)
        rng.shuffle(triples)
        clients.append(
            ClientGraph.from_global(name, triples[:count], triples[count : count + 1], triples[count + 1 : count + 3])
        )
    return FederatedGraph("pair", tuple("abcdef"), ("r", "s"), tuple(clients))
