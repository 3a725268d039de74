"""Imports point down: experiments -> attacks, defenses -> fkgsec; defenses -> protocols; protocols -> nothing of ours.
They form no cycle, also inside functions and under TYPE_CHECKING.

Three modules are for all: `fkgsec.protocols.core.rounds`, which says how two sides of a round talk and knows nothing else, so
that rounds of fkgsec and those of the protocols inside them have one driver, `fkgsec.protocols.core.compiled`, which says where
machine code is kept, and `fkgsec.protocols.noise.guarantee`, what a run states of its noise. They cannot lie in fkgsec, whose
import loads torch.
"""

import ast
import graphlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("attacks", "defenses", "experiments", "protocols")
"""Linked into fkgsec/, so that an installation has one top-level name."""
ALLOWED = {
    "experiments": {"experiments", "attacks", "defenses", "protocols", "fkgsec"},
    "attacks": {"attacks", "fkgsec"},
    "defenses": {"defenses", "fkgsec", "protocols"},
    "fkgsec": {"fkgsec"},
    "protocols": {"protocols"},
}


FOR_ALL = {
    "fkgsec.protocols.core.rounds": ("torch", "numpy", "cryptography"),
    "fkgsec.protocols.core.compiled": ("torch", "cryptography"),
    "fkgsec.protocols.noise.guarantee": ("torch", "numpy", "cryptography"),
}
"""Each with packages whose import it must not cause."""


def package_of(module: str) -> str:
    """The folder of a module: `attacks` of `fkgsec.attacks.view`, `fkgsec` of `fkgsec.kge.models`."""
    first, _, rest = module.partition(".")
    folder = rest.partition(".")[0]
    return folder if first == "fkgsec" and folder in FOLDERS else first


def imported_packages(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {package_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: relative import"
            assert node.level == 0, f"{path}: relative import"
            if node.module not in FOR_ALL:
                names |= {package_of(f"{node.module}.{alias.name}") for alias in node.names}
    return names


@pytest.mark.parametrize("name", FOR_ALL)
def test_what_is_for_all_stands_on_nothing(name: str) -> None:
    found = ast.walk(ast.parse((ROOT / f"{name.removeprefix('fkgsec.').replace('.', '/')}.py").read_text()))
    modules = {node.module for node in found if isinstance(node, ast.ImportFrom)}
    assert {module for module in modules if module and package_of(module) == "protocols"} <= {
        "fkgsec.protocols.core.errors"
    }
    code = f"import sys, {name}; print([name for name in {FOR_ALL[name]} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_only_point_down(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        if path == ROOT / "fkgsec/__init__.py":
            continue  # the public names of all packages
        wrong = imported_packages(path) & (set(ALLOWED) - ALLOWED[package])
        assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


def imported_modules(root: Path, packages: Iterable[str]) -> dict[str, set[str]]:
    """By module the modules of these packages that it imports: in its body, in functions, and for types alone."""
    paths = {}
    for package in packages:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            if package in FOLDERS:
                parts = ("fkgsec", *parts)
            paths[".".join(parts).removesuffix(".__init__")] = path
    found: dict[str, set[str]] = {module: set() for module in paths}
    for module, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found[module] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = (f"{node.module}.{alias.name}" for alias in node.names)
                found[module] |= {name if name in paths else str(node.module) for name in names}
    return {module: imported & paths.keys() - {module} for module, imported in found.items()}


def test_imports_form_no_cycle() -> None:
    imported = imported_modules(ROOT, ALLOWED)
    graphlib.TopologicalSorter(imported).prepare()  # the error lists the modules of a cycle


@pytest.mark.parametrize("text", ["{}", "def f():\n    {}", "if TYPE_CHECKING:\n    {}"])
def test_a_cycle_of_any_kind_would_be_noticed(tmp_path: Path, text: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").touch()
    (tmp_path / "package/low.py").write_text(text.format("from package.high import Value"))
    (tmp_path / "package/high.py").write_text("from package import low")
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(imported_modules(tmp_path, ["package"])).prepare()


def test_protocols_know_nothing_of_torch() -> None:
    for path in (ROOT / "protocols").rglob("*.py"):
        assert "torch" not in imported_packages(path)


def test_the_check_would_notice(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from fkgsec.experiments.cli.main import app\n")
    assert "experiments" in imported_packages(bad)


def test_options_load_nothing_heavy() -> None:
    modules = (
        "fkgsec.algorithms.settings, fkgsec.algorithms.graphs.settings, fkgsec.kge.options, fkgsec.gnn.options, "
        "fkgsec.attacks.options, "
        "fkgsec.defenses.options, fkgsec.unlearning.options, fkgsec.experiments.unlearning.options, "
        "fkgsec.experiments.tasks.kge, "
        "fkgsec.experiments.tasks.graph"
    )
    heavy = ("torch", "numpy", "numba", "pandas", "scipy", "sklearn", "matplotlib", "cryptography", "typer")
    code = f"import sys, {modules}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
@pytest.mark.parametrize("module", ["fkgsec.kge.kernels", "fkgsec.experiments.runs.run"])
def test_torch_is_loaded_when_it_is_settled_how_long_threads_spin(
    module: str, given: dict[str, str], spins: str
) -> None:
    """`fkgsec.experiments.runs.run` is what commands import when they run."""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    code = f"""
import os, sys
class Look:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)  # what is loaded after it is of no interest, and slow
sys.meta_path.insert(0, Look)
import {module}
"""
    done = subprocess.run([sys.executable, "-c", code], env=clean | given, capture_output=True, text=True, check=True)
    assert done.stdout == f"{spins}\n"
