"""The `fkgsec check` command: judges a policy, and exits with a status for a build system.

fkgsec check --init                                     # propose a policy from a run with the defense and one without
fkgsec check policy.yaml --junit check.xml --sarif check.sarif
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.console import Json, Quiet, make_console, print_lines
from fkgsec.experiments.gate import CHECK_FILE, SCHEMA, WhenInconclusive
from fkgsec.experiments.runs.spec import CONSORTIUM
from fkgsec.experiments.runs.writing import Force, Overwrite, refused, write_atomically

if TYPE_CHECKING:
    from fkgsec.experiments.gate.judge import Checked

EPILOG = (
    "Examples:\n\n  fkgsec check --init\n\n  fkgsec check policy.yaml --junit check.xml --sarif check.sarif\n\n"
    "  fkgsec check policy.yaml --inconclusive fail --markdown check.md"
)
# Text that every report of a kind contains.
_MARKS = {"json": SCHEMA.encode(), "junit": b"<testsuite", "sarif": b'"fkgsec"', "markdown": b"## fkgsec check: "}


Data = Annotated[
    str | None, typer.Option("--data", help="for --init: data as for `fkgsec train` (default: consortium)")
]
Clients = Annotated[int | None, typer.Option("--clients", help="for --init: clients to divide a graph among")]
Partition = Annotated[
    str | None, typer.Option("--partition", help="for --init: division of a graph by triples or relations")
]
Inconclusive = Annotated[
    WhenInconclusive,
    typer.Option("--inconclusive", help="exit status of an inconclusive check: report 3, pass 0, fail 1"),
]
UpdateBaseline = Annotated[
    bool, typer.Option("--update-baseline", help="write the baseline of no_worse_than from these runs")
]
Examples = Annotated[
    int | None,
    typer.Option("--examples", min=0, help="number of rebuilt items to print (default: 3 for embedded data, else 0)"),
]


def check(
    policy: Annotated[Path, typer.Argument(help="YAML file with federations and limits")] = Path("policy.yaml"),
    *,
    init: Annotated[
        bool, typer.Option("--init", help="write a first policy: limits that fail when the defense is removed")
    ] = False,
    data: Data = None,
    clients: Clients = None,
    partition: Partition = None,
    inconclusive: Inconclusive = "report",
    update_baseline: UpdateBaseline = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="train again even if finished runs exist")] = False,
    junit: Annotated[Path | None, typer.Option("--junit", help="write JUnit XML here")] = None,
    sarif: Annotated[Path | None, typer.Option("--sarif", help="write SARIF 2.1.0 here")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="write a summary for a pull request here")] = None,
    json: Json = None,
    examples: Examples = None,
    runs: Annotated[Path, typer.Option("--runs", help="folder with a subfolder for each run")] = Path("runs/check"),
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Judge leakage, cost and utility by the limits of a policy. Exits 0 pass, 1 fail, 2 wrong input, 3 inconclusive."""
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.gate.first_policy import write_first_policy
    from fkgsec.experiments.gate.judge import check_policy
    from fkgsec.experiments.gate.policy import read_policy
    from fkgsec.experiments.gate.verdict_formats import to_json

    errors = make_console(stderr=True)
    observe = observe_on(errors, enabled=not quiet)
    if init:
        write_first_policy(
            policy,
            data or CONSORTIUM,
            clients,
            runs,
            observe=observe,
            partition=partition,
            overwrite=overwrite,
            force=force,
        )
        typer.echo(f"Written to {policy}. Next: fkgsec check {policy}")
        return
    if not (data is clients is partition is None):
        raise SpecError("--data, --clients and --partition apply to --init only; a policy names its data")
    files = {"junit": junit, "sarif": sarif, "markdown": markdown, "json": None if json in (None, "-") else Path(json)}
    _make_way(files, overwrite=overwrite)
    # `fkgsec report` includes this file, so an outdated one must not stay either.
    _make_way({"json": runs / CHECK_FILE if runs.is_dir() else None}, overwrite=overwrite)
    checked = check_policy(
        read_policy(policy),
        runs,
        observe=observe,
        warn=lambda line: errors.print(f"warning: {line}", style="yellow", highlight=False, soft_wrap=True),
        fresh=fresh,
        update_baseline=update_baseline,
        when_inconclusive=inconclusive,
        num_examples=examples,
        force=force,
    )
    _write_reports(checked, files, runs)
    if json == "-":
        sys.stdout.write(to_json(checked).decode())
    if not quiet:
        _print_verdict(checked, make_console(stderr=json == "-"))
    raise typer.Exit(checked.exit_status)


def _write_reports(checked: Checked, files: dict[str, Path | None], runs: Path) -> None:
    """Write the requested reports, and the JSON that `fkgsec report` finds next to the runs."""
    from fkgsec.experiments.gate.verdict_formats import to_json, to_junit, to_markdown, to_sarif

    formats = {"junit": to_junit, "sarif": to_sarif, "markdown": lambda verdicts: to_markdown(verdicts).encode()}
    for name, file in (files | {"beside": runs / CHECK_FILE}).items():
        if file is not None:
            write_atomically(file, formats.get(name, to_json)(checked))


def _print_verdict(checked: Checked, console: Console) -> None:
    """Print the verdict first, then all limits, then details about those that do not pass."""
    from fkgsec.experiments.gate.verdict_formats import detail_lines, headline_lines, limits_sheet
    from fkgsec.experiments.reporting.sheets import print_sheets

    print_lines(console, [*headline_lines(checked), ""])
    print_sheets(console, [limits_sheet(checked, narrow=True)])
    print_lines(console, detail_lines(checked))


def _make_way(files: dict[str, Path | None], *, overwrite: bool) -> None:
    """Remove reports of an earlier check, so that a check that ends in an error leaves no outdated verdict.

    A build renews its reports each time, so they are replaced without --overwrite; other files are not.

    Raises:
        RunError: a file is something else, or cannot be removed.
    """
    for name, file in files.items():
        if file is None:
            continue
        if not file.absolute().parent.is_dir():
            raise RunError(f"--{name}: {file}: its folder does not exist")
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise RunError(f"--{name}: {file}: is not a plain file")
        try:
            content = file.read_bytes() if file.exists() else b""
            if content and _MARKS[name] not in content and not overwrite:
                raise refused(file, f"is not a {name} report of an earlier check")
            file.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"--{name}: {file}: cannot be written ({error.strerror})") from error
