"""The `--engine` options of `fkgsec train` and `fkgsec attack`: this process, worker processes of Ray, or parties over Flower."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.console import complete_from
from fkgsec.experiments.deploy import TIMEOUT_S
from fkgsec.experiments.deploy.cli import OWN_DATA, run_server
from fkgsec.experiments.deploy.layout import ServerFolder
from fkgsec.experiments.runs.choices import spelled
from fkgsec.experiments.runs.spec import make_spec, require_triples
from fkgsec.experiments.tasks.spec import RunSpec

if TYPE_CHECKING:
    from fkgsec.federation.task import MakeTask

ENGINES = ("process", "ray", "flower")
PANEL = "Engine"
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        help="process: all clients in this process; ray: in worker processes (--workers); flower: each party on its own machine "
        "(--superlink)",
        rich_help_panel=PANEL,
        autocompletion=complete_from(lambda: ENGINES),
    ),
]
NumWorkers = Annotated[
    int | None,
    typer.Option(
        "--workers", help="for --engine ray: number of worker processes, one processor each", rich_help_panel=PANEL
    ),
]
Superlink = Annotated[
    Path | None,
    typer.Option(
        "--superlink",
        metavar="SERVER",
        help="for --engine flower: the server's folder, made by fkgsec deploy init, with the SuperLink's address, its "
        "certificate, the parties' keys and their agreement",
        rich_help_panel=PANEL,
    ),
]


def check_engine(engine: str, workers: int | None, superlink: Path | None) -> str:
    """Return the engine's name.

    Args:
        engine: a name in `ENGINES`; spelling is corrected or reported.
        workers: value of `--workers`, which belongs to the engine `ray`.
        superlink: value of `--superlink`, which belongs to the engine `flower`.

    Raises:
        SpecError: an option is missing or belongs to another engine.
    """
    name = spelled("engine", engine, ENGINES)
    for option, value, needed_by in (("workers", workers, "ray"), ("superlink", superlink, "flower")):
        if value is not None and name != needed_by:
            raise SpecError(f"--{option} applies to --engine {needed_by} only; got --engine {name}")
        if value is None and name == needed_by:
            raise SpecError(f"--engine {needed_by} needs --{option}")
    return name


@contextlib.contextmanager
def task_maker(workers: int | None, spec: RunSpec) -> Iterator[MakeTask | None]:
    """Start Ray's workers for the duration of the context and yield the `make_task` of `execute`; None without workers.

    Args:
        workers: number of worker processes; None trains in this process.
        spec: checked before workers start, because some algorithms cannot be spread.

    Raises:
        SpecError: the algorithm cannot train in several processes.
        RunError: Ray does not start.
    """
    if workers is None:
        yield None
        return
    # Ray is an optional dependency and slow to import.
    from fkgsec.experiments.deploy.ray import RayWorkers, check_spread, spread_over

    check_spread(spec.federation_options())
    with RayWorkers(workers) as started:
        yield spread_over(started)


def train_apart(
    folder: Path, config: Path | None, options: dict[str, Any], json: str | None, *, attack: bool, quiet: bool
) -> None:
    """Run the federation of a consortium, as `fkgsec deploy server` does.

    Args:
        folder: the server's folder.
        config: file with options; None keeps the agreed options.
        options: options of the command line, which override those of the file.
        json: where to write a copy of the record.
        attack: whether attacks are expected.
        quiet: print no progress.

    Raises:
        SpecError: the spec differs from the agreement. Parties train only what they agreed on.
    """
    from fkgsec.experiments.deploy.data import DIVIDED
    from fkgsec.experiments.runs.run import read_spec

    agreed = require_triples(read_spec(folder), "--engine flower")
    requested = make_spec(None, agreed.document() | options) if config is None else make_spec(config, options)
    # Each party chooses its own device and, if it brings its own data, how they were divided.
    apart = {"device", *(DIVIDED if agreed.data == OWN_DATA else ())}
    ours, theirs = requested.document(), agreed.document()
    for name in sorted((ours.keys() | theirs.keys()) - apart):
        if ours.get(name) != theirs.get(name):
            raise SpecError(
                f"{name}: the parties agreed on {theirs.get(name)!r}; got {ours.get(name)!r}. Leave it out, or make another "
                "agreement (fkgsec deploy init)"
            )
    if attack and not agreed.attack:
        raise SpecError("attack: the parties agreed on no attack; name attacks with fkgsec deploy init --attack")
    run_server(ServerFolder(folder), TIMEOUT_S, json, quiet=quiet)
