"""Help, usage errors, completion and `data stats` load options alone: no torch, and none of what other packages add."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "pandas", "numba", "matplotlib", "pyarrow", "requests", "fkgsec.federation.loop", "heavy_part")
OPTIONS = ("numpy", "scipy", *HEAVY)
LEASH = """
from typing import Annotated
from msgspec import Meta
from fkgsec.federation.recipes import ENTITIES, Recipe
from fkgsec.federation.settings import AlgorithmSettings
from fkgsec.kge.local.objectives import OBJECTIVES
from fkgsec.kge.local.rule import LocalRule, WeightedObjective

class LeashSettings(AlgorithmSettings, frozen=True):
    leash: Annotated[float, Meta(ge=0, description="weight of the distance")] = 1.0

class Leash(LocalRule):
    def objective(self):
        return WeightedObjective(OBJECTIVES["squared"], self.settings.leash)

LEASH = Recipe("leash", ENTITIES, "this test", LeashSettings, local=Leash)
"""


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program, and on the last line of standard error which of `OPTIONS` it loaded."""
    code = f"""
import atexit, sys
atexit.register(lambda: print([name for name in {OPTIONS} if name in sys.modules], file=sys.stderr))
sys.argv = ["fkgsec", *{list(arguments)}]
from fkgsec.experiments.cli.main import main
main()
"""
    how = {"capture_output": True, "text": True, "env": {**os.environ, **environment}}
    return subprocess.run([sys.executable, "-c", code], check=False, **how)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with an installed package: parts in a module that loads torch, and an algorithm in one that does not."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "heavy_part.py").write_text("import torch\nPART = torch\n")
    (folder / "leash.py").write_text(LEASH)
    installed = folder / "heavy-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: heavy\nVersion: 1.0\n")
    kinds = ("attacks", "models", "encoders", "tasks", "codecs", "aggregations")
    points = "".join(f"[fkgsec.{kind}]\nheavy = heavy_part:PART\n" for kind in kinds)
    points += "[fkgsec.recipes]\nleash = leash:LEASH\n"
    (installed / "entry_points.txt").write_text(points)
    return str(folder)


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("--help", 0, "Usage: fkgsec"),
        ("--version", 0, "fkgsec 0."),
        ("train --help", 0, "--algorithm"),
        ("attack --help", 0, "--no-single"),
        ("train --help-all", 0, "--learning-rate"),
        ("check --help", 0, "--inconclusive"),
        ("trian", 2, "fkgsec: No such command 'trian'; did you mean train? See fkgsec --help"),
        ("attack --attack edges,membrship", 2, "got 'membrship'; did you mean membership?"),
        ("train --lerning-rate 1", 2, "did you mean --learning-rate? See fkgsec train --help"),
        ("deploy init --rounds 2.5", 2, "--rounds must be a whole number"),
        ("train --algorithm fedx", 2, "algorithm must be one of"),
    ],
)
def test_options_alone_are_loaded(line: str, status: int, said: str, plugin: str) -> None:
    done = started(*line.split(), PYTHONPATH=plugin)
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


def test_names_of_other_packages_are_offered_before_their_parts_are_loaded(plugin: str) -> None:
    done = started("train", "--help-all", PYTHONPATH=plugin, COLUMNS="200")
    shown = " ".join(done.stdout.split())
    assert "complex, heavy, noge" in shown
    assert "weight of the distance (leash: 1.0)" in shown


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fkgsec train --defense psu,sec", ["psu,secagg"]),
        ("fkgsec attack --threat collusion+", ["collusion+entities"]),
        ("fkgsec tra", ["train"]),
    ],
)
def test_completion_loads_options_alone(line: str, offered: list[str]) -> None:
    words = line.split(" ")
    done = started(_FKGSEC_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), COLUMNS="80")
    assert done.stdout.split() == offered
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_file_is_described_without_torch(tmp_path: Path) -> None:
    rows = "".join(f"e{number % 7}\tr{number % 2}\te{number % 11}\n" for number in range(60))
    (tmp_path / "triples.tsv").write_text("head\trelation\ttail\n" + rows)
    done = started("data", "stats", "--data", str(tmp_path / "triples.tsv"))
    assert done.returncode == 0
    assert "distinct triples" in done.stdout
    assert done.stderr.splitlines()[-1] == "['numpy', 'scipy']"
