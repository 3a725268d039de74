"""`fkgsec export` and `fkgsec audit`: a run's tables as files, and attacks on tables without training."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.console import Details, Json, Quiet, make_console
from fkgsec.experiments.cli.options import ATTACK_FIELDS, DATA_FIELDS, spec_options
from fkgsec.experiments.runs.spec import Spec, make_spec, require_triples
from fkgsec.experiments.runs.writing import Overwrite, write_new

if TYPE_CHECKING:
    from fkgsec.experiments.audit.table_files import Tables

EXPORT_EXAMPLES = (
    "Examples:\n\n  fkgsec export --run runs/mine --out tables\n\n"
    "  fkgsec export --run runs/mine --out tables.safetensors"
)
AUDIT_EXAMPLES = (
    "Examples:\n\n  fkgsec audit --tables tables --leak 0.5\n\n"
    "  fkgsec audit --tables trained-elsewhere --data my-federation --model complex --threat identifiers"
)
AUDIT_FIELDS = (*DATA_FIELDS, "algorithm", "model", "gamma", "init_epsilon", *ATTACK_FIELDS)


def export(
    run: Annotated[Path, typer.Option("--run", help="a finished run")],
    out: Annotated[Path, typer.Option("--out", help="folder to write, or one file if it ends in .safetensors")],
    overwrite: Overwrite = False,
) -> None:
    """Write the tables of a finished run for `fkgsec audit` and other programs: each client's own tables and its uploads."""
    from fkgsec.experiments.audit.artefacts import collect_tables
    from fkgsec.experiments.audit.table_files import write_tables
    from fkgsec.experiments.runs.run import load_run, read_spec

    require_triples(read_spec(run), "export", "its parameters are in checkpoint.safetensors")
    manifest, tables = collect_tables(*load_run(run))
    written = write_tables(manifest, tables, out, overwrite=overwrite)
    typer.echo(
        f"{'Written to' if written else 'Unchanged, identical files exist in'} {out}: "
        f"tables of {len(tables)} clients, round {manifest.round}"
    )


@spec_options(AUDIT_FIELDS)
def audit(
    *,
    options: dict[str, Any],
    tables: Annotated[
        Path, typer.Option("--tables", help="folder with one folder for each client, or a .safetensors file")
    ],
    json: Json = None,
    scores: Annotated[Path | None, typer.Option("--scores", help="also write every item's score here, Parquet")] = None,
    overwrite: Overwrite = False,
    details: Details = False,
    quiet: Quiet = False,
) -> None:
    """Attack embedding tables without training: tables of `fkgsec export`, PyKEEN, LibKGE or DGL-KE, or plain arrays."""
    from fkgsec.experiments.audit.artefacts import audit_tables
    from fkgsec.experiments.audit.table_files import read_manifest, read_tables
    from fkgsec.experiments.reporting import words
    from fkgsec.experiments.reporting.sheets import print_sheets
    from fkgsec.experiments.reporting.tables import attack_sheets
    from fkgsec.experiments.reporting.verdict import SURE_TABLES, verdict_of, verdict_sheet

    manifest = read_manifest(tables)
    if manifest is None:
        spec, read = _read_foreign(tables, options)
    else:
        if wrong := sorted(set(options) - {*ATTACK_FIELDS, "data"}):
            raise SpecError(f"{tables}: its manifest sets {', '.join(wrong)}; use attack options and --data only")
        # Check the options before reading large files.
        requested = require_triples(make_spec(None, options), "audit")
        spec = msgspec.structs.replace(manifest.spec, **{name: getattr(requested, name) for name in options})
        read = read_tables(tables, manifest.spec.model)
    audited, items = audit_tables(read, spec.load_graph(), spec.federation_options(), spec.attack_options(), manifest)
    if not quiet:
        console = make_console(stderr=json == "-")
        if details:
            print_sheets(console, attack_sheets(audited.figures))
            for line in words.figure_aid(audited.figures):
                console.print(line, soft_wrap=True, highlight=False)
        print_sheets(console, [verdict_sheet(verdict_of(audited.figures), "Verdict on the tables", SURE_TABLES)])
    if scores is not None:
        # Through memory, so that `write_new` can compare with an existing file.
        content = io.BytesIO()
        items.to_parquet(content, index=False)
        write_new(scores, content.getvalue(), overwrite=overwrite)
    if json is not None:
        encoded = msgspec.json.format(msgspec.json.encode(audited), indent=2) + b"\n"
        if json == "-":
            sys.stdout.write(encoded.decode())
        else:
            write_new(Path(json), encoded, overwrite=overwrite)


def _read_foreign(path: Path, options: dict[str, Any]) -> tuple[Spec, Tables]:
    from fkgsec.experiments.audit.artefacts import has_scaled_phases, infer_dim
    from fkgsec.experiments.audit.table_files import read_tables

    if "model" not in options:
        raise SpecError(f"{path}: no manifest names the model of these tables; add --model")
    spec: Spec = require_triples(make_spec(None, options), "audit")
    tables = read_tables(path, spec.model)
    # A wrong scale would give plausible but wrong figures, so there is no default.
    if has_scaled_phases(tables, spec.model) and "gamma" not in options:
        raise SpecError(
            f"{path}: relations are phases times (gamma + init_epsilon) / (pi dim); add --gamma, and --init-epsilon if not 2"
        )
    return msgspec.structs.replace(spec, dim=infer_dim(tables, spec.model)), tables
