"""`fkgsec privacy`: claims of differential privacy by other frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.console import expected_errors, make_console
from fkgsec.experiments.runs.choices import suggestion

privacy_app = typer.Typer(help="Check claims of differential privacy.", no_args_is_help=True)
EXAMPLE = "Example:\n\n  fkgsec privacy notarize examples/privacy.yaml"
SUPPORTED, NOT_SUPPORTED, IN_SOME_CASES = 0, 1, 3


@privacy_app.callback()
def _group() -> None:
    """Check claims of differential privacy."""


@privacy_app.command("notarize", epilog=EXAMPLE)
@expected_errors
def notarize_file(
    file: Annotated[Path, typer.Argument(help="YAML: settings of one mechanism, or a list of them")],
) -> None:
    """Compute which epsilon the settings of Flower, NVFlare, Opacus or TF Privacy give. Exits 0 if all claims are supported, 1 if
    one is not, 2 for wrong input, 3 if one is supported in some cases only.
    """
    from fkgsec.experiments.reporting.sheets import Column, Sheet, print_sheets
    from fkgsec.protocols.noise.guarantee import AccountingError
    from fkgsec.protocols.noise.notary import notarize

    notarized = []
    for line, settings in read_mechanisms(file):
        try:
            notarized.append(notarize(settings))
        except AccountingError as error:
            raise SpecError(f"{file}:{line}: {error}") from error
    sheets = []
    for result in notarized:
        rows = tuple((reading.case, f"{reading.epsilon:.4g}") for reading in result.readings)
        claim = "" if result.claimed is None else f"Claimed: epsilon {result.claimed:g}: {result.verdict}. "
        notes = (
            f"{claim}Delta {result.delta:g}.",
            f"Noise: {result.formula}.",
            *(f"Fails: {text}." for text in result.failing),
            f"Not covered: {'; '.join(result.uncovered)}.",
        )
        sheets.append(Sheet(f"{result.title}: {result.unit}", (Column("case"), Column("epsilon")), rows, notes=notes))
    print_sheets(make_console(), sheets)
    verdicts = {result.verdict for result in notarized}
    raise typer.Exit(
        NOT_SUPPORTED
        if "not supported" in verdicts
        else IN_SOME_CASES
        if "supported in some cases" in verdicts
        else SUPPORTED
    )


def read_mechanisms(path: Path) -> list[tuple[int, Any]]:
    """Read the settings of mechanisms, each with its line.

    Args:
        path: YAML or JSON.

    Raises:
        SpecError: names file and line, the key and what is allowed.
    """
    from fkgsec.experiments.runs.documents import read_document
    from fkgsec.protocols.noise import notary

    kinds: dict[str, Any] = {str(kind.__struct_config__.tag): kind for kind in notary.Mechanism.__subclasses__()}
    document = read_document(path)
    several = isinstance(document.content, list)
    if document.content == []:
        document.wrong((), "expected settings of a mechanism, or a list of them; got an empty list")
    mechanisms = []
    for number, item in enumerate(document.content if several else [document.content]):
        where = (str(number),) if several else ()
        fields = dict(document.mapping(where, item))
        name = fields.pop("mechanism", None)
        if not isinstance(name, str) or name not in kinds:
            document.wrong((*where, "mechanism"), f"must be one of {', '.join(kinds)}; got {name!r}")
        names = kinds[name].__struct_fields__
        for key in fields:
            if key not in names:
                document.wrong((*where, key), f"{name} has no such setting{suggestion(key, names)}")
        try:
            mechanisms.append((document.line(where), msgspec.convert(fields, kinds[name])))
        except msgspec.ValidationError as error:
            key = str(error).rpartition("$.")[2].strip("`") if "$." in str(error) else ""
            document.wrong((*where, key) if key else where, str(error).partition(" - at")[0])
    return mechanisms
