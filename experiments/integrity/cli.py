"""`fkgsec verify-run`: check that run folders are as written, and that figures match their files.
`fkgsec sign`: sign records with a key.

fkgsec verify-run runs/mine
fkgsec verify-run runs --recompute
fkgsec sign runs/mine --key key.pem --make-key
fkgsec verify-run runs/mine --key key.pem.pub
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fkgsec.errors import RunError
from fkgsec.experiments.cli.console import Quiet, make_console
from fkgsec.experiments.runs.writing import Force

if TYPE_CHECKING:
    from fkgsec.experiments.integrity.checks import Check

EXAMPLES = (
    "Examples:\n\n  fkgsec verify-run runs/mine\n\n  fkgsec verify-run runs --recompute\n\n"
    "  fkgsec verify-run runs/mine --key key.pem.pub"
)
SIGN_EXAMPLES = "Examples:\n\n  fkgsec sign runs/mine --key key.pem --make-key\n\n  fkgsec sign results --key key.pem"
BROKEN, UNVERIFIABLE = 1, 3


def verify_run(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="PLACE...", help="run folders, folders that contain some, or record files"),
    ],
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute", help="also repeat evaluation and attacks of each run, which takes as long as the first time"
        ),
    ] = False,
    force: Force = False,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="also require each record to be signed by the owner of this public key"),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Check digests, rounds, bytes and figures of finished runs. Exits 0 all hold, 1 some are broken, 2 wrong input, 3 not all
    can be verified."""
    console = make_console()
    outcomes = set()
    for place, check in _checks(folders, recompute=recompute, force=force, key=key):
        # Report all checks before exiting, so that one broken file does not hide others.
        outcomes.add(check.outcome)
        if not quiet or check.outcome != "holds":
            why = f" ({check.why})" if check.why else ""
            console.print(f"{place}: {check.what} {check.outcome}{why}", highlight=False, soft_wrap=True)
    if "broken" in outcomes:
        raise typer.Exit(BROKEN)
    if "unverifiable" in outcomes:
        raise typer.Exit(UNVERIFIABLE)


def sign(
    places: Annotated[
        list[Path], typer.Argument(metavar="PLACE...", help="record files, or folders with records at any depth")
    ],
    key: Annotated[Path, typer.Option("--key", help="your private key, Ed25519 in PEM format")],
    make_key: Annotated[
        bool, typer.Option("--make-key", help="first create the key, with its public half next to it (.pub)")
    ] = False,
) -> None:
    """Sign records: a file .sig next to each covers the record's digest and the outcomes of its test items."""
    from fkgsec.experiments.integrity.signing import draw_key, sign_record
    from fkgsec.experiments.runs.record import is_record

    records: list[Path] = []
    for place in places:
        at_place = [place] if place.is_file() else sorted(path for path in place.rglob("*.json") if is_record(path))
        if not at_place:
            raise RunError(f"{place}: contains no record")
        records += at_place
    console = make_console()
    if make_key:
        console.print(f"{draw_key(key)}: publish this public key", highlight=False, soft_wrap=True)
    for record in records:
        console.print(f"{sign_record(record, key)}: written", highlight=False, soft_wrap=True)


def _checks(places: list[Path], *, recompute: bool, force: bool, key: Path | None) -> Iterator[tuple[Path, Check]]:
    """Yield each check with the file that it concerns. Raises `RunError` for a place without a run, `SpecError` for memory."""
    from fkgsec.experiments.integrity.checks import check_folder, check_record_file, signature_check
    from fkgsec.experiments.integrity.groups import check_comparison, check_seeds
    from fkgsec.experiments.integrity.recompute import recomputed
    from fkgsec.experiments.runs.compare import COMPARISON_FILE
    from fkgsec.experiments.runs.run import RECORD_FILE
    from fkgsec.experiments.runs.seeds import SEEDS_FILE

    for root in places:
        if root.is_file():
            yield root, check_record_file(root)
            yield from ((root, finding) for finding in signature_check(root, key))
            continue
        if not root.is_dir():
            raise RunError(f"{root}: does not exist")
        runs = sorted(path.parent for path in root.rglob(RECORD_FILE))
        # Comparisons and seeds repeat figures of runs, which must agree with the records.
        groups = sorted(path for name in (COMPARISON_FILE, SEEDS_FILE) for path in root.rglob(name))
        if not runs and not groups:
            raise RunError(f"{root}: contains no {RECORD_FILE}, {COMPARISON_FILE} or {SEEDS_FILE}")
        for folder in runs:
            yield from ((folder, finding) for finding in check_folder(folder))
            yield from ((folder, finding) for finding in signature_check(folder / RECORD_FILE, key))
            if recompute:
                yield from ((folder, finding) for finding in recomputed(folder, force=force))
        for path in groups:
            check = check_comparison if path.name == COMPARISON_FILE else check_seeds
            yield from ((path, finding) for finding in check(path))
