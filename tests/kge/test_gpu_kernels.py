"""The Triton kernels of the candidates' loss against the CPU's loops: in Triton's interpreter, or on a GPU if there is one."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fkgsec.kge import gpu_kernels, kernels
from fkgsec.kge.kinds import DOT, L1, MODULUS

ROWS, WIDTH = 7, 6
every_kind = pytest.mark.parametrize("kind", [L1, MODULUS, DOT])


class Batch(NamedTuple):
    """Arguments of a candidate loss."""

    queries: Tensor
    table: Tensor
    candidates: Tensor
    weights: Tensor


@pytest.fixture(autouse=True)
def _quiet_interpreter() -> Iterator[None]:
    with np.errstate(all="ignore"):  # the interpreter also computes values that a mask then leaves out
        yield


def batch_of(num_positives: int = 4, num_negatives: int = 5, seed: int = 0, width: int = WIDTH) -> Batch:
    """Some negatives are masked, and most rows are drawn several times."""
    rng = np.random.default_rng(seed)
    candidates = rng.integers(0, ROWS, size=(num_positives, num_negatives + 1)).astype(np.int32)
    candidates[:, 1:][rng.random((num_positives, num_negatives)) < 0.25] = -1
    arrays = (
        rng.normal(size=(num_positives, width)).astype(np.float32),
        rng.normal(size=(ROWS, width)).astype(np.float32),
        candidates,
        rng.random(num_positives).astype(np.float32),
    )
    return Batch(*map(torch.from_numpy, arrays))


def assert_equals_cpu(
    kind: int, batch: Batch, temperature: float = 0.7, margin: float = 3.0, tolerance: float = 1e-5
) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    expected = kernels.candidate_loss(kind, *batch, margin=margin, temperature=temperature)
    moved = Batch(*(part.to(device) for part in batch))
    actual = gpu_kernels.candidate_loss(kind, *moved, margin=margin, temperature=temperature)
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left.cpu(), right, rtol=tolerance, atol=tolerance)


@every_kind
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_losses_and_gradients_equal_the_cpu(kind: int, temperature: float) -> None:
    assert_equals_cpu(kind, batch_of(), temperature)


@every_kind
def test_several_tiles_of_candidates_and_of_repeated_rows(kind: int) -> None:
    """A program holds at most 64 candidates at a time."""
    assert_equals_cpu(kind, batch_of(num_positives=3, num_negatives=70, seed=3))


@pytest.mark.parametrize("temperature", [0.0, 200.0])
@pytest.mark.parametrize("margin", [-400.0, 400.0])
def test_one_sided_weights_and_large_scores(temperature: float, margin: float) -> None:
    assert_equals_cpu(L1, batch_of(), temperature, margin, 5e-4)


@pytest.mark.parametrize("kind", [L1, MODULUS])
def test_a_distance_of_zero_takes_the_subgradient_zero(kind: int) -> None:
    batch = batch_of()
    batch.table[batch.candidates[0, 0].long()] = batch.queries[0]
    assert_equals_cpu(kind, batch)


def test_nan_in_a_row_gives_nan_losses_where_it_is_used() -> None:
    batch = batch_of(num_positives=3, num_negatives=2)
    batch.candidates[:] = torch.tensor([[5, 1, 2], [0, 5, 2], [0, 1, 2]])
    batch.table[5] = math.nan
    losses, _, _ = gpu_kernels.candidate_loss(L1, *batch, margin=1.0, temperature=1.0)
    assert torch.isnan(losses).tolist() == [True, True, False]


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from fkgsec.kge import gpu_kernels
types = {"order": "*i64", "starts": "*i64", "candidates": "*i32", "margin": "fp32", "temperature": "fp32"}
types |= dict.fromkeys(("K", "D", "W"), "i32")
wide = {"TILE": 16, "BLOCK_D": 256}
cases = [(gpu_kernels.slopes_of_scores, {"BLOCK": 512})]
for kernel in (gpu_kernels.score_candidates, gpu_kernels.sum_row_gradients):
    cases += [(kernel, {"KIND": kind, **wide}) for kind in range(3)]
for kernel, constants in cases:
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in kernel.arg_names}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, values)
    print(len(compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["cubin"]))
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h100(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(Path(__file__).parents[2])}
    script = tmp_path / "compile_kernels.py"
    script.write_text(COMPILE)
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 7
    assert min(map(int, done.stdout.split())) > 1000
