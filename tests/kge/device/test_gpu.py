"""Whole federations on a GPU against the CPU: every recipe and model; as one graph or kernel by kernel; the same bits twice."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from fkgsec.data.consortium import generate_consortium
from fkgsec.data.graph import FederatedGraph
from fkgsec.federation.loop import run_federation
from fkgsec.federation.options import FederationOptions, replace
from fkgsec.federation.recipes import algorithms_of
from fkgsec.kge.device import where
from fkgsec.kge.device.fused import FUSED_MODELS
from fkgsec.kge.local.result import KgeResult

pytestmark = pytest.mark.gpu
OWN_STEPS = "fede-svd+"


@pytest.fixture(autouse=True)
def _on_the_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "DEVICES", ("cuda",))


@pytest.fixture(scope="module")
def consortium() -> FederatedGraph:
    return generate_consortium(clients=3, size=900, seed=1)


@pytest.fixture
def options() -> FederationOptions:
    return FederationOptions(
        dim=16,
        batch_size=64,
        num_negatives=15,
        local_epochs=3,
        rounds=2,
        eval_every=1,
        patience=0,
        seed=5,
        draws="philox",
        device="cpu",
    )


def run_on_the_gpu(graph: FederatedGraph, options: FederationOptions) -> KgeResult:
    return run_federation(graph, replace(options, device="cuda"))


def assert_same_figures(cpu: KgeResult, cuda: KgeResult, tolerance: float = 2e-3) -> None:
    """A row in thirty may differ where rows are chosen or cut by what changed most, which a last bit can decide."""
    least = 0.97 if cpu.options.algorithm in ("feds", "fede-svd", "fede-svd+") else 1.0
    for left, right in zip(cpu.tables, cuda.tables, strict=True):
        for one, other in ((left.entities, right.entities), (left.relations, right.relations)):
            same = ((one - other).abs().amax(dim=1) <= tolerance).double().mean()
            assert same >= least
    assert [entry.loss for entry in cuda.rounds[1:]] == pytest.approx(
        [entry.loss for entry in cpu.rounds[1:]], rel=tolerance
    )
    mrr = [(1 / np.concatenate(one.test_ranks)).mean() for one in (cpu, cuda)]
    assert mrr[1] == pytest.approx(mrr[0], abs=0.01)


@pytest.mark.parametrize("model", FUSED_MODELS)
@pytest.mark.parametrize("algorithm", algorithms_of("kge"))
def test_every_recipe_gives_the_figures_of_the_cpu(
    algorithm: str, model: str, consortium: FederatedGraph, options: FederationOptions
) -> None:
    sized = {"rank": 2, "columns": 2} if "svd" in algorithm else {}
    options = replace(options, algorithm=algorithm, model=model, **sized)
    warned = (
        pytest.warns(RuntimeWarning, match="has steps of its own")
        if algorithm == OWN_STEPS
        else contextlib.nullcontext()
    )
    with warned:
        cuda = run_on_the_gpu(consortium, options)
    assert_same_figures(run_federation(consortium, options), cuda)


@pytest.mark.parametrize("how", [where.How(graphs=False), where.How(ordered=False)])
def test_one_graph_or_kernel_by_kernel_and_atomics(
    how: where.How, consortium: FederatedGraph, options: FederationOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, sums have the same bits in every run, captured or not."""
    plain, again = run_on_the_gpu(consortium, options), run_on_the_gpu(consortium, options)
    monkeypatch.setattr(where, "how", how)
    other = run_on_the_gpu(consortium, options)
    for left, right, third in zip(plain.tables, again.tables, other.tables, strict=True):
        assert torch.equal(left.entities, right.entities)
        assert not how.ordered or torch.equal(left.entities, third.entities)
        torch.testing.assert_close(left.entities, third.entities, atol=2e-3, rtol=0)


def test_participants_change_from_round_to_round(consortium: FederatedGraph, options: FederationOptions) -> None:
    options = replace(options, participation=0.4, rounds=4)
    assert_same_figures(run_federation(consortium, options), run_on_the_gpu(consortium, options))


def test_draws_by_numpy_go_by_torch_operations_and_say_so(
    consortium: FederatedGraph, options: FederationOptions
) -> None:
    options = replace(options, draws="numpy", rounds=1)
    with pytest.warns(RuntimeWarning, match="they need the option draws=philox, and it is numpy"):
        cuda = run_on_the_gpu(consortium, options)
    assert_same_figures(run_federation(consortium, options), cuda)


def test_wide_rows_and_many_negatives(consortium: FederatedGraph, options: FederationOptions) -> None:
    """The papers' sizes: 256 dimensions of complex numbers, 256 negatives, batches of 512."""
    options = replace(options, model="rotate", dim=256, num_negatives=256, batch_size=512, local_epochs=2, rounds=1)
    assert_same_figures(run_federation(consortium, options), run_on_the_gpu(consortium, options))
