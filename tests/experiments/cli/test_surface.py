"""The command line as data: the same as the commands themselves, and answered without loading them."""

import os
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from experiments.cli.main import app
from experiments.cli.root import make_root
from experiments.cli.surface import FILE, add_commands, describe, encode, read_surface

HEAVY = ("torch", "numpy", "scipy", "numba", "pandas", "matplotlib", "fkgsec.federation", "experiments.cli.main")
OF_GRAPHS = {"torch_geometric", "networkx", "sklearn"}


@pytest.fixture(scope="module")
def light() -> typer.Typer:
    made = make_root()
    add_commands(made, read_surface(), lambda **values: None)
    return made


def test_the_file_is_what_the_commands_are() -> None:
    assert FILE.read_bytes() == encode(describe(app)), "an option changed: run python -m experiments.cli.surface"


def test_what_is_made_from_the_file_has_the_same_commands_again(light: typer.Typer) -> None:
    assert describe(light) == describe(app)


def spelled(group: Any, path: str = "") -> dict[str, object]:
    """By command and parameter how it is given, which no help or default tells."""
    found: dict[str, object] = {}
    for name, command in group.commands.items():
        place = f"{path} {name}".strip()
        if hasattr(command, "commands"):
            found |= spelled(command, place)
            continue
        for one in command.params:
            how = [
                getattr(one, part, None)
                for part in ("opts", "secondary_opts", "nargs", "multiple", "required", "is_flag")
            ]
            found[f"{place} {one.name}"] = (one.param_type_name, *how)
    return found


def test_every_option_is_given_alike(light: typer.Typer) -> None:
    """Those that typer names, too, as it does --examples/--no-examples."""
    quick, slow = (spelled(typer.main.get_command(one)) for one in (light, app))
    assert quick == slow
    assert len(quick) > 300


@pytest.mark.parametrize("command", ["", "train", "data", "deploy init", "experiment show", "check", "report"])
def test_help_is_the_same(light: typer.Typer, command: str) -> None:
    asked = [*command.split(), "--help"]
    quick, slow = (CliRunner().invoke(one, asked, prog_name="fkgsec") for one in (light, app))
    assert quick.exit_code == slow.exit_code == 0
    assert quick.output == slow.output


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program, and on the last line of standard error what of the heavy modules it loaded."""
    code = f"""
import atexit, sys
atexit.register(lambda: print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr))
sys.argv = ["fkgsec", *{list(arguments)}]
from experiments.cli.start import main
main()
"""
    how = {"capture_output": True, "text": True, "env": {**os.environ, **environment}}
    return subprocess.run([sys.executable, "-c", code], check=False, **how)


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("--help", 0, "Usage: fkgsec"),
        ("--version", 0, "fkgsec 0."),
        ("train --help", 0, "--learning-rate"),
        ("trian", 2, "fkgsec: No such command 'trian'; did you mean train? See fkgsec --help"),
        ("train --lerning-rate 1", 2, "did you mean --learning-rate? See fkgsec train --help"),
        ("train --rounds 2.5", 2, "--rounds must be a whole number"),
    ],
)
def test_what_needs_no_command_loads_none(line: str, status: int, said: str) -> None:
    done = started(*line.split())
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fkgsec train --defense psu,sec", ["psu,secagg"]),
        ("fkgsec attack --threat collusion+", ["collusion+entities"]),
        ("fkgsec tra", ["train"]),
    ],
)
def test_completion_loads_no_command(line: str, offered: list[str]) -> None:
    words = line.split(" ")
    done = started(_FKGSEC_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), COLUMNS="80")
    assert done.stdout.split() == offered
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_command_that_is_one_is_run() -> None:
    done = started("data", "list")
    assert done.returncode == 0
    assert "FB15k-237" in done.stdout
    assert "'experiments.cli.main'" in done.stderr.splitlines()[-1]


def test_commands_do_not_wait_for_what_graphs_need() -> None:
    code = f"import experiments.cli.main, sys; print({OF_GRAPHS} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
