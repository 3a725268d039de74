"""`fkgsec data`: list, inspect, divide and generate data of both tasks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from fkgsec.data.catalogue import datasets
from fkgsec.experiments.cli.console import Json, expected_errors, make_console, print_lines
from fkgsec.experiments.cli.options import DATA_FIELDS, spec_options
from fkgsec.experiments.reporting.sheets import Column, Sheet, print_sheets
from fkgsec.experiments.runs.spec import make_spec, require_triples
from fkgsec.experiments.runs.writing import Overwrite, refused, write_atomically, write_new
from fkgsec.experiments.tasks.kge import TASK
from fkgsec.experiments.tasks.task import task_of
from fkgsec.graphs.collection import GROUPS, KNOWN

if TYPE_CHECKING:
    from fkgsec.data.graph import FederatedGraph

data_app = typer.Typer(help="List, inspect, divide and generate data.", no_args_is_help=True)

Config = Annotated[Path | None, typer.Option("--config", help="YAML or JSON file with any of these options as keys")]


@data_app.command("list", epilog="Example:\n\n  fkgsec data list")
@expected_errors
def data_list() -> None:
    """List the data sets that fkgsec can load: from the folder FKGSEC_DATA, else downloaded."""
    catalogue = tuple((dataset.name, dataset.layout, dataset.licence) for dataset in datasets())
    heads = tuple(map(Column, ("name", "layout", "licence")))
    groups = tuple((name, ", ".join(group for group, sets in GROUPS.items() if name in sets)) for name in KNOWN)
    graphs = (Column("set"), Column("in the groups"))
    sheets = [
        Sheet("Knowledge graphs, beside the embedded default 'consortium'", heads, catalogue),
        Sheet("Graphs to classify, beside the generated default 'motifs'", graphs, groups),
    ]
    print_sheets(make_console(), sheets)


@data_app.command(
    "stats", epilog="Examples:\n\n  fkgsec data stats --data DDB14-Fed5\n\n  fkgsec data stats --data MUTAG,BZR,COX2"
)
@expected_errors
@spec_options(DATA_FIELDS)
def data_stats(
    *, options: dict[str, Any], config: Config = None, json: Json = None, overwrite: Overwrite = False
) -> None:
    """Show sizes of each client's data, how models read them, and test triples or graphs that also occur in training
    data.
    """
    spec = make_spec(config, options)
    graph = spec.load_graph()
    sheets, values = task_of(spec).statistics(graph)
    if json is not None:
        # Statistics contain scalars of numpy.
        document = {"name": graph.name, "hash": graph.hash, "warnings": list(graph.warnings), **values}
        content = msgspec.json.encode(document, enc_hook=lambda value: value.item())
        if json == "-":
            sys.stdout.write(content.decode() + "\n")
        else:
            write_new(Path(json), content, overwrite=overwrite)
        return
    console = make_console()
    print_sheets(console, sheets)
    print_lines(console, [f"warning: {warning}" for warning in task_of(spec).warnings(graph)], style="yellow")


@data_app.command(
    "partition",
    epilog="Example:\n\n  fkgsec data partition --data FB15k-237 --clients 3 --partition clusters --out fb-c3",
)
@expected_errors
@spec_options(DATA_FIELDS)
def data_partition(
    *,
    options: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", help="folder to write")],
    config: Config = None,
    overwrite: Overwrite = False,
) -> None:
    """Divide a graph among clients and write a folder with train.txt, valid.txt and test.txt for each client."""
    instead = "graphs to classify are divided by --clients during training"
    _write_and_print(
        require_triples(make_spec(config, options), "data partition", instead).load_graph(), out, overwrite
    )


@data_app.command("generate", epilog="Example:\n\n  fkgsec data generate --clients 5 --size 50000 --out consortium-5")
@expected_errors
def data_generate(
    out: Annotated[Path, typer.Option("--out", help="folder to write")],
    clients: Annotated[int, typer.Option("--clients", help="number of hospitals")] = 3,
    size: Annotated[int, typer.Option("--size", help="total number of triples")] = 13_500,
    seed: Annotated[int, typer.Option("--seed", help="seed; the same seed gives the same graph")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Generate the embedded consortium of hospitals and write it as client folders."""
    from fkgsec.data.consortium import generate_consortium

    _write_and_print(generate_consortium(clients=clients, size=size, seed=seed), out, overwrite)


def _write_and_print(graph: FederatedGraph, out: Path, overwrite: bool) -> None:
    from fkgsec.experiments.runs.federation_files import write_federation

    written, console = write_federation(graph, out, overwrite=overwrite), make_console()
    print_sheets(console, TASK.statistics(graph)[0])
    print_lines(console, [f"warning: {warning}" for warning in graph.warnings], style="yellow")
    print_lines(console, [f"{'Written to' if written else 'Unchanged, identical files exist in'} {out}"])


@data_app.command(
    "escrow",
    epilog="Examples:\n\n  fkgsec data escrow --out consortium --escrow escrow.json\n\n"
    "  fkgsec data escrow --data FB15k-237 --clients 3 --share 0.02 --out fb --escrow fb-escrow.json",
)
@expected_errors
@spec_options(DATA_FIELDS)
def data_escrow(
    *,
    options: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", help="folder to write: data without the escrow")],
    escrow: Annotated[Path, typer.Option("--escrow", help="file to write: withheld triples, for the auditor")],
    share: Annotated[float, typer.Option("--share", help="share of each client's training triples to withhold")] = 0.05,
    config: Config = None,
    overwrite: Overwrite = False,
) -> None:
    """Withhold triples from every run. `fkgsec verify` uses them as triples that the model cannot have seen in
    training.
    """
    import numpy as np

    from fkgsec.data.escrow import Escrow, split_escrow
    from fkgsec.data.formats.folders import read_client_folders
    from fkgsec.experiments.runs.federation_files import write_federation

    if escrow.exists() and not overwrite:
        raise refused(escrow, "exists, and a new random draw would differ")
    graph = require_triples(make_spec(config, options), "data escrow").load_graph()
    # Unseeded on purpose: nobody who knows the data may be able to draw the same escrow.
    remaining, escrowed = split_escrow(graph, share, np.random.default_rng())
    write_federation(remaining, out, overwrite=overwrite)
    # Read the data back: the commitment covers the files that training will read.
    sealed = Escrow.seal(read_client_folders(out), escrowed)
    write_atomically(escrow, msgspec.json.format(msgspec.json.encode(sealed), indent=1) + b"\n")
    counts = ", ".join(f"{name} {len(triples):,}" for name, triples in escrowed.items())
    typer.echo(f"Escrowed: {counts} triples. Written to {out} and {escrow}\nCommitment {sealed.commitment}")
