"""Console, warnings and one-line errors that all commands share.

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
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from fkgsec.errors import FkgsecError
from fkgsec.protocols.core.errors import ProtocolError
from fkgsec.text import printable

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print no progress, tables or verdict")]
Json = Annotated[str | None, typer.Option("--json", help="write the result as JSON here; - for standard output")]
Details = Annotated[bool, typer.Option("--details", help="print every table above the verdict")]
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
    """A console that escapes control characters: names come from users' data and could command the terminal."""

    def render_str(self, text: str, **kwargs: Any) -> Text:
        """Escape a string; those in tables pass here, too."""
        return super().render_str(printable(text, lines=True), **kwargs)


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints names and paths as they are, but for control characters: no markup, no emoji."""
    return _PlainConsole(stderr=stderr, markup=False, emoji=False)


def say(line: str) -> None:
    """Print a line to standard error, shortened and without control characters: it may quote users' data."""
    typer.echo(printable(line, MOST_LETTERS), err=True)


def print_lines(console: Console, lines: Iterable[str], style: str | None = None) -> None:
    """Print lines as they are, without wrapping or highlighting."""
    for line in lines:
        console.print(line, style=style, soft_wrap=True, highlight=False)


def expected_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Turn an expected error into one line and its exit status; anything else keeps its traceback."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (FkgsecError, ProtocolError) as error:
            say(f"fkgsec: {error}")
            raise typer.Exit(getattr(error, "exit_status", FkgsecError.exit_status)) from error
        except BrokenPipeError:
            # Otherwise the interpreter flushes once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FkgsecError.exit_status) from None
        except (OSError, MemoryError, RuntimeError) as error:
            line = _refusal(error)
            if line is None:
                raise
            say(f"fkgsec: {line}")
            raise typer.Exit(FkgsecError.exit_status) from error
        except KeyboardInterrupt:
            say("fkgsec: interrupted; a run goes on from its last checkpoint when the same command is given again")
            raise typer.Exit(INTERRUPTED) from None

    return wrapper


def _refusal(error: Exception) -> str | None:
    """Describe in a line the file or memory that the operating system refused; None for errors of another kind."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):  # torch raises RuntimeError
        reason = next(iter(str(error).splitlines()), "no more can be had")
        return f"out of memory ({reason}); take a smaller --dim or fewer data"
    return None


def complete_from(words: Callable[[], Any], *, several: bool = False) -> Callable[[str], list[str]]:
    """Offer the words that continue what was typed; with `several`, complete the last word of a comma-separated list."""

    def complete(incomplete: str) -> list[str]:
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
                say(f"fkgsec: {usage_line(error)}")
            sys.exit(error.exit_code)  # type: ignore[attr-defined]
        except typer.Abort:
            typer.echo("fkgsec: aborted", err=True)
            sys.exit(1)
        sys.exit(status if isinstance(status, int) else 0)


def _warn_in_one_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a warning without the file and line of code that raised it."""
    say(f"warning: {' '.join(str(message).split())}")


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


def _number_error(match: re.Match[str]) -> str:
    """Word a number's error as `fkgsec.arguments` does for files and Python."""
    got = f"; got {match['given']}" if match["given"] else ""
    return f"{match['name']} must be {'a whole' if match['whole'] else 'a'} number{got}"


def usage_line(error: Any) -> str:
    """Describe a usage error in one line: the message, the nearest name, and where the help is."""
    near: list[str] = []
    if possible := getattr(error, "possibilities", None):
        near = difflib.get_close_matches(error.option_name, possible, n=1)
    message = " ".join(error.message.split() if near else error.format_message().split()).rstrip(".")
    message = f"{message}; did you mean {near[0]}?" if near else message
    message = re.sub(r"\. Did you mean '([^']*)'.*\?$", r"; did you mean \1?", message)
    message = _NO_NUMBER.sub(_number_error, message)
    path = error.ctx.command_path if error.ctx is not None else "fkgsec"
    return f"{message}{'' if message.endswith('?') else '.'} See {path} --help"
