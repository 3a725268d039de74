"""`fkgsec plot`: pictures of finished runs, as PNG and SVG.

fkgsec plot runs/mine runs/other --out pictures --kind convergence --format svg
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from fkgsec.errors import RunError
from fkgsec.experiments.cli.console import complete_from, say
from fkgsec.experiments.runs.choices import spelled
from fkgsec.experiments.runs.writing import Overwrite, write_new

if TYPE_CHECKING:
    from fkgsec.experiments.reporting.items import Run

EPILOG = (
    "Examples:\n\n  fkgsec plot runs/mine\n\n  fkgsec plot runs --kind utility-leakage --kind bytes --format svg\n\n"
    "  fkgsec plot runs/defenses/comparison.json --out pictures"
)

FORMATS = ("png", "svg")


class Picture(NamedTuple):
    """A kind of picture: what it shows, whether it is of one run, and which function of `pictures` draws it."""

    about: str
    each: bool
    draw: str


PICTURES = {
    "utility-leakage": Picture("utility against leakage", False, "utility_leakage"),
    "convergence": Picture("validation by round and by bytes", False, "convergence"),
    "bytes": Picture("bytes exchanged", False, "bytes_by_run"),
    "heat-map": Picture("configurations beside adversaries", False, "heat_map"),
    "roc": Picture("ROC curves of membership, for each run", True, "roc"),
    "risk": Picture("triples rebuilt by relation, for each run", True, "risk_by_relation"),
}


def plot(
    runs: Annotated[list[Path], typer.Argument(help="run folders, records, comparisons, or folders of these")],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            help=f"which pictures: {', '.join(PICTURES)}; repeatable (default: all that the runs have anything for)",
            autocompletion=complete_from(lambda: tuple(PICTURES)),
        ),
    ] = None,
    form: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help=f"{' or '.join(FORMATS)}; repeatable (default: both)",
            autocompletion=complete_from(lambda: FORMATS),
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="folder to write them into")] = Path("pictures"),
    overwrite: Overwrite = False,
) -> None:
    """Draw finished runs: utility against leakage, convergence, bytes, heat map, ROC, risk by relation."""
    from fkgsec.experiments.reporting import pictures
    from fkgsec.experiments.reporting.html.cli import read_runs
    from fkgsec.experiments.reporting.picture import saved
    from fkgsec.experiments.reporting.pictures import MOST_RUNS

    kinds, formats = (
        spelled("kind", kind or list(PICTURES), PICTURES),
        spelled("format", form or list(FORMATS), FORMATS),
    )
    found = read_runs([place for path in runs for place in places_of(path)])
    if len(found) > MOST_RUNS:
        raise RunError(f"plot: at most {MOST_RUNS} runs can be told apart in one picture; got {len(found)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out}: cannot be made ({error.strerror})") from error
    num_written = 0
    for name in kinds:
        for stem, shown in _groups(name, found):
            figure = getattr(pictures, PICTURES[name].draw)(shown)
            if figure is None:
                if kind:
                    say(f"fkgsec: left out: {stem}: {', '.join(run.name for run in shown)} has nothing to draw")
                continue
            for ending in formats:
                write_new(out / f"{stem}.{ending}", saved(figure, ending), overwrite=overwrite)
                num_written += 1
    if not num_written:
        raise RunError(f"plot: nothing to draw in {', '.join(map(str, runs))}: {', '.join(kinds)} need attacked runs")
    typer.echo(f"Written to {out}: {num_written} files")


def _groups(kind: str, runs: Sequence[Run]) -> list[tuple[str, Sequence[Run]]]:
    """What is drawn together, and how its file is called."""
    from fkgsec.experiments.runs.compare import folder_name

    if not PICTURES[kind].each:
        return [(kind, runs)]
    return [(kind if len(runs) == 1 else f"{kind}-{folder_name(run.name)}", [run]) for run in runs]


def places_of(path: Path) -> list[Path]:
    """A run, record or comparison itself; of another folder all of these below it, the cases of a comparison by the comparison.

    Raises `RunError` where there are none.
    """
    from fkgsec.experiments.runs.compare import COMPARISON_FILE
    from fkgsec.experiments.runs.run import RECORD_FILE

    if not path.is_dir() or any((path / name).exists() for name in (RECORD_FILE, COMPARISON_FILE)):
        return [path]
    compared = sorted(path.rglob(COMPARISON_FILE))
    inside = [one.parent for one in compared]
    single = [
        one
        for one in sorted(path.rglob(RECORD_FILE))
        if not any(folder in one.parents for folder in inside) and "attacks" not in one.parts
    ]
    if not (found := [*(one.parent for one in single), *inside]):
        raise RunError(f"{path}: no {RECORD_FILE} or {COMPARISON_FILE} in it or below")
    return found
