"""Folders of the gate's runs, identified by their data, options, device and training code.

run_folder(Path("runs/check"), "hospitals", spec, graph, code_digest())   # runs/check/hospitals-seed0-2f1c09a4d7e1
"""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from fkgsec.experiments.runs.compare import folder_name
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.federation.loop import run_identity

_NUMERIC = ("torch", "numpy", "numba")


def run_folder(runs: Path, name: str, spec: RunSpec, graph: Any, code: str) -> Path:
    """Return the folder of a run. Runs with different data, options, device or code have different folders.

    Args:
        runs: folder of all runs.
        name: name of the federation.
        spec: the run.
        graph: the clients' data.
        code: see `code_digest`.
    """
    key = hashlib.sha256(f"{run_identity(graph, spec.federation_options())} {spec.device} {code}".encode()).hexdigest()
    return runs / f"{folder_name(name)}-seed{spec.seed}-{key[:12]}"


def code_digest() -> str:
    """Return a digest of the code that training depends on: our sources and the numeric libraries.

    A commit would not suffice: it does not identify a working tree with changes, or an installed package.
    """
    digest = hashlib.sha256()
    root = Path(str(resources.files("fkgsec")))
    # `rglob` alone does not follow the links of a checkout.
    # Attacks and experiments change no training; attacks are repeated in each check.
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in ("attacks", "experiments")]
    for path in sorted([*root.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    versions = [f"{name} {metadata.version(name)}" for name in _NUMERIC]
    digest.update("\n".join([*versions, platform.python_version(), platform.machine()]).encode())
    return digest.hexdigest()
