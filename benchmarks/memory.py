"""Peak memory of runs, compared to the estimate that rejects runs which do not fit (`fkgsec.experiments.tasks.memory`).

    python -m benchmarks.memory          # one line per setting: estimate, peak, and their ratio

The peak is that of a separate process (`ru_maxrss`), minus that of a process that loads everything and trains a minimal model.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

from fkgsec.experiments.runs.spec import make_spec
from fkgsec.experiments.tasks.memory import needed

_MIB = 2**20
_COMMON: dict[str, Any] = {"rounds": 2, "eval_every": 1, "device": "cpu"}
SETTINGS: dict[str, dict[str, Any]] = {
    "FedE, TransE, dim 1024": {"size": 60_000, "dim": 1024, "num_negatives": 16},
    "FedE, TransE, dim 256, secure sums": {"size": 60_000, "dim": 256, "num_negatives": 16, "defense": "secagg"},
    "FedE, TransE, dim 32, union and secure sums of 100": {
        "size": 30_000,
        "clients": 100,
        "dim": 32,
        "defense": "psu,secagg",
    },
    "CEFGL, GIN, width 512": {"algorithm": "cefgl", "width": 512, "size": 800},
}
_LEAST = {"kge": {"size": 300, "dim": 2, "num_negatives": 2}, "graph": {"algorithm": "cefgl", "size": 160, "width": 2}}


def peak_bytes(options: dict[str, Any]) -> int:
    """Measure the largest resident set of a training in a separate process.

    Args:
        options: of `fkgsec train`, by name.
    """
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**_COMMON, **options}.items()]
    # Every thread has its own buffers: one thread makes peaks comparable between machines.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "fkgsec.experiments.cli.main", "train", *words, "--out", folder, "--quiet"]
        process = subprocess.Popen(command, env=environment)
        # wait4 reports the resources of this child alone.
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return 1024 * used.ru_maxrss


def main() -> None:
    """Measure every setting and print it with its estimate."""
    # Interpreter, libraries and compiled code take most of a small run's memory.
    idle = {task: peak_bytes(options) for task, options in _LEAST.items()}
    for name, options in SETTINGS.items():
        spec = make_spec(None, {**_COMMON, **options})
        estimate, peak = sum(needed(spec, spec.load_graph()).values()), peak_bytes(options) - idle[spec.task]
        sizes = f"estimate {estimate / _MIB:,.0f} MiB, peak {peak / _MIB:,.0f} MiB beyond {idle[spec.task] / _MIB:,.0f}"
        print(f"{name}: {sizes}; estimate / peak {estimate / peak:.2f}", flush=True)


if __name__ == "__main__":
    main()
