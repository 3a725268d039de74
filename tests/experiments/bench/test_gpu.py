"""The GPU's benchmark: it runs without numba, scipy and their like, goes on where it ended, and gives records at home."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from experiments.bench.gpu.cells import Result, read_plan
from experiments.bench.gpu.plan import make_plan
from experiments.bench.gpu.records import make_records
from experiments.bench.gpu.speed import TRIED, Speed
from experiments.runs.record import read_record

ROOT = Path(__file__).parents[3]
NOT_THERE = (
    "numba",
    "llvmlite",
    "scipy",
    "sklearn",
    "pandas",
    "matplotlib",
    "networkx",
    "torch_geometric",
    "opacus",
    "requests",
)
BARE = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({NOT_THERE}))  # importing them fails, and nobody finds them
sys.argv = ["gpu", *sys.argv[1:]]
runpy.run_module("experiments.bench.gpu", run_name="__main__")
"""


def run_bare(out: Path) -> str:
    """The benchmark on the CPU as a machine runs it that has nothing but what it asks for."""
    given = ["--device", "cpu", "--minutes", "3", "--triples", "250", "--out", str(out)]
    done = subprocess.run([sys.executable, "-c", BARE, *given], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_runs_on_a_bare_machine_and_its_records_are_made_at_home(tmp_path: Path) -> None:
    printed = run_bare(tmp_path)
    assert "3 of 3 cells are finished" in printed
    speeds = msgspec.json.decode((tmp_path / "speed.json").read_bytes(), type=list[Speed])
    assert [speed.name for speed in speeds if not speed.error] == list(TRIED)
    assert all(min(speed.training, speed.validation, speed.triples, speed.roofline) > 0 for speed in speeds)
    assert "numba is not installed" in "".join(speeds[0].notes)
    results = {
        path.parent.name: msgspec.json.decode(path.read_bytes(), type=Result) for path in tmp_path.rglob("result.json")
    }
    for path in make_records(tmp_path):
        record, result = read_record(path), results[path.parent.name]
        assert record.rounds == result.rounds
        assert record.valid == pytest.approx(result.valid, abs=1e-6)
        assert record.utility["mrr"].value == pytest.approx(result.utility["mrr"].value, abs=1e-3)
        assert record.spec.draws == "philox"
    assert len(results) == 3


def test_the_plan_is_what_the_specs_say() -> None:
    """After a change of a spec: `python -m experiments.bench.gpu.plan`."""
    plan = read_plan()
    assert plan == make_plan()
    assert plan[0].table == "zhang2024_feds_table2"
    assert len({(cell.table, cell.name) for cell in plan}) == len(plan)
    for cell in plan[::40]:
        assert cell.federation_options("cpu").draws == "philox"
