"""Machine code is kept in folders of the user's own alone, and compiled without one where there is none."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fkgsec.protocols.core.compiled import compiled, own_temporary_folder

NAME = f"fkgsec-numba-{os.getuid()}"


@compiled()
def doubled(value):
    return 2 * value


def test_what_is_decorated_is_compiled_and_kept() -> None:
    assert doubled(21) == 42
    assert doubled.stats.cache_path is not None


def test_the_temporary_folder_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert own_temporary_folder() == tmp_path / NAME
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o700
    assert own_temporary_folder() == tmp_path / NAME  # the next process finds it


@pytest.mark.parametrize("kind", ["readable by others", "a link", "a file", "foreign", "nowhere"])
def test_a_folder_of_anybody_elses_is_not_used(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none" if kind == "nowhere" else tmp_path))
    place = tmp_path / NAME
    if kind == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "theirs")
    elif kind == "a file":
        place.touch()
    elif kind != "nowhere":
        place.mkdir(mode=0o755 if kind == "readable by others" else 0o700)
    if kind == "foreign":
        if os.getuid():
            pytest.skip("only root can give a folder away")
        os.chown(place, 1000, 1000)
    assert own_temporary_folder() is None


def test_without_any_folder_loops_are_compiled_and_the_line_names_the_variable(tmp_path: Path) -> None:
    """numba is told of a folder of whose kind there can be none, and the user's temporary one is a file."""
    (tmp_path / NAME).touch()
    code = f"""
import tempfile, warnings; tempfile.tempdir = {str(tmp_path)!r}
import numba; numba.config.CACHE_LOCATOR_CLASSES = "IPythonCacheLocator"
from fkgsec.kge import cpu_kernels
import numpy as np
assert cpu_kernels.candidate_gradients.stats.cache_path is None
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    cpu_kernels.compile_once()
print(told[0].message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "NUMBA_CACHE_DIR" in done.stdout
