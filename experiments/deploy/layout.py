"""Where the files of a deployed consortium lie.

consortium/authority/{ca.crt,ca.key}           who made it; signs servers' certificates, needed for nothing else
consortium/server/                             the server's machine
    server.json                                addresses and ports
    agreement.json                             what is trained (`fkgsec.experiments.deploy.agreement`)
    tls/{ca.crt,server.crt,server.key}
    nodes/<party>.pub                          by which key each party's SuperNode is known
    app/                                       the bundle that Flower runs
    flower/                                    Flower's own files: its configuration, its database
    door/                                      where the ServerApp finds the server's process
    run/                                       checkpoint, record, scores
consortium/parties/<party>/                    that party's machine
    party.json                                 its name, data and policy (`fkgsec.experiments.deploy.policy`)
    agreement.json                             the same as the server's
    data/                                      its triples, unless party.json names another place
    state/                                     its secret, its tables
    node/{node.json,ca.crt,key,key.pub,flower} of its SuperNode, which needs this folder and the next, and no other
    door/                                      where the ClientApp finds the party's process
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fkgsec.errors import DataError, RunError
from fkgsec.experiments.deploy.certificates import public_pem
from fkgsec.text import printable

CONNECTION = "consortium"
"""What Flower's configuration calls the SuperLink."""
Kind = TypeVar("Kind", bound=msgspec.Struct)


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the server listens: the gate on `listen`:`port` for SuperNodes, the SuperLink behind it on the loopback interface."""

    listen: str
    port: int
    superlink_port: int


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a SuperNode finds the server, and the port of the loopback interface that it needs for itself."""

    server: str
    port: int


class ServerFolder:
    """The server's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings, self.spec, self.agreement = path / "server.json", path / "spec.json", path / "agreement.json"
        self.tls, self.nodes, self.app, self.flower = path / "tls", path / "nodes", path / "app", path / "flower"
        self.address, self.run = path / "door" / "server.address", path / "run"

    def read_settings(self) -> ServerSettings:
        """Raises `RunError` where this is no server's folder."""
        return read_settings(self.settings, ServerSettings, "server")

    def public_keys(self) -> dict[str, str]:
        """By party's name the public key of its SuperNode, as Flower writes it. Raises `RunError`, `DataError`."""
        found = {}
        for path in sorted(self.nodes.glob("*.pub")):
            try:
                found[path.stem] = public_pem(path.read_bytes())
            except OSError as error:
                raise RunError(f"{path}: cannot be read ({error.strerror})") from error
            except DataError as error:
                raise DataError(f"{path}: {error}") from error
        if len(set(found.values())) < len(found):
            raise DataError(f"{self.nodes}: two parties have the same key; each needs its own")
        if not found:
            raise RunError(f"{self.path}: has no SuperNode's key in {self.nodes.name}; is it a server's folder?")
        return found


class PartyFolder:
    """A party's files."""

    def __init__(self, path: Path) -> None:
        self.path, self.settings, self.agreement = path, path / "party.json", path / "agreement.json"
        self.state, self.node, self.address = path / "state", path / "node", path / "door" / "party.address"
        self.key, self.public_key, self.authority = self.node / "key", self.node / "key.pub", self.node / "ca.crt"
        self.flower = self.node / "flower"

    def read_node(self) -> NodeSettings:
        """Raises `RunError` where this is no party's folder."""
        return read_settings(self.node / "node.json", NodeSettings, "party")


def read_settings(path: Path, kind: type[Kind], whose: str) -> Kind:
    """A settings file. Raises `RunError` where it is not there or not one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise RunError(f"{path.parent}: is no {whose}'s folder ({path.name}: {error.strerror})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read ({printable(str(error), 300)})") from error


def encode_settings(settings: Any) -> bytes:
    """As `read_settings` reads them."""
    return msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n"
