"""The `fkgsec view` command: serve the runs of a folder to a browser on this machine.

fkgsec view runs
fkgsec view runs --port 0 --no-browser
"""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.console import say
from experiments.reporting.html.notation import count
from experiments.view.server import HERE, Viewer
from experiments.view.summaries import Library
from fkgsec.errors import RunError

EXAMPLES = (
    "Examples:\n\n  fkgsec view\n\n  fkgsec view experiments/results --port 0 --no-browser\n\n  fkgsec view runs --rescore\n\n"
    "  ssh -L 8765:127.0.0.1:8765 server fkgsec view runs --no-browser"
)
PORT = 8765


def view(
    runs: Annotated[Path, typer.Argument(help="folder, searched for runs and audits at any depth")] = Path("runs"),
    *,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="where to listen; 0: any that is free")] = PORT,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="the address to listen at; any other than this machine's own shows the runs to a network"
        ),
    ] = HERE,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page in a browser")] = True,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="let pages attack and evaluate runs again; results are saved beside them")
    ] = False,
) -> None:
    """Show the runs of a folder in a browser: list, filter, compare two, open reports. Reads only; Ctrl-C ends it."""
    library = Library(runs)
    found, audits = library.runs(), library.audits()
    if not found and not audits:
        raise RunError(f"{runs}: no record.json at any depth; fkgsec train and attack write them")
    with Viewer(library, port=port, host=host, rescores=rescore) as viewer:
        broken = sum(bool(run.broken) for run in found)
        shown = count(len(found), "run") + (f", {broken} of them broken" if broken else "")
        typer.echo(f"{shown}, at {viewer.address} (Ctrl-C ends it)")
        if host not in (HERE, "::1", "localhost"):
            say(f"warning: --host {host}: whoever reads the network can read the token, and with it the runs")
        if browser:
            threading.Thread(target=webbrowser.open, args=(viewer.address,), daemon=True).start()
        try:
            viewer.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended")
