"""The command line without what it runs: every command's options and help, kept as data in surface.json.

    python -m experiments.cli.surface               # write surface.json anew, after a change of any option or its help

`fkgsec --help`, a mistyped option and the shell's completion are answered from it in a fraction of a second, where the commands
themselves load torch and all that stands on it. A test holds the file against the commands.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import typer
from typer.models import OptionInfo
from typer.utils import get_params_from_function

FILE = Path(__file__).with_name("surface.json")

_TYPES: dict[str, Any] = {"str": str, "int": int, "float": float, "bool": bool, "path": Path}


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """An option, or an argument where it has no flags.

    Attributes:
        kind: a key of `_TYPES`, or the words that are allowed with | between them. many: it may stand several times.
        words: what the shell offers. listed: of these, several with commas between them.
    """

    name: str
    kind: str
    flags: tuple[str, ...] = ()
    help: str = ""
    panel: str | None = None
    default: str | int | float | bool | None = None
    required: bool = False
    many: bool = False
    hidden: bool = False
    shows_default: bool = False
    metavar: str | None = None
    min: int | float | None = None
    max: int | float | None = None
    words: tuple[str, ...] = ()
    listed: bool = False


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command, or a group of them."""

    name: str
    help: str
    epilog: str | None = None
    parameters: tuple[Parameter, ...] = ()
    commands: tuple[Command, ...] | None = None


def describe(app: typer.Typer) -> tuple[Command, ...]:
    """The commands and groups of an application, as they were added, commands first."""
    found = []
    for command in app.registered_commands:
        call: Any = command.callback
        parameters = get_params_from_function(call)
        found.append(
            Command(
                command.name or call.__name__.replace("_", "-"),
                inspect.getdoc(call) or "",
                command.epilog,
                tuple(_parameter(name, one.annotation, one.default) for name, one in parameters.items()),
            )
        )
    for group in app.registered_groups:
        inner: Any = group.typer_instance
        found.append(Command(str(group.name), inner.info.help, commands=describe(inner)))
    return tuple(found)


def _parameter(name: str, annotation: Any, info: Any) -> Parameter:
    kind, many = _kind(annotation)
    default = None if info.default is ... else info.default
    complete = info.autocompletion
    words = tuple(complete("")) if complete else ()
    return Parameter(
        name,
        kind,
        _flags(name, kind, info),
        info.help or "",
        info.rich_help_panel,
        str(default) if isinstance(default, Path) else default,
        required=info.default is ...,
        many=many,
        hidden=info.hidden,
        shows_default=bool(info.show_default),
        metavar=info.metavar,
        min=info.min,
        max=info.max,
        words=words,
        listed=bool(words) and bool(complete(f"{words[0]},")),
    )


def _flags(name: str, kind: str, info: Any) -> tuple[str, ...]:
    """How an option is given, also where its name says so; nothing for an argument."""
    if not isinstance(info, OptionInfo):
        return ()
    plain = name.replace("_", "-")
    return tuple(info.param_decls or ((f"--{plain}/--no-{plain}",) if kind == "bool" else (f"--{plain}",)))


def _kind(annotation: Any) -> tuple[str, bool]:
    """The kind of a type such as `int | None` or `list[str]`, and whether it is a list."""
    inside = [one for one in getattr(annotation, "__args__", ()) if one is not type(None)]
    if getattr(annotation, "__origin__", None) is Literal:
        return "|".join(inside), False
    if getattr(annotation, "__origin__", None) is list:
        return _kind(inside[0])[0], True
    if inside:
        return _kind(inside[0])
    return next(name for name, kind in _TYPES.items() if kind is annotation), False


def add_commands(app: typer.Typer, commands: tuple[Command, ...], run: Callable[..., None]) -> None:
    """Add these commands to an application; each of them calls `run`."""
    for command in commands:
        if command.commands is not None:
            inner = typer.Typer(help=command.help, no_args_is_help=True)
            add_commands(inner, command.commands, run)
            app.add_typer(inner, name=command.name)
        else:
            app.command(command.name, epilog=command.epilog)(_caller(command, run))


def _caller(command: Command, run: Callable[..., None]) -> Callable[..., None]:
    """A function with the command's parameters in its signature, which is what typer reads."""

    def caller(**values: Any) -> None:
        run(**values)

    caller.__doc__ = command.help
    parameters = []
    for one in command.parameters:
        kind = _TYPES.get(one.kind) or Literal[tuple(one.kind.split("|"))]  # type: ignore[valid-type]
        annotation: Any = list[kind] if one.many else kind
        how: dict[str, Any] = {"help": one.help, "hidden": one.hidden, "show_default": one.shows_default}
        how |= {"metavar": one.metavar, "min": one.min, "max": one.max, "rich_help_panel": one.panel}
        how["autocompletion"] = complete_from(lambda words=one.words: words, several=one.listed) if one.words else None
        default = ... if one.required else one.default
        make = typer.Option if one.flags else typer.Argument
        parameters.append(
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=make(default, *one.flags, **how),
                annotation=annotation if one.required or default is not None else annotation | None,
            )
        )
    caller.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    caller.__annotations__ = {one.name: one.annotation for one in parameters}
    return caller


def complete_from(words: Callable[[], Any], *, several: bool = False) -> Callable[[str], list[str]]:
    """Offer the words that go on from what was typed; of `several` with commas between them, the last one's."""

    def complete(incomplete: str) -> list[str]:
        """The whole values."""
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        return [f"{before}{comma}{word}" for word in words() if word.startswith(last)]

    return complete


def read_surface() -> tuple[Command, ...]:
    """The commands as surface.json has them."""
    return msgspec.json.decode(FILE.read_bytes(), type=tuple[Command, ...])


def write_surface() -> None:
    """Write surface.json from the commands."""
    from experiments.cli.main import app  # loads everything

    FILE.write_bytes(encode(describe(app)))


def encode(commands: tuple[Command, ...]) -> bytes:
    """The content of surface.json: a line for every command and parameter."""
    return msgspec.json.encode(commands).replace(b'{"name":', b'\n{"name":') + b"\n"


if __name__ == "__main__":
    write_surface()
    sys.stdout.write(f"Written {FILE}\n")
