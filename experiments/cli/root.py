"""The `fkgsec` application before any command is added to it."""

from __future__ import annotations

from typing import Annotated

import typer

import fkgsec
from experiments.cli.one_line import OneLineErrors


def make_root() -> typer.Typer:
    """An application with the program's help and --version."""
    app = typer.Typer(
        name="fkgsec",
        cls=OneLineErrors,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fkgsec {fkgsec.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Train federations of knowledge-graph embedding or graph classification, attack them, and see what leaks, what it costs and
    how good they are."""
