"""`fkgsec unlearn` and `fkgsec verify`: let a run forget, and find out whether it did."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import typer
from rich.console import Console

from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.cli.console import Details, Json, Quiet, make_console, print_lines
from fkgsec.experiments.cli.options import HELP_ALL, HelpAll, ShortHelp, struct_options
from fkgsec.experiments.runs.choices import allowed, spelled
from fkgsec.experiments.runs.writing import Force, Overwrite, refused, write_atomically, write_new
from fkgsec.experiments.unlearning.options import AUDIT_FILE, DEFAULT_REQUEST, AuditOptions, Thresholds
from fkgsec.unlearning.options import UnlearnOptions

if TYPE_CHECKING:
    from fkgsec.experiments.unlearning.verification import Verification

UNLEARN_EXAMPLES = (
    "Examples:\n\n  fkgsec unlearn --run runs/mine --forget forget.tsv --client hospital-1\n\n"
    "  fkgsec unlearn --run runs/mine --forget forget.tsv --method retrain --out runs/mine-reference"
)
VERIFY_EXAMPLES = (
    "Examples:\n\n  fkgsec verify --run runs/mine --power --request 200\n\n"
    "  fkgsec verify --run runs/mine-fedlu --forget forget.tsv --escrow escrow.json --raw runs/mine\n\n"
    "  fkgsec verify --run runs/mine-fedlu --forget forget.tsv --escrow escrow.json --share 0.05 --budget 32 --plants 2"
)
METHODS = allowed("method", UnlearnOptions)
MARKDOWN_FILE, HTML_FILE = "verification.md", "verification.html"
ANNEX_FILES = "annex.md", "annex.html"
ClientName = Annotated[
    str | None,
    typer.Option("--client", help="whose triples the file names (default: the only one that holds each)"),
]


@struct_options(UnlearnOptions)
def unlearn(
    *,
    options: dict[str, Any],
    run: Annotated[Path, typer.Option("--run", help="a finished run; it is only read")],
    forget: Annotated[
        Path,
        typer.Option(
            "--forget", help="tab-separated head, relation, tail; or a folder with CLIENT.txt for each client"
        ),
    ],
    client: ClientName = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder to write (default: RUN-METHOD beside the run)")
    ] = None,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Unlearn triples in a finished run, at the request of clients. Then audit it with `fkgsec verify`."""
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.unlearning.unlearn import unlearn_run

    words = {
        name: spelled(name, value, allowed(name, UnlearnOptions))
        for name, value in options.items()
        if isinstance(value, str)
    }
    settings = UnlearnOptions(**options | words)
    observe = observe_on(make_console(stderr=True), enabled=not quiet)
    folder, unlearning = unlearn_run(
        run, forget, settings, client=client, out=out, observe=observe, overwrite=overwrite, force=force
    )
    if not quiet:
        counts = ", ".join(f"{name} {count:,}" for name, count in unlearning.asked.items())
        of_client = ["--client", client] if client else []
        verify = shlex.join(["fkgsec", "verify", "--run", str(folder), "--forget", str(forget), *of_client])
        typer.echo(f"No verdict yet. Audit the unlearning: {verify}\n")
        mrr = unlearning.utility["mrr"]
        typer.echo(f"Unlearned by {settings.method}: {counts} triples in {unlearning.seconds:.1f} s; test MRR {mrr}")
        typer.echo("\n".join([f"Written to {folder}", *(f"{line}." for line in unlearning.protection)]))


class VerifyHelp(ShortHelp):
    """The first help of `fkgsec verify`."""

    basic: ClassVar = {
        "run": ("Audit", "folder of fkgsec unlearn (not changed)"),
        "forget": ("Audit", "the request; required for 'forgotten'"),
        "client": ("Audit", "client whose triples the request names"),
        "escrow": ("Audit", "triples of fkgsec data escrow, never trained on"),
        "raw": ("Audit", "the run before the request, shown beside it"),
        "out": ("Audit", "folder of certificate and audit (default: RUN-audit)"),
        "auditor": ("Audit", "name of the auditor, for the certificate"),
        "overwrite": ("Audit", "replace an audit that has other settings"),
        "details": ("Audit", "print every table above the verdict"),
        "help": ("Audit", "show this help"),
        HELP_ALL: ("Audit", "show all options"),
        "share": ("Rule", "tolerated remembered share (default: 0.1)"),
        "error": ("Rule", "chance of a wrong rejection (default: 0.05)"),
        "budget": ("Rule", "most re-trainings of the audit (default: 16)"),
        "replay": ("Rule", "first repeat a re-training exactly (default: on)"),
        "power": ("Before an unlearning", "compute whether a request can earn a certificate"),
        "request": ("Before an unlearning", "number of triples to ask about (default: 200)"),
    }


@struct_options(Thresholds, AuditOptions)
def verify(
    *,
    options: dict[str, Any],
    run: Annotated[Path, typer.Option("--run", help="folder of `fkgsec unlearn` (not changed)")],
    forget: Annotated[
        Path | None,
        typer.Option(
            "--forget",
            help="the request, from the client that made it, as for `fkgsec unlearn`; without it, the verdict is never forgotten",
        ),
    ] = None,
    client: ClientName = None,
    escrow: Annotated[
        Path | None,
        typer.Option("--escrow", help="file of `fkgsec data escrow`: triples that the unlearning party never had"),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", help="a re-trained run from another party; used only with --references 0"),
    ] = None,
    power: Annotated[
        bool,
        typer.Option(
            "--power",
            help="before any unlearning: can a request to the run of `fkgsec train` in --run earn a certificate?",
        ),
    ] = False,
    request: Annotated[
        int,
        typer.Option("--request", min=2, help="with --power and without --forget: number of triples of the request"),
    ] = DEFAULT_REQUEST,
    raw: Annotated[Path | None, typer.Option("--raw", help="the run before the request, shown beside it")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="folder for record, certificate and the audit's runs (default: RUN-audit beside the run)"
        ),
    ] = None,
    json: Json = None,
    overwrite: Overwrite = False,
    force: Force = False,
    details: Details = False,
    quiet: Quiet = False,
    help_all: HelpAll = False,
) -> None:
    """Audit an unlearning and certify it. Exits 0 forgotten, 1 not forgotten, 2 wrong input, 3 inconclusive."""
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.unlearning.power import forecast_lines, forecast_verdict
    from fkgsec.experiments.unlearning.verification import audit_folder
    from fkgsec.experiments.unlearning.verification import verify as verify_run

    thresholds = Thresholds(**{name: options[name] for name in Thresholds.__struct_fields__ if name in options})
    settings = AuditOptions(**{name: options[name] for name in AuditOptions.__struct_fields__ if name in options})
    if json not in (None, "-") and not Path(json).absolute().parent.is_dir():
        raise RunError(f"{json}: its folder does not exist")
    common = {
        "forget": forget,
        "client": client,
        "escrow": escrow,
        "observe": observe_on(make_console(stderr=True), enabled=not quiet),
        "force": force,
    }
    console = make_console(stderr=json == "-")
    if power:
        for name, value in (("--against", against), ("--raw", raw)):
            if value is not None:
                raise SpecError(f"{name} does not apply with --power; leave it out")
        forecast = forecast_verdict(run, thresholds, settings, request=request, folder=out, **common)
        _write_json(forecast, json, overwrite=overwrite)
        print_lines(console, forecast_lines(forecast, thresholds))
        raise typer.Exit(0 if forecast.earned else 3)
    target = audit_folder(run, out, settings.audit_seed)
    earlier = None if overwrite else _earlier(target / AUDIT_FILE, thresholds, settings, own_folder=out is not None)
    verification = verify_run(run, thresholds, settings, against=against, raw=raw, folder=target, **common)
    verification = _write(verification, earlier, target)
    _write_json(verification, json, overwrite=overwrite)
    if not quiet:
        _show(verification, console, target, details=details)
    raise typer.Exit(verification.verdict.exit_status)


def _write_json(record: msgspec.Struct, json: str | None, *, overwrite: bool) -> None:
    """Write a record where `--json` says, if anywhere."""
    from fkgsec.experiments.unlearning.verification import encode

    if json == "-":
        sys.stdout.write(encode(record).decode())
    elif json is not None:
        write_new(Path(json), encode(record), overwrite=overwrite)


def _write(verification: Verification, earlier: Verification | None, target: Path) -> Verification:
    """Write record and certificate, or find that they are there. Returns what stands in the folder then.

    Raises:
        RunError: the folder has another verification, or cannot be made.
    """
    from fkgsec.experiments.unlearning.certificate import to_html, to_markdown
    from fkgsec.experiments.unlearning.verification import Verification, encode

    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise RunError(f"{target}: cannot be made ({problem.strerror})") from problem
    if earlier is not None:
        # Once through JSON, as the earlier one was: 0 and 0.0 are one value there. They may differ in where and when they were
        # made.
        again = msgspec.json.decode(encode(verification), type=Verification)
        again = msgspec.structs.replace(again, environment=earlier.environment, audited_on=earlier.audited_on)
        if encode(again) != encode(earlier):
            raise refused(target / AUDIT_FILE, "is of another verification")
        return earlier
    for names, annex in (((MARKDOWN_FILE, HTML_FILE), False), (ANNEX_FILES, True)):
        for name, write in zip(names, (to_markdown, to_html), strict=True):
            write_atomically(target / name, write(verification, annex=annex).encode())
    write_atomically(target / AUDIT_FILE, encode(verification))
    return verification


def _earlier(path: Path, thresholds: Thresholds, settings: AuditOptions, *, own_folder: bool) -> Verification | None:
    """Read the verification in a file. Raises `RunError` for one that cannot be read, or that this audit does not repeat."""
    from fkgsec.experiments.unlearning.verification import read_verification

    if not path.exists():
        return None
    earlier = read_verification(path)
    if earlier is None:
        raise refused(path, "is no verification of this version")
    if settings.audit_seed is None:
        # A record beside what is audited may come from the party that unlearned, and so may its seed.
        named = f"which --audit-seed {earlier.seed} repeats"
        how = named if own_folder else "which only a folder of your own repeats (--out)"
        raise refused(path, f"is an earlier audit, {how}")
    if (earlier.thresholds, earlier.seed) != (thresholds, settings.audit_seed):
        raise refused(path, "has other thresholds or another seed")
    return earlier


def _show(verification: Verification, console: Console, folder: Path, *, details: bool) -> None:
    """Print the tables if asked for, then the request and the verdict with its reasons."""
    from fkgsec.experiments.reporting.sheets import print_sheets
    from fkgsec.experiments.unlearning.certificate import MOST_REASONS, asked_lines, sheets

    asked, verdict = asked_lines(verification), verification.verdict
    if details:
        print_lines(console, [*asked, ""])
        print_sheets(console, sheets(verification, wide=False))
        print_lines(console, [*verification.assumptions, *verification.remarks, *verification.forgetting.notes, ""])
    print_lines(console, asked[:1])
    console.print(f"Verdict: {verdict.outcome}; exit status {verdict.exit_status}", highlight=False, style="bold")
    shown = verdict.reasons if details else verdict.reasons[:MOST_REASONS]
    more = len(verdict.reasons) - len(shown)
    print_lines(console, [f"  {reason}" for reason in shown] + [f"  and {more} more in the certificate"] * bool(more))
    print_lines(console, [f"Certificate: {folder / HTML_FILE}. Every table: {ANNEX_FILES[1]} beside it, or --details"])
