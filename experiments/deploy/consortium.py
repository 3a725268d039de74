"""Make a consortium: a folder with everything that a server and its parties need to run a federation apart.

    plan = Plan(parties={"berlin": "/data/berlin", "paris": "/data/paris"}, server="federation.example.org:8443")
    make_consortium(Path("consortium"), Spec(defense="psu,secagg"), plan)

The folder appears whole or not at all and is never overwritten: a running federation may use its keys. See
`fkgsec.experiments.deploy.layout` for its files. Flower sends the app bundle to the SuperNodes and starts it there and on the
SuperLink. It has only the code that carries frames: no key, no data, no option of a run.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import yaml

from fkgsec.data.formats.folders import can_name_a_file
from fkgsec.data.graph import FederatedGraph
from fkgsec.errors import RunError, SpecError
from fkgsec.experiments.deploy import FEWEST_TRIPLES
from fkgsec.experiments.deploy.agreement import Agreement, Source, new_identity, new_run
from fkgsec.experiments.deploy.certificates import Authority, node_key
from fkgsec.experiments.deploy.core.audit import check_settings
from fkgsec.experiments.deploy.data import write_party_folders
from fkgsec.experiments.deploy.flower.installed import VERSION
from fkgsec.experiments.deploy.layout import NodeSettings, PartyFolder, ServerFolder, ServerSettings, encode_settings
from fkgsec.experiments.deploy.policy import PartySettings, Policy
from fkgsec.experiments.runs.stored import encode_stored
from fkgsec.experiments.tasks.kge import Spec
from fkgsec.version import __version__

LOCAL_NAMES = ("127.0.0.1", "localhost", "superlink")
"""Further names of the server in its certificate: for its processes, and in a network of containers."""
DATA = "data"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The parties, and the server's address.

    Attributes:
        parties: each party's folder of data, on its machine; empty if init writes the data.
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
        """The server's host."""
        return self.server.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The server's port."""
        return int(self.server.rpartition(":")[2])


def make_consortium(place: Path, spec: Spec, plan: Plan, graph: FederatedGraph | None = None) -> Agreement:
    """Make the folder.

    Args:
        graph: data to divide among the parties' folders, for a trial on one machine; None if each party has its data.

    Raises:
        RunError: the folder exists, or cannot be made. SpecError: options that cannot run apart. DataError: names in the data
            that cannot be written to a file.
    """
    check_settings(spec)
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise RunError(f"{place}: is there already; a consortium is never written over, name another folder")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        # Write to a folder beside the target and rename it, so that the consortium appears whole or not at all.
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as scratch:
            whole = Path(scratch) / "out"
            agreement = _write_all(whole, spec, plan, graph)
            whole.replace(place)
    except OSError as error:
        raise RunError(f"{place}: cannot be made ({error.strerror})") from error
    return agreement


def _write_all(whole: Path, spec: Spec, plan: Plan, graph: FederatedGraph | None) -> Agreement:
    # Mode 700 for all folders: each has secrets.
    names = tuple(plan.parties)
    for folder in (whole, whole / "authority", whole / "server", whole / "parties"):
        folder.mkdir(mode=0o700)
    run = new_run()
    folders = {name: PartyFolder(whole / "parties" / name) for name in names}
    for folder in folders.values():
        for subfolder in (folder.path, folder.state, folder.node, folder.address.parent):
            subfolder.mkdir(mode=0o700)
    agreement = Agreement(
        run=run,
        options=spec.federation_options(),
        parties=names,
        identities={name: new_identity(folder.state, run) for name, folder in folders.items()},
        randomness=plan.randomness,
        audit=spec.attack,
        fewest_triples=plan.fewest_triples,
    )
    authority = Authority.new(whole.name)
    certificate, key = authority.encoded()
    write_file(whole / "authority" / "ca.crt", certificate)
    write_file(whole / "authority" / "ca.key", key, secret=True)
    server = ServerFolder(whole / "server")
    _write_server(server, authority, agreement, plan)
    write_file(server.spec, encode_stored(spec))
    for number, (name, folder) in enumerate(folders.items()):
        # Each party's first policy accepts exactly this agreement.
        settings = PartySettings(name=name, data=plan.parties[name] or DATA, policy=Policy.exactly(agreement))
        write_file(folder.settings, encode_settings(settings))
        agreement.write(folder.agreement)
        node = NodeSettings(server=plan.server, port=plan.node_port + number)
        write_file(folder.node / "node.json", encode_settings(node))
        write_file(folder.authority, certificate)
        write_node_key(folder, name)
        write_file(server.nodes / f"{name}.pub", folder.public_key.read_bytes())
    if graph is not None:
        for written in write_party_folders(graph, whole / DATA):
            written.replace(folders[written.name].path / DATA)
        (whole / DATA).rmdir()
    for file, text in _documents(names, plan.server).items():
        write_file(whole / file, text.encode())
    return agreement


def _write_server(folder: ServerFolder, authority: Authority, agreement: Agreement, plan: Plan) -> None:
    for subfolder in (folder.tls, folder.nodes, folder.flower, folder.address.parent):
        subfolder.mkdir(mode=0o700)
    # A local trial must not open a port to the network.
    listen = "127.0.0.1" if plan.host in LOCAL_NAMES else "0.0.0.0"
    settings = ServerSettings(listen=listen, port=plan.port, superlink_port=plan.superlink_port)
    write_file(folder.settings, encode_settings(settings))
    agreement.write(folder.agreement)
    write_certificate(folder, authority, plan.host)
    write_bundle(folder.app)


def write_certificate(folder: ServerFolder, authority: Authority, host: str) -> None:
    """Write a new certificate and key of the server, and the authority's certificate.

    Args:
        folder: the server's. authority: signs the certificate.
        host: name or address that SuperNodes connect to.
    """
    certificate, key = authority.server_certificate(list(dict.fromkeys((host, *LOCAL_NAMES))))
    write_file(folder.tls / "ca.crt", authority.encoded()[0])
    write_file(folder.tls / "server.crt", certificate)
    write_file(folder.tls / "server.key", key, secret=True)


def write_node_key(folder: PartyFolder, name: str) -> None:
    """Draw and write a key of a party's SuperNode.

    Args:
        folder: the party's. name: of the party.
    """
    private, public = node_key(name)
    write_file(folder.key, private, secret=True)
    write_file(folder.public_key, public)


def write_file(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Write a file atomically.

    Args:
        content: bytes of the whole file.
        secret: only the owner may read it.
    """
    part = path.with_name(f"{path.name}.part")
    # Create the file with its final mode: a later `chmod` would leave a secret readable for a moment.
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    part.replace(path)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= 65535


def _documents(parties: Sequence[str], server: str) -> dict[str, str]:
    """Return the files at the top of the folder by name: instructions and container services."""
    lines = "\n".join(f"    {line}" for line in commands(parties))
    secret = "\n".join(f"- parties/{name}: to {name}, over a channel that only {name} reads" for name in parties)
    return {
        "README.md": README.format(commands=lines, secret=secret, server=server),
        "compose.yaml": yaml.safe_dump(compose(parties, server), sort_keys=False),
        "Dockerfile": DOCKERFILE.format(flower=VERSION),
    }


def commands(parties: Sequence[str]) -> list[str]:
    """List the commands that start a consortium, one per terminal, run in its folder.

    Args:
        parties: names.
    """
    quoted = [shlex.quote(f"parties/{name}") for name in parties]
    return [
        "fkgsec deploy superlink server",
        *(f"fkgsec deploy supernode {place}" for place in quoted),
        *(f"fkgsec deploy party {place}" for place in quoted),
        "fkgsec deploy server server",
    ]


def compose(parties: Sequence[str], server: str) -> dict[str, object]:
    """Describe the services of a container engine.

    Args:
        parties: names. server: host and port.
    """
    port = server.rpartition(":")[2]

    def service(command: str, *volumes: str, **more: object) -> dict[str, object]:
        """Describe one service."""
        return {"build": ".", "command": ["deploy", *command.split()], "volumes": list(volumes), **more}

    # The SuperLink and the server's process share a loopback interface. A party's process has no network, and its SuperNode sees
    # neither its data nor its state.
    lasting = {"restart": "unless-stopped"}
    shared = {"network_mode": "service:superlink", "depends_on": ["superlink"]}
    superlink = service("superlink /server --listen 0.0.0.0", "./server:/server", ports=[f"{port}:{port}"], **lasting)
    services = {"superlink": superlink, "server": service("server /server", "./server:/server", **shared)}
    for number, name in enumerate(parties, 1):
        folder = f"./parties/{name}"
        services[f"party-{number}"] = service("party /party", f"{folder}:/party", network_mode="none", **lasting)
        volumes = f"{folder}/node:/party/node", f"{folder}/door:/party/door:ro"
        node = service(f"supernode /party --server superlink:{port}", *volumes, depends_on=["superlink"], **lasting)
        services[f"supernode-{number}"] = node
    return {"services": services}


DOCKERFILE = """\
# docker build --build-arg FKGSEC=<what pip installs fkgsec from> .
FROM python:3.11-slim
ARG FKGSEC=fkgsec
RUN pip install --no-cache-dir "${{FKGSEC}}" && python -m venv /flower && /flower/bin/pip install --no-cache-dir flwr=={flower}
ENV FKGSEC_FLOWER=/flower/bin
ENTRYPOINT ["fkgsec"]
"""

README = """\
# A consortium

All on one machine, for a trial: `fkgsec deploy up .`

Apart, each in a terminal (or service) of its own:

{commands}

SuperNodes connect to {server}. Who gets what:

- server: stays with the server's operator
{secret}
- authority: nobody; keep it offline, it signs the server's next certificate

Whoever made this folder has drawn every secret in it. Where that must not be, each party draws its own with `fkgsec deploy key`.
`fkgsec deploy --help` tells the rest.
"""


PACKAGE = "fkgsec_relay"
SOURCE = Path(__file__).absolute().parent / "flower" / "inside" / PACKAGE
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fkgsec-relay"
version = "{version}"
description = "Carries the frames of an fkgsec federation"
license = "Apache-2.0"
dependencies = ["flwr=={flower}"]

[tool.hatch.build.targets.wheel]
packages = ["fkgsec_relay"]

[tool.flwr.app]
publisher = "fkgsec"

[tool.flwr.app.components]
serverapp = "fkgsec_relay.server:app"
clientapp = "fkgsec_relay.client:app"

[tool.flwr.app.config]
"""


def write_bundle(folder: Path) -> None:
    """Write the app bundle.

    Args:
        folder: to create.

    Raises:
        OSError: it cannot be written.
    """
    (folder / PACKAGE).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(version=__version__, flower=VERSION))
    for path in sorted(SOURCE.glob("*.py")):
        # The bundle has only the code that carries frames: it runs on every machine, and must reveal nothing.
        (folder / PACKAGE / path.name).write_bytes(path.read_bytes())
