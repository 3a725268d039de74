"""`fkgsec results`, `view`, `report`, `worth` and `plot`: finished runs as tables, pages and pictures.

fkgsec results runs --where threat_model=identifiers --where metric=trr --sort value --csv runs.csv
fkgsec report runs/fede runs/secagg --out report.html
"""

from __future__ import annotations

import io
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fkgsec.attacks.figure import LEAKS, over_victims
from fkgsec.errors import FkgsecError, RunError, SpecError
from fkgsec.experiments.cli.console import Quiet, complete_from, make_console, say
from fkgsec.experiments.runs.choices import spelled
from fkgsec.experiments.runs.writing import Overwrite, write_new
from fkgsec.text import printable
from fkgsec.version import __version__

if TYPE_CHECKING:
    from fkgsec.experiments.reporting.sheets import Sheet
    from fkgsec.experiments.runs.record import Record

RESULTS_EXAMPLES = (
    "Examples:\n\n  fkgsec results runs\n\n"
    "  fkgsec results runs --where algorithm=fede --where metric=trr --sort value\n\n"
    "  fkgsec results runs other-runs --csv runs.csv --tensorboard events"
)
VIEW_EXAMPLES = "Examples:\n\n  fkgsec view\n\n  fkgsec view results --out results.html --no-browser"
REPORT_EXAMPLES = (
    "Examples:\n\n  fkgsec report runs/mine\n\n  fkgsec report runs/defenses/comparison.json --out defenses.html\n\n"
    "  fkgsec report runs/mine check.json runs/mine-fedlu-audit"
)
PLOT_EXAMPLES = (
    "Examples:\n\n  fkgsec plot runs/mine\n\n  fkgsec plot runs --kind utility-leakage --kind bytes --format svg\n\n"
    "  fkgsec plot runs/defenses/comparison.json --out pictures"
)
WORTH_EXAMPLES = (
    "Examples:\n\n  fkgsec worth runs/defenses\n\n  fkgsec worth runs/seed-0 runs/seed-1 runs/seed-2 --out worth"
)
FORMATS = ("png", "svg")
# Function of `pictures` that draws each kind of picture.
PICTURES = {
    "utility-leakage": "utility_leakage",
    "convergence": "convergence",
    "bytes": "bytes_by_run",
    "heat-map": "heat_map",
    "roc": "roc",
    "risk": "risk_by_relation",
}
OF_ONE_RUN = ("roc", "risk")


def results(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="folders to search for record.json, or record files (default: runs)")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="show only matching rows, such as algorithm=fede or mrr>0.3; repeatable"),
    ] = None,
    sort_by: Annotated[
        str | None, typer.Option("--sort", help="sort by a column: numbers from the largest, words from A")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="reverse the order")] = False,
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
    quiet: Quiet = False,
) -> None:
    """List finished runs: settings, utility, leakage by threat model, bytes, seconds and commit."""
    from fkgsec.experiments.reporting.frames import figures
    from fkgsec.experiments.reporting.listing import WIDE, listing_table, select, sort
    from fkgsec.experiments.reporting.reading import find_records
    from fkgsec.experiments.reporting.sheets import as_csv
    from fkgsec.experiments.tracking import log_mlflow, log_tensorboard

    records, damaged = find_records(paths or [Path("runs")])
    for line in damaged:
        say(f"fkgsec: left out: {line}")
    if not records:
        # The lines above already say what is wrong with each file.
        raise typer.Exit(RunError.exit_status)
    # One row per figure over all victims; per-victim rows would drown the listing.
    frame = select(figures(records, over_victims), where or [])
    if sort_by is not None:
        frame = sort(frame, sort_by, reverse=reverse)
    if not quiet:
        console = make_console(stderr=csv == "-")
        # A program that reads the output needs every column.
        if not console.is_terminal:
            console.width = WIDE
        table, left_out = listing_table(frame, console.width)
        console.print(table)
        if left_out:
            console.print(f"Too wide to show: {', '.join(left_out)} (--csv writes every column)", soft_wrap=True)
    if csv == "-":
        sys.stdout.write(as_csv(frame))
    elif csv is not None:
        write_new(Path(csv), as_csv(frame).encode(), overwrite=overwrite)
    if parquet is not None:
        # Through memory, so that `write_new` can compare with an existing file.
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        write_new(parquet, buffer.getvalue(), overwrite=overwrite)
    chosen = {name: records[name] for name in dict.fromkeys(frame["run"])}
    if tensorboard is not None:
        log_tensorboard(chosen, tensorboard, overwrite=overwrite)
    if mlflow is not None:
        log_mlflow(chosen, mlflow)


def view(
    runs: Annotated[Path, typer.Argument(help="folder, searched for runs and audits at any depth")] = Path("runs"),
    *,
    out: Annotated[Path, typer.Option("--out", help="the page to write")] = Path("runs.html"),
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open the page in a browser")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Write one HTML page that lists all runs of a folder, to filter and sort, and open it."""
    # A path such as runs/mine/record.json would be replaced.
    _require_html(out)
    about, page = render_overview(runs)
    write_new(out, page.encode(), overwrite=overwrite)
    typer.echo(f"Written to {out}: {about}")
    if browser:
        webbrowser.open(out.resolve().as_uri())


def _require_html(out: Path) -> None:
    if out.suffix not in (".html", ".htm"):
        raise SpecError(f"out must end with .html, so that no record is replaced; got {out}")


def render_overview(root: Path) -> tuple[str, str]:
    """Render the page of all runs and audits below a folder.

    Args:
        root: folder, searched at any depth.

    Returns:
        A line about the content, and the page.

    Raises:
        RunError: the folder does not exist, or has neither a record nor an audit at any depth.
    """
    from fkgsec.experiments.reporting.pages import render_page
    from fkgsec.experiments.reporting.reading import find_records
    from fkgsec.experiments.reporting.sheets import Column, Sheet, count
    from fkgsec.experiments.runs.run import RECORD_FILE
    from fkgsec.experiments.unlearning.options import AUDIT_FILE
    from fkgsec.experiments.unlearning.verification import read_verification

    if not root.is_dir():
        raise RunError(f"{root}: no such folder; fkgsec view takes a folder with runs in it")
    records: dict[str, Record] = {}
    damaged: list[str] = []
    if any(root.rglob(RECORD_FILE)):
        records, damaged = find_records([root])
    audits = []
    for file in sorted(root.rglob(AUDIT_FILE)):
        try:
            audit = read_verification(file)
        except FkgsecError as error:
            damaged.append(str(error))
            continue
        if audit is not None:
            request = (f"{client}: {count(number, 'triple')}" for client, number in audit.unlearning.asked.items())
            name = printable(file.parent.relative_to(root).as_posix())
            audits.append((name, audit.verdict.outcome, audit.unlearning.options.method, ", ".join(request)))
    # A page that lists only damaged files is still useful.
    if not records and not damaged and not audits:
        raise RunError(f"{root}: no {RECORD_FILE} at any depth; fkgsec train and attack write them")
    about = count(len(records), "run") + (f", {len(damaged)} damaged" if damaged else "")
    audit_heads = tuple(map(Column, ("audit", "verdict", "method", "request")))
    page = render_page(
        "overview.html.j2",
        about=f"{about} below {printable(str(root))}",
        runs=_overview_sheet(records) if records else None,
        audits=Sheet("Unlearning audits", audit_heads, tuple(audits)) if audits else None,
        damaged=[printable(line) for line in damaged],
        version=__version__,
    )
    return about, page


def _overview_sheet(records: dict[str, Record]) -> Sheet:
    from fkgsec.experiments.reporting.sheets import Column, Sheet
    from fkgsec.experiments.reporting.verdict import RULE, adversary, figure_text, verdict_of

    rows = []
    for name, record in records.items():
        verdict = verdict_of(record.figures)
        # Figures are ranked, so the first leak is the worst.
        leaks = [figure for label, figure in verdict.measured if label == LEAKS][:1]
        rows.append((
            printable(name), record.spec.algorithm, record.spec.defense or "none",
            f"{record.data.name}, {len(record.data.clients)} clients, seed {record.seed}",
            record.metric, record.utility[record.metric], verdict.brief,
            "".join(f"{figure_text(figure)}: {adversary(figure)}" for figure in leaks),
            record.bytes.up + record.bytes.down, sum(entry.seconds for entry in record.rounds),
        ))  # fmt: skip
    columns = (
        *map(Column, ("run", "algorithm", "defense", "data", "metric")), Column("test utility", "figure"), Column("leaks"),
        Column("worst figure"), Column("MiB", "MiB"), Column("s", "s"),
    )  # fmt: skip
    note = f"{RULE} The worst figure has the largest excess over its baseline. NO EVIDENCE does not prove that nothing leaks."
    return Sheet("Runs", columns, tuple(rows), notes=(note,))


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="run folders, records, comparisons (all cases of each), folders of verify, and files of check --json; the "
            "verdict of check next to a run is included automatically"
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="the page to write")] = Path("report.html"),
    examples: Annotated[bool, typer.Option(help="show triples of the victims that the adversary claims")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Write one HTML page about finished runs: leaks by adversary, guarantees, utility, bytes, provenance."""
    from fkgsec.experiments.reporting.html.page import assemble, judged_beside, read_judged, render
    from fkgsec.experiments.reporting.reading import name_of, read_runs
    from fkgsec.experiments.reporting.sheets import count

    _require_html(out)
    judged = {path: verdict for path in runs if (verdict := read_judged(path)) is not None}
    places = [path for path in runs if path not in judged]
    shown = read_runs(places)
    if not shown:
        raise RunError("a verdict or an audit needs a run to report on; add a run folder")
    verdicts = judged_beside(places, shown) | {path.resolve(): verdict for path, verdict in judged.items()}
    by_name = [(name_of(path), verdict) for path, verdict in verdicts.items()]
    page = render(assemble(shown, examples=examples, judged=by_name)).encode()
    write_new(out, page, overwrite=overwrite)
    typer.echo(f"Written to {out}: {count(len(shown), 'run')}, {len(page) / 1024:,.0f} KiB")


def worth(
    runs: Annotated[
        list[Path],
        typer.Argument(help="comparisons, run folders or folders with these: each defense, and training alone"),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="folder for worth.md and worth.png")] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Compare the gain from joining with the leaks, for each defense, over all seeds of the runs."""
    from fkgsec.experiments.reporting import pictures
    from fkgsec.experiments.reporting.joining import joining_picture, joining_sheet, weigh
    from fkgsec.experiments.reporting.reading import read_runs
    from fkgsec.experiments.reporting.sheets import markdown_lines, print_sheets

    worths = weigh(run.record for run in read_runs(runs))
    sheet = joining_sheet(worths)
    if out is not None:
        lines = [f"# {sheet.title}", "", *markdown_lines(sheet), "", *(f"{note}  " for note in sheet.notes)]
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{out}: cannot be made ({error.strerror})") from error
        write_new(out / "worth.md", ("\n".join(lines) + "\n").encode(), overwrite=overwrite)
        write_new(out / "worth.png", pictures.saved(joining_picture(worths)), overwrite=overwrite)
    if not quiet:
        print_sheets(make_console(), [sheet])


def plot(
    runs: Annotated[list[Path], typer.Argument(help="run folders, records, comparisons, or folders of these")],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            help=f"pictures: {', '.join(PICTURES)}; repeatable (default: all that apply to the runs)",
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
    out: Annotated[Path, typer.Option("--out", help="folder to write")] = Path("pictures"),
    overwrite: Overwrite = False,
) -> None:
    """Draw finished runs: utility against leakage, convergence, bytes, heat map, ROC, risk by relation."""
    from fkgsec.experiments.reporting import pictures
    from fkgsec.experiments.reporting.reading import read_runs
    from fkgsec.experiments.runs.compare import folder_name

    kinds = spelled("kind", kind or list(PICTURES), PICTURES)
    formats = spelled("format", form or list(FORMATS), FORMATS)
    shown = read_runs(runs)
    if len(shown) > pictures.MOST_RUNS:
        raise RunError(f"plot: at most {pictures.MOST_RUNS} runs can be told apart in one picture; got {len(shown)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{out}: cannot be made ({error.strerror})") from error
    num_written = 0
    for name in kinds:
        # These pictures show one run each; the others show all runs together.
        for group in [[run] for run in shown] if name in OF_ONE_RUN else [shown]:
            stem = name if group == shown else f"{name}-{folder_name(group[0].name)}"
            figure = getattr(pictures, PICTURES[name])(group)
            if figure is None:
                # Silent by default: the user did not request this kind.
                if kind:
                    say(f"fkgsec: left out: {stem}: {', '.join(run.name for run in group)} has nothing to draw")
                continue
            for ending in formats:
                write_new(out / f"{stem}.{ending}", pictures.saved(figure, ending), overwrite=overwrite)
                num_written += 1
    if not num_written:
        raise RunError(f"plot: nothing to draw in {', '.join(map(str, runs))}: {', '.join(kinds)} need attacked runs")
    typer.echo(f"Written to {out}: {num_written} files")
