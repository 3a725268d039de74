"""Every kernel compiles to machine code of an H100, where no GPU is at hand, and needs no more registers than a thread has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kge.device.compile_kernels import CASES

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_every_kernel_compiles_for_an_h100(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kge.device.compile_kernels"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(CASES) > 35
    registers = [int(number) for number in re.findall(r"(\d+) registers", done.stdout)]
    assert len(registers) == len(lines)
    assert max(registers) <= 255
