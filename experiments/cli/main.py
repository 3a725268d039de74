"""The program `fkgsec` and its commands.

    fkgsec --help                                   # these three take a fraction of a second, without torch
    fkgsec train --lerning-rate 0.1
    fkgsec train --algorithm <TAB>

Modules of commands import only options. Each command imports what it runs when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from fkgsec.defenses.options import KINDS
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.audit import cli as audit_cli
from fkgsec.experiments.cli.console import (
    Details,
    Json,
    OneLineErrors,
    Quiet,
    complete_from,
    expected_errors,
    make_console,
    print_lines,
    say,
)
from fkgsec.experiments.cli.data import Config, data_app
from fkgsec.experiments.cli.describe import EXAMPLES as DESCRIBE_EXAMPLES
from fkgsec.experiments.cli.describe import describe_part
from fkgsec.experiments.cli.engines import (
    ENGINES,
    Engine,
    NumWorkers,
    Superlink,
    check_engine,
    task_maker,
    train_apart,
)
from fkgsec.experiments.cli.options import ATTACK_FIELDS, TRAIN_FIELDS, ShortHelp, spec_options
from fkgsec.experiments.cli.presets import Preset, choose, longer
from fkgsec.experiments.cli.printed import (
    DryRun,
    Output,
    print_comparison,
    print_finished,
    print_plan,
    print_record,
    print_several,
)
from fkgsec.experiments.cli.privacy import privacy_app
from fkgsec.experiments.deploy.cli import deploy_app
from fkgsec.experiments.gate import cli as check_cli
from fkgsec.experiments.integrity import cli as integrity_cli
from fkgsec.experiments.papers.cli import experiment_app
from fkgsec.experiments.reporting import cli as reporting_cli
from fkgsec.experiments.runs.choices import spelled, spelled_case
from fkgsec.experiments.runs.spec import make_spec, require_triples
from fkgsec.experiments.runs.writing import Force, Overwrite
from fkgsec.experiments.tasks.spec import RunSpec
from fkgsec.experiments.tasks.task import all_tasks, task_of
from fkgsec.experiments.tuning import cli as tune_cli
from fkgsec.experiments.unlearning import cli as unlearn_cli
from fkgsec.federation.options import CHECKPOINT_EVERY_S
from fkgsec.federation.recipes import RECIPES
from fkgsec.unlearning.options import UnlearnOptions
from fkgsec.version import __version__

if TYPE_CHECKING:
    from fkgsec.experiments.runs.compare import Unlearning
    from fkgsec.experiments.runs.record import Record
    from fkgsec.federation.task import MakeTask

# Default of `compare --method`. It works for every algorithm; the default of `fkgsec unlearn` needs fedlu.
METHOD_OF_CASES = "finetune"
app = typer.Typer(
    name="fkgsec",
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
FIRST, MORE = "Commands", "More commands"
app.add_typer(data_app, name="data", rich_help_panel=FIRST)
app.add_typer(experiment_app, name="experiment", rich_help_panel=MORE)
app.add_typer(deploy_app, name="deploy", rich_help_panel=MORE)
app.add_typer(privacy_app, name="privacy", rich_help_panel=MORE)


def _show_version(show: bool) -> None:
    if show:
        typer.echo(f"fkgsec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Train federations of knowledge-graph embedding or graph classification, attack them, and report leaks, utility and cost."""


Out = Annotated[Path | None, typer.Option("--out", help="run folder (default: runs/<data>-<algorithm>-<model>-<hash>)")]
CheckpointEvery = Annotated[
    float, typer.Option("--checkpoint-every", help="seconds between checkpoints; 0: after every round", min=0)
]
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", help="train with this many seeds, starting at --seed; intervals cover all", min=2),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="log rounds and final figures during the run: tensorboard\\[:FOLDER], mlflow\\[:ADDRESS]; repeatable",
    ),
]


class Training(NamedTuple):
    """Options of `train` and `attack` that do not belong to the spec, in the order of `--help`."""

    config: Config = None
    preset: Preset = None
    out: Out = None
    json: Json = None
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY_S
    seeds: Seeds = None
    overwrite: Overwrite = False
    force: Force = False
    quiet: Quiet = False
    details: Details = False
    track: Track = None
    engine: Engine = ENGINES[0]
    workers: NumWorkers = None
    superlink: Superlink = None
    dry_run: DryRun = False


@app.command(
    cls=ShortHelp,
    epilog="Examples:\n\n  fkgsec train --algorithm fedr --rounds 50\n\n"
    "  fkgsec train --algorithm fede --data FB15k-237 --clients 3 --partition triples --out runs/fb\n\n"
    "  fkgsec train --data FB15k-237 --clients 3 --split-seed 7 --seeds 3\n\n  fkgsec train --config spec.yaml --json -\n\n"
    "  fkgsec train --model pykeen:TransH --track tensorboard:events\n\n"
    "  fkgsec train --data FB15k-237 --clients 100 --engine ray --workers 16\n\n"
    "  fkgsec train --engine flower --superlink consortium/server",
)
@expected_errors
@spec_options(TRAIN_FIELDS)
def train(*, options: dict[str, Any], training: Training) -> None:
    """Train a federation. Repeat the same command to resume an interrupted run."""
    _train_and_report(options, training, attack=False)


@app.command(
    cls=ShortHelp,
    epilog="Examples:\n\n  fkgsec attack --target fede --leak 0.5\n\n"
    "  fkgsec attack --target fede --defense psu,secagg --clients 5\n\n"
    "  fkgsec attack --target fedr --data DDB14 --clients 5 --leak 0.3 --leak 1.0\n\n"
    "  fkgsec attack --run runs/fb --threat identifiers --inference score\n\n"
    "  fkgsec attack --target cefgl --threat models\n\n"
    "  fkgsec attack --attack list",
)
@expected_errors
@spec_options((*TRAIN_FIELDS, *ATTACK_FIELDS))
def attack(
    *,
    options: dict[str, Any],
    run: Annotated[Path | None, typer.Option("--run", help="attack this finished run instead of training one")] = None,
    single: Annotated[
        bool,
        typer.Option(
            "--single/--no-single",
            help="also train the same clients alone, or reuse that run, and show each client's gain from joining",
        ),
    ] = True,
    training: Training,
) -> None:
    """Train a federation (or use a finished run), attack it with the adversary's observations, and report leaks."""
    if options.get("attack") == ["list"]:
        _list_attacks()
    elif run is None:
        _train_and_report(options, training, attack=True, single=single)
    else:
        _attack_again(run, options, training, single=single)


def _list_attacks() -> None:
    from fkgsec.experiments.reporting import words

    typer.echo("\n".join(words.attack_lines()))


def _attack_again(run: Path, options: dict[str, Any], training: Training, *, single: bool) -> None:
    """Attack a finished run. Raises `SpecError` for training options."""
    from fkgsec.experiments.cli.progress import RunProgress
    from fkgsec.experiments.runs.run import read_spec, reuse, warnings_of

    engine = check_engine(training.engine, training.workers, training.superlink)
    if engine != ENGINES[0]:
        raise SpecError(f"--engine {engine} applies to training, and --run takes a finished run; leave one of them out")
    foreign = sorted(set(options) - set(ATTACK_FIELDS))
    foreign += [f"--{name}" for name in ("config", "preset", "seeds", "track") if getattr(training, name)]
    if foreign := foreign + ["--dry-run"] * training.dry_run:
        raise SpecError(f"--run takes attack options only; leave out {', '.join(foreign)}")
    # Check the values before reading any data.
    spec = make_spec(None, options | {"algorithm": read_spec(run).algorithm})
    # Only shadow federations train here, so only they need a progress bar.
    changes, enabled = {name: getattr(spec, name) for name in options}, not training.quiet and bool(spec.shadows)
    with RunProgress(spec, make_console(stderr=True), enabled=enabled) as progress:
        finished, graph = reuse(run, changes, training.out, progress, overwrite=training.overwrite)
    alone = _train_alone({run: finished.record}, graph, training) if single else None
    output = Output(training.json, training.quiet, training.overwrite, training.details)
    print_finished(finished, output, warnings=warnings_of(finished.record.spec, graph), alone=alone)


def _train_alone(
    runs: dict[Path, Record], graph: Any, training: Training, make_task: MakeTask | None = None
) -> list[Record]:
    """Train the clients of each run alone, in a folder beside it.

    Returns nothing for runs without exchange, and after a failure, which prints a warning.
    """
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.runs.alone import train_alone
    from fkgsec.experiments.runs.baseline import exchanges

    observe = observe_on(make_console(stderr=True), enabled=not training.quiet, what="train")
    how = {
        "checkpoint_every_s": training.checkpoint_every,
        "at_once": 0 if training.force else 1,
        "make_task": make_task,
    }
    name = "the same clients alone" + (", seed {}" if len(runs) > 1 else "")
    try:
        return [
            train_alone(record, graph, run, observe=observe, name=name.format(record.seed), **how).record
            for run, record in runs.items()
            if exchanges(record.spec) and record.items is not None
        ]
    except RunError as error:
        # The attack itself has finished; its report must not be lost.
        say(f"warning: the clients were not trained alone: {error}")
        return []


@app.command("show", epilog="Examples:\n\n  fkgsec show runs/mine\n\n  fkgsec show runs/defenses/comparison.json")
@expected_errors
def show(
    runs: Annotated[list[Path], typer.Argument(help="run folders, records or comparisons (all cases of each)")],
) -> None:
    """Print finished runs with every table: results of attacks, utility, cost, guarantees, and the verdict."""
    from fkgsec.experiments.reporting.reading import read_runs

    console = make_console()
    for run in read_runs(runs):
        print_lines(console, [f"{run.name}:"])
        print_record(console, run.record, details=True, alone=run.alone and [run.alone])


@app.command(
    "compare",
    cls=ShortHelp,
    epilog="Examples:\n\n  fkgsec compare --leak 0.5\n\n  fkgsec compare --case fedavg --case fedstar --case cefgl/secagg\n\n"
    "  fkgsec compare --data DDB14-Fed5 --case none --case fedr/psu,secagg --case psu,secagg,suppress:t=2\n\n"
    "  fkgsec compare --seeds 5 --leak 0.5 --case single --case none --case psu,secagg",
)
@expected_errors
@spec_options((*(name for name in TRAIN_FIELDS if name != "defense"), *ATTACK_FIELDS))
def compare_cases(
    *,
    options: dict[str, Any],
    case: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            help="none, an algorithm, a defense, or algorithm/defense; repeatable (default: "
            + "; of graphs ".join(" ".join(task.cases) for task in all_tasks())
            + ")",
            autocompletion=complete_from(lambda: ("none", *RECIPES, *KINDS)),
        ),
    ] = None,
    forget: Annotated[
        Path | None,
        typer.Option(
            "--forget", help="unlearn these triples in every case, and show what the unlearning round reveals"
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help=f"method of unlearning, with --forget: {', '.join(unlearn_cli.METHODS)} (default: {METHOD_OF_CASES})",
            autocompletion=complete_from(lambda: unlearn_cli.METHODS),
        ),
    ] = None,
    config: Config = None,
    preset: Preset = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder with a subfolder for each case (default: runs/compare-<data>-<hash>)"),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", help="make so many comparisons, counted from --seed, and end as fkgsec worth does", min=2
        ),
    ] = None,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
    details: Details = False,
    track: Track = None,
    dry_run: DryRun = False,
) -> None:
    """Train and attack a federation under several defenses, and compare them. Finished cases are reused."""
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.runs.baseline import trains_alone
    from fkgsec.experiments.runs.compare import base_algorithm, case_spec, compare, folder_name
    from fkgsec.experiments.runs.compare import default_folder as default_comparison
    from fkgsec.experiments.tracking import check_trackers, observe_tracked

    if options.get("attack") == ["list"]:
        _list_attacks()
        return
    check_trackers(track or ())
    names = [spelled_case(name) for name in case or ()]
    # Cases may name algorithms of graph classification; their data are then the default.
    if config is None and not {"algorithm", "data"} & set(options) and (base := base_algorithm(names)):
        options = options | {"algorithm": base}
    chosen = choose(config, options, preset, rows=False)
    spec = chosen.spec
    errors = make_console(stderr=True)
    graph = _load(spec, errors, quiet=quiet)
    unlearning = _unlearning(spec, graph, forget, method)
    folder = out or default_comparison(spec, graph)
    cases = names or task_of(spec).cases
    folders = {folder: spec}
    if seeds is not None:
        if not any(trains_alone(case_spec(spec, name)) for name in cases):
            raise SpecError(
                "--seeds sets gain over the clients alone against leak; name the case that trains them alone, too"
            )
        folders = {folder / f"seed-{seed}": spec.replace(seed=seed) for seed in range(spec.seed, spec.seed + seeds)}
    if dry_run:
        planned = {
            name if seeds is None else f"{name}, seed {seeded.seed}": (
                case_spec(seeded, name),
                place / folder_name(name),
            )
            for place, seeded in folders.items()
            for name in cases
        }
        print_plan(make_console(), chosen, graph, planned, attack=True)
        return
    for place, seeded in folders.items():
        what = "case" if seeds is None else f"seed {seeded.seed}, case"
        progress = observe_on(errors, enabled=not quiet, what=what)
        observe = observe_tracked(progress, track or (), lambda name, place=place: place / folder_name(name), say)
        # `--force` skips the check that a run fits into memory.
        how = {"observe": observe, "overwrite": overwrite, "at_once": 0 if force else 1, "whose": chosen.whose}
        comparison = compare(seeded, graph, place, cases, unlearning=unlearning, **how)
        if not quiet and seeds is None:
            print_comparison(comparison, folder, longer(chosen), details=details)
    if seeds is not None:
        reporting_cli.worth(list(folders), folder, overwrite=True, quiet=quiet)


def _load(spec: RunSpec, errors: Console, *, quiet: bool) -> Any:
    """Load the clients' data; print how they were read, unless `quiet`, and the warnings about them."""
    from fkgsec.experiments.runs.run import warnings_of

    graph = spec.load_graph()
    print_lines(errors, [] if quiet else task_of(spec).read_lines(spec, graph))
    print_lines(errors, [f"warning: {warning}" for warning in warnings_of(spec, graph)], style="yellow")
    return graph


def _unlearning(spec: RunSpec, graph: Any, forget: Path | None, method: str | None) -> Unlearning | None:
    """Read the forget set that every case of a comparison unlearns; None if there is none."""
    from fkgsec.experiments.runs.compare import Unlearning
    from fkgsec.unlearning.forget_sets import read_forget

    if method and not forget:
        raise SpecError(f"--method {method} applies to unlearning; add --forget FILE or leave it out")
    if not forget:
        return None
    require_triples(spec, "compare --forget")
    named: dict[str, Any] = {"method": spelled("method", method or METHOD_OF_CASES, unlearn_cli.METHODS)}
    return Unlearning(read_forget(forget, graph, None), UnlearnOptions(**named))


def _train_and_report(options: dict[str, Any], training: Training, *, attack: bool, single: bool = False) -> None:
    engine = check_engine(training.engine, training.workers, training.superlink)
    if training.superlink is not None:
        unused = ("preset", "out", "seeds", "overwrite", "force", "dry_run", "track")
        wrong = [f"--{name.replace('_', '-')}" for name in unused if getattr(training, name)]
        wrong += ["--checkpoint-every"] * (training.checkpoint_every != CHECKPOINT_EVERY_S)
        if wrong:
            raise SpecError(
                f"{', '.join(wrong)}: not available with --engine {engine}, which records in the server's folder; leave it out"
            )
        spec_source = training.superlink, training.config, options
        train_apart(*spec_source, training.json, attack=attack, quiet=training.quiet)
        return
    # Reject wrong options before loading any data.
    chosen = choose(training.config, options, training.preset)
    spec, track = chosen.spec, tuple(training.track or ())
    from fkgsec.experiments.cli.progress import RunProgress, observe_on
    from fkgsec.experiments.runs.alone import alone_folder
    from fkgsec.experiments.runs.baseline import alone_spec, exchanges
    from fkgsec.experiments.runs.run import check_run, default_folder, execute
    from fkgsec.experiments.runs.seeds import train_seeds
    from fkgsec.experiments.tracking import Tracked, check_trackers, observe_tracked
    from fkgsec.experiments.tracking import track as start_tracking

    check_trackers(track)
    # A missing folder must not be noticed after hours of training.
    if training.json not in (None, "-") and not Path(training.json).parent.is_dir():
        raise RunError(f"{training.json}: its folder does not exist")
    errors = make_console(stderr=True)
    graph = _load(spec, errors, quiet=training.quiet)
    folder = training.out or default_folder(spec, graph)
    if training.seeds is not None and training.out is None:
        folder = folder.with_name(f"{folder.name}-seeds")
    if training.dry_run:
        check_run(spec, graph, attack=attack)
        planned = {spec.algorithm: (spec, folder)}
        if training.seeds is not None:
            seeds = range(spec.seed, spec.seed + training.seeds)
            planned = {f"seed {seed}": (spec.replace(seed=seed), folder / f"seed-{seed}") for seed in seeds}
        if single and exchanges(spec):
            planned |= {
                f"{name} alone": (alone_spec(run), alone_folder(run, graph, place))
                for name, (run, place) in planned.items()
            }
        print_plan(make_console(), chosen, graph, planned, attack=attack)
        return
    how = {
        "attack": attack,
        "checkpoint_every_s": training.checkpoint_every,
        "overwrite": training.overwrite,
        "at_once": 0 if training.force else 1,
        "whose": chosen.whose,
    }
    output = Output(training.json, training.quiet, training.overwrite, training.details)
    with task_maker(training.workers, spec) as make_task:
        if training.seeds is not None:
            progress = observe_on(errors, enabled=not training.quiet)
            observe = observe_tracked(progress, track, lambda name: folder / name.replace(" ", "-"), say)
            several, records = train_seeds(
                spec, graph, folder, training.seeds, observe=observe, make_task=make_task, **how
            )
            runs = {folder / name: record for name, record in zip(several.runs, records, strict=True)}
            alone = _train_alone(runs, graph, training, make_task) if single else None
            print_several(several, records, folder, output, longer(chosen), alone=alone)
            return
        progress = RunProgress(spec, errors, enabled=not training.quiet)
        with Tracked(progress, start_tracking(track, spec, folder, say)) as observer:
            finished = execute(spec, graph, folder, observer=observer, make_task=make_task, **how)
        alone = _train_alone({folder: finished.record}, graph, training, make_task) if single else None
    print_finished(finished, output, remarks=longer(chosen), alone=alone)


app.command("describe", epilog=DESCRIBE_EXAMPLES)(expected_errors(describe_part))
app.command("tune", rich_help_panel=MORE, cls=ShortHelp, epilog=tune_cli.EXAMPLES)(
    expected_errors(tune_cli.tune_options)
)
app.command("unlearn", epilog=unlearn_cli.UNLEARN_EXAMPLES)(expected_errors(unlearn_cli.unlearn))
app.command("verify", cls=unlearn_cli.VerifyHelp, epilog=unlearn_cli.VERIFY_EXAMPLES)(
    expected_errors(unlearn_cli.verify)
)
app.command("verify-run", rich_help_panel=MORE, epilog=integrity_cli.EXAMPLES)(
    expected_errors(integrity_cli.verify_run)
)
app.command("sign", rich_help_panel=MORE, epilog=integrity_cli.SIGN_EXAMPLES)(expected_errors(integrity_cli.sign))
app.command("check", epilog=check_cli.EPILOG)(expected_errors(check_cli.check))
app.command("report", epilog=reporting_cli.REPORT_EXAMPLES)(expected_errors(reporting_cli.report))
app.command("view", rich_help_panel=MORE, epilog=reporting_cli.VIEW_EXAMPLES)(expected_errors(reporting_cli.view))
app.command("worth", rich_help_panel=MORE, epilog=reporting_cli.WORTH_EXAMPLES)(expected_errors(reporting_cli.worth))
app.command("plot", rich_help_panel=MORE, epilog=reporting_cli.PLOT_EXAMPLES)(expected_errors(reporting_cli.plot))
app.command("results", rich_help_panel=MORE, epilog=reporting_cli.RESULTS_EXAMPLES)(
    expected_errors(reporting_cli.results)
)
app.command("export", rich_help_panel=MORE, epilog=audit_cli.EXPORT_EXAMPLES)(expected_errors(audit_cli.export))
app.command("audit", rich_help_panel=MORE, epilog=audit_cli.AUDIT_EXAMPLES)(expected_errors(audit_cli.audit))


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="fkgsec")


if __name__ == "__main__":
    main()
