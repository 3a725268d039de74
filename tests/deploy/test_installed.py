"""Where Flower's commands are looked for, what their environment switches off, and what the app bundle holds."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest

from fkgsec.errors import RunError
from fkgsec.experiments.deploy.consortium import write_bundle
from fkgsec.experiments.deploy.flower import installed

ROOT = Path(__file__).parents[2]


def program(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_flower_is_found_where_it_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(installed.FOLDER, str(tmp_path))
    with pytest.raises(RunError, match=rf"flwr: not found in {tmp_path}; install Flower"):
        installed.command("flwr")
    found = program(tmp_path, "flwr")
    assert installed.command("flwr") == str(found)
    monkeypatch.delenv(installed.FOLDER)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    assert installed.command("flwr") == str(found)


def test_flower_tells_nobody_and_installs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(installed.FOLDER, str(program(tmp_path, "flwr").parent))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    made = installed.environment(tmp_path / "home", FKGSEC_PARTY="here")
    assert made["FLWR_TELEMETRY_ENABLED"] == "0"
    assert made["FLWR_DISABLE_UPDATE_CHECK"] == made["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert made["FLWR_HOME"] == str(tmp_path / "home")
    assert made["FKGSEC_PARTY"] == "here"


def test_the_bundle_is_small_and_needs_flower_and_the_standard_library_alone(tmp_path: Path) -> None:
    write_bundle(tmp_path / "app")
    files = [path for path in (tmp_path / "app").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".py", ".toml"}
    assert sum(path.stat().st_size for path in files) < 50_000
    described = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert described["project"]["dependencies"] == [f"flwr=={installed.VERSION}"]
    imported = set()
    for path in files:
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"flwr", "numpy", "fkgsec_relay"}


def test_the_extra_asks_for_the_version_that_is_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["flower"] == [f"flwr=={installed.VERSION}"]
