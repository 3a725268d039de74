"""Commands as a user gives them, in this process."""

from typer.testing import CliRunner

from fkgsec.experiments.cli.main import app


def fkgsec(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error; an unexpected exception is raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr
