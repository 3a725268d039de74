"""What every command shares: the version, usage errors of the installed program, and what the shell completes."""

import pytest
from typer.testing import CliRunner

import fkgsec
from fkgsec.experiments.cli.main import app


def completed(line: str) -> list[str]:
    """What bash is offered for the last word of a line, by the program itself."""
    words = line.split(" ")
    environment = {
        "_FKGSEC_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "COLUMNS": "80",
    }  # fmt: skip
    return CliRunner().invoke(app, [], prog_name="fkgsec", env=environment).output.split()


def test_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"fkgsec {fkgsec.__version__}\n")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fkgsec train --model ", ["transe", "rotate", "distmult", "complex", "noge", "kb-gat", "gin", "gcn", "sage"]),
        ("fkgsec train --algorithm fedl", ["fedlu"]),
        ("fkgsec attack --threat collusion+", ["collusion+entities"]),
        ("fkgsec train --defense psu,sec", ["psu,secagg"]),
        ("fkgsec train --variant ", ["paper", "published"]),
        ("fkgsec data partition --partition cl", ["clusters"]),
        ("fkgsec train --data consort", ["consortium"]),
        ("fkgsec train --device cu", ["cuda"]),
        ("fkgsec unlearn --method re", ["retrain", "relabel"]),
        ("fkgsec compare --case fedr", ["fedr"]),
        ("fkgsec tra", ["train"]),
    ],
)
def test_completion(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


@pytest.mark.parametrize("command", [[], ["data"], ["experiment"]])
def test_a_group_without_a_command_shows_its_help(command: list[str]) -> None:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "Usage: fkgsec" in done.output
