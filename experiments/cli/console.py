"""What every command shares: a console, tables one below the other, and expected errors as one line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from fkgsec.errors import FkgsecError
from protocols.core.errors import ProtocolError

INTERRUPTED = 130


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints names and paths as they are: no markup, no emoji."""
    return Console(stderr=stderr, markup=False, emoji=False)


def print_tables(console: Console, shown: Iterable[Table]) -> None:
    """Tables with an empty line after each."""
    for table in shown:
        console.print(table)
        console.print()


def expected_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn an expected error into one line and its exit status; anything else keeps its traceback."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        """The command, with expected errors caught."""
        try:
            command(*args, **kwargs)
        except (FkgsecError, ProtocolError) as error:
            typer.echo(f"fkgsec: {error}", err=True)
            raise typer.Exit(getattr(error, "exit_status", FkgsecError.exit_status)) from error
        except KeyboardInterrupt:
            typer.echo(
                "fkgsec: interrupted; a run goes on from its last checkpoint when the same command is given again",
                err=True,
            )
            raise typer.Exit(INTERRUPTED) from None

    return wrapper
