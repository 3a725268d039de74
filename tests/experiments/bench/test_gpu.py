"""The GPU's benchmark: it runs without numba, scipy and their like, goes on where it ended, and gives records at home."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from experiments.bench.gpu import cells
from experiments.bench.gpu.cells import Result, embedded_cells, read_plan, run_cells
from experiments.bench.gpu.machine import Machine
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


@pytest.mark.slow
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


class Clock:
    """A `time` whose hours strike when they are asked for: 0 for so many times, then late."""

    def __init__(self, early: int) -> None:
        self._left = early

    def monotonic(self) -> float:
        self._left -= 1
        return 0.0 if self._left >= 0 else 1e9


def test_a_cell_goes_on_where_time_was_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked before the cell, as it starts, and before each round: the second round comes too late."""
    machine = Machine("cpu", "", "", {}, None, 1, 1.0, 1.0)
    one = [embedded_cells(250)[0]]
    monkeypatch.setattr(cells, "CHECKPOINT_EVERY_S", 0.0)
    for folder, clocks in (("whole", [Clock(99)]), ("twice", [Clock(3), Clock(99)])):
        states = []
        for clock in clocks:
            monkeypatch.setattr(cells, "time", clock)
            states += [ended.state for ended in run_cells(one, tmp_path / folder, "cpu", machine, 1.0)]
        assert states == ["time is up", "finished"][-len(clocks) :]
        assert [ended.state for ended in run_cells(one, tmp_path / folder, "cpu", machine, 1.0)] == ["was finished"]
    whole, twice = (
        msgspec.json.decode((tmp_path / folder / one[0].table / one[0].name / "result.json").read_bytes(), type=Result)
        for folder in ("whole", "twice")
    )
    assert [entry.loss for entry in whole.rounds] == [entry.loss for entry in twice.rounds]
    assert whole.utility == twice.utility


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    machine = Machine("cpu", "", "", {}, None, 1, 1.0, 1.0)
    good = embedded_cells(250)[0]
    bad = msgspec.structs.replace(good, name="bad", data="nowhere-to-be-found")
    bad_option = msgspec.structs.replace(good, name="worse", options={"dim": 0})
    states = [
        ended.state for ended in run_cells([bad, bad_option, good], tmp_path, "cpu", machine, time.monotonic() + 60)
    ]
    assert "nowhere-to-be-found" in states[0]
    assert states[1:] == ["dim must be at least 1; got 0", "finished"]


def test_the_plan_is_what_the_specs_say() -> None:
    """After a change of a spec: `python -m experiments.bench.gpu.plan`."""
    plan = read_plan()
    assert plan == make_plan()
    assert plan[0].table == "zhang2024_feds_table2"
    assert len({(cell.table, cell.name) for cell in plan}) == len(plan)
    for cell in plan[::40]:
        assert cell.federation_options("cpu").draws == "philox"
