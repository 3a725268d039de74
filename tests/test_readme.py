"""The README's Python example runs as it stands, and its commands are commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from fkgsec.data.consortium import generate_consortium
from fkgsec.data.formats.folders import write_client_folders

README = (Path(__file__).parents[1] / "README.md").read_text()

BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
COMMANDS = [
    line
    for kind, block in BLOCKS
    if not kind
    for line in re.findall(r"^fkgsec .*?(?= +#|$)", block, flags=re.MULTILINE)
]


def test_the_python_example_runs(tmp_path: Path) -> None:
    (example,) = [block for kind, block in BLOCKS if kind == "python"]
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    write_client_folders(generate_consortium(clients=3, size=900, seed=2), tmp_path / "my-federation")
    (tmp_path / "example.py").write_text(example)
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figure = r"^reconstruction\.(err|trr) (collusion|identifiers) (0.5|1.0) (hospital-2|hospital-3|all): [01]\.\d+ \["
    assert len(re.findall(figure, done.stdout, re.M)) == 24
    assert len(re.findall(r"^  without what crossed in the rounds: \d\.\d+ \[", done.stdout, re.M)) >= 24
    assert re.search(r"hospital-[23] +\S+ +\S+ +\S+$", done.stdout, re.M), "no rebuilt triple was printed"


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_readme_parse(line: str) -> None:
    """With --help at the end every option of the line is parsed, and none is run."""
    words = line.split()[1:]
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_the_block_on_graphs_is_what_its_command_prints(tmp_path: Path) -> None:
    """All but the seconds."""
    command = re.search(r"`fkgsec (attack --target fedstar .*?)`", README)
    block = re.search(r"<!-- graphs -->\n```\n(.*?)```\n<!-- /graphs -->", README, flags=re.DOTALL)
    assert command is not None
    assert block is not None
    words = [*command[1].split(), "--out", str(tmp_path / "run")]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).stdout.split("\nWritten to")[0]

    def plain(text: str) -> list[str]:
        text = re.sub(r"[\d.]+( +)cpu$", r"s\1cpu", text, flags=re.MULTILINE)
        return [" ".join(line.split()) for line in text.strip().splitlines() if "─" not in line]

    assert plain(shown) == plain(block[1])
