"""Whole federations on a GPU against the CPU, for every algorithm and every model with a compiled similarity."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import FederatedGraph
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import replace
from fkgsec.federation.recipes import algorithms_of
from fkgsec.kge.options import KgeOptions
from fkgsec.kge.result import KgeResult

pytestmark = pytest.mark.gpu
MODELS = ("transe", "rotate", "distmult", "complex")


@pytest.fixture(scope="module")
def consortium() -> FederatedGraph:
    return generate_consortium(clients=3, size=900, seed=1)


@pytest.fixture
def options() -> KgeOptions:
    sizes = {"dim": 16, "batch_size": 64, "num_negatives": 15, "local_epochs": 3, "rounds": 2}
    return KgeOptions(**sizes, eval_every=1, patience=0, seed=5, device="cpu")


def assert_same_figures(cpu: KgeResult, cuda: KgeResult, tolerance: float = 2e-3) -> None:
    """Where an algorithm sends the rows that changed most, a last bit can decide: there one row in thirty may differ."""
    least = 0.97 if cpu.options.algorithm in ("feds", "fede-svd", "fede-svd+") else 1.0
    for left, right in zip(cpu.tables, cuda.tables, strict=True):
        for first, second in ((left.entities, right.entities), (left.relations, right.relations)):
            same = ((first - second).abs().amax(dim=1) <= tolerance).double().mean()
            assert same >= least
    assert [entry.loss for entry in cuda.rounds[1:]] == pytest.approx(
        [entry.loss for entry in cpu.rounds[1:]], rel=tolerance
    )
    mrr = [(1 / np.concatenate(result.test_ranks)).mean() for result in (cpu, cuda)]
    assert mrr[1] == pytest.approx(mrr[0], abs=0.01)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("algorithm", algorithms_of("kge"))
def test_every_algorithm_gives_the_figures_of_the_cpu(
    algorithm: str, model: str, consortium: FederatedGraph, options: KgeOptions
) -> None:
    sized = {"rank": 2, "columns": 2} if "svd" in algorithm else {}
    options = replace(options, algorithm=algorithm, model=model, **sized)
    assert_same_figures(
        run_federation(consortium, options), run_federation(consortium, replace(options, device="cuda"))
    )


def test_wide_rows_and_many_negatives(consortium: FederatedGraph, options: KgeOptions) -> None:
    """The papers' sizes: 256 complex dimensions, 256 negatives, batches of 512. Two runs give the same bits."""
    options = replace(options, model="rotate", dim=256, num_negatives=256, batch_size=512, local_epochs=2, rounds=1)
    first, second = (run_federation(consortium, replace(options, device="cuda")) for _ in range(2))
    assert_same_figures(run_federation(consortium, options), first)
    assert all(torch.equal(a.entities, b.entities) for a, b in zip(first.tables, second.tables, strict=True))
