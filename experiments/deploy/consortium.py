"""Makes a consortium: everything that a server and its parties need to run a federation apart, in one folder.

    plan = Plan(parties={"berlin": "/data/berlin", "paris": "/data/paris"}, server="federation.example.org:8443")
    make_consortium(Path("consortium"), Spec(defense="psu,secagg"), plan)

The folder appears whole or not at all and is never written over: a federation that is running may have its keys. What lies where
says `fkgsec.experiments.deploy.layout`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fkgsec.data.formats.folders import can_name_a_file
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.deploy import FEWEST_TRIPLES, instructions
from fkgsec.experiments.deploy.agreement import Agreement, Source, new_identity, new_run
from fkgsec.experiments.deploy.certificates import Authority, node_key
from fkgsec.experiments.deploy.core.audit import check_settings
from fkgsec.experiments.deploy.data import write_party_folders
from fkgsec.experiments.deploy.flower.bundle import write_bundle
from fkgsec.experiments.deploy.layout import NodeSettings, PartyFolder, ServerFolder, ServerSettings, encode_settings
from fkgsec.experiments.deploy.policy import PartySettings, Policy
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.tasks.kge import Spec

OWN = ("127.0.0.1", "localhost", "superlink")
"""Names of the server in its certificate beside its own: for its own processes, and in a network of containers."""
DATA = "data"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Who takes part, and where they find the server.

    Attributes:
        parties: by name the folder of its data, on its own machine; empty where init writes the data itself.
        server: host and port that SuperNodes connect to. superlink_port, node_port: of the loopback interface; SuperNodes have
            this port and those after it, so that all can run on one machine.
        randomness, fewest_triples: see `Agreement`.

    Raises `SpecError`.
    """

    parties: Mapping[str, str]
    server: str = "127.0.0.1:8443"
    superlink_port: int = 8000
    node_port: int = 9094
    randomness: Source = "operating system"
    fewest_triples: int = FEWEST_TRIPLES

    def __post_init__(self) -> None:
        host, _, port = self.server.rpartition(":")
        if not host or not _is_port(port):
            raise SpecError(f"server must be a host and a port, such as 127.0.0.1:8443; got {self.server!r}")
        for name, value in (("superlink_port", self.superlink_port), ("node_port", self.node_port)):
            if not _is_port(str(value)):
                raise SpecError(f"{name} must lie in 1..65535; got {value}")
        for name in self.parties:
            if not can_name_a_file(name):
                raise SpecError(f"party: {name!r} cannot be a folder's name; take letters, digits and hyphens")

    @property
    def host(self) -> str:
        """Of the server."""
        return self.server.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Of the server."""
        return int(self.server.rpartition(":")[2])


def make_consortium(place: Path, spec: Spec, plan: Plan, graph: FederatedGraph | None = None) -> Agreement:
    """Make the folder.

    Args:
        spec: what is to be trained.
        graph: data to divide among the parties' folders, for a trial on one machine; None where each has its own.

    Raises:
        RunError: the folder is there already, or cannot be made. SpecError: options that cannot run apart. DataError: names in
            the data that cannot stand in a file.
    """
    check_settings(spec)
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise RunError(f"{place}: is there already; a consortium is never written over, name another folder")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as scratch:
            whole = Path(scratch) / "out"
            agreement = _write_all(whole, spec, plan, graph)
            whole.replace(place)
    except OSError as error:
        raise RunError(f"{place}: cannot be made ({error.strerror})") from error
    return agreement


def _write_all(whole: Path, spec: Spec, plan: Plan, graph: FederatedGraph | None) -> Agreement:
    names = tuple(plan.parties)
    for folder in (whole, whole / "authority", whole / "server", whole / "parties"):
        folder.mkdir(mode=0o700)
    run = new_run()
    folders = {name: PartyFolder(whole / "parties" / name) for name in names}
    for folder in folders.values():
        for own in (folder.path, folder.state, folder.node, folder.address.parent):
            own.mkdir(mode=0o700)
    keys = {name: new_identity(folder.state, run) for name, folder in folders.items()}
    options = spec.federation_options()
    agreement = Agreement(
        run=run,
        options=options,
        parties=names,
        identities=keys,
        randomness=plan.randomness,
        audit=spec.attack,
        fewest_triples=plan.fewest_triples,
    )
    authority = Authority.new(whole.name)
    _write_authority(whole / "authority", authority)
    server = ServerFolder(whole / "server")
    _write_server(server, authority, agreement, plan)
    write_file(server.spec, encode_stored(spec))
    for place, (name, folder) in enumerate(folders.items()):
        _write_party(folder, name, authority, agreement, plan, plan.node_port + place)
        write_file(server.nodes / f"{name}.pub", folder.public_key.read_bytes())
    if graph is not None:
        _write_data(whole, graph, folders)
    for file, text in instructions.files(names, plan.server).items():
        write_file(whole / file, text.encode())
    return agreement


def _write_authority(folder: Path, authority: Authority) -> None:
    certificate, key = authority.encoded()
    write_file(folder / "ca.crt", certificate)
    write_file(folder / "ca.key", key, secret=True)


def _write_server(folder: ServerFolder, authority: Authority, agreement: Agreement, plan: Plan) -> None:
    for own in (folder.tls, folder.nodes, folder.flower, folder.address.parent):
        own.mkdir(mode=0o700)
    listen = "127.0.0.1" if plan.host in OWN else "0.0.0.0"
    settings = ServerSettings(listen=listen, port=plan.port, superlink_port=plan.superlink_port)
    write_file(folder.settings, encode_settings(settings))
    agreement.write(folder.agreement)
    write_certificate(folder, authority, plan.host)
    write_bundle(folder.app)


def write_certificate(folder: ServerFolder, authority: Authority, host: str) -> None:
    """A server's certificate and key, beside the certificate of who signed it."""
    certificate, key = authority.server_certificate(list(dict.fromkeys((host, *OWN))))
    write_file(folder.tls / "ca.crt", authority.encoded()[0])
    write_file(folder.tls / "server.crt", certificate)
    write_file(folder.tls / "server.key", key, secret=True)


def _write_party(
    folder: PartyFolder, name: str, authority: Authority, agreement: Agreement, plan: Plan, port: int
) -> None:
    settings = PartySettings(name=name, data=plan.parties[name] or DATA, policy=Policy.of(agreement))
    write_file(folder.settings, encode_settings(settings))
    agreement.write(folder.agreement)
    write_file(folder.node / "node.json", encode_settings(NodeSettings(server=plan.server, port=port)))
    write_file(folder.authority, authority.encoded()[0])
    write_node_key(folder, name)


def write_node_key(folder: PartyFolder, name: str) -> None:
    """A new key of a party's SuperNode."""
    private, public = node_key(name)
    write_file(folder.key, private, secret=True)
    write_file(folder.public_key, public)


def _write_data(whole: Path, graph: FederatedGraph, folders: Mapping[str, PartyFolder]) -> None:
    scratch = whole / DATA
    for written in write_party_folders(graph, scratch):
        written.replace(folders[written.name].path / DATA)
    scratch.rmdir()


def write_file(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Write a file, which only its owner may read where it is secret; over what is there at once or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    part.replace(path)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= 65535
