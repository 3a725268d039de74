"""Runs in processes of their own: damaged records, cells that share a base run, and parents that are killed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fkgsec.errors import RunError
from fkgsec.experiments.cli.progress import unobserved
from fkgsec.experiments.papers import workers
from fkgsec.experiments.papers.document import Asked, Role
from fkgsec.experiments.papers.queue import Job
from fkgsec.experiments.papers.workers import make, run_with_bases
from fkgsec.experiments.runs.record import read_record
from fkgsec.experiments.runs.spec import Spec
from fkgsec.experiments.runs.writing import LOCK_FILE, locked
from fkgsec.federation.loop import Observer

TINY = Spec(size=300, clients=2, dim=4, num_negatives=4, batch_size=64, rounds=2, patience=0, eval_every=1)


def again(folder: Path) -> None:
    make(Job("one", TINY, folder), TINY.load_graph(), observer=Observer())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    again(folder)
    return folder


@pytest.mark.parametrize("share", [0.0, 0.999])
def test_a_record_that_is_cut_off_is_moved_aside_and_made_again(
    finished: Path, tmp_path: Path, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(finished, tmp_path / "one")
    path, first = folder / "record.json", read_record(finished / "record.json")
    whole = path.read_bytes()
    part = whole[: int(share * len(whole))]
    for name in ("record.json.damaged", "record.json.damaged1"):
        path.write_bytes(part)
        again(folder)
        record = read_record(path)
        assert record.utility == first.utility
        assert record.rounds == first.rounds  # with their seconds: from the checkpoint, not trained again
        assert (folder / name).read_bytes() == part
        assert (
            capsys.readouterr().err == f"warning: {path}: is incomplete or empty; moved to {name}, and written again\n"
        )


def test_whole_json_stays_where_it_is(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "one")
    (folder / "record.json").write_text('{"schema": "of another version"}')
    with pytest.raises(RunError, match="not a record of schema"):
        again(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in finished.iterdir())


def test_a_base_run_is_made_once_and_first_and_takes_its_cells_alone_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[list[str], int]] = []

    def run_jobs(jobs: list[Job], *, count: int, **how: Any) -> Iterator[tuple[Job, Exception | None]]:
        begun.append(([job.folder.name for job in jobs], count))
        yield from ((job, RunError("no memory") if job.folder.name == "bad" else None) for job in jobs)

    monkeypatch.setattr(workers, "run_jobs", run_jobs)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "record.json").write_text("{}")
    roles: dict[str, tuple[Role, str]] = {
        "a": ("raw", "good"),
        "b": ("raw", "good"),
        "c": ("raw", "bad"),
        "d": ("retrained", ""),
        "e": ("raw", "there"),
    }
    jobs = [
        Job(name, TINY, tmp_path / name, False, "", Asked(role=role), tmp_path / base if base else None)
        for name, (role, base) in roles.items()
    ]
    ended = {job.name: error for job, error in run_with_bases(jobs, count=2, observe=unobserved)}
    assert begun == [(["good", "bad"], 2), (["a", "b", "d", "e"], 2)]
    assert {name: str(error) if error else "" for name, error in ended.items()} == {
        "a": "", "b": "", "c": "no memory", "d": "", "e": "",
    }  # fmt: skip


LONG = """
from contextlib import nullcontext
from pathlib import Path
from fkgsec.experiments.papers.queue import Job
from fkgsec.experiments.papers.workers import run_jobs
from fkgsec.experiments.runs.spec import Spec
from fkgsec.federation.loop import Observer

spec = Spec(size=4000, clients=2, dim=64, rounds=2, local_epochs=1_000_000, patience=0)
list(run_jobs([Job("long", spec, Path("run"))], count=1, observe=lambda options, name: nullcontext(Observer())))
"""


@pytest.mark.slow
def test_a_run_ends_in_the_middle_of_a_round_when_whoever_began_it_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    parent = subprocess.Popen([sys.executable, "-c", LONG], cwd=tmp_path, env=environment)
    lock, child = tmp_path / "run" / LOCK_FILE, 0
    try:
        until = time.monotonic() + 120
        while not child and time.monotonic() < until:
            time.sleep(0.2)
            with contextlib.suppress(OSError, IndexError, ValueError):
                child = int(lock.read_text().split()[1])
        assert child not in (0, parent.pid)
        with pytest.raises(RunError, match="another process is writing here"), locked(lock.parent):
            pass
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        until = time.monotonic() + 60
        while True:
            try:
                with locked(lock.parent):
                    return
            except RunError:
                assert time.monotonic() < until, "its child trains on"
                time.sleep(0.2)
    finally:
        parent.kill()
        parent.wait()
        with contextlib.suppress(ProcessLookupError):
            if child:
                os.kill(child, signal.SIGKILL)
