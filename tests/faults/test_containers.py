"""Commands run in a hardened container: user 1000, a read-only file system, a home that is not there."""

import sys
from pathlib import Path

import pytest

from tests.faults.sandbox import FKGSEC, ROOT, read_only

CACHES = """
import warnings; warnings.simplefilter("error")
from fkgsec.protocols.noise import sampling  # the kernels have the same decorator, but load torch
print(sampling._propose.stats.cache_path)
"""


def test_the_file_system_of_the_trial_cannot_be_written(tmp_path: Path) -> None:
    for place in (ROOT, ROOT / "fkgsec" / "kge", Path("/usr"), Path(sys.prefix)):
        done = read_only(["touch", str(place / "written")], tmp_path)
        assert done.returncode == 1
        assert "Read-only file system" in done.stderr
    assert read_only(["sh", "-c", "id -u; touch here"], tmp_path).stdout == "1000\n"


def test_machine_code_is_kept_below_the_temporary_folder_where_nothing_else_can_be_written(tmp_path: Path) -> None:
    done = read_only([sys.executable, "-c", CACHES], tmp_path, TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "fkgsec-numba-1000")


def test_the_folder_that_a_user_names_is_taken_first(tmp_path: Path) -> None:
    done = read_only([sys.executable, "-c", CACHES], tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "mine"))
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "mine")


@pytest.mark.slow
def test_the_demo_runs(tmp_path: Path) -> None:
    command = [*FKGSEC, "attack", "--size", "900", "--rounds", "2", "--dim", "8", "--out", "run", "--quiet"]
    listed = f"{' '.join(command)} && ls run && ls -d fkgsec-numba-*"
    done = read_only(["sh", "-c", listed], tmp_path, TMPDIR=str(tmp_path), MPLCONFIGDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert {"record.json", "picture.png", "scores.parquet", "fkgsec-numba-1000"} <= set(done.stdout.split())
