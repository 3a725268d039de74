"""`fkgsec unlearn` and `fkgsec verify`: let a run forget, and find out whether it did."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from fkgsec.errors import RunError
from fkgsec.experiments.cli.console import complete_from, make_console
from fkgsec.experiments.runs.choices import allowed, spelled
from fkgsec.experiments.runs.writing import Force, Overwrite, refused, write_atomically, write_new
from fkgsec.experiments.unlearning.options import MIN_REFERENCES, MIN_SHADOWS, AuditOptions, Thresholds
from fkgsec.unlearning.options import UnlearnOptions

if TYPE_CHECKING:
    from fkgsec.experiments.unlearning.verification import Verification

UNLEARN_EXAMPLES = (
    "Examples:\n\n  fkgsec unlearn --run runs/mine --forget forget.tsv --client hospital-1\n\n"
    "  fkgsec unlearn --run runs/mine --forget forget.tsv --method retrain --out runs/mine-reference"
)
VERIFY_EXAMPLES = (
    "Examples:\n\n  fkgsec verify --run runs/mine-fedlu --forget forget.tsv --escrow escrow.json --raw runs/mine\n\n"
    "  fkgsec verify --run runs/mine-fedlu --forget forget.tsv --escrow escrow.json --share 0.05 --references 8 --plants 2"
)
METHODS, VARIANTS = allowed("method", UnlearnOptions), allowed("variant", UnlearnOptions)
DEFAULTS, AUDIT = Thresholds(), AuditOptions()
RECORD_FILE, MARKDOWN_FILE, HTML_FILE = "verification.json", "verification.md", "verification.html"


RunFolder = Annotated[Path, typer.Option("--run", help="a finished run; it is only read")]
ForgetFile = Annotated[
    Path,
    typer.Option("--forget", help="tab-separated head, relation, tail; or a folder with CLIENT.txt for each client"),
]
ClientName = Annotated[
    str | None,
    typer.Option("--client", help="whose triples the file names (default: the only one that holds each)"),
]
MethodName = Annotated[
    str | None,
    typer.Option(
        "--method", help=f"{', '.join(METHODS)} (default: fedlu)", autocompletion=complete_from(lambda: METHODS)
    ),
]
VariantName = Annotated[
    str | None,
    typer.Option(
        "--variant",
        help=f"fedlu: as the paper has it, or as FedLU's code: {', '.join(VARIANTS)}",
        autocompletion=complete_from(lambda: VARIANTS),
    ),
]
DecayEpochs = Annotated[
    int | None,
    typer.Option("--decay-epochs", help="epochs over what is retained (finetune, relabel, fedlu's decay; default: 10)"),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", help="triples per step of unlearning (default: the run's)")
]
Colluders = Annotated[
    int | None,
    typer.Option("--colluders", help="secagg: clients that may tell the server their part of the sum (default: 1)"),
]


def unlearn(
    run: RunFolder,
    forget: ForgetFile,
    *,
    client: ClientName = None,
    method: MethodName = None,
    variant: VariantName = None,
    hard: Annotated[bool | None, typer.Option("--hard/--no-hard", help="fedlu: hard confusion (Eq. 12)")] = None,
    soft: Annotated[bool | None, typer.Option("--soft/--no-soft", help="fedlu: soft confusion (Eq. 13)")] = None,
    mu_soft: Annotated[
        float | None, typer.Option("--mu-soft", help="fedlu: weight of soft confusion (default: 0.1)")
    ] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="epochs over the forget set (default: 10)")] = None,
    decay_epochs: DecayEpochs = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="of unlearning (default: the run's)")
    ] = None,
    batch_size: BatchSize = None,
    colluders: Colluders = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder to write (default: RUN-METHOD beside the run)")
    ] = None,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no summary; errors only")] = False,
) -> None:
    """Let clients of a finished run forget triples. Whether they did is for `fkgsec verify` to say."""
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.unlearning.unlearn import unlearn_run

    given: dict[str, Any] = {
        "method": method, "variant": variant, "hard": hard, "soft": soft, "mu_soft": mu_soft, "epochs": epochs,
        "decay_epochs": decay_epochs, "learning_rate": learning_rate, "batch_size": batch_size, "colluders": colluders,
    }  # fmt: skip
    given |= {name: spelled(name, given[name], words) for name, words in (("method", METHODS), ("variant", VARIANTS))}
    options = UnlearnOptions(**{name: value for name, value in given.items() if value is not None})
    observe = observe_on(make_console(stderr=True), enabled=not quiet)
    folder, unlearning = unlearn_run(
        run, forget, options, client=client, out=out, observe=observe, overwrite=overwrite, force=force
    )
    if not quiet:
        asked = ", ".join(f"{name} {count:,}" for name, count in unlearning.asked.items())
        mrr = unlearning.utility["mrr"]
        of_client = ["--client", client] if client else []
        verify = shlex.join(["fkgsec", "verify", "--run", str(folder), "--forget", str(forget), *of_client])
        typer.echo(f"Verdict: none yet; whether it is forgotten, an audit says: {verify}\n")
        typer.echo(
            f"Unlearned by {options.method}: {asked} triples in {unlearning.seconds:.1f} s; test MRR {mrr}\nWritten to {folder}"
        )
        for line in unlearning.protection:
            typer.echo(f"{line}.")


UnlearnedFolder = Annotated[Path, typer.Option("--run", help="a folder of `fkgsec unlearn`; it is only read")]
Request = Annotated[
    Path | None,
    typer.Option(
        "--forget", help="the request from whoever asked, as for `fkgsec unlearn`; without it never forgotten"
    ),
]
EscrowFile = Annotated[
    Path | None,
    typer.Option("--escrow", help="file of `fkgsec data escrow`: never-seen triples that whoever unlearned never had"),
]
Against = Annotated[
    Path | None,
    typer.Option("--against", help="a re-trained run that was supplied; relied on with --references 0 only"),
]
RawRun = Annotated[Path | None, typer.Option("--raw", help="the run before the request, shown beside it")]
Share = Annotated[float, typer.Option("--share", help="largest share of the forget set that may still be remembered")]
Distinguishability = Annotated[
    float, typer.Option("--distinguishability", help="largest max(AUC, 1 - AUC) that passes")
]
Error = Annotated[
    float, typer.Option("--error", help="chance of an unfounded 'not forgotten' over all measures and tests")
]
References = Annotated[
    int, typer.Option("--references", help=f"re-trainings of the audit's own: 0, or from {MIN_REFERENCES}")
]
Shadows = Annotated[
    int, typer.Option("--shadows", help=f"federations to train on half of it: 0, or even from {MIN_SHADOWS}")
]
Plants = Annotated[
    int, typer.Option("--plants", help="trainings with a share of the forget set left in, to test the audit")
]
AuditSeed = Annotated[
    int | None,
    typer.Option("--audit-seed", help="repeats an audit in --out (default: drawn now, printed afterwards)"),
]
AuditFolder = Annotated[
    Path | None,
    typer.Option(
        "--out", help="folder for record, certificate and the audit's runs (default: RUN-audit beside the run)"
    ),
]


def verify(
    run: UnlearnedFolder,
    *,
    forget: Request = None,
    client: ClientName = None,
    escrow: EscrowFile = None,
    against: Against = None,
    raw: RawRun = None,
    share: Share = DEFAULTS.share,
    distinguishability: Distinguishability = DEFAULTS.distinguishability,
    error: Error = DEFAULTS.error,
    references: References = AUDIT.references,
    shadows: Shadows = AUDIT.shadows,
    plants: Plants = AUDIT.plants,
    relearn_steps: Annotated[
        int, typer.Option("--relearn-steps", help="steps of relearning; 0: none")
    ] = AUDIT.relearn_steps,
    audit_seed: AuditSeed = None,
    out: AuditFolder = None,
    json: Annotated[
        str | None, typer.Option("--json", help="also write the record here; - for standard output")
    ] = None,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no tables")] = False,
) -> None:
    """Audit an unlearning and certify it. Exits 0 forgotten, 1 not forgotten, 2 wrong input, 3 inconclusive."""
    from fkgsec.experiments.cli.progress import observe_on
    from fkgsec.experiments.unlearning.verification import audit_folder, encode
    from fkgsec.experiments.unlearning.verification import verify as verify_run

    target = audit_folder(run, out, audit_seed)
    if json not in (None, "-") and not Path(json).absolute().parent.is_dir():
        raise RunError(f"{json}: its folder does not exist")
    thresholds = Thresholds(distinguishability=distinguishability, error=error, share=share)
    earlier = None if overwrite else _earlier(target / RECORD_FILE)
    _check_repeats(earlier, thresholds, audit_seed, target, named=out is not None)
    made = verify_run(
        run,
        thresholds,
        AuditOptions(
            references=references, shadows=shadows, plants=plants, relearn_steps=relearn_steps, audit_seed=audit_seed
        ),
        forget=forget,
        client=client,
        against=against,
        raw=raw,
        escrow=escrow,
        folder=target,
        observe=observe_on(make_console(stderr=True), enabled=not quiet),
        force=force,
    )
    made = _write(made, earlier, target)
    if json == "-":
        sys.stdout.write(encode(made).decode())
    elif json is not None:
        write_new(Path(json), encode(made), overwrite=overwrite)
    if not quiet:
        _show(made, make_console(stderr=json == "-"))
    raise typer.Exit(made.verdict.exit_status)


def _check_repeats(
    earlier: Verification | None, thresholds: Thresholds, audit_seed: int | None, target: Path, *, named: bool
) -> None:
    """Raises `RunError` unless there is no earlier audit in the folder, or this one repeats it.

    Args:
        named: whether the folder is one that the user named.
    """
    if earlier is None:
        return
    if audit_seed is None:
        # A record beside what is audited may be of whoever unlearned, and so may its seed.
        how = (
            f"which --audit-seed {earlier.seed} repeats" if named else "which only a folder of your own repeats (--out)"
        )
        raise refused(target / RECORD_FILE, f"is an earlier audit, {how}")
    if (earlier.thresholds, earlier.seed) != (thresholds, audit_seed):
        raise refused(target / RECORD_FILE, "has other thresholds or another seed")


def _write(made: Verification, earlier: Verification | None, target: Path) -> Verification:
    """Write record and certificate, or find that they are there. Returns what stands in the folder then.

    Raises:
        RunError: the folder has another verification, or cannot be made.
    """
    from fkgsec.experiments.unlearning.certificate import to_html, to_markdown
    from fkgsec.experiments.unlearning.verification import encode

    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise RunError(f"{target}: cannot be made ({problem.strerror})") from problem
    if earlier is not None:
        if not _says_the_same(made, earlier):
            raise refused(target / RECORD_FILE, "is of another verification")
        return earlier
    write_atomically(target / MARKDOWN_FILE, to_markdown(made).encode())
    write_atomically(target / HTML_FILE, to_html(made).encode())
    write_atomically(target / RECORD_FILE, encode(made))
    return made


def _earlier(path: Path) -> Verification | None:
    """The verification in a file. Raises `RunError` for one that cannot be read."""
    from fkgsec.experiments.unlearning.summary import read_verification

    if not path.exists():
        return None
    found = read_verification(path)
    if found is None:
        raise refused(path, "is no verification of this version")
    return found


def _says_the_same(made: Verification, earlier: Verification) -> bool:
    """Whether two verifications differ in nothing but where and when they were made."""
    from fkgsec.experiments.unlearning.verification import Verification, encode

    # Once through JSON, as the earlier one was: 0 and 0.0 are one value there.
    again = msgspec.json.decode(encode(made), type=Verification)
    return encode(msgspec.structs.replace(again, environment=earlier.environment)) == encode(earlier)


def _show(made: Verification, console: Console) -> None:
    """The verdict with its reasons, what was asked, tables, and what they rest on."""
    from fkgsec.experiments.reporting.sheets import print_sheets
    from fkgsec.experiments.unlearning.certificate import asked_lines, sheets

    console.print(
        f"Verdict: {made.verdict.outcome}; exit status {made.verdict.exit_status}", highlight=False, style="bold"
    )
    for line in (*(f"  {reason}" for reason in made.verdict.reasons), "", *asked_lines(made)):
        console.print(line, soft_wrap=True, highlight=False)
    console.print()
    print_sheets(console, sheets(made, wide=False))
    for line in (*made.assumptions, *made.remarks, *made.forgetting.notes):
        console.print(line, soft_wrap=True, highlight=False)
