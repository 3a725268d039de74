"""What every command shares: a console, tables one below the other, and expected errors as one line."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fkgsec.errors import FkgsecError
from fkgsec.text import printable
from protocols.core.errors import ProtocolError

INTERRUPTED = 130
MOST_LETTERS = 2000  # of an error or a warning
_NO_MEMORY = re.compile("can't allocate memory|out of memory|not enough memory")


class _PlainConsole(Console):
    """Escapes control characters in what it is given: names come from somebody's data, and would command the terminal."""

    def render_str(self, text: str, **kwargs: Any) -> Text:
        """All strings pass here, those in tables too."""
        return super().render_str(printable(text, lines=True), **kwargs)


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints names and paths as they are, but for control characters: no markup, no emoji."""
    return _PlainConsole(stderr=stderr, markup=False, emoji=False)


def say(line: str) -> None:
    """A line on standard error, without control characters and not at length: it quotes what somebody gave."""
    typer.echo(printable(line, MOST_LETTERS), err=True)


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
            say(f"fkgsec: {error}")
            raise typer.Exit(getattr(error, "exit_status", FkgsecError.exit_status)) from error
        except BrokenPipeError:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # or the interpreter flushes once more at its end
            raise typer.Exit(FkgsecError.exit_status) from None
        except (OSError, MemoryError, RuntimeError) as error:
            line = _refusal(error)
            if line is None:
                raise
            say(f"fkgsec: {line}")
            raise typer.Exit(FkgsecError.exit_status) from error
        except KeyboardInterrupt:
            typer.echo(
                "fkgsec: interrupted; a run goes on from its last checkpoint when the same command is given again",
                err=True,
            )
            raise typer.Exit(INTERRUPTED) from None

    return wrapper


def _refusal(error: Exception) -> str | None:
    """What the operating system refused, in a line: a file, or memory; None for errors that are of another kind."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):  # torch raises RuntimeError
        said = next(iter(str(error).splitlines()), "no more can be had")
        return f"out of memory ({said}); take a smaller --dim or fewer data"
    return None
