"""Commands as a user gives them, in this process, and the committed records."""

import functools
from pathlib import Path

from typer.testing import CliRunner

from fkgsec.experiments.cli.main import app
from fkgsec.experiments.papers.results import Made, read_made

RESULTS = Path(__file__).parents[2] / "results"


def fkgsec(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error; an unexpected exception is raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


@functools.cache
def committed(path: Path) -> Made | None:
    """Read a record below `RESULTS`, which takes long for all of them; None for JSON of another kind."""
    return read_made(path)
