"""`fkgsec results`: finished runs as a table, a file, or in a tracker.

fkgsec results runs --where threat_model=identifiers --where metric=trr --sort value --csv runs.csv
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from fkgsec.attacks.figure import over_victims
from fkgsec.errors import RunError
from fkgsec.experiments.cli.console import make_console, say
from fkgsec.experiments.runs.writing import Overwrite, write_new

RESULTS_EXAMPLES = (
    "Examples:\n\n  fkgsec results runs\n\n"
    "  fkgsec results runs --where algorithm=fede --where metric=trr --sort value\n\n"
    "  fkgsec results runs other-runs --csv runs.csv --tensorboard events"
)


def results(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="folders to search for record.json, or record files (default: runs)")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="only rows with this, such as algorithm=fede or mrr>0.3; repeatable"),
    ] = None,
    sort_by: Annotated[str | None, typer.Option("--sort", help="by a column: largest first, or words from A")] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="sort the other way")] = False,
    csv: Annotated[
        str | None, typer.Option("--csv", help="also write every column here; - for standard output")
    ] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="also write every column here")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="write the runs into this folder (fkgsec\\[tensorboard])")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", help="log the runs to this tracking server (fkgsec\\[mlflow])")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no table; errors only")] = False,
) -> None:
    """List finished runs: settings, utility, leakage by threat model, bytes, seconds and commit."""
    from fkgsec.experiments.reporting.frames import figures
    from fkgsec.experiments.reporting.listing import (
        WIDE,
        find_records,
        listing_table,
        log_mlflow,
        log_tensorboard,
        select,
        sort,
    )
    from fkgsec.experiments.reporting.sheets import as_csv

    found = find_records(paths or [Path("runs")])
    for line in found.damaged:
        say(f"fkgsec: left out: {line}")
    if not found.records:
        raise typer.Exit(RunError.exit_status)
    frame = select(figures(found.records, over_victims), where or [])
    if sort_by is not None:
        frame = sort(frame, sort_by, reverse=reverse)
    if not quiet:
        console = make_console(stderr=csv == "-")
        if not console.is_terminal:
            console.width = WIDE  # a file or pipe has no width to fit
        table, left_out = listing_table(frame, console.width)
        console.print(table)
        if left_out:
            console.print(f"Too wide to show: {', '.join(left_out)} (--csv writes every column)", soft_wrap=True)
    if csv is not None:
        content = as_csv(frame)
        if csv == "-":
            sys.stdout.write(content)
        else:
            write_new(Path(csv), content.encode(), overwrite=overwrite)
    if parquet is not None:
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        write_new(parquet, buffer.getvalue(), overwrite=overwrite)
    chosen = {name: found.records[name] for name in dict.fromkeys(frame["run"])}
    if tensorboard is not None:
        log_tensorboard(chosen, tensorboard, overwrite=overwrite)
    if mlflow is not None:
        log_mlflow(chosen, mlflow)
