"""The `fkgsec` program: reads the command line first, and loads what a command needs once it is known to be one.

fkgsec --help                                   # these three take a fraction of a second, without torch
fkgsec train --lerning-rate 0.1
fkgsec train --algorithm <TAB>
"""

from __future__ import annotations

import contextlib
from importlib.metadata import entry_points
from typing import Any

from experiments.cli.root import make_root
from experiments.cli.surface import add_commands, read_surface


class _WellFormed(Exception):
    """The command line names a command, with options that it has."""


def main() -> None:
    """Entry point of the console script."""
    # Parts of other packages bring options and words of their own, which the surface does not have.
    if not any(group.startswith("fkgsec.") for group in entry_points().groups):
        app = make_root()
        add_commands(app, read_surface(), _found)
        with contextlib.suppress(_WellFormed):
            app(prog_name="fkgsec")
    from experiments.cli.main import app

    app(prog_name="fkgsec")


def _found(**values: Any) -> None:
    raise _WellFormed


if __name__ == "__main__":
    main()
