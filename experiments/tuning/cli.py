"""The command `fkgsec tune`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.console import Quiet, make_console
from fkgsec.experiments.cli.data import Config
from fkgsec.experiments.cli.options import TRAIN_FIELDS, spec_options
from fkgsec.experiments.cli.presets import Preset, choose
from fkgsec.experiments.runs.writing import Force, Overwrite
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tuning.search import read_searches

EXAMPLES = (
    "Examples:\n\n  fkgsec tune --search learning_rate=log:1e-4:1e-2 --search gamma=5,9,12\n\n"
    "  fkgsec tune --algorithm feds --search sparsity=0.2:0.8 --search dim=16,32,64 --trials 30 --rounds 40\n\n"
    "  fkgsec tune --model pykeen:TransH --search num_negatives=log:4:64 --out runs/tuning\n\n"
    "  fkgsec train --config runs/tuning/best.yaml"
)


@spec_options(TRAIN_FIELDS)
def tune_options(
    *,
    options: dict[str, Any],
    search: Annotated[
        list[str],
        typer.Option(
            "--search",
            help="an option and its values: NAME=A,B,C or NAME=LOW:HIGH or NAME=log:LOW:HIGH; repeatable",
        ),
    ],
    trials: Annotated[
        int, typer.Option("--trials", help="total number of trials, those of an interrupted start included", min=1)
    ] = 20,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune/--no-prune", help="stop trials early that are below the median of the others (never with dp)"
        ),
    ] = True,
    config: Config = None,
    preset: Preset = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder (default: runs/tune-<data>-<algorithm>-<hash>)")
    ] = None,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
    track: Annotated[list[str] | None, typer.Option("--track", hidden=True)] = None,
) -> None:
    """Find options by validation alone. Repeat the same command to resume an interrupted tuning."""
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.reporting.sheets import print_sheets
    from fkgsec.experiments.runs.run import data_name, warnings_of
    from fkgsec.experiments.tuning.shown import BEST_FILE, CSV_FILE, PICTURE_FILE, lines, trials_sheet, write_tuning
    from fkgsec.experiments.tuning.study import TUNING_FILE, tune

    if track:
        raise SpecError(
            "track applies to train, attack and compare. Trials have no record, because they never see the test split: "
            f"{CSV_FILE} and {PICTURE_FILE} list each trial; use --track when you train with {BEST_FILE}"
        )
    spec: RunSpec = choose(config, options, preset).spec
    # Selecting rounds by the test split would leak it into the tuning.
    if getattr(spec, "select", "validation") != "validation":
        raise SpecError("select must be validation for tuning, which never looks at the test split")
    searched = read_searches(search, spec)
    errors = make_console(stderr=True)
    graph = spec.load_graph()
    for warning in warnings_of(spec, graph):
        errors.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
    texts = {name: values.text for name, values in searched.items()}
    # The same search on the same data finds the same folder, so a repeated command resumes.
    key = hashlib.sha256(msgspec.json.encode([spec.document(), texts, graph.hash], order="sorted")).hexdigest()[:8]
    folder = out or Path("runs") / f"tune-{data_name(graph)}-{spec.algorithm}-{key}"
    tuned = tune(
        spec,
        graph,
        searched,
        folder,
        trials=trials,
        observe=observe_on(errors, enabled=not quiet, what="trial"),
        prune=prune,
        overwrite=overwrite,
        at_once=0 if force else 1,
    )
    write_tuning(tuned, folder)
    if not quiet:
        console = make_console()
        for line in (*lines(tuned), ""):
            console.print(line, soft_wrap=True, highlight=False)
        print_sheets(console, [trials_sheet(tuned)])
        files = f"{BEST_FILE}, {CSV_FILE}, {PICTURE_FILE}, {TUNING_FILE}"
        line = f"In {folder}: {files}. fkgsec train --config {folder / BEST_FILE}"
        console.print(line, soft_wrap=True, highlight=False)
