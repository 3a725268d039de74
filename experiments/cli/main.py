"""The program `fkgsec` and its commands.

    fkgsec --help                                   # these three take a fraction of a second, without torch
    fkgsec train --lerning-rate 0.1
    fkgsec train --algorithm <TAB>

Commands import what they run when they run: a module with commands loads options alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from fkgsec.defenses.options import KINDS
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.audit import cli as audit_cli
from fkgsec.experiments.cli.console import OneLineErrors, complete_from, expected_errors, make_console, say
from fkgsec.experiments.cli.data import Config, Json, data_app
from fkgsec.experiments.cli.engines import ENGINES, Engine, EngineChoice, NumWorkers, Superlink, train_apart
from fkgsec.experiments.cli.options import ATTACK_FIELDS, TRAIN_FIELDS, spec_options
from fkgsec.experiments.cli.training.dry_run import DryRun, Planned, print_plan
from fkgsec.experiments.cli.training.presets import Preset, choose, longer
from fkgsec.experiments.cli.training.printed import Output, print_comparison, print_finished, print_several
from fkgsec.experiments.deploy.cli import deploy_app
from fkgsec.experiments.gate import cli as check_cli
from fkgsec.experiments.integrity import cli as integrity_cli
from fkgsec.experiments.papers.cli import experiment_app
from fkgsec.experiments.reporting import cli as reporting_cli
from fkgsec.experiments.runs.choices import spelled, spelled_case
from fkgsec.experiments.runs.spec import make_spec, of_triples
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
    from fkgsec.experiments.runs.recovery import Unlearning

app = typer.Typer(
    name="fkgsec",
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")
app.add_typer(experiment_app, name="experiment")
app.add_typer(deploy_app, name="deploy")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fkgsec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Train federations of knowledge-graph embedding or graph classification, attack them, and see what leaks, what it costs and
    how good they are."""


Out = Annotated[Path | None, typer.Option("--out", help="run folder (default: runs/<data>-<algorithm>-<model>-<hash>)")]
CheckpointEvery = Annotated[
    float, typer.Option("--checkpoint-every", help="seconds between checkpoints; 0: after every round", min=0)
]
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", help="train so many, counted from --seed, and give intervals over them", min=2),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="log rounds and final figures as they come: tensorboard\\[:FOLDER], mlflow\\[:ADDRESS]; repeatable",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no tables; errors and warnings only")]
ForgetAfter = Annotated[
    Path | None,
    typer.Option(
        "--forget", help="let every case unlearn these triples afterwards, and show what of that round is known"
    ),
]
MethodAfter = Annotated[
    str | None,
    typer.Option(
        "--method",
        help=f"of unlearning, with --forget: {', '.join(unlearn_cli.METHODS)} (default: finetune)",
        autocompletion=complete_from(lambda: unlearn_cli.METHODS),
    ),
]


@app.command(
    epilog="Examples:\n\n  fkgsec train --algorithm fedr --rounds 50\n\n"
    "  fkgsec train --algorithm fede --data FB15k-237 --clients 3 --partition triples --out runs/fb\n\n"
    "  fkgsec train --data FB15k-237 --clients 3 --split-seed 7 --seeds 3\n\n  fkgsec train --config spec.yaml --json -\n\n"
    "  fkgsec train --model pykeen:TransH --track tensorboard:events\n\n"
    "  fkgsec train --data FB15k-237 --clients 100 --engine ray --workers 16\n\n"
    "  fkgsec train --engine flower --superlink consortium/server"
)
@expected_errors
@spec_options(TRAIN_FIELDS)
def train(
    *,
    given: dict[str, Any],
    config: Config = None,
    preset: Preset = None,
    out: Out = None,
    json: Json = None,
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY_S,
    seeds: Seeds = None,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
    track: Track = None,
    engine: Engine = ENGINES[0],
    workers: NumWorkers = None,
    superlink: Superlink = None,
    dry_run: DryRun = False,
) -> None:
    """Train a federation; a killed run goes on when the same command is given again."""
    chosen = EngineChoice.of(engine, workers, superlink)
    wanted = Wanted(
        preset, out, json, checkpoint_every, seeds, overwrite, quiet, force, dry_run, chosen, tuple(track or ()),
        attack=False,
    )  # fmt: skip
    _train_and_report(config, given, wanted)


@app.command(
    epilog="Examples:\n\n  fkgsec attack --target fede --leak 0.5\n\n"
    "  fkgsec attack --target fede --defense psu,secagg --clients 5\n\n"
    "  fkgsec attack --target fedr --data DDB14 --clients 5 --leak 0.3 --leak 1.0\n\n"
    "  fkgsec attack --run runs/fb --threat identifiers --inference score\n\n"
    "  fkgsec attack --target cefgl --threat models\n\n"
    "  fkgsec attack --attack list"
)
@expected_errors
@spec_options((*TRAIN_FIELDS, *ATTACK_FIELDS))
def attack(
    *,
    given: dict[str, Any],
    run: Annotated[Path | None, typer.Option("--run", help="attack this finished run instead of training one")] = None,
    config: Config = None,
    preset: Preset = None,
    out: Out = None,
    json: Json = None,
    checkpoint_every: CheckpointEvery = CHECKPOINT_EVERY_S,
    seeds: Seeds = None,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
    track: Track = None,
    engine: Engine = ENGINES[0],
    workers: NumWorkers = None,
    superlink: Superlink = None,
    dry_run: DryRun = False,
) -> None:
    """Train a federation (or take a finished run), attack it with what an adversary saw, and report what leaked."""
    if given.get("attack") == ["list"]:
        from fkgsec.experiments.reporting import words

        typer.echo("\n".join(words.attack_lines()))
        return
    chosen = EngineChoice.of(engine, workers, superlink)
    if run is None:
        wanted = Wanted(
            preset, out, json, checkpoint_every, seeds, overwrite, quiet, force, dry_run, chosen, tuple(track or ()),
            attack=True,
        )  # fmt: skip
        _train_and_report(config, given, wanted)
        return
    if chosen.engine != ENGINES[0]:
        raise SpecError(
            f"--engine {chosen.engine} is of training, and --run takes a finished run; leave one of them out"
        )
    wrong = sorted(set(given) - set(ATTACK_FIELDS))
    others = (("--config", config), ("--preset", preset), ("--seeds", seeds), ("--track", track or None))
    wrong += [name for name, value in others if value is not None] + ["--dry-run"] * dry_run
    if wrong:
        raise SpecError(f"--run takes attack options only; leave out {', '.join(wrong)}")
    from fkgsec.experiments.cli.progress import RunProgress
    from fkgsec.experiments.runs.run import read_spec, reuse, warnings_of

    asked = make_spec(
        None, given | {"algorithm": read_spec(run).algorithm}
    )  # the values are checked before any data are read
    changes = {name: getattr(asked, name) for name in given}
    with RunProgress(asked, make_console(stderr=True), enabled=not quiet and bool(asked.shadows)) as progress:
        finished, graph = reuse(run, changes, out, progress, overwrite=overwrite)
    print_finished(finished, Output(json, quiet, overwrite), warnings=warnings_of(finished.record.spec, graph))


@app.command(
    "compare",
    epilog="Examples:\n\n  fkgsec compare --leak 0.5\n\n  fkgsec compare --case fedavg --case fedstar --case cefgl/secagg\n\n"
    "  fkgsec compare --data DDB14-Fed5 --case none --case fedr/psu,secagg --case psu,secagg,suppress:t=2",
)
@expected_errors
@spec_options((*(name for name in TRAIN_FIELDS if name != "defense"), *ATTACK_FIELDS))
def compare_cases(
    *,
    given: dict[str, Any],
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
    forget: ForgetAfter = None,
    method: MethodAfter = None,
    config: Config = None,
    preset: Preset = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="folder; each case gets one of its own in it (default: runs/compare-<data>-<hash>)"),
    ] = None,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
    track: Track = None,
    dry_run: DryRun = False,
) -> None:
    """Train and attack the same federation under several defenses: one table, one picture. Finished cases are reused."""
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.reporting import words
    from fkgsec.experiments.runs.compare import base_algorithm, case_spec, compare, folder_name
    from fkgsec.experiments.runs.compare import default_folder as default_comparison
    from fkgsec.experiments.tracking import check_trackers, observe_tracked

    if given.get("attack") == ["list"]:
        typer.echo("\n".join(words.attack_lines()))
        return
    check_trackers(track or ())
    named = [spelled_case(one) for one in case or ()]
    if config is None and not {"algorithm", "data"} & set(given) and (base := base_algorithm(named)):
        given = given | {"algorithm": base}
    chosen = choose(config, given, preset, rows=False)
    spec = chosen.spec
    errors = make_console(stderr=True)
    graph = _load(spec, errors)
    unlearning = _asked_to_forget(spec, graph, forget, method)
    folder = out or default_comparison(spec, graph)
    cases = named or task_of(spec).cases
    if dry_run:
        planned = {name: Planned(case_spec(spec, name), folder / folder_name(name)) for name in cases}
        print_plan(make_console(), chosen, graph, planned, attack=True)
        return
    observe = observe_tracked(
        observe_on(errors, enabled=not quiet, what="case"), track or (), lambda name: folder / folder_name(name), say
    )
    how = {"observe": observe, "overwrite": overwrite, "at_once": 0 if force else 1, "whose": chosen.whose}
    comparison = compare(spec, graph, folder, cases, unlearning=unlearning, **how)
    if not quiet:
        print_comparison(comparison, folder, longer(chosen))


def _load(spec: RunSpec, errors: Console) -> Any:
    """The clients' data, after what a user must know of them."""
    from fkgsec.experiments.runs.run import warnings_of

    graph = spec.load_graph()
    for warning in warnings_of(spec, graph):
        errors.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
    return graph


def _asked_to_forget(spec: RunSpec, graph: Any, forget: Path | None, method: str | None) -> Unlearning | None:
    """What every case of a comparison is to unlearn; None where nothing is."""
    from fkgsec.experiments.runs.recovery import Unlearning
    from fkgsec.unlearning.forget_sets import read_forget

    if method and not forget:
        raise SpecError(f"--method {method} is of unlearning; give --forget FILE too, or leave it out")
    if not forget:
        return None
    of_triples(spec, "compare --forget")
    named: dict[str, Any] = {"method": spelled("method", method or "finetune", unlearn_cli.METHODS)}
    return Unlearning(read_forget(forget, graph, None), UnlearnOptions(**named))


class Wanted(NamedTuple):
    """What a training command is to write, and how: its options beside those of the run."""

    preset: str | None
    out: Path | None
    json: str | None
    checkpoint_every_s: float
    seeds: int | None
    overwrite: bool
    quiet: bool
    force: bool
    dry_run: bool
    engine: EngineChoice
    track: tuple[str, ...]
    attack: bool

    @property
    def output(self) -> Output:
        """What is printed, and where the record goes beside its folder."""
        return Output(self.json, self.quiet, self.overwrite)

    def runs(self, spec: RunSpec, folder: Path) -> dict[str, Planned]:
        """What is trained: the run, or one for each seed."""
        if self.seeds is None:
            return {spec.algorithm: Planned(spec, folder)}
        place = self.out or folder.with_name(f"{folder.name}-seeds")
        seeds = range(spec.seed, spec.seed + self.seeds)
        return {f"seed {seed}": Planned(spec.replace(seed=seed), place / f"seed-{seed}") for seed in seeds}

    def elsewhere(self) -> dict[str, Any]:
        """By name what has no meaning where a consortium's server writes the record."""
        every = None if self.checkpoint_every_s == CHECKPOINT_EVERY_S else self.checkpoint_every_s
        named = {
            "preset": self.preset,
            "out": self.out,
            "seeds": self.seeds,
            "overwrite": self.overwrite,
            "force": self.force,
            "dry-run": self.dry_run,
            "track": bool(self.track),
        }
        return named | {"checkpoint-every": every is not None}


def _train_and_report(config: Path | None, given: dict[str, Any], wanted: Wanted) -> None:
    if wanted.engine.superlink is not None:
        apart = wanted.engine.superlink, config, given, wanted.elsewhere(), wanted.json
        train_apart(*apart, attack=wanted.attack, quiet=wanted.quiet)
        return
    chosen = choose(config, given, wanted.preset)  # a wrong option is refused before anything is loaded
    spec = chosen.spec
    from fkgsec.experiments.cli.progress import RunProgress, observe_on
    from fkgsec.experiments.runs.run import check_run, default_folder, execute
    from fkgsec.experiments.runs.seeds import train_seeds
    from fkgsec.experiments.tracking import Tracked, check_trackers, observe_tracked
    from fkgsec.experiments.tracking import track as start_tracking

    check_trackers(wanted.track)
    if wanted.json not in (None, "-") and not Path(wanted.json).parent.is_dir():
        raise RunError(f"{wanted.json}: its folder does not exist")
    errors = make_console(stderr=True)
    graph = _load(spec, errors)
    folder = wanted.out or default_folder(spec, graph)
    if wanted.dry_run:
        check_run(spec, graph, attack=wanted.attack)
        print_plan(make_console(), chosen, graph, wanted.runs(spec, folder), attack=wanted.attack)
        return
    how = {
        "attack": wanted.attack,
        "checkpoint_every_s": wanted.checkpoint_every_s,
        "overwrite": wanted.overwrite,
        "at_once": 0 if wanted.force else 1,
        "whose": chosen.whose,
    }
    if wanted.seeds is not None:
        folder = wanted.out or folder.with_name(f"{folder.name}-seeds")
        observe = observe_tracked(
            observe_on(errors, enabled=not wanted.quiet),
            wanted.track,
            lambda name: folder / name.replace(" ", "-"),
            say,
        )
        with wanted.engine.training(spec) as make_task:
            several, records = train_seeds(
                spec, graph, folder, wanted.seeds, observe=observe, make_task=make_task, **how
            )
        print_several(several, records, folder, wanted.output, longer(chosen))
        return
    with (
        wanted.engine.training(spec) as make_task,
        Tracked(
            RunProgress(spec, errors, enabled=not wanted.quiet), start_tracking(wanted.track, spec, folder, say)
        ) as progress,
    ):
        finished = execute(spec, graph, folder, observer=progress, make_task=make_task, **how)
    print_finished(finished, wanted.output, remarks=longer(chosen))


app.command("tune", epilog=tune_cli.EXAMPLES)(expected_errors(tune_cli.tune_options))
app.command("unlearn", epilog=unlearn_cli.UNLEARN_EXAMPLES)(expected_errors(unlearn_cli.unlearn))
app.command("verify", epilog=unlearn_cli.VERIFY_EXAMPLES)(expected_errors(unlearn_cli.verify))
app.command("verify-run", epilog=integrity_cli.EXAMPLES)(expected_errors(integrity_cli.verify_run))
app.command("sign", epilog=integrity_cli.SIGN_EXAMPLES)(expected_errors(integrity_cli.sign))
app.command("check", epilog=check_cli.EPILOG)(expected_errors(check_cli.check))
app.command("report", epilog=reporting_cli.REPORT_EXAMPLES)(expected_errors(reporting_cli.report))
app.command("view", epilog=reporting_cli.VIEW_EXAMPLES)(expected_errors(reporting_cli.view))
app.command("plot", epilog=reporting_cli.PLOT_EXAMPLES)(expected_errors(reporting_cli.plot))
app.command("results", epilog=reporting_cli.RESULTS_EXAMPLES)(expected_errors(reporting_cli.results))
app.command("export", epilog=audit_cli.EXPORT_EXAMPLES)(expected_errors(audit_cli.export))
app.command("audit", epilog=audit_cli.AUDIT_EXAMPLES)(expected_errors(audit_cli.audit))


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="fkgsec")


if __name__ == "__main__":
    main()
