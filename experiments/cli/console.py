"""What every command shares: a console, tables one below the other, and errors as one line.

Usage errors read `fkgsec: No such option: --round; did you mean --rounds? See fkgsec train --help`, exit status 2.
"""

from __future__ import annotations

import difflib
import functools
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from fkgsec.errors import FkgsecError
from fkgsec.protocols.core.errors import ProtocolError
from fkgsec.text import printable

INTERRUPTED = 130
MOST_LETTERS = 2000  # of an error or a warning
# typer brings a copy of click in some versions and imports it in others; this is the base of its errors in either.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_NO_NUMBER = re.compile(
    r"^Invalid value for '(?P<name>[^']*)'[^:]*: (?:Input should be|(?P<given>'.*') is not) a valid "
    r"(?:(?P<whole>int)\w*|number|float)\b.*$"
)
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


def complete_from(words: Callable[[], Any], *, several: bool = False) -> Callable[[str], list[str]]:
    """Offer the words that go on from what was typed; of `several` with commas between them, the last one's."""

    def complete(incomplete: str) -> list[str]:
        """The whole values."""
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{before}{comma}{word}" for word in words() if word.startswith(last)]

    return complete


class OneLineErrors(TyperGroup):
    """The group of all commands. A group without a command shows its help, as before."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **more: Any) -> Any:
        """Run a command; in a program of its own (`standalone_mode`), end with its exit status."""
        if not standalone_mode:
            return super().main(args, *rest, standalone_mode=False, **more)
        _check_streams()
        # numba says in six lines that /dev/shm cannot be written: a lock of processes that load it at once, as ours do not.
        warnings.filterwarnings("ignore", "Could not obtain multiprocessing lock")
        warnings.showwarning = _warn_in_one_line
        try:
            status = super().main(args, *rest, standalone_mode=False, **more)
        except _UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()  # type: ignore[attr-defined]
            else:
                typer.echo(printable(f"fkgsec: {usage_line(error)}", 2000), err=True)
            sys.exit(error.exit_code)  # type: ignore[attr-defined]
        except typer.Abort:
            typer.echo("fkgsec: aborted", err=True)
            sys.exit(1)
        sys.exit(status if isinstance(status, int) else 0)


def _warn_in_one_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """As the program's own warnings stand: without the file and the line of code that gave it."""
    typer.echo(printable(f"warning: {' '.join(str(message).split())}", 2000), err=True)


def _check_streams() -> None:
    """Write what the streams' encoding lacks as escapes; end the program where there is no standard output to write to."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (open as long as the program runs)
    if sys.stdout is None:
        typer.echo(
            "fkgsec: standard output is closed; redirect it, to /dev/null where nothing is wanted of it", err=True
        )
        sys.exit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _no_number(found: re.Match[str]) -> str:
    """The words that files and Python have for it, see `fkgsec.arguments`."""
    got = f"; got {found['given']}" if found["given"] else ""
    return f"{found['name']} must be {'a whole' if found['whole'] else 'a'} number{got}"


def usage_line(error: Any) -> str:
    """What is wrong with a command line, in one line: the message, the nearest name, and where the help is."""
    near: list[str] = []
    if possible := getattr(error, "possibilities", None):
        near = difflib.get_close_matches(error.option_name, possible, n=1)
    message = " ".join(error.message.split() if near else error.format_message().split()).rstrip(".")
    message = f"{message}; did you mean {near[0]}?" if near else message
    message = re.sub(r"\. Did you mean '([^']*)'.*\?$", r"; did you mean \1?", message)
    message = _NO_NUMBER.sub(_no_number, message)
    path = error.ctx.command_path if error.ctx is not None else "fkgsec"
    return f"{message}{'' if message.endswith('?') else '.'} See {path} --help"
