"""The process that compiles the CPU loops gives the same bits as those that load them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import hashlib
import torch
from fkgsec.kge import cpu_kernels, kernels, kinds

random = torch.Generator().manual_seed(0)
queries, rows = torch.randn(8, 128, generator=random), torch.randn(500, 128, generator=random)
candidates = torch.randint(0, 500, (8, 33), generator=random, dtype=torch.int32)
digest = hashlib.sha256()
for kind in (kinds.L1, kinds.MODULUS, kinds.DOT):
    digest.update(kernels.similarity_matrix(kind, queries, rows).numpy().tobytes())
    weights = torch.full((8,), 0.1)
    for values in kernels.candidate_loss(kind, queries, rows, candidates, weights, margin=10.0, temperature=1.0):
        digest.update(values.numpy().tobytes())
loops = (
    cpu_kernels.similarity_matrix,
    cpu_kernels.order_candidates,
    cpu_kernels.candidate_scores,
    cpu_kernels.weigh_candidates,
    cpu_kernels.candidate_gradients,
    cpu_kernels.l1_gradients,
)
print(digest.hexdigest(), sum(sum(loop.stats.cache_misses.values()) for loop in loops))
"""


@pytest.mark.slow
def test_a_cold_cache_gives_the_same_bits_as_a_warm_one(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout.endswith(" 0\n"), "a process compiled a loop itself; run_each must cover its types"
