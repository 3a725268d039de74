"""Imports point down: experiments -> attacks, defenses -> fkgsec; defenses -> protocols; protocols -> nothing of ours."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "experiments": {"experiments", "attacks", "defenses", "protocols", "fkgsec"},
    "attacks": {"attacks", "fkgsec"},
    "defenses": {"defenses", "fkgsec", "protocols"},
    "fkgsec": {"fkgsec"},
    "protocols": {"protocols"},
}


def imported_packages(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_only_point_down(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        wrong = imported_packages(path) & (set(ALLOWED) - ALLOWED[package])
        assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


def test_protocols_know_nothing_of_torch() -> None:
    for path in (ROOT / "protocols").rglob("*.py"):
        assert "torch" not in imported_packages(path)


def test_the_check_would_notice(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from experiments.cli import app\n")
    assert "experiments" in imported_packages(bad)
