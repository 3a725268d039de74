"""The machine that a benchmark ran on, and its floor: bytes copied and operations done in a second, both measured.

machine = measure_machine(torch.device("cuda"))
machine.bandwidth, machine.peak
"""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import msgspec
import torch

import fkgsec

PACKAGES = ("torch", "triton", "numpy", "numba", "msgspec", "safetensors")


class Machine(msgspec.Struct, frozen=True):
    """Where figures were measured.

    Attributes:
        device: the GPU's name, or "cpu". commit: of the checkout; None outside one.
        bandwidth: bytes per second of a copy, read and written. peak: operations per second of a float32 matrix product.
    """

    device: str
    platform: str
    python: str
    versions: dict[str, str]
    commit: str | None
    threads: int
    bandwidth: float
    peak: float


def measure_machine(device: torch.device) -> Machine:
    """Its name, versions and floor. On the CPU arrays are small enough for a test."""
    there = device.type == "cuda"
    source = torch.ones(2**28 if there else 2**22, device=device)
    target, x = torch.empty_like(source), torch.randn(8192 if there else 512, 8192 if there else 512, device=device)
    return Machine(
        device=torch.cuda.get_device_name(device) if there else "cpu",
        platform=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        versions={"fkgsec": fkgsec.__version__}
        | {name: metadata.version(name) for name in PACKAGES if _is_there(name)},
        commit=_commit(),
        threads=torch.get_num_threads(),
        bandwidth=2 * source.nbytes / seconds_of(lambda: target.copy_(source), device, repeats=5),
        peak=2 * len(x) ** 3 / seconds_of(lambda: x @ x, device, repeats=5),
    )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


def _commit() -> str | None:
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def seconds_of(work: Callable[[], object], device: torch.device, *, repeats: int) -> float:
    """Of the fastest of so many runs, after one that is not counted; the device is waited for."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times[1:])
