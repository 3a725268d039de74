"""Make tests/golden/records.json anew: `python -m tests.golden` (all cases; names of cases: only these).

Says of every case that moved how many figures did, and which the most.
"""

import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy
import torch

from fkgsec.experiments.runs.record import vector_level
from tests.golden.cases import CASES
from tests.golden.compare import differences
from tests.golden.figures import Golden

RECORDS = Path(__file__).with_name("records.json")


def main(names: list[str]) -> None:
    """Run the cases and write the file; cases that were not named keep what they have."""
    old = json.loads(RECORDS.read_text())["cases"] if RECORDS.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        golden = Golden(Path(folder))
        cases = {}
        for case in CASES:
            if names and case.name not in names:
                cases |= {case.name: old[case.name]} if case.name in old else {}
                continue
            started = time.perf_counter()
            outcome = golden.outcome(case.name)
            cases[case.name] = {"command": case.command, "figures": outcome.figures, "digests": outcome.digests}
            moved = _moved(old.get(case.name), cases[case.name])
            print(f"{time.perf_counter() - started:6.2f} s  {case.name}{moved}", file=sys.stderr, flush=True)
    made = {
        "command": "python -m tests.golden",
        "commit": commit,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__},
        "machine": platform.machine(),
        "vectors": vector_level(),
    }
    # A line for each case, so that a difference between two versions of the file says which cases moved.
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in cases.items())
    RECORDS.write_text(f'{{"made": {json.dumps(made)},\n"cases": {{\n{lines}\n}}}}\n')


def _moved(was: dict[str, Any] | None, found: dict[str, Any]) -> str:
    """How a case differs from the file, in words; empty where every bit agrees."""
    if was is None:
        return ": new"
    moved = sorted(differences(was["figures"], found["figures"]), key=lambda one: one.size)
    if not moved:
        return "" if was["digests"] == found["digests"] else ": other bits, the same figures"
    return f": {len(moved)} figures moved; most ({moved[-1].size:.2g}): {moved[-1]}"


if __name__ == "__main__":
    main(sys.argv[1:])
