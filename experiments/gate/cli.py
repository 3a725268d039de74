"""The `fkgsec check` command: a policy in, verdicts out, and an exit status for a build system.

fkgsec check --init                                     # propose a policy from a run with the defense and one without
fkgsec check policy.yaml --junit check.xml --sarif check.sarif
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.console import Json, Quiet, make_console
from fkgsec.experiments.gate import CHECK_FILE, SCHEMA, WhenInconclusive
from fkgsec.experiments.runs.spec import CONSORTIUM
from fkgsec.experiments.runs.writing import Force, Overwrite, refused, write_atomically

EPILOG = (
    "Examples:\n\n  fkgsec check --init\n\n  fkgsec check policy.yaml --junit check.xml --sarif check.sarif\n\n"
    "  fkgsec check policy.yaml --inconclusive fail --markdown check.md"
)
# What every report of a kind has in it.
_MARKS = {"json": SCHEMA.encode(), "junit": b"<testsuite", "sarif": b'"fkgsec"', "markdown": b"## fkgsec check: "}


Data = Annotated[str | None, typer.Option("--data", help="for --init: as of `fkgsec train` (default: consortium)")]
Clients = Annotated[int | None, typer.Option("--clients", help="for --init: clients to divide a graph among")]
Partition = Annotated[
    str | None, typer.Option("--partition", help="for --init: how a graph is divided: triples or relations")
]
Inconclusive = Annotated[
    WhenInconclusive, typer.Option("--inconclusive", help="what the exit status is then: 3, 0 or 1")
]
UpdateBaseline = Annotated[
    bool, typer.Option("--update-baseline", help="write the baseline that no_worse_than names from these runs")
]
Examples = Annotated[
    int | None, typer.Option("--examples", min=0, help="rebuilt items to spell out (default: 3 of embedded data)")
]


def check(
    policy: Annotated[Path, typer.Argument(help="YAML file with federations and limits")] = Path("policy.yaml"),
    *,
    init: Annotated[
        bool, typer.Option("--init", help="write a first policy: limits that notice when the defense is taken out")
    ] = False,
    data: Data = None,
    clients: Clients = None,
    partition: Partition = None,
    inconclusive: Inconclusive = "report",
    update_baseline: UpdateBaseline = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="train again what is there already")] = False,
    junit: Annotated[Path | None, typer.Option("--junit", help="write JUnit XML here")] = None,
    sarif: Annotated[Path | None, typer.Option("--sarif", help="write SARIF 2.1.0 here")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="write a summary for a pull request here")] = None,
    json: Json = None,
    examples: Examples = None,
    runs: Annotated[Path, typer.Option("--runs", help="folder; each run gets one of its own in it")] = Path(
        "runs/check"
    ),
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Judge what federations leak, cost and lose by a policy's limits. Exits 0 pass, 1 fail, 2 wrong input, 3 inconclusive."""
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.gate.first_policy import write_first_policy
    from fkgsec.experiments.gate.judge import check_policy
    from fkgsec.experiments.gate.policy import read_policy
    from fkgsec.experiments.gate.verdict_formats import (
        detail_lines,
        headline_lines,
        limits_sheet,
        to_json,
        to_junit,
        to_markdown,
        to_sarif,
    )
    from fkgsec.experiments.reporting.sheets import print_sheets

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
        typer.echo(f"Written {policy}; now: fkgsec check {policy}")
        return
    if not (data is clients is partition is None):
        raise SpecError("--data, --clients and --partition go with --init only; a policy names its data")
    files = {"junit": junit, "sarif": sarif, "markdown": markdown, "json": None if json in (None, "-") else Path(json)}
    _make_way(files, overwrite=overwrite)
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
    formats = {"junit": to_junit, "sarif": to_sarif, "markdown": lambda verdicts: to_markdown(verdicts).encode()}
    for name, file in (files | {"beside": runs / CHECK_FILE}).items():
        if file is not None:
            write_atomically(file, formats.get(name, to_json)(checked))
    if json == "-":
        sys.stdout.write(to_json(checked).decode())
    if not quiet:
        console = make_console(stderr=json == "-")
        console.print("\n".join((*headline_lines(checked), "")), soft_wrap=True, highlight=False)
        print_sheets(console, [limits_sheet(checked)])
        console.print(
            "\n".join(detail_lines(checked)), soft_wrap=True, highlight=False, end="\n" * bool(detail_lines(checked))
        )
    raise typer.Exit(checked.exit_status)


def _make_way(files: dict[str, Path | None], *, overwrite: bool) -> None:
    """Remove reports of an earlier check: one that ends in an error must not leave their verdict behind.

    They are a build's, made anew each time, so this asks for no --overwrite; a file that is no such report does.

    Raises:
        RunError: a file that is something else, or cannot be removed.
    """
    for name, file in files.items():
        if file is None:
            continue
        if not file.absolute().parent.is_dir():
            raise RunError(f"--{name}: {file}: its folder does not exist")
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise RunError(f"--{name}: {file}: is no plain file")
        try:
            content = file.read_bytes() if file.exists() else b""
            if content and _MARKS[name] not in content and not overwrite:
                raise refused(file, f"is no {name} report of an earlier check")
            file.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"--{name}: {file}: cannot be written ({error.strerror})") from error
