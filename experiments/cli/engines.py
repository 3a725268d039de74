"""Where `fkgsec train` and `fkgsec attack` train: in this process, in worker processes of Ray, or apart, over Flower."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.console import complete_from
from fkgsec.experiments.deploy import TIMEOUT_S
from fkgsec.experiments.deploy.cli import OWN_DATA, run_server
from fkgsec.experiments.runs.choices import spelled
from fkgsec.experiments.runs.spec import make_spec, of_triples
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


class EngineChoice(NamedTuple):
    """What the three options say together."""

    engine: str
    workers: int | None
    superlink: Path | None

    @classmethod
    def of(cls, engine: str, workers: int | None, superlink: Path | None) -> EngineChoice:
        """Raises `SpecError` for an option of another engine, or one that is missing."""
        name = spelled("engine", engine, ENGINES)
        for option, value, its in (("workers", workers, "ray"), ("superlink", superlink, "flower")):
            if value is not None and name != its:
                raise SpecError(f"--{option} is of --engine {its}; got --engine {name}")
            if value is None and name == its:
                raise SpecError(f"--engine {its} needs --{option}")
        return cls(name, workers, superlink)

    @contextlib.contextmanager
    def training(self, spec: RunSpec) -> Iterator[MakeTask | None]:
        """What `execute` takes as `make_task`; worker processes live as long. Raises `SpecError`, `RunError`."""
        from fkgsec.experiments.deploy.ray.spread import check_spread, spread_over
        from fkgsec.experiments.deploy.ray.workers import RayWorkers

        if self.workers is None:
            yield None
            return
        check_spread(spec.federation_options())
        with RayWorkers(self.workers) as workers:
            yield spread_over(workers)


def train_apart(
    folder: Path,
    config: Path | None,
    given: dict[str, Any],
    unused: dict[str, Any],
    json: str | None,
    *,
    attack: bool,
    quiet: bool,
) -> None:
    """Run the federation of a consortium, as `fkgsec deploy server` does, for a spec that is the one its parties agreed on.

    Args:
        folder: the server's. config, given: the spec, as for `make_spec`; without a file what is not given is as agreed.
        unused: by name options of a command that have no meaning here, with their values; those that are set are refused.

    Raises `SpecError` where the spec says something else than the agreement: parties train what they agreed on alone.
    """
    from fkgsec.experiments.deploy.data import DIVIDED
    from fkgsec.experiments.deploy.layout import ServerFolder
    from fkgsec.experiments.runs.run import read_spec

    if wrong := [f"--{name}" for name, value in unused.items() if value]:
        raise SpecError(
            f"{', '.join(wrong)}: not with --engine flower, whose record lies in the server's folder; leave it out"
        )
    agreed = of_triples(read_spec(folder), "--engine flower")
    asked = make_spec(None, agreed.document() | given) if config is None else make_spec(config, given)
    apart = {"device", *(DIVIDED if agreed.data == OWN_DATA else ())}
    ours, theirs = asked.document(), agreed.document()
    for name in sorted((ours.keys() | theirs.keys()) - apart):
        if ours.get(name) != theirs.get(name):
            raise SpecError(
                f"{name}: the parties agreed on {theirs.get(name)!r}; got {ours.get(name)!r}. Leave it out, or make another "
                "agreement (fkgsec deploy init)"
            )
    if attack and not agreed.attack:
        raise SpecError("attack: the parties agreed to score none; name some with fkgsec deploy init --attack")
    run_server(ServerFolder(folder), TIMEOUT_S, json, quiet=quiet)
