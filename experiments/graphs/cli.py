"""`fkgsec graphs`: train federations of graph classifiers, and look at their data."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from experiments.cli.console import expected_errors, make_console
from experiments.cli.progress import RunProgress
from experiments.graphs.spec import GraphSpec
from experiments.runs.writing import Overwrite, refused, write_new
from fkgsec.errors import RunError
from fkgsec.federation.loop import CHECKPOINT, CHECKPOINT_EVERY_S, run_federation, run_identity
from fkgsec.federation.recipes import algorithms_of, all_settings

if TYPE_CHECKING:
    from experiments.graphs.record import GraphRecord

graphs_app = typer.Typer(help="Federated graph classification: data and training.", no_args_is_help=True)

HELP = {
    "data": "motifs (generated), a set or several (MUTAG,BZR), a group (CHEM, SN, BIO, CV, ...) or a TU folder",
    "clients": "over how many clients one set is divided; of generated data, how many there are",
    "partition": "how one set is divided: random, or chunks as GCFL's code does",
    "size": "generated graphs in all",
    "split_seed": "of divisions, splits and generated data; --seed redraws none of these",
    "clean": "keep isomorphic graphs on one side of the split",
    "algorithm": "how the federation learns",
    "model": "gin, gcn, sage, or the dotted name of a convolution such as torch_geometric.nn.GATConv",
    "layers": "convolutions",
    "width": "numbers of a node in each",
    "dropout": "share of values dropped in training",
    "readout": "how nodes become a graph: sum, mean, max",
    "defense": "psu, secagg, suppress, dp, with settings: psu,secagg",
    "rounds": "of local training, so many",
    "local_epochs": "epochs of a client in a round",
    "batch_size": "graphs in a batch",
    "optimizer": "of local training: adam, or plain sgd",
    "local_steps": "batches of a client in each epoch (default: all); with sgd and 1, an upload is a gradient",
    "learning_rate": "of the optimizer",
    "weight_decay": "of the optimizer",
    "select": "which graphs say what round is kept: validation, or test, as GCFL's code does",
    "eval_every": "rounds between validations",
    "patience": "stop after so many validations without a better one; 0: never",
    "participation": "share of clients that train in a round",
    "seed": "everything random in training derives from it",
    "protocol_seed": "for tests only: fixes keys, masks and noise of the defense",
    "device": "auto, cpu, cuda or cuda:N",
}
DATA_FIELDS = ("data", "clients", "partition", "size", "split_seed", "clean")
SETTINGS = "Settings that some algorithms have"


def graph_options(fields: tuple[str, ...], *, settings: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of these fields of `GraphSpec`, and for settings of algorithms; see `spec_options`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """The command with these options in its signature, which is what typer reads."""
        parameters = _field_parameters(fields) + (_setting_parameters() if settings else [])
        names = [parameter.name for parameter in parameters]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            given = {name: values.pop(name) for name in names}
            command(given={name: value for name, value in given.items() if value is not None}, **values)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        signature = inspect.Signature([*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *parameters])
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return wrapper

    return decorate


def _parameter(name: str, kind: Any, **option: Any) -> inspect.Parameter:
    default = typer.Option(None, f"--{name.replace('_', '-')}", show_default=False, **option)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind | None, default=default)


def _field_parameters(fields: tuple[str, ...]) -> list[inspect.Parameter]:
    by_name = {field.name: field for field in msgspec.structs.fields(GraphSpec)}
    found = []
    for name in fields:
        default = by_name[name].default
        kind = next(
            (one for one in (bool, int, float, str) if type(default) is one), int
        )  # None stands for a number or a word
        shown = "" if default in (None, "", False) else f" (default: {default})"
        words = f": {', '.join(algorithms_of('graph'))}" if name == "algorithm" else ""
        found.append(_parameter(name, str if name == "partition" else kind, help=f"{HELP[name]}{words}{shown}"))
    return found


def _setting_parameters() -> list[inspect.Parameter]:
    found = []
    for name, by_algorithm in all_settings("graph").items():
        one = next(iter(by_algorithm.values()))
        defaults = ", ".join(f"{algorithm}: {field.default}" for algorithm, field in by_algorithm.items())
        words = f": {', '.join(one.choices)}" if one.choices else ""
        found.append(_parameter(name, one.kind, help=f"{one.help}{words} ({defaults})", rich_help_panel=SETTINGS))
    return found


TRAIN_FIELDS = tuple(HELP)


@graphs_app.command(
    "train",
    epilog="Examples:\n\n  fkgsec graphs train --rounds 40\n\n  fkgsec graphs train --algorithm cefgl --data MUTAG,BZR,COX2 "
    "--bits 8\n\n  fkgsec graphs train --data NCI1 --clients 10 --clean --defense secagg",
)
@expected_errors
@graph_options(TRAIN_FIELDS, settings=True)
def train(
    *,
    given: dict[str, Any],
    out: Annotated[
        Path | None, typer.Option("--out", help="run folder (default: runs/<data>-<algorithm>-<hash>)")
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", help="also write the record here; - for standard output")
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option("--checkpoint-every", help="seconds between checkpoints; 0: after every round", min=0)
    ] = CHECKPOINT_EVERY_S,
    overwrite: Overwrite = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no figures; errors only")] = False,
) -> None:
    """Train a federation of graph classifiers; a killed run goes on when the same command is given again."""
    from experiments.graphs.record import RECORD_FILE

    spec = GraphSpec.of(given)
    record, folder = _finished(spec, out, checkpoint_every=checkpoint_every, overwrite=overwrite, quiet=quiet)
    content = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
    if json == "-":
        sys.stdout.write(content.decode())
    elif json is not None:
        write_new(Path(json), content, overwrite=overwrite)
    if not quiet and json != "-":
        console = make_console()
        for line in record.summary:
            console.print(line, highlight=False, soft_wrap=True)
        for warning in record.warnings:
            console.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
        console.print(f"Record: {folder / RECORD_FILE}", highlight=False, soft_wrap=True)


def _finished(
    spec: GraphSpec, out: Path | None, *, checkpoint_every: float, overwrite: bool, quiet: bool
) -> tuple[GraphRecord, Path]:
    """Train in a folder, or read back the record of the same run. Raises `RunError` for the record of another."""
    from defenses.transport import make_transport
    from experiments.graphs.record import RECORD_FILE, make_graph_record, read_graph_record

    graphs, options = spec.load(), spec.gnn_options()
    identity = run_identity(graphs, options)
    folder = out or Path("runs") / f"{Path(graphs.name).name.replace(',', '+')}-{spec.algorithm}-{identity[:8]}"
    path = folder / RECORD_FILE
    if path.exists():
        if not overwrite:
            record = read_graph_record(path)
            if record.identity != identity:
                raise refused(path, "is of a run with other options or data")
            return record, folder
        path.unlink()
        (folder / CHECKPOINT).unlink(missing_ok=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror})") from error
    with RunProgress(options, make_console(stderr=True), enabled=not quiet, metric="accuracy") as progress:
        result = run_federation(graphs, options, folder, progress, checkpoint_every, make_transport=make_transport)
    record = make_graph_record(spec, result)
    write_new(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n", overwrite=True)
    return record, folder


@graphs_app.command(
    "stats", epilog="Examples:\n\n  fkgsec graphs stats\n\n  fkgsec graphs stats --data IMDB-BINARY --clients 5 --clean"
)
@expected_errors
@graph_options(DATA_FIELDS, settings=False)
def stats(*, given: dict[str, Any]) -> None:
    """Sizes of each client's graphs, what a model reads of them, and test graphs that are isomorphic to training graphs."""
    from experiments.graphs.record import describe_clients
    from fkgsec.graphs.features import feature_kind, feature_width
    from fkgsec.graphs.twins import find_twins

    graphs = GraphSpec.of(given).load()
    twins = find_twins(graphs)
    table = Table(title=f"{graphs.name}: {len(graphs.clients)} clients")
    described = describe_clients(graphs, twins)
    for name in ("client", *next(iter(described.values())), "features"):
        table.add_column(name, justify="left" if name in ("client", "features") else "right")
    for client in graphs.clients:
        features = f"{feature_width(client.graphs)} {feature_kind(client.graphs)}"
        table.add_row(client.name, *(f"{count:,}" for count in described[client.name].values()), features)
    console = make_console()
    console.print(table)
    console.print("twins: test graphs that are isomorphic to a training graph, labels included", highlight=False)
    for warning in (*graphs.warnings, *filter(None, [twins.warning()])):
        console.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)
