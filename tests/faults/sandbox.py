"""A command in a container as clusters and registries run them: user 1000, no home, a file system that cannot be written.

    done = read_only([*FKGSEC, "--version"], writable=tmp_path)

Made of Linux namespaces (util-linux's `unshare`), so it needs no container runtime and no root where users may make namespaces.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FKGSEC = (sys.executable, "-m", "fkgsec.experiments.cli.main")

# Folders of their own file systems (the checkout, the interpreter) are bound to themselves, so that they can be made read-only.
_SETUP = """
set -e
mount -t tmpfs -o size={size},mode=1777 tmpfs {writable}
for place in / {read_only}; do
  mount --bind "$place" "$place" 2>/dev/null || true
  mount -o remount,bind,ro "$place"
done
cd {writable}
exec unshare --user --map-user=1000 --map-group=1000 "$@"
"""
_NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount")


@cache
def has_namespaces() -> bool:
    """Whether this machine lets us make them."""
    tried = (*_NAMESPACES, "unshare", "--user", "--map-user=1000", "true")
    try:
        return subprocess.run(tried, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def read_only(
    command: Sequence[str], writable: Path, *, size: str = "100m", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command where nothing can be written but an empty folder in memory, which is gone afterwards.

    Args:
        writable: that folder, where the command starts. size: of it. variables: of the environment, beside PATH and HOME.
    """
    if not has_namespaces():
        pytest.skip("this machine lets nobody make user and mount namespaces")
    folders = " ".join(f"'{folder}'" for folder in (ROOT, sys.prefix, sys.base_prefix))
    setup = _SETUP.format(writable=f"'{writable}'", read_only=folders, size=size)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        **variables,
    }
    whole = [*_NAMESPACES, "bash", "-c", setup, "setup", *command]
    return subprocess.run(whole, capture_output=True, text=True, env=environment, timeout=600)
