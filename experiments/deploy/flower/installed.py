"""Flower's own commands: where they are, and the environment in which they tell nobody outside and install nothing.

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
"""No events to Flower's makers, no question for newer versions, no packages installed by an app; a quarter of a second between
two looks for work where the default is a whole one."""


def command(name: str) -> str:
    """The path of one of Flower's commands, such as `flower-superlink`. Raises `RunError` where it is not installed."""
    places = (
        [named] if (named := os.environ.get(FOLDER)) else [str(Path(sys.executable).parent), os.environ.get("PATH")]
    )
    for place in places:
        if place and (found := shutil.which(name, path=place)):
            return found
    raise RunError(
        f"{name}: not found{f' in {named}' if named else ''}; install Flower (pip install flwr=={VERSION}), or name the folder "
        f"of its commands in {FOLDER}"
    )


def interpreter() -> str:
    """The Python that has Flower's packages. Raises `RunError` where there is none."""
    return command("python") if os.environ.get(FOLDER) else sys.executable


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a Flower process whose files go to `home`."""
    found = Path(command("flwr")).parent
    path = os.pathsep.join([str(found), os.environ.get("PATH", os.defpath)])  # Flower starts its other commands by name
    return {**os.environ, **QUIET, "FLWR_HOME": str(home.absolute()), "PATH": path, **more}


def complaint(done: subprocess.CompletedProcess[str]) -> str | None:
    """What one of Flower's commands says is wrong, in a line, without the box around it; None where it succeeded."""
    if done.returncode == 0:
        return None
    inside = (line.strip("│ ") for line in done.stderr.splitlines() if not line.startswith(("╭", "╰")))
    return " ".join(line for line in inside if line) or f"it ended with exit status {done.returncode}"


def configure(home: Path, connection: str, address: str, authority: Path) -> None:
    """Write which SuperLink Flower's commands speak to, with whole paths, wherever the folder is now.

    Raises `RunError`.
    """
    trusted = json.dumps(str(authority.absolute()), ensure_ascii=False)
    lines = ["[superlink]", f'default = "{connection}"', f"[superlink.{connection}]", f'address = "{address}"']
    write_atomically(home / "config.toml", "\n".join([*lines, f"root-certificates = {trusted}", ""]).encode())
