"""The process that compiles the CPU loops gives the same bits as those that load them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
kernels.mask_known(candidates, torch.zeros(8, dtype=torch.int64), torch.tensor([0, 2]), torch.tensor([3, 5]).int())
digest.update(kernels.count_competitors(queries @ rows.T, queries[:, 0])[0].numpy().tobytes())
loops = [loop for loop in vars(cpu_kernels).values() if hasattr(loop, "stats")]
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


def test_processes_that_start_together_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later ones wait until the first has written its stamp."""
    from fkgsec.kge import cpu_kernels  # needs numba, which a machine of GPU tests may lack

    started: list[str] = []

    def compile_slowly(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(command[-1])
        time.sleep(0.2)
        return subprocess.CompletedProcess(command, 0)

    loop = SimpleNamespace(stats=SimpleNamespace(cache_path=str(tmp_path)))
    monkeypatch.setattr(cpu_kernels, "candidate_gradients", loop)
    monkeypatch.setattr(subprocess, "run", compile_slowly)
    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(cpu_kernels.compile_once) for _ in range(3)]:
            done.result()
    assert len(started) == 1
