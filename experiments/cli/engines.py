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
        help="process: all clients in this one; ray: in worker processes (--workers); flower: parties on machines of their own "
        "(--superlink)",
        rich_help_panel=PANEL,
        autocompletion=complete_from(lambda: ENGINES),
    ),
]
NumWorkers = Annotated[
    int | None,
    typer.Option("--workers", help="of --engine ray: worker processes, of one processor each", rich_help_panel=PANEL),
]
Superlink = Annotated[
    Path | None,
    typer.Option(
        "--superlink",
        metavar="SERVER",
        help="of --engine flower: the server's folder that fkgsec deploy init made, which has the SuperLink's address, its "
        "certificate, the parties' keys and what they agreed on",
        rich_help_panel=PANEL,
    ),
]


def check_engine(engine: str, workers: int | None, superlink: Path | None) -> str:
    """Return the engine's name. Raises `SpecError` for an option that is missing or belongs to another engine."""
    name = spelled("engine", engine, ENGINES)
    for option, value, its in (("workers", workers, "ray"), ("superlink", superlink, "flower")):
        if value is not None and name != its:
            raise SpecError(f"--{option} is of --engine {its}; got --engine {name}")
        if value is None and name == its:
            raise SpecError(f"--engine {its} needs --{option}")
    return name


@contextlib.contextmanager
def task_maker(workers: int | None, spec: RunSpec) -> Iterator[MakeTask | None]:
    """Run Ray's workers meanwhile and yield `execute`'s `make_task`; None without workers. Raises `SpecError`, `RunError`."""
    if workers is None:
        yield None
        return
    from fkgsec.experiments.deploy.ray import RayWorkers, check_spread, spread_over

    check_spread(spec.federation_options())
    with RayWorkers(workers) as started:
        yield spread_over(started)


def train_apart(
    folder: Path, config: Path | None, options: dict[str, Any], json: str | None, *, attack: bool, quiet: bool
) -> None:
    """Run the federation of a consortium, as `fkgsec deploy server` does.

    Args:
        folder: the server's. config, options: a spec, as for `make_spec`; without a file the rest is as agreed.

    Raises `SpecError` where the spec differs from the agreement: parties train only what they agreed on.
    """
    from fkgsec.experiments.deploy.data import DIVIDED
    from fkgsec.experiments.runs.run import read_spec

    agreed = require_triples(read_spec(folder), "--engine flower")
    requested = make_spec(None, agreed.document() | options) if config is None else make_spec(config, options)
    apart = {"device", *(DIVIDED if agreed.data == OWN_DATA else ())}
    ours, theirs = requested.document(), agreed.document()
    for name in sorted((ours.keys() | theirs.keys()) - apart):
        if ours.get(name) != theirs.get(name):
            raise SpecError(
                f"{name}: the parties agreed on {theirs.get(name)!r}; got {ours.get(name)!r}. Leave it out, or make another "
                "agreement (fkgsec deploy init)"
            )
    if attack and not agreed.attack:
        raise SpecError("attack: the parties agreed to score none; name some with fkgsec deploy init --attack")
    run_server(ServerFolder(folder), TIMEOUT_S, json, quiet=quiet)
