"""Flower's commands, and the environment in which they report nothing and install nothing.

    subprocess.run([command("flwr"), "run", str(app), "deploy"], env=environment(folder / "flower"))

Flower may be installed beside fkgsec (extra `flower`) or in an environment of its own, whose folder of commands `FKGSEC_FLOWER`
names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from fkgsec.errors import RunError
from fkgsec.experiments.runs.writing import write_atomically

VERSION = "1.41.0"
FOLDER = "FKGSEC_FLOWER"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
}
"""No telemetry, no update checks, no packages installed by an app; polling every quarter of a second instead of every second."""


def command(name: str) -> str:
    """Find a command of Flower.

    Args:
        name: such as `flower-superlink`.

    Raises:
        RunError: it is not installed.
    """
    folder = os.environ.get(FOLDER)
    for place in [folder] if folder else [str(Path(sys.executable).parent), os.environ.get("PATH")]:
        if place and (path := shutil.which(name, path=place)):
            return path
    where = f" in {folder}" if folder else ""
    raise RunError(
        f"{name}: not found{where}; install Flower (pip install flwr=={VERSION}), or name the folder of its commands in {FOLDER}"
    )


def interpreter() -> str:
    """Find the Python with Flower's packages. Raises `RunError`."""
    return command("python") if os.environ.get(FOLDER) else sys.executable


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a Flower process with its files in `home`.

    Args:
        more: further variables.
    """
    folder = Path(command("flwr")).parent
    # Flower starts its other commands by name, so they must be on the path.
    path = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
    return {**os.environ, **QUIET, "FLWR_HOME": str(home.absolute()), "PATH": path, **more}


def complaint(done: subprocess.CompletedProcess[str]) -> str | None:
    """Extract the error of a Flower command as one line, without its box; None if it succeeded.

    Args:
        done: the finished command.
    """
    if done.returncode == 0:
        return None
    # Flower prints errors in a box of line-drawing characters.
    inside = (line.strip("│ ") for line in done.stderr.splitlines() if not line.startswith(("╭", "╰")))
    return " ".join(line for line in inside if line) or f"it ended with exit status {done.returncode}"


def configure(home: Path, connection: str, address: str, authority: Path) -> None:
    """Configure the SuperLink of Flower's commands, with absolute paths.

    Args:
        home: Flower's folder. connection: name of the SuperLink. address: host and port.
        authority: certificate that it is verified with.

    Raises:
        RunError: the file cannot be written.
    """
    trusted = json.dumps(str(authority.absolute()), ensure_ascii=False)
    lines = ["[superlink]", f'default = "{connection}"', f"[superlink.{connection}]", f'address = "{address}"']
    write_atomically(home / "config.toml", "\n".join([*lines, f"root-certificates = {trusted}", ""]).encode())
