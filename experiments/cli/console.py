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
# Shells report 128 + signal number; SIGINT has the number 2.
INTERRUPTED = 130
MOST_LETTERS = 2000  # of an error or a warning
# Base of all usage errors. Some versions of typer contain a copy of click, others import click,
# so the class is taken from an error that typer exports in both cases.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
# Messages of click and of msgspec for a value that is not a number; `_number_error` replaces both by the wording of
# fkgsec.
_NO_NUMBER = re.compile(
    r"^Invalid value for '(?P<name>[^']*)'[^:]*: (?:Input should be|(?P<given>'.*') is not) a valid "
    r"(?:(?P<whole>int)\w*|number|float)\b.*$"
)
# torch and the operating system report a failed allocation as RuntimeError or OSError with one of these texts.
_NO_MEMORY = re.compile("can't allocate memory|out of memory|not enough memory")


class _PlainConsole(Console):
    """Console that escapes control characters: names come from users' data and could otherwise control the terminal."""

    def render_str(self, text: str, **kwargs: Any) -> Text:
        """Escape a string before it is rendered, also within tables.

        Args:
            text: may contain names from users' data; line breaks stay.
        """
        return super().render_str(printable(text, lines=True), **kwargs)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints names and paths literally: no markup, no emoji, control characters escaped.

    Args:
        stderr: write to standard error instead of standard output.
    """
    return _PlainConsole(stderr=stderr, markup=False, emoji=False)


def say(line: str) -> None:
    """Print a line to standard error.

    Args:
        line: may quote users' data, so it is cut to `MOST_LETTERS` characters and control characters are escaped.
    """
    typer.echo(printable(line, MOST_LETTERS), err=True)


def print_lines(console: Console, lines: Iterable[str], style: str | None = None) -> None:
    """Print lines without wrapping or highlighting.

    Args:
        style: a style of rich, such as `yellow`; None for plain text.
    """
    for line in lines:
        console.print(line, style=style, soft_wrap=True, highlight=False)


def expected_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command end with one line and an exit status on expected errors. Unexpected errors keep their traceback.

    Args:
        command: function of a command; it may raise `FkgsecError`, `ProtocolError` or errors of the operating system.
    """

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        """Call the command and report its errors."""
        try:
            command(*args, **kwargs)
        except (FkgsecError, ProtocolError) as error:
            say(f"fkgsec: {error}")
            raise typer.Exit(getattr(error, "exit_status", FkgsecError.exit_status)) from error
        except BrokenPipeError:
            # The reader of a pipe, such as `head`, has closed it.
            # Otherwise the interpreter flushes once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FkgsecError.exit_status) from None
        except (OSError, MemoryError, RuntimeError) as error:
            line = _refusal(error)
            # Other errors of these types are bugs, so their traceback must stay visible.
            if line is None:
                raise
            say(f"fkgsec: {line}")
            raise typer.Exit(FkgsecError.exit_status) from error
        except KeyboardInterrupt:
            say("fkgsec: interrupted; repeat the same command to resume a run from its last checkpoint")
            raise typer.Exit(INTERRUPTED) from None

    return wrapper


def _refusal(error: Exception) -> str | None:
    """Describe a refusal of the operating system, a file or memory, in one line; None for errors of another kind."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):  # torch raises RuntimeError
        reason = next(iter(str(error).splitlines()), "no memory left")
        return f"out of memory ({reason}); reduce --dim or use less data"
    return None


def complete_from(words: Callable[[], Any], *, several: bool = False) -> Callable[[str], list[str]]:
    """Return a completion function that offers the words starting with the typed text.

    Args:
        words: called at completion, so that a command that completes nothing computes no words.
        several: complete the last word of a comma-separated list.
    """

    def complete(incomplete: str) -> list[str]:
        """Return the whole option values that continue the typed text."""
        # The shell replaces the whole value, so earlier items of a list must be repeated.
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{before}{comma}{word}" for word in words() if word.startswith(last)]

    return complete


class OneLineErrors(TyperGroup):
    """Group of all commands, whose usage errors take one line. A group called without a command shows its help."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **more: Any) -> Any:
        """Run a command.

        Args:
            args: the command line without the program's name; None for that of the process.
            standalone_mode: end the process with the command's exit status; False for calls from tests and tools.
        """
        if not standalone_mode:
            return super().main(args, *rest, standalone_mode=False, **more)
        _check_streams()
        # numba warns in six lines if /dev/shm is read-only. Its lock matters only if several processes load numba at once.
        warnings.filterwarnings("ignore", "Could not obtain multiprocessing lock")
        warnings.showwarning = _warn_in_one_line
        try:
            status = super().main(args, *rest, standalone_mode=False, **more)
        except _UsageError as error:
            # This error's message is the group's help, which must not be squeezed into one line.
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
    """Prepare the output streams: escape characters that their encoding lacks; exit if standard output is closed."""
    # Python sets a stream to None if its file descriptor was closed at the start.
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (open as long as the program runs)
    if sys.stdout is None:
        typer.echo("fkgsec: standard output is closed; redirect it, for example to /dev/null", err=True)
        sys.exit(2)
    # A terminal with an ASCII locale must not crash on an entity named in another script.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _number_error(match: re.Match[str]) -> str:
    """Phrase a number's error as `fkgsec.arguments` does for files and Python."""
    got = f"; got {match['given']}" if match["given"] else ""
    return f"{match['name']} must be {'a whole' if match['whole'] else 'a'} number{got}"


def usage_line(error: Any) -> str:
    """Describe a usage error in one line: the message, the nearest name, and where the help is.

    Args:
        error: a usage error of click, with or without its context.
    """
    near: list[str] = []
    # Offer only the nearest name; click lists all candidates.
    if possible := getattr(error, "possibilities", None):
        near = difflib.get_close_matches(error.option_name, possible, n=1)
    message = " ".join(error.message.split() if near else error.format_message().split()).rstrip(".")
    message = f"{message}; did you mean {near[0]}?" if near else message
    # Commands: click adds the question itself, as a sentence of its own.
    message = re.sub(r"\. Did you mean '([^']*)'.*\?$", r"; did you mean \1?", message)
    message = _NO_NUMBER.sub(_number_error, message)
    path = error.ctx.command_path if error.ctx is not None else "fkgsec"
    return f"{message}{'' if message.endswith('?') else '.'} See {path} --help"
