"""`fkgsec deploy`: a federation whose parties run on separate machines, over Flower."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fkgsec.errors import SpecError
from fkgsec.experiments.cli.console import Json, Quiet, expected_errors, make_console, say
from fkgsec.experiments.cli.data import Config
from fkgsec.experiments.cli.options import TRAIN_FIELDS, spec_options
from fkgsec.experiments.deploy import FEWEST_TRIPLES, TIMEOUT_S
from fkgsec.experiments.deploy.flower.local import Door, attend
from fkgsec.experiments.deploy.flower.processes import (
    on_one_machine,
    run_superlink,
    run_supernode,
    stopped_by_signal,
)
from fkgsec.experiments.deploy.layout import PartyFolder, ServerFolder, read_settings
from fkgsec.experiments.runs.spec import make_spec, require_triples
from fkgsec.experiments.runs.writing import locked, read_bytes
from fkgsec.text import printable

deploy_app = typer.Typer(
    help="Run a federation whose parties run on separate machines, over Flower.", no_args_is_help=True
)

OWN_DATA = "parties"
"""Name of the data in a record if each party has its own."""
ServerPlace = Annotated[Path, typer.Argument(metavar="SERVER", help="the server's folder, such as consortium/server")]
PartyPlace = Annotated[
    Path, typer.Argument(metavar="PARTY", help="a party's folder, such as consortium/parties/berlin")
]


@deploy_app.command(
    "init",
    epilog="Examples:\n\n  fkgsec deploy init --clients 3 --out consortium\n\n"
    "  fkgsec deploy init --data DDB14 --clients 5 --defense psu,secagg --attack membership --out consortium\n\n"
    "  fkgsec deploy init --party berlin=/data/berlin --party paris=/data/paris --server federation.example.org:8443 "
    "--out consortium",
)
@expected_errors
@spec_options((*TRAIN_FIELDS, "attack"))
def init(
    *,
    options: dict[str, Any],
    out: Annotated[Path, typer.Option("--out", help="folder to make; one that is there is never written over")],
    party: Annotated[
        list[str] | None,
        typer.Option("--party", help="NAME=FOLDER of a party and its own triples on its machine; repeatable"),
    ] = None,
    server: Annotated[str, typer.Option("--server", help="host:port that SuperNodes connect to")] = "127.0.0.1:8443",
    superlink_port: Annotated[int, typer.Option("--superlink-port", help="of the server's loopback interface")] = 8000,
    node_port: Annotated[
        int, typer.Option("--node-port", help="of each party's loopback interface; on one machine the first of several")
    ] = 9094,
    laboratory: Annotated[
        bool, typer.Option("--laboratory", help="draw from --seed, as in one process: for comparisons alone")
    ] = False,
    fewest_triples: Annotated[
        int, typer.Option("--fewest-triples", help="of fewer validation or test triples parties tell no figure", min=1)
    ] = FEWEST_TRIPLES,
    config: Config = None,
) -> None:
    """Make what the server and the parties need: keys, certificates, a folder for each, and the commands to start them. An
    --attack is one that every party scores against its own data after the run; its figures are transmitted."""
    from fkgsec.experiments.deploy.consortium import Plan, make_consortium
    from fkgsec.experiments.deploy.data import DIVIDED
    from fkgsec.experiments.runs.run import warnings_of

    graph, folders = None, _folders(party or [])
    # With --party the data lie on the parties' machines, so nothing is divided here.
    if folders and (wrong := sorted(set(DIVIDED) & set(options))):
        raise SpecError(f"{', '.join(wrong)} divides data among parties; with --party each has its own: leave it out")
    spec = require_triples(make_spec(config, options), "deploy init")
    if folders:
        spec = spec.replace(data=OWN_DATA)
    else:
        graph = spec.load_graph()
        for warning in warnings_of(spec, graph):
            say(f"warning: {warning}")
        folders = {client.name: "" for client in graph.clients}
    plan = Plan(
        parties=folders,
        server=server,
        superlink_port=superlink_port,
        node_port=node_port,
        randomness="laboratory" if laboratory else "operating system",
        fewest_triples=fewest_triples,
    )
    agreement = make_consortium(out, spec, plan, graph)
    typer.echo(
        f"Made {out}: {', '.join(agreement.parties)}; agreement {agreement.fingerprint}. See {out / 'README.md'}."
    )


def _folders(arguments: list[str]) -> dict[str, str]:
    """Parse names and folders of `--party`. Raises `SpecError`."""
    folders: dict[str, str] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        if not (name and equals and folder):
            raise SpecError(f"party must be NAME=FOLDER; got {argument!r}")
        if name in folders:
            raise SpecError(f"party: {name} is given twice")
        folders[name] = folder
    return folders


@deploy_app.command("superlink", epilog="Example:\n\n  fkgsec deploy superlink consortium/server")
@expected_errors
def superlink(
    folder: ServerPlace,
    listen: Annotated[
        str | None, typer.Option("--listen", help="address to listen on, in place of server.json's")
    ] = None,
) -> None:
    """Run Flower's SuperLink with the parties' SuperNodes registered, and the gate that SuperNodes connect to, until stopped."""
    with stopped_by_signal():
        run_superlink(ServerFolder(folder), listen, say)


@deploy_app.command("supernode", epilog="Example:\n\n  fkgsec deploy supernode consortium/parties/berlin")
@expected_errors
def supernode(
    folder: PartyPlace,
    server: Annotated[
        str | None, typer.Option("--server", help="host:port of the server, in place of node.json's")
    ] = None,
) -> None:
    """Run a party's SuperNode, until stopped. It needs the folders node and door of the party's, and nothing else."""
    with stopped_by_signal():
        run_supernode(PartyFolder(folder), server, say)


@deploy_app.command("party", epilog="Example:\n\n  fkgsec deploy party consortium/parties/berlin")
@expected_errors
def party(folder: PartyPlace) -> None:
    """Run a party's own process, which has its data and keys, until stopped. One that was killed goes on from its folder."""
    from fkgsec.experiments.deploy.agreement import Agreement
    from fkgsec.experiments.deploy.data import read_party_data
    from fkgsec.experiments.deploy.party import Party
    from fkgsec.experiments.deploy.policy import PartySettings

    files = PartyFolder(folder)
    settings = read_settings(files.settings, PartySettings, "party")
    agreement = Agreement.read(files.agreement)
    # The party refuses terms against its policy before it reads its data.
    settings.policy.check(agreement)
    # The lock keeps a second process of this party from writing the same state.
    with stopped_by_signal(), locked(folder):
        data = read_party_data(folder / settings.data, settings.name)
        member = Party(files.state, settings.name, agreement, data, settings.device)
        with Door(files.address) as door:
            say(f"{settings.name} waits for requests; agreement {agreement.fingerprint}")
            attend(door, member.answer, say)


@deploy_app.command(
    "key",
    epilog="Examples:\n\n  fkgsec deploy key consortium/parties/berlin\n\n  fkgsec deploy key consortium/parties/berlin --node",
)
@expected_errors
def key(
    folder: PartyPlace,
    node: Annotated[bool, typer.Option("--node", help="of its SuperNode alone; possible at any time")] = False,
) -> None:
    """Draw a party's keys anew, where the party is. Their public halves go to public.json, for `fkgsec deploy admit`."""
    from fkgsec.experiments.deploy import keys

    keys.draw_keys(PartyFolder(folder), node_only=node)
    typer.echo(f"Written to {folder / keys.PUBLIC}; give it to the server's operator")


@deploy_app.command(
    "admit", epilog="Example:\n\n  fkgsec deploy admit consortium/server berlin/public.json paris/public.json"
)
@expected_errors
def admit(
    folder: ServerPlace,
    public: Annotated[list[Path], typer.Argument(metavar="PUBLIC...", help="the parties' public.json")],
) -> None:
    """Take parties' public keys in, at the server. The agreement that comes of it goes to every party (`fkgsec deploy agree`)."""
    from fkgsec.experiments.deploy import keys

    files = ServerFolder(folder)
    for path in public:
        agreement = keys.admit(files, read_settings(path, keys.PublicKeys, "party"))
        typer.echo(f"{path}: admitted; {files.agreement} is {agreement.fingerprint}")


@deploy_app.command(
    "agree",
    epilog="Examples:\n\n  fkgsec deploy agree consortium/parties/berlin agreement.json\n\n"
    "  fkgsec deploy agree consortium/parties/berlin agreement.json --accept rounds --accept identities.paris",
)
@expected_errors
def agree(
    folder: PartyPlace,
    agreement: Annotated[Path, typer.Argument(metavar="AGREEMENT", help="the server's agreement.json")],
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept", metavar="TERM", help="accept the new value of a term that the policy refuses; repeatable"
        ),
    ] = None,
) -> None:
    """Accept an agreement at a party. Prints every term that differs from the last accepted agreement. Compare the printed
    fingerprint with the other parties."""
    from fkgsec.experiments.deploy import keys
    from fkgsec.experiments.deploy.agreement import Agreement
    from fkgsec.experiments.deploy.policy import changed_terms

    files, offered = PartyFolder(folder), Agreement.read(agreement)
    for name, change in changed_terms(Agreement.read(files.agreement), offered).items():
        typer.echo(printable(f"{name}: {change}"))
    keys.agree(files, offered, set(accept or ()))
    typer.echo(f"{folder}: takes part in {offered.fingerprint}")


@deploy_app.command(
    "certificate",
    epilog="Example:\n\n  fkgsec deploy certificate consortium/server --authority consortium/authority "
    "--host federation.example.org",
)
@expected_errors
def certificate(
    folder: ServerPlace,
    authority: Annotated[Path, typer.Option("--authority", help="folder of the authority that SuperNodes trust")],
    host: Annotated[str, typer.Option("--host", help="name or address that SuperNodes connect to")] = "127.0.0.1",
) -> None:
    """Make the server a new certificate and key; restart `fkgsec deploy superlink` afterwards."""
    from fkgsec.experiments.deploy.certificates import Authority
    from fkgsec.experiments.deploy.consortium import write_certificate

    files = ServerFolder(folder)
    # Reading the settings raises if this is not a server's folder.
    files.read_settings()
    signer = Authority.read(read_bytes(authority / "ca.key"), read_bytes(authority / "ca.crt"))
    write_certificate(files, signer, host)
    typer.echo(f"Written to {files.tls}")


Timeout = Annotated[
    float, typer.Option("--timeout", help="seconds that a party may take for a reply before it counts as silent", min=1)
]


@deploy_app.command("server", epilog="Example:\n\n  fkgsec deploy server consortium/server --timeout 3600")
@expected_errors
def server(folder: ServerPlace, timeout: Timeout = TIMEOUT_S, json: Json = None, quiet: Quiet = False) -> None:
    """Run the federation with its parties, and write the record. A killed one goes on when the same command is given again."""
    run_server(ServerFolder(folder), timeout, json, quiet=quiet)


@deploy_app.command("up", epilog="Example:\n\n  fkgsec deploy up consortium")
@expected_errors
def up(
    folder: Annotated[Path, typer.Argument(metavar="CONSORTIUM", help="the folder that init made")],
    timeout: Timeout = TIMEOUT_S,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """Run a whole consortium on this machine, for a trial: SuperLink, SuperNodes and parties as processes, then the server."""
    with stopped_by_signal(), on_one_machine(folder, say):
        run_server(ServerFolder(folder / "server"), timeout, json, quiet=quiet)


def run_server(folder: ServerFolder, timeout_s: float, json: str | None, *, quiet: bool) -> None:
    """Run the federation of a server's folder over Flower, with progress, and print the results."""
    import pandas as pd

    from fkgsec.experiments.cli.printed import Output, print_finished
    from fkgsec.experiments.cli.progress import RunProgress
    from fkgsec.experiments.deploy.agreement import Agreement
    from fkgsec.experiments.deploy.flower.link import FlowerLink
    from fkgsec.experiments.deploy.server import serve
    from fkgsec.experiments.runs.run import Finished, read_spec

    spec = require_triples(read_spec(folder.path), "deploy server")
    agreement = Agreement.read(folder.agreement)
    tell: Callable[[str], None] = (lambda line: None) if quiet else say
    with (
        FlowerLink(folder.path, timeout_s=timeout_s, say=tell) as link,
        RunProgress(spec, make_console(stderr=True), enabled=not quiet) as progress,
    ):
        link.wait_for(agreement.addresses)
        record = serve(spec, agreement, link.ask, folder.run, progress)
    print_finished(Finished(record, pd.DataFrame(), folder.run), Output(json, quiet, overwrite=False))
