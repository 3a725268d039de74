"""`fkgsec verify-run`: whether what lies in run folders is as it was written, and its figures those of its files.

fkgsec verify-run runs/mine
fkgsec verify-run runs --recompute
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.console import make_console
from experiments.integrity.checks import Check, check_folder
from experiments.integrity.groups import check_comparison, check_seeds
from experiments.integrity.recompute import recomputed
from experiments.runs.compare import COMPARISON_FILE
from experiments.runs.run import RECORD_FILE
from experiments.runs.seeds import SEEDS_FILE
from fkgsec.errors import RunError

EXAMPLES = "Examples:\n\n  fkgsec verify-run runs/mine\n\n  fkgsec verify-run runs --recompute"
BROKEN, UNVERIFIABLE = 1, 3


def verify_run(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="run folders, or folders with such at any depth")
    ],
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute", help="also evaluate and attack each run once more, which takes as long as that did"
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="--recompute although the estimate says that memory does not suffice")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="only what does not hold")] = False,
) -> None:
    """Check digests, rounds, bytes and figures of finished runs. Exits 0 all hold, 1 some are broken, 2 wrong input, 3 not all
    can be verified."""
    console = make_console()
    outcomes = set()
    for place, check in _checks(folders, recompute=recompute, force=force):
        outcomes.add(check.outcome)
        if not quiet or check.outcome != "holds":
            why = f" ({check.why})" if check.why else ""
            console.print(f"{place}: {check.what} {check.outcome}{why}", highlight=False, soft_wrap=True)
    if "broken" in outcomes:
        raise typer.Exit(BROKEN)
    if "unverifiable" in outcomes:
        raise typer.Exit(UNVERIFIABLE)


def _checks(folders: list[Path], *, recompute: bool, force: bool) -> Iterator[tuple[Path, Check]]:
    """Each check beside the file that it is about. Raises `RunError` for a place without a run, `SpecError` for memory."""
    for root in folders:
        if not root.is_dir():
            raise RunError(f"{root}: is no folder")
        runs = sorted(path.parent for path in root.rglob(RECORD_FILE))
        groups = sorted(path for name in (COMPARISON_FILE, SEEDS_FILE) for path in root.rglob(name))
        if not runs and not groups:
            raise RunError(f"{root}: has no {RECORD_FILE}, {COMPARISON_FILE} or {SEEDS_FILE} in it")
        for folder in runs:
            yield from ((folder, one) for one in check_folder(folder))
            if recompute:
                yield from ((folder, one) for one in recomputed(folder, force=force))
        for path in groups:
            check = check_comparison if path.name == COMPARISON_FILE else check_seeds
            yield from ((path, one) for one in check(path))
